"""`python -m perf linear`: `tritemm.linear` with its epilogue, against torch and torch.compile."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

from .. import linear_report
from ..bench import BENCHES
from ..cli import (
    add_command,
    add_gpus,
    add_measurement,
    list_of,
    one_of,
    refuse,
    shared_out,
    unable,
    unshared,
)
from ..linear_report import EXPERIMENT
from ..linear_ways import COMPILED, ways
from ..problems import LINEAR, Problem, read_suite
from ..session import Session, Task
from .suite import plan, select

ROUNDS, MOST = 7, 24

EXAMPLES = """
python -m perf linear
python -m perf linear --class decode --rounds 15
python -m perf linear --id T1,T2,T3 --compiled compile
python -m perf linear --gpus 4 --out linear.jsonl
"""


def register(commands) -> None:
    described = (
        "Race tritemm.linear with bias, activation, residual or gradient accumulation against "
        "torch, eager and compiled, on the layers of a CSV file."
    )
    command = add_command(commands, "linear", run, described, EXAMPLES)
    command.add_argument(
        "--file", type=Path, default=LINEAR, help="CSV with the columns of perf/linear.csv"
    )
    command.add_argument(
        "--class", dest="classes", type=list_of(str), default="", metavar="CLASS,...",
        help="these alone: training, gradient, decode, ...",
    )  # fmt: skip
    command.add_argument(
        "--id", dest="ids", type=list_of(str), default="", metavar="ID,...", help="these alone"
    )
    every = ",".join(COMPILED)
    command.add_argument(
        "--compiled", type=list_of(one_of(*COMPILED)), default=every, metavar="WAY,...",
        help=f"what of torch.compile races beside eager torch; default: {every}",
    )  # fmt: skip
    command.add_argument("--mode", choices=BENCHES, default="sustained")
    add_gpus(command)
    add_measurement(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed."""
    try:
        problems = select(read_suite(args.file), args.classes, args.ids)
    except (OSError, ValueError) as error:
        return refuse(str(error))
    if plain := [problem.id for problem in problems if not problem.case.ending]:
        return refuse(f"{', '.join(plain)}: products alone are for python -m perf suite")
    if reason := unable("linear") or unshared(args):
        return refuse(reason)
    session = Session(args, EXPERIMENT, args.mode, args.part)
    failed = 0
    if shared_out(args):
        failed = session.gather([problem.id for problem in problems])
    else:
        mine = args.part.share(problems) if args.part else problems
        session.measure_roofs()
        session.measure([task(p, args.compiled) for p in mine], plan(args, MOST))
    told = linear_report.text
    return session.finish(lambda races: told([row for race in races for row in race])) or failed


def task(problem: Problem, compiled: Sequence[str]) -> Task:
    field = functools.partial(ways, problem.case, compiled=list(dict.fromkeys(compiled)))
    return Task(problem.case, field, problem.to_json())
