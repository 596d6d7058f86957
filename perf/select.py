"""Which of the recorded rows a table or a picture shows: the newest that belong together."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .case import ACCUMULATE, Case
from .rows import CUDA, HALF, REFERENCE, TRITON, Row

if TYPE_CHECKING:
    import pandas

#: Fields of a row that are columns of `frame`.
FIELDS = ("experiment", "run", "time", "mode", "case", "competitor", "ladder", "rung")


def frame(rows: Iterable[Row]) -> pandas.DataFrame:
    """What rows are chosen by, and each `row` itself.

    `key` is the problem, or else the case and the mode.
    """
    import pandas  # to measure takes none

    fields = operator.attrgetter(*FIELDS)
    found = [
        (
            row,
            row.environment.gpu,
            row.id or f"{row.case}, {row.mode}",
            row.us is not None,
            *fields(row),
        )
        for row in rows
    ]
    table = pandas.DataFrame(found, columns=["row", "gpu", "key", "timed", *FIELDS])
    return table.astype({"timed": bool})  # also of no rows


def runs(
    rows: Iterable[Row], experiment: str, gpu: str | None = None, mode: str | None = "sustained"
) -> pandas.DataFrame:
    """The runs of a command on one GPU, that of the newest row unless named; None is any mode."""
    own = (r for r in rows if r.run and r.experiment == experiment and mode in (None, r.mode))
    table = frame(own)
    if gpu is None and len(table):
        gpu = table.sort_values("time", kind="stable").gpu.iloc[-1]
    return table[table.gpu == gpu]


def latest_run(
    rows: Iterable[Row],
    experiment: str,
    gpu: str | None = None,
    *,
    mode: str | None = "sustained",
    competitor: str | None = None,
    enough: float = math.inf,
    share: float = 1.0,
) -> list[Row]:
    """The rows of the newest run of a command; one that raced fewer on fewer does not displace it.

    What counts are the competitors of every problem, or `competitor` alone. Runs with `enough` of
    them, or with this `share` of the fullest's, are as good.
    """
    table = runs(rows, experiment, gpu, mode)
    counted = table if competitor is None else table[table.competitor == competitor]
    entrants = counted.drop_duplicates(["run", "key", "competitor"])
    found = entrants.groupby("run").size().clip(upper=enough)
    best = found.index[found >= share * found.max()]
    return list(table.row[table.run == best[-1]]) if len(best) else []


def full_runs(rows: Iterable[Row], experiment: str, competitor: str, least: int, **chosen) -> list:
    """The rows of every run of no fewer problems."""
    table = runs(rows, experiment, **chosen)
    problems = table[table.competitor == competitor].groupby("run").key.nunique()
    kept = table[table.run.isin(problems.index[problems >= least])]
    return list(kept.sort_values("run", kind="stable").row)


def newest_races(
    rows: Iterable[Row],
    experiment: str,
    order: Sequence[str],
    gpu: str | None = None,
    mode: str | None = None,
) -> list[Row]:
    """The rows of the newest race of each problem whose id is in `order`, in that order.

    For commands whose problems are read one by one: a run may have raced only some. Of all problems
    where none of these was raced, as of another file.
    """
    table = runs(rows, experiment, gpu, mode)
    table = table[table.run == table.groupby("key").run.transform("max")]
    table = table.drop_duplicates(["key", "competitor"], keep="last")
    known = table[table.key.isin(order)]
    places = {key: place for place, key in enumerate(order)}
    table = known if len(known) else table
    return list(table.sort_values("key", key=lambda keys: keys.map(places), kind="stable").row)


def latest_ladder(rows: Iterable[Row], gpu: str | None = None, **case) -> list[Row]:
    """The newest row of each Triton rung (its first config) and of cuBLAS, slowest rung first.

    The case's `size`, `layout`, `dtype`, `precision` and `accumulate` are 4096, NT, bf16 and that
    type's own unless named. What was refused, failed or wrong is there too, as a row without a
    time, unless it was only skipped as too slow. Empty if nothing was measured.
    """
    return newest([row for row in rows if row.ladder != CUDA], _case(**case), gpu)


def latest_compare(rows: Sequence[Row], gpu: str | None = None, **case) -> list[Row]:
    """The same of Triton's rungs, CUDA's and cuBLAS; fp16 unless named, only of races with both."""
    races = {(row.time, row.environment.gpu) for row in rows if row.ladder == CUDA}
    own = [row for row in rows if (row.time, row.environment.gpu) in races]
    return newest(own, _case(**{"dtype": "fp16"} | case), gpu)


def _case(
    size: int | tuple[int, int, int] = 4096,
    layout: str = "NT",
    dtype: str = "bf16",
    precision: str = "ieee",
    accumulate: str | None = None,
) -> Case:
    sizes = (size,) * 3 if isinstance(size, int) else size
    return Case(*sizes, layout, dtype, accumulate or ACCUMULATE[dtype], precision)


def newest(rows: Sequence[Row], case: Case, gpu: str | None = None) -> list[Row]:
    """The newest row of each rung's first config and of cuBLAS: Triton's, CUDA's, cuBLAS.

    Further configs too that are the twins of one of CUDA's.

    A race of less than half the rungs counts only for those that no fuller race has: its other rows
    would stand beside a cuBLAS and a rung below that they didn't run with.
    """
    twins = {name for row in rows if row.ladder == CUDA for name in row.versus or {}}
    table = frame(
        row
        for row in rows
        if (row.competitor in (row.rung or REFERENCE, HALF) or row.competitor in twins)
        and row.outcome != "skipped"
        and (row.experiment, row.mode, row.case) == ("ladder", "sustained", case)
    )
    if table.empty:
        return []
    timed = table.groupby(["gpu", "time"]).timed.transform("sum")
    table = table.assign(full=2 * timed >= timed.max()).sort_values(["full", "time"], kind="stable")
    table = table.drop_duplicates(["gpu", "competitor"], keep="last")
    gpu = gpu or table.sort_values("time", kind="stable").gpu.iloc[-1]
    return sorted(table.row[table.gpu == gpu], key=place)


def place(row: Row) -> tuple[int, int, str]:
    """Sorts Triton's rungs, CUDA's, `tritemm.matmul`, cuBLAS."""
    ladder = {TRITON: 0 if row.number else 2, CUDA: 1, None: 3}[row.ladder]
    return ladder, row.number or 0, row.competitor


def problems_of(run: Iterable[Row], competitor: str | None = None) -> int:
    """How many problems, or cases where they have no names, a run holds of the competitor."""
    return len({r.id or str(r.case) for r in run if competitor in (None, r.competitor)})
