"""How do several programs add to the same tile?

Program (tile, part) multiplies one of PARTS ranges of K. The given kernel has two faults. It loses
the end of K if K is not a multiple of PARTS. And it adds its sums to C with `tl.atomic_add`, so the
order of the additions depends on which program comes first; rounding depends on that order, and two
runs may differ. Cover all of K, and store each program's sums in P instead: part p has the rows p *
M to p * M + M - 1. The second kernel starts when the first has finished. Let it add the parts of a
tile in a fixed order and store the tile in C.
"""

import triton
import triton.language as tl

from .checker import FLOAT, Matrix, Product, Wrong, compare, launch, tiles


@triton.jit
def part_kernel(
    a_ptr, b_ptr, c_ptr, p_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, stride_pm, stride_pn,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile, part = tl.program_id(0), tl.program_id(1)
    offs_m = tile // tl.cdiv(N, BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    # --- your part: where this part of K begins and ends; a part may be empty
    each = tl.cdiv(K, PARTS)
    begin = part * each
    end = tl.minimum(begin + each, K)
    # --- to start from
    #| each = K // PARTS
    #| begin = part * each
    #| end = begin + each
    # --- end

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(begin, end, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + (offs_m % M)[:, None] * stride_am + offs_k[None, :] * stride_ak
        b_ptrs = b_ptr + offs_k[:, None] * stride_bk + (offs_n % N)[None, :] * stride_bn
        a = tl.load(a_ptrs, mask=offs_k[None, :] < end, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < end, other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")

    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    # --- your part: store the part's sums
    rows = part * M + offs_m
    tl.store(p_ptr + rows[:, None] * stride_pm + offs_n[None, :] * stride_pn, acc, mask=mask)
    # --- to start from
    #| c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    #| tl.atomic_add(c_ptrs, acc, mask=mask)
    # --- end


@triton.jit
def sum_kernel(
    c_ptr, p_ptr,
    M, N,
    stride_cm, stride_cn, stride_pm, stride_pn,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    offs_m = tile // tl.cdiv(N, BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    # --- your part: add the parts of this tile, and store the tile
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for part in range(PARTS):
        rows = part * M + offs_m
        p_ptrs = p_ptr + rows[:, None] * stride_pm + offs_n[None, :] * stride_pn
        acc += tl.load(p_ptrs, mask=mask, other=0.0)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn, acc, mask=mask)
    # --- to start from
    # --- end


# --- the check
HINT = """
If each part has `tl.cdiv(K, PARTS)` elements, the last parts may have fewer or none, so no part may
end past K. In P, the rows of part p are `p * M + offs_m`, under the same mask as a tile of C. The
second kernel adds part 0, then part 1, and so on, no matter which was stored first.
"""
BLOCK = 16
#: M, N and K, and parts.
CASES = ((16, 16, 64, 2), (37, 20, 70, 3), (9, 40, 33, 4), (16, 16, 5, 4))


def check(module):
    for M, N, K, parts in CASES:
        case = Product(M, N, K, dtype=FLOAT)
        a, b, _ = case.matrices()
        want = a.tensor.double() @ b.tensor.double()
        whole = K // parts * parts
        lost = a.tensor[:, :whole].double() @ b.tensor[:whole].double()
        clue = f"It is the sum over the first {whole} elements of K: no part has the rest."
        said = f"With {case} and {parts} parts"
        compare(said, run(module, case, a, b, parts), want, [(lost, clue)])
    same_bits(module)


def run(module, case, a, b, parts, seed=0):
    """C, from both kernels, whose programs run in an order that depends on the seed."""
    c = Matrix("C", (case.M, case.N), FLOAT)
    c.tensor.zero_()
    p = Matrix("P", (parts * case.M, case.N), FLOAT)
    count, across = tiles(case, BLOCK, BLOCK)
    strides = [each.tensor.stride() for each in (a, b, c, p)]
    blocks = {"PARTS": parts, "BLOCK_M": BLOCK, "BLOCK_N": BLOCK}
    said = f"{case} and {parts} parts"
    launch(module, "part_kernel", (count * across, parts), a, b, c, p, case.M, case.N, case.K,
           *sum(strides, ()), case=said, seed=seed, BLOCK_K=BLOCK, **blocks)  # fmt: skip
    launch(module, "sum_kernel", (count * across,), c, p, case.M, case.N,
           *sum(strides[2:], ()), case=said, seed=seed, **blocks)  # fmt: skip
    return c


def same_bits(module):
    """`Wrong` if the order of programs changes the result."""
    case, parts = Product(20, 20, 96, dtype=FLOAT), 6
    a, b, _ = case.matrices()
    a.tensor /= 3  # so that sums round
    first, *others = (run(module, case, a, b, parts, seed).tensor for seed in range(4))
    for other in others:
        if (differs := (first != other)).any():
            i, j = differs.nonzero()[0].tolist()
            raise Wrong(
                f"With {parts} parts of K: C[{i}, {j}] is {first[i, j]:.9g} in one run and "
                f"{other[i, j]:.9g} in another, in which the programs ran in another order. So "
                "the order of the additions isn't fixed."
            )
