"""Tiles for FFMA: how threads share one, and what they read of the operands in a `register_ring`.

A thread has a register tile of C, 16 x 8 down to 4 x 4, and reads the rows of A and columns of B
that it needs, 16 bytes at a time: 4 elements of K of a line if lines run along K, which TMA's
swizzle keeps in different banks, or 4 lines of one k if they run across it. The lanes of a warp
are 4 x 8, and neighbours share what they read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .language import reinterpret

#: Elements of K that are read at a time.
DEPTH = gl.constexpr(4)
#: Rows and columns of the lanes of a warp.
LANES = gl.constexpr((4, 8))


@gluon.constexpr_function
def register_tile(rows, columns, warps):
    """Rows and columns of a thread's part of a tile."""
    each = rows * columns // (32 * warps)
    return {128: (16, 8), 64: (8, 8), 32: (8, 4), 16: (4, 4)}[each]


@gluon.constexpr_function
def _bases(side, each, lanes, warps, vectors):
    """The bits of vectors of 4, of lanes, of warps, and of a thread's other lines, along the rows
    (`side` 0) or columns (1) of a tile, of which a thread has `each`."""
    found, place = [], 1
    first = 4 if vectors else 1
    for count in (first, lanes, warps, each // first):
        bits = [place << i for i in range(count.bit_length() - 1)]
        found.append([[bit, 0] if side == 0 else [0, bit] for bit in bits])
        place *= count
    return found


@gluon.constexpr_function
def acc_layout(rows, columns, warps, a_along_k, b_along_k):
    """The accumulator's. Lane bit 0 is of the rows, so that pairs of lanes read the same of B."""
    m, n = register_tile(rows, columns, warps)
    high, wide = LANES.value
    down = _bases(0, m, high, rows // (m * high), not a_along_k)
    across = _bases(1, n, wide, columns // (n * wide), not b_along_k)
    registers = across[0] + down[0] + across[3] + down[3]
    lanes = down[1][:1] + across[1] + down[1][1:]
    return gl.DistributedLinearLayout(registers, lanes, across[2] + down[2], [], [rows, columns])


@gluon.constexpr_function
def _quads(layout, side):
    """[lines, DEPTH]: the rows or columns that the threads of `layout` have, DEPTH k of each."""
    every = layout.reg_bases, layout.lane_bases, layout.warp_bases
    lines = [[[basis[side], 0] for basis in bases] for bases in every]
    own = [[0, 1], [0, 2]] + [basis for basis in lines[0] if basis[0]]
    return gl.DistributedLinearLayout(own, *lines[1:], [], [layout.shape[side], DEPTH.value])


@gluon.constexpr_function
def _swizzled(depth):
    """How TMA swizzles lines of `depth` elements."""
    return gl.SwizzledSharedLayout(4, max(1, 32 // depth), min(8, depth // 4), [1, 0])


@gluon.jit
def tiles_view(memory, LINES: gl.constexpr, BLOCK_K: gl.constexpr, BYTES: gl.constexpr,
               ALONG_K: gl.constexpr):  # fmt: skip
    """`memory`, of `BYTES` bytes, as tiles [LINES, BLOCK_K], or as their rows of one k each."""
    if ALONG_K:
        LAYOUT: gl.constexpr = _swizzled(BLOCK_K)
        SIZES: gl.constexpr = (BYTES // (4 * LINES * BLOCK_K), LINES, BLOCK_K)
    else:
        LAYOUT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        SIZES: gl.constexpr = (BYTES // (4 * LINES), LINES)
    return reinterpret(memory, gl.float32, SIZES, LAYOUT)


@gluon.jit
def _halves(x):
    """Even and odd columns."""
    return x.reshape([x.shape[0], x.shape[1] // 2, 2]).split()


@gluon.jit
def fragments(memory, tile, k: gl.constexpr, BLOCK_K: gl.constexpr, ALONG_K: gl.constexpr,
              SIDE: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """A thread's rows (`SIDE` 0) or columns (1) of a tile, for each of DEPTH k from `k` on."""
    LINE: gl.constexpr = gl.SliceLayout(1 - SIDE, LAYOUT)
    found = ()
    if ALONG_K:
        quad = memory.index(tile).slice(k, DEPTH, 1).load(_quads(LAYOUT, SIDE))
        even, odd = _halves(quad)
        k0, k2 = _halves(even)
        k1, k3 = _halves(odd)
        lines = (k0, k1, k2, k3)
        for i in gl.static_range(DEPTH):
            line = lines[i].reshape([quad.shape[0]])
            found += (gl.convert_layout(line, LINE, assert_trivial=True),)
    else:
        for i in gl.static_range(DEPTH):
            found += (memory.index(tile * BLOCK_K + (k + i)).load(LINE),)
    return found
