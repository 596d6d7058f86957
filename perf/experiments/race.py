"""`python -m perf race`: the products of any file, against cuBLAS, peers, and torch's own ways."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import cli, race
from ..problems import Problem, chosen
from ..race import Preset

EXAMPLES = """
python -m perf race --cases mine.csv
python -m perf race --cases mine.json --class decode --peers lt --out mine.jsonl
python -m perf race --cases mine.csv --part 1/4
"""
DESCRIBED = (
    "Race tritemm.matmul, and tritemm.linear where something follows the product, on your own "
    "shapes. The file, CSV or a JSON list, has M, N and K, and if it likes id, class, name, batch, "
    "dtype (bf16, tf32 ...), out_dtype, layout (NT ...), ending (bias gelu, residual ...) and "
    "weight, how often a product is run."
)


def options(command: argparse.ArgumentParser) -> None:
    text = "CSV, or a JSON list of objects"
    command.add_argument("--cases", type=Path, dest="file", required=True, help=text)
    cli.add_list(command, "--class", str, "these alone", dest="classes")
    cli.add_list(command, "--id", str, "these alone; default: of all", dest="ids")
    cli.add_kernels(command)
    cli.add_peers(command)
    race.add_compiled(command)
    race.add_part(command)


def problems(args: argparse.Namespace) -> list[Problem]:
    return chosen(args.file, args.classes, args.ids)


register = Preset("race", DESCRIBED, EXAMPLES, problems, options, rounds=7, most=24).register
