"""In which order does the loop copy, wait and multiply?

In this exercise, as in CUDA, only the barriers that you write count. The rung's own loop contains
none, because Gluon's compiler adds a barrier where it finds that one is missing; the check would
refuse that loop. Yours needs at least one barrier in each step.

The kernel has two buffers in shared memory for tiles of A and two for tiles of B. While it
multiplies one step of K, `cp.async` fills the other buffers with the next step. `cp_async_commit`
puts the copies that a thread has issued since the last commit into a group, and `cp_async_wait(n)`
waits until all but the n newest groups of that thread have arrived. `barrier` makes all threads of
the program wait for each other. As given, the loop reads a tile that may not have arrived, and
overwrites a tile that another thread may still be reading. Repair it, and keep the copies of the
next step in flight while the current step is multiplied.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritemm.kernels.device import mma_sync as mma

from .machine import play


@gluon.jit
def async_pg2s_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    pitch_a, pitch_b, stride_cm,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """A is M x K and B is N x K, both by rows of whole chunks, as "K" says."""
    row, col = gl.program_id(0) * BLOCK_M, gl.program_id(1) * BLOCK_N
    a_ptrs = mma.tile_ptrs(a_ptr, row, M, pitch_a, BLOCK_M, BLOCK_K, "K")
    b_ptrs = mma.tile_ptrs(b_ptr, col, N, pitch_b, BLOCK_N, BLOCK_K, "K")
    a_memory = mma.tile_memory(a_ptr, "permuted", 2, BLOCK_M, BLOCK_K, "K")
    b_memory = mma.tile_memory(b_ptr, "permuted", 2, BLOCK_N, BLOCK_K, "K")
    acc = mma.zeros(BLOCK_M, BLOCK_N, gl.float32)
    mma.copy_tile(a_memory.index(0), a_ptrs, K, "K", False)
    mma.copy_tile(b_memory.index(0), b_ptrs, K, "K", False)
    mma.cp_async_commit()
    now = 0
    # `left` of K are left when a step is multiplied; what is past K is copied as zeros.
    for left in range(K, 0, -BLOCK_K):
        a_ptrs = mma.next_step(a_ptrs, pitch_a, "K")
        b_ptrs = mma.next_step(b_ptrs, pitch_b, "K")
        # --- your part: the order, the number in the wait, and barriers
        mma.cp_async_wait(0)
        mma.barrier()
        mma.copy_tile(a_memory.index(1 - now), a_ptrs, left - BLOCK_K, "K", False)
        mma.copy_tile(b_memory.index(1 - now), b_ptrs, left - BLOCK_K, "K", False)
        mma.cp_async_commit()
        acc = mma.multiply(a_memory.index(now), b_memory.index(now), acc)
        # --- to start from
        #| mma.copy_tile(a_memory.index(1 - now), a_ptrs, left - BLOCK_K, "K", False)
        #| mma.copy_tile(b_memory.index(1 - now), b_ptrs, left - BLOCK_K, "K", False)
        #| mma.cp_async_commit()
        #| mma.cp_async_wait(2)
        #| acc = mma.multiply(a_memory.index(now), b_memory.index(now), acc)
        # --- end
        now = 1 - now
    mma.cp_async_wait(0)
    mma.store_tile(c_ptr, acc, row, col, M, N, stride_cm, 1, "n", False)


# --- the check
HINT = """
Which groups are committed just before a step is multiplied, and which of them must have arrived? If
the copies of the next step are already committed, theirs is the newest group. A thread waits only
for its own copies, so a barrier must follow the wait. A second hazard needs a barrier too: all
threads must have read a buffer before new copies go into it. If the copies are issued after the
wait and its barrier, one barrier is enough for both.
"""
DEPTH, STEPS = 32, (1, 2, 3, 6)


def check(module):
    for steps in STEPS:
        play(module, "async_pg2s_kernel", DEPTH, steps)
