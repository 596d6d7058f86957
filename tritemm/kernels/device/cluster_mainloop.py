"""The mainloop of clusters: the programs of a cluster load tiles together; WGMMA has any width.

The ring is as in `mainloop`, but PTX knows it by its address: one allocation, the largest of the
kernel, holds the stages, then their barriers, `full` and `empty`. A stage holds a tile of A and one
of B, in lines of 128 bytes as `wgmma` reads them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from . import ptx
from .language import Value, aggregate
from .mainloop import loaders_of, next_place, place
from .memory import acc_type, in_bytes, mma_layout
from .roles import load_from, specialize, workers
from .triton_contract import allocate, keep, shared_memory, tensor_map
from .wgmma import matrix_descriptor, wgmma, wgmma_wait
from .wgmma import unit as unit_of

#: Bytes after what precedes the barriers: for the barriers, and 512 for `keep`.
BARRIERS = gl.constexpr(1024)


@gluon.constexpr_function
def line_of(shape):
    """Elements of K in a line of 128 bytes."""
    return 128 if in_bytes(shape.TYPE.value) else 64


@gluon.constexpr_function
def slabs_of(rows, warps):
    """Slabs of 64 rows in a consumer's share of a tile."""
    return rows // (16 * warps)


@gluon.constexpr_function
def line_bytes(rows, columns, b_major):
    """Bytes of a tile of A and one of B, a line deep.

    Lines have 128 bytes: one for each row or column, or 64 for each 64 of them.
    """
    b_lines = columns if b_major == "T" else -(-columns // 64) * 64
    return 128 * (rows + b_lines)


@gluon.jit
def load_lines(to, bar, first, k, b0, b1, LINES: gl.constexpr, ALONG_K: gl.constexpr,
               SHARERS: gl.constexpr, MAP: gl.constexpr, BATCHED: gl.constexpr):  # fmt: skip
    """Issue the load of a tile's `LINES` rows of A, or columns of B, from `first` on, a line deep.

    They arrive in all `SHARERS` of the cluster.
    """
    if ALONG_K:
        ptx.tma_load(to, bar, first, k, b0, b1, MAP, BATCHED, SHARERS)
    else:
        for i in gl.static_range((LINES + 63) // 64):
            ptx.tma_load(to + i * 8192, bar, k, first + i * 64, b0, b1, MAP, BATCHED, SHARERS)


@gluon.jit
def place_in_planes(step, steps, SHAPE: gl.constexpr):
    """The steps of A's planes and of B's that step `step` of all `steps` multiplies."""
    depth = steps // SHAPE.PRODUCTS
    product = step // depth
    k_a = step + ((SHAPE.A_PLANES >> 2 * product & 3) - product) * depth
    k_b = step + ((SHAPE.B_PLANES >> 2 * product & 3) - product) * depth
    return k_a, k_b


@gluon.jit
def loadable(first, desc, ALONG_K: gl.constexpr):
    """`first`, or 0 past the operand's end: TMA takes longer to fill a tile with zeros."""
    return gl.where(first < desc.shape[len(desc.shape) - (2 if ALONG_K else 1)], first, 0)


@aggregate
class ClusterMainloop:
    """The ring: RING bytes, then barriers. `KERNEL` is the name of the kernel's function."""

    ring: Value
    a_desc: Value
    b_desc: Value
    scale_ring: Value
    KERNEL: gl.constexpr
    SHAPE: gl.constexpr

    @gluon.jit
    def full(self):
        """The address of the first barrier, after all stages."""
        return shared_memory() + self.SHAPE.RING

    @gluon.jit
    def more(self):
        """The address of the barriers after those of the stages."""
        return self.full() + 2 * self.SHAPE.STAGES * 8

    @gluon.jit
    def load(self, n, unit):
        """Load a unit whose first step is `n`; return the next unit's first step.

        These are this program's own tiles, and the shared ones of the steps when it has its turn.
        """
        SHAPE: gl.constexpr = self.SHAPE
        rank = gl.program_id(0) % SHAPE.CLUSTER
        LINE: gl.constexpr = line_of(SHAPE)
        LINES: gl.constexpr = SHAPE.BLOCK_K // LINE
        OF_A: gl.constexpr = SHAPE.CLUSTER if SHAPE.SHARED == "a" else 1
        OF_B: gl.constexpr = SHAPE.CLUSTER if SHAPE.SHARED == "b" else 1
        A_ALONG_K: gl.constexpr = SHAPE.A_MAJOR == "N"
        B_ALONG_K: gl.constexpr = SHAPE.B_MAJOR == "T"
        BYTES: gl.constexpr = line_bytes(SHAPE.BLOCK_M, SHAPE.BLOCK_N, SHAPE.B_MAJOR)
        MAP_A: gl.constexpr = tensor_map(self.KERNEL, "a", SHAPE.BATCHED)
        MAP_B: gl.constexpr = tensor_map(self.KERNEL, "b", SHAPE.BATCHED)
        a0, a1, b0, b1 = unit.b0, unit.b1, unit.b0, unit.b1
        if SHAPE.BATCHED:
            # A broadcast batch has extent 1.
            a, b = self.a_desc.shape, self.b_desc.shape
            a0, a1 = gl.minimum(a0, a[0] - 1), gl.minimum(a1, a[1] - 1)
            b0, b1 = gl.minimum(b0, b[0] - 1), gl.minimum(b1, b[1] - 1)
        row = loadable(unit.row, self.a_desc, A_ALONG_K)
        col = loadable(unit.col, self.b_desc, B_ALONG_K)
        ring = shared_memory()
        bars = self.full()
        stage, odd = place(n, SHAPE.STAGES)
        for step in range(unit.steps):
            full = bars + stage * 8
            # Free in all programs: the load writes to all.
            ptx.barrier_wait(full + SHAPE.STAGES * 8, odd ^ 1)
            ptx.barrier_expect(full, LINES * BYTES)
            to = ring + stage * (LINES * BYTES)
            k_a, k_b = unit.first + step, unit.first + step
            if SHAPE.PRODUCTS > 1:
                k_a, k_b = place_in_planes(step, unit.steps, SHAPE)
            k_a, k_b = k_a * SHAPE.BLOCK_K, k_b * SHAPE.BLOCK_K
            for line in gl.static_range(LINES):
                # Sharers take turns, a step each: that is one request; loading a share of each
                # tile would take one from each of them.
                if (n + step) % OF_A == rank % OF_A:
                    load_lines(
                        to, full, row, k_a + line * LINE, a0, a1, SHAPE.BLOCK_M, A_ALONG_K, OF_A,
                        MAP_A, SHAPE.BATCHED,
                    )  # fmt: skip
                if (n + step) % OF_B == rank % OF_B:
                    load_lines(
                        to + SHAPE.BLOCK_M * 128, full, col, k_b + line * LINE, b0, b1,
                        SHAPE.BLOCK_N, B_ALONG_K, OF_B, MAP_B, SHAPE.BATCHED,
                    )  # fmt: skip
                to += BYTES
            if SHAPE.SUMS == "block":
                self.scale_ring.load(unit, step, stage)
                ptx.barrier_arrive_copied(full)
            stage, odd = next_place(stage, odd, SHAPE.STAGES)
        return n + unit.steps

    @gluon.jit
    def consumer(self, WHICH: gl.constexpr):
        """Consumer `WHICH` of the ring. In a program of 4 warps each has a whole tile."""
        SHAPE: gl.constexpr = self.SHAPE
        SLABS: gl.constexpr = slabs_of(SHAPE.BLOCK_M, SHAPE.WARPS)
        SLAB: gl.constexpr = WHICH * SLABS if SHAPE.WARPS > 4 else 0
        ring = shared_memory()
        full = self.full()
        first_warp = ptx.is_first_warp()
        a = matrix_descriptor(ring + SLAB * 8192, 16)
        b = matrix_descriptor(ring + SHAPE.BLOCK_M * 128, 16 if SHAPE.B_MAJOR == "T" else 8192)
        return Consumer(self, self.scale_ring, full, first_warp, a, b, SLAB, SLABS)


@aggregate
class Consumer:
    """A consumer of the ring: WGMMA's descriptors of its slabs, and of B's tile, in stage 0."""

    loop: ClusterMainloop
    scale_ring: Value
    full: Value
    first_warp: Value
    a: Value
    b: Value
    SLAB: gl.constexpr
    SLABS: gl.constexpr

    @gluon.jit
    def multiply(self, n, steps, SLAB: gl.constexpr = 0):
        """The accumulator of its slabs of a unit, from step `n` on; whatever the argument `SLAB`.

        A unit has at least one step, which overwrites what the registers hold.
        The last step is still in flight: `multiply_tail` waits for it.
        """
        SHAPE: gl.constexpr = self.loop.SHAPE
        LINES: gl.constexpr = SHAPE.BLOCK_K // line_of(SHAPE)
        stage, odd = place(n, SHAPE.STAGES)
        acc = self.multiply_step((), stage, odd)
        for _ in range(1, steps):
            before = stage
            stage, odd = next_place(stage, odd, SHAPE.STAGES)
            acc = wgmma_wait(self.multiply_step(acc, stage, odd), LINES)
            # This step's WGMMA may still read its stage; that of the step before has finished.
            self.release(before)
        return acc

    @gluon.jit
    def multiply_step(self, acc, stage, odd):
        """Issue the WGMMA of the step in `stage`, adding to `acc`, or starting it if empty."""
        SHAPE: gl.constexpr = self.loop.SHAPE
        LINES: gl.constexpr = SHAPE.BLOCK_K // line_of(SHAPE)
        BYTES: gl.constexpr = line_bytes(SHAPE.BLOCK_M, SHAPE.BLOCK_N, SHAPE.B_MAJOR)
        self.begin(stage, odd)
        for line in gl.static_range(LINES):
            at = (stage * LINES + line) * (BYTES // 16)
            acc = wgmma(
                acc, self.a + at, self.b + at, SHAPE.BLOCK_N, self.SLABS, SHAPE.TYPE,
                SHAPE.A_MAJOR, SHAPE.B_MAJOR,
            )  # fmt: skip
        return acc

    @gluon.jit
    def zeros(self):
        """The accumulator of a slab."""
        UNIT: gl.constexpr = unit_of(self.loop.SHAPE.BLOCK_N)
        acc = ()
        for _ in gl.static_range(self.loop.SHAPE.BLOCK_N // UNIT):
            acc += (gl.zeros((64, UNIT), acc_type(self.loop.SHAPE.TYPE), mma_layout(UNIT, 4)),)
        return acc

    @gluon.jit
    def begin(self, stage, odd):
        """Wait until the bytes of `stage` have arrived."""
        ptx.barrier_wait(self.full + stage * 8, odd)

    @gluon.jit
    def start(self, stage, SLAB: gl.constexpr, COLUMN: gl.constexpr, MOST: gl.constexpr):
        """Issue WGMMA for up to `MOST` columns of a slab of `stage`, for sums of that alone."""
        SHAPE: gl.constexpr = self.loop.SHAPE
        COLUMNS: gl.constexpr = min(MOST, SHAPE.BLOCK_N - COLUMN)
        at = stage * (line_bytes(SHAPE.BLOCK_M, SHAPE.BLOCK_N, SHAPE.B_MAJOR) // 16)
        a = self.a + at + (SLAB - self.SLAB) * (8192 // 16)
        b = self.b + at + COLUMN * (128 // 16)
        return wgmma((), a, b, COLUMNS, 1, SHAPE.TYPE, SHAPE.A_MAJOR, SHAPE.B_MAJOR)

    @gluon.jit
    def finish(self, part):
        """Those sums, complete."""
        return wgmma_wait(part, 0)

    @gluon.jit
    def multiply_tail(self, acc, n, steps):
        """The accumulator of `multiply`, complete, and the next unit's first step."""
        acc = wgmma_wait(acc, 0)
        n += steps
        self.release((n - 1) % self.loop.SHAPE.STAGES)
        return acc, n

    @gluon.jit
    def release(self, stage):
        """Free a stage in all programs of the cluster."""
        SHAPE: gl.constexpr = self.loop.SHAPE
        empty = self.full + (SHAPE.STAGES + stage) * 8
        # If warps have read scales too, each arrives for itself.
        mine = gl.to_tensor(True) if SHAPE.SUMS == "block" else self.first_warp
        ptx.barrier_arrive(empty, mine, SHAPE.CLUSTER)


@gluon.jit
def make_cluster_mainloop(
    a_desc, b_desc, KERNEL: gl.constexpr, SHAPE: gl.constexpr, MORE: gl.constexpr = 0, scales=0
):
    """The mainloop with its memory and barriers, `MORE` of them after those of the stages."""
    ring = allocate(SHAPE.RING + BARRIERS)
    ARRIVALS: gl.constexpr = SHAPE.CLUSTER * (SHAPE.WARPS // (1 if SHAPE.SUMS == "block" else 4))
    ptx.barrier_init(shared_memory() + SHAPE.RING, SHAPE.STAGES, ARRIVALS, MORE, loaders_of(SHAPE))
    return ClusterMainloop(ring, a_desc, b_desc, scales, KERNEL, SHAPE)


@gluon.jit
def load_in_cluster(work, loop):
    """The producer of a cluster's program, which takes turns to load what the cluster shares."""
    unit = work.unit(work.first())
    ptx.cluster_sync()  # the others' barriers are there
    load_from(work, loop, unit)
    ptx.cluster_sync()  # what others write or arrive at is still there


@gluon.jit
def idle(SYNCS: gl.constexpr):
    """Warps that fill up the producer's warpgroup: a cluster syncs with all its threads."""
    for _ in gl.static_range(SYNCS):
        ptx.cluster_sync()


@gluon.jit
def run_in_cluster(
    compute: gl.constexpr, producer: gl.constexpr, args, SYNCS: gl.constexpr = 2
):  # fmt: skip
    """`run_roles` for threads that each sync `SYNCS` times with those of the cluster."""
    specialize(
        compute, producer, args, ((idle, (SYNCS,)), (idle, (SYNCS,))), workers(args[0].SHAPE, True)
    )
    keep(args[1].ring)
