"""Rows of `python -m perf suite --peers` as tables: our time beside cuBLAS's and the best peer's.

The best peer of a problem is the fastest of cuBLAS, as torch calls it, and of `perf.peers`, by the
median. The experiments have names of their own, so that no table of the suite takes them for runs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

from . import report, summary
from .best import Result, listed, results
from .report import align, digits, spread, unmeasured
from .rows import PEERS, REFERENCE, Row
from .stats import Quantiles, geomean

#: The rows' experiment, by the command.
EXPERIMENTS = {"suite": "peers", "random": "random peers"}
#: The classes of large problems. Those of 16-bit types have a total, but for any whose rows are not
#: whole 16 bytes: there cuBLAS is slow.
LARGE, LARGE_CLASSES = "large aligned", ("prefill", "train", "square")
ROW = 8

TOTALS = ("class", "problems", "x cuBLAS", "least", "x best peer", "least", "won", "tied", "lost")
TOTALS += ("the best peers",)


def text(rows: Sequence[Row]) -> str:
    """Every problem, what is won and lost against the best, and the means, for a terminal."""
    others, parts = peers_of(rows), []
    for name in ours(rows):
        found = beside(rows, name)
        parts += [
            align([_head(others), *(_line(result, others) for result in found)]),
            *_notes(found),
            listed("wins against the best peer", found, 1),
            listed("losses against the best peer", found, -1),
            align([TOTALS, *totals(found)]),
        ]
    noise = summary.noise(rows)
    return "\n\n".join([*parts, *([str(noise)] if noise else [])]) or "nothing was measured"


def markdown(rows: Sequence[Row], competitor: str) -> str:
    """The means and every problem, as Markdown tables."""
    others, found = peers_of(rows), beside(rows, competitor)
    noise = summary.noise(rows)
    parts = [
        report.markdown(TOTALS, totals(found)),
        *([f"{noise}."] if noise else []),
        f"{listed('Lost to the best peer', found, -1)}.",
        report.markdown(_head(others), (_line(r, others) for r in found), words=3),
        *_notes(found),
    ]
    return "\n\n".join(parts)


def sentence(rows: Sequence[Row], competitor: str) -> str:
    """The means, for a headline; empty where nothing was timed."""
    found = beside(rows, competitor)
    groups = {name: [r for r in own if r.ratio] for name, own in _groups(found).items()}
    if not (every := groups.get("all")):
        return ""
    raced = ["cuBLAS", *peers_of(rows)]
    means = {name: geomean(r.ratio.p50 for r in own) for name, own in groups.items() if own}
    large = f", at {means[LARGE]:.2f}x on the {LARGE} ones" if LARGE in means else ""
    least = min(every, key=lambda r: r.ratio.p50)
    return (
        f"Against the fastest of {', '.join(raced[:-1])} and {raced[-1]} on each of {len(every)} "
        f"shapes it runs at {means['all']:.2f}x{large}, the worst at {least.ratio.p50:.2f}x "
        f"({least.id})."
    )


def ours(rows: Sequence[Row]) -> list[str]:
    """What of tritemm raced, in the order of appearance."""
    return [name for name in summary.competitors(rows) if name not in PEERS.values()]


def peers_of(rows: Sequence[Row]) -> list[str]:
    """Who raced beside cuBLAS and tritemm."""
    there = {row.competitor for row in rows}
    return [name for name in PEERS.values() if name in there]


def beside(rows: Sequence[Row], competitor: str) -> list[Result]:
    """Each problem of one of ours; the others of tritemm's are no peers."""
    return results(rows, competitor, ours(rows))


def totals(found: Sequence[Result]) -> list[tuple[str, ...]]:
    """A line for each class, for the large problems, for the 16-bit ones, and for all."""
    return [_total(name, own) for name, own in _groups(found).items() if own]


def _groups(found: Sequence[Result]) -> dict[str, list[Result]]:
    classes = dict.fromkeys(_class(result) for result in found)
    chosen: dict[str, Callable[[Result], bool]] = {
        name: lambda result, name=name: _class(result) == name for name in classes
    }
    chosen[LARGE] = _large
    chosen["all 16-bit"] = _sixteen
    chosen["all"] = lambda result: True
    return {name: list(filter(holds, found)) for name, holds in chosen.items()}


def _class(result: Result) -> str:
    return result.ours.problem["class"]


def _sixteen(result: Result) -> bool:
    return result.ours.case.dtype in summary.SIXTEEN_BIT


def _large(result: Result) -> bool:
    case = result.ours.case
    rows = (
        case.K if case.layout[0] == "N" else case.M,
        case.N if case.layout[1] == "N" else case.K,
        case.N,
    )
    aligned = all(elements % ROW == 0 for elements in rows)
    return _sixteen(result) and _class(result) in LARGE_CLASSES and aligned


def _total(name: str, found: Sequence[Result]) -> tuple[str, ...]:
    timed = [result for result in found if result.ratio and result.ours.ratio]
    count = str(len(found)) if len(timed) == len(found) else f"{len(timed)} of {len(found)}"
    if not timed:
        return (name, count, *[""] * (len(TOTALS) - 2))
    sides = collections.Counter(result.side for result in timed)
    best = collections.Counter(_named(result.best) for result in timed)
    return (
        name,
        count,
        *_mean([(result.id, result.ours.ratio) for result in timed]),
        *_mean([(result.id, result.ratio) for result in timed]),
        str(sides[1]),
        str(sum(result.tie for result in timed)),
        str(sides[-1]),
        ", ".join(f"{peer} {times}" for peer, times in best.most_common()),
    )


def _mean(ratios: Sequence[tuple[str, Quantiles]]) -> tuple[str, str]:
    """The geometric mean of the medians, and the least with its problem."""
    key, least = min(ratios, key=lambda pair: pair[1].p50)
    return f"{geomean(ratio.p50 for _, ratio in ratios):.3f}", f"{least.p50:.3f} ({key})"


def _head(others: Sequence[str]) -> tuple[str, ...]:
    times = (f"{name} µs" for name in ("cuBLAS", *others))
    return (
        "problem", "", "kernel", "µs", *times, "x cuBLAS (p20-p80)", "best peer",
        "x best peer (p20-p80)",
    )  # fmt: skip


def _line(result: Result, others: Sequence[str]) -> tuple[str, ...]:
    """What has no time says what became of it."""
    row, ratio = result.ours, result.ratio
    return (
        f"{result.id} {row.problem['name']}",
        str(row.case),
        row.rung or "",
        _us(row),
        *(_us(result.others.get(name)) for name in (REFERENCE, *others)),
        spread(row.ratio, row.tie) if row.ratio else "",
        _named(result.best) if result.best else "",
        spread(ratio, result.tie) if ratio else "",
    )


def _us(row: Row | None) -> str:
    if row is None:
        return ""
    return digits(row.us.p50) if row.us else row.outcome


def _named(name: str) -> str:
    return "cuBLAS" if name == REFERENCE else name


def _notes(found: Sequence[Result]) -> list[str]:
    """Who has no time, and why; and whose results missed the error bound, and were timed."""
    parts, beyond = unmeasured([result.ours for result in found], _id), []
    for name in (REFERENCE, *PEERS.values()):
        own = [result.others[name] for result in found if name in result.others]
        parts += [f"{_named(name)}: {each}" for each in unmeasured(own, _id)]
        if missed := [_id(row) for row in own if row.us and row.reason]:
            beyond.append(f"{_named(name)}: {', '.join(missed)}")
    return [*parts, *([f"Beyond the error bound: {'; '.join(beyond)}."] if beyond else [])]


def _id(row: Row) -> str:
    return row.problem["id"]
