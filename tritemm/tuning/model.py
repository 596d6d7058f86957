"""The seconds that a kernel is expected to take, in a few microseconds of Python.

The time of the busiest SM: its share of the tiles, each a number of k-steps that are bound by
arithmetic, by what the SM can draw from L2, or by the latency of the loads in flight, and each
with a beginning and an end; or the device's memory traffic, or what its power limit allows,
whichever is longest. Around it stand the launch, the copies of packed operands and the sum over a
split K.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from ..bounded import Bounded
from ..kernels.common.parts import OWNERS
from ..kernels.pack import WORD
from ..problem import INTERPRETER, Matrix, Problem
from ..spec import Config, Kernel, clusters_at_once
from . import constants as known
from .constants import Constants

#: fp32 registers and threads of an SM; the addresses and indices of a thread beside its
#: accumulators, and where it has no ring.
_REGISTERS = 65536
_THREADS = 2048
_OTHER_REGISTERS = 64
_FEW_REGISTERS = 24
#: Seconds of a tile's k-step in Triton's interpreter (measured on one core).
_INTERPRETED_STEP = 2.3e-3


class Parts(NamedTuple):
    """Seconds. `memory` passes beside `steps`, `ends` and `reduction`.

    `overlap` is what the shorter of the two adds to the longer; without a ring, what is waited for
    loads.
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
    return next(scene.parts(kernel.name, (config,)))


def roofline(problem: Problem) -> tuple[float, float]:
    """Seconds of the arithmetic and of the bytes, each at its full rate."""
    memory_rate = known.of(problem.device).memory_rate
    return problem.flops / known.flop_rate(problem), problem.bytes / memory_rate


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


#: Bytes of operands that L2 keeps, of the 50 MB of an H200.
_L2 = 32 * 2**20
#: Bytes of a line of L2: a tile's row that straddles two lines is two requests.
_LINE = 128
#: Bytes of operands and C whose requests come in one burst.
_BURST = 1e6


#: Of a config, for a kind of scene: BLOCK_M, BLOCK_N, BLOCK_K, the parts of a split K, the programs
#: of a cluster that share loads, programs that have room at once, elements of C that a program
#: stores of a tile, seconds of a step where a cluster's programs stand one below the other, or side
#: by side, and of the ends, the least seconds of the ends with their stores, programs on an SM,
#: steps whose loads fly at once, the share of the ends that is not hidden.
_Shape = tuple[int, int, int, int, int, int, float, float, float, float, float, int, int, float]
#: (rung, kind of scene) -> id of a config -> the config and its shape. Hashing a config costs more
#: than working its shape out; the config is kept so that no other can have its id.
_SHAPES: dict[tuple, dict[int, tuple[Config, _Shape]]] = {}
#: Shapes that are kept of a rung and a kind of scene.
_MOST_SHAPES = 1 << 10
#: What stands for the numbers of a config that another is known to beat.
_BEATEN = (math.inf,) * 8


class Scene:
    """One problem as a kernel sees it, and all that its configs share.

    `copied`: bytes that were read and written to pack its operands.
    """

    def __init__(self, view: Problem, copied: int = 0, constants: Constants | None = None):
        device = view.device
        rates = _rates(view)
        self.constants = constants or rates.constants
        self.M, self.N, self.K, self.batch = view.M, view.N, view.K, view.batch
        self.itemsize, self.out = view.itemsize, view.c.dtype.itemsize
        self.sms, self.shared = device.sms, device.shared
        self.flop_rate, self.types = rates.flops / self.sms, rates.types
        # Of 16-bit operands, which draw as much power as these.
        self.flops = view.flops * rates.flops_16 / rates.flops
        self.copied = copied
        self.bytes = view.bytes
        self.b_bytes = view.N * view.K * view.batch * view.itemsize
        self.narrow = tuple(not _wide(matrix) for matrix in (view.a, view.b))
        # WGMMA reads only 16-bit operands along M or N; others are turned in shared memory.
        turns = view.a.dtype == torch.int8 or self.types[:2] in ("tf", "bf")
        self.turned = turns * ((view.a.layout != "N") + (view.b.layout != "T"))
        # C goes out 16 bytes at a time where its lines allow it.
        self.stores_wide = _stores_wide(view.c)
        self.requests = tuple(_requests(matrix) for matrix in (view.a, view.b))
        # Columns of B that are requested together: those of a line, where it is stored by rows.
        self.along = _LINE // self.itemsize if view.b.layout == "N" else 1
        self.layouts = view.a.layout + view.b.layout
        self.kind = (device.name, self.sms, self.types, self.itemsize, self.layouts, self.narrow,
                     self.turned, self.requests, self.out, self.stores_wide)  # fmt: skip

    @property
    def stored(self) -> float:
        """Bytes that take as long to store as an element of C."""
        return self.out * (1.0 if self.stores_wide else self.constants.narrow_store)

    def parts(self, kernel: str, configs: Iterable[Config]) -> Iterator[Parts]:
        """Of the rung called `kernel` in each of its configs; PACK and SWAP are the scene's."""
        shapes = [self._shape(kernel, config) for config in configs]
        return (Parts(*numbers) for numbers in self._times(kernel, shapes))

    def seconds(
        self, kernel: str, configs: Sequence[Config], below: float | None = None
    ) -> list[float]:
        """The totals of `parts`; quicker where the rung gives the same objects for many problems.

        With `below`, infinity for what takes at least that long, or as long as a config before it,
        where that is seen early.
        """
        table = _SHAPES.setdefault((kernel, self.kind), Bounded(_MOST_SHAPES))
        shapes = []
        for config in configs:
            found = table.get(id(config))
            if found is None:
                found = table[id(config)] = config, self._shape(kernel, config)
            shapes.append(found[1])
        return [numbers[0] for numbers in self._times(kernel, shapes, below)]

    def _shape(self, kernel: str, config: Config) -> _Shape:
        c = self.constants
        trait = known.trait(kernel)
        measured = c.steps.get(known.measured_as(kernel))
        key = known.key(trait, self.word(trait), config)
        pair = measured and (measured.get(key) or self._beside(measured, key, trait, config))
        if pair:
            step, ends = pair[0] * self.per_step(trait, config), pair[1]
        else:
            step, ends = self.analytic(trait, config)
        steps = [
            max(step, self._least_step(config, sharers))
            for sharers in ((1, config.CLUSTER), (config.CLUSTER, 1))
        ]
        together = 1 if trait.resident else self._together(trait, config)
        in_flight = config.num_stages if trait.alike else max(config.num_stages - 1, 1)
        m, n, k, split = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K, config.SPLIT_K
        own = m * n / split if trait.exchanges else m * n
        least_ends = ends + self.stored * own / c.sm_memory_rate
        shown = 1 - trait.hidden
        cluster = config.CLUSTER
        programs = split if trait.exchanges else cluster
        room = max(1, clusters_at_once(programs, self.sms)) * programs
        return (m, n, k, split, cluster, room, own, *steps, ends, least_ends, together, in_flight,
                shown)  # fmt: skip

    def _least_step(self, config: Config, sharers: tuple[int, int]) -> float:
        """Of the loads alone, if so many programs load a tile of A, and one of B, together."""
        columns = -(-config.BLOCK_N // self.along) * self.along
        lines = self.requests[0] * config.BLOCK_M / sharers[0]
        lines += self.requests[1] * columns / sharers[1]
        return lines * config.BLOCK_K * self.itemsize / self.constants.sm_rate

    def _times(
        self, kernel: str, shapes: Iterable[_Shape], below: float | None = None
    ) -> Iterator[tuple[float, ...]]:
        """The numbers of `Parts`, of each shape; `below` as in `seconds`."""
        c = self.constants
        trait = known.trait(kernel)
        resident, level = trait.resident, trait.level
        rereads, exchanges, ring = trait.rereads, trait.exchanges, not trait.alike
        name = known.measured_as(kernel)
        launch = c.launches.get(name, c.launch)
        pack = c.pack + self.copied / c.memory_rate if self.copied else 0.0
        cold = c.colds.get(name, c.cold)
        before = pack + launch + cold * self.bytes / (self.bytes + _BURST)
        memory_rate, sm_memory_rate = c.memory_rate, c.sm_memory_rate
        latency, boost = trait.waits * c.latency, c.boost
        prune = below is not None
        M, N, K, batch, sms = self.M, self.N, self.K, self.batch, self.sms
        stored, shares = self.stored, OWNERS.value
        for (m, n, depth, split, cluster, room, own, step, beside_step, ends, least_ends, together,
             in_flight, shown) in shapes:  # fmt: skip
            if cluster == 1:
                tiles = -(-M // m) * -(-N // n) * batch
            else:
                # Its programs stand one below the other, or side by side where that takes fewer,
                # or as many with more rows than columns.
                high = -(-M // (m * cluster)) * -(-N // n)
                wide = -(-M // m) * -(-N // (n * cluster))
                if wide < high or (wide == high and m > n):
                    high, step = wide, beside_step
                tiles = cluster * high * batch
            steps = -(-K // depth)
            if level:
                # Of the tiles beyond the last full round, each is shared by `split` programs.
                rest = tiles % sms
                sharers = rest * split if rest * split < sms else sms
                active = sms if tiles >= sms else sharers
                split = -(-sharers // rest) if rest else 1
                share = groups = tiles // sms + (rest / sharers if rest else 0)
                idle = 1 - active / sms
            else:
                tiles *= split
                steps = -(-steps // split)
                share = -(-tiles // room)
                idle = 1 - tiles / (share * sms)
            # SMs that idle leave power, for a higher clock, and L2's bandwidth to the others.
            work = share * step / (1 + boost * idle)
            if prune and before + (steps * work + least_ends) >= below:
                yield _BEATEN
                continue
            if not level:
                active = tiles if tiles < sms else sms
                # Those without a ring begin as others end, not group by group.
                groups = -(-share // together) if ring else max(1.0, share / together)
            if ring:
                waiting = groups * latency / in_flight
                work = work if work > waiting else waiting
            work *= steps
            shared_rate = memory_rate / active
            rate = sm_memory_rate if sm_memory_rate < shared_rate else shared_rate
            ends += stored * own / rate
            if not ring:
                ends *= share
            elif not resident:
                ends *= groups
            elif share > 1:
                ends *= 1 + (share - 1) * shown

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
                    parts = 1 + max(1.0, split / min(shares, max(1, n // 8)))
                reduction = trait.gathering * (c.reduction + split * c.gather)
                reduction += parts * 4 * m * n / c.sm_rate
            moved = self.bytes + (-(-M // m) - 1) * self.b_bytes if rereads else self.bytes
            if level and tiles < sms and moved > _L2:
                # Programs in the middle of K read other parts of the operands than their
                # neighbours do, and nothing is left in L2 for the next.
                moved = max(moved, tiles * (m + n) * K * self.itemsize)
            memory = moved / (active * rate)
            busy = work + ends + reduction
            power = self.flops * (c.power + c.traffic * (1 / m + 1 / n))
            busy = busy if busy > power else power
            long, short = (busy, memory) if busy > memory else (memory, busy)
            # Without a ring, a group of programs works while another waits.
            overlap = c.overlap * short if ring else steps * latency / (in_flight * groups)
            total = before + long + overlap
            if prune and total < below:
                below = total
            yield total, pack, launch, work, ends, reduction, memory, overlap

    def word(self, trait: known.Trait) -> str:
        """Under which the k-steps of the scene's types and loads were measured."""
        narrow = "ab"[not self.narrow[0] : 1 + self.narrow[1]] if trait.narrow != 1 else ""
        turned = f"/turned-{self.turned}" if self.turned else ""
        layouts = f"/{self.layouts}" if trait.alike else ""
        return self.types + (narrow and f"/narrow-{narrow}") + turned + layouts

    def per_step(self, trait: known.Trait, config: Config) -> float:
        """How many times the step that stands under `constants.key` is one of `config`.

        Where tiles are alike, that is an element's share of a load of four, of 16 bits each, and
        four times what a product takes. If A is stored across K, each of its elements is a load.
        """
        if not trait.alike:
            return 1.0
        m, n = config.BLOCK_M, config.BLOCK_N
        across = self.layouts[0] == "T"
        return config.BLOCK_K * (n + (4 if across else 1) * m + m * n / 4)

    def analytic(self, trait: known.Trait, config: Config) -> tuple[float, float]:
        """Seconds of a k-step on an SM, and of a tile's ends beside its stores."""
        c = self.constants
        m, n, k = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K
        turned = 1 + c.turned * self.turned
        arithmetic = 2 * m * n * k * turned / (self.flop_rate * trait.efficiency)
        narrow_a, narrow_b = self.narrow
        a_sharers, b_sharers = _sharers(config)
        lines = m / a_sharers * (trait.narrow if narrow_a else 1)
        lines += n / b_sharers * (trait.narrow if narrow_b else 1)
        loads = lines * k * self.itemsize / c.sm_rate
        long, short = (arithmetic, loads) if arithmetic > loads else (loads, arithmetic)
        return long + c.overlap * short, c.ends

    def _beside(
        self, measured: Mapping[known.Key, tuple[float, float]], key: known.Key,
        trait: known.Trait, config: Config,
    ) -> tuple[float, float] | None:  # fmt: skip
        """As `analytic`, corrected as the measured tile that is nearest in width was.

        Of those in clusters, whose widths are many; None if none is alike but in width and stages.
        """
        word, m, n, k, warps, _, cluster = key
        if cluster == 1:
            return None
        alike = (
            (abs(other[2] - n), other[2], other[5])
            for other in measured
            if (other[0], other[1], other[3], other[4], other[6]) == (word, m, k, warps, cluster)
        )
        _, columns, stages = min(alike, default=(0, 0, 0))
        if not columns:
            return None
        step, ends = measured[word, m, columns, k, warps, stages, cluster]
        near = dataclasses.replace(config, BLOCK_N=columns)
        return step * self.analytic(trait, config)[0] / self.analytic(trait, near)[0], ends

    def _together(self, trait: known.Trait, config: Config) -> int:
        """Programs that an SM runs at once, by shared memory, registers and threads."""
        m, n, threads = config.BLOCK_M, config.BLOCK_N, 32 * config.num_warps
        if trait.alike:  # a line's words are read by lanes beside each other, each with its sums
            in_flight = n * config.BLOCK_K * config.num_stages * self.itemsize // 4
            per_sum = 1 if self.layouts[1] == "N" else WORD.value // self.itemsize
            registers = in_flight + m * n * config.BLOCK_K // per_sum + _FEW_REGISTERS * threads
            return max(1, min(_REGISTERS // registers, _THREADS // threads))
        registers = m * n + _OTHER_REGISTERS * threads
        stages = (m + n) * config.BLOCK_K * self.itemsize * config.num_stages
        return max(1, min(_REGISTERS // registers, 16, self.shared // stages))


class Interpreted(Scene):
    """In Triton's interpreter: a tile's k-step takes the same time, however large the tile is."""

    def _times(
        self, kernel: str, shapes: Iterable[_Shape], below: float | None = None
    ) -> Iterator[tuple[float, ...]]:
        for m, n, depth, split, *_ in shapes:
            tiles = -(-self.M // m) * -(-self.N // n) * self.batch * split
            seconds = tiles * -(-self.K // depth) * _INTERPRETED_STEP
            yield seconds, 0.0, 0.0, seconds, 0.0, 0.0, 0.0, 0.0


def scene_of(view: Problem, copied: int = 0) -> Scene:
    """The scene of the problem's device."""
    return (Interpreted if view.device == INTERPRETER else Scene)(view, copied)


class _Rates(NamedTuple):
    """What follows from the device and the type: FLOP per second of the type and of 16 bits."""

    constants: Constants
    types: str
    flops: float
    flops_16: float


_RATES: dict[tuple, _Rates] = {}


def _rates(view: Problem) -> _Rates:
    key = (view.device, view.a.dtype, view.precision)
    found = _RATES.get(key)
    if found is None:
        device = view.device
        rates = known.flop_rate(view), known.flop_rate_16(device)
        found = _RATES[key] = _Rates(known.of(device), known.types(view), *rates)
    return found


def _sharers(config: Config) -> tuple[int, int]:
    """Programs that load a tile of A, and one of B, together: mostly they share the larger one."""
    return (config.CLUSTER, 1) if config.BLOCK_M > config.BLOCK_N else (1, config.CLUSTER)


def _requests(matrix: Matrix) -> float:
    """Lines of L2 that 128 bytes of `matrix` touch, on average over its rows (or columns)."""
    pitch = matrix.pitch(matrix.layout) if matrix.layout != "-" else 1
    return 2 - math.gcd(pitch * matrix.dtype.itemsize, _LINE) / _LINE


def _wide(matrix: Matrix) -> bool:
    """Whether pointer loads of `matrix` are 16 bytes wide; see `Problem.vectorised`."""
    return matrix.aligned and matrix.pitch_is_multiple_of(16)


def _stores_wide(matrix: Matrix) -> bool:
    """Whether the lines of `matrix` begin on 16-byte boundaries."""
    layout = matrix.layout
    return (
        layout != "-" and matrix.aligned and matrix.pitch(layout) * matrix.dtype.itemsize % 16 == 0
    )
