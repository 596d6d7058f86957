"""`python -m perf suite | random`: `tritemm.matmul` against cuBLAS, and peers, on many problems."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from tritemm.rungs import RUNGS

from .. import invariant_report, peers_report
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
from ..peers import against
from ..problems import SUITE, Problem, classes, random_problems, read_suite
from ..rows import PEERS, Row
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
python -m perf suite --peers lt,quack --class prefill,square
"""
RANDOM_EXAMPLES = """
python -m perf random
python -m perf random --n 60 --seed 7 --kernel tma
python -m perf random --gpus 4
python -m perf random --n 100 --peers lt
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
        add_peers(command, "; rows are an experiment of their own")
        command.add_argument("--mode", choices=BENCHES, default="sustained")
        add_gpus(command)
    add_measurement(suite, ROUNDS["suite"])
    add_measurement(chance, ROUNDS["random"])


def add_peers(command: argparse.ArgumentParser, more: str = "") -> None:
    """`--peers`; its help ends with `more`."""
    text = f"race these too: lt (the fastest of cuBLASLt's list), quack{more}"
    parse = list_of(one_of(*PEERS))
    command.add_argument("--peers", type=parse, default="", metavar="PEER,...", help=text)


def run_suite(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed."""
    try:
        problems = select(read_suite(args.file), args.classes, args.ids)
    except (OSError, ValueError) as error:
        return refuse(str(error))
    if ended := [problem.id for problem in problems if problem.case.ending]:
        return refuse(f"{', '.join(ended)}: products with an ending are for python -m perf linear")
    if not args.batch_invariant:
        return _race(args, "suite", problems)
    if args.peers:
        return refuse("--batch-invariant races auto and cuBLAS: leave --peers out")
    if args.kernels != ["auto"]:
        return refuse("--batch-invariant chooses the kernel itself: leave --kernel out")
    made, told = invariant_task, invariant_report.text
    return _run(args, "suite", invariant_report.EXPERIMENT, problems, made, told)


def run_random(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed."""
    return _race(args, "random", random_problems(args.n, args.seed))


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


def _race(args: argparse.Namespace, command: str, problems: Sequence[Problem]) -> int:
    """With the peers that were asked for, or without any."""
    made = functools.partial(task, kernels=args.kernels, peers=args.peers)
    if args.peers:
        experiment = peers_report.EXPERIMENTS[command]
        return _run(args, command, experiment, problems, made, peers_report.text)
    return _run(args, command, command, problems, made, text)


def _run(
    args: argparse.Namespace,
    command: str,
    experiment: str,
    problems: Sequence[Problem],
    made: Callable[[Problem], Task],
    told: Callable[[Sequence[Row]], str],
) -> int:
    if reason := unable(command) or unshared(args):
        return refuse(reason)
    session = Session(args, experiment, args.mode, args.part)
    failed = 0
    if shared_out(args):
        failed = session.gather([problem.id for problem in problems])
    else:
        mine = args.part.share(problems) if args.part else problems
        session.measure_roofs()
        session.measure([made(problem) for problem in mine], plan(args, MOST[command]))
    return session.finish(lambda races: told([row for race in races for row in race])) or failed


def task(problem: Problem, kernels: Sequence[str], peers: Sequence[str] = ()) -> Task:
    field = functools.partial(matmul, problem.case, kernels=kernels)
    if peers:
        field = functools.partial(against, problem.case, kernels=kernels, words=peers)
    return Task(problem.case, field, problem.to_json())


def invariant_task(problem: Problem) -> Task:
    return Task(problem.case, functools.partial(invariant, problem.case), problem.to_json())
