"""Two benches for the host's part of a call: the time until the GPU has been told what to do.

A call is timed by the wall clock around calls that only enqueue: the GPU is idle when they begin
and nothing waits for it at their end. `CALLS` of them are a small part of the launch queue, so
that none waits for room there, however slow the kernels are; no garbage is collected meanwhile.

cached calls  a batch on one set of operands
first calls   one call of sizes that the process has not multiplied yet, by a kernel that is already
              compiled and loaded: what a new sequence length costs. A call that loads a kernel is
              not counted; another shape takes its place.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tritemm.budget import Verdict

from .case import Case
from .engine import Competitor, Loop, Sample
from .machine import State
from .operands import operands, verify

#: Launches that a CUDA stream takes before the next one waits (about as many, on an H200).
QUEUE = 1024
#: Calls in a batch, of at most `LAUNCHES` launches each (a padding copy or a reduction is one).
CALLS, LAUNCHES = 50, 8
#: Untimed calls before a batch, which bring the competitor's code back into the CPU's caches.
LEAD = 5
#: First calls of a competitor that don't count yet; shapes that are tried for one without a load.
WARM, ATTEMPTS = 2, 20


@dataclasses.dataclass(frozen=True)
class Caller(Competitor):
    """A competitor as a user calls it: `multiply(a, b)` and `multiply(a, b, out=c)`."""

    multiply: Callable[..., torch.Tensor] = torch.matmul


@dataclasses.dataclass(frozen=True)
class Watch:
    """`clock()` in seconds; `synchronise()` waits until the GPU is idle."""

    clock: Callable[[], float] = time.perf_counter
    synchronise: Callable[[], None] = torch.cuda.synchronize

    def seconds(self, call: Callable[[], Any], calls: int) -> float:
        """Of `calls` calls in a row, dropped results included, beginning with an idle GPU."""
        collects = gc.isenabled()
        self.synchronise()
        gc.disable()
        try:
            begin = self.clock()
            for _ in itertools.repeat(None, calls):
                call()
            return self.clock() - begin
        finally:
            if collects:
                gc.enable()


class Cached:
    """An `engine.Bench` of batches of calls on one set of operands; `out`: with out=."""

    def __init__(
        self,
        case: Case,
        mode: str,
        *,
        out: bool,
        device: str = "cuda",
        watch: Watch | None = None,
        probe: Callable[[], State] = State,
        calls: int = CALLS,
    ):
        assert (calls + LEAD) * LAUNCHES <= QUEUE // 2, "a call would wait for the GPU"
        self.case, self.mode, self.out, self.device = case, mode, out, device
        self.watch, self.probe, self.calls = watch or Watch(), probe, calls
        self.sets = [operands(case, device)]

    def bind(self, caller: Caller, a, b, c) -> Callable[[], torch.Tensor]:
        """One call, ready to be made."""
        if self.out:
            return functools.partial(caller.multiply, a, b, out=c)
        return functools.partial(caller.multiply, a, b)

    def estimate(self, caller: Caller) -> float:
        """Seconds of a call after the two that compile the kernel and load it."""
        call = self.bind(caller, *self.sets[0])
        call()
        call()
        return self.watch.seconds(call, 1)

    def loop(self, caller: Caller) -> Loop:
        call = self.bind(caller, *self.sets[0])
        c = self.sets[0][2]

        def replay() -> None:
            result = call()
            if result is not c:
                c.copy_(result)  # where `verify` looks

        seconds = self.watch.seconds(call, 1)
        return Loop(self.calls, seconds, replay, functools.partial(self._sample, call))

    def _sample(self, call: Callable[[], Any]) -> Sample:
        """A batch."""
        for _ in range(LEAD):
            call()
        return Sample(self.watch.seconds(call, self.calls) / self.calls)

    def recover(self) -> None:
        self.watch.synchronise()

    def verify(self, loop: Loop, accumulate: str | None = None) -> Verdict:
        return verify(self.case, self.sets, loop.replay, 1, accumulate)

    def settle(self, loops: Sequence[Loop], seconds: float = 0.3) -> State:
        """Calls for a while: the CPU has a clock to raise, too. The state is the GPU's."""
        begin = self.watch.clock()
        while self.watch.clock() - begin < seconds:
            for loop in loops:
                loop.replay()
            self.watch.synchronise()
        return self.probe()


class First(Cached):
    """Each sample is the one call that its sizes ever get; `loads()` counts loaded kernels."""

    def __init__(
        self, case: Case, mode: str, *, shapes: Iterator[Case], loads: Callable[[], int], **options
    ):
        super().__init__(case, mode, **options)
        self.shapes, self.loads = shapes, loads

    def loop(self, caller: Caller) -> Loop:
        """Raises RuntimeError if each of `ATTEMPTS` shapes loads a kernel of its own."""
        known = super().loop(caller)
        for _ in range(WARM):
            self._without_load(caller)
        return dataclasses.replace(
            known, launches=1, time=lambda: Sample(self._without_load(caller))
        )

    def _without_load(self, caller: Caller) -> float:
        """Seconds of the first call of a shape that an already loaded kernel multiplies."""
        for _ in range(ATTEMPTS):
            before = self.loads()
            seconds = self._once(caller)
            if self.loads() == before:
                return seconds
        raise RuntimeError(f"{ATTEMPTS} new shapes in a row, and each loaded another kernel")

    def _once(self, caller: Caller) -> float:
        call = self.bind(caller, *operands(next(self.shapes), self.device))
        # A known shape first: only the sizes of the timed call are new, not its code.
        self.bind(caller, *self.sets[0])()
        return self.watch.seconds(call, 1)
