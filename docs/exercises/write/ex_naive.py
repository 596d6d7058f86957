"""How does the loop over K end?

The kernel walks along K in steps of BLOCK_K. As given, the loop skips the elements that remain when
K is not a multiple of BLOCK_K. `tl.dot` multiplies whole blocks only, so the last step needs whole
blocks too, with zeros for what is past the end of K. Complete the loop.
"""

import triton
import triton.language as tl

from .checker import STRIDED, multiply, tiles


@triton.jit
def naive_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    # Rows past the edge wrap to valid ones; the store masks what they yield.
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # --- your part: take every step, the last one with zeros past K
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    # --- to start from
    #| for _ in range(0, K // BLOCK_K):
    #|     a = tl.load(a_ptrs)
    #|     b = tl.load(b_ptrs)
    #|     acc = tl.dot(a, b, acc, input_precision="ieee")
    #|     a_ptrs += BLOCK_K * stride_ak
    #|     b_ptrs += BLOCK_K * stride_bk
    # --- end

    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


# --- the check
HINT = """
In the step that begins at k, K - k elements remain. A mask must have the shape of its block, or one
that broadcasts to it: a row for A, a column for B. Pass `other=0.0` as well, because without it the
elements that are not loaded may have any value.
"""
BLOCK_K = 32
CLUES = (
    (
        lambda a, b: a[:, : a.shape[1] // BLOCK_K * BLOCK_K] @ b[: len(b) // BLOCK_K * BLOCK_K],
        f"It is the sum without the last step, in which fewer than {BLOCK_K} elements of K remain.",
    ),
    (
        lambda a, b: a[:, :BLOCK_K] @ b[:BLOCK_K],
        "It is the sum of the first step alone.",
    ),
)  # fmt: skip


def check(module):
    for case in STRIDED:
        blocks = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": BLOCK_K}
        multiply(module, "naive_kernel", case, tiles(case, 16, 16), CLUES, **blocks)
