"""An `engine.Bench` of a model's steps: compiled, compared with fp32, then timed in a row.

A sample is many steps by CUDA events on the current stream. The untimed ones before it keep the
GPU busy while the first timed ones are enqueued, so that it holds what a loop of steps takes: the
GPU's time, or Python's where that is longer.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._dynamo.utils import counters

from .engine import Competitor, Loop, Plan, Sample
from .machine import State
from .model import Cell
from .model_agreement import Agreement, Errors, errors, judge
from .model_steps import Outputs, Step
from .rows import NULL, REFERENCE

#: Untimed first steps: they compile, warm up and record a CUDA graph, and replay it.
WARM = 4

#: Of work and a probe: seconds, and what the probe saw meanwhile.
Time = Callable[[Callable[[], object], Callable[[], State]], Sample]


@dataclasses.dataclass(frozen=True)
class Repeated(Loop):
    """A loop that knows whose steps it repeats."""

    name: str = ""


def by_events(work: Callable[[], object], probe: Callable[[], State]) -> Sample:
    """On the current stream, from here until `work` is done; probed once all is enqueued."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    state = probe()
    end.synchronize()
    return Sample(start.elapsed_time(end) / 1e3, state)


class ModelBench:
    """Of one cell. `make[variant]` makes its step: `REFERENCE` is torch's, and what `NULL` repeats.

    `exact`: the results in fp32.
    """

    def __init__(
        self,
        cell: Cell,
        make: Mapping[str, Callable[[], Step]],
        exact: Outputs,
        plan: Plan,
        probe: Callable[[], State] = State,
        *,
        timed: Time = by_events,
        synchronise: Callable[[], None] = torch.cuda.synchronize,
    ):
        self.cell, self.mode = cell, f"model {cell.mode}"
        self.case = cell.model.case(cell.case)
        self.make, self.exact, self.plan, self.probe = make, exact, plan, probe
        self.timed, self.synchronise = timed, synchronise
        self.steps: dict[str, Step] = {}
        self.compiling: dict[str, float] = {}
        self.skipped: dict[str, int] = {}
        self.agreements: dict[str, Agreement] = {}
        self.kept: dict[str, torch.Tensor] = {}
        self.torchs: Errors | None = None

    def step(self, name: str) -> Step:
        """Torch's is one, under both names. Raises what compiling it raises."""
        name = REFERENCE if name == NULL else name
        if name not in self.steps:
            begin, skips = time.monotonic(), _skips()
            made = self.make[name]()
            made.begin()
            for _ in range(WARM):
                made.call()
            self.synchronise()
            self.compiling[name] = time.monotonic() - begin
            self.skipped[name] = _skips() - skips
            self.steps[name] = made
        return self.steps[name]

    def estimate(self, competitor: Competitor) -> float:
        """Seconds of a step, from three; the state of the cache is that of a first one."""
        step = self.step(competitor.name)
        step.begin()
        return self.timed(lambda: _repeat(step, 3), State).seconds / 3

    def loop(self, competitor: Competitor) -> Repeated:
        step, seconds = self.step(competitor.name), self.estimate(competitor)
        most = (step.limit or 2**20) // 2
        count, lead = (
            max(1, min(most, math.ceil(wanted / seconds)))
            for wanted in (self.plan.replay, self.plan.lead)
        )

        def sample() -> Sample:
            step.begin()
            collects = gc.isenabled()
            gc.disable()
            try:
                _repeat(step, lead)
                spent = self.timed(lambda: _repeat(step, count), self.probe)
            finally:
                if collects:
                    gc.enable()
            return Sample(spent.seconds / count, spent.state)

        return Repeated(count, seconds, lambda: _repeat(step, 1), sample, name=competitor.name)

    def recover(self) -> None:
        self.synchronise()

    def verify(self, loop: Repeated, accumulate: str | None = None) -> Agreement:
        """What the step computes against fp32, and against torch, which must come first."""
        step = self.step(loop.name)
        found = step.outputs()
        own = errors(found, self.exact)
        between = None
        if self.torchs is None:
            self.torchs = own
            self.kept = {name: _copy(tensor) for name, tensor in found.items()}
        elif loop.name not in (REFERENCE, NULL):
            between = errors(found, {name: t.float() for name, t in self.kept.items()})
        del found
        step.drop()
        verdict = judge(own, self.torchs, between)
        self.agreements[loop.name] = verdict
        return verdict

    def settle(self, loops: Sequence[Loop]) -> State:
        """Run them, mixed, for `plan.settle` seconds, once at least."""
        self.kept = {}  # the memory of a model's gradients
        gc.collect()
        begin = time.monotonic()
        while True:
            last = [loop.time().state for loop in loops]
            if time.monotonic() - begin >= self.plan.settle:
                return last[-1]


def _repeat(step: Step, count: int) -> None:
    for _ in range(count):
        step.call()


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _skips() -> int:
    """How often torch.compile has left out a CUDA graph that it was asked for."""
    return counters["inductor"]["cudagraph_skips"]
