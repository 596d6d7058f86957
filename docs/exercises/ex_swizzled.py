"""Which program has a tile?

In the grouped order, programs walk down GROUP_M rows of tiles, then on to the next column, and
when all columns are done to the next GROUP_M rows. The last group may have fewer rows. The listings
on the page find a program's tile. Go the other way: in a grid of `tiles_m` x `tiles_n` tiles, which
program has the tile at (row, column)?
"""

from docs.pictures.formulas import module

from . import Answer, same

GRIDS = ((4, 4, 2), (5, 3, 2), (7, 5, 4), (2, 6, 8))


def answer(row: int, column: int, tiles_m: int, tiles_n: int, GROUP_M: int) -> int:
    first = row // GROUP_M * GROUP_M  # of the group's rows
    rows = min(GROUP_M, tiles_m - first)
    return first * tiles_n + column * rows + row - first


def check(function: Answer) -> None:
    """Against the order that the kernels have."""
    raster = module("raster").raster
    for tiles_m, tiles_n, group in GRIDS:
        for pid in range(tiles_m * tiles_n):
            row, column = raster(pid, tiles_m, tiles_n, 1, 1, "grouped", group)
            tile = {"row": row, "column": column}
            same(function, pid, **tile, tiles_m=tiles_m, tiles_n=tiles_n, GROUP_M=group)
