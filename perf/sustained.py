"""Sustained speed: CUDA graphs of many launches over rotating buffers, at the settled clock.

One launch at a time on a cool card measures its boost clock, and one set of buffers that stays in
L2 measures the cache. Training and serving see neither.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from tritemm.budget import Verdict, check
from tritemm.budget import reference as exact
from tritemm.launch import elapsed

from .case import DTYPES, Case
from .engine import SLOW, Competitor, Loop, Plan, Sample
from .machine import State

#: The buffers together, over the size of L2.
CACHES = 4

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def operands(case: Case, device: str) -> Operands:
    """A and B with normal values, in their layouts, and an output full of NaN."""

    def matrix(rows: int, cols: int, layout: str) -> torch.Tensor:
        shape = (rows, cols) if layout == "N" else (cols, rows)
        stored = torch.randn(shape, dtype=DTYPES[case.dtype], device=device)
        return stored if layout == "N" else stored.mT

    a = matrix(case.M, case.K, case.layout[0])
    b = matrix(case.K, case.N, case.layout[1])
    return a, b, a.new_full((case.M, case.N), math.nan)


def verify(
    case: Case, sets: Sequence[Operands], loop: Loop, accumulate: str | None = None
) -> Verdict:
    """Poison, replay, and judge the outputs that the replay must have written.

    The first and the last are compared element by element with fp64; no NaN may be left in any.
    With an fp16 accumulator the bound of random data is wider than the result at some thousand
    terms, so there the same outputs must also be exact for small integers.
    """
    accumulate = accumulate or case.accumulate
    for _, _, c in sets:
        c.fill_(math.nan)
    loop.replay()
    reached = sets[: loop.launches]
    for index, (_, _, c) in enumerate(reached):
        if not c.isfinite().all():
            return Verdict(False, math.inf, f"NaN or infinity in output {index}")
    judged = list({id(s): s for s in (reached[0], reached[-1])}.values())
    verdicts = [
        check(c, a, b, accumulate=DTYPES[accumulate], precision=case.precision)
        for a, b, c in judged
    ]
    if accumulate == "fp16":
        with _integers(judged):
            loop.replay()
            verdicts += [_check_exact(*operands_) for operands_ in judged]
    return max(verdicts, key=lambda verdict: (not verdict.ok, verdict.worst))


@contextlib.contextmanager
def _integers(sets: Sequence[Operands]) -> Iterator[None]:
    """A and B hold -1, 0 and 1 inside the block, and C is poisoned.

    A sum of K such products, in any order, stays far below 2048, up to where fp16 holds every
    integer: its standard deviation is 2/3 sqrt(K).
    """
    kept = [(a.clone(), b.clone()) for a, b, _ in sets]
    try:
        for a, b, c in sets:
            for operand in (a, b):
                operand.copy_(torch.randint_like(operand, -1, 2))
            c.fill_(math.nan)
        yield
    finally:
        for (a, b, _), (old_a, old_b) in zip(sets, kept, strict=True):
            a.copy_(old_a)
            b.copy_(old_b)


def _check_exact(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Verdict:
    wrong = int((c.double() != exact(a, b)).sum())
    if not wrong:
        return Verdict(True, 0.0, "ok: sums of small integers are exact")
    message = f"{wrong} of {c.numel()} sums of small integers are not exact"
    return Verdict(False, math.inf, message)


def reference(accumulate: str) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """cuBLAS as torch calls it, with an fp32 accumulator (torch's default) or an fp16 one."""
    flags = torch.backends.cuda.matmul

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        before = flags.allow_fp16_accumulation
        flags.allow_fp16_accumulation = accumulate == "fp16"
        try:
            torch.matmul(a, b, out=c)
        finally:
            flags.allow_fp16_accumulation = before

    return run


def configure_reference(case: Case) -> None:
    """Let torch.matmul multiply fp32 as the case says, where torch can."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if case.precision == "tf32" else "ieee"


class Sustained:
    """A `perf.engine.Bench` on the current CUDA device."""

    mode = "sustained"

    def __init__(self, case: Case, plan: Plan, probe: Callable[[], State]):
        configure_reference(case)
        self.case, self.plan, self.probe = case, plan, probe
        first = operands(case, "cuda")
        size = sum(t.numel() * t.element_size() for t in first)
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        count = max(2, math.ceil(CACHES * cache / size))
        self.sets = [first, *(operands(case, "cuda") for _ in range(count - 1))]
        # Warm-up and capture share a stream, so that cuBLAS keeps one workspace for both.
        self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())

    def estimate(self, competitor: Competitor) -> float:
        """From a strip of A's rows, so that a slow kernel is not run in full to be skipped."""
        a, b, c = self.sets[0]
        rows = max(256, self.case.M // 16) if self.case.M >= 4096 else self.case.M
        strip = (a[:rows], b, c[:rows])
        with torch.cuda.stream(self.stream):
            competitor.run(*strip)
            seconds = _timed(lambda: competitor.run(*strip))
        return seconds * self.case.M / rows

    def loop(self, competitor: Competitor) -> Loop:
        with torch.cuda.stream(self.stream):
            for operands_ in (self.sets[0], self.sets[-1]):  # compiles, before capture
                competitor.run(*operands_)
            seconds = _timed(lambda: competitor.run(*self.sets[0]))
        launches = self._launches(seconds)
        graph = self._capture(competitor, launches)
        for _ in range(2):  # that time held the host's part of a launch, or a clock still rising
            if launches == 1:
                break
            graph.replay()
            seconds = _timed(graph.replay) / launches
            if launches * seconds >= 0.8 * self.plan.replay:
                break
            launches = self._launches(seconds)
            graph = self._capture(competitor, launches)
        # The untimed replay lets the clock adapt from the last competitor's power to this one's,
        # and the timed one is queued before the GPU needs it. A slow one lasts long enough.
        lead = launches * seconds <= SLOW
        return Loop(launches, seconds, graph.replay, self._timer(graph, launches, lead))

    def _launches(self, seconds: float) -> int:
        """Enough for a replay to last, in whole cycles over the buffers unless one is enough."""
        enough = math.ceil(self.plan.replay / seconds)
        return 1 if enough <= 1 else math.ceil(enough / len(self.sets)) * len(self.sets)

    def _capture(self, competitor: Competitor, launches: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for index in range(launches):
                competitor.run(*self.sets[index % len(self.sets)])
        return graph

    def _timer(self, graph, launches: int, lead: bool) -> Callable[[], Sample]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def timer() -> Sample:
            if lead:
                graph.replay()
            start.record()
            graph.replay()
            end.record()
            start.synchronize()
            state = self.probe()
            end.synchronize()
            return Sample(start.elapsed_time(end) / 1e3 / launches, state)

        return timer

    def verify(self, loop: Loop, accumulate: str | None = None) -> Verdict:
        return verify(self.case, self.sets, loop, accumulate)

    def settle(self, loops: Sequence[Loop]) -> State:
        """Until four readings agree within 2 %, or four times as long as planned.

        The clock depends on what runs; it is read under the last loop.
        """
        loops = [loop for loop in loops if not loop.slow] or loops
        begin, states = time.monotonic(), []
        while (elapsed := time.monotonic() - begin) < 4 * self.plan.settle:
            for loop in loops[:-1]:
                loop.replay()
            states.append(loops[-1].time().state)
            if elapsed >= self.plan.settle and _steady([s.sm_mhz for s in states[-4:]]):
                break
        return State.median(states[-4:])

    def recover(self) -> None:
        torch.cuda.synchronize()


def _steady(clocks: Sequence[float | None]) -> bool:
    known = [clock for clock in clocks if clock is not None]
    return not known or (len(known) >= 4 and max(known) <= 1.02 * min(known))


def _timed(run: Callable[[], None]) -> float:
    """Seconds of one run on the current stream, after all that is under way."""
    torch.cuda.synchronize()
    return elapsed(run)
