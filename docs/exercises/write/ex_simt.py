"""What happens at the edge of C?

As in the rung `simt`, each program computes BLOCK_M x BLOCK_N elements of C without a tensor core.
If M or N is not a multiple of the block, the programs at the edge compute rows and columns that C
does not have. The loads are safe, because the modulo replaces a missing row or column with one that
exists. The store is not. Make it write only inside C, whatever C's strides are: the file you start
from assumes that the rows follow each other without a gap.
"""

import triton
import triton.language as tl

from .checker import STRIDED, multiply, tiles


@triton.jit
def simt_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am  # [BLOCK_M, 1]
    b_ptrs = b_ptr + (offs_n % N)[None, :] * stride_bn  # [1, BLOCK_N]

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(K):
        acc += tl.load(a_ptrs).to(tl.float32) * tl.load(b_ptrs).to(tl.float32)
        a_ptrs += stride_ak
        b_ptrs += stride_bk

    # --- your part: store what is inside of C, for any strides
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)
    # --- to start from
    #| c_ptrs = c_ptr + offs_m[:, None] * N + offs_n[None, :]
    #| tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty))
    # --- end


# --- the check
HINT = """
`offs_m[:, None]` is a column and `offs_n[None, :]` is a row. Compare each with its limit, and
combine the two masks with `&`: the result is a block. The pointer moves by `stride_cm` from one row
to the next, and by `stride_cn` from one column to the next.
"""


#: Elements of K at most: this exercise is about C, and each costs a step of the loop.
DEPTH = 9


def check(module):
    for case in STRIDED:
        multiply(
            module, "simt_kernel", case.at_most(DEPTH), tiles(case, 32, 32), BLOCK_M=32, BLOCK_N=32
        )
