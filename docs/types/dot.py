"""One tile by `tl.dot`: the compiler chooses the instruction and every layout."""

import triton
import triton.language as tl

from tritemm.machine import interpreter

INTERPRETED = tl.constexpr(interpreter.INTERPRETED)

with interpreter.decorating():

    @triton.jit
    def dot_kernel(
        a_ptr, b_ptr, c_ptr, d_ptr,
        stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_dm, stride_dn,
        M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
        BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr, ADD: tl.constexpr,
    ):  # fmt: skip
        """D = A B + C, or A B. K is filled with zeros to BLOCK_K, which `tl.dot` takes."""
        offs_m, offs_n = tl.arange(0, M), tl.arange(0, N)
        offs_k = tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
        b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K, other=0.0)
        c = tl.zeros((M, N), ACC)
        if ADD:
            c = tl.load(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn).to(ACC)
        if INTERPRETED and a.dtype == tl.bfloat16:  # the interpreter multiplies its bit patterns
            a, b = a.to(tl.float32), b.to(tl.float32)
        d = tl.dot(a, b, c, input_precision=PRECISION, out_dtype=ACC)
        d_ptrs = d_ptr + offs_m[:, None] * stride_dm + offs_n[None, :] * stride_dn
        tl.store(d_ptrs, d.to(d_ptr.dtype.element_ty))
