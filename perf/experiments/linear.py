"""`python -m perf linear`: `tritemm.linear` with its epilogue, against torch and torch.compile."""

from __future__ import annotations

import argparse

from .. import cli, race, tables
from ..problems import LINEAR, Problem, chosen
from ..race import Preset
from ..rows import Row
from ..tables import Parts, Table
from ..views import Selection, View, newest_of

EXAMPLES = """
python -m perf linear
python -m perf linear --class decode --rounds 15
python -m perf linear --id T1,T2,T3 --compiled compile
python -m perf linear --out linear.jsonl
"""
DESCRIBED = (
    "Race tritemm.linear with bias, activation, residual or gradient accumulation against torch, "
    "eager and compiled, on the layers of a CSV file."
)


def options(command: argparse.ArgumentParser) -> None:
    cli.add_problems(command, LINEAR)
    race.add_compiled(command)


def problems(args: argparse.Namespace) -> list[Problem]:
    found = chosen(args.file, args.classes, args.ids)
    if plain := [problem.id for problem in found if not problem.case.ending]:
        raise ValueError(f"{', '.join(plain)}: products alone are for python -m perf suite")
    return found


HEAD = ("problem", "", "kernel", "µs", "torch µs", "the best of torch", "µs")
HEAD += ("x the best (p20-p80)", "x torch", "torch again")
#: The same by the names of `tables.RESULT`.
CELLS = (*HEAD[:5], "best", "its µs", *HEAD[7:])
TOTALS = ("class", "problems", "x the best", "least", "won", "tied", "lost", "x torch")
MEANS = tables.TALLY | {
    "x the best": lambda tally: tally.mean,
    "x torch": lambda tally: tally.to_reference.mean,
}


def parts(rows: list[Row], selection: Selection) -> Parts:
    """The means and every problem."""
    found = tables.results(rows)
    groups = [tally for tally in tables.tallies(found) if tally.name != "all 16-bit"]
    body = Table.of(CELLS, found, tables.RESULT).body
    notes = tables.notes(found, "beyond the bound of a result that is rounded once")
    totals = Table.of(TOTALS, groups, MEANS)
    return [totals, Table(HEAD, body, words=3), *notes, tables.commands(rows)]


register = Preset("linear", DESCRIBED, EXAMPLES, problems, options, rounds=7, most=24).register
VIEWS = {"linear": View(newest_of("linear", lambda: chosen(LINEAR)), parts)}
