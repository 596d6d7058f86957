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
from pathlib import Path
from typing import Any

import torch

from tritemm import dispatch, plan
from tritemm.compile.pool import WORKERS, Compilers
from tritemm.problem import Device, Problem
from tritemm.problem.config import changed, config_of
from tritemm.rungs import find
from tritemm.spec import Config, Kernel

from .. import cli, machine, session, shards
from ..bench import QUICK, Quick
from ..case import ACCUMULATE, OUTPUT, Case, parse_layout
from ..competitors import Candidate, of_rung, problem_of
from ..engine import Bench, Competitor, Loop, admit
from ..operands import reference
from ..problems import SUITE, chosen, random_problems
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
    count, listed = cli.argument(cli.positive), {"action": "append", "default": []}
    add("--random", type=count, metavar="N", help="that many random problems")
    listed |= {"dest": "shapes", "type": cli.argument(shape), "metavar": "M,N,K[,LAYOUT]"}
    add("--shape", **listed, help="one problem; may be given again")
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
    told = "leave out what is predicted to take X times the least; default: 3"
    add("--within", type=float, default=3.0, metavar="X", help=told)
    add("--all", action="store_true", help="leave out nothing")
    told = "that compile, those of all GPUs together; default: one per core"
    add("--workers", type=cli.argument(cli.positive), help=told)


def workers(args: argparse.Namespace) -> int | None:
    """Of this process; None leaves it to `Compilers`, as if no other process had workers."""
    if args.part is None:
        return args.workers
    most = min(len(os.sched_getaffinity(0)), args.part.of * WORKERS)
    return max(1, (args.workers or most) // args.part.of)


def shape(text_: str) -> tuple[int, int, int, str]:
    """`4096,4096,512,NT` or without a layout, which is then NN."""
    words = text_.split(",")
    layout = "NN" if words[-1].isdecimal() else parse_layout(words.pop().upper())
    if len(words) != 3:
        raise ValueError(f"a shape is M,N,K or M,N,K,LAYOUT, not {text_!r}")
    return (*map(cli.positive, words), layout)


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
    found = []
    if args.classes or args.ids or not (args.random or args.shapes):
        found += chosen(args.file, args.classes, args.ids)
    if args.random:
        found += random_problems(args.random, args.seed)
    types = (args.dtype, ACCUMULATE[args.dtype])
    cases = [*(problem.case for problem in found), *(Case(*s, *types) for s in args.shapes)]
    return list(dict.fromkeys(cases))


def tasks_of(cases: Iterable[Case], kernel: str, within: float | None) -> list[Task]:
    """Of the cases that can be run; the others are named, and why."""
    tasks = []
    for case in cases:
        try:
            if case.dtype not in cli.TYPES or case.output not in (OUTPUT[case.dtype], *FLOATS):
                raise ValueError("no rung multiplies this type")
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
    option, own = result.option, ACCUMULATE[case.dtype]
    us, predicted = (s and float(f"{1e6 * s:.5g}") for s in (result.seconds, option.predicted))
    fields: dict[str, Any] = {
        "M": case.M, "N": case.N, "K": case.K, "batch": case.batch, "layout": case.layout,
        "dtype": case.dtype, "out": case.output,
        "kernel": option.kernel.name if option.kernel else CUBLAS,
        "config": changed(option.config) if option.config else {},
        "us": us, "predicted_us": predicted,
    }  # fmt: skip
    more = {
        "precision": case.precision if case.dtype == "fp32" else None,
        "accumulate": case.accumulate if case.accumulate != own else None,
        "error": result.error,
        "scaled": result.scaled,
    }
    fields |= {name: value for name, value in more.items() if value}
    return json.dumps(fields, separators=(",", ":"))


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
    kernel = None if fields["kernel"] == CUBLAS else find(fields["kernel"])
    config = kernel and config_of(fields["config"])
    option = Option(kernel, config, predicted)
    return Result(option, us, fields.get("error"), "scaled" in fields)


def text(found: Found, best: int = 5) -> str:
    """The fastest few with what was predicted of them, cuBLAS, and how the choice compares."""
    lines = [_line(str(i), result) for i, result in enumerate(found.timed[:best], 1)]
    if found.cublas:
        lines.append(_line("", found.cublas))
    if found.choice and found.rank > best:
        lines.append(_line(str(found.rank), found.choice))
    placed = found.choice and f"is number {found.rank}, {found.regret:.3f} of the best"
    lines.append(f"     the choice {placed or f'has no time: {found.chosen}'}")
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
        what is beyond the bench's patience. The choice is always there. ValueError where no
        kernel, or not this one, can run the case.
        """
        problem = problem_of(case, device)
        choice = dispatch.choose(problem, kernel)
        options = [Option(choice.kernel, choice.config, choice.predicted)]
        options += [Option(rung, config, s) for s, rung, config in dispatch.ranked(problem, kernel)]
        chosen, known = options[0].name, {}
        for option in options:
            known.setdefault(option.name, option)
        ordered = sorted(known.values(), key=lambda option: option.predicted)
        limit = QUICK.longest if within is None else within * ordered[0].predicted
        kept = [o for o in ordered if o.predicted <= limit or o.name == chosen]
        return Task(case, problem, tuple(kept), chosen)


def competitor(option: Option, problem: Problem, case: Case) -> Competitor:
    """The option ready to run on any operands of the problem."""
    kernel, config = option.kernel, option.config
    if kernel is None:
        return Competitor(CUBLAS, reference(case))
    run = lambda a, b, c: plan.run(kernel, problem, config, a, b, c)  # noqa: E731
    refusal = kernel.why_not(config.view(problem))
    return of_rung(option.name, run, kernel, config, refusal=refusal)


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
    options = {option.name: option for option in (*task.options, Option(None, None, None))}
    results: dict[str, Result] = {}
    loops: dict[str, Loop] = {}
    for name, option in options.items():
        if reason := (broken or {}).get(name):
            results[name] = Result(option, None, f"failed: {reason}")
            continue
        with watched(f"{name} on {task.case}"):
            entrant = admit(competitor(option, task.problem, task.case), bench, QUICK)
        if entrant.loop:
            loops[name] = entrant.loop
            continue
        results[name] = Result(option, None, f"{entrant.outcome}: {entrant.reason}")
        if entrant.outcome == "wrong":
            say(f"  WRONG: {name}: {entrant.reason}")
    for name, seconds, scaled in _times(loops, task, rng):
        results[name] = Result(options[name], seconds, scaled=scaled)
    ordered = sorted(results.values(), key=lambda r: (r.seconds is None, r.seconds or 0.0))
    return Found(task.case, tuple(ordered), task.chosen)


def _times(loops: Mapping[str, Loop], task: Task, rng: random.Random):
    """Each name, its median over the passes that it took part in, and whether that is scaled."""
    first = {name: loop.seconds for name, loop in loops.items()}
    limit = HOPELESS * min(first.values(), default=0.0)
    for name in first:
        if first[name] > limit:  # or it stalled, as some do when they first run
            with watched(f"{name} on {task.case}"):
                first[name] = min(first[name], _once(loops[name]))
    times: dict[str, list[float]] = {name: [] for name in first if first[name] <= limit}

    def take(names: list[str], passes: int, seconds: Callable[[Loop], float]) -> None:
        for _ in range(passes):
            for name in rng.sample(names, len(names)):
                with watched(f"{name} on {task.case}"):
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

    def run(self, index: int, rng: random.Random, say: Callable[[str], None]) -> Found:
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
    return _finished(found, 130 if ended.interrupted else ended.status)


def _finished(found: Sequence[Found], status: int) -> int:
    """Print the summary; 1 in place of 0 if an output was wrong."""
    print(summary(found))
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
                started = time.monotonic()
                if args.limit and started - begin > args.limit:
                    cli.say(f"{args.limit:g} s are over; {len(tasks) - index} problems are left")
                    break
                try:
                    one = searches.run(index, rng, cli.say)
                except torch.OutOfMemoryError as error:
                    torch.cuda.empty_cache()
                    cli.say(f"{task.case}: left out: {cli.short(error, 200)}")
                    continue
                took = f"{time.monotonic() - started:.1f} s"
                title = f"{one.case}: {len(task.options)} candidates, {took}"
                found.append(dataclasses.replace(one, title=title))
                lines = [to_json(one.case, result) for result in one.results]
                place = f"[{index + 1}/{len(tasks)}] {title}"
                if part:
                    record(path, [note(found[-1]), *lines])
                    cli.say(place)
                else:
                    record(path, lines)
                    print(f"{place}\n{text(one)}", flush=True)
    except KeyboardInterrupt:
        status = 130
    except RuntimeError as error:  # a CUDA error: nothing more can be launched
        cli.say(f"the search ends: {cli.short(error)}")
        status = 3
    return status if part else _finished(found, status)


def wrong(found: Found) -> bool:
    """Whether an output was."""
    return any(result.error.startswith("wrong") for result in found.failures)


def heading(args: argparse.Namespace) -> str:
    """What the lines below it were measured with."""
    known = {"time": session.now(), "command": session.typed(args.argv)}
    return json.dumps(known | {"environment": dataclasses.asdict(machine.environment())})


def record(path: Path | None, lines: Iterable[str]) -> None:
    if path:
        with path.open("a") as out:
            out.write("".join(f"{line}\n" for line in lines))
