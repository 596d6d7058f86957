"""scaled: 8-bit operands with scales; products are promoted every 128 elements of K.

Adds to       grouped: partial sums over 128 elements of K, scaled and added in fp32
Mirrors       wgmma_fp8
Compiler does what it does for grouped
Signs         sm_80: HMMA, LDSM, LDGSTS, LDGDEPBAR; sm_90: HGMMA, LDGSTS, LDGDEPBAR
Needs         sm_80, for fp8 sm_89; any strides; every type
Note          Hopper's tensor cores keep 14 bits of an fp8 sum, so long sums lose what is added to
              them. The sign is QGMMA for fp8, IGMMA for int8. warp_specialized and cluster support
              these sums too; the other rungs with roles only sums over all of K.
"""

import triton
import triton.language as tl

from ..arch.pointers import POINTERS, needs
from ..arch.scaled import HAS_FP8, ScaledDot, scaled_tiles
from ..spec import Config, CostHint, Limits, Policy, TritonKernel
from .device.raster import bounds, group_of, raster, split_batch
from .device.scales import BLOCK, ScaleStrides, a_scale, b_scale
from .device.tile import EpilogueArgs, Strides, apply_epilogue, batch_offset, dot, store, widen


@triton.jit(do_not_specialize=["offs_ptr"])
def scaled_kernel(
    a_ptr, b_ptr, c_ptr, offs_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, stride_am, stride_ak,
    stride_b0, stride_b1, stride_bk, stride_bn,
    stride_c0, stride_c1, stride_cm, stride_cn,
    scale_a_ptr, scale_b_ptr,
    stride_sa1, stride_sal, stride_sak, stride_sb1, stride_sbl, stride_sbk,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, ORDER: tl.constexpr, GROUP_M: tl.constexpr, GROUPS: tl.constexpr,
    BATCHED: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
    BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    SUMS: tl.constexpr, A_LINES: tl.constexpr, B_LINES: tl.constexpr,
):  # fmt: skip
    M, N, K = widen(M, WIDE), widen(N, WIDE), widen(K, WIDE)
    first_k, last_k, b0 = 0, K, 0
    first_row, last_row, rows, columns = 0, M, M, N
    if GROUPS == "m":
        slots = M // BLOCK_M + B1 + 1
        slot, pid_n = raster(tl.program_id(0), slots, N, 1, BLOCK_N, ORDER, GROUP_M)
        group, before = group_of(slot, offs_ptr, B1, M, BLOCK_M)
        first_row, last_row = bounds(offs_ptr, group, B1, M)
        pid_m = tl.maximum(slot - before, 0)
        nothing = (group == B1) | (first_row + pid_m * BLOCK_M >= last_row)  # the rest, or a gap
        last_k = tl.where(nothing, 0, K)
        rows, columns = tl.where(nothing, 0, M), tl.where(nothing, 0, N)  # of scales, and the bias
        group = tl.minimum(group, B1 - 1)
    else:
        pid, b0, group = split_batch(tl.program_id(0), M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
        pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
        if GROUPS == "k":
            first_k, last_k = bounds(offs_ptr, group, B1, K)
    base_k, of_rows, of_columns = first_k, rows, columns
    if GROUPS == "k":
        base_k = first_k // BLOCK_K * BLOCK_K  # of the block in which the group begins
        # A group of no terms may begin where K ends, and so do the scales.
        of_rows = tl.where(first_k < last_k, rows, 0)
        of_columns = tl.where(first_k < last_k, columns, 0)
    a_ptr += batch_offset(b0, group, stride_a0, stride_a1)
    b_ptr += batch_offset(b0, group, stride_b0, stride_b1)
    c_ptr += batch_offset(b0, group, stride_c0, stride_c1)

    offs_m = widen(first_row + pid_m * BLOCK_M, WIDE) + tl.arange(0, BLOCK_M)
    offs_n = widen(pid_n * BLOCK_N, WIDE) + tl.arange(0, BLOCK_N)
    offs_k = widen(tl.arange(0, BLOCK_K), WIDE) + base_k
    # Rows past the edge wrap to valid ones; the store masks what they yield.
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn
    sa_strides = ScaleStrides(stride_sa1, stride_sal, stride_sak)
    sb_strides = ScaleStrides(stride_sb1, stride_sbl, stride_sbk)
    if GROUPS != "" and bias_ptr is not None:
        bias_ptr += batch_offset(0, group, 0, M if BIAS == "m" else N)
    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    args = EpilogueArgs(
        bias_ptr, residual_ptr, alpha, beta, r_strides,
        scale_a_ptr, scale_b_ptr, sa_strides, sb_strides,
    )  # fmt: skip
    steps = tl.maximum(tl.cdiv(last_k - base_k, BLOCK_K), 1)
    tl.assume(steps > 0)  # else ptxas may serialise WGMMA, in case there is no step
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC)
    for step in tl.range(0, steps, num_stages=STAGES):
        k = tl.arange(0, BLOCK_K) + step * BLOCK_K
        inside = k < (K if GROUPS == "k" else last_k) - base_k
        a = tl.load(a_ptrs, mask=inside[None, :], other=0.0)  # [BLOCK_M, BLOCK_K]
        b = tl.load(b_ptrs, mask=inside[:, None], other=0.0)  # [BLOCK_K, BLOCK_N]
        if GROUPS == "k":  # loads are wide: what is of other groups becomes 0 in registers
            inside = (k >= first_k - base_k) & (k < last_k - base_k)
            a = tl.where(inside[None, :], a, tl.zeros((1, 1), a.dtype))
            b = tl.where(inside[:, None], b, tl.zeros((1, 1), b.dtype))
        if SUMS == "whole":
            acc = dot(a, b, acc, PRECISION)
        else:
            partial = dot(a, b, tl.zeros((BLOCK_M, BLOCK_N), dtype=ACC), PRECISION)
            if SUMS == "block":
                block = base_k // BLOCK + step
                of_a = a_scale(args, group, offs_m, of_rows, block, A_LINES)
                partial *= of_a * b_scale(args, group, offs_n, of_columns, block, B_LINES)
            acc += partial
        a_ptrs += BLOCK_K * widen(stride_ak, WIDE)
        b_ptrs += BLOCK_K * widen(stride_bk, WIDE)

    if SUMS == "block":  # which the accumulator has been multiplied by
        args = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    acc = apply_epilogue(
        acc, args, b0, group, offs_m, offs_n, rows, columns, BIAS, ACTIVATION, A_LINES, B_LINES
    )
    store(c_ptr, acc, offs_m, offs_n, last_row, N, stride_cm, stride_cn)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=scaled_kernel, arguments=POINTERS,
    interpreted=Config(32, 32, 128, num_stages=3, ORDER="grouped"),
    cost=CostHint(0.25, narrow=10.0),
    limits=Limits(
        scaled_tiles, needs=(HAS_FP8, *needs(scaled_tiles)), tile=ScaledDot, groups="mk",
        sums=("whole", "promoted", "block"),
    ),
    policy=Policy(branch="scales", suits=lambda problem: problem.scales is not None),
)  # fmt: skip
