"""Benches by the card's energy meter, which counts joules: what a product costs.

settled    one kernel alone, launch after launch over rotating buffers: `LEAD` seconds untimed, then
           so many seconds of it. Its watts are the steps of the meter over the time between them,
           its microseconds those of CUDA events
in bursts  the same launches for `BURST` seconds, then a pause of `PAUSE` seconds in which the host
           sleeps and the card has nothing to do, again and again. Before each burst a sum over
           other memory takes all of L2; only the burst is timed. The same without the bursts says
           what the rest draws, and what is more counts as the product's

A product's joules are watts x seconds per product. The meter moves in steps, of up to 20 J, so it
is read about every millisecond by a thread, and only what lies between two of its steps counts.
The clock is the median of NVML's readings meanwhile, in bursts those of the pauses among them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from .bench import Sustained, chiller, repeat
from .case import Case
from .engine import Loop, Plan, Sample
from .machine import State

#: Seconds of the same kernel before it is metered; of a burst, about, and of the pause after it;
#: and from one reading of the meter to the next.
LEAD, BURST, PAUSE, TICK = 0.7, 0.0015, 0.003, 0.001
#: Joules, which only grow, and MHz.
Meter = Callable[[], tuple[float, float]]


class Reading(NamedTuple):
    """The meter at a time, in seconds."""

    time: float
    joules: float
    mhz: float


@contextlib.contextmanager
def metered(meter: Meter) -> Iterator[list[Reading]]:
    """The readings that a thread adds while the block runs."""
    readings: list[Reading] = []
    done = threading.Event()

    def read() -> None:
        while not done.wait(TICK):
            readings.append(Reading(time.monotonic(), *meter()))

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read)
        try:
            yield readings
        finally:
            done.set()
        reading.result()  # what ended it


def drawn(readings: Sequence[Reading]) -> tuple[float | None, float | None]:
    """Watts between the first and the last step of the meter, and the median MHz.

    None: there were less than two steps, or no reading.
    """
    pairs = itertools.pairwise(readings)
    steps = [after for before, after in pairs if after.joules > before.joules]
    mhz = statistics.median(reading.mhz for reading in readings) if readings else None
    if len(steps) < 2:
        return None, mhz
    first, last = steps[0], steps[-1]
    return (last.joules - first.joules) / (last.time - first.time), mhz


class Settled(Sustained):
    """See the module; each sample takes so many `seconds` by the `meter`, and its lead."""

    mode = "settled"

    def __init__(
        self, case: Case, plan: Plan, probe: Callable[[], State], meter: Meter, seconds: int
    ):
        super().__init__(case, plan, probe)
        self.meter, self.seconds = meter, seconds

    def settle(self, loops: Sequence[Loop]) -> State:
        """One sample, which warms the card: every sample has its own lead."""
        return loops[0].time().state

    def _timer(self, graph: torch.cuda.CUDAGraph, launches: int, repeats: int, lead: int):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        again = functools.partial(repeat, graph, repeats)

        def timer() -> Sample:
            _keep(again, LEAD)
            start.record()
            with metered(self.meter) as readings:
                count = _keep(again, self.seconds) * repeats * launches
            end.record()
            end.synchronize()
            return self._sample(start.elapsed_time(end) / 1e3 / count, *drawn(readings))

        return timer

    def _sample(self, seconds: float, watts: float | None, mhz: float | None) -> Sample:
        state = dataclasses.replace(self.probe(), sm_mhz=mhz, power_w=watts)
        return Sample(seconds, state, None if watts is None else watts * seconds)


class InBursts(Settled):
    """See the module; the bursts and the rest take `seconds` each."""

    mode = "in bursts"

    def __init__(self, case: Case, plan: Plan, *how):
        super().__init__(case, dataclasses.replace(plan, replay=BURST), *how)
        self.chill = chiller(self.cache)

    def _timer(self, graph: torch.cuda.CUDAGraph, launches: int, repeats: int, lead: int):
        def timer() -> Sample:
            _, _, rest, _ = self._cycles(graph, 0)
            burst, cycle, watts, mhz = self._cycles(graph, repeats)
            known = rest is not None and watts is not None
            more = (watts * cycle - rest * (cycle - burst)) / burst if known else None
            return self._sample(burst / (launches * repeats), more, mhz)

        return timer

    def _cycles(self, graph: torch.cuda.CUDAGraph, repeats: int):
        """Seconds of a burst of so many replays and of a whole cycle; watts and MHz of all."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        bursts: list[float] = []
        begin = now = time.monotonic()
        with metered(self.meter) as readings:
            while now < begin + self.seconds:
                self.chill()
                start.record()
                repeat(graph, repeats)
                end.record()
                end.synchronize()
                bursts.append(start.elapsed_time(end) / 1e3)
                time.sleep(PAUSE)
                now = time.monotonic()
        return statistics.median(bursts), (now - begin) / len(bursts), *drawn(readings)


def _keep(run: Callable[[], None], seconds: float) -> int:
    """Run for so long, two ahead of the card; how often."""
    count, end = 0, time.monotonic() + seconds
    marks: list[torch.cuda.Event] = []
    while time.monotonic() < end:
        run()
        marks.append(torch.cuda.Event())
        marks[-1].record()
        count += 1
        if len(marks) > 2:
            marks.pop(0).synchronize()
    return count


#: In the order in which they are measured and shown.
BENCHES = (Settled, InBursts)
