"""persistent: one program per SM walks the tiles.

Adds to       tma: a loop over tiles; the next tile's loads are in flight during the epilogue
Mirrors       wgmma_persistent
Compiler does the fused loop nest and the ring that continues across tiles
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, no LDGSTS
Needs         sm_90; A and B with 16-byte aligned rows or columns; every type
Note          Gains more the shorter K is. On large squares the epilogue is a small part, and the
              output tile's own shared memory costs a stage (3 instead of 4).
"""

import triton
import triton.language as tl

from ..arch.descriptors import DESCRIPTORS, NEEDS, PersistentTile
from ..spec import Config, CostHint, Limits, Policy, TritonKernel
from .device.raster import raster, split_batch
from .device.tile import EpilogueArgs, Strides, dot, load_tile, store_tile


@triton.jit
def persistent_kernel(
    a_desc, b_desc, c_desc, c_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
    ORDER: tl.constexpr, GROUP_M: tl.constexpr, A_MAJOR: tl.constexpr, B_MAJOR: tl.constexpr,
    TMA_STORE: tl.constexpr, BATCHED: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
    ACC: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    c_strides = Strides(stride_c0, stride_c1, stride_cm, stride_cn)
    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    tl.assume(K > 0)
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N) * B0 * B1
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        pid, b0, b1 = split_batch(tile, M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
        pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)

        row = pid_m * BLOCK_M
        col = pid_n * BLOCK_N

        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
        for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            a = load_tile(a_desc, b0, b1, row, k, BLOCK_M, BLOCK_K, A_MAJOR, BATCHED)
            b = load_tile(b_desc, b0, b1, k, col, BLOCK_K, BLOCK_N, B_MAJOR, BATCHED)
            acc = dot(a, b, acc, PRECISION)

        store_tile(
            c_desc, c_ptr, acc, b0, b1, row, col, M, N, c_strides, epilogue, BIAS, ACTIVATION,
            TMA_STORE, BATCHED, WIDE,
        )  # fmt: skip


def grid(problem, config):
    return min(problem.device.sms, config.tiles(problem))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=persistent_kernel, arguments=DESCRIPTORS, grid=grid,
    interpreted=Config(32, 32, 32, ORDER="grouped"),
    limits=Limits(PersistentTile.configs, needs=NEEDS, tile=PersistentTile),
    # FFMA is faster where an SM has several programs.
    policy=Policy(suits=lambda problem: not problem.by_ffma),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.3),
)  # fmt: skip
