"""`python -m perf ladder`: every rung of both ladders against cuBLAS, in the same rounds."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from pathlib import Path

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.rungs import RUNGS

from ..ahead import LADDERS, Ahead
from ..case import Case, parse_layout, parse_size
from ..cli import (
    accumulator,
    add_command,
    add_measurement,
    add_types,
    argument,
    list_of,
    one_of,
    refuse,
    unable,
)
from ..competitors import read_candidates, refuse_unknown
from ..engine import Plan
from ..plots import ladder
from ..report import text_table
from ..session import Session

EVERY = (*RUNGS, *CUDA_RUNGS)
#: Where pictures go unless a folder is named: beside what else is made here, out of git's sight.
PICTURES = Path("build")

EXAMPLES = """
python -m perf ladder
python -m perf ladder --size 8192 --dtype bf16 --rounds 30
python -m perf ladder --ladders triton --layouts NN,TN --dtype fp32 --precision tf32
python -m perf ladder --accumulate fp16 --only mma_async_stage3,mma_async_stage4
python -m perf ladder --configs none --config-file tiles.json
"""


def register(commands) -> None:
    text = "Race every rung, Triton's and CUDA's, against cuBLAS, sustained."
    command = add_command(commands, "ladder", run, text, EXAMPLES)
    add_types(command, "fp16")
    sizes = list_of(parse_size)
    command.add_argument(
        "--size", "--sizes", dest="sizes", type=sizes, default="4096", metavar="SIZE,...",
        help="4096 or MxNxK; default: 4096",
    )  # fmt: skip
    layouts = list_of(parse_layout)
    command.add_argument(
        "--layouts", type=layouts, default="NT", help="of NN, NT (default), TN, TT"
    )
    add_ladders(command, "all")
    command.add_argument(
        "--configs", choices=("first", "all", "none"), default="first", help="of each rung"
    )
    command.add_argument(
        "--config-file",
        type=Path,
        metavar="FILE",
        help='more of Triton\'s: [{"rung": "tma", "BLOCK_M": 128, ...}, ...]',
    )
    command.add_argument(
        "--seconds",
        type=argument(float),
        metavar="S",
        help="as many rounds as fit in S seconds per case, instead of --rounds",
    )
    command.add_argument("--all", action="store_true", help="also what takes over 0.5 s per launch")
    add_measurement(command, rounds=5)


def add_ladders(command: argparse.ArgumentParser, default: str) -> None:
    """Who races, by default which rungs, and where pictures go."""
    command.add_argument(
        "--ladders", type=list_of(one_of(*LADDERS)), default=",".join(LADDERS), help="default: both"
    )
    command.add_argument(
        "--only", type=list_of(str), default="", metavar="RUNG,...",
        help=f"these rungs (and cuBLAS); default: {default}",
    )  # fmt: skip
    command.add_argument(
        "--folder", type=Path, default=PICTURES,
        help=f"for pictures, which are drawn anew after every round; default: {PICTURES}",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := unable("ladder"):
        return refuse(reason)
    try:
        accumulate = accumulator(args, args.dtype)
        refuse_unknown(args.only, EVERY)
        candidates = read_candidates(args.config_file) if args.config_file else []
    except (OSError, ValueError) as error:
        return refuse(str(error))
    options = {"only": args.only, "configs": args.configs, "candidates": candidates}
    session = Session(args, "ladder")
    session.draw(ladder.draw, args.folder)
    with Ahead(args.ladders) as ahead:
        tasks = [
            ahead.task(Case(*size, layout, args.dtype, accumulate, args.precision), options)
            for size, layout in itertools.product(args.sizes, args.layouts)
        ]
        ahead.build()
        session.measure(tasks, plan(args))
    return session.finish(lambda races: "\n\n".join(map(text_table, races)))


def plan(args: argparse.Namespace) -> Plan:
    made = Plan(rounds=args.rounds, seconds=args.seconds)
    if args.quick:
        made = dataclasses.replace(made, rounds=min(5, args.rounds), replay=0.01, settle=1.0)
    return dataclasses.replace(made, longest=math.inf) if args.all else made
