"""Scales of operands of 8 bits: fp32, of a line, 128 or all, for all of K or 128 elements of it.

Lines are A's rows, and B's columns. For kernels in Triton and in Gluon.
"""

from collections import namedtuple

import triton
import triton.language as tl

from .offsets import batch_offset, widen

#: Elements of K that are summed before they are promoted, or scaled.
BLOCK = tl.constexpr(128)
#: Elements between scales of batches, lines and steps of K.
ScaleStrides = namedtuple("ScaleStrides", "batch, line, step")


@triton.jit
def a_scale(args, b1, offs_m, M, step, LINES: tl.constexpr):
    """A's scales [rows] of a step of K, of `LINES` each; `args` are `EpilogueArgs`."""
    ptr = args.scale_a_ptr + batch_offset(0, b1, 0, args.sa_strides.batch)
    return lines_scale(ptr, args.sa_strides, offs_m, M, step, LINES)


@triton.jit
def b_scale(args, b1, offs_n, N, step, LINES: tl.constexpr):
    """B's scales [columns] of a step of K."""
    ptr = args.scale_b_ptr + batch_offset(0, b1, 0, args.sb_strides.batch)
    return lines_scale(ptr, args.sb_strides, offs_n, N, step, LINES)


@triton.jit
def lines_scale(ptr, strides, lines, count, step, LINES: tl.constexpr):
    """The scales of `lines`, 0 where there are no more than `count`; or a scalar, of all."""
    # int64: steps * stride can pass 2**31; where lines * stride can, these have 64 bits already.
    ptr += tl.cast(step, tl.int64) * strides.step
    if LINES == 0:
        scale = tl.load(ptr, mask=count > 0, other=0.0)
    else:
        scale = tl.load(ptr + lines // LINES * strides.line, mask=lines < count, other=0.0)
    return scale


@triton.jit
def scale_ptrs(ptr, strides, b1, lines, step, LINES: tl.constexpr, WIDE: tl.constexpr):
    """Where the scales of `lines` stand, in a step of K."""
    # int64: steps * stride can pass 2**31
    ptr += batch_offset(b1, step, strides.batch, strides.step)
    lines = widen(lines, WIDE)
    return ptr + (lines * 0 if LINES == 0 else lines // LINES * strides.line)


@triton.jit
def as_column(scale):
    """A's scales as a column; a scalar as it is."""
    if len(scale.shape) > 0:
        scale = scale[:, None]
    return scale


@triton.jit
def as_row(scale):
    """B's scales as a row; a scalar as it is."""
    if len(scale.shape) > 0:
        scale = scale[None, :]
    return scale
