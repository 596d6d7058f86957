"""The mainloop: a ring of stages that TMA fills and WGMMA reads.

One producer warp loads tiles of A and B, the consumers multiply them and store (`roles`). A stage
of the ring is passed back and forth by two barriers: `full` (its bytes have arrived) and `empty`
(its last reader has finished). Both sides count steps of K since the program began: step n is in
stage n % STAGES, in round n // STAGES of the ring.

The columns of a tile are two blocks, `BLOCK_N = N0 + N1`, powers of two each; N1 may be 0. With
swiglu and geglu the left half of a block is columns of the gate, and the right half the columns
that they multiply, N / 2 further on in B: TMA loads a block by halves; WGMMA reads it whole. The
rows of a tile are slabs of equal powers of two: all of them, or 64 of 192. Consumers that share a
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

from .fragments import as_operand, in_registers, load_fragment, operand_layout, permuted
from .language import Value, aggregate, async_copy, async_load, reinterpret
from .memory import acc_type, as_box, buffers, corner, mma_layout, shared_layout, tile_view


@gluon.constexpr_function
def first_block(columns):
    """N0 of BLOCK_N = N0 + N1: the largest power of two that is not above `columns`."""
    return 1 << (columns.bit_length() - 1)


@gluon.constexpr_function
def loaders_of(shape):
    """Arrivals of a stage that is full: its bytes, and each thread that has copied scales."""
    return 33 if shape.SUMS == "block" else 1


@gluon.jit
def place(n, STAGES: gl.constexpr):
    """The stage of step `n`, and whether that is in an odd round of the ring."""
    return n % STAGES, n // STAGES & 1


@gluon.jit
def next_place(stage, odd, STAGES: gl.constexpr):
    """The place of the next step, without a division, which would delay each step."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), odd ^ last.to(gl.int32)


@gluon.jit
def make_barriers(ONE: gl.constexpr, MORE: gl.constexpr = 0, ARRIVALS: gl.constexpr = 1,
                  FIRST: gl.constexpr = 1):  # fmt: skip
    """`ONE` barriers that take `FIRST` arrivals, then `MORE` that take `ARRIVALS`."""
    bars = gl.allocate_shared_memory(gl.int64, [ONE + MORE, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(ONE):
        mbarrier.init(bars.index(i), count=FIRST)
    for i in gl.static_range(MORE):
        mbarrier.init(bars.index(ONE + i), count=ARRIVALS)
    fence_async_shared()
    return bars


@gluon.jit
def tma_load(desc, b0, b1, row, col, bar, memory, MAJOR: gl.constexpr, BATCHED: gl.constexpr):
    """Issue the load of the tile at (row, col) of a batch; a broadcast batch has extent 1."""
    i, j = corner(row, col, MAJOR)
    if BATCHED:
        b0 = gl.minimum(b0, desc.shape[0] - 1)
        b1 = gl.minimum(b1, desc.shape[1] - 1)
        memory = as_box(memory, desc)
        async_load(desc, [b0, b1, i, j], bar, memory)
    else:
        async_load(desc, [i, j], bar, memory)


@gluon.jit
def load_columns(desc, b0, b1, k, col, bar, ring, stage, SHAPE: gl.constexpr):
    """Issue the load of a block of B's tile, from column `col` of the product on."""
    if SHAPE.GATED:
        halves = in_halves(ring, SHAPE.B_MAJOR)
        columns = desc.shape[len(desc.shape) - (2 if SHAPE.B_MAJOR == "T" else 1)]
        for half in gl.static_range(2):
            tma_load(
                desc, b0, b1, k, col // 2 + half * (columns // 2), bar,
                halves.index(2 * stage + half), SHAPE.B_MAJOR, SHAPE.BATCHED,
            )  # fmt: skip
    else:
        tma_load(desc, b0, b1, k, col, bar, ring.index(stage), SHAPE.B_MAJOR, SHAPE.BATCHED)


@gluon.jit
def in_halves(memory, MAJOR: gl.constexpr):
    """Left and right halves of tiles in `buffers`; see `arch.tiles.HALVES`."""
    COUNT: gl.constexpr = 2 * memory.shape[0]
    FIRST: gl.constexpr = memory.shape[1] // (2 if MAJOR == "T" else 1)
    SECOND: gl.constexpr = memory.shape[2] // (1 if MAJOR == "T" else 2)
    LAYOUT: gl.constexpr = shared_layout(FIRST, SECOND, memory.dtype)
    return reinterpret(memory, memory.dtype, [COUNT, FIRST, SECOND], LAYOUT)


@gluon.jit
def multiply_half(fragment, b, acc, HALF: gl.constexpr, use_acc):
    """Issue WGMMA of a fragment and half the depth of each block of B; `waited` waits."""
    DEPTH: gl.constexpr = fragment.shape[1]
    more = ()
    for i in gl.static_range(len(acc)):
        fragment = as_operand(fragment, acc[i])
        half = b[i].slice(HALF * DEPTH, DEPTH, 0)
        more += (warpgroup_mma(fragment, half, acc[i], use_acc=use_acc, is_async=True),)
    return more


@gluon.jit
def waited(values, PENDING: gl.constexpr):
    """Accumulators and fragments, a tuple, once at most `PENDING` WGMMA are in flight."""
    if len(values) == 1:
        values = (warpgroup_mma_wait(PENDING, deps=values),)
    else:
        values = warpgroup_mma_wait(PENDING, deps=values)
    return values


@gluon.jit
def zero_block(ROWS: gl.constexpr, COLUMNS: gl.constexpr, DTYPE: gl.constexpr,
               TYPE: gl.constexpr):  # fmt: skip
    """An accumulator of zeros, for operands of `DTYPE`; `TYPE` is theirs in PTX."""
    layout: gl.constexpr = mma_layout(COLUMNS, gl.num_warps(), DTYPE)
    return gl.zeros((ROWS, COLUMNS), acc_type(TYPE), layout)


@aggregate
class Mainloop:
    """The stages of A and of each block of B; their barriers, `STAGES` full and as many empty.

    A stage of A is its slabs, one after another.
    """

    a_desc: Value
    b_descs: Value
    a_ring: Value
    b_rings: Value
    bars: Value
    scale_ring: Value
    SHAPE: gl.constexpr

    @gluon.jit
    def load(self, n, unit):
        """Load a unit whose first step is `n`; return the next unit's first step."""
        SHAPE: gl.constexpr = self.SHAPE
        N0: gl.constexpr = first_block(SHAPE.BLOCK_N)
        ROWS: gl.constexpr = SHAPE.ROWS
        SLABS: gl.constexpr = SHAPE.BLOCK_M // ROWS
        A_BYTES: gl.constexpr = self.a_desc.block_type.nbytes * SLABS
        B_BYTES: gl.constexpr = self.b_descs[0].block_type.nbytes * (2 if SHAPE.GATED else 1)
        BYTES: gl.constexpr = A_BYTES + B_BYTES * SHAPE.BLOCK_N // N0
        b0, b1, row, first_col, beyond = unit.b0, unit.b1, unit.row, unit.col, 0
        if SHAPE.GROUPS != "":
            b0, b1, row, first_col, beyond = unit.loaded_from()
        stage, odd = place(n, SHAPE.STAGES)
        for step in range(unit.steps):
            full = self.bars.index(stage)
            mbarrier.wait(self.bars.index(SHAPE.STAGES + stage), odd ^ 1)
            mbarrier.expect(full, BYTES)
            k = (unit.first + step) * SHAPE.BLOCK_K + beyond
            for slab in gl.static_range(SLABS):
                tma_load(
                    self.a_desc, b0, b1, row + slab * ROWS, k, full,
                    self.a_ring.index(stage * SLABS + slab), SHAPE.A_MAJOR, SHAPE.BATCHED,
                )  # fmt: skip
            for i in gl.static_range(len(self.b_rings)):
                col = first_col + i * N0
                load_columns(self.b_descs[i], b0, b1, k, col, full, self.b_rings[i], stage, SHAPE)
            if SHAPE.SUMS == "block":
                self.scale_ring.load(unit, step, stage)
                async_copy.mbarrier_arrive(full, increment_count=False)
            stage, odd = next_place(stage, odd, SHAPE.STAGES)
        return n + unit.steps

    @gluon.jit
    def zeros(self):
        """A slab's accumulator, a tensor for each block."""
        acc = ()
        for i in gl.static_range(len(self.b_rings)):
            b = tile_view(self.b_rings[i], 0, self.SHAPE.B_MAJOR)
            acc += (zero_block(self.SHAPE.ROWS, b.shape[1], b.dtype, self.SHAPE.TYPE),)
        return acc

    @gluon.jit
    def operands(self, stage, SLAB: gl.constexpr):
        """The slab of A's tile and the blocks of B's in `stage`."""
        SHAPE: gl.constexpr = self.SHAPE
        slab = stage * (SHAPE.BLOCK_M // SHAPE.ROWS) + SLAB
        a = tile_view(self.a_ring, slab, SHAPE.A_MAJOR)
        b = ()
        for i in gl.static_range(len(self.b_rings)):
            b += (tile_view(self.b_rings[i], stage, SHAPE.B_MAJOR),)
        return a, b

    @gluon.jit
    def begin(self, stage, odd):
        """Wait until the bytes of `stage` have arrived."""
        mbarrier.wait(self.bars.index(stage), odd)

    @gluon.jit
    def start(self, stage, SLAB: gl.constexpr, COLUMN: gl.constexpr, MOST: gl.constexpr):
        """Issue WGMMA for a slab of `stage`, for sums of it alone; always with all columns."""
        return self.multiply_step(self.zeros(), stage, SLAB, False)

    @gluon.jit
    def finish(self, part):
        """Those sums, complete."""
        return waited(part, 0)

    @gluon.jit
    def release(self, stage, pred=True):
        """Free a stage, which has been read."""
        mbarrier.arrive(self.bars.index(self.SHAPE.STAGES + stage), pred=pred)

    @gluon.jit
    def multiply(self, n, steps, SLAB: gl.constexpr = 0):
        """The accumulator of a consumer's slab of a unit, from step `n` on; it has one or more.

        The last step is still in flight: `multiply_tail` waits for it.
        """
        if in_registers(self.SHAPE):
            acc = self.multiply_fragments(n, steps, SLAB)
        else:
            acc = self.multiply_shared(n, steps, SLAB)
        return acc

    @gluon.jit
    def multiply_shared(self, n, steps, SLAB: gl.constexpr):
        """`multiply` for operands that WGMMA reads from shared memory."""
        stage, odd = place(n, self.SHAPE.STAGES)
        self.begin(stage, odd)
        acc = self.multiply_step(self.zeros(), stage, SLAB, False)
        for _ in range(1, steps):
            before = stage
            stage, odd = next_place(stage, odd, self.SHAPE.STAGES)
            self.begin(stage, odd)
            acc = waited(self.multiply_step(acc, stage, SLAB, True), len(acc))
            # This step's WGMMA may still read its stage; that of the step before has finished.
            self.release(before)
        return acc

    @gluon.jit
    def multiply_step(self, acc, stage, SLAB: gl.constexpr, ADDS: gl.constexpr):
        """Issue WGMMA for a slab of `stage`, which adds to `acc` or overwrites it."""
        a, b = self.operands(stage, SLAB)
        more = ()
        for i in gl.static_range(len(acc)):
            more += (warpgroup_mma(a, b[i], acc[i], use_acc=ADDS, is_async=True),)
        return more

    @gluon.jit
    def multiply_fragments(self, n, steps, SLAB: gl.constexpr):
        """`multiply` with A from registers; also the fragment that WGMMA still reads.

        A fragment is loaded only when WGMMA has read what was in its registers; waiting for it is
        also what keeps them allocated.
        """
        HALF: gl.constexpr = (self.SHAPE.ROWS, self.SHAPE.BLOCK_K // 2)
        acc = self.zeros()
        BLOCKS: gl.constexpr = len(acc)
        LAYOUT: gl.constexpr = operand_layout(acc[0].type.layout)
        right = gl.zeros(HALF, self.a_ring.dtype, LAYOUT)
        stage, odd = place(n, self.SHAPE.STAGES)
        for step in range(steps):
            self.begin(stage, odd)
            a, b = self.operands(stage, SLAB)
            left = load_fragment(a, 0, acc[0])
            acc = multiply_half(left, b, acc, 0, step > 0)
            acc = waited(acc + (right,), BLOCKS)[:BLOCKS]
            right = load_fragment(a, 1, acc[0])
            self.release(gl.where(stage == 0, self.SHAPE.STAGES, stage) - 1, step > 0)
            acc = multiply_half(right, b, acc, 1, True)
            acc = waited(acc + (left,), BLOCKS)[:BLOCKS]
            stage, odd = next_place(stage, odd, self.SHAPE.STAGES)
        return acc + (right,)

    @gluon.jit
    def multiply_tail(self, acc, n, steps):
        """The accumulator of `multiply`, complete, and the next unit's first step.

        `n` grows only after the wait: before it, with narrow tiles, ptxas takes that for a use of
        the accumulator, and waits for every WGMMA.
        """
        acc = waited(acc, 0)
        if in_registers(self.SHAPE):
            turned = ()
            for i in gl.static_range(len(acc) - 1):
                turned += (permuted(acc[i]),)
            acc = turned
        n += steps
        self.release((n - 1) % self.SHAPE.STAGES)
        return acc, n


@gluon.jit
def make_mainloop(a_desc, b_desc, b1_desc, SHAPE: gl.constexpr, scale_ring=0):
    """The mainloop with its memory, and barriers that are ready for use."""
    STAGES: gl.constexpr = SHAPE.STAGES
    BLOCK_K: gl.constexpr = SHAPE.BLOCK_K
    N0: gl.constexpr = first_block(SHAPE.BLOCK_N)
    ROWS: gl.constexpr = SHAPE.ROWS
    SLABS: gl.constexpr = SHAPE.BLOCK_M // ROWS
    a_ring = buffers(STAGES * SLABS, ROWS, BLOCK_K, SHAPE.A_MAJOR, a_desc.dtype)
    b_rings = (buffers(STAGES, BLOCK_K, N0, SHAPE.B_MAJOR, b_desc.dtype),)
    if SHAPE.BLOCK_N > N0:
        b_rings += (buffers(STAGES, BLOCK_K, SHAPE.BLOCK_N - N0, SHAPE.B_MAJOR, b_desc.dtype),)
    # Consumers that read a stage have a slab of it each, or several if sums are promoted.
    SHARERS: gl.constexpr = SLABS if SHAPE.SUMS == "whole" else SHAPE.CONSUMERS
    bars = make_barriers(STAGES, STAGES, SHARERS, loaders_of(SHAPE))
    return Mainloop(a_desc, (b_desc, b1_desc), a_ring, b_rings, bars, scale_ring, SHAPE)
