"""Rows of `python -m perf linear` as tables: tritemm's time beside the best of torch's ways."""

from __future__ import annotations

from collections.abc import Sequence

from . import report
from .best import Result, listed, results
from .linear_ways import OURS
from .report import align, digits, spread
from .rows import REFERENCE, Row
from .stats import geomean

EXPERIMENT = "linear"
#: Torch, as it is called without torch.compile, in tables.
EAGER = "torch"

HEAD = ("problem", "", "kernel", "µs", "torch µs", "the best of torch", "µs")
HEAD += ("x the best (p20-p80)", "x torch", "torch again")
TOTALS = ("class", "problems", "x the best", "least", "won", "tied", "lost", "x torch")


def text(rows: Sequence[Row]) -> str:
    """For a terminal; the rows of one run."""
    found = results(rows, OURS)
    if not found:
        return "nothing was measured"
    parts = [
        align([HEAD, *map(_line, found)]),
        listed("wins", found, 1),
        listed("losses", found, -1),
        align([TOTALS, *_totals(found)]),
        *_notes(found),
    ]
    return "\n\n".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """The means and every problem, as Markdown tables."""
    found = results(rows, OURS)
    tables = [
        report.markdown(TOTALS, _totals(found)),
        report.markdown(HEAD, map(_line, found), words=3),
    ]
    return "\n\n".join([*tables, *(f"{note}." for note in _notes(found))])


def _line(result: Result) -> tuple[str, ...]:
    ours, best = result.ours, result.best
    eager, ratio = result.others.get(REFERENCE), result.ratio
    return (
        f"{result.id} {ours.problem['name']}",
        str(ours.case),
        ours.rung or "" if ours.us else ours.outcome,
        _us(ours),
        _us(eager) or (eager.outcome if eager else ""),
        _named(best) if best else "",
        _us(result.others[best]) if best else "",
        spread(ratio, result.tie) if ratio else "",
        f"{ours.ratio.p50:.3f}" if ours.ratio else "",
        f"{ours.null.p50:.3f}" if ours.null else "",
    )


def _us(row: Row | None) -> str:
    return digits(row.us.p50) if row and row.us else ""


def _named(name: str) -> str:
    return EAGER if name == REFERENCE else name


def _totals(found: Sequence[Result]) -> list[tuple[str, ...]]:
    """A line for each class, and one for all."""
    groups = {name: [] for name in dict.fromkeys(r.ours.problem["class"] for r in found)}
    for result in found:
        groups[result.ours.problem["class"]].append(result)
    return [_total(name, own) for name, own in {**groups, "all": found}.items()]


def _total(name: str, found: Sequence[Result]) -> tuple[str, ...]:
    timed = [result for result in found if result.ratio]
    count = str(len(found)) if len(timed) == len(found) else f"{len(timed)} of {len(found)}"
    if not timed:
        return (name, count, *[""] * 6)
    least = min(timed, key=lambda result: result.ratio.p50)
    eager = [result.ours.ratio.p50 for result in timed if result.ours.ratio]
    return (
        name,
        count,
        f"{geomean(result.ratio.p50 for result in timed):.3f}",
        f"{least.ratio.p50:.3f} ({least.id})",
        str(sum(result.side == 1 for result in timed)),
        str(sum(result.tie for result in timed)),
        str(sum(result.side == -1 for result in timed)),
        f"{geomean(eager):.3f}" if eager else "",
    )


def _notes(found: Sequence[Result]) -> list[str]:
    """Who was not timed, and why; and which of torch's ways round more than once."""
    notes, rounded = [], {}
    for result in found:
        for row in (result.ours, *result.others.values()):
            if not row.us:
                said = _named(row.competitor) if row.competitor != OURS else "tritemm"
                notes.append(f"{result.id}, {said}: {row.outcome}: {row.reason}")
            elif row.reason:
                rounded.setdefault(_named(row.competitor), []).append(result.id)
    if rounded:
        listed = "; ".join(f"{name}: {', '.join(ids)}" for name, ids in rounded.items())
        notes.append(f"beyond the bound of a result that is rounded once: {listed}")
    return notes
