"""The roles of a program's warps: a producer loads, up to three consumers multiply and store.

A rung writes its consumer, `compute(args, WHICH)`, and passes it to `run_roles`. `args` begin with
the scheduler and the mainloop, all that a producer needs.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from .language import builtin, unwrap


@gluon.jit
def load(work, loop):
    """The producer: loads every step of every unit of this program."""
    work = work.begun() if work.SHAPE.GROUPS != "" else work
    load_from(work, loop, work.unit(work.first()))


@gluon.jit
def load_from(work, loop, unit):
    """Load every step of `unit`, this program's first, and of those that follow.

    Locating a unit takes divisions, so they are done before the wait for the previous launch, and
    before the end of the previous unit.
    """
    gdc_wait()
    n = gl.to_tensor(0)
    last = work.units() - 1
    for i in range(work.first(), last + 1, work.stride()):
        n = loop.load(n, unit)
        unit = work.unit(gl.minimum(i + work.stride(), last))


@gluon.constexpr_function
def workers(shape, clustered):
    """Warps and registers of each role after the first consumer, which has the launch's.

    Consumers have a warpgroup each, if there are several, and get registers from the producer. In a
    cluster idle warps fill the producer's warpgroup. A producer that copies scales needs more.
    """
    consumers = shape.CONSUMERS.value
    warps = [4] * (consumers - 1) + [1] + [1, 2] * clustered
    each, few = {1: (240, 24), 2: (240, 24), 3: (160, 24)}[consumers]
    if shape.SUMS == "block":
        each, few = each - 8, few + 16
    registers = [each] * (consumers - 1) + [few] + [few, few] * clustered
    return warps, registers


@gluon.jit
def run_roles(compute: gl.constexpr, producer: gl.constexpr, args):
    """Run `compute` in each of the consumers and `producer` in one warp, until all end."""
    specialize(compute, producer, args, (), workers(args[0].SHAPE, False))


@builtin
def specialize(compute, producer, args, IDLE, WORKERS, _semantic=None, _generator=None):
    """`gl.warp_specialize`, in Python: a jit function can't make a list of roles of any length.

    Triton's cache doesn't see this code, so it only puts its arguments in order.
    """
    warps, registers = unwrap(WORKERS)
    consumers = len(warps) - len(IDLE)
    roles = [(unwrap(compute), (args, gl.constexpr(which))) for which in range(consumers)]
    roles += [(unwrap(producer), args[:2]), *IDLE]
    gl.warp_specialize(roles, warps, registers, _semantic=_semantic, _generator=_generator)
