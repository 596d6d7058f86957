"""Which tile is whose?

In the grouped order, programs walk down GROUP_M rows of tiles, then on to the next column, and
when all columns are done to the next GROUP_M rows. The last group may have fewer rows. Of
`tiles_m` x `tiles_n` tiles, which one, (row, column), is program `pid`'s?
"""

from __future__ import annotations

from collections.abc import Callable

from docs.pictures.formulas import module

from . import same

GRIDS = ((4, 4, 2), (5, 3, 2), (7, 5, 4), (2, 6, 8))


def answer(pid: int, tiles_m: int, tiles_n: int, GROUP_M: int) -> tuple[int, int]:
    group = pid // (GROUP_M * tiles_n)
    first = group * GROUP_M
    rows = min(GROUP_M, tiles_m - first)
    inside = pid - first * tiles_n
    return first + inside % rows, inside // rows


def wrong_full_groups(pid: int, tiles_m: int, tiles_n: int, GROUP_M: int) -> tuple[int, int]:
    """Right where GROUP_M divides tiles_m, and nowhere else."""
    group, inside = divmod(pid, GROUP_M * tiles_n)
    return group * GROUP_M + inside % GROUP_M, inside // GROUP_M


def wrong_row_major(pid: int, tiles_m: int, tiles_n: int, GROUP_M: int) -> tuple[int, int]:
    return divmod(pid, tiles_n)


WRONG = (wrong_full_groups, wrong_row_major)


def check(function: Callable[[int, int, int, int], tuple[int, int]]) -> None:
    """Against the order that the kernels have."""
    raster = module("raster").raster
    for tiles_m, tiles_n, group in GRIDS:
        for pid in range(tiles_m * tiles_n):
            want = raster(pid, tiles_m, tiles_n, 1, 1, "grouped", group)
            same(function, tuple(want), pid=pid, tiles_m=tiles_m, tiles_n=tiles_n, GROUP_M=group)
