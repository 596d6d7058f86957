"""fp32 by 16 bits: A and B are three planes each, and K runs over products of a plane of each.

The smallest products come first, in one sum. The tensor core truncates what it adds to an
accumulator, about half a unit in the last place of the sum for each 16 elements of K; so the last
product, of the first planes, has separate sums for each step of K, which are added in fp32,
rounded. They cover 64 rows and 128 columns at a time, which fit in registers with the accumulator.
Planes hold 2**16 times the operand (`pack`).

A sum isn't finite if an operand isn't, if a plane or a sum overflows because of these factors, or
if the true sum does. Then the kernel sets a flag, and the next kernel multiplies again by FFMA
(`plan.launch_guarded`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...problem import PLANE_FACTOR
from .promote import promoted

#: What undoes the factors of both operands' planes.
UNDO = gl.constexpr(PLANE_FACTOR**-2)


@gluon.jit
def multiply_planes(loop, n, unit, SHAPE: gl.constexpr):
    """A consumer's accumulator of a unit, and the next unit's first step; this one's is `n`.

    `loop` is a `Consumer` of a cluster.
    """
    last = unit.steps // SHAPE.PRODUCTS
    steps = unit.steps - last
    gl.assume(steps > 0)
    acc = loop.multiply(n, steps)
    acc, n = loop.multiply_tail(acc, n, steps)
    return promoted(loop, n, last, acc, loop.SLAB, SHAPE)


@gluon.jit
def unscaled(acc, flag_ptr):
    """Complete sums without the planes' factors; a sum that isn't finite sets the flag."""
    sums = ()
    for i in gl.static_range(len(acc)):
        bad = gl.max(gl.where(acc[i] - acc[i] == 0, 0, 1), axis=1)
        gl.store(flag_ptr + gl.zeros_like(bad), bad, mask=bad > 0)
        sums += (acc[i] * UNDO,)
    return sums
