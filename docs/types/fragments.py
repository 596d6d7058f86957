"""Fragments of `mma.sync` as layouts of Gluon.

Which lane of a warp holds which element is linear over bits: each bit of a lane's number, and each
bit of the number of an element among those that the lane holds, adds a power of two to the row or
to the column. So a fragment is the place that each of those bits stands for, and that is what
Gluon's `DistributedLinearLayout` is made of.
"""

from __future__ import annotations

import dataclasses
import functools

from triton.experimental.gluon import language as gl

from cuda_reference.types import fragments
from cuda_reference.types.table import BITS, Entry

Place = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Fragment:
    """An operand [rows, cols] of a warp: element e of lane l stands at `place(l, e)`.

    `elements` and `lanes` are the (row, column) of the bits of e and of l, the lowest first.
    """

    shape: Place
    elements: tuple[Place, ...]
    lanes: tuple[Place, ...]

    def place(self, lane: int, element: int) -> Place:
        """The sum of what the bits that are set stand for."""
        bits = [base for bit, base in enumerate(self.elements) if element >> bit & 1]
        bits += [base for bit, base in enumerate(self.lanes) if lane >> bit & 1]
        return sum(row for row, _ in bits), sum(col for _, col in bits)

    @property
    def layout(self) -> gl.DistributedLinearLayout:
        elements, lanes = ([list(base) for base in bases] for bases in (self.elements, self.lanes))
        return gl.DistributedLinearLayout(elements, lanes, [], [], list(self.shape))

    def repeated(self, down: int, across: int) -> Fragment:
        """A larger operand, made of these side by side, and then one below the other."""
        rows, cols = self.shape
        more = [(0, cols << bit) for bit in range((across - 1).bit_length())]
        more += [(rows << bit, 0) for bit in range((down - 1).bit_length())]
        return Fragment((rows * down, cols * across), (*self.elements, *more), self.lanes)


@functools.cache
def fragment(entry: Entry, operand: str) -> Fragment:
    """Of operand "a", "b", "c" or "d" of an entry of `mma`.

    Elements of less than a byte are counted in bytes. Where the warp multiplies several tiles at a
    time, they stand one below the other, those of B side by side.
    """
    m, n, k = entry.shape
    each = max(1, 8 // BITS[getattr(entry, operand)])  # elements of a byte: they lie along K
    down, across = {"a": (1, each), "b": (each, 1)}.get(operand, (1, 1))
    rows, cols = {"a": (m, k), "b": (k, n)}.get(operand, (m, n))
    rows, cols = rows // down, cols // across
    held = fragments.fragment(entry, operand).elements
    count = len(held[0]) // each

    def at(lane: int, byte: int) -> Place:
        row, col = held[lane][byte * each]
        return row // down, col // across

    elements = [at(0, 1 << bit) for bit in range((count - 1).bit_length())]
    lanes = []
    for bit in range(5):
        base = at(1 << bit, 0)
        if base == (0, 0):  # the lane has what lane 0 has: of another tile
            base = (0, cols) if operand == "b" else (rows, 0)
            rows, cols = rows + base[0], cols + base[1]
        lanes.append(base)
    return Fragment((rows, cols), tuple(elements), tuple(lanes))
