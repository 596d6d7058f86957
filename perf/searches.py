"""Searches: everything that the dispatcher could choose for a problem, timed.

Each candidate is checked, then timed for some milliseconds, in passes over all of them in random
order; those near the fastest get more passes. `search` records them; `regret` races the best.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch

from tritemm import dispatch, plan
from tritemm.compile.pool import Compilers
from tritemm.problem import Device, Problem
from tritemm.spec import Config, Kernel

from . import cli
from .bench import QUICK, Quick
from .case import FAST, OUTPUT, Case
from .competitors import Candidate, is_split, of_rung, per_line, problem_of
from .engine import Bench, Competitor, Loop, admit
from .operands import reference
from .race import HUNGRY

CUBLAS = "cuBLAS"
#: Passes over all, then over those within this of the fastest, the fastest ones if they are many.
PASSES, FINALS, NEAR, FINALISTS = 2, 3, 1.15, 12
#: What takes this many times the least is timed once more, and then no longer.
HOPELESS = 8.0
#: Where power may limit the clock (`race.HUNGRY`), the finals follow so many seconds of the same
#: kernel, and what was not in them is scaled as the finalists were.
LEAD = 0.06
#: Other outputs than the operands' own type that the rungs write.
FLOATS = ("fp16", "bf16", "fp32")


def add_search(command: argparse.ArgumentParser) -> None:
    """What `regret` has too."""
    add = command.add_argument
    told = "leave out what is predicted to take X times the least; default: 3"
    add("--within", type=float, default=3.0, metavar="X", help=told)
    add("--all", action="store_true", help="leave out no config")
    told = "processes that compile; default: one per core"
    add("--workers", type=cli.argument(cli.positive), help=told)


def tasks_of(cases: Iterable[Case], within: float | None) -> list[Task]:
    """A task for each case that can run and each of its `sums`; prints why others can't."""
    tasks = []
    for case in cases:
        try:
            if bool(case.scaling) != (case.dtype == "fp8"):
                raise ValueError("fp8 is searched with scales, and nothing else is")
            outputs = OUTPUT[case.dtype], *FLOATS
            if case.dtype not in (*cli.TYPES, "fp8") or case.output not in outputs:
                raise ValueError("no rung multiplies this type")
            tasks += [Task.of(case, within, how=how) for how in case.sums]
        except ValueError as error:
            cli.say(f"{case}: left out: {error}")
    return tasks


@dataclasses.dataclass(frozen=True)
class Option:
    """A way to multiply: a rung with a config and the time that the model expects, or cuBLAS."""

    kernel: Kernel | None
    config: Config | None
    predicted: float | None

    @property
    def name(self) -> str:
        return Candidate(self.kernel.name, self.config).name if self.kernel else CUBLAS


@dataclasses.dataclass(frozen=True)
class Result:
    """An option's seconds per product, or the error that it has instead.

    `scaled`: it was timed before the clock had settled, and is taken to slow down as others did.
    """

    option: Option
    seconds: float | None
    error: str | None = None
    scaled: bool = False

    @property
    def name(self) -> str:
        return self.option.name


def timed(results: Sequence[Result]) -> list[Result]:
    """Those with a time, without cuBLAS's."""
    return [result for result in results if result.seconds and result.option.kernel]


@dataclasses.dataclass(frozen=True)
class Task:
    """A case, the dispatcher's problem for it, its options, and the name of its choice.

    `how`: the accumulator, or `FAST`.
    """

    case: Case
    how: str
    problem: Problem
    options: tuple[Option, ...]
    chosen: str

    @staticmethod
    def of(
        case: Case,
        within: float | None = 3.0,
        device: Device | None = None,
        how: str | None = None,
    ) -> Task:
        """The dispatcher's candidates, the least predicted first, and its choice.

        `within` leaves out what is predicted to take that many times the least; None nothing but
        what is beyond the bench's patience. The choice is always there. ValueError where no
        kernel can run the case.
        """
        how = how or case.accumulate
        problem = problem_of(case, device, how)
        choice = dispatch.choose(problem)
        options = [Option(choice.kernel, choice.config, choice.predicted)]
        options += [Option(rung, config, s) for s, rung, config in dispatch.ranked(problem)]
        chosen, known = options[0].name, {}
        for option in options:
            known.setdefault(option.name, option)
        ordered = sorted(known.values(), key=lambda option: option.predicted)
        limit = QUICK.longest if within is None else within * ordered[0].predicted
        kept = [o for o in ordered if o.predicted <= limit or o.name == chosen]
        return Task(case, how, problem, tuple(kept), chosen)

    def __str__(self) -> str:
        return f"{self.case}, {FAST} sums" if self.how == FAST else str(self.case)

    def competitor(self, option: Option) -> Competitor:
        """The option ready to run on any operands of the problem."""
        kernel, config = option.kernel, option.config
        if kernel is None:
            return Competitor(CUBLAS, reference(self.case, self.how))
        run = lambda a, b, c, *more: plan.run(  # noqa: E731
            kernel, self.problem, config, a, b, c, *per_line(self.case, *more)
        )
        refusal = kernel.why_not(config.view(self.problem))
        known = {"refusal": refusal, "split": is_split(self.problem, config)}
        return of_rung(option.name, run, kernel, config, **known)


def search(
    task: Task,
    bench: Bench,
    rng: random.Random,
    *,
    broken: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Check and time the task's options and cuBLAS on `bench`: the fastest first, failures last.

    `broken`: the compiler's words on options that can't run. If an option hangs, its name goes to
    stderr, and the process ends with status 3.
    """
    options = {option.name: option for option in (*task.options, Option(None, None, None))}
    results: dict[str, Result] = {}
    loops: dict[str, Loop] = {}
    for name, option in options.items():
        if reason := (broken or {}).get(name):
            results[name] = Result(option, None, f"failed: {reason}")
            continue
        with watched(f"{name} on {task}"):
            entrant = admit(task.competitor(option), bench, QUICK)
        if entrant.loop:
            loops[name] = entrant.loop
            continue
        results[name] = Result(option, None, f"{entrant.outcome}: {entrant.reason}")
        if entrant.outcome == "wrong":
            say(f"  WRONG: {name}: {entrant.reason}")
    for name, seconds, scaled in _times(loops, task, rng):
        results[name] = Result(options[name], seconds, scaled=scaled)
    return sorted(results.values(), key=lambda r: (r.seconds is None, r.seconds or 0.0))


def _times(loops: Mapping[str, Loop], task: Task, rng: random.Random):
    """Each name, its median over the passes that it took part in, and whether that is scaled."""
    first = {name: loop.seconds for name, loop in loops.items()}
    limit = HOPELESS * min(first.values(), default=0.0)
    for name in first:
        if first[name] > limit:  # or it stalled, as some do when they first run
            with watched(f"{name} on {task}"):
                first[name] = min(first[name], _once(loops[name]))
    times: dict[str, list[float]] = {name: [] for name in first if first[name] <= limit}

    def take(names: list[str], passes: int, seconds: Callable[[Loop], float]) -> None:
        for _ in range(passes):
            for name in rng.sample(names, len(names)):
                with watched(f"{name} on {task}"):
                    times[name].append(seconds(loops[name]))

    take(list(times), PASSES, _once)
    finalists = _finalists(times, {task.chosen, CUBLAS})
    quick = {name: statistics.median(seconds) for name, seconds in times.items()}
    hungry = task.problem.flops > HUNGRY * min(quick.values(), default=math.inf)
    if hungry:
        times |= {name: [] for name in finalists}
    take(finalists, FINALS, _settled if hungry else _once)
    final = {name: statistics.median(times[name]) for name in finalists}
    slowdown = statistics.median(final[n] / quick[n] for n in final) if hungry else 1.0
    for name in first:
        if name in final:
            yield name, final[name], False
        else:
            yield name, slowdown * quick.get(name, first[name]), hungry


def _once(loop: Loop) -> float:
    return loop.time().seconds


def _settled(loop: Loop) -> float:
    """Seconds per product after `LEAD` of the same."""
    end = time.monotonic() + LEAD
    while time.monotonic() < end:
        loop.time()
    return statistics.median(_once(loop) for _ in range(3))


def _finalists(times: Mapping[str, list[float]], always: Collection[str]) -> list[str]:
    """Those near the fastest, and `always`."""
    least = {name: min(seconds) for name, seconds in times.items()}
    ordered = sorted(least, key=least.get)
    near = [name for name in ordered if least[name] <= NEAR * least[ordered[0]]]
    return list(dict.fromkeys([*near[:FINALISTS], *(n for n in ordered if n in always)]))


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


class Searches:
    """Many tasks, compiled ahead by worker processes while the earlier ones are timed."""

    def __init__(self, tasks: Sequence[Task], workers: int | None = None):
        self.tasks, self.compilers = tasks, Compilers(workers)
        self.futures = [
            {o.name: self.compilers.submit((o.kernel.name, t.problem, o.config)) for o in t.options}
            for t in tasks
        ]

    def run(self, index: int, rng: random.Random, say: Callable[[str], None]) -> list[Result]:
        """Search one task; a CUDA error that the device does not survive is raised."""
        errors = {name: future.result().error for name, future in self.futures[index].items()}
        task = self.tasks[index]
        bench = Quick(task.case)
        try:
            return search(task, bench, rng, broken=errors, say=say)
        finally:
            del bench
            torch.cuda.empty_cache()

    def __enter__(self) -> Searches:
        return self

    def __exit__(self, *raised) -> None:
        self.compilers.close()
