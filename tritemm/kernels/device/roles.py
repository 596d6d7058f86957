"""The roles of a program's warps: a producer loads, up to three consumers multiply and store.

A rung writes its consumer, `compute(args, WHICH)`, and hands it to `run_roles`. `args` begin with
the scheduler and the mainloop, all that a producer needs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from .language import builtin, unwrap


@gluon.jit
def load(work, loop):
    """The producer: loads every step of every unit of this program."""
    gdc_wait()
    n = gl.to_tensor(0)
    for i in range(work.first(), work.units(), work.stride()):
        n = loop.load(n, work.unit(i))


@builtin
def run_roles(compute, producer, args, CONSUMERS, idle=(), _semantic=None, _generator=None):
    """Run `compute` in each of the `CONSUMERS`, and `producer` in one warp, until all have ended.

    `gl.warp_specialize`, called in Python, as no jit function can make its lists. Consumers have a
    warpgroup each; a single one has the warps of the launch. More than one take registers from the
    producer. `idle`: a role, with its arguments, that fills up the producer's warpgroup.
    """
    # From a helper's arguments, functions come as constexprs.
    compute, producer, count = map(unwrap, (compute, producer, CONSUMERS))
    roles = [(compute, (args, gl.constexpr(which))) for which in range(count)]
    roles.append((producer, args[:2]))
    warps = [4] * (count - 1) + [1]
    registers = {1: [], 2: [240], 3: [160, 160]}[count] + [24]
    if idle:
        roles += [idle, idle]
        warps, registers = [*warps, 1, 2], [*registers, 24, 24]
    gl.warp_specialize(roles, warps, registers, _semantic=_semantic, _generator=_generator)
