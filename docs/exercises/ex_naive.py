"""Who holds an element of the sums?

`mma.sync.m16n8k16` leaves 16 x 8 sums in the registers of a warp, four for each of its 32 lanes.
Which lane holds the sum at (row, column), and in which of its registers 0 to 3 is it? The picture
of the page shows it; the rule is two lines of arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable

from cuda_reference.types.fragments import fragment
from cuda_reference.types.table import find

from . import same


def answer(row: int, column: int) -> tuple[int, int]:
    lane = row % 8 * 4 + column // 2
    register = row // 8 * 2 + column % 2
    return lane, register


def wrong_row_major(row: int, column: int) -> tuple[int, int]:
    """As if the lanes counted the elements row by row, four each."""
    return (row * 8 + column) // 4, (row * 8 + column) % 4


WRONG = (wrong_row_major,)


def check(function: Callable[[int, int], tuple[int, int]]) -> None:
    """Against the fragments of the type table, which tests compare with what a GPU holds."""
    sums = fragment(find("mma.m16n8k16.row.col.f32.f16.f16.f32"), "c")
    for (row, column), holders in sums.holders().items():
        same(function, holders[0], row=row, column=column)
