"""One command's measurements: race after race, each recorded as soon as it is over."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import math
import random
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from tritemm.compile.pool import Compilers, Item

from . import bench, cli, engine, machine, roof, rows, sources
from .case import Case
from .engine import Bench, Competitor, Plan
from .operands import Operands
from .problems import Problem
from .rows import NULL, REFERENCE, Heading, Row


@dataclasses.dataclass(frozen=True)
class Task:
    """A race on a case: `bench`, given a plan, and `field`, which says who races on that bench.

    Without a `bench` it is the one of the session's mode. `problem` is the case's line in a suite.
    `items` are compiled ahead, by other processes. `amend` gets the bench and the race's rows
    before they are recorded. `fields` replace the session's in the heading of the rows; `plan`, if
    given, replaces that of `Session.measure`.
    """

    case: Case
    field: Callable[[Bench], Sequence[Competitor]]
    problem: Problem | None = None
    bench: Callable[[Plan], Bench] | None = None
    items: Sequence[Item] = ()
    amend: Callable[[Bench, list[Row]], list[Row]] = lambda there, found: found
    fields: dict = dataclasses.field(default_factory=dict)
    plan: Plan | None = None

    @staticmethod
    def of(problem: Problem, field: Callable[[Case, Operands], Sequence], **more) -> Task:
        """A race of products, whose `field` is given the case and its first operands."""
        among = lambda there: field(problem.case, there.sets[0])  # noqa: E731
        return Task(problem.case, among, problem, **more)

    def __str__(self) -> str:
        return (
            f"{self.problem.id} {self.problem.name}: {self.case}"
            if self.problem
            else f"{self.case}"
        )


class Session:
    """What the rows of one command have in common, and where they go."""

    def __init__(self, args: argparse.Namespace, experiment: str):
        self.args, self.experiment = args, experiment
        self.environment = machine.environment()
        self.run = now()
        self.out = args.out or default_path(self.environment.gpu, experiment, self.run)
        self.recorded = args.out is not None or not args.quick
        self.rng = random.Random(args.seed)
        self.rows: list[Row] = []
        self.roofs: roof.Roofs | None = None
        self.interrupted = False
        self.began = time.monotonic()
        torch.manual_seed(args.seed)

    def measure_roofs(self) -> None:
        """The rows that follow say how far they are from the roof."""
        self.roofs = roof.measure(machine.probe())
        if self.roofs:
            found = self.roofs
            cli.say(
                f"roofs: {found.mhz:.0f} MHz under a large product, {found.gbs:.0f} GB/s copied, "
                f"{found.launch:.2f} us per launch"
            )

    def heading(self, task: Task) -> Heading:
        known = {
            "experiment": self.experiment,
            "run": self.run,
            "time": now(),
            "command": typed(self.args.argv),
            "mode": self.args.mode,
            "environment": self.environment,
            "case": task.case,
            "problem": task.problem and task.problem.to_json(),
            "roof": self.roofs and self.roofs.of(task.case),
        }
        return Heading(**known | task.fields)

    def add(self, found: Sequence[Row]) -> None:
        """Keep and record the rows of one race."""
        coded = _coded(found)
        self.rows += coded
        if self.recorded:
            rows.append(self.out, coded)

    def measure(self, tasks: Sequence[Task], plan: Plan, minutes: float = math.inf) -> None:
        """Race every task; Ctrl-C ends it early and keeps what was measured.

        A race that could end later than `minutes` after the session's begin, were it as long as the
        longest, is not begun.
        """
        longest = 0.0
        try:
            with contextlib.ExitStack() as stack:
                ready = self._compiled(tasks, stack)
                for index, task in enumerate(cli.progress(tasks, self.experiment)):
                    begin = time.monotonic()
                    if begin - self.began + longest > 60 * minutes:
                        left = ", ".join(str(each) for each in tasks[index:])
                        cli.say(f"not begun, to end within {minutes:g} minutes (--minutes): {left}")
                        break
                    cli.say(f"[{index + 1}/{len(tasks)}] {task}")
                    for future in ready[index]:  # what does not compile fails again, and says why
                        future.result()
                    own = task.plan or plan
                    # Once warm, the card only has to adapt to the next problem.
                    self._race(task, dataclasses.replace(own, settle=0.0) if index else own)
                    longest = max(longest, time.monotonic() - begin)
                    if self.interrupted:
                        break
        except KeyboardInterrupt:
            self.interrupted = True

    def _compiled(self, tasks: Sequence[Task], stack: contextlib.ExitStack) -> list[list]:
        """What other processes will have compiled for each task."""
        if not any(task.items for task in tasks):
            return [[] for _ in tasks]
        compilers = stack.enter_context(Compilers())
        return [[compilers.submit(item) for item in task.items] for task in tasks]

    def _race(self, task: Task, plan: Plan) -> None:
        """If memory doesn't suffice, the row says so."""
        heading, modes = self.heading(task), bench.BENCHES
        try:
            if task.bench:
                there = task.bench(plan)
            else:
                there = modes[self.args.mode](task.case, plan, machine.probe())
            told = {"say": cli.say, "progress": cli.progress}
            race = engine.measure(task.field(there), there, plan, self.rng, **told)
        except torch.OutOfMemoryError as error:
            reason = cli.short(error)
            cli.say(f"  failed: {reason}")
            self.add([Row(**vars(heading), competitor=REFERENCE, outcome="failed", reason=reason)])
            return
        self.add(task.amend(there, engine.rows_of(race, heading)))
        self.interrupted = race.interrupted
        torch.cuda.empty_cache()

    def finish(self, text: Callable[[list[Row]], str]) -> int:
        """Print the rows, as `text` or JSON; 0, 1 if an output was wrong, 130 after Ctrl-C."""
        cli.say(f"rows are in {self.out}" if self.recorded else "nothing is recorded: --quick")
        if self.interrupted:
            cli.say("interrupted; what was measured is kept")
        print("\n".join(rows.lines(self.rows)) if self.args.json else text(self.rows))
        if self.interrupted:
            return 130
        return int(any(row.outcome == "wrong" for row in self.rows))


def run(
    args: argparse.Namespace,
    command: str,
    measure: Callable[[Session], int | None],
    text: Callable[[list[Row]], str],
    experiment: str | None = None,
) -> int:
    """A whole command; the status is that of `Session.finish`, or else of `measure`."""
    if reason := cli.unable(command):
        return cli.refuse(reason)
    session = Session(args, experiment or command)
    failed = measure(session)
    return session.finish(text) or failed or 0


def planned(args: argparse.Namespace, base: Plan, most: int | None = None) -> Plan:
    """The plan with the requested rounds, up to `most`; or less of everything."""
    if args.quick:
        less = {"rounds": min(3, args.rounds), "replay": 0.01, "lead": 0.02, "settle": 0.2}
        return dataclasses.replace(base, **less)
    return dataclasses.replace(base, rounds=args.rounds, most=most and max(most, args.rounds))


def _coded(found: Iterable[Row]) -> list[Row]:
    """The rows with the hash of their rung's sources.

    A long list of problems keeps the null test as the `null` of its other rows.
    """
    return [
        dataclasses.replace(row, code=sources.hash_of(row))
        for row in found
        if not (row.problem and row.competitor == NULL and row.mode in bench.BENCHES)
    ]


def default_path(gpu: str, experiment: str, run: str) -> Path:
    """A file of its own for each run: `nvidia-h200-suite-20260102-030405.jsonl.gz`."""
    stamp = datetime.datetime.fromisoformat(run).strftime("%Y%m%d-%H%M%S")
    name = f"{machine.slug(gpu)}-{experiment.replace(' ', '-')}-{stamp}.jsonl.gz"
    return rows.RESULTS / name


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def typed(argv: Iterable[str]) -> str:
    """The command line, without the folders, which mean nothing elsewhere."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in argv]
    return "python -m perf " + shlex.join(words)


def heading_line(args: argparse.Namespace) -> str:
    """What JSON lines that aren't rows were measured with; it precedes them."""
    known = {"time": now(), "command": typed(args.argv)}
    return json.dumps(known | {"environment": dataclasses.asdict(machine.environment())})


def record(path: Path | None, lines: Iterable[str]) -> None:
    """Add lines to a file, if there is one."""
    if path:
        with path.open("a") as out:
            out.write("".join(f"{line}\n" for line in lines))
