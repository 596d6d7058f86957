"""Rows of `perf.host_routing` as one table: a line per call of torch's, and what routing adds."""

from __future__ import annotations

from collections.abc import Sequence

from . import report
from .host_routing import ENABLED, KINDS, OURS
from .report import align, digits, origin, spread
from .rows import NULL, REFERENCE, Row
from .select import newest_of_all, raced

HEAD = (
    "",
    "problem",
    "torch µs (p20-p80)",
    "enabled µs (p20-p80)",
    "more µs",
    "x torch (p20-p80)",
    "tritemm µs (p20-p80)",
    "x torch (p20-p80)",
    "torch again",
)
_MODES = [kind.mode_of_rows for kind in KINDS]


def of(rows: Sequence[Row]) -> list[Row]:
    """Those of this table."""
    return [row for row in rows if row.mode in _MODES]


def latest(rows: Sequence[Row], gpu: str | None = None) -> list[Row]:
    """The newest run that reached every kind; empty if there is none."""
    return newest_of_all(rows, "host", _MODES, gpu)


def text(rows: Sequence[Row]) -> str:
    """For a terminal; the rows of one run."""
    if not rows:
        return "nothing was measured"
    title = f"torch's calls and tritemm.enabled(), on {rows[0].environment.gpu}, host time per call"
    return "\n".join([title, align([HEAD, *_table(rows)]), *_notes(rows), _method(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table and its caption; the rows of one run."""
    notes = [f"{note}." for note in _notes(rows)]
    caption = f"{_method(rows)} {origin(rows)}."
    return "\n\n".join([report.markdown(HEAD, _table(rows), words=2), *notes, caption])


def _table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    found = raced(rows, lambda row: row.mode)
    return [_line(found[mode]) for mode in _MODES if mode in found]


def _line(race: dict[str, Row]) -> tuple[str, ...]:
    torchs, enabled, ours, again = (race.get(n) for n in (REFERENCE, ENABLED, OURS, NULL))
    first = next(iter(race.values()))
    timed = torchs and torchs.us and enabled and enabled.us
    return (
        first.problem["name"],
        f"{first.case.size} {first.case.layout}",
        _us(torchs),
        _us(enabled),
        f"{enabled.us.p50 - torchs.us.p50:+.2f}" if timed else "",
        _ratio(enabled),
        _us(ours),
        _ratio(ours),
        digits(again.ratio.inverse.p50) if again and again.ratio else "",
    )


def _us(row: Row | None) -> str:
    if row is None:
        return ""
    if not row.us:
        return row.outcome
    return f"{digits(row.us.p50)} ({digits(row.us.p20)}-{digits(row.us.p80)})"


def _ratio(row: Row | None) -> str:
    return spread(row.ratio.inverse, row.tie) if row and row.ratio else ""


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = [
        f"{row.problem['name']}, {row.competitor}: {'' if row.us else f'{row.outcome}: '}"
        f"{row.reason}"
        for row in rows
        if row.reason
    ]
    return list(dict.fromkeys(notes))


def _method(rows: Sequence[Row]) -> str:
    rounds = max((row.rounds for row in rows if row.us), default=0)
    return (
        f"bf16. Python's time for one call, the median of {rounds} rounds of a batch each, which "
        "begins with an idle GPU and waits for nothing. Enabled: the same call of torch's inside "
        "tritemm.enabled(); more: what that adds, tritemm's launch in place of cuBLAS's included. "
        "tritemm: its function of the same name. x torch: the time over torch's in the same round."
    )
