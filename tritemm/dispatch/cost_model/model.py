"""The seconds that a kernel is expected to take, in a few microseconds of Python.

The time of the busiest SM: its share of the tiles, each a number of k-steps with a beginning and an
end; or the device's memory traffic, or what its power limit allows, whichever is longest. A k-step
is bound by arithmetic, by what the SM and what all SMs can draw from L2, and by the latency of the
loads in flight, whose squares add up. Around it stand the launch, the copies of packed operands and
the sum over a split K.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ...arch import gpus
from ...arch.roles import OWNERS
from ...problem import INTERPRETER, Problem
from ...problem.config import Config
from ...spec import Kernel
from .kind import AlikeShape, Kind, Shape, kind_of

#: Seconds of a tile's k-step in Triton's interpreter (measured on one core).
_INTERPRETED_STEP = 0.3e-3


class Parts(NamedTuple):
    """Seconds. `memory` passes beside `steps`, `ends` and `reduction`.

    `overlap` is what the shorter of the two adds to the longer; of tiles that are alike, what is
    waited for loads.
    """

    total: float
    pack: float
    launch: float
    steps: float
    ends: float
    reduction: float
    memory: float
    overlap: float


def predict(kernel: Kernel, problem: Problem, config: Config) -> float:
    """Seconds that `kernel` is expected to take for `problem` in `config`."""
    return parts(kernel, problem, config).total


def parts(kernel: Kernel, problem: Problem, config: Config) -> Parts:
    """What `predict` adds up."""
    scene = scene_of(config.view(problem), pack_bytes(problem, config.PACK))
    return next(scene.parts(kernel, (config,)))


def roofline(problem: Problem) -> tuple[float, float]:
    """Seconds of the arithmetic and of the bytes, each at its full rate."""
    rate = gpus.flop_rate(problem.a.dtype, problem.precision, problem.device)
    return problem.flops / rate, problem.bytes / gpus.physics(problem.device).copy_rate


def pack_bytes(problem: Problem, operands: str) -> int:
    """That the copies of `operands` read and write."""
    moved = 0
    for name in operands:
        matrix = getattr(problem, name)
        copies = 1
        for size, stride in zip(problem.batches, matrix.strides, strict=False):
            copies *= size if stride else 1
        moved += 2 * copies * matrix.rows * matrix.cols * matrix.dtype.itemsize
    return moved


#: Bytes of operands and C whose requests come in one burst.
BURST = 1e6
#: Seconds of work in which half of `throttle` is seen.
BRIEF = 5e-5
#: Where consumers take turns, what follows the sums of one slows the other down by this share of
#: it, and takes so many times as long as where all warps do it.
_CONTENDED = 0.22
_ALONE = 1.5
#: What stands for the numbers of a config that another is known to beat.
_BEATEN = (math.inf,) * 8


class Scene:
    """One problem as a kernel sees it, and all that its configs share.

    `copied`: bytes that were read and written to pack its operands.
    """

    def __init__(self, view: Problem, copied: int = 0, kind: Kind | None = None):
        self.kind = kind or kind_of(view)
        self.M, self.N, self.K, self.batch = view.M, view.N, view.K, view.batch
        self.tiles = view.space.tiles
        self.bytes, self.copied = view.bytes, copied
        self.stored = view.space.elements * self.kind.out
        # The share of them that is read: what is stored counts among the ends.
        self.read = 1 - self.stored / view.bytes
        # Of 16-bit operands, which draw as much power as these.
        self.flops = view.flops * self.kind.flop_rate_16 / self.kind.flop_rate

    def parts(self, kernel: Kernel, configs: Iterable[Config]) -> Iterator[Parts]:
        """Of `kernel` in each of its configs; PACK and SWAP are the scene's."""
        shapes = [self.kind.shape(kernel, config) for config in configs]
        return (Parts(*numbers) for numbers in self._times(kernel, shapes))

    def seconds(
        self, kernel: Kernel, configs: Sequence[Config], below: float | None = None
    ) -> list[float]:
        """The totals of `parts`; quicker where the rung gives the same objects for many problems.

        With `below`, infinity for what takes at least that long, or as long as a config before it,
        where that is seen early.
        """
        shapes = self.kind.shapes(kernel, configs)
        return [numbers[0] for numbers in self._times(kernel, shapes, below)]

    def _times(
        self, kernel: Kernel, shapes: Iterable[Shape], below: float | None = None
    ) -> Iterator[tuple[float, ...]]:
        """The numbers of `Parts`, of each shape; `below` as in `seconds`."""
        kind, cost = self.kind, kernel.cost
        c, sms = kind.constants, kind.sms
        launch, cold, _, shown = c.of_rung(kernel)
        pack = c.pack + self.copied / c.memory_rate if self.copied else 0.0
        before = pack + launch + cold * self.bytes / (self.bytes + BURST)
        if cost.independent_ctas:
            yield from self._alike_times(kernel, shapes, pack, launch, before)
            return
        resident, level, turns, exchanges = (
            cost.persistent, cost.stream_k, cost.pingpong, cost.exchanges
        )  # fmt: skip
        memory_rate, sm_memory_rate, pair_rate = c.memory_rate, c.sm_memory_rate, c.pair_rate
        throttle, prune, pairs = c.throttle, below is not None, sms / 2
        padding = c.padding * self.K * self.batch * kind.itemsize  # of a row or column of tiles
        crowding = 0.0
        if c.crowd:
            beyond_l2 = max(0, self.stored - gpus.physics(kind.device).l2)
            crowding = beyond_l2 / memory_rate * kind.out * (2 if turns else 1) / c.crowd
        M, N, K, tiles_of = self.M, self.N, self.K, self.tiles
        for (m, n, depth, split, cut, cluster, room, stored, step, beside, ends, least_ends,
             together, after, hunger) in shapes:  # fmt: skip
            rows, columns = m, n  # of a cluster
            if cluster == 1:
                tiles = tiles_of(m, n)
            else:
                # Its programs stand one below the other, or side by side where that takes fewer,
                # or as many with more rows than columns.
                high, wide = tiles_of(m * cluster, n), tiles_of(m, n * cluster)
                if wide < high or (wide == high and m > n):
                    high, step, columns = wide, beside, n * cluster
                else:
                    rows = m * cluster
                tiles = cluster * high
            steps = -(-K // depth)
            alone, drawn = step
            if level:
                # Of the tiles beyond the last full round, each is shared by `split` programs.
                rest = tiles % sms
                sharers = rest * split if rest * split < sms else sms
                active = last = sms if tiles >= sms else sharers
                split = -(-sharers // rest) if rest else 1
                share = tiles // sms + (rest / sharers if rest else 0)
                work = steps * share * math.sqrt(alone + drawn * active * active)
            else:
                tiles *= split
                pieces = -(-K // cut)
                steps = -(-pieces // split) * (cut // depth)
                share = -(-tiles // room)
                # The programs of the last round share L2 with fewer others.
                last = tiles - (share - 1) * room
                work = math.sqrt(alone + drawn * last * last)
                if share > 1:
                    work += (share - 1) * math.sqrt(alone + drawn * room * room)
                work *= steps
                active = tiles if tiles < sms else sms
            work *= 1 + throttle * work / (work + BRIEF)
            if prune and before + work + least_ends >= below:
                yield _BEATEN
                continue
            shared_rate = memory_rate / active
            rate = sm_memory_rate if sm_memory_rate < shared_rate else shared_rate
            ends += stored / rate
            if not resident:
                ends *= -(-share // together)
            elif share > 1:
                ends *= 1 + (share - 1) * shown
            if after:
                if turns and share > 1:
                    # The other consumer multiplies meanwhile, unless what follows takes longer.
                    late = _CONTENDED * after
                    beyond = _ALONE * after - work / share / 2
                    late = late if late > beyond else beyond
                    after += (share - 1) * late
                else:
                    after *= share
                ends += after

            reduction = 0.0
            if exchanges:
                sent = 4 * m * n * (1 - 1 / split)
                reduction = share * (c.exchange + sent / c.exchange_rate)
            elif split > 1:
                # Each part is written, and the last program reads them all; or, where all run at
                # once, each reads its share.
                if level:
                    parts = 1 + split
                elif share > 1:
                    parts = share + split
                else:
                    parts = 1 + max(1.0, split / min(OWNERS, max(1, n // 8)))
                reduction = c.reduction + split * c.gather + parts * 4 * m * n / c.sum_rate
            moved = self.bytes
            if padding:
                moved += padding * (-M % rows + -N % columns)
            if level and tiles < sms and self.bytes > gpus.physics(kind.device).l2:
                # Programs in the middle of K read other parts of the operands than their
                # neighbours do, and nothing is left in L2 for the next.
                moved = max(moved, tiles * (m + n) * K * kind.itemsize)
            memory = moved / memory_rate
            busy = work + ends + reduction
            power = self.flops * hunger
            busy = busy if busy > power else power
            read = memory * self.read
            overlap = c.overlap * (busy if busy < read else read)
            if room == sms:
                # In the last round each pair of SMs reads as much, with one of them at work or two.
                each = moved / (active if level else tiles)
                earlier = moved - each * (last if last <= pairs else last - pairs)
                late = earlier / memory_rate + each / pair_rate
                memory = memory if memory > late else late
            # The more bytes of C are on their way at once, the longer the memory takes for each.
            memory += crowding * m * n * active * together
            total = before + (busy if busy > memory else memory) + overlap
            if prune and total < below:
                below = total
            yield total, pack, launch, work, ends, reduction, memory, overlap

    def _alike_times(
        self, kernel: Kernel, shapes: Iterable[AlikeShape], pack: float, launch: float,
        before: float,
    ) -> Iterator[tuple[float, ...]]:  # fmt: skip
        """The same where tiles are alike: programs work while others of their SM wait for loads."""
        kind, gathering = self.kind, kernel.cost.gathering
        stored = kind.stored()
        c, sms = kind.constants, kind.sms
        for m, n, depth, split, step, ends, together, in_flight in shapes:
            tiles = self.tiles(m, n) * split
            pieces = -(-self.K // depth)
            steps = -(-pieces // split)
            share = -(-tiles // sms)
            active = tiles if tiles < sms else sms
            groups = max(1.0, share / together)
            work = steps * share * step / (1 + c.boost * (1 - tiles / (share * sms)))
            rate = min(c.sm_memory_rate, c.memory_rate / active)
            ends = (ends + stored * m * n / rate + kind.finish * m * n) * share
            reduction = 0.0
            if split > 1:
                parts = 1 + max(1.0, split / min(OWNERS, max(1, n // 8)))
                parts = share + split if share > 1 else parts
                reduction = gathering * (c.reduction + split * c.gather)
                reduction += parts * 4 * m * n / c.sum_rate
            memory = self.bytes / (active * rate)
            waits = steps * c.wait / (in_flight * groups)
            total = before + max(work + ends + reduction, memory) + waits
            yield total, pack, launch, work, ends, reduction, memory, waits


class Interpreted(Scene):
    """In Triton's interpreter: a tile's k-step takes the same time, however large the tile is."""

    def _times(
        self, kernel: Kernel, shapes: Iterable[Shape], below: float | None = None
    ) -> Iterator[tuple[float, ...]]:
        for m, n, depth, split, *_ in shapes:
            tiles = self.tiles(m, n) * split
            seconds = tiles * -(-self.K // depth) * _INTERPRETED_STEP
            yield seconds, 0.0, 0.0, seconds, 0.0, 0.0, 0.0, 0.0


def scene_of(view: Problem, copied: int = 0) -> Scene:
    """The scene of the problem's device."""
    return (Interpreted if view.device == INTERPRETER else Scene)(view, copied)
