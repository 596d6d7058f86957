"""gemv: few rows, so memory is the limit; the wide operand is read once, at any alignment.

Adds to       no rung: a branch for few rows, without tensor core or TMA; split-K, and unaligned
              lines read as 8-byte words
Mirrors       nothing; no CUDA rung is made for few rows
Compiler does layouts with a line's words side by side in a warp; reductions across lanes and warps
Signs         sm_80: FFMA, no HMMA, no HGMMA; sm_90: FFMA, no HMMA, no HGMMA
Needs         sm_80; any strides; every type
Note          Correct for every M, but slow above about 8 rows. Accumulates fp16 in fp32.
"""

import triton
import triton.language as tl

from ..arch.gemv import ARGUMENTS, NEEDS, Words, configs, few_rows
from ..spec import Config, CostHint, Limits, Policy, TritonKernel
from .device.raster import split_batch
from .device.tile import EpilogueArgs, Strides, apply_epilogue, batch_offset, follow, store, widen
from .device.words import WORD, element_of, elements, interleaved, prefetch, words_of


@triton.jit
def sums_along_k(a_ptr, b_ptr, row, col, first, last, M, N, K,
                 stride_am, stride_ak, stride_bk, stride_bn,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 STAGES: tl.constexpr, A_WORDS: tl.constexpr, A_SKEW: tl.constexpr,
                 B_WORDS: tl.constexpr, B_SKEW: tl.constexpr, RAGGED: tl.constexpr,
                 SUM: tl.constexpr):  # fmt: skip
    """The tile [BLOCK_M, BLOCK_N] of sums over `first <= k < last`; lanes run along K."""
    dtype: tl.constexpr = a_ptr.dtype.element_ty
    per: tl.constexpr = WORD * 8 // dtype.primitive_bitwidth if B_WORDS else 1
    WORDS: tl.constexpr = BLOCK_K // per
    # Past the edge the last line is read again, and not stored.
    line = tl.minimum(col + tl.arange(0, BLOCK_N), N - 1)[:, None]  # [BLOCK_N, 1]

    acc = ()
    for _m in tl.static_range(BLOCK_M):
        acc += (tl.zeros((BLOCK_N, WORDS), dtype=SUM),)
    for step in range(first // per, tl.cdiv(last, per), WORDS * STAGES):
        # All loads of a step come before the first use.
        b, a = (), ()
        for s in tl.static_range(STAGES):
            word = step + s * WORDS + tl.arange(0, WORDS)[None, :]  # [1, WORDS]
            if B_WORDS:
                b += (words_of(b_ptr, line, word, K, stride_bn, word * per < last,
                               B_SKEW, RAGGED),)  # fmt: skip
            else:
                b += (elements(b_ptr, line, word, stride_bn, stride_bk, word < last),)
        for s in tl.static_range(STAGES):
            word = step + s * WORDS + tl.arange(0, WORDS)[None, :]
            for m in tl.static_range(BLOCK_M):
                m_line = tl.minimum(row + m, M - 1)
                if A_WORDS:
                    a += (words_of(a_ptr, m_line, word, K, stride_am, word * per < last,
                                   A_SKEW, RAGGED),)  # fmt: skip
                else:
                    for j in tl.static_range(per):
                        k = word * per + j
                        a += (elements(a_ptr, m_line, k, stride_am, stride_ak, k < last),)
        for s in tl.static_range(STAGES):
            total = ()
            for m in tl.static_range(BLOCK_M):
                terms = acc[m]
                for j in tl.static_range(per):
                    if A_WORDS:
                        factor = element_of(a[s * BLOCK_M + m], j, dtype, SUM)
                    else:
                        factor = a[(s * BLOCK_M + m) * per + j].to(SUM)
                    terms += factor * element_of(b[s], j, dtype, SUM)
                total += (terms,)
            acc = total

    sums = interleaved(acc, 0, 1, BLOCK_M).reshape(BLOCK_N, WORDS, BLOCK_M)
    return tl.sum(sums, 1).T


@triton.jit
def sums_along_n(a_ptr, b_ptr, row, col, first, last, M, N,
                 stride_am, stride_ak, stride_bk,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 STAGES: tl.constexpr, B_SKEW: tl.constexpr, SUM: tl.constexpr):  # fmt: skip
    """The tile [BLOCK_M, BLOCK_N] of sums over `first <= k < last`; lanes run along N."""
    dtype: tl.constexpr = a_ptr.dtype.element_ty
    per: tl.constexpr = WORD * 8 // dtype.primitive_bitwidth
    WORDS: tl.constexpr = BLOCK_N // per
    word = col // per + tl.arange(0, WORDS)[None, :]  # [1, WORDS]

    acc = ()
    for _jm in tl.static_range(per * BLOCK_M):
        acc += (tl.zeros((BLOCK_K, WORDS), dtype=SUM),)
    for step in range(first, last, BLOCK_K * STAGES):
        # All loads of B in a step come before the first use.
        b = ()
        for s in tl.static_range(STAGES):
            k = step + s * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]  # [BLOCK_K, 1]
            inside = (k < last) & (word * per < N)
            b += (words_of(b_ptr, k, word, N, stride_bk, inside, B_SKEW, False),)
        for s in tl.static_range(STAGES):
            k = step + s * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]
            a = ()
            for m in tl.static_range(BLOCK_M):
                m_line = tl.minimum(row + m, M - 1)
                a += (elements(a_ptr, m_line, k, stride_am, stride_ak, k < last).to(SUM),)
            total = ()
            for j in tl.static_range(per):
                for m in tl.static_range(BLOCK_M):
                    total += (acc[j * BLOCK_M + m] + a[m] * element_of(b[s], j, dtype, SUM),)
            acc = total

    sums = tl.sum(interleaved(acc, 0, 1, per * BLOCK_M), 0)
    return sums.reshape(BLOCK_N, BLOCK_M).T


# Nothing is specialised on the sizes: a kernel compiled for one shape serves its like.
_OPEN = ["M", "N", "K", "B1", *(f"stride_{axis}" for axis in (
    "a0", "a1", "am", "ak", "b0", "b1", "bk", "bn", "c0", "c1", "cm", "cn",
    "r0", "r1", "rm", "rn"))]  # fmt: skip


@triton.jit(do_not_specialize=_OPEN)
def gemv_kernel(
    a_ptr, b_ptr, c_ptr, partial_ptr, counter_ptr,
    M, N, K, B1,
    stride_a0, stride_a1, stride_am, stride_ak,
    stride_b0, stride_b1, stride_bk, stride_bn,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, SPLIT_K: tl.constexpr, PARTS: tl.constexpr,
    ALONG: tl.constexpr, A_WORDS: tl.constexpr, A_SKEW: tl.constexpr,
    B_SKEW: tl.constexpr, RAGGED: tl.constexpr, BATCHED: tl.constexpr, WIDE: tl.constexpr,
    ACC: tl.constexpr, PDL: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    SUM: tl.constexpr = tl.float32 if tl.float16 == ACC else ACC
    M, N, K = widen(M, WIDE), widen(N, WIDE), widen(K, WIDE)
    tiles = tl.num_programs(0) // SPLIT_K
    tile = tl.program_id(0) % tiles
    split = tl.program_id(0) // tiles
    pid, b0, b1 = split_batch(tile, M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
    a_ptr += batch_offset(b0, b1, stride_a0, stride_a1)
    b_ptr += batch_offset(b0, b1, stride_b0, stride_b1)
    c_ptr += batch_offset(b0, b1, stride_c0, stride_c1)
    row = pid // tl.cdiv(N, BLOCK_N) * BLOCK_M
    col = pid % tl.cdiv(N, BLOCK_N) * BLOCK_N

    step: tl.constexpr = BLOCK_K * STAGES
    span = tl.cdiv(tl.cdiv(K, step), SPLIT_K) * step
    first = split * span
    last = tl.minimum(first + span, K)
    prefetch(b_ptr, col, first, last, N, stride_bk, stride_bn, BLOCK_N, BLOCK_K, STAGES, ALONG, PDL)
    follow(PDL)
    if ALONG == "n":
        sums = sums_along_n(
            a_ptr, b_ptr, row, col, first, last, M, N, stride_am, stride_ak, stride_bk,
            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, B_SKEW, SUM,
        )  # fmt: skip
    else:
        sums = sums_along_k(
            a_ptr, b_ptr, row, col, first, last, M, N, K,
            stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
            A_WORDS, A_SKEW, ALONG == "k", B_SKEW, RAGGED, SUM,
        )  # fmt: skip

    # int64: M * N can pass 2**31 elements
    offs_m = (row + tl.arange(0, BLOCK_M)).to(tl.int64)
    offs_n = (col + tl.arange(0, BLOCK_N)).to(tl.int64)
    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    if SPLIT_K == 1:
        sums = apply_epilogue(sums, epilogue, b0, b1, offs_m, offs_n, M, N, BIAS, ACTIVATION)
        store(c_ptr, sums, offs_m, offs_n, M, N, stride_cm, stride_cn)
    else:
        # partial [tiles, SPLIT_K, BLOCK_M, BLOCK_N]
        partial_ptr += tl.cast(tile, tl.int64) * (SPLIT_K * BLOCK_M * BLOCK_N)
        inside = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        tl.store(partial_ptr + split * (BLOCK_M * BLOCK_N) + inside, sums)
        tl.debug_barrier()  # what the program has stored, the atomic's thread then releases
        if tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == SPLIT_K - 1:
            # The last program of a tile adds the partial sums, in their order along K.
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=SUM)
            for first_part in range(0, SPLIT_K, PARTS):
                parts = (first_part + tl.arange(0, PARTS))[:, None, None] * (BLOCK_M * BLOCK_N)
                # .cg: from L2, where the other programs' sums are
                total += tl.sum(
                    tl.load(partial_ptr + parts + inside[None, :, :], cache_modifier=".cg"), 0
                )
            total = apply_epilogue(total, epilogue, b0, b1, offs_m, offs_n, M, N, BIAS, ACTIVATION)
            store(c_ptr, total, offs_m, offs_n, M, N, stride_cm, stride_cn)
            tl.store(counter_ptr + tile, 0)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=gemv_kernel, arguments=ARGUMENTS,
    grid=lambda problem, config: config.units(problem), interpreted=Config(4, 128, 128),
    limits=Limits(configs, needs=NEEDS, tile=Words, in_order=False),
    policy=Policy(few_rows=few_rows, branch="few rows"),
    cost=CostHint(0.03, narrow=1.2, independent_ctas=True, gathering=0.3),
)  # fmt: skip
