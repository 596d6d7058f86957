"""Rows of `python -m perf serving` as tables: each layer over all of its M, and all of them."""

from __future__ import annotations

from collections.abc import Sequence

from . import report, summary
from .report import align, digits, spread, unmeasured
from .rows import REFERENCE, Row
from .stats import geomean

#: The competitor, and the ratio to cuBLAS from which on nobody would notice.
OURS, ENOUGH = "auto", 0.98
#: Problems that are listed one by one, the worst first.
WORST = 5

HEAD = ("model", "layer", "N x K", "problems", "x cuBLAS", "least", f"at {ENOUGH} or more")
WORST_HEAD = ("the worst", "", "kernel", "µs", "cuBLAS µs", "x cuBLAS (p20-p80)")


def text(rows: Sequence[Row]) -> str:
    """Every layer, all of them, the worst problems and the null test, for a terminal."""
    own = summary.of(rows, OURS)
    if not own:
        return "nothing was measured"
    tables = [align([HEAD, *lines(own)]), align([WORST_HEAD, *_worst(rows)])]
    return "\n\n".join([*tables, *_notes(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """The same as Markdown."""
    tables = [
        report.markdown(HEAD, lines(summary.of(rows, OURS)), words=3),
        report.markdown(WORST_HEAD, _worst(rows), words=3),
    ]
    return "\n\n".join([*tables, *(f"{note.rstrip('.')}." for note in _notes(rows))])


def layers(own: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each layer by model and name, in the order of appearance."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in own:
        found.setdefault((row.problem["class"], row.problem["name"]), []).append(row)
    return found


def lines(own: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each layer, and one for all."""
    found = []
    for (model, name), rows in layers(own).items():
        case = rows[0].case
        means = _means(rows, lambda row: f"M = {row.case.M}")
        found.append((model, name, f"{case.N} x {case.K}", *means))
    return [*found, ("all", "", "", *_means(own, lambda row: row.problem["id"]))]


def reached(rows: Sequence[Row]) -> int:
    """How many have a ratio of `ENOUGH`."""
    return sum(row.ratio is not None and row.ratio.p50 >= ENOUGH for row in rows)


def _means(rows: Sequence[Row], named) -> tuple[str, ...]:
    timed = [row for row in rows if row.ratio]
    count = str(len(rows)) if len(timed) == len(rows) else f"{len(timed)} of {len(rows)}"
    if not timed:
        return (count, "", "", "")
    least = min(timed, key=lambda row: row.ratio.p50)
    share = f"{reached(timed)} of {len(timed)}, {100 * reached(timed) / len(timed):.0f} %"
    mean = f"{geomean(row.ratio.p50 for row in timed):.3f}"
    return (count, mean, f"{least.ratio.p50:.3f} ({named(least)})", share)


def _worst(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    theirs = {row.problem["id"]: row for row in rows if row.competitor == REFERENCE and row.us}
    timed = [row for row in summary.of(rows, OURS) if row.ratio]
    return [
        (
            row.problem["id"],
            str(row.case),
            row.rung or "",
            digits(row.us.p50),
            digits(theirs[row.problem["id"]].us.p50),
            spread(row.ratio, row.tie),
        )
        for row in sorted(timed, key=lambda row: row.ratio.p50)[:WORST]
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    """What was not timed, and the null test."""
    found = summary.noise(rows)
    named = unmeasured(summary.of(rows, OURS), lambda row: row.problem["id"])
    return [*named, *([str(found)] if found else [])]
