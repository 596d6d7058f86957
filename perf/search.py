"""Times every config that the dispatcher could choose for a problem: what it should have chosen.

Each candidate is checked, then timed for some milliseconds, in passes over all of them in random
order; those near the fastest get more passes. `commands.search` prints and records what comes out,
and `commands.regret` races the best of it.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future

import torch

from tritemm import dispatch, plan
from tritemm.compile.pool import Compiled, Compilers
from tritemm.problem import Device, Problem

from .case import DTYPES, Case
from .engine import Bench, Competitor, Entrant, Loop, admit
from .found import CUBLAS, Found, Option, Result
from .operands import operands
from .quick import PLAN, Quick, watched
from .reference import reference
from .rows import TRITON

#: Passes over all, then over those within this of the fastest, the fastest ones if they are many.
PASSES, FINALS, NEAR, FINALISTS = 2, 3, 1.15, 12
#: What takes this many times the least is timed once more, and then left.
HOPELESS = 8.0
#: FLOP per second from which on power may limit the clock; then the finals follow so many seconds
#: of the same kernel, and what was not in them is scaled as the finalists were.
HUNGRY, LEAD = 2.5e14, 0.06


@dataclasses.dataclass(frozen=True)
class Task:
    """A case, what the dispatcher is asked for it, its options, and the name of its choice."""

    case: Case
    problem: Problem
    options: tuple[Option, ...]
    chosen: str

    @staticmethod
    def of(
        case: Case, kernel: str = "auto", within: float | None = 3.0, device: Device | None = None
    ) -> Task:
        """The dispatcher's candidates for `kernel`, the least predicted first, and its choice.

        `within` leaves out what is predicted to take that many times the least; None nothing but
        what is beyond the bench's patience. The choice is always there.

        Raises:
            ValueError: no kernel, or not this one, can run the case.
        """
        problem = problem_of(case, device)
        choice = dispatch.choose(problem, kernel)
        known: dict[str, Option] = {}
        for predicted, rung, config in (
            (choice.predicted, choice.kernel, choice.config),
            *dispatch.ranked(problem, kernel),
        ):
            option = Option(rung, config, predicted)
            known.setdefault(option.name, option)
        chosen, ordered = next(iter(known)), sorted(known.values(), key=lambda o: o.predicted)
        limit = PLAN.longest if within is None else within * ordered[0].predicted
        kept = [o for o in ordered if o.predicted <= limit or o.name == chosen]
        return Task(case, problem, tuple(kept), chosen)


def problem_of(case: Case, device: Device | None = None) -> Problem:
    """What the dispatcher is asked for a case whose tensors torch allocated."""
    return Problem.of(
        *operands(case, "meta"),
        accumulate=DTYPES[case.accumulate],
        precision=case.precision,
        device=device or Device.of(torch.device("cuda")),
    )


def competitor(option: Option, problem: Problem, case: Case) -> Competitor:
    """The option ready to run on any operands of the problem."""
    if option.kernel is None:
        return Competitor(CUBLAS, reference(case))
    kernel, config = option.kernel, option.config
    return Competitor(
        name=option.name,
        run=lambda a, b, c: plan.run(kernel, problem, config, a, b, c),
        ladder=TRITON,
        rung=kernel.name,
        number=kernel.number,
        config=dataclasses.asdict(config),
        refusal=kernel.why_not(config.view(problem)),
    )


def search(
    task: Task,
    bench: Bench,
    rng: random.Random,
    *,
    broken: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Found:
    """Check and time the task's options and cuBLAS on `bench`.

    `broken`: the compiler's words on options that can't run. Of what hangs, the name goes to
    stderr, and the process ends with status 3.
    """
    results: dict[str, Result] = {}
    ready: dict[str, tuple[Option, Entrant]] = {}
    for option in (*task.options, Option(None, None, None)):
        if reason := (broken or {}).get(option.name):
            results[option.name] = Result(option, None, f"failed: {reason}")
            continue
        with watched(f"{option.name} on {task.case}"):
            entrant = admit(competitor(option, task.problem, task.case), bench, PLAN)
        if entrant.loop is None:
            error = f"{entrant.outcome}: {entrant.reason}"
            results[option.name] = Result(option, None, error)
            if entrant.outcome == "wrong":
                say(f"  WRONG: {option.name}: {entrant.reason}")
        else:
            ready[option.name] = option, entrant
    entrants = {name: entrant for name, (_, entrant) in ready.items()}
    for name, seconds, scaled in _times(entrants, task, rng):
        results[name] = Result(ready[name][0], seconds, scaled=scaled)
    ordered = sorted(results.values(), key=lambda r: (r.seconds is None, r.seconds or 0.0))
    return Found(task.case, tuple(ordered), task.chosen)


def _times(entrants: Mapping[str, Entrant], task: Task, rng: random.Random):
    """Each name, its median over the passes that it took part in, and whether that is scaled."""
    first = {name: entrant.loop.seconds for name, entrant in entrants.items()}
    limit = HOPELESS * min(first.values(), default=0.0)
    for name in first:
        if first[name] > limit:  # or it stalled, as some do when they first run
            with watched(f"{name} on {task.case}"):
                first[name] = min(first[name], entrants[name].loop.time().seconds)
    times: dict[str, list[float]] = {name: [] for name in first if first[name] <= limit}

    def take(names: list[str], passes: int) -> None:
        for _ in range(passes):
            for name in rng.sample(names, len(names)):
                with watched(f"{name} on {task.case}"):
                    times[name].append(entrants[name].loop.time().seconds)

    take(list(times), PASSES)
    finalists = _finalists(times, {task.chosen, CUBLAS})
    quick = {name: statistics.median(seconds) for name, seconds in times.items()}
    hungry = task.problem.flops > HUNGRY * min(quick.values(), default=math.inf)
    slowdown = 1.0
    if hungry:
        for name in finalists:
            times[name].clear()
        for _ in range(FINALS):
            for name in rng.sample(finalists, len(finalists)):
                with watched(f"{name} on {task.case}"):
                    times[name].append(_settled(entrants[name].loop))
        slowdown = statistics.median(statistics.median(times[n]) / quick[n] for n in finalists)
    else:
        take(finalists, FINALS)
    for name in first:
        if name in finalists:
            yield name, statistics.median(times[name]), False
        else:
            yield name, slowdown * quick.get(name, first[name]), hungry


def _settled(loop: Loop) -> float:
    """Seconds per product after `LEAD` of the same."""
    end = time.monotonic() + LEAD
    while time.monotonic() < end:
        loop.time()
    return statistics.median(loop.time().seconds for _ in range(3))


def _finalists(times: Mapping[str, list[float]], always: Collection[str]) -> list[str]:
    """Those near the fastest, and `always`."""
    least = {name: min(seconds) for name, seconds in times.items()}
    ordered = sorted(least, key=least.get)
    near = [name for name in ordered if least[name] <= NEAR * least[ordered[0]]]
    return list(dict.fromkeys([*near[:FINALISTS], *(n for n in ordered if n in always)]))


class Searches:
    """Many tasks, compiled ahead by worker processes while the earlier ones are timed."""

    def __init__(self, tasks: Sequence[Task], workers: int | None = None):
        self.tasks, self.compilers = tasks, Compilers(workers)
        self.futures = [
            {o.name: self.compilers.submit((o.kernel.name, t.problem, o.config)) for o in t.options}
            for t in tasks
        ]

    def run(self, index: int, rng: random.Random, say: Callable[[str], None]) -> Found:
        """Search one task; a CUDA error that the device does not survive is raised."""
        compiled: dict[str, Future[Compiled]] = self.futures[index]
        results = {name: future.result() for name, future in compiled.items()}
        broken = {name: result.error for name, result in results.items() if result.error}
        task = self.tasks[index]
        bench = Quick(task.case)
        try:
            return search(task, bench, rng, broken=broken, say=say)
        finally:
            del bench
            torch.cuda.empty_cache()

    def __enter__(self) -> Searches:
        return self

    def __exit__(self, *raised) -> None:
        self.compilers.close()
