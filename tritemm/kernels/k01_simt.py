"""simt: no tensor core, one output element per thread.

Adds to       nothing; the floor of the ladder
Mirrors       simt_naive
Compiler does spreads the 16 x 16 tile over 256 threads; CUDA indexes threadIdx by hand
Signs         sm_80: FFMA, no HMMA, no HGMMA; sm_90: FFMA, no HMMA, no HGMMA
Needs         sm_80; any strides; every type
Note          NT is five times slower than NN: 16 threads read 16 rows of B, not 32 bytes of one.
"""

import triton
import triton.language as tl

from ..arch.limits import PLAIN_ONLY, launchable
from ..arch.pointers import POINTERS, Threads
from ..spec import Config, CostHint, Limits, Policy, TritonKernel
from .device.raster import split_batch
from .device.tile import batch_offset, store, widen


@triton.jit
def simt_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, stride_am, stride_ak,
    stride_b0, stride_b1, stride_bk, stride_bn,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BATCHED: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    M, N, K = widen(M, WIDE), widen(N, WIDE), widen(K, WIDE)
    pid, b0, b1 = split_batch(tl.program_id(0), M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
    a_ptr += batch_offset(b0, b1, stride_a0, stride_a1)
    b_ptr += batch_offset(b0, b1, stride_b0, stride_b1)
    c_ptr += batch_offset(b0, b1, stride_c0, stride_c1)
    pid_m = pid // tl.cdiv(N, BLOCK_N)
    pid_n = pid % tl.cdiv(N, BLOCK_N)

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am  # [BLOCK_M, 1]
    b_ptrs = b_ptr + (offs_n % N)[None, :] * stride_bn  # [1, BLOCK_N]

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for _ in range(0, K):
        acc += tl.load(a_ptrs).to(ACC) * tl.load(b_ptrs).to(ACC)
        a_ptrs += widen(stride_ak, WIDE)
        b_ptrs += widen(stride_bk, WIDE)

    store(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


def configs(problem):
    return (Config(16, 16, 1, num_warps=8),)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=simt_kernel, arguments=POINTERS,
    interpreted=Config(64, 64, 1),
    limits=Limits(configs, needs=(PLAIN_ONLY, launchable(configs)), tile=Threads),
    policy=Policy(auto=False), cost=CostHint(0.002),
)  # fmt: skip
