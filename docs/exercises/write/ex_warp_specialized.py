"""Why does the ring hang?

The kernel adds up the tiles of a tall matrix. One warp, the producer, runs `load`: TMA copies the
tile of each step into a stage of the ring. The other warps, the consumer, run `add`. When a copy
arrives, it completes a phase of its stage's `full` barrier; when the consumer arrives at the
stage's `empty` barrier, it completes a phase of that. A barrier starts with no phase complete. A
wait for parity 0 passes while the number of complete phases is odd, and a wait for parity 1 passes
while it is even. As given, the kernel hangs. Repair it, and then repair what the hang was hiding:
the consumer must not read a stage before its tile arrives, and the producer must not overwrite a
stage before it has been read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from tritemm.kernels.device.language import async_load
from tritemm.kernels.device.mainloop import make_barriers

from .roles import play


@gluon.jit
def load(desc, memory, full, empty, steps, STAGES: gl.constexpr):
    """The producer: brings one tile after another to the ring."""
    for n in range(steps):
        stage = n % STAGES
        # --- your part: wait until the stage may be filled
        mbarrier.wait(empty.index(stage), (n // STAGES + 1) % 2)
        # --- to start from
        #| mbarrier.wait(empty.index(stage), n // STAGES % 2)
        # --- end
        mbarrier.expect(full.index(stage), desc.block_type.nbytes)
        async_load(desc, [n * desc.block_type.shape[0], 0], full.index(stage), memory.index(stage))


@gluon.jit
def add(c_ptr, memory, full, empty, steps, STAGES: gl.constexpr):
    """The consumer: adds the tiles, and stores the sums."""
    ROWS: gl.constexpr = memory.shape[1]
    COLUMNS: gl.constexpr = memory.shape[2]
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [gl.num_warps(), 1], [1, 0])
    acc = gl.zeros((ROWS, COLUMNS), gl.float32, layout)
    for n in range(steps):
        stage = n % STAGES
        # --- your part: wait for the tile, read it, and give the stage back
        mbarrier.wait(full.index(stage), n // STAGES % 2)
        acc += memory.index(stage).load(layout)
        fence_async_shared()  # reads come before what TMA writes
        mbarrier.arrive(empty.index(stage))
        # --- to start from
        #| mbarrier.wait(full.index(stage), n % 2)
        #| mbarrier.arrive(empty.index(stage))
        #| acc += memory.index(stage).load(layout)
        #| fence_async_shared()  # reads come before what TMA writes
        # --- end
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    gl.store(c_ptr + rows[:, None] * COLUMNS + columns[None, :], acc)


@gluon.jit
def warp_specialized_kernel(desc, c_ptr, steps, STAGES: gl.constexpr):
    shape: gl.constexpr = desc.block_type.shape
    memory = gl.allocate_shared_memory(desc.dtype, [STAGES, shape[0], shape[1]], desc.layout)
    full, empty = make_barriers(STAGES), make_barriers(STAGES)
    consumer = (c_ptr, memory, full, empty, steps, STAGES)
    producer = (desc, memory, full, empty, steps, STAGES)
    gl.warp_specialize([(add, consumer), (load, producer)], [1], [24])


# --- the check
HINT = """
At first every stage is empty, but no phase of `empty` is complete. Which parity lets the producer
pass then? A stage returns every STAGES steps, so step n belongs to round n // STAGES of the ring.
The parity changes from one round to the next, not from one step to the next. As soon as the
consumer arrives at `empty`, the producer may fill the stage again.
"""
#: Stages, and steps.
RINGS = ((2, 7), (3, 11), (1, 3))


def check(module):
    for stages, steps in RINGS:
        play(module, stages, steps)
