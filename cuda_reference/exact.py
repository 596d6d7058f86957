"""8-bit operands with scales whose products are exact, to judge the rung that has them."""

from __future__ import annotations

import torch

from tritemm.problem import BLOCK

#: The largest element. Hopper's tensor cores keep 14 bits of a sum of fp8, and a sum is of BLOCK
#: products, so it is at most 2**11.
LARGEST = 4


def operands(M: int, N: int, K: int, device: str = "cuda") -> tuple[torch.Tensor, ...]:
    """Integers [M, K] and [K, N], and their scales of blocks, powers of two: all at random.

    Lines along K begin on 16-byte boundaries. Sums are exact in fp32 where K is at most 2**16.
    """
    pitch, steps = -(-K // 16) * 16, -(-K // BLOCK)
    a, b = (integers(lines, pitch, device)[:, :K] for lines in (M, N))
    scale_a, scale_b = (scales(lines, steps, device) for lines in (M, -(-N // BLOCK)))
    return a, b.mT, scale_a, scale_b


def integers(rows: int, cols: int, device: str) -> torch.Tensor:
    found = torch.randint(-LARGEST, LARGEST + 1, (rows, cols), device=device)
    return found.float().to(torch.float8_e4m3fn)


def scales(lines: int, steps: int, device: str) -> torch.Tensor:
    """1/2, 1 or 2."""
    return torch.randint(-1, 2, (lines, steps), device=device).float().exp2()
