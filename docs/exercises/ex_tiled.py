"""What does a larger tile save?

A program of `tiled` multiplies a tile of BLOCK_M x BLOCK_N in steps of BLOCK_K. Of a product whose
sizes are multiples of the tile's, how many elements of A and B do all programs load together?
"""

from __future__ import annotations

from collections.abc import Callable

from . import same
from .counting import of_product

PROBLEMS = (
    (64, 64, 32, 16, 16, 16),
    (64, 64, 32, 32, 32, 16),
    (64, 128, 64, 64, 32, 32),
    (128, 64, 32, 32, 64, 16),
)


def answer(M: int, N: int, K: int, BLOCK_M: int, BLOCK_N: int, BLOCK_K: int) -> int:
    programs = (M // BLOCK_M) * (N // BLOCK_N)
    return programs * K * (BLOCK_M + BLOCK_N)


def wrong_product(M: int, N: int, K: int, BLOCK_M: int, BLOCK_N: int, BLOCK_K: int) -> int:
    """As many loads as the tile has elements."""
    return (M // BLOCK_M) * (N // BLOCK_N) * K * BLOCK_M * BLOCK_N


def wrong_once(M: int, N: int, K: int, BLOCK_M: int, BLOCK_N: int, BLOCK_K: int) -> int:
    return M * K + K * N


WRONG = (wrong_product, wrong_once)


def check(function: Callable[..., int]) -> None:
    """Against what the rung loads in the interpreter."""
    for M, N, K, *block in PROBLEMS:
        tile = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), block, strict=True))
        same(function, of_product("tiled", M, N, K, **tile), M=M, N=N, K=K, **tile)
