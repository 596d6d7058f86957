"""Rows of `python -m perf serving` as tables: each layer over all of its M, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from . import best, report, summary
from .report import align, digits, spread, unmeasured
from .rows import PEERS, REFERENCE, Row
from .stats import geomean

#: The competitor, and the ratio to cuBLAS from which on nobody would notice.
OURS, ENOUGH = "auto", 0.98
#: Problems that are listed one by one, the worst first.
WORST = 5

HEAD = ("model", "layer", "N x K", "problems", "x cuBLAS", "least", f"at {ENOUGH} or more")
#: Where peers raced (`perf.peers`): how many problems, and against the fastest of each.
PEERS_HEAD = ("with peers", "x best peer", "least")
WORST_HEAD = ("the worst", "", "kernel", "µs", "cuBLAS µs", "x cuBLAS (p20-p80)")


def text(rows: Sequence[Row]) -> str:
    """Every layer, all of them, the worst problems and the null test, for a terminal."""
    own = summary.of(rows, OURS)
    if not own:
        return "nothing was measured"
    tables = [align([head(rows), *lines(rows)]), align([WORST_HEAD, *_worst(rows)])]
    return "\n\n".join([*tables, *_notes(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """The same as Markdown."""
    tables = [
        report.markdown(head(rows), lines(rows), words=3),
        report.markdown(WORST_HEAD, _worst(rows), words=3),
    ]
    return "\n\n".join([*tables, *(f"{note.rstrip('.')}." for note in _notes(rows))])


def layers(own: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each layer by model and name, in the order of appearance."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in own:
        found.setdefault((row.problem["class"], row.problem["name"]), []).append(row)
    return found


def head(rows: Sequence[Row]) -> tuple[str, ...]:
    """Of the table of layers."""
    return HEAD + PEERS_HEAD * _with_peers(rows)


def lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each layer, and one for all."""
    own, found = summary.of(rows, OURS), []
    raced = {one.id: one for one in best.results(rows, OURS)} if _with_peers(rows) else None
    for (model, name), some in layers(own).items():
        case = some[0].case
        means = _means(some, lambda row: f"M = {row.case.M}", raced)
        found.append((model, name, f"{case.N} x {case.K}", *means))
    return [*found, ("all", "", "", *_means(own, lambda row: row.problem["id"], raced))]


def _with_peers(rows: Sequence[Row]) -> bool:
    return any(row.competitor in PEERS.values() and row.us for row in rows)


def reached(rows: Sequence[Row]) -> int:
    """How many have a ratio of `ENOUGH`."""
    return sum(row.ratio is not None and row.ratio.p50 >= ENOUGH for row in rows)


def _means(
    rows: Sequence[Row], named: Callable[[Row], str], raced: Mapping[str, best.Result] | None
) -> tuple[str, ...]:
    """With what became of the races against peers, where `raced` has some."""
    timed = [row for row in rows if row.ratio]
    count = str(len(rows)) if len(timed) == len(rows) else f"{len(timed)} of {len(rows)}"
    if not timed:
        return (count, "", "", "", *[""] * (len(PEERS_HEAD) if raced is not None else 0))
    least = min(timed, key=lambda row: row.ratio.p50)
    share = f"{reached(timed)} of {len(timed)}, {100 * reached(timed) / len(timed):.0f} %"
    mean = f"{geomean(row.ratio.p50 for row in timed):.3f}"
    cells = (count, mean, f"{least.ratio.p50:.3f} ({named(least)})", share)
    return cells if raced is None else cells + _beside_peers(timed, named, raced)


def _beside_peers(
    timed: Sequence[Row], named: Callable[[Row], str], raced: Mapping[str, best.Result]
) -> tuple[str, ...]:
    found = [raced[row.problem["id"]] for row in timed]
    peers = set(PEERS.values())
    found = [one for one in found if one.ratio and peers.intersection(one.others)]
    if not found:
        return "0", "", ""
    least = min(found, key=lambda one: one.ratio.p50)
    mean = f"{geomean(one.ratio.p50 for one in found):.3f}"
    return str(len(found)), mean, f"{least.ratio.p50:.3f} ({named(least.ours)})"


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
