"""Ways to time a product on a CUDA device, each an `engine.Bench`; all replay CUDA graphs.

sustained  many launches in a row over rotating buffers, at the clock that settles under them:
           what training and serving see. One launch at a time on a cool card measures its boost
           clock, and one set of buffers that stays in L2 measures the cache.
burst      one launch at a time on a cold L2: what a lone product in other work sees.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from tritemm.budget import Verdict
from tritemm.runtime.clock import elapsed

from .case import Case
from .engine import SLOW, Competitor, Loop, Plan, Sample
from .machine import State
from .operands import Operands, exactly, integers, operands, poison, reference, verify

#: The rotating buffers together, over the size of L2, unless that takes more sets than `SETS`.
CACHES = 4
SETS = 1024
#: Launches in one CUDA graph; a longer replay is several graphs in a row.
GRAPH = 512
#: Launches of which burst takes the median, per round.
SHOTS = 9


class CudaBench:
    """What the two have in common: the operands, the check, the warm-up."""

    mode: str

    def __init__(self, case: Case, plan: Plan, probe: Callable[[], State]):
        reference(case)  # sets how torch multiplies fp32
        self.case, self.plan, self.probe, self.adapts = case, plan, probe, True
        first = operands(case, "cuda")
        if case.after.int4:  # tritemm doesn't read the 16-bit weight
            size = case.bytes
        else:
            size = sum(t.numel() * t.element_size() for t in first if t is not None)
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.cache = device.L2_cache_size
        least = 1 if case.groups else 2  # all weights of a layer may take half of the memory
        count = min(SETS, max(least, math.ceil(CACHES * self.cache / size)))
        self.sets: list[Operands] = [first, *(operands(case, "cuda") for _ in range(count - 1))]
        # Warm-up and capture share a stream, so that cuBLAS keeps one workspace for both.
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())

    def estimate(self, competitor: Competitor) -> float:
        """Seconds of one launch, from a strip of A's rows: a slow product needn't run in full."""
        a, b, c, *more = self.sets[0]
        # What follows a product may be compiled, by torch, for its size alone; and scales of A
        # are of all of its rows.
        large = self.case.M >= 4096 and self.case.batch == 1 and not more
        rows = max(256, self.case.M // 16) if large else self.case.M
        strip = (a[:rows], b, c[:rows]) if large else (a, b, c, *more)
        with torch.cuda.stream(self.stream):
            competitor.run(*strip)
            seconds = _timed(lambda: competitor.run(*strip))
        return seconds * self.case.M / rows

    def _warm(self, competitor: Competitor) -> float:
        """Compile what capture needs, and return the seconds of one launch, host included."""
        with torch.cuda.stream(self.stream):
            for operands_ in (self.sets[0], self.sets[-1]):
                competitor.run(*operands_)
            return _timed(lambda: competitor.run(*self.sets[0]))

    def _capture(
        self, competitor: Competitor, sets: Sequence[Operands]
    ) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor | None]]:
        """A graph of one launch per set, and what each of `self.sets` gets that isn't in its c.

        A result lives until the next one of its set, so that new tensors rotate as buffers do.
        """
        graph, count = torch.cuda.CUDAGraph(), len(self.sets)
        results: list[torch.Tensor | None] = [None] * min(count, len(sets))
        with torch.cuda.graph(graph, stream=self.stream):
            for index, operands_ in enumerate(sets):
                results[index % count] = competitor.run(*operands_)
        return graph, results

    def verify(self, loop: Loop, accumulate: str | None = None) -> Verdict:
        given = loop.replay, loop.launches, accumulate, loop.results, loop.dense, loop.split
        return verify(self.case, self.sets, *given)

    def settle(self, loops: Sequence[Loop]) -> State:
        """Runs the loops until four readings agree within 2 %, or four times as long as planned.

        The clock depends on what runs; it is read under the last loop.
        """
        loops = [loop for loop in loops if not loop.slow] or loops
        begin, cycles = time.monotonic(), []
        while True:
            cycles.append([loop.time().state for loop in loops])
            last = [cycle[-1] for cycle in cycles[-4:]]
            elapsed, planned = time.monotonic() - begin, self.plan.settle
            if planned == 0 or elapsed >= 4 * planned:
                break
            if elapsed >= planned and _steady([state.sm_mhz for state in last]):
                break
        self.adapts = _adapts(cycles[-1])
        return State.median(last)

    def recover(self) -> None:
        torch.cuda.synchronize()


class Sustained(CudaBench):
    """Replays of `plan.replay` seconds, each after `plan.lead` untimed seconds of the same.

    Where the clock does not depend on who runs, the lead is no longer than the replay.
    """

    mode = "sustained"

    def loop(self, competitor: Competitor) -> Loop:
        launches = self._launches(self._warm(competitor))
        graph, results = self._capture(competitor, self._rotating(launches))
        for _ in range(3):  # the first time held the host's part of a launch, or a rising clock
            graph.replay()
            seconds = _timed(graph.replay) / launches
            again = self._launches(seconds)
            if abs(again - launches) <= 0.2 * launches:
                break
            launches = again
            graph, results = self._capture(competitor, self._rotating(launches))
        repeats = max(1, round(self.plan.replay / (launches * seconds)))
        # The untimed lead lets the clock adapt from the last competitor's power to this one's, and
        # the timed replay is queued before the GPU needs it. A slow one lasts long enough.
        total = launches * repeats
        slow = total * seconds > SLOW
        lead = 0 if slow else max(1, round(self.plan.lead / (launches * seconds)))
        timer = self._timer(graph, launches, repeats, lead)
        replay = functools.partial(repeat, graph, repeats)
        kind = {"dense": competitor.dense, "split": competitor.split}
        return Loop(total, seconds, replay, timer, results, **kind)

    def _launches(self, seconds: float) -> int:
        """Enough for a replay to last, in whole cycles over the buffers unless one is enough."""
        enough = math.ceil(self.plan.replay / seconds)
        sets = len(self.sets)
        return 1 if enough <= 1 else min(math.ceil(enough / sets), max(1, GRAPH // sets)) * sets

    def _rotating(self, launches: int) -> list[Operands]:
        return [self.sets[index % len(self.sets)] for index in range(launches)]

    def _timer(self, graph: torch.cuda.CUDAGraph, launches: int, repeats: int, lead: int):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def timer() -> Sample:
            repeat(graph, lead if self.adapts else min(lead, repeats))
            start.record()
            repeat(graph, repeats)
            end.record()
            start.synchronize()
            state = self.probe()
            end.synchronize()
            return Sample(start.elapsed_time(end) / 1e3 / (launches * repeats), state)

        return timer


class Burst(CudaBench):
    """The median of `SHOTS` launches; before each a sum over other memory takes all of L2."""

    mode = "burst"

    def __init__(self, case: Case, plan: Plan, probe: Callable[[], State]):
        super().__init__(case, plan, probe)
        self.chill = chiller(self.cache)

    def loop(self, competitor: Competitor) -> Loop:
        self._warm(competitor)
        # Outside a graph the host's part of a launch would be longer than a small product.
        captured = [self._capture(competitor, [operands_]) for operands_ in self.sets[:SHOTS]]
        graphs, results = [graph for graph, _ in captured], [result for _, (result,) in captured]

        def replay() -> None:
            for graph in graphs:
                graph.replay()

        replay()
        seconds = _timed(replay) / len(graphs)
        timer = self._timer(graphs)
        kind = {"dense": competitor.dense, "split": competitor.split}
        return Loop(len(graphs), seconds, replay, timer, results, **kind)

    def _timer(self, graphs: Sequence[torch.cuda.CUDAGraph]) -> Callable[[], Sample]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def shot(graph: torch.cuda.CUDAGraph) -> float:
            self.chill()  # long enough to queue the launch behind it
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3

        def timer() -> Sample:
            seconds = statistics.median(shot(graphs[i % len(graphs)]) for i in range(SHOTS))
            return Sample(seconds, self.probe())

        return timer


#: Seconds of a timed replay and of what runs untimed before it; the slowest launch that is timed.
QUICK = Plan(replay=0.0025, lead=0.001, settle=0.0, longest=0.5)


class Quick(Sustained):
    """Times a product in some milliseconds, to rank many configs: less exact than the other two.

    Like `Sustained`, with as many rotating buffers (in fewer, small products would be found in
    L2), but with a short lead; `Loop.replay` is one product of small integers, which `verify`
    judges exactly. What is claimed is raced again by `Sustained`.
    """

    mode = "quick"

    def __init__(self, case: Case, plan: Plan = QUICK):
        super().__init__(case, plan, State)
        self.exact, self.want = integers(case, "cuda")
        # One pool for all graphs, whose launches don't overlap: workspaces and packed copies.
        self.pool = torch.cuda.graph_pool_handle()

    def estimate(self, competitor: Competitor) -> float:
        """Seconds of a whole product, the host's part included."""
        return self._warm(competitor)

    def loop(self, competitor: Competitor) -> Loop:
        with torch.cuda.stream(self.stream):
            seconds = _timed(lambda: competitor.run(*self.sets[0]))
        launches = self._launches(seconds)
        graph = self._capture(competitor, self._rotating(launches))
        graph.replay()
        seconds = _timed(graph.replay) / launches
        repeats = max(1, round(self.plan.replay / (launches * seconds)))
        lead = max(1, round(self.plan.lead / (launches * seconds)))
        timer = self._timer(graph, launches, repeats, lead if seconds < self.plan.replay else 0)
        return Loop(launches * repeats, seconds, lambda: competitor.run(*self.exact), timer)

    def _launches(self, seconds: float) -> int:
        """Launches of a graph for a replay: whole cycles over the buffers, or a part if enough."""
        enough, sets = math.ceil(self.plan.replay / seconds), len(self.sets)
        return min(SETS, math.ceil(enough / sets) * sets) if enough > sets else max(1, enough)

    def _capture(self, competitor: Competitor, sets: list[Operands]) -> torch.cuda.CUDAGraph:
        """A graph; `torch.cuda.graph` would empty torch's cache, which costs more than all this."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            graph.capture_begin(pool=self.pool)
            try:
                for operands_ in sets:
                    competitor.run(*operands_)
            finally:
                graph.capture_end()
        return graph

    def verify(self, loop: Loop, accumulate: str | None = None) -> Verdict:
        poison(self.exact[2])
        loop.replay()
        return exactly(self.exact[2], self.want)


#: The benches by the names of their modes.
BENCHES = {bench.mode: bench for bench in (Sustained, Burst)}


def chiller(cache: int) -> Callable[[], object]:
    """Enqueues a sum over other memory, which takes all of an L2 of so many bytes.

    Read, not written: lines that wait to be written back would slow down what comes next.
    """
    other = torch.randn(CACHES * cache // 4, device="cuda")
    return functools.partial(torch.sum, other, 0, out=torch.empty((), device="cuda"))


def _adapts(states: Sequence[State]) -> bool:
    """Whether the clock changes from one competitor to the next, given a reading under each.

    It does where power limits it and they draw different power; readings scatter by some percent.
    """
    if all(state.limited is False for state in states):
        return False
    powers = [state.power_w for state in states]
    return None in powers or max(powers) > 1.12 * min(powers)


def _steady(clocks: Sequence[float | None]) -> bool:
    known = [clock for clock in clocks if clock is not None]
    return not known or (len(known) >= 4 and max(known) <= 1.02 * min(known))


def repeat(graph: torch.cuda.CUDAGraph, count: int) -> None:
    for _ in range(count):
        graph.replay()


def _timed(run: Callable[[], None]) -> float:
    """Seconds of one run on the current stream, after everything that was enqueued before."""
    torch.cuda.synchronize()
    return elapsed(run)
