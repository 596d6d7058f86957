"""How many registers does a warp's tile take?

A warp multiplies a tile of `rows` x `columns` of C with `mma.sync.m16n8k16`, 16 elements of K at a
time. Its 32 lanes share everything evenly. They keep the sums, of `bits` bits each (32 or 16), and
`sets` sets of fragments. A set covers 16 elements of K, for all rows of A and all columns of B, and
its elements have 16 bits. A register has 32 bits, and everything is packed. How many registers does
a lane need?
"""

from cuda_reference.types.fragments import fragment
from cuda_reference.types.table import find

from . import Answer, same

TILES = ((64, 64), (64, 32), (32, 64), (16, 8), (128, 64))
NAMES = {
    32: "mma.m16n8k16.row.col.f32.f16.f16.f32",
    16: "mma.m16n8k16.row.col.f16.f16.f16.f16",
}


def answer(rows: int, columns: int, bits: int, sets: int) -> int:
    sums = rows * columns * bits // 32
    fragments = (rows + columns) * 16 * 16 // 32
    return (sums + sets * fragments) // 32


def check(function: Answer) -> None:
    """Against the fragments of the type table, which tests compare with what a GPU holds."""
    for bits, name in NAMES.items():
        a, b, c = (fragment(find(name), operand).registers for operand in "abc")
        for rows, columns in TILES:
            down, across = rows // 16, columns // 8
            for sets in (1, 2):
                want = down * across * c + sets * (down * a + across * b)
                same(function, want, rows=rows, columns=columns, bits=bits, sets=sets)
