"""Offsets of elements that 32 bits may not hold."""

import triton
import triton.language as tl


@triton.jit
def widen(x, WIDE: tl.constexpr):
    """`x` as int64 where an offset of this problem can pass 2**31 elements, else unchanged."""
    if WIDE:
        x = tl.cast(x, tl.int64)
    return x


@triton.jit
def batch_offset(b0, b1, stride_0, stride_1):
    """Elements before batch (b0, b1), in 64 bits: batches may be 2**31 elements apart."""
    return tl.cast(b0, tl.int64) * stride_0 + tl.cast(b1, tl.int64) * stride_1
