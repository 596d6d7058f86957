"""Ozaki scheme II: how many moduli a product of residues needs, and its error."""

from __future__ import annotations

import math

import torch

#: Coprime moduli. "int8xN" computes a product modulo each of the first N, by N products of int8: of
#: residues of the integers to which fp64 or fp32 operands are rounded.
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193)
RESIDUES = {f"int8x{count}": count for count in range(5, len(MODULI) + 1)}
#: The moduli of "int8": enough for sums 3 bits better than in the type itself.
DEFAULT_MODULI = {torch.float64: 15, torch.float32: 7}
#: The most elements of K whose sum of products of residues fits int32.
LONGEST = 2**17 - 1
#: Errors may be this many times 2**-53 (fp32: 2**-24) of sum |a| |b|: their root mean square is at
#: most 0.58 of that if roundings are independent; at worst they are sqrt(K) times as much.
ALLOWED = 40.0


def largest_norm(count: int) -> float:
    """The largest norm of a line, in units: sums stay below P / 2, and the norm below 2**62.

    P is the product of `count` moduli. Rounding adds at most half a unit to each element.
    """
    norm = math.isqrt(math.prod(MODULI[:count]) // 2) * (1 - 2**-30) - math.sqrt(LONGEST) / 2
    return min(norm, 2.0**61.5)


def allowed(count: int, dtype: torch.dtype) -> float:
    """The allowed error over sum |a| |b|; with fewer moduli than `DEFAULT_MODULI`, larger by the
    factor by which their product is smaller."""
    default = DEFAULT_MODULI[dtype]
    less = largest_norm(default) / largest_norm(min(count, default))
    return ALLOWED * less * torch.finfo(dtype).eps / 2
