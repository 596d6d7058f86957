"""grouped: products whose rows, or whose K, are cut by a tensor on the device.

Adds to       pipelined: a tile space of groups; each program counts to find its tile's group
Mirrors       mma_async_grouped
Compiler does what it does for pipelined
Signs         sm_80: HMMA, LDSM, LDGSTS, LDGDEPBAR; sm_90: HGMMA, LDGSTS, LDGDEPBAR
Needs         sm_80; any strides; every type; any number of groups
Note          warp_specialized and pingpong support this tile space too. For a dense product, the
              batches are the groups.
"""

import triton
import triton.language as tl

from ..arch.pointers import POINTERS, Dot, needs, tiles_in_flight
from ..spec import Config, CostHint, Limits, Policy, TritonKernel
from .device.raster import bounds, group_of, raster, split_batch
from .device.tile import EpilogueArgs, Strides, apply_epilogue, batch_offset, dot, store, widen


@triton.jit(do_not_specialize=["offs_ptr"])
def grouped_kernel(
    a_ptr, b_ptr, c_ptr, offs_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, stride_am, stride_ak,
    stride_b0, stride_b1, stride_bk, stride_bn,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, ORDER: tl.constexpr, GROUP_M: tl.constexpr, GROUPS: tl.constexpr,
    BATCHED: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    M, N, K = widen(M, WIDE), widen(N, WIDE), widen(K, WIDE)
    first_k, last_k, b0 = 0, K, 0
    first_row, last_row, columns = 0, M, N
    if GROUPS == "m":
        slots = M // BLOCK_M + B1 + 1
        slot, pid_n = raster(tl.program_id(0), slots, N, 1, BLOCK_N, ORDER, GROUP_M)
        group, before = group_of(slot, offs_ptr, B1, M, BLOCK_M)
        first_row, last_row = bounds(offs_ptr, group, B1, M)
        pid_m = tl.maximum(slot - before, 0)
        nothing = (group == B1) | (first_row + pid_m * BLOCK_M >= last_row)  # the rest, or a gap
        last_k = tl.where(nothing, 0, K)
        columns = tl.where(nothing, 0, N)  # of the bias
        group = tl.minimum(group, B1 - 1)
    else:
        pid, b0, group = split_batch(tl.program_id(0), M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
        pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
        if GROUPS == "k":
            first_k, last_k = bounds(offs_ptr, group, B1, K)
    a_ptr += batch_offset(b0, group, stride_a0, stride_a1)
    b_ptr += batch_offset(b0, group, stride_b0, stride_b1)
    c_ptr += batch_offset(b0, group, stride_c0, stride_c1)

    offs_m = widen(first_row + pid_m * BLOCK_M, WIDE) + tl.arange(0, BLOCK_M)
    offs_n = widen(pid_n * BLOCK_N, WIDE) + tl.arange(0, BLOCK_N)
    offs_k = widen(tl.arange(0, BLOCK_K), WIDE) + first_k
    # Rows past the edge wrap to valid ones; the store masks what they yield.
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn
    steps = tl.maximum(tl.cdiv(last_k - first_k, BLOCK_K), 1)
    tl.assume(steps > 0)  # else ptxas may serialise WGMMA, in case there is no step
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in tl.range(0, steps, num_stages=STAGES):
        inside = tl.arange(0, BLOCK_K) < last_k - first_k - step * BLOCK_K
        a = tl.load(a_ptrs, mask=inside[None, :], other=0)  # [BLOCK_M, BLOCK_K]
        b = tl.load(b_ptrs, mask=inside[:, None], other=0)  # [BLOCK_K, BLOCK_N]
        acc = dot(a, b, acc, PRECISION)
        a_ptrs += BLOCK_K * widen(stride_ak, WIDE)
        b_ptrs += BLOCK_K * widen(stride_bk, WIDE)

    if GROUPS != "" and bias_ptr is not None:
        bias_ptr += batch_offset(0, group, 0, M if BIAS == "m" else N)
    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    acc = apply_epilogue(acc, epilogue, b0, group, offs_m, offs_n, M, columns, BIAS, ACTIVATION)
    store(c_ptr, acc, offs_m, offs_n, last_row, N, stride_cm, stride_cn)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=grouped_kernel, arguments=POINTERS,
    interpreted=Config(32, 32, 32, num_stages=3, ORDER="grouped"), cost=CostHint(0.8, narrow=10.0),
    limits=Limits(tiles_in_flight, needs=needs(tiles_in_flight), tile=Dot, groups="mk"),
    policy=Policy(branch="groups", suits=lambda problem: bool(problem.groups)),
)  # fmt: skip
