"""`python -m perf joules`: what each way to multiply a problem costs: time, power, cycles, energy.

Where power limits the clock, the fastest kernel alone is the one that takes the least energy; in
bursts, as a model has them between other work, it is the one that takes the fewest cycles.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from tritemm.problem.config import config_of, parse

from .. import cli, energy, machine, session, tables
from ..case import Case
from ..competitors import Candidate, of_matmul
from ..engine import Competitor, Plan
from ..operands import operands
from ..peers import against
from ..problems import SUITE, Problem
from ..rows import NULL, REFERENCE, Row
from ..select import newest_races
from ..tables import Parts, Table, digits, us, whole
from ..views import Selection, View
from .suite import suite_problems

PLAN = Plan(replay=0.02, settle=0.0, longest=5.0)

EXAMPLES = """
python -m perf joules --id T10,S6 --peers lt,quack
python -m perf joules --cases mine.csv --kernel auto,cluster_pingpong --rounds 9 --seconds 2
python -m perf joules --id S6 --config cluster:BLOCK_M=256,BLOCK_N=128,BLOCK_K=64,num_stages=4
"""
DESCRIBED = (
    "Microseconds, watts, MHz, cycles and millijoules of a product, by each way to multiply it: "
    "alone, when the clock has settled, and in bursts of some 1.5 ms between pauses of 3 ms. A "
    "problem takes about 4 seconds per round for each competitor."
)


def register(commands) -> None:
    command = cli.add_command(commands, "joules", run, DESCRIBED, EXAMPLES)
    add = command.add_argument
    text = "a CSV or JSON file, as for race; default: the suite"
    add("--cases", type=Path, dest="file", default=SUITE, help=text)
    cli.add_list(command, "--class", str, cli.ONLY_CLASSES, dest="classes")
    cli.add_list(command, "--id", str, cli.ONLY_IDS, dest="ids")
    cli.add_kernels(command)
    text = "also race a rung in this config, RUNG:BLOCK_M=128,BLOCK_N=256,...; may be repeated"
    how = {"type": cli.argument(candidate), "default": [], "dest": "configs", "metavar": "CONFIG"}
    add("--config", action="append", help=text, **how)
    cli.add_peers(command)
    text = "whole seconds of metering for each sample; default: 1"
    add("--seconds", type=cli.argument(cli.positive), default=1, help=text)
    cli.add_measurement(command, rounds=5)


def candidate(text: str) -> Candidate:
    """`cluster:BLOCK_M=128,...`: a rung and fields of its config. Raises ValueError."""
    word, _, fields = text.partition(":")
    if word not in cli.KERNELS[1:]:
        raise ValueError(f"a config is of one of {', '.join(cli.KERNELS[1:])}, not of {word!r}")
    try:
        config = parse(fields)
    except (KeyError, TypeError, ValueError):
        told = f"a config is {word}:BLOCK_M=128,BLOCK_N=256,BLOCK_K=64,..., not {text!r}"
        raise ValueError(told) from None
    return Candidate(word, config_of(config))


def run(args: argparse.Namespace) -> int:
    try:
        problems = suite_problems(args)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    if reason := cli.unable("joules"):
        return cli.refuse(reason)
    meter = machine.meter()
    if meter is None:
        return cli.refuse("the energy meter can't be read: pip install nvidia-ml-py")
    # What the peers keep must be the same in both regimes; of one problem, to hold no memory.
    field = functools.lru_cache(maxsize=1)(functools.partial(entrants, args))

    def task(problem: Problem, kind: type[energy.Settled]) -> session.Task:
        return session.Task(
            problem.case,
            lambda there: field(problem.case, there.sets[0][0].device.type),
            problem,
            lambda plan: kind(problem.case, plan, machine.probe(), meter, args.seconds),
            fields={"mode": kind.mode},
        )

    tasks = [task(problem, kind) for problem in problems for kind in energy.BENCHES]
    measure = lambda there: there.measure(tasks, session.planned(args, PLAN))  # noqa: E731
    return session.run(args, "joules", measure, lambda rows: tables.text(parts(rows)))


def entrants(args: argparse.Namespace, case: Case, device: str) -> Sequence[Competitor]:
    """`tritemm.matmul` as it is asked, in the configs too; the peers and cuBLAS."""
    given = operands(case, device)
    found = []
    for each in args.configs:
        made = of_matmul(case, given, each.rung, config=each.config)
        found.append(dataclasses.replace(made, name=each.name))
    return [*found, *against(case, given, args.kernels, args.peers)]


# The tables

HEAD = ("", "", "kernel", "µs", "W", "MHz", "thousand cycles", "mJ (p20-p80)", "x cuBLAS (p20-p80)")


def parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A table for each problem, and how it was measured."""
    for own in tables.grouped(rows, lambda row: row.id).values():
        yield f"{own[0].id} {own[0].problem['name']}: {own[0].case}"
        yield Table(HEAD, [_line(row) for row in own], words=3)
        yield from tables.reasons(own, lambda row: row.competitor)
    yield (
        f"Medians of {tables.rounds(rows)} rounds. W comes from the card's energy meter, in bursts "
        "during the bursts only; mJ is W x µs, and thousand cycles is µs x MHz. "
        f"{tables.origin(rows)}."
    )


def _line(row: Row) -> tuple[str, ...]:
    name = {REFERENCE: "cuBLAS", NULL: "cuBLAS again"}.get(row.competitor, row.competitor)
    cycles = row.us.p50 * row.sm_mhz / 1e3 if row.us and row.sm_mhz else None
    mj = f"{digits(row.mj.p50)} ({digits(row.mj.p20)}-{digits(row.mj.p80)})" if row.mj else ""
    card = (whole(row.power_w), whole(row.sm_mhz), digits(cycles), mj)
    return (row.mode, name, row.rung or "", us(row), *card, tables.spread(row.ratio, row.tie))


def _newest(rows: Sequence[Row], s: Selection) -> list[Row]:
    """The newest race of each problem in each regime; problem by problem, both together."""
    found = [r for b in energy.BENCHES for r in newest_races(rows, "joules", [], s.gpu, b.mode)]
    return [row for own in tables.grouped(found, lambda row: row.id).values() for row in own]


VIEWS = {"joules": View(_newest, parts)}
