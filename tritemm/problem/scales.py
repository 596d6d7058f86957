"""The scales of operands of 8 bits, and how their products are summed."""

from __future__ import annotations

import dataclasses

import torch

from .matrix import Matrix

#: Elements of K, and lines of an operand, that share a scale where scales are of blocks.
BLOCK = 128
#: What shares a scale, as callers name it: in words, or by torch's `ScalingType` of this name.
RECIPES = {
    "tensor": "TensorWise",
    "row": "RowWise",
    "block": "BlockWise1x128",
    "block2d": "BlockWise128x128",
}
#: Types of operands beside int8; two different ones too.
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclasses.dataclass(frozen=True)
class Scales:
    """What A's and B's elements are multiplied with: fp32 matrices of [lines, steps of K].

    Lines are A's rows, or B's columns. A scale is of one line, of 128 or of all, and of all of K or
    of 128 elements. Of what the tensor core sums, which keeps 14 bits of fp8, each 128 elements of
    K are added in fp32 if `promoted`.
    """

    a: Matrix
    b: Matrix
    promoted: bool

    @staticmethod
    def of(a: torch.Tensor, b: torch.Tensor, promoted: bool) -> Scales:
        """Those of two tensors [lines, steps], or [groups, lines, steps]."""
        return Scales(_matrix(a), _matrix(b), promoted)

    def transposed(self) -> Scales:
        """Those of C.T."""
        return Scales(self.b, self.a, self.promoted)

    @property
    def blocks(self) -> bool:
        """Whether one of them changes along K."""
        return self.a.cols > 1 or self.b.cols > 1

    def per(self, M: int, N: int) -> tuple[int, int]:
        """How many of so many rows and columns share a scale: 1, 128, or 0 for all."""
        return _lines_per(self.a, M), _lines_per(self.b, N)

    def __str__(self) -> str:
        words = [f"{m.rows} x {m.cols}" for m in (self.a, self.b)]
        return f"scales {words[0]} and {words[1]}" + ", promoted" * self.promoted


def spread(scale: torch.Tensor, lines: int, terms: int) -> torch.Tensor:
    """A scale [..., lines, steps], or of blocks of lines, for each element of [..., lines, terms].

    Where all of a dimension share one, it stays one, to be broadcast.
    """
    for dim, size in ((-2, lines), (-1, terms)):
        if 1 < scale.shape[dim] < size:
            scale = scale.repeat_interleave(BLOCK, dim).narrow(dim, 0, size)
    return scale


def empty_scale(recipe: str, lines: int, K: int, groups: tuple[int, ...] = ()) -> torch.Tensor:
    """Scales [lines, steps] of a recipe, on meta; or so many for each of some groups."""
    steps, bands = -(-K // BLOCK), -(-lines // BLOCK)
    shape = {
        "tensor": (1, 1),
        "row": (1, lines),
        "block": (steps, lines),
        "block2d": (steps, bands),
    }
    made = torch.empty(*groups, *shape[recipe], device="meta").mT
    return made.expand(*groups, lines, 1) if recipe == "tensor" else made


def _matrix(scale: torch.Tensor) -> Matrix:
    """A tensor's matrix; along what has one element there is no stride."""
    sizes = (1,) * (4 - scale.dim()) + tuple(scale.shape)
    strides = (0,) * (4 - scale.dim()) + scale.stride()
    steps = tuple(step if n > 1 else 0 for n, step in zip(sizes, strides, strict=True))
    _, _, lines, along_k = sizes
    return Matrix(scale.dtype, lines, along_k, steps, scale.data_ptr() % 16 == 0)


def _lines_per(scale: Matrix, count: int) -> int:
    if scale.rows != count:
        return BLOCK
    return 0 if scale.strides[2] == 0 else 1
