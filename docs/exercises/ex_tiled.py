"""Which tile loads the least?

While a program of `tiled` walks along K, the sums of its tile stay in registers. The registers have
room for `sums` of them, a power of two from 256 on. BLOCK_M and BLOCK_N are powers of two from 16
to 128 each. With which tile do all programs of a large product together load the fewest elements of
A and B? Return (BLOCK_M, BLOCK_N); if several tiles are equally good, return any of them.
"""

import functools

from . import Answer, Wrong
from .counting import of_product

SIZES = (16, 32, 64, 128)
#: Up to more than the largest tile has.
SUMS = tuple(2**n for n in range(8, 16))


def answer(sums: int) -> tuple[int, int]:
    tiles = [(m, n) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128) if m * n <= sums]
    return min(tiles, key=lambda tile: 1 / tile[0] + 1 / tile[1])


@functools.cache
def loaded(rows: int, columns: int) -> int:
    """Elements of A and B that the rung loads with this tile, of a product that all tiles fill."""
    size = max(SIZES)
    return of_product("tiled", size, size, 16, BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=16)


def check(function: Answer) -> None:
    """Against what the rung loads with every tile in the interpreter."""
    for sums in SUMS:
        able = {(m, n): loaded(m, n) for m in SIZES for n in SIZES if m * n <= sums}
        got, least = function(sums=sums), min(able.values())
        if got not in able:
            raise Wrong(
                f"answer(sums={sums}) is {got!r}; it should be two of {SIZES} that make {sums} "
                "sums at most."
            )
        if able[got] > least:
            best = " or ".join(str(tile) for tile, count in able.items() if count == least)
            raise Wrong(
                f"answer(sums={sums}) is {got}, which loads {able[got] / least:.2f} times as much "
                f"as {best}."
            )
