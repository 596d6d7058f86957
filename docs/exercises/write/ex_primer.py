"""Which elements may a program touch?

The kernel adds two vectors of n elements. Each program adds BLOCK of them. If n is not a multiple
of BLOCK, the last program has fewer elements left than that. As given, the kernel then reads and
writes past the end of the vectors. Make it load and store only elements that exist.
"""

import triton
import triton.language as tl

from .checker import FLOATS, INTEGER, Matrix, compare, launch, small


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # --- your part: load and store the elements below n alone
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)
    # --- to start from
    #| x = tl.load(x_ptr + offs)
    #| y = tl.load(y_ptr + offs)
    #| tl.store(out_ptr + offs, x + y)
    # --- end


# --- the check
HINT = """
`tl.load` and `tl.store` take a `mask`: a block of booleans of the same shape as the pointers. Where
the mask is false, nothing is read or written. Which numbers in `offs` are indices of the vectors?
"""
#: Elements, and elements of a program.
SIZES = ((64, 32), (1, 16), (37, 16), (100, 64), (129, 128))


def check(module):
    for n, block in SIZES:
        for dtype in (*FLOATS, INTEGER):
            x, y = (Matrix(name, (n,), dtype, values=small((n,), seed))
                    for seed, name in enumerate("xy"))  # fmt: skip
            out = Matrix("out", (n,), dtype)
            case = f"n = {n} and BLOCK = {block}"
            launch(module, "add_kernel", (-(-n // block),), x, y, out, n, BLOCK=block, case=case)
            compare(f"With {case}", out, x.tensor + y.tensor)
