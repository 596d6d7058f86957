"""Residues of integers: what the epilogue of a product of residues stores."""

import triton
import triton.language as tl

from ...problem import MODULI

COUNT = tl.constexpr(len(MODULI))
EACH = tl.constexpr(MODULI)
#: 2**39 over each modulus, rounded down, less 2**31: all are above 128.
INVERSES = tl.constexpr(tuple(2**39 // p - 2**31 for p in MODULI))


@triton.jit
def residue(acc, index):
    """acc + 2**31, an int32, modulo p, the modulus of this index: 0 to p, below 256.

    The quotient is the true one, or one less if less than 2**-7 of p would remain.
    """
    p, inverse = index * 0, index * 0
    for i in tl.static_range(COUNT):
        p = tl.where(index == i, EACH[i], p)
        inverse = tl.where(index == i, INVERSES[i], inverse)
    value = acc.to(tl.uint32, bitcast=True) ^ 0x80000000
    quotient = tl.umulhi(value, tl.cast(inverse, tl.uint32) + 0x80000000) >> 7
    return value - quotient * tl.cast(p, tl.uint32)
