"""The seconds that kernels are expected to take, for all candidates of a choice at once.

The time of the busiest SM: its share of the tiles, each a number of k-steps with a beginning and an
end; or the device's memory traffic, or what its power limit allows, whichever is longest. A k-step
is bound by arithmetic, by what the SM and what all SMs can draw from L2, and by the latency of the
loads in flight, whose squares add up. Around it stand the launch, the copies of packed operands and
the reduction of a split K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...arch import gpus
from ...arch.roles import OWNERS
from ...problem import INTERPRETER, Problem
from ...problem.config import Config
from ...spec import Kernel
from . import constants as known
from .columns import SECTOR, Column, Columns, Group, View, columns_of
from .constants import Constants

#: Seconds of a tile's k-step in Triton's interpreter, however large the tile is, on one core.
_INTERPRETED_STEP = 0.3e-3
#: Bytes of operands and C whose requests come in one burst.
BURST = 1e6
#: Seconds of work in which half of `Constants.throttle` is seen.
BRIEF = 5e-5
#: Where consumers take turns, the epilogue of one slows the other down by this share of it, and
#: takes so many times as long as where all warps do it.
_CONTENDED, _ALONE = 0.22, 1.5
#: Seconds of an SM for an element that one of two consumers in turns stores twice.
_MIRRORED = 80e-12


class Breakdown(NamedTuple):
    """Seconds. `memory` passes beside `steps`, `ends` and `reduction`.

    `overlap` is what the shorter of the two adds to the longer; of tiles that are alike, what is
    waited for loads.
    """

    total: Column
    pack: Column
    launch: Column
    steps: Column
    ends: Column
    reduction: Column
    memory: Column
    overlap: Column


class Waves(NamedTuple):
    """How the tiles of a product come to lie on the SMs."""

    a_sharers: Column  # programs of a cluster that share a tile of A
    b_sharers: Column
    whole: Column  # tiles with all of K
    units: Column  # tiles with a part of K each, or programs where they share out the last wave
    split: Column  # parts of a tile's K
    steps: Column  # k-steps of a unit
    share: Column  # units of the busiest SM
    full: Column  # waves of all programs
    rest: Column  # and waves of `last` programs
    last: Column
    active: Column  # SMs at work


def predict(kernel: Kernel, problem: Problem, config: Config) -> float:
    """Seconds that `kernel` is expected to take for `problem` in `config`."""
    return breakdown(kernel, problem, config).total


def breakdown(
    kernel: Kernel, problem: Problem, config: Config, constants: Constants | None = None
) -> Breakdown:
    """What `predict` adds up."""
    group = Group(kernel, (config,), config.view(problem), problem.copied(config.PACK))
    if problem.device == INTERPRETER:
        steps = float(_interpreted(group)[0])
        return Breakdown(steps, 0.0, 0.0, steps, 0.0, 0.0, 0.0, 0.0)
    constants = constants or known.of(problem.device)
    found = times(columns_of([group], constants), constants)
    return Breakdown(*(float(column[0]) for column in np.broadcast_arrays(*found)))


def seconds(groups: Sequence[Group], constants: Constants | None = None) -> np.ndarray:
    """The totals of all configs, one group after another."""
    device = groups[0].view.device
    if device == INTERPRETER:
        return np.concatenate([_interpreted(group) for group in groups])
    constants = constants or known.of(device)
    alike = [group.kernel.cost.independent_ctas for group in groups]
    rows = np.repeat(alike, [len(group.configs) for group in groups])
    found = np.empty(len(rows))
    for kind in set(alike):
        some = [group for group in groups if group.kernel.cost.independent_ctas == kind]
        found[rows == kind] = times(columns_of(some, constants), constants).total
    return found


def roofline(problem: Problem) -> tuple[float, float]:
    """Seconds of the arithmetic and of the bytes, each at its full rate."""
    rate = gpus.flop_rate(problem.a.dtype, problem.precision, problem.device)
    return problem.flops / rate, problem.bytes / gpus.physics(problem.device).copy_rate


def times(x: Columns, c: Constants, xp=np) -> Breakdown:
    """The formula: of NumPy's columns and plain constants, or of tensors with those of `xp`."""
    view, w = x.view, _waves(x, xp)
    pack = (view.copied > 0) * c.pack + view.copied / c.memory_rate
    before = pack + view.launch + view.cold * view.bytes / (view.bytes + BURST)
    rate = xp.minimum(c.sm_memory_rate, c.memory_rate / w.active)  # B/s of an SM
    steps = _alike_steps(x, w, c) if x.alike else _ring_steps(x, w, c, xp)
    ends = _ends(x, w, c, rate, xp) + _epilogue(x, w, steps, xp)
    reduction = _reduction(x, w, c, xp)
    busy = steps + ends + reduction
    if x.alike:
        memory = view.bytes / (w.active * rate)
        overlap = w.steps * c.wait / (x.tile.flying * xp.maximum(1, w.share / x.tile.together))
    else:
        power = x.tile.hungry * (c.power + c.traffic * (1 / x.tile.m + 1 / x.tile.n))
        busy = xp.maximum(busy, view.flops * power)
        memory, reads = _memory(x, w, c, xp)
        overlap = c.overlap * xp.minimum(busy, reads)
    total = before + xp.maximum(busy, memory) + overlap
    return Breakdown(total, pack, view.launch, steps, ends, reduction, memory, overlap)


def _tiles(view: View, rows, columns, xp):
    """Tiles of a product of the batch, as `TileSpace` counts them."""
    dense = xp.ceil(view.M / rows) * xp.ceil(view.N / columns)
    if not view.symmetric.any():
        return dense
    side = np.lcm(rows.astype(int), columns.astype(int))
    squares = np.ceil(view.N / side)
    triangle = squares * (squares + 1) / 2 * (side / rows) * (side / columns)
    return np.where(view.symmetric, triangle, dense)


def _waves(x: Columns, xp) -> Waves:
    view, tile, sms = x.view, x.tile, x.sms
    # A cluster's programs stand one below the other, or side by side where that takes fewer, or as
    # many with more rows than columns.
    high = _tiles(view, tile.m * tile.cluster, tile.n, xp)
    wide = _tiles(view, tile.m, tile.n * tile.cluster, xp)
    beside = (wide < high) | ((wide == high) & (tile.m > tile.n))
    a_sharers = xp.where(beside, tile.cluster, 1)
    whole = tile.cluster * xp.where(beside, wide, high) * view.batch
    units = whole * tile.split
    share = xp.ceil(units / tile.room)
    even = Waves(
        a_sharers,
        tile.cluster / a_sharers,
        whole,
        units,
        tile.split,
        steps=xp.ceil(xp.ceil(view.K / tile.cut) / tile.split) * (tile.cut / tile.k),
        share=share,
        full=share - 1,
        rest=share / share,
        last=units - (share - 1) * tile.room,
        active=xp.minimum(units, sms),
    )
    level = view.level > 0
    if not level.any():
        return even
    # Of the tiles beyond the last full wave, each is shared by `split` programs.
    left = whole % sms
    sharers = xp.minimum(left * tile.split, sms)
    active = xp.where(whole >= sms, sms, sharers)
    share = whole // sms + left / xp.maximum(sharers, 1)
    leveled = even._replace(
        units=active,
        split=xp.maximum(1, xp.ceil(sharers / xp.maximum(left, 1))),
        steps=xp.ceil(view.K / tile.k),
        share=share,
        full=0 * share,
        rest=share,
        last=active,
        active=active,
    )
    return Waves(*(xp.where(level, a, b) for a, b in zip(leveled, even, strict=True)))


def _ring_steps(x: Columns, w: Waves, c: Constants, xp) -> Column:
    """The k-steps of the busiest SM, whose tiles come through a ring in shared memory."""
    view, tile = x.view, x.tile
    products = tile.flops * view.flop * (1 + c.turned * view.turned) / x.view.efficiency
    # On FFMA a program waits for its reads of shared memory as long as it multiplies, and others of
    # the SM multiply meanwhile.
    products = products * (1 + view.ffma / xp.minimum(w.share, tile.together) ** 2) ** 0.5
    drawn = tile.drawn * (1 + c.straddle * tile.lines + c.off_sector * tile.sectors)
    drawn = drawn[0] / w.a_sharers + drawn[1] / w.b_sharers
    alone = products**2 + (drawn / c.sm_rate) ** 2 + (c.latency / tile.flying) ** 2
    together = (drawn / c.l2_rate) ** 2
    full, last = ((alone + together * n**2) ** 0.5 for n in (tile.room, w.last))
    steps = w.steps * view.pairs * tile.step * (w.full * full + w.rest * last)
    return steps * (1 + c.throttle * steps / (steps + BRIEF))


def _alike_steps(x: Columns, w: Waves, c: Constants) -> Column:
    """The same where tiles are alike: programs work while others of their SM wait for loads."""
    idle = 1 - w.units / (w.share * x.sms)
    return w.steps * w.share * x.view.load * x.tile.loads / (1 + c.boost * idle)


def _ends(x: Columns, w: Waves, c: Constants, rate: Column, xp) -> Column:
    """What tiles cost beside their k-steps, with the stores of C at the `rate` of an SM."""
    view, tile = x.view, x.tile
    by_threads = c.narrow_store * (1 + SECTOR / tile.run)  # a run stores two sectors in part
    by_tma = xp.maximum(tile.run, c.part_store) / tile.run
    stored = tile.own * view.element * xp.where(view.by_threads > 0, by_threads, by_tma) / rate
    if x.alike:
        return (view.load_ends + c.lanes * tile.accumulators + stored) * w.share
    hidden = 1 + xp.maximum(w.share - 1, 0) * view.shown
    tiles = xp.where(view.resident > 0, hidden, xp.ceil(w.share / tile.together))
    return (view.ends * tile.late + c.drain * tile.drains + stored) * tiles


def _epilogue(x: Columns, w: Waves, steps: Column, xp) -> Column | float:
    element = x.view.epilogue + _MIRRORED * x.view.symmetric * x.view.turns
    if not element.any():
        return 0.0
    each = element * x.tile.own * x.tile.slow
    # The other consumer multiplies meanwhile, unless the epilogue takes longer.
    late = xp.maximum(_CONTENDED * each, _ALONE * each - steps / w.share / 2)
    in_turns = each + (w.share - 1) * late
    return xp.where((x.view.turns > 0) & (w.share > 1), in_turns, each * w.share)


def _reduction(x: Columns, w: Waves, c: Constants, xp) -> Column:
    """To add up the parts of a split K, in device memory or within a cluster."""
    view, split, partial = x.view, w.split, 4 * x.tile.m * x.tile.n  # B
    # Each part is written, and the last program reads them all; or, where all run at once, each
    # reads its share.
    owners = xp.minimum(OWNERS, xp.maximum(1, x.tile.n // 8))
    at_once = 1 + xp.maximum(1, split / owners)
    moved = xp.where(w.share > 1, w.share + split, at_once)
    moved = xp.where(view.level > 0, 1 + split, moved)
    added = view.gathering * (c.reduction + split * c.gather) + moved * partial / c.partial_rate
    sent = partial * (1 - 1 / split)
    exchanged = w.share * (c.exchange + sent / c.exchange_rate)
    return xp.where(view.exchanges > 0, exchanged, xp.where(split > 1, added, 0.0))


def _memory(x: Columns, w: Waves, c: Constants, xp) -> tuple[Column, Column]:
    """Seconds of the device's memory, and of what is read, for what is stored is among the ends."""
    view, tile, sms, l2 = x.view, x.tile, x.sms, x.l2
    moved = view.bytes
    if c.padding:
        beyond = -view.M % (tile.m * w.b_sharers) + -view.N % (tile.n * w.a_sharers)
        moved = moved + c.padding * beyond * view.K * view.batch * view.itemsize
    # Programs in the middle of K read other parts of the operands than their neighbours do, and
    # nothing is left in L2 for the next.
    again = (view.level > 0) & (w.whole < sms) & (view.bytes > l2)
    streamed = w.whole * (tile.m + tile.n) * view.K * view.itemsize
    moved = xp.maximum(moved, again * streamed)
    memory = moved / c.memory_rate
    # In the last wave each pair of SMs reads as much, with one of them at work or two.
    each = moved / w.units
    pairs = xp.where(w.last <= sms / 2, w.last, w.last - sms / 2)
    late = (moved - each * pairs) / c.memory_rate + each / c.pair_rate
    reads = memory * (1 - view.stored / view.bytes)
    memory = xp.maximum(memory, xp.where(tile.room == sms, late, 0.0))
    if c.crowd:
        # The more bytes of C are on their way at once, the longer the memory takes for each.
        flying = w.active * tile.together * tile.m * tile.n * view.element * (1 + view.turns)
        beyond_l2 = xp.maximum(view.stored - l2, 0)
        memory = memory + beyond_l2 / c.memory_rate * flying / c.crowd
    return memory, reads


def _interpreted(group: Group) -> np.ndarray:
    """In Triton's interpreter, one program after another."""
    view = group.view
    steps = [c.tiles(view) * c.SPLIT_K * -(-view.K // c.BLOCK_K) for c in group.configs]
    return _INTERPRETED_STEP * np.array(steps, dtype=float)
