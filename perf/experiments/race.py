"""`python -m perf race`: the products of any file, against cuBLAS, peers, and torch's own ways."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from .. import cli, race, tables
from ..problems import INT4, LINEAR, SCALED, Problem, chosen, read_suite
from ..race import Preset
from ..rows import AUTO_FAST, TORCH_FAST, Row
from ..tables import Parts, Table
from ..views import Selection, View, newest_of

EXAMPLES = """
python -m perf race --cases mine.csv
python -m perf race --cases mine.json --class decode --peers lt --out mine.jsonl
python -m perf race --cases mine.csv --part 1/4
python -m perf race --cases perf/linear.csv --id T1,T2,T3 --compiled compile
python -m perf race --cases perf/scaled.csv --class deepgemm
python -m perf race --cases perf/int4.csv --class decode
"""
DESCRIBED = (
    "Race tritemm.matmul on your own shapes; tritemm.linear if something follows the product or "
    "the weight has 4 bits, and tritemm.scaled_mm if operands of 8 bits have scales. The file is a "
    "CSV file or a JSON list with M, N and K, and optionally id, class, name, batch, dtype (bf16, "
    "tf32, int8x7 ...), out_dtype, layout (NT ...), ending (bias gelu, residual, int4 ...), "
    "scaling (tensor, row, block ...) and weight, which is how often the product runs."
)


def options(command: argparse.ArgumentParser) -> None:
    text = "a CSV file, or a JSON list of objects"
    command.add_argument("--cases", type=Path, dest="file", required=True, help=text)
    cli.add_list(command, "--class", str, cli.ONLY_CLASSES, dest="classes")
    cli.add_list(command, "--id", str, cli.ONLY_IDS, dest="ids")
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


def newest_scaled(rows: Sequence[Row], selection: Selection) -> list[Row]:
    """The newest races of the suite's problems with scales, and of `SCALED`."""
    suite = newest_of("suite", lambda: [p for p in read_suite() if p.case.scaling])
    found = [row for row in suite(rows, selection) if row.case.scaling]
    return [*found, *newest_of("scaled", lambda: chosen(SCALED))(rows, selection)]


def scaled_parts(rows: list[Row], selection: Selection) -> Parts:
    """Operands of 8 bits: the means of tritemm's own sums, and of its fast ones, against the
    fastest of torch, and every problem."""
    found, fast = tables.against_all(rows), tables.against_all(rows, AUTO_FAST)
    beside = {result.id: result for result in fast}

    def of_fast(name: str):
        return lambda result: tables.RESULT[name](beside[result.id]) if result.id in beside else ""

    cells = {name: tables.RESULT[name] for name in ("problem", "", "µs")} | {
        "fast µs": of_fast("µs"),
        "torch µs": tables.RESULT["torch µs"],
        "torch fast µs": lambda result: tables.us(result.others.get(TORCH_FAST)),
        "x the best of torch (p20-p80)": tables.RESULT["x the best (p20-p80)"],
        "fast x the best (p20-p80)": of_fast("x the best (p20-p80)"),
    }
    for name, own in (("auto", found), (AUTO_FAST, fast)):
        if own:
            yield f"{name}, over the fastest of torch:"
            yield Table.of(tuple(tables.TALLY), tables.tallies(own), tables.TALLY)
    yield from (Table.of(tuple(cells), found, cells, words=2), *tables.notes(found))
    yield tables.unmeasured(result.ours for result in fast)
    yield from ("For int8, torch's product is the one without scales.", tables.commands(rows))


def int4_parts(rows: list[Row], selection: Selection) -> Parts:
    """Weights of 4 bits: the means against the same in 16 bits, and every problem."""
    found = tables.against_cublas(rows)
    cells = {name: tables.RESULT[name] for name in ("problem", "", "µs", "GB/s", "torch µs")} | {
        "x torch (p20-p80)": tables.RESULT["x cuBLAS (p20-p80)"]
    }
    means = Table.of(tuple(tables.TALLY), tables.tallies(found), tables.TALLY)
    return [means, Table.of(tuple(cells), found, cells, words=2), *tables.notes(found),
            "With torch, the weight has 16 bits.", tables.commands(rows)]  # fmt: skip


VIEWS = {
    "int4": View(newest_of("int4", lambda: chosen(INT4)), int4_parts),
    "linear": View(newest_of("linear", lambda: chosen(LINEAR)), linear_parts),
    "scaled": View(newest_scaled, scaled_parts),
}
register = Preset("race", DESCRIBED, EXAMPLES, problems, options, rounds=7, most=24).register
