"""Scales of 8-bit operands: fp32, for a line, 128 or all, and for all of K or 128 elements of it.

Lines are A's rows, and B's columns. For kernels in Triton and in Gluon.
"""

from collections import namedtuple

import triton
import triton.language as tl

from .offsets import batch_offset

#: Elements of K that are summed before they are promoted, or scaled.
BLOCK = tl.constexpr(128)
#: Elements between scales of batches, lines and steps of K.
ScaleStrides = namedtuple("ScaleStrides", "batch, line, step")


@triton.jit
def a_scale(args, b1, offs_m, M, step, LINES: tl.constexpr):
    """A's scales in a step of K, one for `LINES` rows, as a column; `args` are `EpilogueArgs`."""
    found = lines_scale(args.scale_a_ptr, args.sa_strides, b1, offs_m, M, step, LINES)
    return found[:, None] if LINES else found


@triton.jit
def b_scale(args, b1, offs_n, N, step, LINES: tl.constexpr):
    """B's scales in a step of K, as a row."""
    found = lines_scale(args.scale_b_ptr, args.sb_strides, b1, offs_n, N, step, LINES)
    return found[None, :] if LINES else found


@triton.jit
def lines_scale(ptr, strides, b1, lines, count, step, LINES: tl.constexpr):
    """The scales of `lines`, 0 from `count` on; or a scalar for all."""
    if LINES == 0:
        lines = 0
    return tl.load(scale_ptrs(ptr, strides, b1, lines, step, LINES), count > lines, other=0.0)


@triton.jit
def scale_ptrs(ptr, strides, b1, lines, step, LINES: tl.constexpr):
    """The addresses of the scales of `lines` in a step of K; with a shared scale the stride is 0.

    If lines * stride can pass 2**31, they have 64 bits.
    """
    # int64: so can steps * stride
    ptr += batch_offset(b1, step, strides.batch, strides.step)
    return ptr + lines // max(LINES, 1) * strides.line
