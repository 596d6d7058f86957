"""How much slower than the best the dispatcher's choice is: who races, and the table of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tritemm.spec import Config

from . import report, summary
from .competitors import Candidate, matmul
from .engine import Competitor
from .found import Found
from .operands import Operands
from .report import align, digits
from .rows import Row
from .search import Task, competitor
from .stats import geomean

EXPERIMENT = "regret"
#: The competitor that is judged: what `tritemm.matmul` runs when it is asked for nothing.
CHOICE = "auto"
#: A choice is as good as the best within this.
GOOD, FAIR = 1.03, 1.10


def field(task: Task, found: Found, operands: Operands, best: int) -> list[Competitor]:
    """The choice, the `best` of the search that are something else, and cuBLAS."""
    names = [r.name for r in found.timed if r.name != task.chosen][:best]
    chosen, *references = matmul(task.case, operands, [CHOICE])
    known = {option.name: option for option in task.options}
    others = [competitor(known[name], task.problem, task.case) for name in names]
    return [dataclasses.replace(chosen, rivals=tuple(names)), *others, *references]


@dataclasses.dataclass(frozen=True)
class Regret:
    """Of one problem: the choice's row, the fastest one's, and the choice's time over its."""

    choice: Row
    best: Row
    value: float


def regrets(rows: Sequence[Row]) -> list[Regret]:
    """Of each problem with a measured choice, in the rows' order.

    The fastest is the one with the least median time; the ratio is taken within rounds, and is 1
    where the choice is the fastest, or its rounds say so.
    """
    found = []
    for choice in summary.of(rows, CHOICE):
        if not choice.us:
            continue
        names = choice.versus or {}
        race = [
            row
            for row in rows
            if (row.time, row.case) == (choice.time, choice.case)
            and row.competitor in names
            and row.us
        ]
        best = min([choice, *race], key=lambda row: row.us.p50)
        value = 1.0 if best is choice else max(1.0, 1 / names[best.competitor].p50)
        found.append(Regret(choice, best if value > 1 else choice, value))
    return found


def text(rows: Sequence[Row]) -> str:
    """Every problem, the largest regret first, and the summary, for a terminal."""
    found = sorted(regrets(rows), key=lambda r: -r.value)
    if not found:
        return "nothing was measured"
    head = ("problem", "", "regret", "us", "x cuBLAS", "chosen", "fastest")
    return "\n\n".join([align([head, *map(_cells, found)]), align([_HEAD, *_summary(found)])])


def markdown(rows: Sequence[Row], worst: int = 10) -> str:
    """The summary of each class, and the problems with the largest regret, as Markdown tables."""
    found = sorted(regrets(rows), key=lambda r: -r.value)
    head = ("problem", "", "regret", "µs", "x cuBLAS", "chosen", "fastest")
    shown = [r for r in found if r.value > 1][:worst]
    tables = [report.markdown(_HEAD, _summary(found))]
    if shown:
        tables.append(report.markdown(head, map(_cells, shown), words=2))
    return "\n\n".join(tables)


_HEAD = ("class", "problems", "geomean", "largest", "within 3 %", "within 10 %", "choice is best")


def _summary(found: Sequence[Regret]) -> list[tuple[str, ...]]:
    """A line per class, and one for all."""
    groups = dict.fromkeys(r.choice.problem["class"] for r in found)
    lines = [_line(g, [r for r in found if r.choice.problem["class"] == g]) for g in groups]
    return [*lines, _line("all", found)]


def _line(name: str, found: Sequence[Regret]) -> tuple[str, ...]:
    values = [r.value for r in found]
    largest = max(found, key=lambda r: r.value)
    return (
        name,
        str(len(found)),
        f"{geomean(values):.4f}",
        f"{largest.value:.3f} ({largest.choice.problem['id']})",
        str(sum(value <= GOOD for value in values)),
        str(sum(value <= FAIR for value in values)),
        str(sum(value == 1 for value in values)),
    )


def _cells(regret: Regret) -> tuple[str, ...]:
    choice, best = regret.choice, regret.best
    ratio = f"{choice.ratio.p50:.3f}" if choice.ratio else ""
    return (
        choice.problem["id"],
        str(choice.case),
        f"{regret.value:.3f}",
        digits(choice.us.p50),
        ratio,
        _named(choice),
        "the same" if best is choice else _named(best),
    )


def _named(row: Row) -> str:
    """The rung and its config."""
    return Candidate(row.rung, Config(**row.config)).name if row.config else row.competitor
