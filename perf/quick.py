"""Times a product in some milliseconds, to rank many configs: less exact than a `bench`'s mode.

Like `bench.Sustained`, with as many rotating buffers (in fewer, small products would be found in
L2), but with a short lead, and an exact check of one product in place of an error bound. What is
claimed is raced again by `Sustained`.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Iterator

import torch

from tritemm.budget import Verdict

from .bench import SETS, Sustained, _timed
from .case import Case
from .engine import Competitor, Loop, Plan
from .machine import State
from .operands import Operands, operands, poison

#: Seconds of a timed replay and of what runs untimed before it; the slowest launch that is timed.
PLAN = Plan(replay=0.0025, lead=0.001, settle=0.0, longest=0.5)


class Quick(Sustained):
    """A bench whose `Loop.replay` is one product of small integers, which `verify` judges."""

    mode = "quick"

    def __init__(self, case: Case, plan: Plan = PLAN):
        super().__init__(case, plan, State)
        self.exact, self.want = integers(case, "cuda")
        # One pool for all graphs, whose launches don't overlap: workspaces and packed copies.
        self.pool = torch.cuda.graph_pool_handle()

    def estimate(self, competitor: Competitor) -> float:
        """Of a whole product, the host's part included."""
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
        """Of a graph, for a replay: whole cycles over the buffers unless a part is enough."""
        enough, sets = math.ceil(self.plan.replay / seconds), len(self.sets)
        return min(SETS, math.ceil(enough / sets) * sets) if enough > sets else max(1, enough)

    def _capture(self, competitor: Competitor, sets: list[Operands]) -> torch.cuda.CUDAGraph:
        """Not by `torch.cuda.graph`, which empties torch's cache: that costs more than all this."""
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


def integers(case: Case, device: str) -> tuple[Operands, torch.Tensor]:
    """Operands of small integers, whose sums are exact in any order, and the product they have.

    A sum of K products of -2 ... 2 has a standard deviation of 2 sqrt(K), and fp32 holds all
    integers up to 2^24; of -1 ... 1 it is 2/3 sqrt(K), and fp16 holds them up to 2^11.
    """
    a, b, c = operands(case, device)
    most = 1 if case.accumulate == "fp16" else 2
    for operand in (a, b):
        shape = operand.shape
        operand.copy_(torch.randint(-most, most + 1, shape, dtype=torch.int8, device=device))
    wide = torch.float64 if case.dtype == "fp64" else torch.float32
    # fp32 is multiplied exactly too where torch takes tf32 for it: these integers fit.
    return (a, b, c), torch.matmul(a.to(wide), b.to(wide)).to(c.dtype)


def exactly(c: torch.Tensor, want: torch.Tensor) -> Verdict:
    """Whether every element is the one that is wanted."""
    wrong = c != want
    count = int(wrong.sum())
    if not count:
        return Verdict(True, 0.0, "ok: sums of small integers are exact")
    at = tuple(int(i) for i in wrong.nonzero()[0])
    got, right = float(c[at]), float(want[at])
    return Verdict(
        False, math.inf, f"{count} of {c.numel()} are wrong; at {at}: got {got:g}, want {right:g}"
    )


@contextlib.contextmanager
def watched(what: str, seconds: float = 60.0) -> Iterator[None]:
    """End the process with status 3 if the block takes longer: no exception stops a GPU's hang.

    A CUDA error that the device did not survive is raised with `what` in front.
    """

    def end() -> None:
        print(f"\n{what} HANGS: nothing came back in {seconds:g} s", file=sys.stderr, flush=True)
        os._exit(3)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise RuntimeError(f"{what}: {error}") from error
    finally:
        timer.cancel()
