"""Device helpers of the rungs on mma.sync: tiles in shared memory, copies, products.

A tile of A is [BLOCK_M, BLOCK_K]. A tile of B is read as its transpose, [BLOCK_N, BLOCK_K], so that
both are lines of K. Threads copy chunks of 16 bytes, the most that one instruction moves, if an
operand's contiguous side consists of whole chunks. A letter says which side that is, and whether it
does: K or L (along the lines) if it does, k or l if it doesn't.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from .language import barrier as barrier
from .language import cp_async
from .language import cp_async_commit as cp_async_commit
from .language import cp_async_wait as cp_async_wait
from .offsets import batch_offset, widen

#: Elements of a chunk, and of K that one instruction multiplies.
CHUNK, DEPTH = gl.constexpr(8), gl.constexpr(16)


@gluon.constexpr_function
def acc_layout(warps):
    """The accumulator of mma.m16n8k16, of warps in two columns."""
    across = min(warps, 2)
    return gl.NVMMADistributedLayout([2, 0], [warps // across, across], [16, 8])


@gluon.constexpr_function
def chunks_layout(rows, cols, by_rows, warps):
    """A chunk to a lane: neighbours hold the neighbouring chunks of a tile's contiguous side."""
    inner = cols if by_rows else rows
    lanes = min(32, inner // CHUNK.value)
    chunk, threads, spread = [1, CHUNK.value], [32 // lanes, lanes], [warps, 1]
    if by_rows:
        return gl.BlockedLayout(chunk, threads, spread, [1, 0])
    return gl.BlockedLayout(chunk[::-1], threads[::-1], spread[::-1], [0, 1])


@gluon.constexpr_function
def shared_layout(kind, lines, depth, side):
    """Where a tile's chunks are in shared memory, whose banks are 128 bytes wide together.

    plain     row after row
    padded    row after row, with an unused chunk after each
    permuted  chunk c of row r at c ^ (r // n % m), so that the same chunk of any 8 rows, which
              ldmatrix reads at once, comes from all banks
    """
    inner, order = (depth, [1, 0]) if along_k(side) else (lines, [0, 1])
    if kind == "padded":
        pairs = [[inner, CHUNK.value]]
        return gl.PaddedSharedLayout.with_identity_for(pairs, [lines, depth], order)
    n = max(1, 64 // inner)
    m = 1 if kind == "plain" else min(8 // n, inner // CHUNK.value)
    return gl.SwizzledSharedLayout(CHUNK.value, n, m, order)


@gluon.constexpr_function
def along_k(side):
    return side in "Kk"


@gluon.constexpr_function
def is_whole(side):
    return side.isupper()


@gluon.jit
def in_chunks(x, like, WHOLE: gl.constexpr):
    """`x`, declared a multiple of 16 bytes of elements like those at `like`, if it is."""
    if WHOLE:
        SIZE: gl.constexpr = 128 // like.dtype.element_ty.primitive_bitwidth
        x = x // SIZE * SIZE
    return x


@gluon.jit
def batch_ptr(ptr, b0, b1, stride_0, stride_1, SIDE: gl.constexpr):
    """The first element of batch (b0, b1), which is on a 16-byte boundary if chunks are whole."""
    WHOLE: gl.constexpr = is_whole(SIDE)
    stride_0, stride_1 = in_chunks(stride_0, ptr, WHOLE), in_chunks(stride_1, ptr, WHOLE)
    return ptr + batch_offset(b0, b1, stride_0, stride_1)


@gluon.jit
def tile_memory(like, KIND: gl.constexpr, STAGES: gl.constexpr, LINES: gl.constexpr,
                BLOCK_K: gl.constexpr, SIDE: gl.constexpr):  # fmt: skip
    """Shared memory for tiles of `STAGES` steps of the operand at `like`."""
    layout: gl.constexpr = shared_layout(KIND, LINES, BLOCK_K, SIDE)
    return gl.allocate_shared_memory(like.dtype.element_ty, [STAGES, LINES, BLOCK_K], layout)


@gluon.jit
def tile_ring(like, STAGES: gl.constexpr, LINES: gl.constexpr, BLOCK_K: gl.constexpr,
              SIDE: gl.constexpr):  # fmt: skip
    """`STAGES` permuted tiles, each an allocation of its own."""
    one = (tile_memory(like, "permuted", 1, LINES, BLOCK_K, SIDE).index(0),)
    if STAGES > 1:
        one = one + tile_ring(like, STAGES - 1, LINES, BLOCK_K, SIDE)
    return one


@gluon.jit
def tile_ptrs(ptr, first, count, pitch, LINES: gl.constexpr, BLOCK_K: gl.constexpr,
              SIDE: gl.constexpr):  # fmt: skip
    """Pointers [LINES, BLOCK_K] to the first step of `count` lines, from `first` on.

    What isn't contiguous is `pitch` elements apart. Lines past the edge wrap to valid ones.
    """
    WHOLE: gl.constexpr = is_whole(SIDE)
    ALONG_K: gl.constexpr = along_k(SIDE)
    layout: gl.constexpr = chunks_layout(LINES, BLOCK_K, ALONG_K, gl.num_warps())
    pitch = in_chunks(pitch, ptr, WHOLE)
    line = first + gl.arange(0, LINES, gl.SliceLayout(1, layout))
    k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, layout))
    if ALONG_K:
        ptrs = ptr + ((line % count)[:, None] * pitch + k[None, :])
    else:
        line %= in_chunks(count, ptr, WHOLE)
        ptrs = ptr + (line[:, None] + k[None, :] * pitch)
    return ptrs


@gluon.jit
def next_step(ptrs, pitch, SIDE: gl.constexpr):
    """The pointers of `tile_ptrs` for the next step of K."""
    if along_k(SIDE):
        ptrs += ptrs.shape[1]
    else:
        ptrs += ptrs.shape[1] * in_chunks(pitch, ptrs, is_whole(SIDE))
    return ptrs


@gluon.jit
def inside(ptrs, left, SIDE: gl.constexpr, EVEN_K: gl.constexpr):
    """Which elements are not past K, of which `left` elements remain."""
    if EVEN_K:
        mask = left > 0
    else:
        left = in_chunks(left, ptrs, SIDE == "K")
        k = gl.arange(0, ptrs.shape[1], gl.SliceLayout(0, ptrs.type.layout))
        mask = (k < left)[None, :]
    return mask


@gluon.jit
def load_tile(ptrs, left, SIDE: gl.constexpr, EVEN_K: gl.constexpr):
    """A tile in registers; zeros past K."""
    mask = inside(ptrs, left, SIDE, EVEN_K)
    return gl.load(ptrs, mask=mask, other=0.0)


@gluon.jit
def copy_tile(memory, ptrs, left, SIDE: gl.constexpr, EVEN_K: gl.constexpr):
    """Issue the copy of a tile to shared memory by cp.async; zeros past K.

    A tile that doesn't consist of chunks is copied immediately, through registers.
    """
    if is_whole(SIDE):
        mask = inside(ptrs, left, SIDE, EVEN_K)
        cp_async(memory, ptrs, mask=mask)
    else:
        memory.store(load_tile(ptrs, left, SIDE, EVEN_K))


@gluon.jit
def fragments(a_memory, b_memory, k: gl.constexpr, DEPTH: gl.constexpr):
    """Both operands' registers for the elements of K from `k` on, `DEPTH` of them."""
    layout: gl.constexpr = acc_layout(gl.num_warps())
    a = a_memory.slice(k, DEPTH, 1).load(gl.DotOperandLayout(0, layout, 2))
    b = b_memory.slice(k, DEPTH, 1).permute((1, 0)).load(gl.DotOperandLayout(1, layout, 2))
    return a, b


@gluon.jit
def zeros(BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, ACC: gl.constexpr):
    return gl.zeros((BLOCK_M, BLOCK_N), ACC, acc_layout(gl.num_warps()))


@gluon.jit
def multiply(a_memory, b_memory, acc):
    """acc plus the product of two tiles in shared memory."""
    a, b = fragments(a_memory, b_memory, 0, a_memory.shape[1])
    return mma_v2(a, b, acc)


@gluon.jit
def store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn,
               C_MAJOR: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Write the part of the tile at (row, col) that is inside M x N, via shared memory.

    In chunks along the rows (N) or columns (T) of C; n and t where those aren't whole.
    """
    WHOLE: gl.constexpr = is_whole(C_MAJOR)
    BY_ROWS: gl.constexpr = C_MAJOR == "N" or C_MAJOR == "n"
    layout: gl.constexpr = chunks_layout(acc.shape[0], acc.shape[1], BY_ROWS, gl.num_warps())
    tile = gl.convert_layout(acc.to(c_ptr.dtype.element_ty), layout)
    offs_m = row + gl.arange(0, acc.shape[0], gl.SliceLayout(1, layout))
    offs_n = col + gl.arange(0, acc.shape[1], gl.SliceLayout(0, layout))
    if BY_ROWS:
        N, stride_cm = in_chunks(N, c_ptr, WHOLE), in_chunks(stride_cm, c_ptr, WHOLE)
    else:
        M, stride_cn = in_chunks(M, c_ptr, WHOLE), in_chunks(stride_cn, c_ptr, WHOLE)
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    offs_m, offs_n = widen(offs_m, WIDE), widen(offs_n, WIDE)
    gl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, tile, mask=mask)
