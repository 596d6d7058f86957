"""`python -m perf search`: time everything that the dispatcher could have chosen.

Each candidate is checked, then timed for some milliseconds, in passes over all of them in random
order; those near the fastest get more passes. `regret` races the best of it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from tritemm import dispatch, plan
from tritemm.compile.pool import WORKERS, Compiled, Compilers
from tritemm.config import changed, config_of
from tritemm.problem import Device, Problem
from tritemm.rungs import find
from tritemm.spec import Config, Kernel

from .. import cli, machine, session, shards
from ..bench import QUICK, Quick
from ..case import ACCUMULATE, OUTPUT, Case, parse_layout
from ..competitors import Candidate, problem_of
from ..engine import Bench, Competitor, Entrant, Loop, admit
from ..operands import reference
from ..problems import SUITE, chosen, random_problems
from ..rows import TRITON
from ..stats import geomean

CUBLAS = "cuBLAS"
#: Passes over all, then over those within this of the fastest, the fastest ones if they are many.
PASSES, FINALS, NEAR, FINALISTS = 2, 3, 1.15, 12
#: What takes this many times the least is timed once more, and then left.
HOPELESS = 8.0
#: FLOP per second from which on power may limit the clock; then the finals follow so many seconds
#: of the same kernel, and what was not in them is scaled as the finalists were.
HUNGRY, LEAD = 2.5e14, 0.06
#: Other outputs than the operands' own type that the rungs write.
FLOATS = ("fp16", "bf16", "fp32")

EXAMPLES = """
python -m perf search --class prefill,decode --out found.jsonl
python -m perf search --random 60 --seed 7 --limit 300 --out found.jsonl
python -m perf search --shape 4096,4096,4096,NT --shape 333,7777,1111,NN --all
python -m perf search --id P1 --kernel pingpong
python -m perf search --random 400 --gpus 4 --out found.jsonl
"""


def register(commands) -> None:
    described = "Time every config that the dispatcher could choose; how good is its choice?"
    command = cli.add_command(commands, "search", run, described, EXAMPLES)
    add = command.add_argument
    cli.add_problems(command, SUITE)
    count = cli.argument(cli.positive)
    add("--random", type=count, metavar="N", help="that many random problems")
    listed = {"dest": "shapes", "type": cli.argument(shape), "action": "append", "default": []}
    text = "one problem; may be given again"
    add("--shape", **listed, metavar="M,N,K[,LAYOUT]", help=text)
    add("--dtype", choices=cli.TYPES, default="bf16", help="of --shape; default: bf16")
    add("--seed", type=int, default=0, help="of the random problems, the data and the order")
    add_search(command)
    cli.add_gpus(command)
    words = cli.argument(cli.one_of(*cli.KERNELS))
    add("--kernel", type=words, default="auto", help="candidates of one rung")
    add("--limit", type=float, metavar="SECONDS", help="begin no problem after so long")
    add("--out", type=Path, help="JSON lines are added to this file")


def add_search(command: argparse.ArgumentParser) -> None:
    """What `regret` has too."""
    add = command.add_argument
    text = "leave out what is predicted to take X times the least; default: 3"
    add("--within", type=float, default=3.0, metavar="X", help=text)
    add("--all", action="store_true", help="leave out nothing")
    text = "that compile, those of all GPUs together; default: one per core"
    add("--workers", type=cli.argument(cli.positive), help=text)


def workers(args: argparse.Namespace) -> int | None:
    """Of this process; None leaves it to `Compilers`, as if no other process had workers."""
    if args.part is None:
        return args.workers
    most = min(len(os.sched_getaffinity(0)), args.part.of * WORKERS)
    return max(1, (args.workers or most) // args.part.of)


def shape(text_: str) -> tuple[int, int, int, str]:
    """`4096,4096,512,NT` or without a layout, which is then NN."""
    *sizes, last = text_.split(",")
    layout = "NN" if last.isdecimal() else parse_layout(last.upper())
    sizes = [*sizes, last] if last.isdecimal() else sizes
    if len(sizes) != 3:
        raise ValueError(f"a shape is M,N,K or M,N,K,LAYOUT, not {text_!r}")
    return (*map(cli.positive, sizes), layout)


def run(args: argparse.Namespace) -> int:
    """0; 1 if an output was wrong; 2: it can't begin; 3: the device failed; 130 after Ctrl-C.

    With `--gpus`, the first of 130, the status of a process that failed, and 1.
    """
    try:
        cases = wanted(args)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    if args.out and args.out.suffix == ".gz":
        return cli.refuse("--out: lines are added to a plain file; gzip it after the search")
    if reason := cli.unable("search") or cli.unshared(args):
        return cli.refuse(reason)
    if cli.shared_out(args):
        return gather(cases, args)
    torch.manual_seed(args.seed)
    mine = args.part.share(cases) if args.part else cases
    tasks = tasks_of(mine, args.kernel, None if args.all else args.within)
    return search_all(tasks, args)


def wanted(args: argparse.Namespace) -> list[Case]:
    """The suite's problems unless others are named; ValueError says what isn't there."""
    cases = []
    if args.classes or args.ids or not (args.random or args.shapes):
        cases += [p.case for p in chosen(args.file, args.classes, args.ids)]
    if args.random:
        cases += [p.case for p in random_problems(args.random, args.seed)]
    for *shape, layout in args.shapes:
        cases.append(Case(*shape, layout, args.dtype, ACCUMULATE[args.dtype]))
    return list(dict.fromkeys(cases))


def tasks_of(cases: Iterable[Case], kernel: str, within: float | None) -> list[Task]:
    """Of the cases that can be run; the others are named, and why."""
    tasks = []
    for case in cases:
        if case.dtype not in cli.TYPES or case.output not in (OUTPUT[case.dtype], *FLOATS):
            cli.say(f"{case}: left out: no rung multiplies this type")
            continue
        try:
            tasks.append(Task.of(case, kernel, within))
        except ValueError as error:
            cli.say(f"{case}: left out: {error}")
    return tasks


# What is found


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


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search of one problem found: results, the fastest first, then the failures."""

    case: Case
    results: tuple[Result, ...]
    chosen: str
    title: str = ""

    @property
    def timed(self) -> list[Result]:
        """Without cuBLAS."""
        return [r for r in self.results if r.seconds and r.option.kernel]

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.error]

    @property
    def cublas(self) -> Result | None:
        return next((r for r in self.results if r.seconds and not r.option.kernel), None)

    @property
    def choice(self) -> Result | None:
        """The dispatcher's, None if it has no time."""
        return next((r for r in self.timed if r.name == self.chosen), None)

    @property
    def rank(self) -> int | None:
        """The choice's place among the timed ones, from 1."""
        return self.timed.index(self.choice) + 1 if self.choice else None

    @property
    def regret(self) -> float | None:
        """The choice's time over the best one's."""
        return self.choice.seconds / self.timed[0].seconds if self.choice else None


def to_json(case: Case, result: Result) -> str:
    """One line: the problem, the option, what it took and what was expected, in microseconds.

    `precision` and `accumulate` are there where they are not the type's own; `error` where there
    is no time; `scaled` where the time is.
    """
    option = result.option
    fields: dict[str, Any] = {
        "M": case.M, "N": case.N, "K": case.K, "batch": case.batch, "layout": case.layout,
        "dtype": case.dtype, "out": case.output,
        "kernel": option.kernel.name if option.kernel else CUBLAS,
        "config": changed(option.config) if option.config else {},
        "us": _us(result.seconds), "predicted_us": _us(option.predicted),
    }  # fmt: skip
    if case.dtype == "fp32":
        fields["precision"] = case.precision
    if case.accumulate != ACCUMULATE[case.dtype]:
        fields["accumulate"] = case.accumulate
    if result.error:
        fields["error"] = result.error
    if result.scaled:
        fields["scaled"] = True
    return json.dumps(fields, separators=(",", ":"))


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else float(f"{1e6 * seconds:.5g}")


def note(found: Found) -> str:
    """What the lines of a shared search don't say: it stands before them in a part's file."""
    known = {"case": dataclasses.asdict(found.case), "chosen": found.chosen, "title": found.title}
    return json.dumps({"note": known})


def read(paths: Iterable[Path]) -> list[Found]:
    """What parts have left, file after file; a torn line, of a process that died, is left out."""
    found: list[Found] = []
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if known := fields.get("note"):
                found.append(Found(Case(**known["case"]), (), known["chosen"], known["title"]))
            elif "kernel" in fields:  # not the heading
                results = (*found[-1].results, _result(fields))
                found[-1] = dataclasses.replace(found[-1], results=results)
    return [one for one in found if one.results]


def _result(fields: Mapping[str, Any]) -> Result:
    us, predicted = (fields[name] and fields[name] / 1e6 for name in ("us", "predicted_us"))
    option = Option(None, None, predicted)
    if fields["kernel"] != CUBLAS:
        option = Option(find(fields["kernel"]), config_of(fields["config"]), predicted)
    return Result(option, us, fields.get("error"), "scaled" in fields)


def text(found: Found, best: int = 5) -> str:
    """The fastest few with what was predicted of them, cuBLAS, and how the choice compares."""
    lines = [_line(str(i + 1), result) for i, result in enumerate(found.timed[:best])]
    if found.cublas:
        lines.append(_line("", found.cublas))
    choice = found.choice
    if choice is None:
        lines.append(f"     the choice has no time: {found.chosen}")
    else:
        if found.rank > best:
            lines.append(_line(str(found.rank), choice))
        lines.append(f"     the choice is number {found.rank}, {found.regret:.3f} of the best")
    if found.failures:
        lines.append(f"     {len(found.failures)} without a time, of {len(found.results) - 1}")
    return "\n".join(lines)


def _line(rank: str, result: Result) -> str:
    predicted = result.option.predicted
    note = f"  predicted {1e6 * predicted:9.2f}" if predicted else ""
    return f"{rank:>4} {result.name:<56} {1e6 * result.seconds:9.2f} us{note}"


def summary(found: Sequence[Found]) -> str:
    """How good the choices were, by these quick times, and how they compare with cuBLAS."""
    regrets = {str(one.case): one.regret for one in found if one.regret}
    if not regrets:
        return "nothing was timed"
    worst = max(regrets, key=regrets.get)
    ratios = [(one.cublas.seconds, one) for one in found if one.cublas and one.choice]
    chosen = geomean(theirs / one.choice.seconds for theirs, one in ratios)
    best = geomean(theirs / one.timed[0].seconds for theirs, one in ratios)
    return (
        f"{len(regrets)} problems: the choice takes {geomean(regrets.values()):.4f} of the best, "
        f"at worst {regrets[worst]:.3f} ({worst})\n"
        f"cuBLAS's time over the choice's: {chosen:.4f}; over the best's: {best:.4f}"
    )


# The search


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
        limit = QUICK.longest if within is None else within * ordered[0].predicted
        kept = [o for o in ordered if o.predicted <= limit or o.name == chosen]
        return Task(case, problem, tuple(kept), chosen)


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
            entrant = admit(competitor(option, task.problem, task.case), bench, QUICK)
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


# The command


def gather(cases: Sequence[Case], args: argparse.Namespace) -> int:
    """Have a process on each GPU search its share; print and record all in the cases' order."""
    head, stamp = heading(args), session.now()
    ended = shards.run(args.argv, min(args.gpus, len(cases)), stamp, args.out, cli.say)
    places = {case: place for place, case in enumerate(cases, start=1)}
    found = sorted(read(ended.files), key=lambda one: places[one.case])
    record(args.out, [head, *(to_json(one.case, r) for one in found for r in one.results)])
    ended.discard()
    for one in found:
        print(f"[{places[one.case]}/{len(cases)}] {one.title}\n{text(one)}")
    print(summary(found))
    status = 130 if ended.interrupted else ended.status
    return status or int(any(map(wrong, found)))


def search_all(tasks: Sequence[Task], args: argparse.Namespace) -> int:
    """Search task by task, printing and recording each as it is done.

    A part says that it is done with a task, and leaves to the whole what was found and is wrong.
    """
    begin, status, part = time.monotonic(), 0, args.part
    rng, found, path = random.Random(args.seed), [], part.out if part else args.out
    try:
        with Searches(tasks, workers(args)) as searches:
            record(path, [heading(args)])
            for index, task in enumerate(tasks):
                if args.limit and time.monotonic() - begin > args.limit:
                    left = len(tasks) - index
                    cli.say(f"{args.limit:g} s are over; {left} problems are left")
                    break
                started = time.monotonic()
                try:
                    one = searches.run(index, rng, cli.say)
                except torch.OutOfMemoryError as error:
                    torch.cuda.empty_cache()
                    cli.say(f"{task.case}: left out: {cli.short(error, 200)}")
                    continue
                took = f"{time.monotonic() - started:.1f} s"
                title = f"{one.case}: {len(task.options)} candidates, {took}"
                one = dataclasses.replace(one, title=title)
                found.append(one)
                notes = [note(one)] if part else []
                record(path, [*notes, *(to_json(one.case, result) for result in one.results)])
                title = f"[{index + 1}/{len(tasks)}] {title}"
                if part:
                    cli.say(title)
                else:
                    print(f"{title}\n{text(one)}", flush=True)
    except KeyboardInterrupt:
        status = 130
    except RuntimeError as error:  # a CUDA error: nothing more can be launched
        cli.say(f"the search ends: {cli.short(error)}")
        status = 3
    if part:
        return status
    print(summary(found))
    return status or int(any(map(wrong, found)))


def wrong(found: Found) -> bool:
    """Whether an output was."""
    return any(result.error.startswith("wrong") for result in found.failures)


def heading(args: argparse.Namespace) -> str:
    """What the lines below it were measured with."""
    known = dataclasses.asdict(machine.environment())
    fields = {"time": session.now(), "command": session.typed(args.argv), "environment": known}
    return json.dumps(fields)


def record(path: Path | None, lines: Iterable[str]) -> None:
    if path:
        with path.open("a") as out:
            out.write("".join(f"{line}\n" for line in lines))
