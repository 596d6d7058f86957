"""permuted: a shared-memory layout chosen by hand: plain, padded or permuted.

Adds to       swizzled: tiles in shared memory that the kernel allocates, lays out, fills and reads
Mirrors       wmma_base, mma_base (plain), wmma_padding (padded), mma_permuted (permuted)
Compiler does the addresses in a layout, ldmatrix, barriers
Signs         sm_80: HMMA, no LDGSTS; sm_90: HMMA, no LDGSTS, no HGMMA
Needs         sm_80; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          LDSM reads plain and permuted tiles, LDS padded ones: Triton uses ldmatrix only for
              swizzled layouts.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..arch.mma_sync import ARGUMENTS, NEEDS, ChunkTile, classic_config
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device import mma_sync as mma
from .device.raster import raster, split_batch
from .device.tile import widen


@gluon.jit
def permuted_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, pitch_a,
    stride_b0, stride_b1, pitch_b,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    SHARED: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr,
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
    a_memory = mma.tile_memory(a_ptr, SHARED, 1, BLOCK_M, BLOCK_K, A_SIDE)
    b_memory = mma.tile_memory(b_ptr, SHARED, 1, BLOCK_N, BLOCK_K, B_SIDE)
    acc = mma.zeros(BLOCK_M, BLOCK_N, ACC)
    for left in range(K, 0, -BLOCK_K):
        a_memory.index(0).store(mma.load_tile(a_ptrs, left, A_SIDE, EVEN_K))
        b_memory.index(0).store(mma.load_tile(b_ptrs, left, B_SIDE, EVEN_K))
        a_ptrs = mma.next_step(a_ptrs, pitch_a, A_SIDE)
        b_ptrs = mma.next_step(b_ptrs, pitch_b, B_SIDE)
        acc = mma.multiply(a_memory.index(0), b_memory.index(0), acc)
        mma.barrier()  # all have read the tiles

    mma.store_tile(c_ptr, acc, row, col, M, N, stride_cm, stride_cn, C_MAJOR, WIDE)


def configs(problem):
    return tuple(classic_config(problem, shared=kind) for kind in ("permuted", "padded", "plain"))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=permuted_kernel, arguments=ARGUMENTS, interpreted=None,
    limits=Limits(configs, needs=NEEDS, tile=ChunkTile),
    policy=Policy(auto=False), cost=CostHint(0.19, narrow=10.0),
)  # fmt: skip
