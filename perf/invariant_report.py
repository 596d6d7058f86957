"""What batch invariance costs, from rows of `python -m perf suite --batch-invariant`.

Their experiment has a name of its own, so that no table of the suite takes them for a run of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from . import report, summary
from .report import align, digits, spread, unmeasured
from .rows import INVARIANT, REFERENCE, Row
from .stats import Quantiles, geomean

#: The rows' experiment, and who else of tritemm races.
EXPERIMENT, AUTO = "invariant", "auto"
#: The class whose problems have few rows: they pay the most.
DECODE = "decode"

HEAD = ("problem", "", "kernel", "µs", "auto µs", "cuBLAS µs", "x cuBLAS (p20-p80)", "x auto")
TOTALS = ("", "problems", "x cuBLAS", "least", "auto's x cuBLAS", "x auto", "least")


def text(rows: Sequence[Row]) -> str:
    """Every problem, then the means, for a terminal."""
    own = summary.of(rows, INVARIANT)
    if not own:
        return "nothing was measured"
    found = summary.noise(rows)
    parts = [align([HEAD, *_table(rows, own)]), *_untimed(own), align([TOTALS, *totals(rows)])]
    return "\n\n".join([*parts, *([str(found)] if found else [])])


def markdown(rows: Sequence[Row]) -> str:
    """The means as a Markdown table, and what was not timed."""
    own = summary.of(rows, INVARIANT)
    return "\n\n".join([report.markdown(TOTALS, totals(rows)), *_untimed(own)])


def totals(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for the 16-bit problems, for those of decode, and for all."""
    own = summary.of(rows, INVARIANT)
    autos = {row.problem["id"]: row for row in summary.of(rows, AUTO)}
    chosen: dict[str, Callable[[Row], bool]] = {
        "all 16-bit": lambda row: row.case.dtype in summary.SIXTEEN_BIT,
        DECODE: lambda row: row.problem["class"] == DECODE,
        "all": lambda row: True,
    }
    groups = {name: [row for row in own if holds(row)] for name, holds in chosen.items()}
    return [_total(name, group, autos) for name, group in groups.items() if group]


def to_auto(row: Row) -> Quantiles | None:
    """Auto's time over this row's."""
    return (row.versus or {}).get(AUTO)


def _total(name: str, rows: Sequence[Row], autos: dict[str, Row]) -> tuple[str, ...]:
    timed = [row for row in rows if row.ratio]
    count = str(len(rows)) if len(timed) == len(rows) else f"{len(timed)} of {len(rows)}"
    both = [(row, to_auto(row)) for row in timed if to_auto(row)]
    theirs = [autos[row.problem["id"]].ratio for row, _ in both if row.problem["id"] in autos]
    return (
        name,
        count,
        *_mean((row, row.ratio) for row in timed),
        _mean((None, ratio) for ratio in theirs if ratio)[0],
        *_mean(both),
    )


def _mean(found: Iterable[tuple[Row | None, Quantiles]]) -> tuple[str, str]:
    """The geometric mean of the medians, and the least with its problem; empty of nothing."""
    found = list(found)
    if not found:
        return "", ""
    row, least = min(found, key=lambda pair: pair[1].p50)
    at = f"{least.p50:.3f} ({row.problem['id']})" if row else ""
    return f"{geomean(ratio.p50 for _, ratio in found):.3f}", at


def _table(rows: Sequence[Row], own: Sequence[Row]) -> list[tuple[str, ...]]:
    times = {(row.problem["id"], row.competitor): row for row in rows}
    lines = []
    for row in own:
        key = row.problem["id"]
        others = [_us(times.get((key, name))) for name in (AUTO, REFERENCE)]
        first = (f"{key} {row.problem['name']}", str(row.case))
        if not row.us:
            lines.append((*first, row.outcome, "", *others, "", ""))
            continue
        ratio, auto = row.ratio, to_auto(row)
        lines.append((
            *first, row.rung or "", _us(row), *others, spread(ratio, row.tie) if ratio else "",
            f"{auto.p50:.3f}" if auto else "",
        ))  # fmt: skip
    return lines


def _us(row: Row | None) -> str:
    return digits(row.us.p50) if row and row.us else ""


def _untimed(own: Sequence[Row]) -> list[str]:
    return unmeasured(own, lambda row: row.problem["id"])
