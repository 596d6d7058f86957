"""How often is each element read?

A program of `simt` computes 16 x 16 elements of C. In each step along K it loads 16 elements of A,
one for each of its rows, and 16 of B, one for each of its columns. C is the product of an M x K and
a K x N matrix, and M and N are multiples of 16. How many elements do all programs load together?
"""

from . import Answer, same
from .counting import of_product

SIZES = ((16, 16, 8), (32, 16, 5), (32, 48, 20), (64, 32, 7))


def answer(M: int, N: int, K: int) -> int:
    programs = (M // 16) * (N // 16)
    return programs * K * (16 + 16)


def check(function: Answer) -> None:
    """Against what the rung loads in the interpreter."""
    for M, N, K in SIZES:
        want = of_product("simt", M, N, K, BLOCK_M=16, BLOCK_N=16, BLOCK_K=1)
        same(function, want, M=M, N=N, K=K)
