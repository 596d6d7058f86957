"""Host rows as one table: a line per competitor, its time per call and torch's in each mode."""

from __future__ import annotations

from collections.abc import Sequence

from . import report
from .case import Case
from .host import MODES
from .report import align, digits, origin
from .rows import NULL, REFERENCE, Row
from .select import all_runs

#: What is measured unless another size is asked for: the tables of the documentation.
CASE = Case(128, 128, 128, "NT", "bf16")

TITLES = dict(zip(MODES, ("eager", "out=", "first eager", "first out="), strict=True))
_NAMES = {REFERENCE: "torch.matmul", NULL: "torch.matmul again (noise)"}


def latest(rows: Sequence[Row], gpu: str | None = None, case: Case = CASE) -> list[Row]:
    """The rows of the newest run of `python -m perf host` that reached its last mode.

    A run of less than half of the competitors does not displace a fuller one. Without `gpu`, the
    GPU of the newest row. Empty if there is no such run.
    """
    runs = all_runs([row for row in rows if row.case == case], "host", gpu, mode=None)
    timed = [sum(row.us is not None and row.mode == MODES[-1] for row in run) for run in runs]
    if not any(timed):
        return []
    fuller = [run for run, count in zip(runs, timed, strict=True) if 2 * count >= max(timed)]
    return fuller[-1]


def text(rows: Sequence[Row]) -> str:
    """For a terminal; the rows of one run."""
    if not rows:
        return "nothing was measured"
    title = f"{rows[0].case} on {rows[0].environment.gpu}, host time per call"
    return "\n".join([title, align(_table(rows)), *_notes(rows), _method(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table and its caption; the rows of one run."""
    head, *body = _table(rows)
    notes = [f"{note}." for note in _notes(rows)]
    caption = f"{rows[0].case}. {_method(rows)} {origin(rows)}."
    return "\n\n".join([report.markdown(head, body), *notes, caption])


def _table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A head, and a line per competitor in the order of appearance."""
    found = {(row.competitor, row.mode): row for row in rows}
    modes = [mode for mode in MODES if any(row.mode == mode for row in rows)]
    head = ["", *(cell for mode in modes for cell in (f"{TITLES[mode]} µs (p20-p80)", "x torch"))]
    lines = [tuple(head)]
    for name in dict.fromkeys(row.competitor for row in rows):
        own = [found.get((name, mode)) for mode in modes]
        label = _label(next(row for row in own if row))
        lines.append((label, *(cell for row in own for cell in _cells(row))))
    return lines


def _label(row: Row) -> str:
    """`auto (persistent)` where matmul chose the rung; the torch call by its name."""
    if row.competitor in _NAMES:
        return _NAMES[row.competitor]
    chosen = f" ({row.rung})" if row.rung not in (None, row.competitor) else ""
    return row.competitor + chosen


def _cells(row: Row | None) -> tuple[str, str]:
    """The time, and that over torch's."""
    if row is None:
        return "", ""
    if not row.us:
        return row.outcome, ""
    us = f"{digits(row.us.p50)} ({digits(row.us.p20)}-{digits(row.us.p80)})"
    if row.ratio is None or row.competitor == REFERENCE:
        return us, ""
    tie = " (a tie)" if row.tie and row.competitor != NULL else ""
    return us, digits(row.ratio.inverse.p50) + tie


def _notes(rows: Sequence[Row]) -> list[str]:
    """What became of the unmeasured, and what is wrong with the measured; each once."""
    notes = [
        f"{_label(row)}: {'' if row.us else f'{row.outcome}: '}{row.reason}"
        for row in rows
        if row.reason
    ]
    return list(dict.fromkeys(notes))


def _method(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row.us]
    rounds = max((row.rounds for row in measured), default=0)
    calls = max((row.launches for row in measured), default=0)
    return (
        f"Median and percentiles of {rounds} rounds; a cached call is the mean of {calls} in a "
        "row, a first call the only one of its sizes, with a kernel that is already compiled. "
        "x torch: the time over that of torch.matmul in the same round."
    )
