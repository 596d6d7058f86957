"""C = A @ B.mT on sm_100 (Blackwell): rung 10 with its accumulator in tensor memory. Never run.

The roles are those of `warp_specialized`, except that a consumer is two of them: one thread issues
the products, and a warpgroup stores. With `num_ctas=2` two programs of a cluster share a tile of
256 rows; with `CLC` they ask the hardware for their next tile. What stays the same as on Hopper is
imported from the rungs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    clc,
    tcgen05_commit,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from tritemm.kernels.device.language import (
    Value,
    aggregate,
    async_load,
    async_store,
    tma_store_wait,
)
from tritemm.kernels.device.mainloop import next_place, place
from tritemm.kernels.device.raster import raster

#: Answers of cluster launch control that are kept until all roles have read them; bytes of one.
ANSWERS, ANSWER = gl.constexpr(4), gl.constexpr(16)
#: Pieces of C that are in shared memory at once.
BUFFERS = gl.constexpr(2)


@gluon.jit
def ring(COUNT: gl.constexpr, ARRIVALS: gl.constexpr, SHARED: gl.constexpr):
    """`COUNT` barriers of each program, or of its pair if they are `SHARED`."""
    bars = mbarrier.allocate_mbarrier(COUNT, SHARED and gl.num_ctas() > 1)
    for i in gl.static_range(COUNT):
        mbarrier.init(bars.index(i), count=ARRIVALS)
    return bars


@aggregate
class Work:
    """The tiles of a program: every `num_programs`th, or those that the hardware hands out."""

    M: Value
    N: Value
    K: Value
    answers: Value
    answered: Value
    read: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def corner(self, tile):
        """First row and column of a tile."""
        S: gl.constexpr = self.SHAPE
        pid_m, pid_n = raster(tile, self.M, self.N, S.BLOCK_M, S.BLOCK_N, "grouped", S.GROUP_M)
        return pid_m * S.BLOCK_M, pid_n * S.BLOCK_N

    @gluon.jit
    def ask(self, i):
        """Ask for the tile after number `i`; the request is in flight while that one is loaded."""
        if self.SHAPE.CLC:
            slot, odd = place(i, ANSWERS)
            mbarrier.wait(self.read.index(slot), odd ^ 1)
            mbarrier.expect(self.answered.index(slot), ANSWER)
            clc.try_cancel(self.answers.index(slot), self.answered.index(slot))

    @gluon.jit
    def next(self, tile, i):
        """The tile after `tile`, which is number `i` of this program; -1 if there is none."""
        more = tile + gl.num_programs(0)
        if self.SHAPE.CLC:
            slot, odd = place(i, ANSWERS)
            mbarrier.wait(self.answered.index(slot), odd)
            answer = clc.load_result(self.answers.index(slot))
            more = gl.to_tensor(-1)
            if answer.is_canceled():
                more = answer.program_id(0)
            mbarrier.arrive(self.read.index(slot))
        else:
            tiles = gl.cdiv(self.M, self.SHAPE.BLOCK_M) * gl.cdiv(self.N, self.SHAPE.BLOCK_N)
            more = gl.where(more < tiles, more, -1)
        return more


@aggregate
class Loop:
    """The ring of stages, as on Hopper, and the accumulators, which are in tensor memory."""

    a_desc: Value
    b_desc: Value
    a_ring: Value
    b_ring: Value
    full: Value
    empty: Value
    sums: Value
    done: Value
    free: Value
    SHAPE: gl.constexpr


@gluon.jit
def load(work, loop):
    """The producer, one warp: loads every step of every tile, and asks for the tile after."""
    S: gl.constexpr = work.SHAPE
    BYTES: gl.constexpr = loop.a_desc.nbytes_per_cta + loop.b_desc.nbytes_per_cta
    stage, odd = gl.to_tensor(0), gl.to_tensor(0)
    tile, i = gl.program_id(0), gl.to_tensor(0)
    while tile >= 0:
        work.ask(i)
        row, col = work.corner(tile)
        for k in range(0, work.K, S.BLOCK_K):
            full = loop.full.index(stage)
            mbarrier.wait(loop.empty.index(stage), odd ^ 1)
            mbarrier.expect(full, BYTES)
            async_load(loop.a_desc, [row, k], full, loop.a_ring.index(stage))
            async_load(loop.b_desc, [col, k], full, loop.b_ring.index(stage))
            stage, odd = next_place(stage, odd, S.STAGES)
        tile = work.next(tile, i)
        i += 1


@gluon.jit
def multiply(work, loop):
    """One warp, a thread of which issues all products, in a pair those of both programs."""
    S: gl.constexpr = work.SHAPE
    stage, odd = gl.to_tensor(0), gl.to_tensor(0)
    tile, i = gl.program_id(0), gl.to_tensor(0)
    while tile >= 0:
        slot, later = place(i, S.ACCUMULATORS)
        mbarrier.wait(loop.free.index(slot), later ^ 1)
        for k in range(0, work.K, S.BLOCK_K):
            mbarrier.wait(loop.full.index(stage), odd)
            tcgen05_mma(
                loop.a_ring.index(stage), loop.b_ring.index(stage).permute((1, 0)),
                loop.sums.index(slot), use_acc=k > 0, mbarriers=[loop.empty.index(stage)],
            )  # fmt: skip
            stage, odd = next_place(stage, odd, S.STAGES)
        tcgen05_commit(loop.done.index(slot))
        tile = work.next(tile, i)
        i += 1


@gluon.jit
def store(work, loop, c_desc, memory):
    """The epilogue, a warpgroup: reads a tile's sums piece by piece, and has TMA store them."""
    S: gl.constexpr = work.SHAPE
    PIECES: gl.constexpr = S.BLOCK_N // S.EPI_N
    tile, i = gl.program_id(0), gl.to_tensor(0)
    while tile >= 0:
        row, col = work.corner(tile)
        slot, later = place(i, S.ACCUMULATORS)
        mbarrier.wait(loop.done.index(slot), later)
        for nth in gl.static_range(PIECES):
            piece = loop.sums.index(slot).slice(nth * S.EPI_N, S.EPI_N).load()
            if nth == PIECES - 1:
                mbarrier.arrive(loop.free.index(slot))
            buffer = memory.index(nth % BUFFERS)
            tma_store_wait(BUFFERS - 1)
            buffer.store(piece.to(c_desc.dtype))
            fence_async_shared()
            async_store(c_desc, [row, col + nth * S.EPI_N], buffer)
        tile = work.next(tile, i)
        i += 1
    tma_store_wait(0)


@gluon.jit
def blackwell_kernel(a_desc, b_desc, c_desc, M, N, K, SHAPE: gl.constexpr):
    S: gl.constexpr = SHAPE
    PAIR: gl.constexpr = S.CTAS > 1
    ROLES: gl.constexpr = 3
    HALVES: gl.constexpr = [[1, 0]] if PAIR else []  # the second program has the lower rows
    SAME: gl.constexpr = [[0]] if PAIR else []
    gl.static_assert(gl.num_ctas() == S.CTAS)

    a_ring = gl.allocate_shared_memory(
        a_desc.dtype, [S.STAGES, S.BLOCK_M, S.BLOCK_K], a_desc.layout
    )
    b_ring = gl.allocate_shared_memory(
        b_desc.dtype, [S.STAGES, S.BLOCK_N, S.BLOCK_K], b_desc.layout
    )
    layout: gl.constexpr = TensorMemoryLayout(
        [S.BLOCK_M // S.CTAS, S.BLOCK_N], col_stride=1, cga_layout=HALVES, two_ctas=PAIR
    )
    sums = allocate_tensor_memory(gl.float32, [S.ACCUMULATORS, S.BLOCK_M, S.BLOCK_N], layout)
    memory = gl.allocate_shared_memory(c_desc.dtype, [BUFFERS, S.BLOCK_M, S.EPI_N], c_desc.layout)
    # Shared where the first program acts for both: when it issues products or asks for a tile.
    full, empty = ring(S.STAGES, 1, True), ring(S.STAGES, 1, False)
    done, free = ring(S.ACCUMULATORS, 1, False), ring(S.ACCUMULATORS, 1, True)
    answered, read = ring(ANSWERS, 1, False), ring(ANSWERS, ROLES, True)
    answers = gl.allocate_shared_memory(
        gl.int64, [ANSWERS, 2], gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=SAME)
    )
    work = Work(M, N, K, answers, answered, read, SHAPE)
    loop = Loop(a_desc, b_desc, a_ring, b_ring, full, empty, sums, done, free, SHAPE)
    gl.warp_specialize(
        [(store, (work, loop, c_desc, memory)), (load, (work, loop)), (multiply, (work, loop))],
        [1, 1],
    )  # fmt: skip
