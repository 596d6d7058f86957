"""K in parts whose places no tile moves, which one program sums one after another.

Several programs that have one part each add them in the same order (`parts`, `exchange`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def sums_of(loop, n, unit, work, SLAB: gl.constexpr = 0):
    """A consumer's sums of a unit that begins with step `n`, complete; and the next one's first
    step. Each of several parts is summed from zero."""
    PARTS: gl.constexpr = work.SHAPE.PARTS
    if PARTS > work.SHAPE.SPLIT_K:
        _, steps = work.share(0, PARTS)
        acc = loop.multiply(n, steps, SLAB)
        acc, n = loop.multiply_tail(acc, n, steps)
        for part in range(1, PARTS):
            _, steps = work.share(part, PARTS)
            more = loop.multiply(n, steps, SLAB)
            more, n = loop.multiply_tail(more, n, steps)
            acc = added(acc, more)
    else:
        acc = loop.multiply(n, unit.steps, SLAB)
        acc, n = loop.multiply_tail(acc, n, unit.steps)
    return acc, n


@gluon.jit
def added(acc, more):
    """The sums of tensors that stand in the same places of two tuples."""
    sums = ()
    for i in gl.static_range(len(acc)):
        sums += (acc[i] + more[i],)
    return sums
