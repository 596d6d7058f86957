"""Promoted sums: the tensor core's sum of a step of K is scaled, and added in fp32.

Hopper's tensor cores keep 14 bits of an fp8 sum, and truncate those of bf16 (`planes`). So each
step has separate partial sums, for one slab of 64 rows at a time, or for a part of its columns:
registers wouldn't hold the accumulators of a whole tile in addition. While one consumer adds, the
other's products keep the tensor cores busy.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .mainloop import next_place, place
from .wgmma import pinned

#: The most columns of a slab with partial sums beside an accumulator at a time, for planes.
PART_COLUMNS = gl.constexpr(128)


@gluon.constexpr_function
def slabs_each(shape):
    """Slabs of a consumer."""
    return shape.BLOCK_M.value // (shape.ROWS.value * shape.CONSUMERS.value)


@gluon.jit
def promoted(loop, n, steps, acc, FIRST: gl.constexpr, SHAPE: gl.constexpr):
    """`acc`, which may be empty, and a consumer's sums of `steps` from `n` on; and the next step.

    Its first slab is number `FIRST`. `loop` has `begin(stage, odd)`, `start` and `finish` for the
    partial sums of columns of a slab, and `release(stage)`; `scale_ring` is a `ScaleRing`.
    """
    EACH: gl.constexpr = slabs_each(SHAPE)
    MOST: gl.constexpr = PART_COLUMNS if SHAPE.PRODUCTS > 1 else SHAPE.BLOCK_N
    if len(acc) == 0:
        for _ in gl.static_range(EACH):
            acc += loop.zeros()
    IN_SLAB: gl.constexpr = len(acc) // EACH
    stage, odd = place(n, SHAPE.STAGES)
    for _ in range(steps):
        more = ()
        for slab in gl.static_range(EACH):
            for column in gl.static_range(0, SHAPE.BLOCK_N, MOST):
                loop.begin(stage, odd)  # again, which takes no time, and ends a block for ptxas
                part = loop.start(stage, FIRST + slab, column, MOST)
                if SHAPE.SUMS == "block" and slab == 0:  # while the tensor core works
                    factors = loop.scale_ring.factors(acc[:IN_SLAB], stage, FIRST)
                part = loop.finish(part)
                if SHAPE.SUMS == "block" and slab + 1 < EACH:  # while these are added
                    factors += loop.scale_ring.factors(acc[:IN_SLAB], stage, FIRST + slab + 1)
                for i in gl.static_range(len(part)):
                    one = part[i]
                    if SHAPE.SUMS == "block":
                        factor = factors[len(more)]
                        if SHAPE.B_LINES == 1:
                            factor *= loop.scale_ring.of_columns(acc[:IN_SLAB], stage, i)[None, :]
                        one *= factor
                    more += (pinned(acc[len(more)] + one),)
        loop.release(stage)
        acc = more
        stage, odd = next_place(stage, odd, SHAPE.STAGES)
    return acc, n + steps
