"""One tile by `tl.dot`: the compiler chooses the instruction and every layout."""

import triton
import triton.language as tl


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, d_ptr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """D = A B + C, or A B; A and B are stored along K, which is padded with zeros to BLOCK_K."""
    offs_m, offs_n = tl.arange(0, M), tl.arange(0, N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] + offs_n[None, :] * K
    a = tl.load(a_ptrs, mask=offs_k[None, :] < K, other=0.0)
    b = tl.load(b_ptrs, mask=offs_k[:, None] < K, other=0.0)
    offs = offs_m[:, None] * N + offs_n[None, :]
    c = tl.zeros((M, N), ACC)
    if ADD:
        c = tl.load(c_ptr + offs).to(ACC)
    d = tl.dot(a, b, c, input_precision=PRECISION, out_dtype=ACC)
    tl.store(d_ptr + offs, d.to(d_ptr.dtype.element_ty))
