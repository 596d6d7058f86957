"""Who holds an element of the sums?

`mma.sync.m16n8k16` leaves 16 x 8 sums in the registers of a warp, four for each of its 32 lanes; a
lane is a thread of the warp. In the page's picture the sums are the matrix D, and a lane's
registers 0 to 3 are d0 to d3. The picture draws d0 and d1 as one box, and d2 and d3 as another: of
the two sums in a box, the left one is in d0 or d2, and the right one is in d1 or d3. Return the
lane that holds the sum at (row, column), and the number of its register. The rule is two lines of
arithmetic.
"""

from cuda_reference.types.fragments import fragment
from cuda_reference.types.table import find

from . import Answer, same


def answer(row: int, column: int) -> tuple[int, int]:
    lane = row % 8 * 4 + column // 2
    register = row // 8 * 2 + column % 2
    return lane, register


def check(function: Answer) -> None:
    """Against the fragments of the type table, which tests compare with what a GPU holds."""
    sums = fragment(find("mma.m16n8k16.row.col.f32.f16.f16.f32"), "c")
    for (row, column), holders in sums.holders().items():
        same(function, holders[0], row=row, column=column)
