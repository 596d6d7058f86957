"""Rows of `perf.host_calls` as one table: a line per kind of call and kernel asked for."""

from __future__ import annotations

from collections.abc import Sequence

from . import report
from .host_calls import CHAIN, KINDS
from .report import align, digits, origin
from .rows import NULL, REFERENCE, Row
from .select import newest_of_all

HEAD = (
    "",
    "problem",
    "kernel=",
    "torch µs",
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
    title = f"calls as models make them, on {rows[0].environment.gpu}, host time per call"
    return "\n".join([title, align([HEAD, *_table(rows)]), *_notes(rows), _method(rows)])


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table and its caption; the rows of one run."""
    notes = [f"{note}." for note in _notes(rows)]
    caption = f"{_method(rows)} {origin(rows)}."
    return "\n\n".join([report.markdown(HEAD, _table(rows), words=3), *notes, caption])


def per_graph(rows: Sequence[Row], competitor: str) -> tuple[float, float] | None:
    """Microseconds of a compiled graph without its products, and of each product in it."""
    found = {row.mode: row.us.p50 for row in rows if row.competitor == competitor and row.us}
    one, many = (found.get(f"host call graph {count}") for count in (1, CHAIN))
    if one is None or many is None:
        return None
    product = (many - one) / (CHAIN - 1)
    return one - product, product


def _table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    lines = []
    for kind in KINDS:
        race = {row.competitor: row for row in rows if row.mode == kind.mode_of_rows}
        lines += [
            _line(row, race.get(REFERENCE), race.get(NULL))
            for name, row in race.items()
            if name not in (REFERENCE, NULL)
        ]
    return lines


def _line(row: Row, torchs: Row | None, again: Row | None) -> tuple[str, ...]:
    theirs = digits(torchs.us.p50) if torchs and torchs.us else ""
    noise = digits(again.ratio.inverse.p50) if again and again.ratio else ""
    head = (row.problem["name"], f"{row.case.size} {row.case.layout}", row.competitor, theirs)
    if not row.us:
        return (*head, row.outcome, "", noise)
    us = f"{digits(row.us.p50)} ({digits(row.us.p20)}-{digits(row.us.p80)})"
    return (*head, us, report.spread(row.ratio.inverse, row.tie) if row.ratio else "", noise)


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = []
    for row in rows:
        if row.reason:
            became = "" if row.us else f"{row.outcome}: "
            notes.append(f"{row.problem['name']}, {row.competitor}: {became}{row.reason}")
    costs = [per_graph(rows, name) for name in (REFERENCE, "auto")]
    if all(costs):
        (their_graph, theirs), (our_graph, ours) = costs
        notes.append(
            f"in a compiled graph a product takes torch {digits(theirs)} µs and tritemm "
            f"{digits(ours)}, {ours - theirs:+.2f}; the rest of a call {digits(their_graph)} and "
            f"{digits(our_graph)}"
        )
    return list(dict.fromkeys(notes))


def _method(rows: Sequence[Row]) -> str:
    rounds = max((row.rounds for row in rows if row.us), default=0)
    return (
        f"bf16. Python's time for one call, the median of {rounds} rounds of a batch each, which "
        "begins with an idle GPU and waits for nothing. x torch: the time over that of F.linear "
        "(of torch.matmul where the weight is stored [K, N]) in the same round."
    )
