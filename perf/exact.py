"""Products of fp64 in twice its precision: each sum is two numbers, and what fp64 loses is kept.

By T. Dekker, "A floating-point technique for extending the available precision", 1971, and
D. Knuth, The Art of Computer Programming, volume 2, 4.2.2.
"""

from __future__ import annotations

import torch

#: Splits a number of 53 bits into two of 26, by which products are exact.
SPLIT = 2.0**27 + 1

Pair = tuple[torch.Tensor, torch.Tensor]


def product(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """a @ b of fp64 matrices as high + low, with an error below 2**-95 of sum |a| |b|.

    Products become exact pairs, and are added in a tree: what each addition of high parts loses is
    exact too, and is added to the low ones. For K up to 2**20, on any device, where numbers are
    below 2**990 and products above 2**-960; takes some 100 bytes times M N K.
    """
    high, low = two_product(a[:, None, :], b.mT[None])  # [M, N, K]
    while (terms := high.shape[-1]) > 1:
        half, odd = terms // 2, terms % 2
        rest = high[..., 2 * half :], low[..., 2 * half :]
        first, second = low[..., :half], low[..., half : 2 * half]
        high, lost = two_sum(high[..., :half], high[..., half : 2 * half])
        low = first + second + lost
        if odd:
            high, low = (torch.cat(each, -1) for each in zip((high, low), rest, strict=True))
    return high[..., 0], low[..., 0]


def two_sum(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """The sum, and what is lost of it."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: torch.Tensor, b: torch.Tensor) -> Pair:
    """The product, and what is lost of it."""
    total = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    lost = a_high * b_high - total
    return total, ((lost + a_high * b_low) + a_low * b_high) + a_low * b_low


def _split(x: torch.Tensor) -> Pair:
    moved = SPLIT * x
    high = moved - (moved - x)
    return high, x - high
