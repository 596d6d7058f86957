"""Where is a tile in memory, and where is the next one?

In each step of K a program loads a tile of A, [BLOCK_M, BLOCK_K], and a tile of B, [BLOCK_K,
BLOCK_N]. The given pointers are right only for matrices stored by rows without gaps. Write the
pointers to the first two tiles, and move them to the next two, for operands with any strides: A and
B may be transposed, or every second column of a larger matrix. Let rows of A past M and columns of
B past N wrap around to valid ones; the mask of the store discards what they produce.
"""

import triton
import triton.language as tl

from .checker import STRIDED, multiply, tiles


@triton.jit
def tiled_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    # --- your part: pointers to the first tile of A, [BLOCK_M, BLOCK_K], and of B
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn
    # --- to start from
    #| a_ptrs = a_ptr + (offs_m % M)[:, None] * K + offs_k[None, :]
    #| b_ptrs = b_ptr + offs_k[:, None] * N + (offs_n % N)[None, :]
    # --- end

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        # --- your part: go to the next step of K
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
        # --- to start from
        #| a_ptrs += BLOCK_K
        #| b_ptrs += BLOCK_K * N
        # --- end

    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


# --- the check
HINT = """
However A is stored, its element (i, j) is at `a_ptr + i * stride_am + j * stride_ak`. A column of
row indices plus a row of column indices makes a block of pointers. From one step to the next, the
column index grows by BLOCK_K in A, and the row index grows by BLOCK_K in B.
"""
BLOCK_K = 32
CLUES = (
    (
        lambda a, b: sum(
            a[:, :last] @ b[:last]
            for last in (min(BLOCK_K, len(b) - k) for k in range(0, len(b), BLOCK_K))
        ),
        "In each step the first two tiles are multiplied again: the pointers don't move.",
    ),
)  # fmt: skip


def check(module):
    for case in STRIDED:
        blocks = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": BLOCK_K}
        multiply(module, "tiled_kernel", case, tiles(case, 32, 16), CLUES, **blocks)
