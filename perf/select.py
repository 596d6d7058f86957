"""Which of the recorded rows a table or a picture shows: the newest that belong together."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TypeVar

from .case import ACCUMULATE, Case
from .rows import CUDA, HALF, REFERENCE, TRITON, Row

T = TypeVar("T", bound=Hashable)


def latest_ladder(
    rows: Sequence[Row],
    gpu: str | None = None,
    *,
    size: int | tuple[int, int, int] = 4096,
    layout: str = "NT",
    dtype: str = "bf16",
    precision: str = "ieee",
    accumulate: str | None = None,
) -> list[Row]:
    """The newest row of each Triton rung (its first config) and of cuBLAS, slowest rung first.

    Races of a few rungs (`--only`) don't displace fuller ones.

    Without `gpu`, the GPU of the newest row. What was refused, failed or wrong is there too, as a
    row without a time, unless it was only skipped as too slow. Empty if nothing was measured.
    """
    case = _case(size, layout, dtype, precision, accumulate)
    return newest([row for row in rows if row.ladder != CUDA], case, gpu)


def latest_compare(
    rows: Sequence[Row],
    gpu: str | None = None,
    *,
    size: int | tuple[int, int, int] = 4096,
    layout: str = "NT",
    dtype: str = "fp16",
    accumulate: str | None = None,
) -> list[Row]:
    """The same of both ladders: Triton's rungs, CUDA's, cuBLAS; only of races with both."""
    races = {(row.time, row.environment.gpu) for row in rows if row.ladder == CUDA}
    case = _case(size, layout, dtype, "ieee", accumulate)
    return newest([row for row in rows if (row.time, row.environment.gpu) in races], case, gpu)


def _case(size, layout, dtype, precision, accumulate) -> Case:
    M, N, K = (size,) * 3 if isinstance(size, int) else size
    return Case(M, N, K, layout, dtype, accumulate or ACCUMULATE[dtype], precision)


def newest(rows: Sequence[Row], case: Case, gpu: str | None = None) -> list[Row]:
    """The newest row of each rung's first config and of cuBLAS: Triton's, CUDA's, cuBLAS.

    Further configs too that are the twins of one of CUDA's.

    A race of less than half the rungs counts only for those that no fuller race has: its other rows
    would stand beside a cuBLAS and a rung below that they didn't run with.
    """
    twins = {name for row in rows if row.ladder == CUDA for name in row.versus or {}}
    rows = [
        row
        for row in rows
        if (row.competitor in (row.rung or REFERENCE, HALF) or row.competitor in twins)
        and row.outcome != "skipped"
        and row.experiment == "ladder"
        and row.mode == "sustained"
        and row.case == case
    ]
    timed = collections.Counter((row.environment.gpu, row.time) for row in rows if row.us)
    largest = max(timed.values(), default=0)

    def rank(row: Row) -> tuple[bool, str]:
        return 2 * timed[row.environment.gpu, row.time] >= largest, row.time

    newest: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=rank):
        newest[row.environment.gpu, row.competitor] = row
    if not newest:
        return []
    if gpu is None:
        gpu = max(newest.values(), key=lambda row: row.time).environment.gpu
    own = [row for (name, _), row in newest.items() if name == gpu]
    return sorted(own, key=place)


def place(row: Row) -> tuple[int, int, str]:
    """Sorts Triton's rungs, CUDA's, `tritemm.matmul`, cuBLAS."""
    ladder = {TRITON: 0 if row.number else 2, CUDA: 1, None: 3}[row.ladder]
    return ladder, row.number or 0, row.competitor


def latest_run(
    rows: Sequence[Row],
    experiment: str,
    gpu: str | None = None,
    *,
    mode: str = "sustained",
    competitor: str | None = None,
    enough: int = 1,
) -> list[Row]:
    """The rows of the newest run of a command; a run of fewer problems does not displace it.

    Runs of `enough` problems are as good as fuller ones. With `competitor`, only the problems that
    it was raced on, or refused, count. Without `gpu`, the GPU of the newest row.
    """
    runs = all_runs(rows, experiment, gpu, mode=mode)
    counts = [problems_of(run, competitor) for run in runs]
    if not any(counts):
        return []
    best = max(range(len(runs)), key=lambda i: (min(enough, counts[i]), i))
    return runs[best]


def newest_races(
    rows: Sequence[Row],
    experiment: str,
    order: Sequence[str],
    gpu: str | None = None,
    *,
    mode: str | None = None,
) -> list[Row]:
    """The rows of the newest race of each problem whose id is in `order`, in that order.

    For commands whose problems are read one by one: a run may have raced only some. Of all problems
    where none of these was raced, as of another file. Without `gpu`, the GPU of the newest row.
    """
    newest: dict[str, dict[str, Row]] = {}
    for run in all_runs(rows, experiment, gpu, mode=mode):
        newest |= raced(run)
    names = [name for name in order if name in newest] or newest
    return [row for name in names for row in newest[name].values()]


def newest_of_all(
    rows: Sequence[Row], experiment: str, modes: Collection[str], gpu: str | None = None
) -> list[Row]:
    """The rows in these `modes` of the newest run that has a time in each; empty if none has."""
    own = [row for row in rows if row.mode in modes]
    for run in reversed(all_runs(own, experiment, gpu, mode=None)):
        if {row.mode for row in run if row.us} == set(modes):
            return run
    return []


def all_runs(
    rows: Sequence[Row], experiment: str, gpu: str | None = None, *, mode: str | None = "sustained"
) -> list[list[Row]]:
    """The rows of each run of a command on one GPU, the oldest run first; None is any mode."""
    own = [
        row for row in rows if row.run and row.experiment == experiment and mode in (None, row.mode)
    ]
    if not own:
        return []
    gpu = gpu or max(own, key=lambda row: row.time).environment.gpu
    runs: dict[str, list[Row]] = {}
    for row in own:
        if row.environment.gpu == gpu:
            runs.setdefault(row.run, []).append(row)
    return [runs[key] for key in sorted(runs)]


def raced(
    rows: Sequence[Row], key: Callable[[Row], T] = lambda row: row.problem["id"]
) -> dict[T, dict[str, Row]]:
    """The rows of each problem, or of what `key` tells apart, by competitor."""
    found: dict[T, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(key(row), {})[row.competitor] = row
    return found


def problems_of(run: Sequence[Row], competitor: str | None = None) -> int:
    """How many problems, or cases where they have no names, a run holds of the competitor."""
    own = [row for row in run if competitor in (None, row.competitor)]
    return len({(row.problem or {}).get("id", row.case) for row in own})
