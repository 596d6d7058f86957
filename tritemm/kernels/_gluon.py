"""Device helpers of the Gluon rungs: the ring of stages, the multiplication, the epilogue.

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

from ._tile import raster, split_batch

# Names that moved between Triton 3.6 and 3.9.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
store_wait = tma.store_wait
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
def by_engine(major):
    """Whether the copy engine stores C, by rows (N) or columns (T), and not threads (n, t)."""
    return major in ("N", "T")


@gluon.constexpr_function
def lanes_along(major, warps):
    """Lanes beside each other along the rows (n) or the columns (t) of C."""
    if major == "n":
        return gl.BlockedLayout([1, 1], [1, 32], [warps, 1], [1, 0])
    return gl.BlockedLayout([1, 1], [32, 1], [1, warps], [0, 1])


@gluon.constexpr_function
def shared_layout(rows, cols, dtype):
    """The swizzle of a [rows, cols] tile in shared memory that TMA and WGMMA agree on."""
    return gl.NVMMASharedLayout.get_default_for([rows, cols], dtype)


@gluon.constexpr_function
def mma_layout(block_m, columns, warps):
    """WGMMA's accumulator of [block_m, columns], `warps` along the rows."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, columns, 16])


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
    acc0 = gl.zeros((ROWS, N0), gl.float32, mma_layout(ROWS, N0, WARPS))
    acc1 = gl.zeros((ROWS, N1), gl.float32, mma_layout(ROWS, N1, WARPS))
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


@gluon.jit
def part_of(acc, PART: gl.constexpr, PARTS: gl.constexpr):
    """Columns `PART` of `PARTS` equal ones; registers only."""
    if PARTS > 1:
        HALF: gl.constexpr = PARTS // 2
        left, right = acc.reshape([acc.shape[0], 2, acc.shape[1] // 2]).permute([0, 2, 1]).split()
        if PART < HALF:  # noqa: SIM108
            acc = part_of(left, PART, HALF)
        else:
            acc = part_of(right, PART - HALF, HALF)
    return acc


@gluon.jit
def piece_of(acc0, acc1, PIECE: gl.constexpr, BLOCK_N: gl.constexpr, EPI_N: gl.constexpr):
    """Columns PIECE * EPI_N and on, EPI_N of them, of both parts together."""
    N0: gl.constexpr = first_part(BLOCK_N)
    if PIECE * EPI_N < N0:
        piece = part_of(acc0, PIECE, N0 // EPI_N)
    else:
        piece = part_of(acc1, PIECE - N0 // EPI_N, (BLOCK_N - N0) // EPI_N)
    return piece


@gluon.jit
def store_piece(
    c_desc, c_ptr, c_memory, piece, b0, b1, row, col, M, N,
    stride_c0, stride_c1, stride_cm, stride_cn,
    C_MAJOR: gl.constexpr, BATCHED: gl.constexpr, WIDE: gl.constexpr, SLAB: gl.constexpr = 0,
):  # fmt: skip
    """Write some columns of a tile, the first at (row, col)."""
    piece = piece.to(c_ptr.dtype.element_ty)
    if by_engine(C_MAJOR):
        store_wait(0)  # the copy engine has read the piece before
        tile_view(c_memory, SLAB, C_MAJOR).store(piece)
        fence_async_shared()
        send(c_desc, b0, b1, row, col, c_memory.index(SLAB), C_MAJOR, BATCHED)
    else:
        store_pointers(
            c_ptr, piece, b0, b1, row, col, M, N,
            stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, WIDE,
        )  # fmt: skip


@gluon.jit
def store_tile(
    c_desc, c_ptr, c_memory, acc0, acc1, b0, b1, row, col, M, N,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_N: gl.constexpr, EPI_N: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, SLAB: gl.constexpr = 0,
):  # fmt: skip
    """Write both parts of a tile at (row, col), `EPI_N` columns at a time."""
    for i in gl.static_range(BLOCK_N // EPI_N):
        piece = piece_of(acc0, acc1, i, BLOCK_N, EPI_N)
        store_piece(
            c_desc, c_ptr, c_memory, piece, b0, b1, row, col + i * EPI_N, M, N,
            stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE, SLAB,
        )  # fmt: skip


@gluon.jit
def send(desc, b0, b1, row, col, memory, MAJOR: gl.constexpr, BATCHED: gl.constexpr):
    """Give a tile of C to the copy engine."""
    i, j = corner(row, col, MAJOR)
    if BATCHED:
        memory = as_box(memory, desc)
        _store(desc, [b0, b1, i, j], memory)
    else:
        _store(desc, [i, j], memory)


@gluon.jit
def store_pointers(c_ptr, piece, b0, b1, row, col, M, N, stride_c0, stride_c1, stride_cm, stride_cn,
                   C_MAJOR: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    """Write what of a piece lies inside M x N; neighbouring lanes write neighbouring elements."""
    layout: gl.constexpr = lanes_along(C_MAJOR, gl.num_warps())
    piece = gl.convert_layout(piece, layout)
    offs_m = row + gl.arange(0, piece.shape[0], gl.SliceLayout(1, layout))
    offs_n = col + gl.arange(0, piece.shape[1], gl.SliceLayout(0, layout))
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    if WIDE:
        offs_m = offs_m.to(gl.int64)
        offs_n = offs_n.to(gl.int64)
    c_ptr += gl.cast(b0, gl.int64) * stride_c0 + gl.cast(b1, gl.int64) * stride_c1
    gl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, piece, mask=mask)


@gluon.jit
def _offsets(acc):
    """Where each element of `acc` stands in its partial sum: 8 x 8 blocks, one row after another.

    So the lanes of a warp, which hold 8 rows of 8 columns, write and read 256 bytes in a row.
    """
    rows = gl.arange(0, acc.shape[0], gl.SliceLayout(1, acc.type.layout))[:, None]
    cols = gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))[None, :]
    return (rows // 8) * (8 * acc.shape[1]) + (cols // 8) * 64 + (rows % 8) * 8 + cols % 8


@gluon.jit
def deposit(ptr, acc0, acc1, BLOCK_N: gl.constexpr, EPI_N: gl.constexpr):
    """Write a tile's BLOCK_M * BLOCK_N partial sums at `ptr`, `EPI_N` columns at a time."""
    for i in gl.static_range(BLOCK_N // EPI_N):
        piece = piece_of(acc0, acc1, i, BLOCK_N, EPI_N)
        piece = gl.convert_layout(piece, mma_layout(piece.shape[0], EPI_N, gl.num_warps()))
        gl.store(ptr + i * (piece.shape[0] * EPI_N) + _offsets(piece), piece)


@gluon.jit
def piece_offsets(PIECE: gl.constexpr, BLOCK_M: gl.constexpr, EPI_N: gl.constexpr):
    """Where piece PIECE of a partial sum stands, in the layout of its sums."""
    like = gl.zeros((BLOCK_M, EPI_N), gl.float32, mma_layout(BLOCK_M, EPI_N, gl.num_warps()))
    return PIECE * (BLOCK_M * EPI_N) + _offsets(like)


@gluon.jit
def arrive_last(counter, COUNT):
    """Whether this consumer is the last of COUNT to get here; then the counter is 0 again.

    What the others wrote before they came is visible after it.
    """
    barrier()
    last = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == COUNT - 1
    if last:
        gl.store(counter, 0)
    return last
