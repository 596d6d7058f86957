"""One command's measurements: race after race, each recorded as soon as it is over."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import math
import random
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from . import bench, cli, engine, figures, machine, roof, rows, shards, sources, tables
from .case import Case
from .engine import Competitor, Plan
from .operands import Operands
from .problems import Problem
from .rows import NULL, REFERENCE, Heading, Row


@dataclasses.dataclass(frozen=True)
class Task:
    """A case, and who races on it, given its operands; `problem` is its line in a suite.

    `experiment`, `plan` and `rounds`, if given, stand in the place of the session's, of the one of
    `Session.measure`, and of the plan's.
    """

    case: Case
    field: Callable[[Operands], Sequence[Competitor]]
    problem: dict[str, str] | None = None
    experiment: str | None = None
    plan: Plan | None = None
    rounds: int | None = None

    @staticmethod
    def of(problem: Problem, field: Callable, **fields) -> Task:
        """`field` says who races, given the case too; `fields`: more of the task."""
        among = functools.partial(field, problem.case)
        return Task(problem.case, among, problem.to_json(), **fields)


class Session:
    """What the rows of one command have in common, and where they go.

    With `args.part` this process is one of several that measure for one command (`perf.shards`).
    """

    def __init__(self, args: argparse.Namespace, experiment: str):
        self.args, self.experiment, self.part = args, experiment, args.part
        self.environment = machine.environment()
        self.run = self.part.run if self.part else now()
        self.out = args.out or default_path(self.environment.gpu, experiment, self.run)
        self.recorded = args.out is not None or not args.quick
        if self.part:
            self.out, self.recorded = self.part.out, True
        self.rng = random.Random(args.seed)
        self.races: list[list[Row]] = []
        self.roofs: roof.Roofs | None = None
        self.interrupted = False
        self.began = time.monotonic()
        self.live: figures.Live | None = None
        torch.manual_seed(args.seed)

    @property
    def rows(self) -> list[Row]:
        return [row for race in self.races for row in race]

    def measure_roofs(self) -> None:
        """The rows that follow say how far they are from the roof."""
        self.roofs = roof.measure(machine.probe())
        if self.roofs:
            found = self.roofs
            cli.say(
                f"roofs: {found.mhz:.0f} MHz under a large product, {found.gbs:.0f} GB/s copied, "
                f"{found.launch:.2f} us per launch"
            )

    def draw(self, draw: figures.Draw, folder: Path) -> None:
        """Keep pictures of the rows in `folder` up to date, from now to `finish`."""
        if reason := figures.missing():
            cli.say(f"no pictures: {reason}")
        elif not self.part:
            self.live = figures.Live(draw, folder)
            sources.hashes()  # takes a second, which must not be between two rounds

    def heading(self, case: Case, problem: dict[str, str] | None = None, **fields) -> Heading:
        known = {
            "experiment": self.experiment,
            "run": self.run,
            # It tells races apart: those of several processes can begin in one second.
            "time": now("microseconds") if self.part else now(),
            "command": typed(self.args.argv),
            "mode": self.args.mode,
            "environment": self.environment,
            "roof": self.roofs and self.roofs.of(case),
        }
        return Heading(case=case, problem=problem, **known | fields)

    def add(self, found: Sequence[Row]) -> None:
        """Keep, and record, the rows of one race."""
        self.races.append(_coded(found))
        if self.recorded:
            rows.append(self.out, self.races[-1])

    def gather(self, problems: Sequence[str]) -> int:
        """Have a process on each of `--gpus` measure, and take the rows; the status of a failure.

        `problems` are the ids in the order in which one process would measure.
        """
        count = min(self.args.gpus, len(problems))
        out = self.out if self.recorded else None
        ended = shards.run(self.args.argv, count, self.run, out, cli.say)
        races = tables.grouped(rows.read(*ended.files), lambda row: row.id)
        self.races = [races[problem] for problem in problems if problem in races]
        if self.recorded and self.races:
            rows.append(self.out, self.rows)
        ended.discard()
        self.interrupted = ended.interrupted
        return ended.status

    def measure(
        self,
        tasks: Sequence[Task],
        plan: Plan,
        amend: Callable[[list[Row]], list[Row]] = list,
        minutes: float = math.inf,
    ) -> None:
        """Race every task; Ctrl-C ends it early and keeps what was measured.

        `amend` gets the rows of each race before they are recorded. A race that could end later
        than `minutes` after the session's begin, were it as long as the longest, is not begun.
        """
        longest = 0.0
        try:
            for index, task in enumerate(cli.progress(tasks, self.experiment)):
                begin = time.monotonic()
                if begin - self.began + longest > 60 * minutes:
                    left = ", ".join(str(task.case) for task in tasks[index:])
                    cli.say(f"not begun, to end within {minutes:g} minutes (--minutes): {left}")
                    break
                named = f"{task.problem['id']} {task.problem['name']}: " if task.problem else ""
                cli.say(f"[{index + 1}/{len(tasks)}] {named}{task.case}")
                own = task.plan or plan
                own = dataclasses.replace(own, rounds=task.rounds or own.rounds)
                fields = {"experiment": task.experiment or self.experiment}
                heading = self.heading(task.case, task.problem, **fields)
                make = functools.partial(_made, task, mode=self.args.mode)
                self.race(heading, make, settled(own, index), amend)
                longest = max(longest, time.monotonic() - begin)
                if self.interrupted:
                    break
        except KeyboardInterrupt:
            self.interrupted = True

    def race(self, heading: Heading, make: Callable, plan: Plan, amend: Callable = list) -> None:
        """Race whom `make` returns on the bench it returns, and record it.

        Where memory doesn't suffice, that is the row.
        """

        def watch(race: engine.Race) -> None:
            if self.live:
                self.live.show(self.rows + _coded(engine.rows_of(race, heading)))

        try:
            there, field = make(plan)
            told = {"say": cli.say, "progress": cli.progress, "watch": watch}
            race = engine.measure(field, there, plan, self.rng, **told)
        except torch.OutOfMemoryError as error:
            reason = cli.short(error)
            cli.say(f"  failed: {reason}")
            self.add([Row(**vars(heading), competitor=REFERENCE, outcome="failed", reason=reason)])
            return
        self.add(amend(engine.rows_of(race, heading)))
        self.interrupted = race.interrupted
        torch.cuda.empty_cache()

    def finish(self, text: Callable[[list[Row]], str]) -> int:
        """Print the rows, as `text` or JSON; 0, 1 if an output was wrong, 130 after Ctrl-C.

        A part prints nothing, and leaves it to the whole to say what is wrong.
        """
        if self.part:
            return 130 if self.interrupted else 0
        for path in self.live.close(self.rows) if self.live else ():
            cli.say(f"drew {path}")
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
    problems: Sequence[Problem],
    measure: Callable[[Session, list[Problem]], int | None],
    text: Callable[[list[Row]], str],
    experiment: str | None = None,
    draw: figures.Draw | None = None,
) -> int:
    """A whole command: `measure` the problems, or this part of them, or share them out.

    The status is that of `Session.finish`, or else of `measure` or of a process that failed.
    """
    if reason := cli.unable(command) or cli.unshared(args):
        return cli.refuse(reason)
    session = Session(args, experiment or command)
    if draw:
        session.draw(draw, args.folder)
    if cli.shared_out(args):
        failed = session.gather([problem.id for problem in problems])
    else:
        failed = measure(session, args.part.share(problems) if args.part else list(problems))
    return session.finish(text) or failed or 0


def race(
    args: argparse.Namespace,
    command: str,
    problems: Sequence[Problem],
    field: Callable[[Case, Operands], Sequence[Competitor]],
    plan: Plan,
    text: Callable[[list[Row]], str],
    experiment: str | None = None,
) -> int:
    """`run` where all there is to measure are the roofs, and races of `field` with one plan."""

    def measure(there: Session, mine: Sequence[Problem]) -> None:
        there.measure_roofs()
        there.measure([Task.of(problem, field) for problem in mine], plan)

    return run(args, command, problems, measure, text, experiment)


def settled(plan: Plan, index: int) -> Plan:
    """Once warm, the card only has to adapt to the next problem."""
    return plan if index == 0 else dataclasses.replace(plan, settle=0.0)


def _made(task: Task, plan: Plan, mode: str) -> tuple[bench.CudaBench, Sequence[Competitor]]:
    there = bench.BENCHES[mode](task.case, plan, machine.probe())
    return there, task.field(there.sets[0])


def _coded(found: Iterable[Row]) -> list[Row]:
    """With the hash of the rung's sources.

    A long list of problems keeps the null test as the `null` of its other rows.
    """
    return [
        dataclasses.replace(row, code=sources.hash_of(row))
        for row in found
        if not (row.problem and row.competitor == NULL and row.mode in sources.MODES)
    ]


def default_path(gpu: str, experiment: str, run: str) -> Path:
    """A file of its own for each run: `nvidia-h200-suite-20260102-030405.jsonl.gz`."""
    stamp = datetime.datetime.fromisoformat(run).strftime("%Y%m%d-%H%M%S")
    name = f"{machine.slug(gpu)}-{experiment.replace(' ', '-')}-{stamp}.jsonl.gz"
    return rows.RESULTS / name


def now(timespec: str = "seconds") -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec=timespec)


def typed(argv: Iterable[str]) -> str:
    """What was typed, without the folders, which mean nothing elsewhere."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in argv]
    return "python -m perf " + shlex.join(words)
