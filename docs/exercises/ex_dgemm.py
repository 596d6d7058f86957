"""At which byte of a tile does TMA put an element?

A tile of fp64 has `lines` lines, rows of A or columns of B, and 16 elements of K of each. It
consists of rows of 128 bytes. If its operand is stored along K (`along_k`), a row has the 16
elements of a line, and row comes after row. Otherwise TMA loads boxes of 16 lines, one after
another, and a row of a box has 16 lines of one k; so each box has 16 rows.

TMA swizzles: a row is 8 pieces of 16 bytes, and TMA puts piece p of row r where piece p ^ (r % 8)
would be, where ^ is the exclusive or of the bits and rows are counted from 0. Return the byte at
which the element of line number `line` and of `k` begins.
"""

import random

from tritemm.arch.register_tiles import DmmaTile
from tritemm.kernels.device import dmma

from . import Answer, same


def answer(line: int, k: int, lines: int, along_k: bool) -> int:
    row, place = (line, k) if along_k else (line // 16 * 16 + k, line % 16)
    return 128 * row + 16 * (place // 2 ^ row % 8) + 8 * (place % 2)


def put(line: int, k: int, side: int, tile: tuple[int, ...], along_k: bool) -> int:
    """The byte that the layout of the rung has for it, in the instruction's order of lines."""
    rows, columns, depth, warps, _ = tile
    lines, slices = columns if side else rows, depth // 16
    order = dmma.line_order(lines, columns, warps // slices, side, along_k)
    wanted = [sum((line >> i & 1) << bit for i, bit in enumerate(order)), k]
    bases = dmma.tile_layout(lines, columns, warps, slices, side, along_k).offset_bases
    bases = [basis[:0:-1] if side else basis[1:] for basis in bases]
    for number in range(16 * lines):  # of the first slice
        found = [0, 0]
        for i, basis in enumerate(bases):
            if number >> i & 1:
                found = [a ^ b for a, b in zip(found, basis, strict=True)]
        if found == wanted:
            return 8 * number
    raise AssertionError(f"{line}, {k} of {tile} is nowhere")


def check(function: Answer) -> None:
    """Against the layouts that the rung reads tiles in."""
    draw = random.Random(23)
    for tile in DmmaTile.tiles:
        for side, along_k in ((0, True), (0, False), (1, True), (1, False)):
            lines = tile[side]
            for _ in range(4):
                line, k = draw.randrange(lines), draw.randrange(16)
                want = put(line, k, side, tile, along_k)
                same(function, want, line=line, k=k, lines=lines, along_k=along_k)
