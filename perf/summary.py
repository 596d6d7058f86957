"""What a suite's rows say together: geomeans, shares, wins and losses, in all and per class."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from . import report
from .report import align, digits, spread, unmeasured
from .rows import REFERENCE, Row
from .stats import geomean

SIXTEEN_BIT = ("bf16", "fp16")


@dataclasses.dataclass(frozen=True)
class Summary:
    """Of the problems of one class. Ratios are cuBLAS's time over the competitor's.

    `timed` counts the problems with a ratio; `reached` those of them with 1 or more. A tie is a
    ratio that the noise explains (`Row.tie`), and neither a win nor a loss.
    """

    name: str
    problems: int
    timed: int
    geomean: float
    least: Row | None
    reached: int
    wins: int
    ties: int
    losses: int

    @property
    def share(self) -> float:
        """Of the timed problems, those at 1.0 or more."""
        return self.reached / self.timed if self.timed else float("nan")


def competitors(rows: Sequence[Row]) -> list[str]:
    """Who raced against cuBLAS, in the order of appearance."""
    return list(dict.fromkeys(row.competitor for row in rows if row.competitor != REFERENCE))


def of(rows: Sequence[Row], competitor: str) -> list[Row]:
    """The competitor's row of each problem."""
    return [row for row in rows if row.competitor == competitor]


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Of one competitor's rows: each class, then the 16-bit problems, then all of them."""
    groups = dict.fromkeys(row.problem["class"] for row in rows)
    found = [_summary(group, [r for r in rows if r.problem["class"] == group]) for group in groups]
    sixteen = [row for row in rows if row.case.dtype in SIXTEEN_BIT]
    if len(sixteen) < len(rows):
        found.append(_summary("all 16-bit", sixteen))
    return [*found, _summary("all", rows)]


def _summary(name: str, rows: Sequence[Row]) -> Summary:
    timed = [row for row in rows if row.ratio]
    return Summary(
        name=name,
        problems=len(rows),
        timed=len(timed),
        geomean=geomean(row.ratio.p50 for row in timed),
        least=min(timed, key=lambda row: row.ratio.p50, default=None),
        reached=sum(row.ratio.p50 >= 1 for row in timed),
        wins=len(won(rows)),
        ties=sum(row.tie for row in timed),
        losses=len(lost(rows)),
    )


def won(rows: Sequence[Row]) -> list[Row]:
    """Faster than cuBLAS by more than the noise, the largest win first."""
    found = [row for row in rows if row.ratio and row.ratio.p50 > 1 and not row.tie]
    return sorted(found, key=lambda row: -row.ratio.p50)


def lost(rows: Sequence[Row]) -> list[Row]:
    """Slower than cuBLAS by more than the noise, the worst loss first."""
    found = [row for row in rows if row.ratio and row.ratio.p50 < 1 and not row.tie]
    return sorted(found, key=lambda row: row.ratio.p50)


@dataclasses.dataclass(frozen=True)
class Noise:
    """The null test over many problems: cuBLAS's time over its own, geomean and farthest from 1."""

    geomean: float
    farthest: float
    at: str

    def __str__(self) -> str:
        return (
            f"cuBLAS against itself: geomean {self.geomean:.4f}, "
            f"farthest from 1 {self.farthest:.4f} ({self.at})"
        )


def noise(rows: Sequence[Row]) -> Noise | None:
    """One value per problem; None without any."""
    nulls = {row.problem["id"]: row.null.p50 for row in rows if row.null}
    if not nulls:
        return None
    at = max(nulls, key=lambda key: abs(nulls[key] - 1))
    return Noise(geomean(nulls.values()), nulls[at], at)


def text(rows: Sequence[Row]) -> str:
    """Every problem, what was won and lost, and the summaries, for a terminal."""
    parts = []
    for name in competitors(rows):
        own = of(rows, name)
        parts += [
            align(_table(rows, own)),
            *_untimed(own),
            _sorted("wins", won(own)),
            _sorted("losses", lost(own)),
            align([_HEAD, *map(_cells, summarise(own))]),
        ]
    found = noise(rows)
    return "\n\n".join([*parts, *([str(found)] if found else [])])


def _sorted(title: str, rows: Sequence[Row]) -> str:
    listed = ", ".join(f"{row.problem['id']} {row.ratio.p50:.3f}" for row in rows)
    return f"{title} ({len(rows)}): {listed or 'none'}"


def markdown(rows: Sequence[Row], competitor: str) -> str:
    """The summary of each class as a Markdown table, and the null test."""
    table = report.markdown(_HEAD, map(_cells, summarise(of(rows, competitor))))
    found = noise(rows)
    return f"{table}\n\n{found}." if found else table


def markdown_problems(rows: Sequence[Row], competitor: str) -> str:
    """Every problem as a Markdown table."""
    own = of(rows, competitor)
    head, *body = _table(rows, own)
    return "\n\n".join([report.markdown(head, body, words=3), *_untimed(own)])


_HEAD = ("class", "problems", "geomean", "least", "at 1.00 or more", "won", "tied", "lost")


def _cells(summary: Summary) -> tuple[str, ...]:
    s = summary
    count = str(s.problems) if s.timed == s.problems else f"{s.timed} of {s.problems}"
    if not s.timed:
        return (s.name, count, *[""] * 6)
    least = f"{s.least.ratio.p50:.3f} ({s.least.problem['id']})"
    share = f"{s.reached} of {s.timed}, {100 * s.share:.0f} %"
    return (
        s.name,
        count,
        f"{s.geomean:.3f}",
        least,
        share,
        str(s.wins),
        str(s.ties),
        str(s.losses),
    )


def _table(rows: Sequence[Row], own: Sequence[Row]) -> list[tuple[str, ...]]:
    """A head and a line per problem; of what has no time, in a word, what became of it."""
    references = {row.problem["id"]: row for row in rows if row.competitor == REFERENCE}
    head = ("problem", "", "kernel", "µs", "TFLOP/s", "GB/s", "x cuBLAS (p20-p80)", "% of roof")
    found = [(*head, "cuBLAS µs")]
    for row in own:
        reference = references.get(row.problem["id"])
        theirs = digits(reference.us.p50) if reference and reference.us else ""
        first = (f"{row.problem['id']} {row.problem['name']}", str(row.case))
        if not row.us:
            found.append((*first, row.outcome, *[""] * 5, theirs))
            continue
        times = (digits(row.us.p50), digits(row.tflops), digits(row.gbs))
        found.append((*first, row.rung or "", *times, _ratio(row), _percent(row), theirs))
    return found


def _untimed(rows: Sequence[Row]) -> list[str]:
    return unmeasured(rows, lambda row: row.problem["id"])


def _ratio(row: Row) -> str:
    return spread(row.ratio, row.tie) if row.ratio else ""


def _percent(row: Row) -> str:
    return f"{100 * row.of_roof:.0f}" if row.of_roof else ""


def markdown_runs(rows: Sequence[Row], competitor: str) -> str:
    """Each full run of the suite: whether they agree, and how quiet each was."""
    head = ("run", "commit", "problems", "geomean", "null test: geomean", "farthest from 1")
    body = []
    for run in dict.fromkeys(row.run for row in rows):
        own = [row for row in rows if row.run == run]
        found, every = noise(own), summarise(of(own, competitor))[-1]
        commit = own[0].environment.commit
        cells = (run[:16].replace("T", " "), (commit or "unknown")[:7], str(every.timed))
        quiet = (
            (f"{found.geomean:.4f}", f"{found.farthest:.4f} ({found.at})") if found else ("", "")
        )
        body.append((*cells, f"{every.geomean:.4f}", *quiet))
    return report.markdown(head, body, words=2)
