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


def largest_norm(count: int, K: int = LONGEST) -> float:
    """Units that the norm of a line may have, so that sums are below P / 2, and it below 2**62.

    P is the product of so many moduli.
    """
    norm = math.isqrt(math.prod(MODULI[:count]) // 2) * (1 - 2**-30) - math.sqrt(K) / 2
    return min(norm, 2.0**61.5)


def allowed(count: int, eps: float) -> float:
    """What errors may be, over sum |a| |b|, of a type with this eps; with fewer moduli than
    `DEFAULT_MODULI`, as much more as their product is less."""
    default = max(DEFAULT_MODULI.values()) if eps < 2**-30 else min(DEFAULT_MODULI.values())
    less = largest_norm(default) / largest_norm(min(count, default))
    return ALLOWED * less * eps / 2
