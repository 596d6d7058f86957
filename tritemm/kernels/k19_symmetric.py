"""symmetric: half of the tiles of a symmetric C, each stored with its mirror image.

Adds to       pipelined: a triangular tile space; a tile below the diagonal is stored twice
Mirrors       nothing; CUDA would need the same index arithmetic
Compiler does what it does for pipelined; it transposes the mirrored tile in shared memory
Signs         sm_80: HMMA, LDSM, LDGSTS, LDGDEPBAR; sm_90: HGMMA, LDGSTS, LDGDEPBAR
Needs         sm_80; any strides; every type
Note          warp_specialized, split_k, cluster, cluster_pingpong and cluster_split_k support this
              tile space too. If C isn't symmetric, all its tiles are computed.
"""

import triton
import triton.language as tl

from ..arch.pointers import POINTERS, Dot, needs, tiles_in_flight
from ..spec import Config, CostHint, Limits, Policy, TritonKernel
from .device.raster import raster, split_batch, triangular
from .device.tile import (
    EpilogueArgs,
    Strides,
    apply_epilogue,
    batch_offset,
    dot,
    store,
    store_mirrored,
    widen,
)


@triton.jit
def symmetric_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, stride_am, stride_ak,
    stride_b0, stride_b1, stride_bk, stride_bn,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, ORDER: tl.constexpr, GROUP_M: tl.constexpr, TRIANGULAR: tl.constexpr,
    BATCHED: tl.constexpr, WIDE: tl.constexpr, EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    M, N, K = widen(M, WIDE), widen(N, WIDE), widen(K, WIDE)
    pid, b0, b1 = split_batch(tl.program_id(0), M, N, B1, BLOCK_M, BLOCK_N, BATCHED, TRIANGULAR)
    if TRIANGULAR:
        pid_m, pid_n = triangular(pid, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
    else:
        pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
    a_ptr += batch_offset(b0, b1, stride_a0, stride_a1)
    b_ptr += batch_offset(b0, b1, stride_b0, stride_b1)
    c_ptr += batch_offset(b0, b1, stride_c0, stride_c1)

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = widen(tl.arange(0, BLOCK_K), WIDE)
    # Rows past the edge wrap to valid ones; the store masks what they yield.
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn
    tl.assume(K > 0)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            a = tl.load(a_ptrs)  # [BLOCK_M, BLOCK_K]
            b = tl.load(b_ptrs)  # [BLOCK_K, BLOCK_N]
        else:
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0)
        acc = dot(a, b, acc, PRECISION)
        a_ptrs += BLOCK_K * widen(stride_ak, WIDE)
        b_ptrs += BLOCK_K * widen(stride_bk, WIDE)

    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    acc = apply_epilogue(acc, epilogue, b0, b1, offs_m, offs_n, M, N, BIAS, ACTIVATION)
    if TRIANGULAR:
        store_mirrored(c_ptr, acc, offs_m, offs_n, N, stride_cm, stride_cn)
    else:
        store(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=symmetric_kernel, arguments=POINTERS,
    interpreted=Config(32, 32, 32, num_stages=3, ORDER="grouped"), cost=CostHint(0.85, narrow=10.0),
    limits=Limits(tiles_in_flight, needs=needs(tiles_in_flight), tile=Dot, symmetric=True),
    policy=Policy(branch="symmetric results", suits=lambda problem: problem.epilogue.symmetric),
)  # fmt: skip
