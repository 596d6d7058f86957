"""Which tiles does a program compute?

There are as many programs as the GPU has SMs, and C may have more tiles than that, or fewer.
Program p computes the tiles p, p + P, p + 2 P and so on, where P is the number of programs. As
given, each program computes a single tile. Make it walk over all of its tiles, and make sure that
the sums of one tile do not end up in the next.
"""

import triton
import triton.language as tl

from .checker import STRIDED, multiply


@triton.jit
def persistent_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * tiles_n
    offs_k = tl.arange(0, BLOCK_K)
    # --- your part: the first of this program's tiles, where they end, and how far apart they are
    first = tl.program_id(0)
    end = tiles
    step = tl.num_programs(0)
    # --- to start from
    #| first = tl.program_id(0)
    #| end = first + 1
    #| step = 1
    #| acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    # --- end
    for tile in range(first, end, step):
        offs_m = tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
        offs_n = tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
        a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
        b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn

        # --- your part: what a tile begins with
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        # --- to start from
        # --- end
        for k in range(0, K, BLOCK_K):
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
            acc = tl.dot(a, b, acc, input_precision="ieee")
            a_ptrs += BLOCK_K * stride_ak
            b_ptrs += BLOCK_K * stride_bk

        c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
        mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


# --- the check
HINT = """
`tl.num_programs(0)` is the number of programs. A program's first tile has the program's own number;
if there are fewer tiles than that, the program has nothing to do. What stands before the loop runs
only once, so whatever each tile needs afresh belongs inside the loop.
"""
BLOCK = 16
#: Fewer programs than tiles, and more.
PROGRAMS = (4, 1, 13)


CARRIED = "The sums of the tile before are still in it."


def check(module):
    for case in STRIDED[:4]:
        for programs in PROGRAMS:
            clue = (lambda a, b, programs=programs: carried(a, b, programs), CARRIED)
            blocks = {"BLOCK_M": BLOCK, "BLOCK_N": BLOCK, "BLOCK_K": 32}
            said = f"P = {programs}, "
            multiply(module, "persistent_kernel", case, (programs,), (clue,), said, **blocks)


def carried(a, b, programs):
    """C if each tile of a program begins with the sums of the one before."""
    product = a @ b
    M, N = product.shape
    corners = [(row, col) for row in range(0, M, BLOCK) for col in range(0, N, BLOCK)]
    c = product.clone()
    for program in range(programs):
        sums = 0
        for row, col in corners[program::programs]:
            rows, cols = (
                [(at + i) % size for i in range(BLOCK)] for at, size in ((row, M), (col, N))
            )
            sums = sums + product[rows][:, cols]
            c[row : row + BLOCK, col : col + BLOCK] = sums[: M - row, : N - col]
    return c
