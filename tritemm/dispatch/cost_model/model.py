"""The predicted seconds of kernels, for all candidates of a choice at once.

They are the time of the busiest SM: its share of the tiles, each with a number of k-steps, a
beginning and an end; or the device's memory traffic, or the power limit, whichever is longest. A
k-step is bound by arithmetic, by the SM's and all SMs' rates from L2, and by the latency of the
loads in flight, whose squares add up. To these come the launch, the copies of packed operands and
the reduction of a split K.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...arch import gpus
from ...problem import INTERPRETER, Problem
from ...problem.config import Config
from ...spec import Kernel
from . import constants as known
from .columns import Column, Columns, Group, Still, columns_of
from .constants import Constants

#: Seconds of a tile's k-step in Triton's interpreter, however large the tile is, on one core.
_INTERPRETED_STEP = 0.3e-3
#: Bytes of operands and C whose requests come in one burst.
BURST = 1e6
#: Seconds of work in which half of `Constants.throttle` is seen.
BRIEF = 5e-5
#: If consumers take turns, one's epilogue slows the other down by this share of it, and takes this
#: many times as long as when all warps do it.
_CONTENDED, _ALONE = 0.22, 1.5
#: Seconds of an SM per element that one of two consumers in turns stores twice.
_MIRRORED = 80e-12


class Breakdown(NamedTuple):
    """Seconds. `memory` overlaps `steps`, `ends` and `reduction`.

    `overlap` is what the shorter of the two adds to the longer; for tiles that are alike, including
    the wait for loads.
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
    """How the tiles of a product are distributed over the SMs."""

    a_sharers: Column  # programs of a cluster that share a tile of A
    b_sharers: Column
    whole: Column  # tiles with all of K
    units: Column  # tiles with a part of K each, or programs if they share the last wave
    split: Column  # parts of a tile's K
    steps: Column  # k-steps of a unit
    share: Column  # units of the busiest SM
    full: Column  # waves of all programs
    rest: Column  # and waves of `last` programs
    last: Column
    active: Column  # SMs at work


def predict(kernel: Kernel, problem: Problem, config: Config) -> float:
    """Predicted seconds of `kernel` for `problem` in `config`."""
    return breakdown(kernel, problem, config).total


def breakdown(
    kernel: Kernel, problem: Problem, config: Config, constants: Constants | None = None
) -> Breakdown:
    """The parts whose sum is `predict`."""
    group = Group(kernel, (config,), config.view(problem), problem.copied(config.PACK))
    if problem.device == INTERPRETER:
        steps = float(_interpreted(group)[0])
        return Breakdown(steps, 0.0, 0.0, steps, 0.0, 0.0, 0.0, 0.0)
    constants = constants or known.of(problem.device)
    found = _expected([group], constants)
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
        found[rows == kind] = _expected(some, constants).total
    return found


def _expected(groups: Sequence[Group], constants: Constants) -> Breakdown:
    """The result of `times`; for groups that share M or N, the mean of typical and even ones.

    With either alone, the choice would be a tile that it fills, but that others leave nearly empty.
    """
    found = times(columns_of(groups, constants), constants)
    if groups[0].view.groups not in ("m", "n"):
        return found
    even = times(columns_of(groups, constants, even=True), constants)
    return Breakdown(*((a + b) / 2 for a, b in zip(found, even, strict=True)))


def roofline(problem: Problem) -> tuple[float, float]:
    """Seconds of the arithmetic and of the bytes, each at its full rate."""
    rate = gpus.flop_rate(problem.a.dtype, problem.precision, problem.device)
    return problem.flops / rate, problem.bytes / gpus.physics(problem.device).copy_rate


def times(x: Columns, c: Constants, xp=np) -> Breakdown:
    """The formula, on NumPy's columns and plain constants, or on tensors with those of `xp`."""
    view, w = x.view, _waves(x, xp)
    pack = (view.copied > 0) * c.pack + view.copied / c.memory_rate if x.packed else 0.0
    before = pack + view.launch + view.cold * view.bytes / (view.bytes + BURST)
    rate = xp.minimum(c.sm_memory_rate, c.memory_rate / w.active)  # B/s of an SM
    still = x.still or Still.of(view, x.tile, c, xp)
    if x.alike:
        steps = _alike_steps(x, w, c)
    else:
        memory, reads = _memory(x, w, c, xp)
        steps = _ring_steps(x, w, c, still, reads, xp)
    ends = _ends(x, w, c, rate, still, xp)
    if x.finished:
        ends = ends + _epilogue(x, w, steps, xp)
    reduction = _reduction(x, w, c, xp) if x.in_parts else 0.0
    busy = steps + ends + reduction
    if x.alike:
        memory = view.bytes / (w.active * rate)
        waits = w.steps * c.wait / (x.tile.flying * xp.maximum(1, w.share / x.tile.together))
        overlap = waits + (busy**4 + memory**4) ** 0.25 - xp.maximum(busy, memory)
    else:
        busy = xp.maximum(busy, view.flops * still.power)
        overlap = c.overlap * xp.minimum(busy, reads)
    total = before + xp.maximum(busy, memory) + overlap
    return Breakdown(total, pack, view.launch, steps, ends, reduction, memory, overlap)


def _tiles(x: Columns, rows, columns, xp):
    """Tiles of a product of the batch, as `TileSpace` counts them."""
    view = x.view
    dense = xp.ceil(view.M / rows) * xp.ceil(view.N / columns)
    if not x.symmetric:
        return dense
    side = np.lcm(rows.astype(int), columns.astype(int))
    squares = np.ceil(view.N / side)
    triangle = squares * (squares + 1) / 2 * (side / rows) * (side / columns)
    return np.where(view.symmetric, triangle, dense)


def _waves(x: Columns, xp) -> Waves:
    view, tile, sms = x.view, x.tile, x.sms
    # A cluster's programs are one below the other, or side by side if that takes fewer, or as
    # many with more rows than columns.
    high = _tiles(x, tile.m * tile.cluster, tile.n, xp)
    wide = _tiles(x, tile.m, tile.n * tile.cluster, xp)
    beside = wide < high + tile.taller / 2
    a_sharers = xp.where(beside, tile.cluster, 1)
    whole = tile.cluster * xp.where(beside, wide, high) * view.batch
    units = whole * tile.split
    share = xp.ceil(units / tile.room)
    full = share - 1
    even = Waves(
        a_sharers,
        tile.cluster / a_sharers,
        whole,
        units,
        tile.split,
        steps=xp.ceil(xp.ceil(view.K / tile.cut) / tile.split) * tile.cuts,
        share=share,
        full=full,
        rest=1.0,
        last=units - full * tile.room,
        active=xp.minimum(units, sms),
    )
    if not x.leveled:
        return even
    level = view.level > 0
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
    rows = zip(leveled, even, strict=True)
    return Waves(*(a if a is b else xp.where(level, a, b) for a, b in rows))


def _ring_steps(x: Columns, w: Waves, c: Constants, still: Still, reads: Column, xp) -> Column:
    """The k-steps of the busiest SM, whose tiles come through a ring in shared memory.

    `reads`: seconds of the device's memory for A and B.
    """
    view, tile, products, latency = x.view, x.tile, still.products, still.latency
    if x.by_ffma:
        # A program waits for its reads of shared memory as long as it multiplies, and others of the
        # SM multiply meanwhile.
        products = products * (1 + view.ffma / xp.minimum(w.share, tile.together) ** 2)
    drawn = still.a_drawn / w.a_sharers + still.b_drawn / w.b_sharers
    count = w.steps * view.pairs * tile.step
    if c.loaded:
        # The longer memory reads alongside the work, the longer loads take.
        without = count * (w.full + w.rest) * (products + latency + c.beat**2) ** 0.5
        share = reads / xp.maximum(reads + without, 1e-12)
        latency = latency * (1 + c.loaded * share) ** 2
    alone = products + (drawn / c.sm_rate) ** 2 + latency + c.beat**2
    together = (drawn / c.l2_rate) ** 2
    full, last = ((alone + together * n**2) ** 0.5 for n in (tile.room, w.last))
    steps = count * (w.full * full + w.rest * last)
    return steps * (1 + c.throttle * steps / (steps + BRIEF))


def _alike_steps(x: Columns, w: Waves, c: Constants) -> Column:
    """The same where tiles are alike: programs work while others of their SM wait for loads."""
    idle = 1 - w.units / (w.share * x.sms)
    return w.steps * w.share * x.view.load * x.tile.loads * x.tile.step / (1 + c.boost * idle)


def _ends(x: Columns, w: Waves, c: Constants, rate: Column, still: Still, xp) -> Column:
    """The cost of tiles besides their k-steps, with the stores of C at the `rate` of an SM."""
    view, tile, stored = x.view, x.tile, still.stored / rate
    if x.alike:
        return (view.load_ends + c.lanes * tile.accumulators + stored) * w.share
    hidden = 1 + xp.maximum(w.share - 1, 0) * view.shown
    tiles = xp.where(view.resident > 0, hidden, xp.ceil(w.share / tile.together))
    return (still.ends + stored + view.found * (1 - view.turns)) * tiles


def _epilogue(x: Columns, w: Waves, steps: Column, xp) -> Column:
    element = x.view.epilogue + _MIRRORED * x.view.symmetric * x.view.turns
    each = element * x.tile.own * x.tile.slow
    # The other consumer multiplies meanwhile, unless the epilogue takes longer.
    late = xp.maximum(_CONTENDED * each, _ALONE * each - steps / w.share / 2)
    in_turns = each + (w.share - 1) * late
    return xp.where((x.view.turns > 0) & (w.share > 1), in_turns, each * w.share)


def _reduction(x: Columns, w: Waves, c: Constants, xp) -> Column:
    """The time to add the parts of a split K, in device memory or within a cluster."""
    view, split, partial = x.view, w.split, x.tile.partial
    # Each part is written, and the last program reads them all; or, where all run at once, each
    # reads its share.
    at_once = 1 + xp.maximum(1, split / x.tile.owners)
    moved = xp.where(w.share > 1, w.share + split, at_once)
    if x.leveled:
        moved = xp.where(view.level > 0, 1 + split, moved)
    added = view.gathering * (c.reduction + split * c.gather) + moved * partial / c.partial_rate
    sent = partial * (1 - 1 / split)
    exchanged = w.share * (c.exchange + sent / c.exchange_rate)
    return xp.where(view.exchanges > 0, exchanged, xp.where(split > 1, added, 0.0))


def _memory(x: Columns, w: Waves, c: Constants, xp) -> tuple[Column, Column]:
    """Seconds of the device's memory, and of its reads alone, because stores are in the ends."""
    view, tile, sms, l2 = x.view, x.tile, x.sms, x.l2
    moved = view.bytes
    if c.padding:
        beyond = -view.M % (tile.m * w.b_sharers) + -view.N % (tile.n * w.a_sharers)
        moved = moved + c.padding * beyond * view.K * view.batch * view.itemsize
    if x.leveled:
        # Programs in the middle of K read other parts of the operands than their neighbours do,
        # and leave nothing in L2 for the next.
        again = (view.level > 0) & (w.whole < sms) & (view.bytes > l2)
        streamed = w.whole * (tile.m + tile.n) * view.K * view.itemsize
        moved = xp.maximum(moved, again * streamed)
    memory = moved / c.memory_rate
    # In the last wave each pair of SMs reads as much, whether one or both work.
    each = moved / w.units
    pairs = xp.where(w.last <= sms / 2, w.last, w.last - sms / 2)
    late = (moved - each * pairs) / c.memory_rate + each / c.pair_rate
    reads = memory * (1 - view.stored / view.bytes)
    crowded = (tile.cluster > 1) & (w.last > tile.room / 2)
    late = xp.where(crowded, each / c.crowded_rate, xp.where(tile.room == sms, late, 0.0))
    memory = xp.maximum(memory, late)
    if c.crowd:
        # The more bytes of C are in flight at once, the longer the memory takes for each.
        flying = w.active * tile.together * tile.m * tile.n * view.element * (1 + view.turns)
        beyond_l2 = xp.maximum(view.stored - l2, 0)
        memory = memory + beyond_l2 / c.memory_rate * flying / c.crowd
    return memory, reads


def _interpreted(group: Group) -> np.ndarray:
    """In Triton's interpreter, one program after another."""
    view = group.view
    steps = [c.tiles(view) * c.SPLIT_K * -(-view.K // c.BLOCK_K) for c in group.configs]
    return _INTERPRETED_STEP * np.array(steps, dtype=float)
