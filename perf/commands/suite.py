"""`python -m perf suite | random`: `tritemm.matmul` against cuBLAS on many problems."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from tritemm.rungs import RUNGS

from .. import invariant_report
from ..bench import BENCHES
from ..cli import (
    add_command,
    add_gpus,
    add_measurement,
    argument,
    list_of,
    one_of,
    positive,
    refuse,
    shared_out,
    unable,
    unshared,
)
from ..competitors import invariant, matmul
from ..engine import Plan
from ..problems import SUITE, Problem, classes, random_problems, read_suite
from ..session import Session, Task
from ..summary import text

#: Many races in a row keep the card hot, so that each can be shorter than a lone one.
PLAN = Plan(replay=0.02, longest=5.0)
#: Rounds at least, and at most where that is not precise enough: of random problems only the
#: means count.
ROUNDS, MOST = {"suite": 5, "random": 4}, {"suite": 24, "random": 5}

SUITE_EXAMPLES = """
python -m perf suite
python -m perf suite --class decode,ragged --kernel auto,persistent
python -m perf suite --id P1,S4 --rounds 30 --mode burst
python -m perf suite --file mine.csv --out mine.jsonl
python -m perf suite --batch-invariant --class decode
"""
RANDOM_EXAMPLES = """
python -m perf random
python -m perf random --n 60 --seed 7 --kernel tma
python -m perf random --gpus 4
"""


def register(commands) -> None:
    described = "Race tritemm.matmul against cuBLAS on the shape suite, or on another."
    suite = add_command(commands, "suite", run_suite, described, SUITE_EXAMPLES)
    suite.add_argument(
        "--file", type=Path, default=SUITE, help="CSV with the columns of perf/suite.csv"
    )
    suite.add_argument(
        "--class", dest="classes", type=list_of(str), default="", metavar="CLASS,...",
        help="these alone: prefill, decode, ...",
    )  # fmt: skip
    suite.add_argument(
        "--id", dest="ids", type=list_of(str), default="", metavar="ID,...", help="these alone"
    )
    suite.add_argument(
        "--batch-invariant", action="store_true",
        help="race matmul(batch_invariant=True) too, beside auto; rows are the experiment "
        f"{invariant_report.EXPERIMENT!r}",
    )  # fmt: skip
    described = "Race tritemm.matmul against cuBLAS on log-uniform random 16-bit problems."
    chance = add_command(commands, "random", run_random, described, RANDOM_EXAMPLES)
    chance.add_argument("--n", type=argument(positive), default=400, help="default: 400")
    for command in (suite, chance):
        words = ("auto", *(kernel.name for kernel in RUNGS))
        command.add_argument(
            "--kernel", dest="kernels", type=list_of(one_of(*words)), default="auto",
            metavar="KERNEL,...", help="what matmul is asked for: auto (default) or rungs",
        )  # fmt: skip
        command.add_argument("--mode", choices=BENCHES, default="sustained")
        add_gpus(command)
    add_measurement(suite, ROUNDS["suite"])
    add_measurement(chance, ROUNDS["random"])


def run_suite(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed."""
    try:
        problems = select(read_suite(args.file), args.classes, args.ids)
    except (OSError, ValueError) as error:
        return refuse(str(error))
    if ended := [problem.id for problem in problems if problem.case.ending]:
        return refuse(f"{', '.join(ended)}: products with an ending are for python -m perf linear")
    if not args.batch_invariant:
        return _run(args, "suite", problems)
    if args.kernels != ["auto"]:
        return refuse("--batch-invariant chooses the kernel itself: leave --kernel out")
    return _run(args, invariant_report.EXPERIMENT, problems)


def run_random(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed."""
    return _run(args, "random", random_problems(args.n, args.seed))


def select(problems: Sequence[Problem], wanted: Sequence[str], ids: Sequence[str]) -> list[Problem]:
    """Those of the classes and with the ids, if any are named; ValueError if one isn't there."""
    for what, words, known in (
        ("class", wanted, classes(problems)),
        ("id", ids, [problem.id for problem in problems]),
    ):
        for word in words:
            if word not in known:
                raise ValueError(f"no {what} is called {word!r}; there are {', '.join(known)}")
    return [p for p in problems if (not wanted or p.group in wanted) and (not ids or p.id in ids)]


def plan(args: argparse.Namespace, most: int, base: Plan = PLAN) -> Plan:
    made = dataclasses.replace(base, rounds=args.rounds, most=max(most, args.rounds))
    if args.quick:
        made = dataclasses.replace(made, rounds=3, most=None, replay=0.01, lead=0.02, settle=0.2)
    return made


def _run(args: argparse.Namespace, experiment: str, problems: Sequence[Problem]) -> int:
    command = "random" if experiment == "random" else "suite"
    if reason := unable(command) or unshared(args):
        return refuse(reason)
    session = Session(args, experiment, args.mode, args.part)
    fixed = experiment == invariant_report.EXPERIMENT
    failed = 0
    if shared_out(args):
        failed = session.gather([problem.id for problem in problems])
    else:
        mine = args.part.share(problems) if args.part else problems
        session.measure_roofs()
        tasks = [invariant_task(p) if fixed else task(p, args.kernels) for p in mine]
        session.measure(tasks, plan(args, MOST[command]))
    told = invariant_report.text if fixed else text
    return session.finish(lambda races: told([row for race in races for row in race])) or failed


def task(problem: Problem, kernels: Sequence[str]) -> Task:
    field = functools.partial(matmul, problem.case, kernels=kernels)
    return Task(problem.case, field, problem.to_json())


def invariant_task(problem: Problem) -> Task:
    return Task(problem.case, functools.partial(invariant, problem.case), problem.to_json())
