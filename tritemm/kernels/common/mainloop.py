"""Device helpers of the Gluon rungs: the ring of stages, and the multiplication.

A program's warps have roles. One producer warp asks the copy engine for tiles of A and B, the
consumers multiply them and store. A stage of the ring goes to and fro by two barriers: `ready`
(its bytes have arrived) and `empty` (its last reader has finished). Whoever uses the ring counts
steps of K since the program began: step n stands in stage n % STAGES, in its round n // STAGES.

The columns of a tile come in two parts, `BLOCK_N = N0 + N1`, powers of two each; N1 may be 0.
Its rows come in slabs of equal powers of two: all of them, or 64 of 192. Consumers that share a
tile have a slab each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .tile import raster, split_batch

# Names that moved between Triton 3.6 and 3.9.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_REINTERPRET = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))


@gluon.constexpr_function
def first_part(columns):
    """The largest power of two that is not above `columns`."""
    return 1 << (columns.bit_length() - 1)


@gluon.constexpr_function
def slab_rows(rows):
    """The largest power of two that divides `rows`: those of one consumer."""
    return rows & -rows


@gluon.constexpr_function
def shared_layout(rows, cols, dtype):
    """The swizzle of a [rows, cols] tile in shared memory that TMA and WGMMA agree on."""
    return gl.NVMMASharedLayout.get_default_for([rows, cols], dtype)


@gluon.constexpr_function
def mma_layout(block_m, columns, warps, dtype=gl.bfloat16):
    """WGMMA's accumulator of [block_m, columns], `warps` along the rows, of operands of `dtype`."""
    return gl.NVMMADistributedLayout(
        [3, 0], [warps, 1], [16, columns, 256 // dtype.primitive_bitwidth]
    )


@gluon.jit
def buffers(COUNT: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, MAJOR: gl.constexpr,
            DTYPE: gl.constexpr):  # fmt: skip
    """Shared memory for `COUNT` tiles [ROWS, COLS], each stored by rows ("N") or columns ("T")."""
    if MAJOR == "T":
        layout: gl.constexpr = shared_layout(COLS, ROWS, DTYPE)
        memory = gl.allocate_shared_memory(DTYPE, [COUNT, COLS, ROWS], layout)
    else:
        layout: gl.constexpr = shared_layout(ROWS, COLS, DTYPE)
        memory = gl.allocate_shared_memory(DTYPE, [COUNT, ROWS, COLS], layout)
    return memory


@gluon.jit
def make_barriers(ONE: gl.constexpr, MORE: gl.constexpr = 0, ARRIVALS: gl.constexpr = 1):
    """`ONE` barriers that one arrival completes, then `MORE` that take `ARRIVALS`."""
    bars = gl.allocate_shared_memory(gl.int64, [ONE + MORE, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(ONE):
        mbarrier.init(bars.index(i), count=1)
    for i in gl.static_range(MORE):
        mbarrier.init(bars.index(ONE + i), count=ARRIVALS)
    fence_async_shared()
    return bars


@gluon.jit
def make_ring(a_desc, b_desc, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
              STAGES: gl.constexpr, A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr):  # fmt: skip
    """The stages of A and of both parts of B; their barriers, `STAGES` ready and as many empty.

    A stage of A is its slabs, one after another.
    """
    N0: gl.constexpr = first_part(BLOCK_N)
    ROWS: gl.constexpr = slab_rows(BLOCK_M)
    SLABS: gl.constexpr = BLOCK_M // ROWS
    a_ring = buffers(STAGES * SLABS, ROWS, BLOCK_K, A_MAJOR, a_desc.dtype)
    b0_ring = buffers(STAGES, BLOCK_K, N0, B_MAJOR, b_desc.dtype)
    b1_ring = b0_ring
    if BLOCK_N > N0:
        b1_ring = buffers(STAGES, BLOCK_K, BLOCK_N - N0, B_MAJOR, b_desc.dtype)
    return a_ring, b0_ring, b1_ring, make_barriers(STAGES, STAGES, SLABS)


@gluon.jit
def tile_view(memory, index, MAJOR: gl.constexpr):
    """Tile `index` of `buffers` as [ROWS, COLS]."""
    tile = memory.index(index)
    if MAJOR == "T":
        tile = tile.permute((1, 0))
    return tile


@gluon.jit
def tile_at(tile, M, N, B1, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
            ORDER: gl.constexpr, GROUP_M: gl.constexpr, BATCHED: gl.constexpr):  # fmt: skip
    """Batch indices, first row and first column of a tile."""
    pid, b0, b1 = split_batch(tile, M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
    pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
    return b0, b1, pid_m * BLOCK_M, pid_n * BLOCK_N


@gluon.jit
def unit_at(unit, tiles, K, BLOCK_K: gl.constexpr, SPLIT_K: gl.constexpr):
    """Tile, part of K, first step and number of steps of a unit of work: all tiles' first parts
    come first."""
    steps = gl.cdiv(K, BLOCK_K)
    part = unit // tiles
    first = steps * part // SPLIT_K
    return unit % tiles, part, first, steps * (part + 1) // SPLIT_K - first


@gluon.jit
def corner(row, col, MAJOR: gl.constexpr):
    """(row, col) as a descriptor counts them: turned, of a matrix stored by columns."""
    if MAJOR == "T":
        first, second = col, row
    else:
        first, second = row, col
    return first, second


@gluon.jit
def as_box(memory, desc):
    """A tile in shared memory with the shape of the descriptor's box, [1, 1, rows, columns]."""
    if _REINTERPRET:
        box = memory.reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
    else:
        box = memory._reinterpret(desc.dtype, desc.block_type.shape, desc.layout)
    return box


@gluon.jit
def ask(desc, b0, b1, row, col, bar, memory, MAJOR: gl.constexpr, BATCHED: gl.constexpr):
    """Ask for the tile at (row, col) of batch (b0, b1); a broadcast batch has extent 1."""
    i, j = corner(row, col, MAJOR)
    if BATCHED:
        b0 = gl.minimum(b0, desc.shape[0] - 1)
        b1 = gl.minimum(b1, desc.shape[1] - 1)
        memory = as_box(memory, desc)
        _load(desc, [b0, b1, i, j], bar, memory)
    else:
        _load(desc, [i, j], bar, memory)


@gluon.jit
def fill_stages(
    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, n, b0, b1, row, col, k, steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, BATCHED: gl.constexpr,
):  # fmt: skip
    """The producer's part of one tile: `steps` steps of K from element `k` on; the first is `n`."""
    N0: gl.constexpr = first_part(BLOCK_N)
    ROWS: gl.constexpr = slab_rows(BLOCK_M)
    SLABS: gl.constexpr = BLOCK_M // ROWS
    A_BYTES: gl.constexpr = a_desc.block_type.nbytes * SLABS
    BYTES: gl.constexpr = A_BYTES + b_desc.block_type.nbytes * BLOCK_N // N0
    for step in range(steps):
        stage = (n + step) % STAGES
        ready = bars.index(stage)
        mbarrier.wait(bars.index(STAGES + stage), ((n + step) // STAGES & 1) ^ 1)
        mbarrier.expect(ready, BYTES)
        at = k + step * BLOCK_K
        for slab in gl.static_range(SLABS):
            memory = a_ring.index(stage * SLABS + slab)
            ask(a_desc, b0, b1, row + slab * ROWS, at, ready, memory, A_MAJOR, BATCHED)
        ask(b_desc, b0, b1, at, col, ready, b0_ring.index(stage), B_MAJOR, BATCHED)
        if BLOCK_N > N0:
            ask(b1_desc, b0, b1, at, col + N0, ready, b1_ring.index(stage), B_MAJOR, BATCHED)


@gluon.jit
def multiply(
    a_ring, b0_ring, b1_ring, bars, n, steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, WARPS: gl.constexpr, SLAB: gl.constexpr = 0,
):  # fmt: skip
    """A consumer's slab of one tile, from step `n` on: the sums of both column parts.

    The last step is still under way: `finish` waits for it.
    """
    N0: gl.constexpr = first_part(BLOCK_N)
    TWO: gl.constexpr = BLOCK_N > N0
    N1: gl.constexpr = BLOCK_N - N0 if TWO else 8
    ROWS: gl.constexpr = slab_rows(BLOCK_M)
    acc0 = gl.zeros((ROWS, N0), gl.float32, mma_layout(ROWS, N0, WARPS, a_ring.dtype))
    acc1 = gl.zeros((ROWS, N1), gl.float32, mma_layout(ROWS, N1, WARPS, a_ring.dtype))
    for step in range(steps):
        stage = (n + step) % STAGES
        mbarrier.wait(bars.index(stage), (n + step) // STAGES & 1)
        a = tile_view(a_ring, stage * (BLOCK_M // ROWS) + SLAB, A_MAJOR)
        b = tile_view(b0_ring, stage, B_MAJOR)
        sum0 = warpgroup_mma(a, b, acc0, use_acc=step > 0, is_async=True)
        if TWO:
            b = tile_view(b1_ring, stage, B_MAJOR)
            sum1 = warpgroup_mma(a, b, acc1, use_acc=step > 0, is_async=True)
            acc0, acc1 = warpgroup_mma_wait(2, deps=[sum0, sum1])
        else:
            acc0 = warpgroup_mma_wait(1, deps=[sum0])
        # This step's WGMMA may still read its stage; that of the step before has finished.
        mbarrier.arrive(bars.index(STAGES + (n + step + STAGES - 1) % STAGES), pred=step > 0)
    return acc0, acc1


@gluon.jit
def finish(acc0, acc1, bars, n, steps, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):
    """The sums of `multiply`, complete; its last stage is free again."""
    if first_part(BLOCK_N) < BLOCK_N:
        acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
    else:
        acc0 = warpgroup_mma_wait(0, deps=[acc0])
    last = (n + steps + STAGES - 1) % STAGES
    mbarrier.arrive(bars.index(STAGES + last), pred=steps > 0)
    return acc0, acc1
