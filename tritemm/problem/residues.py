"""Ozaki scheme II: how many moduli a product of residues takes, and what it loses."""

from __future__ import annotations

import math

import torch

#: Coprime moduli. By "int8xN", a product is found modulo the first N of them, by N products of
#: int8: of residues of whole numbers, to which fp64 or fp32 is rounded.
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)
RESIDUES = {f"int8x{count}": count for count in range(5, len(MODULI) + 1)}
#: What "int8" takes: so many that sums are 3 bits better than in the type itself.
DEFAULT_MODULI = {torch.float64: 15, torch.float32: 7}
#: Elements of K whose products of residues int32 holds, at most.
LONGEST = 2**17 - 1
#: Errors may be so many times 2**-53 (fp32: 2**-24) of sum |a| |b|: their root mean square is 0.58
#: of that at most if roundings are independent; they are sqrt(K) times as much at worst.
ALLOWED = 40.0


def largest_norm(count: int) -> float:
    """Units that the norm of a line may have, so that sums are below P / 2, and it below 2**62.

    P is the product of so many moduli. Rounding adds half a unit to each element at most.
    """
    norm = math.isqrt(math.prod(MODULI[:count]) // 2) * (1 - 2**-30) - math.sqrt(LONGEST) / 2
    return min(norm, 2.0**61.5)


def allowed(count: int, dtype: torch.dtype) -> float:
    """What errors may be, over sum |a| |b|; with fewer moduli than `DEFAULT_MODULI`, as much more
    as their product is less."""
    default = DEFAULT_MODULI[dtype]
    less = largest_norm(default) / largest_norm(min(count, default))
    return ALLOWED * less * torch.finfo(dtype).eps / 2
