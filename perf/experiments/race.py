"""`python -m perf race`: the products of any file, against cuBLAS, peers, and torch's own ways."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import cli, race, tables
from ..problems import LINEAR, Problem, chosen
from ..race import Preset
from ..rows import Row
from ..tables import Parts, Table
from ..views import Selection, View, newest_of

EXAMPLES = """
python -m perf race --cases mine.csv
python -m perf race --cases mine.json --class decode --peers lt --out mine.jsonl
python -m perf race --cases mine.csv --part 1/4
python -m perf race --cases perf/linear.csv --id T1,T2,T3 --compiled compile
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


#: The columns of a linear layer by the names of `tables.RESULT`; its totals.
CELLS = ("problem", "", "kernel", "µs", "torch µs", "best", "its µs")
CELLS += ("x the best (p20-p80)", "x torch", "torch again")
TOTALS = ("class", "problems", "x the best", "least", "won", "tied", "lost", "x torch")
MEANS = tables.TALLY | {
    "x the best": lambda tally: tally.mean,
    "x torch": lambda tally: tally.to_reference.mean,
}


def linear_parts(rows: list[Row], selection: Selection) -> Parts:
    """Linear layers: the means and every problem."""
    found = tables.results(rows)
    groups = [tally for tally in tables.tallies(found) if tally.name != "all 16-bit"]
    head = (*CELLS[:5], "the best of torch", "µs", *CELLS[7:])
    body = Table.of(CELLS, found, tables.RESULT).body
    notes = tables.notes(found, "beyond the bound of a result that is rounded once")
    totals = Table.of(TOTALS, groups, MEANS)
    return [totals, Table(head, body, words=3), *notes, tables.commands(rows)]


VIEWS = {"linear": View(newest_of("linear", lambda: chosen(LINEAR)), linear_parts)}
register = Preset("race", DESCRIBED, EXAMPLES, problems, options, rounds=7, most=24).register
