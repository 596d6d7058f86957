"""async_stages: a ring of two, three or four buffers, registers loaded ahead across steps.

Adds to       async_pg2s_ps2r: copies of several steps in flight; a step's first fragments are
              loaded while the previous step's last ones are being multiplied
Mirrors       wmma_async_stage2, _stage3; mma_async_stage2, _stage3, _stage4
Compiler does the addresses in a layout, ldmatrix, barriers
Signs         sm_80: HMMA, LDSM, LDGSTS; sm_90: HMMA, LDSM, LDGSTS, no HGMMA
Needs         sm_80; 16-bit operands with 16-byte aligned rows or columns; Gluon
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..arch.mma_sync import ARGUMENTS, NEEDS, Stages, classic_config
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device import mma_sync as mma
from .device.raster import raster, split_batch
from .device.tile import widen


@gluon.jit
def async_stages_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, pitch_a,
    stride_b0, stride_b1, pitch_b,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, EVEN_K: gl.constexpr, ACC: gl.constexpr,
    A_SIDE: gl.constexpr, B_SIDE: gl.constexpr, C_MAJOR: gl.constexpr,
):  # fmt: skip
    M, N, K = widen(M, WIDE), widen(N, WIDE), widen(K, WIDE)
    pid, b0, b1 = split_batch(gl.program_id(0), M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
    a_ptr = mma.batch_ptr(a_ptr, b0, b1, stride_a0, stride_a1, A_SIDE)
    b_ptr = mma.batch_ptr(b_ptr, b0, b1, stride_b0, stride_b1, B_SIDE)
    c_ptr = mma.batch_ptr(c_ptr, b0, b1, stride_c0, stride_c1, C_MAJOR)
    pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
    row, col = pid_m * BLOCK_M, pid_n * BLOCK_N

    a_ptrs = mma.tile_ptrs(a_ptr, row, M, pitch_a, BLOCK_M, BLOCK_K, A_SIDE)  # [BLOCK_M, BLOCK_K]
    b_ptrs = mma.tile_ptrs(b_ptr, col, N, pitch_b, BLOCK_N, BLOCK_K, B_SIDE)  # [BLOCK_N, BLOCK_K]
    a_ring = mma.tile_ring(a_ptr, STAGES, BLOCK_M, BLOCK_K, A_SIDE)
    b_ring = mma.tile_ring(b_ptr, STAGES, BLOCK_N, BLOCK_K, B_SIDE)
    acc = mma.zeros(BLOCK_M, BLOCK_N, ACC)
    HALF: gl.constexpr = BLOCK_K // 2
    ahead = K  # what is left of K for the next copies
    for stage in gl.static_range(STAGES - 1):
        mma.copy_tile(a_ring[stage], a_ptrs, ahead, A_SIDE, EVEN_K)
        mma.copy_tile(b_ring[stage], b_ptrs, ahead, B_SIDE, EVEN_K)
        mma.cp_async_commit()
        a_ptrs = mma.next_step(a_ptrs, pitch_a, A_SIDE)
        b_ptrs = mma.next_step(b_ptrs, pitch_b, B_SIDE)
        ahead -= BLOCK_K
    mma.cp_async_wait(STAGES - 2)
    first_a, first_b = mma.fragments(a_ring[0], b_ring[0], 0, HALF)
    # A round of the ring at a time: with constant indices, Gluon sees that no buffer is filled and
    # read at once. Those below 0 count from the end. Steps past K multiply zeros.
    for _ in range(0, K, STAGES * BLOCK_K):
        for stage in gl.static_range(STAGES):
            last_a, last_b = mma.fragments(a_ring[stage], b_ring[stage], HALF, HALF)
            acc = mma.mma_v2(first_a, first_b, acc)
            mma.copy_tile(a_ring[stage - 1], a_ptrs, ahead, A_SIDE, EVEN_K)
            mma.copy_tile(b_ring[stage - 1], b_ptrs, ahead, B_SIDE, EVEN_K)
            mma.cp_async_commit()
            a_ptrs = mma.next_step(a_ptrs, pitch_a, A_SIDE)
            b_ptrs = mma.next_step(b_ptrs, pitch_b, B_SIDE)
            ahead -= BLOCK_K
            mma.cp_async_wait(STAGES - 2)
            first_a, first_b = mma.fragments(
                a_ring[stage + 1 - STAGES], b_ring[stage + 1 - STAGES], 0, HALF
            )
            acc = mma.mma_v2(last_a, last_b, acc)
    mma.cp_async_wait(0)

    mma.store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn, C_MAJOR, WIDE)


def configs(problem):
    # Where A lies along M, addresses and accumulators leave no registers for a fourth.
    depths = (3, 2) if problem.a.layout == "T" else (4, 3, 2)
    return tuple(classic_config(problem, stages, single=64) for stages in depths)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=async_stages_kernel, arguments=ARGUMENTS, interpreted=None,
    limits=Limits(configs, needs=NEEDS, tile=Stages),
    policy=Policy(auto=False), cost=CostHint(0.43, narrow=10.0),
)  # fmt: skip
