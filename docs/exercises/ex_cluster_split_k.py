"""Which pieces does a program add up, and how much does it send?

The programs of a cluster have a part of K each, so each of them has partial sums for a whole tile
of BLOCK_M x BLOCK_N, in fp32. The tile is cut into pieces of `columns` columns, counted from 0, and
piece i is added up by program i % programs. Each program puts its sums of a piece into the shared
memory of the program that adds that piece up. For program `rank`: at which columns do the pieces
begin that it adds up, and how many bytes does it send to the other programs?
"""

import re
from types import SimpleNamespace
from unittest import mock

from docs.pictures import formulas
from tritemm.arch.roles import piece_columns

from . import Answer, same
from .plain import nothing

#: BLOCK_M, BLOCK_N, programs.
TILES = ((128, 256, 2), (128, 256, 8), (64, 128, 5), (128, 96, 4), (192, 192, 4), (128, 256, 3))


def answer(
    BLOCK_M: int, BLOCK_N: int, columns: int, programs: int, rank: int
) -> tuple[list[int], int]:
    own = list(range(rank * columns, BLOCK_N, programs * columns))
    others = BLOCK_N - len(own) * columns
    return own, 4 * BLOCK_M * others


def pieces(shape: SimpleNamespace, rank: int) -> list[int]:
    """First columns of what program `rank` stores, as the rung's `Exchange` goes through them."""
    kernel, found = formulas.module("exchange"), set()
    names = kernel.Exchange.reduce.__globals__
    columns = shape.BLOCK_M // 64 * shape.BLOCK_N
    stand_ins = {"barrier_wait": nothing, "acc_columns": lambda acc: columns}
    sums = kernel.Exchange(shape)
    sums.send = sums.receive = nothing
    out = SimpleNamespace(store_pieces=lambda own, unit, row, col, *more: found.add(col))
    with mock.patch.dict(names, stand_ins):
        sums.reduce(None, out, SimpleNamespace(split=rank), 0, 0, 0)
    return sorted(found)


def sent(shape: SimpleNamespace, rank: int) -> int:
    """Bytes that program `rank` sends to others, by the text of the instructions."""
    send = formulas.module("exchange")._send_text
    unit = min(64, shape.BLOCK_N & -shape.BLOCK_N)  # columns of one tensor of the sums
    values = SimpleNamespace(
        EPI_N=SimpleNamespace(value=shape.EPI_N), SPLIT_K=SimpleNamespace(value=shape.SPLIT_K),
        BLOCK_M=SimpleNamespace(value=shape.BLOCK_M),
    )  # fmt: skip
    total = 0
    for i in range(shape.BLOCK_N // unit):
        receiver = rank
        for line in send(unit // 2, i, values).splitlines():
            if found := re.search(r"mapa\S+ to, base, (\d+);", line):
                receiver = int(found[1])
            if line.startswith("st.async") and receiver != rank:
                total += 16 * 128  # a vector of each thread
    return total * (shape.BLOCK_M // 64)


def check(function: Answer) -> None:
    """Against what the rung's programs send and add up."""
    for rows, width, programs in TILES:
        columns = piece_columns(width, programs)
        shape = SimpleNamespace(BLOCK_M=rows, BLOCK_N=width, EPI_N=columns, SPLIT_K=programs)
        for rank in range(programs):
            want = pieces(shape, rank), sent(shape, rank)
            same(
                function, want, BLOCK_M=rows, BLOCK_N=width, columns=columns, programs=programs,
                rank=rank,
            )  # fmt: skip
