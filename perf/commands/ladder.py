"""`python -m perf ladder`: every rung of both ladders against cuBLAS, in the same rounds."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
from pathlib import Path

from cuda_reference import loader
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.rungs import RUNGS

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
    say,
    unable,
)
from ..competitors import ladders, read_candidates, refuse_unknown
from ..engine import Plan
from ..report import text_table
from ..session import Session, Task

LADDERS = {"triton": RUNGS, "cuda": CUDA_RUNGS}

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
    command.add_argument(
        "--ladders", type=list_of(one_of(*LADDERS)), default="triton,cuda", help="default: both"
    )
    command.add_argument(
        "--only", type=list_of(str), default="", metavar="RUNG,...", help="these rungs (and cuBLAS)"
    )
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


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := unable("ladder"):
        return refuse(reason)
    try:
        accumulate = accumulator(args, args.dtype)
        refuse_unknown(args.only, (*RUNGS, *CUDA_RUNGS))
        candidates = read_candidates(args.config_file) if args.config_file else []
    except (OSError, ValueError) as error:
        return refuse(str(error))
    chosen = {"only": args.only, "configs": args.configs, "candidates": candidates}
    chosen["triton"] = RUNGS if "triton" in args.ladders else ()
    unavailable = None
    if "cuda" in args.ladders:
        wanted = [k.name for k in CUDA_RUNGS if not args.only or k.name in args.only]
        unavailable, chosen["broken"] = build(wanted)
        chosen["cuda"] = () if unavailable else CUDA_RUNGS
    session = Session(args, "ladder")
    session.measure(
        [
            Task(case, functools.partial(ladders, case, **chosen))
            for size, layout in itertools.product(args.sizes, args.layouts)
            for case in [Case(*size, layout, args.dtype, accumulate, args.precision)]
        ],
        plan(args),
    )
    status = session.finish(lambda races: "\n\n".join(map(text_table, races)))
    if unavailable:
        say(f"the CUDA ladder took no part: refused: {unavailable}")
    return status


def plan(args: argparse.Namespace) -> Plan:
    made = Plan(rounds=args.rounds, seconds=args.seconds)
    if args.quick:
        made = dataclasses.replace(made, rounds=min(5, args.rounds), replay=0.01, settle=1.0)
    return dataclasses.replace(made, longest=math.inf) if args.all else made


def build(names: list[str]) -> tuple[str | None, dict[str, str]]:
    """Build CUDA extensions, all at once: why none can be, and the errors of those that failed."""
    if not names:
        return None, {}
    if reason := loader.unavailable():
        return reason, {}
    return None, loader.build(names)
