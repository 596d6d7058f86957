"""Tiles for DMMA: where TMA puts their elements, and which of them an instruction takes.

Lines and k may come in any order in which A, B and C agree. So an element of a tile has two places:
that of the operand, where TMA puts it, and that of the instruction. Orders of bits lead from one to
the other: for each bit of a place in the operand, the bit in the instruction. There bits 0 to 2 of
a line and bits 0 and 1 of k are those of lanes, and registers of a fragment that lie side by side
are bit 3 of A's lines, and bit 2 of B's k. Here are orders in which lanes that read at once, 16 of
8 bytes or 8 of 16, read from all banks, and 16 bytes are registers side by side.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import builtin, reinterpret, unwrap

#: Elements of a line of 128 bytes, which TMA swizzles: those of K of a step, or lines of one k.
LINE = gl.constexpr(16)


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
def k_order(a_along_k):
    """The order of the bits of k: B has 16 bytes along K, unless A would have them too."""
    return (0, 1, 2, 3) if a_along_k else (2, 0, 1, 3)


@gluon.constexpr_function
def line_order(lines, columns, warps, side, a_along_k, b_along_k):
    """The order of the bits of A's lines (`side` 0) or B's, of a tile of so many columns."""
    repeated = 2 + warps_of(columns, warps)[1].bit_length()  # of B's lines, the first of registers
    if side == 0:
        first = [2, 0, 1] if a_along_k else [3, 0, 1, 2]
    elif a_along_k:
        first = [repeated, 0, 1, 2] if b_along_k else [0, 2, repeated, 1]
    else:
        first = [2, 1, 0] if b_along_k else [0, 1, 2, repeated]
    return first + [i for i in range(lines.bit_length() - 1) if i not in first]


@gluon.constexpr_function
def tile_layout(lines, columns, warps, side, a_along_k, b_along_k):
    """Tiles [lines, LINE] of A in the instruction's order, as TMA puts them; [LINE, lines] of B."""
    order = line_order(lines, columns, warps, side, a_along_k, b_along_k)
    line, k = [[1 << i, 0] for i in order], [[0, 1 << i] for i in k_order(a_along_k)]
    inner, outer = (k, line) if (b_along_k if side else a_along_k) else (line, k + line[4:])
    # TMA exchanges pieces of 16 bytes of a line by the three lowest bits of its number.
    exchanged = [*inner[1:4], *[[0, 0]] * (len(outer) - 3)]
    pairs = zip(outer, exchanged, strict=True)
    bases = inner[:4] + [[a + c, b + d] for (a, b), (c, d) in pairs]
    return gl.SharedLinearLayout([basis[::-1] for basis in bases] if side else bases, [], 1024)


@gluon.jit
def tiles_view(memory, LINES: gl.constexpr, COLUMNS: gl.constexpr, BYTES: gl.constexpr,
               SIDE: gl.constexpr, A_ALONG_K: gl.constexpr,
               B_ALONG_K: gl.constexpr):  # fmt: skip
    """Memory, of so many `BYTES`, as tiles of A (`SIDE` 0) or of B, of a C with so many columns."""
    LAYOUT: gl.constexpr = tile_layout(LINES, COLUMNS, gl.num_warps(), SIDE, A_ALONG_K, B_ALONG_K)
    COUNT: gl.constexpr = BYTES // (8 * LINES * LINE)
    SIZES: gl.constexpr = (COUNT, LINE, LINES) if SIDE else (COUNT, LINES, LINE)
    return reinterpret(memory, gl.float64, SIZES, LAYOUT)


@gluon.jit
def fragments(a_tiles, b_tiles, ring, stage, ACC: gl.constexpr):
    """What warps multiply of a stage: those of A and of B."""
    a = a_tiles.index(stage + ring.A_FIRST).load(gl.DotOperandLayout(0, ACC, 1))
    b = b_tiles.index(stage + ring.B_FIRST).load(gl.DotOperandLayout(1, ACC, 1))
    return a, b


@gluon.constexpr_function
def _bits(rows, columns, warps, a_along_k, b_along_k):
    """For each bit of a place in C the bit in the instruction, highest first, and rows' first."""
    m = line_order(rows, columns, warps, 0, a_along_k, b_along_k)
    n = line_order(columns, columns, warps, 1, a_along_k, b_along_k)
    down = [len(m) - 1 - bit for bit in reversed(m)]
    return down + [len(m) + len(n) - 1 - bit for bit in reversed(n)]


@builtin
def _reordered(x, bits, _semantic=None):
    """x with the bits of its places in another order, the highest first."""
    order, shape = ([unwrap(i) for i in unwrap(of)] for of in (bits, x.shape))
    moved = _semantic.permute(_semantic.reshape(x, [2] * len(order), False), order)
    return _semantic.reshape(moved, shape, False)


@gluon.constexpr_function
def _by_columns(layout):
    """The same with a thread's elements in the order of columns, by which they are stored."""
    registers = sorted(layout.reg_bases, key=lambda basis: (basis[0], basis[1]))
    rest = layout.lane_bases, layout.warp_bases, layout.block_bases
    return gl.DistributedLinearLayout(registers, *rest, layout.shape)


@gluon.jit
def in_place(acc, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr):
    """The accumulator in the order of the operands; each element stays with its thread."""
    ROWS: gl.constexpr = acc.shape[0]
    COLUMNS: gl.constexpr = acc.shape[1]
    BITS: gl.constexpr = _bits(ROWS, COLUMNS, gl.num_warps(), A_ALONG_K, B_ALONG_K)
    moved = _reordered(acc, BITS)
    return gl.convert_layout(moved, _by_columns(moved.type.layout), assert_trivial=True)
