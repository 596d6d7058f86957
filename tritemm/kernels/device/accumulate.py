"""How a consumer accumulates a unit of work: all steps in one sum, or fixed chunks of K in theirs,
or each step (`promote`).

Fixed chunks begin at the same places for every tile. One program adds all sums in order; or, if
each of SPLIT_K programs has one chunk, `split_k` and `exchange` add them in the same order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .promote import promoted, slabs_each


@gluon.jit
def accumulate(loop, n, unit, work, SLAB: gl.constexpr = 0):
    """A unit's accumulator, complete, and the next unit's first step; this one's is `n`."""
    CHUNKS: gl.constexpr = work.SHAPE.PARTS
    if work.SHAPE.SUMS != "whole":
        acc, n = promoted(loop, n, unit.steps, (), SLAB * slabs_each(work.SHAPE), work.SHAPE)
    elif CHUNKS > work.SHAPE.SPLIT_K:
        _, steps = work.share(0, CHUNKS)
        acc = loop.multiply(n, steps, SLAB)
        acc, n = loop.multiply_tail(acc, n, steps)
        for chunk in range(1, CHUNKS):
            _, steps = work.share(chunk, CHUNKS)
            more = loop.multiply(n, steps, SLAB)
            more, n = loop.multiply_tail(more, n, steps)
            acc = added(acc, more)
    else:
        acc = loop.multiply(n, unit.steps, SLAB)
        acc, n = loop.multiply_tail(acc, n, unit.steps)
    return acc, n


@gluon.jit
def added(acc, more):
    """The sums of the tensors of two tuples, one by one."""
    total = ()
    for i in gl.static_range(len(acc)):
        total += (acc[i] + more[i],)
    return total
