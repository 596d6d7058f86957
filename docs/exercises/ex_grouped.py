"""In which slot is a row of a product whose rows are cut into groups?

Group g ends before row ends[g], and begins where the group before it ends; the first begins at row
0. The ends never decrease, so groups may be empty, and each row is before the last end. A tile has
`block` rows of one group: the group's first tile begins at the group's first row, its second
`block` rows further, and so on. A group that begins at row b has its tiles in the slots from
b // block + g on, one after another. Return the slot whose tile has row number `row`.
"""

import itertools
from types import SimpleNamespace

import numpy as np

from . import Answer, same
from .plain import function as plain

#: Rows of a tile, and the ends of groups: ragged, empty, shorter than a tile, whole tiles.
ENDS = (
    (1, (7,)), (3, (2, 9, 10)), (4, (5, 5, 6, 17)), (8, (0, 0, 3, 3, 30, 31)), (4, (4, 8, 16, 20)),
    (16, (1, 2, 3, 40, 40, 41, 90)), (5, (12, 13, 13, 13, 29)),
)  # fmt: skip


def answer(row: int, ends: tuple[int, ...], block: int) -> int:
    group = sum(end <= row for end in ends)
    begin = ends[group - 1] if group else 0
    return begin // block + group + (row - begin) // block


def slots(ends: tuple[int, ...], block: int) -> dict[int, int]:
    """By the kernel's functions: the slot of each row."""

    def load(places, mask, other):
        inside = np.clip(places, 0, len(ends) - 1)
        return np.where(mask, np.array(ends)[inside], other)

    words = SimpleNamespace(
        load=load, minimum=np.minimum, maximum=np.maximum, arange=np.arange, sum=np.sum,
        where=np.where, constexpr=int, int32=int,
    )  # fmt: skip
    bounds = plain("device/raster.py", "bounds", tl=words)
    group_of = plain("device/raster.py", "group_of", tl=words, bounds=bounds, SOME=2)
    count, size, found = len(ends), ends[-1], {}
    for slot in range(size // block + count + 1):
        group, before = group_of(slot, 0, count, size, block)
        begin, end = bounds(0, group, count, size)
        first = int(begin + (slot - before) * block)
        found |= dict.fromkeys(range(first, min(first + block, int(end))), slot)
    return found


def check(function: Answer) -> None:
    """Against the groups that the kernel counts for all slots."""
    for block, ends in ENDS:
        found = slots(ends, block)
        assert sorted(found) == list(range(ends[-1]))
        for row, slot in itertools.islice(sorted(found.items()), 60):
            same(function, slot, row=row, ends=ends, block=block)
