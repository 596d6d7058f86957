"""Tiles for DMMA: where TMA puts their elements, and which of them an instruction takes.

Lines and k may come in any order in which A, B and C agree. So an element of a tile has two places:
that of the operand, where TMA puts it, and that of the instruction. Orders of bits lead from one to
the other. Here they are those in which lanes read 16 bytes at a time, each eight of them from all
banks.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import reinterpret

#: Elements of a line of 128 bytes, which TMA swizzles: those of K of a step, or lines of one k.
LINE = gl.constexpr(16)
#: The bit of k in the instruction for each bit of it in the operand. Bits 0 and 1 are of lanes.
K_ORDER = gl.constexpr((2, 0, 1, 3))


@gluon.constexpr_function
def warps_of(columns, warps):
    """Rows and columns of the warps of a tile: each has 32 columns, or all."""
    across = max(1, columns // 32)
    return warps // across, across


@gluon.constexpr_function
def acc_layout(columns, warps):
    """The accumulator's, in the instruction's order."""
    return gl.NVMMADistributedLayout([2, 0], list(warps_of(columns, warps)), [16, 8])


@gluon.constexpr_function
def line_order(lines, columns, warps, side, along_k):
    """The bit of a line in the instruction, for each bit of it in the operand, of A (`side` 0) or B.

    Bits 0 to 2 are of lanes. Along K, lines that are 4 apart there go to the lanes that read at
    once. Across K the lowest bit is of registers, so that 16 bytes are of two lines.
    """
    first = [2, 1, 0]
    if not along_k:
        repeated = 3 if side == 0 else 2 + warps_of(columns, warps)[1].bit_length()
        first = [repeated, 0, 1, 2]
    return first + [i for i in range(lines.bit_length() - 1) if i not in first]


@gluon.constexpr_function
def _tile_layout(lines, columns, warps, side, along_k):
    """Tiles [lines, LINE] of A in the instruction's order, as TMA puts them; [LINE, lines] of B."""
    line = [[1 << i, 0] for i in line_order(lines, columns, warps, side, along_k)]
    k = [[0, 1 << i] for i in K_ORDER.value]
    # Of 16 bytes and more; those of 8 lines, or k, are exchanged by the lower bits of their number.
    short, long = (k, line) if along_k else (line[:4], k)
    bases = short + [
        [a + b for a, b in zip(basis, short[1 + i] if i < 3 else [0, 0])]
        for i, basis in enumerate(long)
    ] + ([] if along_k else line[4:])  # fmt: skip
    return gl.SharedLinearLayout([basis[::-1] for basis in bases] if side else bases, [], 1024)


@gluon.jit
def tiles_view(memory, LINES: gl.constexpr, COLUMNS: gl.constexpr, BYTES: gl.constexpr,
               SIDE: gl.constexpr, ALONG_K: gl.constexpr):  # fmt: skip
    """Memory, of so many `BYTES`, as tiles of A (`SIDE` 0) or of B, of a C with so many columns."""
    LAYOUT: gl.constexpr = _tile_layout(LINES, COLUMNS, gl.num_warps(), SIDE, ALONG_K)
    COUNT: gl.constexpr = BYTES // (8 * LINES * LINE)
    SIZES: gl.constexpr = (COUNT, LINE, LINES) if SIDE else (COUNT, LINES, LINE)
    return reinterpret(memory, gl.float64, SIZES, LAYOUT)


@gluon.constexpr_function
def _bits(rows, columns, warps, a_along_k, b_along_k):
    """For each bit of an element's place in C, the highest first, the one that the instruction has."""
    m = line_order(rows, columns, warps, 0, a_along_k)
    n = line_order(columns, columns, warps, 1, b_along_k)
    down = [len(m) - 1 - bit for bit in reversed(m)]
    return down + [len(m) + len(n) - 1 - bit for bit in reversed(n)]


@gluon.jit
def in_place(acc, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr):
    """The accumulator in the order of the operands; it stays where it is."""
    ROWS: gl.constexpr = acc.shape[0]
    COLUMNS: gl.constexpr = acc.shape[1]
    BITS: gl.constexpr = _bits(ROWS, COLUMNS, gl.num_warps(), A_ALONG_K, B_ALONG_K)
    return acc.reshape([2] * len(BITS)).permute(BITS).reshape([ROWS, COLUMNS])
