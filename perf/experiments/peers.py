"""The tables of races against peers (`--peers`): the best of them on each problem."""

from __future__ import annotations

import collections
from collections.abc import Sequence

from .. import tables
from ..problems import read_suite
from ..rows import PEERS, REFERENCE, Row
from ..tables import Parts, Result, Table, Tally, us
from ..views import ENOUGH, Selection, View, latest_of, newest_of

#: The classes of large problems. Those of 16-bit types have a total, but for any whose rows are not
#: whole 16 bytes: there cuBLAS is slow.
LARGE, LARGE_CLASSES = "large aligned", ("prefill", "train", "square")
TOTALS = ("class", "problems", "x cuBLAS", "least", "x best peer", "least", "won", "tied", "lost")
TOTALS += ("the best peers",)


def parts(rows: list[Row], selection: Selection) -> Parts:
    """The means and every problem."""
    found = tables.against_all(rows, selection.competitor)
    lost = f"{tables.listed('Lost to the best peer', found, -1)}."
    tail = [lost, _problems(found), *tables.notes(found), tables.commands(rows)]
    return [totals(found), tables.quiet(rows), *tail]


def sentence(rows: Sequence[Row], competitor: str) -> str:
    """The means, for a headline; empty where nothing was timed."""
    groups = {tally.name: tally for tally in _groups(tables.against_all(rows, competitor))}
    every = groups["all"]
    peers = _timed(every.timed)
    if not peers:
        return ""
    large = f", at {groups[LARGE].geomean:.2f}x on the {LARGE} ones" if LARGE in groups else ""
    return (
        f"Against the fastest of {', '.join(['cuBLAS', *peers[:-1]])} and {peers[-1]} on each of "
        f"{len(every.timed)} shapes it runs at {every.geomean:.2f}x{large}, the worst at "
        f"{every.least.ratio.p50:.2f}x ({every.least.ours.case.size})."
    )


def _timed(found: Sequence[Result]) -> list[str]:
    """The peers that have a time, and on how many problems where they didn't race on all."""
    rows = {name: [r.others.get(name) for r in found] for name in PEERS.values()}
    raced = {name: sum(1 for row in of if row and row.us) for name, of in rows.items()}
    return [
        name if count == len(found) else f"{name} ({count} of these shapes)"
        for name, count in raced.items()
        if count
    ]


def totals(found: Sequence[Result]) -> Table:
    """A line for each class, for the large problems, for the 16-bit ones, and for all."""
    body = []
    for tally in _groups(found):
        cublas = tally.to_reference
        best = collections.Counter(tables.called(r, r.best) for r in tally.timed)
        means = (cublas.mean, cublas.least_at(), tally.mean, tally.least_at())
        who = ", ".join(f"{peer} {times}" for peer, times in best.most_common())
        body.append((tally.name, tally.count, *means, *tally.sides, who))
    return Table(TOTALS, body)


def _groups(found: Sequence[Result]) -> list[Tally]:
    timed = [tally for tally in tables.tallies(found, {LARGE: _large}) if tally.results]
    return timed or [Tally("all", [])]


def _large(result: Result) -> bool:
    case, group = result.ours.case, result.ours.problem["class"]
    a, b = case.layout
    rows = (case.K if a == "N" else case.M, case.N if b == "N" else case.K, case.N)
    aligned = all(elements % 8 == 0 for elements in rows)
    return case.dtype in tables.SIXTEEN_BIT and group in LARGE_CLASSES and aligned


def _problems(found: Sequence[Result]) -> Table:
    """A competitor without a time shows its outcome."""
    there = [name for name in (REFERENCE, *PEERS.values()) if name in tables.others(found)]
    cells = tables.RESULT | {"kernel": lambda result: result.ours.rung or ""}
    cells |= {"µs": lambda result: us(result.ours), "best peer": tables.RESULT["best"]}
    cells |= {"x best peer (p20-p80)": tables.RESULT["x the best (p20-p80)"]}
    times = {
        f"{tables.called(found[0], name)} µs": lambda result, name=name: us(result.others.get(name))
        for name in there
    }
    head = ("problem", "", "kernel", "µs", *times)
    head += ("x cuBLAS (p20-p80)", "best peer", "x best peer (p20-p80)")
    return Table.of(head, found, cells | times, words=3)


VIEWS = {
    "peers": View(newest_of("peers", read_suite), parts),
    "random-peers": View(latest_of("random peers", lambda: ENOUGH), parts),
}
