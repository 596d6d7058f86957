"""Tiles for DMMA: where TMA puts their elements, and which of them an instruction reads.

A product doesn't change if A's rows and C's rows are permuted alike, nor if B's columns and C's
are. So each line, a row of A or a column of B, has two numbers: its place in the operand, where TMA
puts it, and its place in the instruction, which has the same bits in another order. In the
instruction bits 0 to 2 choose the lane, and bit 3 of A's lines chooses between neighbouring
registers. With the orders here, lanes that read at once, 16 of 8 bytes or 8 of 16, read from all
banks. If possible, 16 bytes of A or of C are neighbouring registers.

A stage has 16 k or 32. In the smallest tiles 32 k are two slices: as many groups of warps multiply
16 each, and the sums of all slices are added at the end. A step of a small tile takes as long with
two slices as with one, for it waits for the latency of DMMA. In other tiles they are two panels,
which all warps multiply one after the other.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import builtin, reinterpret, unwrap

#: Elements of a line of 128 bytes, which TMA swizzles: k of one line, or lines of one k.
LINE = gl.constexpr(16)


@gluon.constexpr_function
def slices_of(rows, columns, depth):
    """How many slices a step of that many k has, for C [rows, columns]."""
    return depth // LINE.value if rows * columns <= 1024 else 1


@gluon.constexpr_function
def warps_of(rows, columns, warps):
    """How many rows and columns of warps multiply a slice. A warp has 32 rows of the tile if
    possible, and at most 32 columns."""
    across = min(columns // 8, max(1, columns // 32, 32 * warps // rows))
    return warps // across, across


@gluon.constexpr_function
def acc_layout(rows, columns, warps, slices):
    """The layout of accumulators [slices, rows, columns], in the instruction's order."""
    each = warps_of(rows, columns, warps // slices)
    return gl.NVMMADistributedLayout([2, 0], [slices, *each], [1, 16, 8])


@gluon.constexpr_function
def line_order(rows, columns, warps, side, along_k):
    """For each bit of the number of a line of A (`side` 0) or B, the bit of its number in the
    instruction. `rows` and `columns` are those of C's tile."""
    bits = (columns if side else rows).bit_length() - 1
    if side == 0:
        first = [2, 0, 1] if along_k else [3, 1, 2, 0]
    else:
        # The first that chooses among a thread's columns; with one DMMA across, the last, a warp's.
        register = min(2 + warps_of(rows, columns, warps)[1].bit_length(), bits - 1)
        first = [register, 0, 1, 2] if along_k else [0, 2, register, 1]
    return first + [i for i in range(bits) if i not in first]


@gluon.constexpr_function
def tile_layout(rows, columns, warps, slices, side, along_k):
    """Tiles of A [slices, rows, LINE], or of B [slices, LINE, columns], slice after slice, in the
    order of the instruction."""
    line = [[1 << i, 0] for i in line_order(rows, columns, warps // slices, side, along_k)]
    k = [[0, 1 << i] for i in range(4)]
    inner, outer = (k, line) if along_k else (line, k + line[4:])
    # TMA changes the number of a piece of 16 bytes by the three lowest bits of its line's (XOR).
    exchanged = [*inner[1:4], *[[0, 0]] * (len(outer) - 3)]
    pairs = zip(outer, exchanged, strict=True)
    bases = inner[:4] + [[a + c, b + d] for (a, b), (c, d) in pairs]
    bases = [[0, *(basis[::-1] if side else basis)] for basis in bases]
    bases += [[1 << i, 0, 0] for i in range(slices.bit_length() - 1)]
    return gl.SharedLinearLayout(bases, [], 1024)


@gluon.jit
def tiles_view(memory, ROWS: gl.constexpr, COLUMNS: gl.constexpr, SLICES: gl.constexpr,
               BYTES: gl.constexpr, SIDE: gl.constexpr, ALONG_K: gl.constexpr):  # fmt: skip
    """`memory`, of `BYTES` bytes, as tiles of A (`SIDE` 0) or of B, a panel each or all slices,
    for C [ROWS, COLUMNS]."""
    LAYOUT: gl.constexpr = tile_layout(ROWS, COLUMNS, gl.num_warps(), SLICES, SIDE, ALONG_K)
    COUNT: gl.constexpr = BYTES // (8 * LINE * SLICES * (COLUMNS if SIDE else ROWS))
    SIZES: gl.constexpr = (COUNT, SLICES, LINE, COLUMNS) if SIDE else (COUNT, SLICES, ROWS, LINE)
    return reinterpret(memory, gl.float64, SIZES, LAYOUT)


@gluon.jit
def dmma(a, b, acc):
    """acc += a @ b, for fragments of A and B, in PTX.

    Triton 3.6 compiles `mma_v2` to DMMA of 16 x 8 x 16. Triton 3.8 compiles it to eight of 8 x 8 x
    4, which together take twice as long, and pairs the wrong elements of A and B. Here the
    accumulator is reshaped to [SLICES, ROWS // 16, 16, COLUMNS // 8, 8], one instruction's tile
    after another. Of each a thread has four numbers of C, in two neighbouring columns (bit 0) and
    in two rows 8 apart (bit 1), four of B and eight of A. A and B get the same shape: bits of k
    replace bits of C's rows and columns, and no element changes its thread.
    """
    SLICES: gl.constexpr = acc.shape[0]
    ROWS: gl.constexpr = acc.shape[1]
    COLUMNS: gl.constexpr = acc.shape[2]
    c = gl.reshape(acc, [SLICES, ROWS // 16, 16, COLUMNS // 8, 8])
    LAYOUT: gl.constexpr = c.type.layout
    # A: k % 4 instead of the pair of columns, k // 4 % 2 of the column in it; k // 8 is split.
    a = gl.permute(gl.reshape(a, [SLICES, ROWS, 2, 2, 4]), [0, 1, 4, 3, 2])
    a0, a1 = gl.split(gl.reshape(a, [SLICES, ROWS // 16, 16, 8, 2]))
    A: gl.constexpr = gl.SliceLayout(3, LAYOUT)
    a0 = gl.expand_dims(gl.convert_layout(a0, A, assert_trivial=True), 3)
    a1 = gl.expand_dims(gl.convert_layout(a1, A, assert_trivial=True), 3)
    # B: the same, and k // 8 instead of the half of the 16 rows, B's column of the row in it.
    b = gl.permute(gl.reshape(b, [SLICES, 2, 2, 4, COLUMNS // 8, 8]), [0, 1, 5, 4, 3, 2])
    b = gl.reshape(b, [SLICES, 16, COLUMNS // 8, 8])
    b = gl.convert_layout(b, gl.SliceLayout(1, LAYOUT), assert_trivial=True)
    c = gl.inline_asm_elementwise(
        """mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {$0, $1, $2, $3},
        {$8, $10, $9, $11, $12, $14, $13, $15}, {$16, $17, $18, $19}, {$4, $5, $6, $7};""",
        "=d,=d,=d,=d,d,d,d,d,d,d,d,d,d,d,d,d,d,d,d,d", [c, a0, a1, gl.expand_dims(b, 1)],
        gl.float64, is_pure=True, pack=4,
    )  # fmt: skip
    return gl.convert_layout(gl.reshape(c, acc.shape), acc.type.layout, assert_trivial=True)


@gluon.constexpr_function
def _bits(rows, columns, warps, slices, a_along_k, b_along_k):
    """The order of the bits of [slices, rows, columns], highest first, that undoes `line_order`."""
    m = line_order(rows, columns, warps // slices, 0, a_along_k)
    n = line_order(rows, columns, warps // slices, 1, b_along_k)
    first = slices.bit_length() - 1
    down = [first + len(m) - 1 - bit for bit in reversed(m)]
    across = [first + len(m) + len(n) - 1 - bit for bit in reversed(n)]
    return [*range(first), *down, *across]


@builtin
def _reordered(x, bits, _semantic=None):
    """x with the bits of its indices in another order, the highest first."""
    order, shape = ([unwrap(i) for i in unwrap(of)] for of in (bits, x.shape))
    moved = _semantic.permute(_semantic.reshape(x, [2] * len(order), False), order)
    return _semantic.reshape(moved, shape, False)


@gluon.constexpr_function
def _by_rows(layout):
    """The same with a thread's elements row by row, as they are stored."""
    registers = sorted(layout.reg_bases)
    rest = layout.lane_bases, layout.warp_bases, layout.block_bases
    return gl.DistributedLinearLayout(registers, *rest, layout.shape)


@gluon.jit
def in_order(acc, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr):
    """The sum of all slices, with rows and columns in the operands' order. Of one slice no element
    leaves its thread; sums of several go through shared memory."""
    SLICES: gl.constexpr = acc.shape[0]
    ROWS: gl.constexpr = acc.shape[1]
    COLUMNS: gl.constexpr = acc.shape[2]
    WARPS: gl.constexpr = gl.num_warps()
    BITS: gl.constexpr = _bits(ROWS, COLUMNS, WARPS, SLICES, A_ALONG_K, B_ALONG_K)
    if SLICES == 1:
        acc = gl.reshape(acc, [ROWS, COLUMNS])
    acc = _reordered(acc, BITS)
    acc = gl.convert_layout(acc, _by_rows(acc.type.layout), assert_trivial=True)
    if SLICES > 1:
        PAIRS: gl.constexpr = COLUMNS // 2  # each added by one thread, for all slices
        LAYOUT: gl.constexpr = gl.BlockedLayout(
            [SLICES, 1, 2], [1, 32 // PAIRS, PAIRS], [1, WARPS, 1], [2, 1, 0]
        )
        SHARED: gl.constexpr = gl.SwizzledSharedLayout(2, 1, min(8, PAIRS), [2, 1, 0])
        memory = gl.allocate_shared_memory(gl.float64, acc.shape, SHARED, acc)
        acc = gl.sum(memory.load(LAYOUT), 0)
    return acc
