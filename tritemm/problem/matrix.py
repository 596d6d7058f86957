"""One operand as a kernel sees it: its type, sizes and strides."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import torch

#: How an operand is stored: by rows, as written (N), or by columns, transposed (T).
Layout = Literal["NN", "NT", "TN", "TT"]


@dataclasses.dataclass(frozen=True)
class Matrix:
    """One operand as a kernel sees it: `strides` in elements, (batch, batch, row, column)."""

    dtype: torch.dtype
    rows: int
    cols: int
    strides: tuple[int, ...]
    aligned: bool  # the first element is on a 16-byte boundary

    @property
    def apart(self) -> bool:
        """Whether the batch has a matrix each, rather than one for all."""
        return any(self.strides[:2])

    def pitch(self, major: str) -> int | Any:
        """Elements between rows ("N") or columns ("T") if those are contiguous, else None.

        The stride of a dimension of one element is arbitrary; its pitch is rounded up to 16 bytes.
        """
        return self._pitches[major != "N"]

    @functools.cached_property
    def _pitches(self) -> tuple[int | None, int | None]:
        """Pitches for both majors, cached: every rung reads them several times."""
        _, _, row, col = self.strides
        vector = 16 // self.dtype.itemsize
        by_rows = by_columns = None
        if col == 1 or self.cols == 1:
            by_rows = row if self.rows != 1 else -(-self.cols // vector) * vector
        if row == 1 or self.rows == 1:
            by_columns = col if self.cols != 1 else -(-self.rows // vector) * vector
        return by_rows, by_columns

    @functools.cached_property
    def vectorised(self) -> bool:
        """Whether pointer loads are 16 bytes wide; only contiguous lines allow that.

        Triton only knows whether 16 divides its integer arguments.
        """
        if self.layout == "-" or not self.aligned:
            return False
        inner = self.cols if self.layout == "N" else self.rows
        return inner % 16 == 0 and self.pitch(self.layout) % 16 == 0

    def transposed(self) -> Matrix:
        """The same elements with rows and columns exchanged."""
        *batch, row, col = self.strides
        return Matrix(self.dtype, self.cols, self.rows, (*batch, col, row), self.aligned)

    def packed(self, major: str, batches: tuple[int, int]) -> Matrix:
        """A copy whose rows ("N") or columns ("T") start on 128-byte boundaries, one after another.

        These are the lines of L2, so a tile's row of 128 bytes is in one line. Broadcast batches
        stay broadcast.
        """
        inner, outer = (self.cols, self.rows) if major == "N" else (self.rows, self.cols)
        vector = 128 // self.dtype.itemsize
        pitch = -(-inner // vector) * vector
        strides, step = [0, 0], outer * pitch
        for axis in (1, 0):
            if batches[axis] > 1 and self.strides[axis]:
                strides[axis] = step
                step *= batches[axis]
        line = (pitch, 1) if major == "N" else (1, pitch)
        return Matrix(self.dtype, self.rows, self.cols, (*strides, *line), aligned=True)

    @functools.cached_property
    def layout(self) -> str:
        """N: rows are contiguous; T: columns are, or the only one is; -: neither."""
        by_rows, by_columns = self._pitches
        if by_columns is not None and (by_rows is None or self.cols == 1 < self.rows):
            return "T"
        return "N" if by_rows is not None else "-"


def stored(make: Callable[..., torch.Tensor], *shape: int, layout: str, **options) -> torch.Tensor:
    """[*batch, rows, cols] from `make(*sizes, **options)`, by rows (layout N) or columns (T)."""
    if layout == "N":
        return make(*shape, **options)
    *batch, rows, cols = shape
    return make(*batch, cols, rows, **options).mT


def short_name(dtype: torch.dtype) -> str:
    """bf16 for torch.bfloat16."""
    return str(dtype).removeprefix("torch.").replace("bfloat", "bf").replace("float", "fp")
