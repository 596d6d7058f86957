"""Which elements of a tile belong to a thread?

A tile of C has `rows` x `columns` elements, which `warps` warps of 32 threads share equally. Each
thread has a part of 16 rows and 8 columns, or of 8 x 8, 8 x 4 or 4 x 4. The lanes of a warp are
arranged in 4 rows and 8 columns of lanes. Bit 0 of a lane's number is the lower bit of its row of
lanes, bits 1 to 3 are its column, and bit 4 is the upper bit of its row. The warps are arranged in
as many columns of warps as the tile then has room for, and in rows of these; warp 1 is to the right
of warp 0, if there is room.

Going down the rows of the tile, each row belongs to the next lane. After the last lane comes the
first lane of the next warp, and after the last warp the first lane of the first warp again, for its
second row. So it goes on until every thread has all of its rows. The columns are dealt out in the
same way. But where an operand is stored across K, a thread gets 4 neighbours at a time, not one: 4
rows if that is A (`a_along_k` is False), and 4 columns if it is B. Return the rows and the columns
of thread number `thread`, two tuples in order.
"""

import random

from tritemm.arch.register_tiles import FfmaTile
from tritemm.kernels.device import ffma

from . import Answer, same


def answer(
    rows: int, columns: int, warps: int, a_along_k: bool, b_along_k: bool, thread: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    each = rows * columns // (32 * warps)
    high, wide = {128: (16, 8), 64: (8, 8), 32: (8, 4), 16: (4, 4)}[each]
    lane, warp = thread % 32, thread // 32
    warp_columns = columns // (8 * wide)

    def side(own, lanes, lane, warps, warp, along_k):
        vector = 1 if along_k else 4
        first = (warp * lanes + lane) * vector
        step = warps * lanes * vector
        return tuple(first + i * step + j for i in range(own // vector) for j in range(vector))

    row = lane % 2 + lane // 16 * 2
    down = side(high, 4, row, rows // (4 * high), warp // warp_columns, a_along_k)
    across = side(wide, 8, lane // 2 % 8, warp_columns, warp % warp_columns, b_along_k)
    return down, across


def owned(
    rows: int, columns: int, warps: int, a_along_k: bool, b_along_k: bool, thread: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Those of the kernel's layout, by its bases."""
    layout = ffma.acc_layout(rows, columns, warps, a_along_k, b_along_k)
    row = column = 0
    for i, basis in enumerate([*layout.lane_bases, *layout.warp_bases]):
        if thread >> i & 1:
            row, column = row ^ basis[0], column ^ basis[1]
    places = [(row, column)]
    for down, across in layout.reg_bases:
        places += [(r ^ down, c ^ across) for r, c in places]
    return tuple(sorted({r for r, _ in places})), tuple(sorted({c for _, c in places}))


def check(function: Answer) -> None:
    """Against the layout of the rung's accumulator, in each of its tiles."""
    draw = random.Random(22)
    for rows, columns, _, warps, _ in FfmaTile.tiles:
        for along in ((True, False), (True, True), (False, False), (False, True)):
            for thread in (0, 1, 2, 15, 16, 17, 31, 32 * warps - 1, draw.randrange(32 * warps)):
                want = owned(rows, columns, warps, *along, thread)
                same(
                    function, want, rows=rows, columns=columns, warps=warps,
                    a_along_k=along[0], b_along_k=along[1], thread=thread,
                )  # fmt: skip
