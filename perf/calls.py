"""Times calls, not launches: what `host` and `model` race, results and gradients included.

Torch's own call is the reference, under its second name the null test, and the others are judged by
what it loses against fp32.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from . import machine
from .agreement import Agreement, Errors, errors, judge
from .engine import Competitor, Loop, Plan, Sample
from .machine import State
from .rows import NULL, REFERENCE, TRITON

#: tritemm's name in rows: `kernel="auto"`, whichever rung it chooses for each product.
OURS = "auto"
#: How work is run, and what `torch.compile` is given; None: not compiled.
MODES = {"eager": None, "compiled": {}, "graph": {"mode": "reduce-overhead"}}

Results = Mapping[str, torch.Tensor]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disables garbage collection inside the block."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def compiled(function: Callable, mode: str) -> Callable:
    """The function, compiled as the mode says."""
    return function if MODES[mode] is None else compiled_apart(function, **MODES[mode])


def compiled_apart(function: Callable, **options) -> Callable:
    """The function, compiled for the sizes that it is called with. Its code is its own:
    torch.compile finds its results by code object, and torch's variant must not run the guards of
    tritemm's."""
    code, closure = function.__code__.replace(), function.__closure__
    own = types.FunctionType(code, function.__globals__, function.__name__, closure=closure)
    return torch.compile(own, fullgraph=True, dynamic=False, **options)


def by_clock(call: Callable[[], object], count: int, probe: Callable[[], State]) -> Sample:
    """Wall-clock seconds of a call that only enqueues, beginning with an idle GPU."""
    torch.cuda.synchronize()
    with uncollected():
        begin = time.perf_counter()
        for _ in itertools.repeat(None, count):
            call()
        return Sample((time.perf_counter() - begin) / count)


def by_events(call: Callable[[], object], count: int, probe: Callable[[], State]) -> Sample:
    """Seconds on the current stream, from here until the last call's work is done."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with uncollected():
        start.record()
        for _ in range(count):
            call()
        end.record()
        state = probe()
    end.synchronize()
    return Sample(start.elapsed_time(end) / 1e3 / count, state)


class CallBench:
    """An `engine.Bench` of batches of calls.

    A subclass makes a competitor's call (`make`) and says what it computes (`results`), by the
    names of `exact`, the same in fp32. Its `around` is entered before a call's batch and left after
    it, untimed.
    """

    timer = staticmethod(by_clock)
    #: Untimed calls before the first estimate.
    first = 3

    def __init__(self, exact: Results, plan: Plan, coarser: float = 1):
        self.exact, self.plan, self.probe, self.coarser = exact, plan, machine.probe(), coarser
        self.calls: dict[str, Callable] = {}
        self.torchs: Errors | None = None
        self.agreements: dict[str, Agreement] = {}

    def make(self, name: str) -> Callable[[], object]:
        raise NotImplementedError

    def results(self, name: str) -> Results:
        raise NotImplementedError

    def around(self, name: str) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def call(self, name: str) -> Callable[[], object]:
        """A competitor's, made once; torch's is one, under both of its names."""
        name = REFERENCE if name == NULL else name
        if name not in self.calls:
            self.calls[name] = self.make(name)
        return self.calls[name]

    def batch(self, seconds: float) -> tuple[int, int]:
        """The number of untimed calls, of so many seconds each, and of those timed in a row."""
        raise NotImplementedError

    def estimate(self, competitor: Competitor) -> float:
        """Seconds of a call after the first ones, which compile what it needs and load it."""
        with self.around(competitor.name):
            call = self.call(competitor.name)
            for _ in range(self.first):
                call()
            return self.timer(call, 1, State).seconds

    def loop(self, competitor: Competitor) -> Loop:
        name, call, seconds = competitor.name, self.call(competitor.name), self.estimate(competitor)
        lead, count = self.batch(seconds)

        def sample() -> Sample:
            with self.around(name):
                for _ in range(lead):
                    call()
                return self.timer(call, count, self.probe)

        return Loop(count, seconds, call, sample, name=name)

    def verify(self, loop: Loop, accumulate: str | None = None) -> Agreement:
        """What the call computes against fp32, judged by what torch's loses."""
        with self.around(loop.name):
            own = errors(self.results(loop.name), self.exact)
        if self.torchs is None:
            theirs = loop.name in (REFERENCE, NULL)
            self.torchs = own if theirs else errors(self.results(REFERENCE), self.exact)
        self.agreements[loop.name] = judge(own, self.torchs, self.coarser)
        return self.agreements[loop.name]

    def recover(self) -> None:
        torch.cuda.synchronize()

    def settle(self, loops: Sequence[Loop]) -> State:
        """Run all, mixed, for `plan.settle` seconds, once at least: the CPU has a clock too."""
        begin = time.monotonic()
        while True:
            for loop in loops:
                loop.time()
            if time.monotonic() - begin >= self.plan.settle:
                return self.probe()


def field(*names: str) -> list[Competitor]:
    """Torch, torch again, and tritemm's by their names; a bench of calls knows what they call."""
    torchs = [Competitor(name, None) for name in (REFERENCE, NULL)]
    return [*torchs, *(Competitor(name, None, ladder=TRITON, rung=name) for name in names)]
