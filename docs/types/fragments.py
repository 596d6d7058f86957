"""Which lane of a warp holds which element of an operand of `mma.sync`, and in which order.

The PTX ISA's formulas are linear over bits: each bit of a lane's number, and each bit of the number
of an element among those that the lane holds, adds a power of two to the row or to the column. So a
fragment is the place that each of those bits stands for, which is what Gluon's
`DistributedLinearLayout` is made of.
"""

from __future__ import annotations

import dataclasses

from triton.experimental.gluon import language as gl

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
        numbers = (element, self.elements), (lane, self.lanes)
        bases = [
            base for number, all_ in numbers for bit, base in enumerate(all_) if number >> bit & 1
        ]
        return sum(row for row, _ in bases), sum(col for _, col in bases)

    @property
    def layout(self) -> gl.DistributedLinearLayout:
        elements, lanes = ([list(base) for base in bases] for bases in (self.elements, self.lanes))
        return gl.DistributedLinearLayout(elements, lanes, [], [], list(self.shape))

    @property
    def transposed(self) -> Fragment:
        """The same of the operand [cols, rows]."""
        turned = (tuple((col, row) for row, col in bases) for bases in (self.elements, self.lanes))
        return Fragment(self.shape[::-1], *turned)

    def repeated(self, down: int, across: int) -> Fragment:
        """A larger operand, made of these side by side, and then one below the other."""
        rows, cols = self.shape
        more = [(0, cols << bit) for bit in range(_bits(across))]
        more += [(rows << bit, 0) for bit in range(_bits(down))]
        return Fragment((rows * down, cols * across), (*self.elements, *more), self.lanes)


def quads(rows: int, cols: int, neighbours: int) -> Fragment:
    """The usual fragment: four lanes share a row of eight, and hold `neighbours` of it each.

    A lane's next elements are 8 rows on, and the ones after those 4 x `neighbours` columns.
    """
    width = 4 * neighbours
    elements = [(0, 1 << bit) for bit in range(_bits(neighbours))]
    elements += [(8 << bit, 0) for bit in range(_bits(rows // 8))]
    elements += [(0, width << bit) for bit in range(_bits(cols // width))]
    lanes = ((0, neighbours), (0, 2 * neighbours), (1, 0), (2, 0), (4, 0))
    return Fragment((rows, cols), tuple(elements), lanes)


#: m8n8k4 of f16 multiplies four tiles at a time, here one below the other: bits 2 and 3 of the lane
#: are the number of the tile. A by rows or by columns; C and D in f16 or in f32.
_TILE = ((8, 0), (16, 0), (4, 0))
FOUR_A = {
    "row": Fragment((32, 4), ((0, 1), (0, 2)), ((1, 0), (2, 0), *_TILE)),
    "col": Fragment((32, 4), ((1, 0), (2, 0)), ((0, 1), (0, 2), *_TILE)),
}
FOUR_C = {
    "f16": Fragment((32, 8), ((0, 1), (0, 2), (0, 4)), ((1, 0), (2, 0), *_TILE)),
    "f32": Fragment((32, 8), ((0, 1), (2, 0), (0, 4)), ((1, 0), (0, 2), *_TILE)),
}


def _bits(count: int) -> int:
    return (count - 1).bit_length()
