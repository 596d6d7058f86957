"""How matrices are stored, as a kernel's arguments, and what can copy their lines: TMA, or threads
16 bytes at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia import hopper as gluon
from triton.tools.tensor_descriptor import TensorDescriptor

from ..kernels.device import epilogue, groups
from ..problem import Matrix, Problem, kept
from ..runtime.bounded import Bounded
from ..spec import TRITON_DTYPE
from .sm90 import TMA_BYTES

LINES = groups.LINES.value
#: As in a kernel; a call from the host costs several microseconds.
by_tma = functools.cache(epilogue.by_tma)


def sizes(problem: Problem, matrices: str = "c") -> dict[str, Any]:
    """The sizes, and the strides of the `matrices`."""
    B0, B1 = problem.batches
    values = {"M": problem.M, "N": problem.N, "K": problem.K, "B0": B0, "B1": B1}
    for name in matrices:
        values |= zip(_STRIDES[name], getattr(problem, name).strides, strict=True)
    return values


_STRIDES = {
    name: [f"stride_{name}{axis}" for axis in axes]
    for name, axes in {"a": "01mk", "b": "01kn", "c": "01mn"}.items()
}


def once_per(kind: Callable[[Problem], Hashable]):
    """Computes a function of a problem once for all problems of a `kind`.

    The function may depend on nothing else. The kind of most problems has been seen before.
    """

    def of(function: Callable):
        known: dict[Hashable, Any] = Bounded(4096)

        @functools.wraps(function)
        def found(problem: Problem, *more: Hashable):
            key = kind(problem), more
            if (answer := known.get(key, known)) is known:
                answer = known[key] = function(problem, *more)
            return answer

        return found

    return of


def major_of(matrix: Matrix, by: str = "TMA") -> str:
    """How `matrix` is copied `by` TMA or threads, if it can be: by rows (N) where possible, or
    columns (T).
    """
    return "N" if line_refusal("", matrix, "N", by) is None else "T"


def line_refusal(name: str, matrix: Matrix, major: str, by: str = "TMA") -> str | None:
    """Why 16 bytes at a time of `matrix` can't be copied `by` TMA, or by threads.

    Stored by rows (N) or columns (T); threads can also copy the same line again and again.
    """
    size = matrix.dtype.itemsize
    line = "row" if major == "N" else "column"
    if not matrix.aligned:
        return f"the first element of {name} is not on a 16-byte boundary, as {by} needs"
    pitch = matrix.pitch(major)
    if pitch is None:
        return f"the {line}s of {name} are not contiguous, as {by} needs"
    if pitch * size % TMA_BYTES or (pitch == 0 and by == "TMA"):
        return f"{line} stride of {name} is {pitch * size} bytes; {by} needs a multiple of 16"
    for stride in matrix.strides[:2]:
        if stride * size % TMA_BYTES:
            return f"batch stride of {name} is {stride * size} bytes; {by} needs a multiple of 16"
    return None


def unreadable(name: str, matrix: Matrix, by: str = "TMA") -> str | None:
    """Why `matrix` can be copied neither by rows nor by columns."""
    by_rows = line_refusal(name, matrix, "N", by)
    if by_rows and (by_columns := line_refusal(name, matrix, "T", by)):
        return by_columns if matrix.layout == "T" else by_rows
    return None


def readable(problem: Problem, by: str = "TMA") -> str | None:
    """The constraint on A and B, each read by rows or by columns, in pieces of 16 bytes."""
    return unreadable("a", problem.a, by) or unreadable("b", problem.b, by)


@kept
def crossed(problem: Problem) -> str:
    """The operands whose lines are cut into groups."""
    across = problem.across.items()
    return "".join(name for name, major in across if major_of(getattr(problem, name)) != major)


@kept
def storable(problem: Problem) -> bool:
    """Whether TMA can write C; otherwise the kernel stores through pointers.

    A TMA store writes whole 16-byte pieces, so a ragged last piece of a row would be overwritten
    (triton-lang/triton issue 11583).
    """
    matrix = problem.c
    return (
        line_refusal("c", matrix, "N") is None
        and matrix.cols * matrix.dtype.itemsize % TMA_BYTES == 0
        and matrix.strides[3] == 1
        and (
            problem.groups in ("m", "n")
            or all(s for s, n in zip(matrix.strides, problem.batches, strict=False) if n > 1)
        )
    )


@kept
def c_major(problem: Problem) -> str:
    """How C is stored: by TMA along rows (N) or columns (T), else by threads (n, t)."""
    if storable(problem) and problem.groups != "n":  # lines must not cross the groups' ends
        return "N"
    if storable(problem.transposed()) and problem.groups != "m":
        return "T"
    return "t" if problem.c.layout == "T" else "n"


@dataclasses.dataclass(frozen=True)
class Box:
    """The geometry of a tensor descriptor, and the matrix's major: by rows N, by columns T.

    Batched matrices have rank 4. A broadcast batch dimension has extent 1 there, and the kernel
    clamps its index.
    """

    major: str
    shape: list[int]
    strides: list[int]
    block: list[int]

    @staticmethod
    def of(problem: Problem, matrix: Matrix, rows: int, cols: int) -> Box:
        """The box of `matrix`, in blocks of [rows, cols]."""
        major = major_of(matrix)
        shape, block = [matrix.rows, matrix.cols], [rows, cols]
        if major == "T":
            shape, block = shape[::-1], block[::-1]
        pitch = matrix.pitch(major)
        strides = [pitch, 1]
        if problem.batched:
            batch = matrix.strides[:2]
            extents = [size if s else 1 for size, s in zip(problem.batches, batch, strict=True)]
            shape = extents + shape
            strides = [s or pitch for s in batch] + strides
            block = [1, 1, *block]
        return Box(major, shape, strides, block)

    @staticmethod
    def of_c(problem: Problem, rows: int, columns: int) -> Box | None:
        """The box of C, in pieces of [rows, columns]; None if threads store it."""
        if problem.groups in ("m", "n"):
            whole = by_tma(c_major(problem))
            return Box.ragged(problem.c, rows, columns, problem.groups) if whole else None
        if c_major(problem) == "T":
            return Box.of(problem.transposed(), problem.c.transposed(), columns, rows)
        return Box.of(problem, problem.c, rows, columns) if storable(problem) else None

    @staticmethod
    def ragged(matrix: Matrix, rows: int, cols: int, along: str) -> Box:
        """The box of a matrix whose lines are cut into groups: its rows ("m") or columns ("n").

        Its map has two more dimensions, by which a kernel chooses where it ends: at coordinates
        (LINES, end), line LINES - n is line end - n of the matrix, and LINES is beyond the map's
        last. The strides of the two add up to nothing, for addresses wrap at 2**64.
        """
        major, inner, block = "N", matrix.cols, [rows, cols]
        if along == "n":
            major, inner, block = "T", matrix.rows, [cols, rows]
        pitch, any_line = matrix.pitch(major), 2 * LINES - 1
        strides = [2**64 // LINES - pitch, pitch, pitch, 1]
        return Box(major, [any_line, any_line, LINES, inner], strides, [1, 1, *block])

    def descriptor(self, tensor) -> TensorDescriptor:
        """The descriptor of `tensor`, for a kernel in Triton."""
        return TensorDescriptor(tensor, self.shape, self.strides, self.block)

    def gluon_descriptor(self, tensor) -> gluon.TensorDescriptor:
        """The same for a kernel in Gluon, in the layout of shared memory that WGMMA reads.

        Gluon's blocks are powers of two; a kernel that loads others by PTX finds the largest that
        divides this one in the descriptor's type, and the tensor map has `box`.
        """
        block = [size & -size for size in self.block]
        layout = _shared_layout(tuple(block), tensor.dtype)
        descriptor = gluon.TensorDescriptor(tensor, self.shape, self.strides, block, layout)
        if block != self.block:
            descriptor.box = self.block
        return descriptor


class Boxes(NamedTuple):
    """The boxes of A, B and C, the last None if C is stored through pointers; and of B's other
    half, if it has one."""

    a: Box
    b: Box
    c: Box | None
    b1: Box | None = None

    def described(self, make: Callable[[Box, Any], Any], a, b, c) -> dict[str, Any]:
        """Descriptors of A, B and C, and C's address; `make` is the one of `Box`."""
        described = {"a_desc": make(self.a, a), "b_desc": make(self.b, b)}
        return described | {"c_desc": self.c and make(self.c, c), "c_ptr": c}


@functools.cache
def _shared_layout(block: tuple[int, ...], dtype: torch.dtype) -> NVMMASharedLayout:
    """A block in shared memory, with the widest swizzle that its lines allow."""
    return NVMMASharedLayout.get_default_for(list(block), TRITON_DTYPE[dtype])
