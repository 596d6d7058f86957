"""The scales of 8-bit operands, and how their products are summed."""

from __future__ import annotations

import dataclasses

import torch

from .matrix import Matrix

#: Elements of K, and lines of an operand, that share a block's scale.
BLOCK = 128
#: What shares a scale, as callers name it: by word, or by torch's `ScalingType` of this name.
RECIPES = {
    "tensor": "TensorWise",
    "row": "RowWise",
    "block": "BlockWise1x128",
    "block2d": "BlockWise128x128",
}
#: Types of operands besides int8; the two operands' may differ.
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclasses.dataclass(frozen=True)
class Scales:
    """The factors of A's and B's elements: fp32 matrices of [lines, steps of K].

    Lines are A's rows, or B's columns. A scale covers one line, 128 or all, and all of K or 128
    elements. The tensor core keeps 14 bits of an fp8 sum; if `promoted`, the sums of every 128
    elements of K are added in fp32.
    """

    a: Matrix
    b: Matrix
    promoted: bool

    @staticmethod
    def of(a: torch.Tensor, b: torch.Tensor, promoted: bool) -> Scales:
        """The scales in two tensors [lines, steps], or [groups, lines, steps]."""
        return Scales(_matrix(a), _matrix(b), promoted)

    def transposed(self) -> Scales:
        """Those of C.T."""
        return Scales(self.b, self.a, self.promoted)

    @property
    def blocks(self) -> bool:
        """Whether one of them varies along K."""
        return self.a.cols > 1 or self.b.cols > 1

    def per(self, M: int, N: int) -> tuple[int, int]:
        """How many of M rows and N columns share a scale: 1, 128, or 0 for all."""
        return _lines_per(self.a, M), _lines_per(self.b, N)

    def __str__(self) -> str:
        words = [f"{m.rows} x {m.cols}" for m in (self.a, self.b)]
        return f"scales {words[0]} and {words[1]}" + ", promoted" * self.promoted


def spread(scale: torch.Tensor, lines: int, terms: int) -> torch.Tensor:
    """A scale [..., lines, steps], or for blocks of lines, per element of [..., lines, terms].

    A dimension with one scale for all keeps size 1, to be broadcast.
    """
    for dim, size in ((-2, lines), (-1, terms)):
        if 1 < scale.shape[dim] < size:
            scale = scale.repeat_interleave(BLOCK, dim).narrow(dim, 0, size)
    return scale


def empty_scale(recipe: str, lines: int, K: int, groups: tuple[int, ...] = ()) -> torch.Tensor:
    """Scales [lines, steps] for a recipe, on meta; with `groups`, that many of them."""
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
    """A tensor's matrix; dimensions of one element have no stride."""
    sizes = (1,) * (4 - scale.dim()) + tuple(scale.shape)
    strides = (0,) * (4 - scale.dim()) + scale.stride()
    steps = tuple(step if n > 1 else 0 for n, step in zip(sizes, strides, strict=True))
    _, _, lines, along_k = sizes
    return Matrix(scale.dtype, lines, along_k, steps, scale.data_ptr() % 16 == 0)


def _lines_per(scale: Matrix, count: int) -> int:
    if scale.rows != count:
        return BLOCK
    return 0 if scale.strides[2] == 0 else 1
