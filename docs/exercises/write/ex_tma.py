"""At which element does a block begin?

A tensor descriptor holds the address, shape and strides of a matrix, and the shape of a block. Its
`load` takes the position of a block's first element, and TMA fills what is outside the matrix with
zeros, so the kernel needs no pointers and no masks. A is M x K. B is stored transposed, as N x K,
like the weight of `torch.nn.functional.linear`. The given loads and the given store count in
blocks, and the load of B assumes that it is stored as K x N. Correct the three.
"""

import triton
import triton.language as tl

from .checker import FLOATS, Product, multiply, tiles


@triton.jit
def tma_kernel(
    a_ptr, b_ptr, c_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # The last dimension of each is contiguous: stride_ak, stride_bk and stride_cn are 1.
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [stride_am, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [stride_bn, 1], [BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [stride_cm, 1], [BLOCK_M, BLOCK_N])
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        # --- your part: load the step's blocks; b is [BLOCK_K, BLOCK_N]
        a = a_desc.load([pid_m * BLOCK_M, k])
        b = b_desc.load([pid_n * BLOCK_N, k]).T
        # --- to start from
        #| a = a_desc.load([pid_m, k])
        #| b = b_desc.load([k, pid_n])
        # --- end
        acc = tl.dot(a, b, acc, input_precision="ieee")

    # --- your part: store the block of C
    c_desc.store([pid_m * BLOCK_M, pid_n * BLOCK_N], acc.to(c_ptr.dtype.element_ty))
    # --- to start from
    #| c_desc.store([pid_m, pid_n], acc.to(c_ptr.dtype.element_ty))
    # --- end


# --- the check
HINT = """
`load([i, j])` begins at row i and column j of the matrix as it is stored, and both count elements.
A block of B arrives as it is stored, [BLOCK_N, BLOCK_K]; `.T` turns it into what `tl.dot` needs.
"""
CASES = tuple(
    Product(*sizes, ("rows", "columns", "rows"), dtype)
    for sizes, dtype in zip(((32, 32, 32), (37, 50, 70), (16, 9, 33), (5, 72, 64)), FLOATS * 2,
                            strict=True)
)  # fmt: skip


def check(module):
    for case in CASES:
        blocks = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64}
        multiply(module, "tma_kernel", case, tiles(case, 16, 32), **blocks)
