"""One command's measurements: race after race, each recorded as soon as it is over."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import math
import random
import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from . import bench, engine, machine, roof, shards, sources
from .case import Case
from .cli import progress, say
from .engine import Competitor, Plan
from .operands import Operands
from .plots.figures import missing
from .plots.live import Draw, Live
from .rows import NULL, REFERENCE, RESULTS, Heading, Row, append, lines, read
from .shards import Part


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


class Session:
    """What the rows of one command have in common, and where they go.

    With a `part` this process is one of several that measure for one command (`perf.shards`).
    """

    def __init__(
        self,
        args: argparse.Namespace,
        experiment: str,
        mode: str = "sustained",
        part: Part | None = None,
    ):
        self.args, self.experiment, self.mode, self.part = args, experiment, mode, part
        self.environment = machine.environment()
        self.run = part.run if part else now()
        self.out = args.out or default_path(self.environment.gpu, experiment, self.run)
        self.recorded = args.out is not None or not args.quick
        if part:
            self.out, self.recorded = part.out, True
        self.rng = random.Random(args.seed)
        self.races: list[list[Row]] = []
        self.roofs: roof.Roofs | None = None
        self.interrupted = False
        self.began = time.monotonic()
        self.live: Live | None = None
        torch.manual_seed(args.seed)

    def measure_roofs(self) -> None:
        """The rows that follow say how far they are from the roof."""
        self.roofs = roof.measure(machine.probe())
        if self.roofs:
            found = self.roofs
            say(
                f"roofs: {found.mhz:.0f} MHz under a large product, {found.gbs:.0f} GB/s copied, "
                f"{found.launch:.2f} us per launch"
            )

    def draw(self, draw: Draw, folder: Path) -> None:
        """Keep pictures of the rows in `folder` up to date, from now to `finish`."""
        if reason := missing():
            say(f"no pictures: {reason}")
        elif not self.part:
            self.live = Live(draw, folder)
            sources.hashes()  # takes a second, which must not be between two rounds

    def rows(self) -> list[Row]:
        return [row for race in self.races for row in race]

    def heading(self, case: Case, problem: dict[str, str] | None = None, **fields) -> Heading:
        return dataclasses.replace(
            Heading(
                experiment=self.experiment,
                run=self.run,
                # It tells races apart: those of several processes can begin in one second.
                time=now("microseconds") if self.part else now(),
                command=_command(self.args.argv),
                mode=self.mode,
                environment=self.environment,
                case=case,
                problem=problem,
                roof=self.roofs and self.roofs.of(case),
            ),
            **fields,
        )

    def add(self, rows: Sequence[Row]) -> None:
        """Keep, and record, the rows of one race."""
        rows = _coded(rows)
        self.races.append(rows)
        if self.recorded:
            append(self.out, rows)

    def gather(self, problems: Sequence[str]) -> int:
        """Have a process on each of `--gpus` measure, and take the rows; the status of a failure.

        `problems` are the ids in the order in which one process would measure.
        """
        count = min(self.args.gpus, len(problems))
        out = self.out if self.recorded else None
        ended = shards.run(self.args.argv, count, self.run, out, say)
        races: dict[str, list[Row]] = {problem: [] for problem in problems}
        for row in read(*ended.files):
            races[row.problem["id"]].append(row)
        self.races = [race for race in races.values() if race]
        if self.recorded and self.races:
            append(self.out, [row for race in self.races for row in race])
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
        make, longest = bench.BENCHES[self.mode], 0.0
        try:
            for index, task in enumerate(progress(tasks, self.experiment)):
                begin = time.monotonic()
                if begin - self.began + longest > 60 * minutes:
                    left = ", ".join(str(task.case) for task in tasks[index:])
                    say(f"not begun, to end within {minutes:g} minutes (--minutes): {left}")
                    break
                named = f"{task.problem['id']} {task.problem['name']}: " if task.problem else ""
                say(f"[{index + 1}/{len(tasks)}] {named}{task.case}")
                # Once warm, the card only has to adapt to the next problem.
                own = task.plan or plan
                settle = own.settle if index == 0 else 0.0
                self._race(task, dataclasses.replace(own, settle=settle), make, amend)
                torch.cuda.empty_cache()
                longest = max(longest, time.monotonic() - begin)
                if self.interrupted:
                    break
        except KeyboardInterrupt:
            self.interrupted = True

    def _race(self, task: Task, plan: Plan, make: Callable, amend: Callable) -> None:
        experiment = task.experiment or self.experiment
        heading = self.heading(task.case, task.problem, experiment=experiment)
        plan = dataclasses.replace(plan, rounds=task.rounds or plan.rounds)
        try:
            there = make(task.case, plan, machine.probe())
            field = task.field(there.sets[0])

            def watch(race: engine.Race) -> None:
                if self.live:
                    self.live.show(self.rows() + _coded(engine.rows_of(race, heading)))

            told = {"say": say, "progress": progress, "watch": watch}
            race = engine.measure(field, there, plan, self.rng, **told)
        except torch.OutOfMemoryError as error:
            reason = " ".join(str(error).split())[:300]
            say(f"  failed: {reason}")
            self.add([failed(heading, REFERENCE, reason)])
            return
        rows = amend(engine.rows_of(race, heading))
        # A long list of problems keeps the null test as the `null` of its other rows.
        self.add([row for row in rows if not (row.problem and row.competitor == NULL)])
        self.interrupted = race.interrupted

    def finish(self, text: Callable[[list[list[Row]]], str]) -> int:
        """Print the rows, as `text` or JSON; 0, 1 if an output was wrong, 130 after Ctrl-C.

        A part prints nothing, and leaves it to the whole to say what is wrong.
        """
        if self.part:
            return 130 if self.interrupted else 0
        for path in self.live.close(self.rows()) if self.live else ():
            say(f"drew {path}")
        say(f"rows are in {self.out}" if self.recorded else "nothing is recorded: --quick")
        if self.interrupted:
            say("interrupted; what was measured is kept")
        rows = self.rows()
        print("\n".join(lines(rows)) if self.args.json else text(self.races))
        if self.interrupted:
            return 130
        return int(any(row.outcome == "wrong" for row in rows))


def _coded(rows: Iterable[Row]) -> list[Row]:
    return [dataclasses.replace(row, code=sources.hash_of(row)) for row in rows]


def failed(heading: Heading, competitor: str, reason: str) -> Row:
    """A row of what could not be run at all."""
    return Row(**vars(heading), competitor=competitor, outcome="failed", reason=reason)


def default_path(gpu: str, experiment: str, run: str) -> Path:
    """A file of its own for each run: `nvidia-h200-suite-20260102-030405.jsonl.gz`."""
    stamp = re.sub(r"\D", "", run[:10]) + "-" + re.sub(r"\D", "", run[11:19])
    name = f"{machine.slug(gpu)}-{experiment.replace(' ', '-')}-{stamp}.jsonl.gz"
    return RESULTS / name


def now(timespec: str = "seconds") -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec=timespec)


def _command(argv: Iterable[str]) -> str:
    """What was typed, without the folders, which mean nothing elsewhere."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in argv]
    return "python -m perf " + shlex.join(words)
