"""Promoted sums: what the tensor core adds of 128 elements of K is scaled, and added in fp32.

Hopper's tensor cores keep 14 bits of a sum of fp8. So each step of K has partial sums of its own,
of one slab of 64 rows at a time: accumulators of a whole tile beside them would not find registers.
While one consumer adds, the other's products keep the tensor cores busy.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .mainloop import next_place, place
from .wgmma import pinned


@gluon.constexpr_function
def slabs_each(shape):
    """Slabs of a consumer."""
    return shape.BLOCK_M.value // (shape.ROWS.value * shape.CONSUMERS.value)


@gluon.jit
def promoted(loop, n, unit, work, FIRST: gl.constexpr):
    """A consumer's accumulator of a unit, from slab `FIRST` on, and the next unit's first step.

    `loop` has `begin(stage, odd)`, `start` and `finish` for the partial sums of a slab, and
    `release(stage)`; `scale_ring` is a `ScaleRing`.
    """
    SHAPE: gl.constexpr = work.SHAPE
    EACH: gl.constexpr = slabs_each(SHAPE)
    acc = ()
    for _ in gl.static_range(EACH):
        acc += loop.zeros()
    PARTS: gl.constexpr = len(acc) // EACH
    stage, odd = place(n, SHAPE.STAGES)
    for _ in range(unit.steps):
        more = ()
        for slab in gl.static_range(EACH):
            loop.begin(stage, odd)  # again, which takes no time, and ends a block for ptxas
            part = loop.start(stage, FIRST + slab)
            if SHAPE.SUMS == "block" and slab == 0:  # while the tensor core works
                factors = loop.scale_ring.factors(acc[:PARTS], stage, FIRST)
            part = loop.finish(part)
            if SHAPE.SUMS == "block" and slab + 1 < EACH:  # while these are added
                factors += loop.scale_ring.factors(acc[:PARTS], stage, FIRST + slab + 1)
            for i in gl.static_range(PARTS):
                one = part[i]
                if SHAPE.SUMS == "block":
                    factor = factors[slab * PARTS + i]
                    if SHAPE.B_LINES == 1:
                        factor *= loop.scale_ring.of_columns(acc[:PARTS], stage, i)[None, :]
                    one *= factor
                more += (pinned(acc[slab * PARTS + i] + one),)
        loop.release(stage)
        acc = more
        stage, odd = next_place(stage, odd, SHAPE.STAGES)
    return acc, n + unit.steps
