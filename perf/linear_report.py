"""Rows of `python -m perf linear` as tables: tritemm's time beside the best of torch's ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from . import report
from .linear_ways import OURS
from .report import align, digits, spread
from .rows import NULL, REFERENCE, Row
from .select import raced
from .stats import Quantiles, geomean

EXPERIMENT = "linear"
#: Torch, as it is called without torch.compile, in tables.
EAGER = "torch"

HEAD = ("problem", "", "kernel", "µs", "torch µs", "the best of torch", "µs")
HEAD += ("x the best (p20-p80)", "x torch", "torch again")
TOTALS = ("class", "problems", "x the best", "least", "won", "tied", "lost", "x torch")


@dataclasses.dataclass(frozen=True)
class Result:
    """One problem: tritemm's row, torch's by name, the fastest of those, and the ratio to it."""

    ours: Row
    torchs: Mapping[str, Row]

    @property
    def id(self) -> str:
        return self.ours.problem["id"]

    @property
    def best(self) -> str | None:
        """The name of torch's way with the least median."""
        timed = {name: row.us.p50 for name, row in self.torchs.items() if row.us}
        return min(timed, key=timed.get) if timed else None

    @property
    def ratio(self) -> Quantiles | None:
        """The best of torch's time over tritemm's, within rounds."""
        if self.best in (None, REFERENCE):
            return self.ours.ratio
        return (self.ours.versus or {}).get(self.best)

    @property
    def tie(self) -> bool:
        """As of `Row.tie`."""
        ratio, null = self.ratio, self.ours.null
        return ratio is not None and (ratio.tie or (null is not None and null.covers(ratio.p50)))


def results(rows: Sequence[Row]) -> list[Result]:
    """By problem, in the order of the rows."""
    found = []
    for race in raced(rows).values():
        torchs = {name: row for name, row in race.items() if name not in (OURS, NULL)}
        if OURS in race:
            found.append(Result(race[OURS], torchs))
    return found


def text(rows: Sequence[Row]) -> str:
    """For a terminal; the rows of one run."""
    found = results(rows)
    if not found:
        return "nothing was measured"
    parts = [
        align([HEAD, *map(_line, found)]),
        _listed("wins", found, 1),
        _listed("losses", found, -1),
        align([TOTALS, *_totals(found)]),
        *_notes(found),
    ]
    return "\n\n".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """The means and every problem, as Markdown tables."""
    found = results(rows)
    tables = [
        report.markdown(TOTALS, _totals(found)),
        report.markdown(HEAD, map(_line, found), words=3),
    ]
    return "\n\n".join([*tables, *(f"{note}." for note in _notes(found))])


def _line(result: Result) -> tuple[str, ...]:
    ours, best = result.ours, result.best
    eager, ratio = result.torchs.get(REFERENCE), result.ratio
    return (
        f"{result.id} {ours.problem['name']}",
        str(ours.case),
        ours.rung or "" if ours.us else ours.outcome,
        _us(ours),
        _us(eager) or (eager.outcome if eager else ""),
        _named(best) if best else "",
        _us(result.torchs[best]) if best else "",
        spread(ratio, result.tie) if ratio else "",
        f"{ours.ratio.p50:.3f}" if ours.ratio else "",
        f"{ours.null.p50:.3f}" if ours.null else "",
    )


def _us(row: Row | None) -> str:
    return digits(row.us.p50) if row and row.us else ""


def _named(name: str) -> str:
    return EAGER if name == REFERENCE else name


def _side(result: Result) -> int:
    """1 where tritemm wins, -1 where it loses, 0 where it ties or wasn't timed."""
    if result.ratio is None or result.tie:
        return 0
    return 1 if result.ratio.p50 > 1 else -1


def _listed(title: str, found: Sequence[Result], side: int) -> str:
    own = sorted((r for r in found if _side(r) == side), key=lambda r: -side * r.ratio.p50)
    listed = ", ".join(f"{r.id} {r.ratio.p50:.3f}" for r in own)
    return f"{title} ({len(own)}): {listed or 'none'}"


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
        str(sum(_side(result) == 1 for result in timed)),
        str(sum(result.tie for result in timed)),
        str(sum(_side(result) == -1 for result in timed)),
        f"{geomean(eager):.3f}" if eager else "",
    )


def _notes(found: Sequence[Result]) -> list[str]:
    """Who was not timed, and why; and which of torch's ways round more than once."""
    notes, rounded = [], {}
    for result in found:
        for row in (result.ours, *result.torchs.values()):
            if not row.us:
                said = _named(row.competitor) if row.competitor != OURS else "tritemm"
                notes.append(f"{result.id}, {said}: {row.outcome}: {row.reason}")
            elif row.reason:
                rounded.setdefault(_named(row.competitor), []).append(result.id)
    if rounded:
        listed = "; ".join(f"{name}: {', '.join(ids)}" for name, ids in rounded.items())
        notes.append(f"beyond the bound of a result that is rounded once: {listed}")
    return notes
