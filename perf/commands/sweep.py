"""`python -m perf sweep`: both ladders, `tritemm.matmul` and cuBLAS over squares, K and M."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from .. import sweep
from ..ahead import Ahead
from ..case import Case, parse_layout
from ..cli import (
    add_command,
    add_gpus,
    add_measurement,
    argument,
    list_of,
    one_of,
    refuse,
    shared_out,
    unable,
    unshared,
)
from ..competitors import refuse_unknown
from ..engine import Plan
from ..plots import ladder as plot_ladder
from ..plots import sweep as plot_sweep
from ..rows import Row
from ..session import Session
from .ladder import EVERY, add_ladders

ROUNDS = 5
QUICK_ROUNDS = 3
#: The sweeps by the names of the command line.
WHAT = {name.lower(): name for name in sweep.SWEEPS}

EXAMPLES = """
python -m perf sweep
python -m perf sweep --what squares,k --layout NN --dtype fp16
python -m perf sweep --what m --only pipelined,persistent --folder pictures
python -m perf sweep --ladders triton --quick
python -m perf sweep --compare --rounds 3 --minutes 9
"""


def register(commands) -> None:
    described = "Race both ladders and tritemm.matmul against cuBLAS over sizes, sustained."
    command = add_command(commands, "sweep", run, described, EXAMPLES)
    command.add_argument(
        "--what", type=list_of(one_of(*WHAT)), default=",".join(WHAT), metavar="SWEEP,...",
        help="of " + ", ".join(f"{k} ({sweep.SWEEPS[name].title})" for k, name in WHAT.items()),
    )  # fmt: skip
    command.add_argument(
        "--layout", type=argument(parse_layout), default=sweep.LAYOUT, help="NN, NT (default) ..."
    )
    command.add_argument(
        "--dtype", choices=("fp16", "bf16"), default=sweep.DTYPE, help=f"default: {sweep.DTYPE}"
    )
    add_ladders(command, f"{sweep.FIRST:02d} and up, and their CUDA twins")
    command.add_argument(
        "--compare", action="store_true", help="whole ladders first, as `ladder` races them, at "
        + " and ".join(map(str, sweep.COMPARED)),
    )  # fmt: skip
    command.add_argument(
        "--minutes", type=argument(float), default=math.inf, metavar="M",
        help="end within so many: few sizes of every sweep come first, then the cheapest",
    )  # fmt: skip
    add_gpus(command)
    add_measurement(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed."""
    try:
        refuse_unknown(args.only, EVERY)
    except ValueError as error:
        return refuse(str(error))
    if reason := unable("sweep") or unshared(args):
        return refuse(reason)
    session = Session(args, "sweep", part=args.part)
    session.draw(draw, args.folder)
    every = races(args)
    failed = 0
    if shared_out(args):
        failed = session.gather([fields["problem"]["id"] for _, _, fields in every])
    else:
        with Ahead(args.ladders) as ahead:
            mine = args.part.share(every) if args.part else every
            tasks = [ahead.task(case, options, **fields) for case, options, fields in mine]
            ahead.build()
            session.measure_roofs()
            session.measure(tasks, plan(args), minutes=args.minutes)
    return session.finish(sweep.text) or failed


def races(args: argparse.Namespace) -> list[tuple[Case, dict, dict]]:
    """All that is asked for: cases, options of `competitors.ladders`, other fields of a `Task`."""
    names = [WHAT[word] for word in dict.fromkeys(args.what)]
    chosen = {"layout": args.layout, "dtype": args.dtype, "quick": args.quick}
    options = {"only": args.only or sweep.swept(args.quick), "auto": True}
    found = [(c, options, {"problem": p}) for c, p in sweep.cases(names, **chosen).items()]
    if not args.compare:
        return found
    fields = {"experiment": "ladder", "rounds": max(args.rounds, sweep.COMPARED_ROUNDS)}
    problem = {"class": "compare", "name": "both ladders"}
    compared = [
        (case, {"only": args.only}, fields | {"problem": problem | {"id": f"compare {case.M}"}})
        for case in sweep.COMPARED
    ]
    return compared + found


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    return [*plot_ladder.draw(rows, folder), *plot_sweep.draw_latest(rows, folder)]


def plan(args: argparse.Namespace) -> Plan:
    """Many races in a row keep the card hot, so that each can be short."""
    if args.quick:
        return Plan(rounds=min(QUICK_ROUNDS, args.rounds), replay=0.01, lead=0.05, settle=0.2)
    return Plan(rounds=args.rounds, replay=0.02, settle=1.0)
