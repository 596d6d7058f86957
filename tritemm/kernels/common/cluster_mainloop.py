"""Device helpers of the rungs whose programs come in clusters: a ring that is named by its address.

Its stages hold a tile of A and one of B, in the lines that `ptx` speaks of. One allocation, the
largest of the kernel, holds the stages, then their barriers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .ptx import ask, parameter

#: Elements of K in a line of 128 bytes.
LINE = gl.constexpr(64)
#: Words of a block of the allocation.
WORDS = gl.constexpr(256)


@gluon.constexpr_function
def slabs_of(rows, warps):
    """Slabs of 64 rows that a consumer has of a tile."""
    return rows // (16 * warps)


@gluon.constexpr_function
def consumers_of(warps):
    """Warpgroups that multiply: they share a tile, or there are two, with 4 warps for a tile."""
    return max(warps // 4, 2)


@gluon.constexpr_function
def b_lines(columns, major):
    """Lines of 128 bytes of a tile of B: its columns, or 64 for each block of 64 columns."""
    return columns if major == "T" else -(-columns // 64) * 64


@gluon.constexpr_function
def line_bytes(rows, columns, b_major):
    """Of a tile of A, then one of B, a line deep."""
    return 128 * (rows + b_lines(columns, b_major))


@gluon.constexpr_function
def box_lines(lines):
    """Of so many lines along K, those in one box: the largest power of two that divides them."""
    return lines & -lines


@gluon.constexpr_function
def map_of(kernel, operand, batched):
    """The tensor map of A or B, the first parameters of `kernel`; sizes and strides of A stand
    between the two."""
    return parameter(kernel, 0 if operand == "a" else 1 + 2 * (4 if batched else 2))


@gluon.constexpr_function
def ring_bytes(stages):
    """Of the stages, their barriers, and 512 that nothing else uses; a multiple of 1024."""
    return stages + 1024


@gluon.jit
def load_lines(to, bar, first, k, b0, b1, rank, LINES: gl.constexpr, ALONG_K: gl.constexpr,
               SHARERS: gl.constexpr, MAP: gl.constexpr, BATCHED: gl.constexpr):  # fmt: skip
    """Ask for a tile's `LINES` rows of A, or columns of B, from `first` on, a line deep.

    Of a tile that `SHARERS` load together, each asks for a share, which arrives in all.
    """
    if ALONG_K:
        OWN: gl.constexpr = LINES // SHARERS
        BOX: gl.constexpr = box_lines(OWN)
        for i in gl.static_range(OWN // BOX):
            at = i * BOX
            if SHARERS > 1:
                at += rank * OWN
            ask(to + at * 128, bar, first + at, k, b0, b1, MAP, BATCHED, SHARERS)
    else:
        DEEP: gl.constexpr = LINE // SHARERS
        if SHARERS > 1:
            k += rank * DEEP
            to += rank * (DEEP * 128)
        for i in gl.static_range((LINES + 63) // 64):
            ask(to + i * 8192, bar, k, first + i * 64, b0, b1, MAP, BATCHED, SHARERS)


@gluon.jit
def make_ring(STAGES: gl.constexpr):
    """Memory for stages of so many bytes; `keep_ring` stands at the kernel's end."""
    BLOCKS: gl.constexpr = ring_bytes(STAGES) // (4 * WORDS)
    ring = gl.allocate_shared_memory(
        gl.int32, [BLOCKS, WORDS], gl.SwizzledSharedLayout(1, 1, 1, [0])
    )
    keep_ring(ring)
    return ring


@gluon.jit
def keep_ring(ring):
    """Write 128 words that nothing else uses: memory that Gluon doesn't write to the end of the
    kernel would be given to others."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    last = ring.index(ring.shape[0] - 1)
    last.slice(WORDS - 128, 128).store(gl.zeros([128], gl.int32, layout))
