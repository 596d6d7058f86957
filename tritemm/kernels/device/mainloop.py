"""The mainloop: a ring of stages that the copy engine fills and WGMMA empties.

A program's warps have roles. One producer warp asks the copy engine for tiles of A and B, the
consumers multiply them and store. A stage of the ring goes to and fro by two barriers: `full`
(its bytes have arrived) and `empty` (its last reader has finished). Whoever uses the ring counts
steps of K since the program began: step n stands in stage n % STAGES, in its round n // STAGES.

The columns of a tile come in two parts, `BLOCK_N = N0 + N1`, powers of two each; N1 may be 0.
Of a gated product each part is a half of the gate's columns and a half of those that it goes with,
which stand N / 2 further on in B: the engine fills a stage by halves, and WGMMA reads it whole.
Its rows come in slabs of equal powers of two: all of them, or 64 of 192. Consumers that share a
tile have a slab each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .fragments import exchanged, in_registers, load_fragment, operand_layout
from .language import Value, aggregate, async_load
from .memory import as_box, buffers, corner, first_part, in_halves, mma_layout, tile_view


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
def tma_load(desc, unit, row, col, bar, memory, MAJOR: gl.constexpr, BATCHED: gl.constexpr):
    """Ask for the tile at (row, col) of the unit's batch; a broadcast batch has extent 1."""
    i, j = corner(row, col, MAJOR)
    if BATCHED:
        b0 = gl.minimum(unit.b0, desc.shape[0] - 1)
        b1 = gl.minimum(unit.b1, desc.shape[1] - 1)
        memory = as_box(memory, desc)
        async_load(desc, [b0, b1, i, j], bar, memory)
    else:
        async_load(desc, [i, j], bar, memory)


@gluon.jit
def load_columns(desc, unit, k, col, bar, ring, stage, SHAPE: gl.constexpr):
    """Ask for a column part of B's tile, which begins at column `col` of the product."""
    if SHAPE.GATED:
        halves = in_halves(ring, SHAPE.B_MAJOR)
        columns = desc.shape[len(desc.shape) - (2 if SHAPE.B_MAJOR == "T" else 1)]
        for half in gl.static_range(2):
            tma_load(
                desc, unit, k, col // 2 + half * (columns // 2), bar,
                halves.index(2 * stage + half), SHAPE.B_MAJOR, SHAPE.BATCHED,
            )  # fmt: skip
    else:
        tma_load(desc, unit, k, col, bar, ring.index(stage), SHAPE.B_MAJOR, SHAPE.BATCHED)


@gluon.jit
def multiply_half(fragment, b0, b1, acc0, acc1, HALF: gl.constexpr, use_acc, TWO: gl.constexpr):
    """Ask for the products of a fragment and half of each part of B's tile, to be waited for."""
    DEPTH: gl.constexpr = fragment.shape[1]
    half = b0.slice(HALF * DEPTH, DEPTH, 0)
    sum0 = warpgroup_mma(fragment, half, acc0, use_acc=use_acc, is_async=True)
    sum1 = acc1
    if TWO:
        layout: gl.constexpr = operand_layout(acc1.shape[0], acc1.shape[1], gl.num_warps())
        fragment = gl.convert_layout(fragment, layout, assert_trivial=True)
        half = b1.slice(HALF * DEPTH, DEPTH, 0)
        sum1 = warpgroup_mma(fragment, half, acc1, use_acc=use_acc, is_async=True)
    return sum0, sum1


@gluon.jit
def wait_for(sums, fragment, TWO: gl.constexpr, HALVES: gl.constexpr = 1):
    """The sums and the fragment, when but `HALVES` are still under way."""
    sum0, sum1 = sums
    if TWO:
        sum0, sum1, fragment = warpgroup_mma_wait(2 * HALVES, deps=[sum0, sum1, fragment])
    else:
        sum0, fragment = warpgroup_mma_wait(HALVES, deps=[sum0, fragment])
    return sum0, sum1, fragment


@aggregate
class Mainloop:
    """The stages of A and of both parts of B; their barriers, `STAGES` full and as many empty.

    A stage of A is its slabs, one after another.
    """

    a_desc: Value
    b_desc: Value
    b1_desc: Value
    a_ring: Value
    b0_ring: Value
    b1_ring: Value
    bars: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def load(self, n, unit):
        """The producer's part of a unit, whose first step is `n`; the next one's first step."""
        SHAPE: gl.constexpr = self.SHAPE
        N0: gl.constexpr = first_part(SHAPE.BLOCK_N)
        ROWS: gl.constexpr = SHAPE.ROWS
        SLABS: gl.constexpr = SHAPE.BLOCK_M // ROWS
        A_BYTES: gl.constexpr = self.a_desc.block_type.nbytes * SLABS
        B_BYTES: gl.constexpr = self.b_desc.block_type.nbytes * (2 if SHAPE.GATED else 1)
        BYTES: gl.constexpr = A_BYTES + B_BYTES * SHAPE.BLOCK_N // N0
        for step in range(unit.steps):
            stage = (n + step) % SHAPE.STAGES
            full = self.bars.index(stage)
            free = ((n + step) // SHAPE.STAGES & 1) ^ 1
            mbarrier.wait(self.bars.index(SHAPE.STAGES + stage), free)
            mbarrier.expect(full, BYTES)
            k = (unit.first + step) * SHAPE.BLOCK_K
            for slab in gl.static_range(SLABS):
                tma_load(
                    self.a_desc, unit, unit.row + slab * ROWS, k, full,
                    self.a_ring.index(stage * SLABS + slab), SHAPE.A_MAJOR, SHAPE.BATCHED,
                )  # fmt: skip
            load_columns(self.b_desc, unit, k, unit.col, full, self.b0_ring, stage, SHAPE)
            if SHAPE.BLOCK_N > N0:
                load_columns(self.b1_desc, unit, k, unit.col + N0, full, self.b1_ring, stage, SHAPE)
        return n + unit.steps

    @gluon.jit
    def no_sums(self):
        """Zeros for a slab, of both column parts; of one part the second is 8 columns, unused."""
        SHAPE: gl.constexpr = self.SHAPE
        N0: gl.constexpr = first_part(SHAPE.BLOCK_N)
        N1: gl.constexpr = SHAPE.BLOCK_N - N0 if SHAPE.BLOCK_N > N0 else 8
        ROWS: gl.constexpr = SHAPE.ROWS
        WARPS: gl.constexpr = gl.num_warps()
        DTYPE: gl.constexpr = self.a_ring.dtype
        acc0 = gl.zeros((ROWS, N0), gl.float32, mma_layout(ROWS, N0, WARPS, DTYPE))
        acc1 = gl.zeros((ROWS, N1), gl.float32, mma_layout(ROWS, N1, WARPS, DTYPE))
        return acc0, acc1

    @gluon.jit
    def arrived(self, n, SLAB: gl.constexpr):
        """The stage of step `n`, once its bytes are there, and the slab of A's tile in it."""
        SHAPE: gl.constexpr = self.SHAPE
        stage = n % SHAPE.STAGES
        mbarrier.wait(self.bars.index(stage), n // SHAPE.STAGES & 1)
        slab = stage * (SHAPE.BLOCK_M // SHAPE.ROWS) + SLAB
        return stage, tile_view(self.a_ring, slab, SHAPE.A_MAJOR)

    @gluon.jit
    def read_before(self, n, pred):
        """That the step before `n` was read, so that its stage is free."""
        last = (n + self.SHAPE.STAGES - 1) % self.SHAPE.STAGES
        mbarrier.arrive(self.bars.index(self.SHAPE.STAGES + last), pred=pred)

    @gluon.jit
    def multiply(self, n, steps, SLAB: gl.constexpr = 0):
        """A consumer's slab of a unit, from step `n` on: the sums of all column parts.

        The last step is still under way: `multiply_tail` waits for it.
        """
        if in_registers(self.SHAPE):
            acc = self.multiply_fragments(n, steps, SLAB)
        else:
            acc = self.multiply_shared(n, steps, SLAB)
        return acc

    @gluon.jit
    def multiply_shared(self, n, steps, SLAB: gl.constexpr):
        """`multiply`, of operands that WGMMA reads in shared memory."""
        SHAPE: gl.constexpr = self.SHAPE
        N0: gl.constexpr = first_part(SHAPE.BLOCK_N)
        TWO: gl.constexpr = SHAPE.BLOCK_N > N0
        acc0, acc1 = self.no_sums()
        for step in range(steps):
            stage, a = self.arrived(n + step, SLAB)
            b = tile_view(self.b0_ring, stage, SHAPE.B_MAJOR)
            sum0 = warpgroup_mma(a, b, acc0, use_acc=step > 0, is_async=True)
            if TWO:
                b = tile_view(self.b1_ring, stage, SHAPE.B_MAJOR)
                sum1 = warpgroup_mma(a, b, acc1, use_acc=step > 0, is_async=True)
                acc0, acc1 = warpgroup_mma_wait(2, deps=[sum0, sum1])
            else:
                acc0 = warpgroup_mma_wait(1, deps=[sum0])
            # This step's WGMMA may still read its stage; that of the step before has finished.
            self.read_before(n + step, step > 0)
        return acc0, acc1

    @gluon.jit
    def multiply_fragments(self, n, steps, SLAB: gl.constexpr):
        """`multiply`, of an A from registers, and the fragment that WGMMA still reads.

        A fragment is loaded only when WGMMA has read what was in its registers; to wait for it is
        also what keeps them.
        """
        SHAPE: gl.constexpr = self.SHAPE
        N0: gl.constexpr = first_part(SHAPE.BLOCK_N)
        TWO: gl.constexpr = SHAPE.BLOCK_N > N0
        HALF: gl.constexpr = (SHAPE.ROWS, SHAPE.BLOCK_K // 2)
        LAYOUT: gl.constexpr = operand_layout(SHAPE.ROWS, N0, gl.num_warps())
        acc0, acc1 = self.no_sums()
        right = gl.zeros(HALF, self.a_ring.dtype, LAYOUT)
        for step in range(steps):
            stage, a = self.arrived(n + step, SLAB)
            b0 = tile_view(self.b0_ring, stage, SHAPE.B_MAJOR)
            b1 = tile_view(self.b1_ring, stage, SHAPE.B_MAJOR)
            left = load_fragment(a, 0, N0)
            sums = multiply_half(left, b0, b1, acc0, acc1, 0, step > 0, TWO)
            acc0, acc1, right = wait_for(sums, right, TWO)
            right = load_fragment(a, 1, N0)
            self.read_before(n + step, step > 0)
            sums = multiply_half(right, b0, b1, acc0, acc1, 1, True, TWO)
            acc0, acc1, left = wait_for(sums, left, TWO)
        return acc0, acc1, right

    @gluon.jit
    def multiply_tail(self, acc, n, steps):
        """The sums of `multiply`, complete, and the next unit's first step.

        `n` grows only after the wait: before it, where tiles are narrow, ptxas sees what it takes
        for a use of the sums, and has every WGMMA waited for.
        """
        SHAPE: gl.constexpr = self.SHAPE
        if in_registers(SHAPE):
            TWO: gl.constexpr = first_part(SHAPE.BLOCK_N) < SHAPE.BLOCK_N
            acc0, acc1, _ = wait_for((acc[0], acc[1]), acc[2], TWO, 0)
            acc = (exchanged(acc0), exchanged(acc1)) if TWO else (exchanged(acc0),)
        elif first_part(SHAPE.BLOCK_N) < SHAPE.BLOCK_N:
            acc0, acc1 = warpgroup_mma_wait(0, deps=[acc[0], acc[1]])
            acc = (acc0, acc1)
        else:
            acc = (warpgroup_mma_wait(0, deps=[acc[0]]),)
        n += steps
        self.read_before(n, steps > 0)
        return acc, n


@gluon.jit
def make_mainloop(a_desc, b_desc, b1_desc, SHAPE: gl.constexpr):
    """With its memory, and barriers that are ready for use."""
    STAGES: gl.constexpr = SHAPE.STAGES
    BLOCK_K: gl.constexpr = SHAPE.BLOCK_K
    N0: gl.constexpr = first_part(SHAPE.BLOCK_N)
    ROWS: gl.constexpr = SHAPE.ROWS
    SLABS: gl.constexpr = SHAPE.BLOCK_M // ROWS
    a_ring = buffers(STAGES * SLABS, ROWS, BLOCK_K, SHAPE.A_MAJOR, a_desc.dtype)
    b0_ring = buffers(STAGES, BLOCK_K, N0, SHAPE.B_MAJOR, b_desc.dtype)
    b1_ring = b0_ring
    if SHAPE.BLOCK_N > N0:
        b1_ring = buffers(STAGES, BLOCK_K, SHAPE.BLOCK_N - N0, SHAPE.B_MAJOR, b_desc.dtype)
    bars = make_barriers(STAGES, STAGES, SLABS)
    return Mainloop(a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, SHAPE)
