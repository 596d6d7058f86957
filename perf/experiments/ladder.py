"""`python -m perf ladder`: every rung of both ladders against cuBLAS, in the same rounds."""

from __future__ import annotations

import argparse
import itertools
import math

from .. import cli, rungs, session
from ..case import Case, parse_layout, parse_size
from ..engine import Plan

EXAMPLES = """
python -m perf ladder
python -m perf ladder --size 8192 --dtype bf16 --rounds 30
python -m perf ladder --ladders triton --layouts NN,TN --dtype fp32 --precision tf32
python -m perf ladder --accumulate fp16 --only mma_async_stage3,mma_async_stage4
"""


def register(commands) -> None:
    text = "Race every rung, Triton's and CUDA's, against cuBLAS, sustained."
    command = cli.add_command(commands, "ladder", run, text, EXAMPLES)
    cli.add_types(command, "fp16")
    add = command.add_argument
    sizes = {"dest": "sizes", "type": cli.list_of(parse_size), "metavar": "SIZE,..."}
    add(
        "--size",
        "--sizes",
        **sizes,
        default="4096",
        help="sizes, N for a cube or MxNxK; default: 4096",
    )
    layouts = cli.list_of(parse_layout)
    add("--layouts", type=layouts, default="NT", help="some of NN, NT, TN, TT; default: NT")
    rungs.add_ladders(command, "all")
    add("--configs", choices=("first", "all"), default="first", help="which configs of each rung")
    add("--all", action="store_true", help="also race what takes over 0.5 s per launch")
    cli.add_measurement(command, rounds=5)


def run(args: argparse.Namespace) -> int:
    try:
        accumulate = cli.accumulator(args, args.dtype)
    except ValueError as error:
        return cli.refuse(error)
    options = {"only": args.only, "configs": args.configs}

    def measure(there: session.Session) -> None:
        built = rungs.Built.of(args.ladders, args.only)
        tasks = [
            built.task(Case(*size, layout, args.dtype, accumulate, args.precision), options)
            for size, layout in itertools.product(args.sizes, args.layouts)
        ]
        most = math.inf if args.all else Plan.longest
        there.measure(tasks, session.planned(args, Plan(longest=most)))

    return session.run(args, "ladder", measure, rungs.text)
