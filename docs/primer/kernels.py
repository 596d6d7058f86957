"""Kernels for somebody who has never read one, each with the function that launches it.

Blocks are tiny here, so that a few elements have several programs and a ragged end.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)  # which program this is: 0, 1, 2, ...
    offs = pid * BLOCK + tl.arange(0, BLOCK)  # [BLOCK] its own positions
    mask = offs < n  # [BLOCK] false past the end
    x = tl.load(x_ptr + offs, mask=mask)  # [BLOCK]
    y = tl.load(y_ptr + offs, mask=mask)  # [BLOCK]
    tl.store(out_ptr + offs, x + y, mask=mask)


def add(x, y, out, block=4):
    """out = x + y, of contiguous vectors."""
    n = out.numel()
    grid = (triton.cdiv(n, block),)  # programs: n / block, rounded up
    add_kernel[grid](x, y, out, n, BLOCK=block)
    return out


@triton.jit
def unmasked_kernel(x_ptr, y_ptr, out_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs) + tl.load(y_ptr + offs))


def add_unmasked(x, y, out, block=4):
    """The same, wrong where n is no multiple of the block: it writes past the end of out."""
    unmasked_kernel[(triton.cdiv(out.numel(), block),)](x, y, out, BLOCK=block)
    return out


@triton.jit
def relu_kernel(
    x_ptr, out_ptr, M, N, stride_xm, stride_xn, stride_om, stride_on,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    mask = (rows[:, None] < M) & (cols[None, :] < N)  # [BLOCK_M, BLOCK_N]
    x_ptrs = x_ptr + rows[:, None] * stride_xm + cols[None, :] * stride_xn  # [BLOCK_M, BLOCK_N]
    out_ptrs = out_ptr + rows[:, None] * stride_om + cols[None, :] * stride_on
    x = tl.load(x_ptrs, mask=mask, other=0.0)
    tl.store(out_ptrs, tl.maximum(x, 0.0), mask=mask)


def relu(x, block_m=4, block_n=8):
    """torch.relu of a matrix with any strides."""
    M, N = x.shape
    out = torch.empty(M, N, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(M, block_m), triton.cdiv(N, block_n))
    strides = *x.stride(), *out.stride()
    relu_kernel[grid](x, out, M, N, *strides, BLOCK_M=block_m, BLOCK_N=block_n)
    return out


@triton.jit
def element_kernel(
    a_ptr, b_ptr, c_ptr, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn
):
    m, n = tl.program_id(0), tl.program_id(1)
    acc = 0.0
    for k in range(K):
        a = tl.load(a_ptr + m * stride_am + k * stride_ak)  # A[m, k]
        b = tl.load(b_ptr + k * stride_bk + n * stride_bn)  # B[k, n]
        acc += a * b
    tl.store(c_ptr + m * stride_cm + n * stride_cn, acc)


def matmul_by_elements(a, b):
    """a @ b, of float32: a program for each element of the result."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    element_kernel[M, N](a, b, c, K, *a.stride(), *b.stride(), *c.stride())
    return c


@triton.jit
def tile_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)  # [BLOCK_N]
    in_m, in_n = offs_m[:, None] < M, offs_n[None, :] < N  # [BLOCK_M, 1], [1, BLOCK_N]
    a_ptrs = a_ptr + offs_m[:, None] * stride_am  # [BLOCK_M, 1]
    b_ptrs = b_ptr + offs_n[None, :] * stride_bn  # [1, BLOCK_N]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(K):
        a = tl.load(a_ptrs, mask=in_m, other=0.0)  # a column of A: [BLOCK_M, 1]
        b = tl.load(b_ptrs, mask=in_n, other=0.0)  # a row of B: [1, BLOCK_N]
        acc += a * b  # broadcast: [BLOCK_M, BLOCK_N]
        a_ptrs += stride_ak
        b_ptrs += stride_bk
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc, mask=in_m & in_n)


def matmul_by_tiles(a, b, block_m=16, block_n=16):
    """a @ b, of float32: a program for each tile of the result, with a thread for each element."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, block_m), triton.cdiv(N, block_n))
    tile_kernel[grid](
        a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=block_m, BLOCK_N=block_n, num_warps=block_m * block_n // 32,
    )  # fmt: skip
    return c
