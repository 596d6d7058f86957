"""Speed against size: which cases a sweep races, and which of the recorded rows are one sweep's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence

from tritemm.rungs import RUNGS

from .case import Case
from .competitors import ladders
from .report import align, digits, label
from .rows import REFERENCE, Row
from .select import all_runs
from .session import Task

#: The rungs that race unless others are named: 01 and 02 are slow, and flat at every size.
FIRST = 3
#: The same of --quick.
QUICK_FIRST = 7

#: The layout and type that are swept unless others are named.
LAYOUT, DTYPE = "NT", "bf16"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """One picture: the dimensions in `swept` run through `sizes`, the others are `fixed`.

    `name` is the rows' class, `title` says what is fixed. `quick` are the sizes of --quick.
    """

    name: str
    title: str
    swept: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    fixed: int = 0
    log: bool = False  # of the axis of TFLOP/s, where they span several octaves

    def case(self, size: int, layout: str = LAYOUT, dtype: str = DTYPE) -> Case:
        M, N, K = (size if dimension in self.swept else self.fixed for dimension in "MNK")
        return Case(M, N, K, layout, dtype)

    def size(self, case: Case) -> int:
        """Where a case of this sweep stands on its axis."""
        return getattr(case, self.swept[0])


def _octaves(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**bit for bit in range(first, last + 1))


SWEEPS = {
    sweep.name: sweep
    for sweep in (
        Sweep(
            "squares", "M = N = K", "MNK",
            sizes=tuple(sorted((*_octaves(8, 14), 768, 1536, 3072, 6144, 12288))),
            quick=(1024, 2048, 4096, 8192),
        ),
        Sweep(
            "K", "M = N = 8192", "K",
            sizes=_octaves(6, 14), quick=(128, 512, 2048, 8192), fixed=8192,
        ),
        Sweep(
            "M", "N = K = 4096", "M",
            sizes=_octaves(0, 13), quick=(16, 128, 1024, 8192), fixed=4096, log=True,
        ),
    )
}  # fmt: skip


def tasks(
    names: Collection[str],
    *,
    layout: str = LAYOUT,
    dtype: str = DTYPE,
    only: Collection[str] = (),
    quick: bool = False,
) -> list[Task]:
    """A race per size: the first config of each rung (those in `only`, if any), and cuBLAS.

    `names` are of `SWEEPS`. All rungs of a size meet in the same rounds.
    """
    first = QUICK_FIRST if quick else FIRST
    words = only or [kernel.name for kernel in RUNGS if kernel.number >= first]
    made = []
    for sweep in (SWEEPS[name] for name in names):
        for size in sweep.quick if quick else sweep.sizes:
            case = sweep.case(size, layout, dtype)
            problem = {"id": f"{sweep.name} {size}", "class": sweep.name, "name": sweep.title}
            made.append(Task(case, functools.partial(ladders, case, only=words), problem))
    return made


def latest_sweep(
    rows: Sequence[Row],
    name: str,
    gpu: str | None = None,
    *,
    layout: str = LAYOUT,
    dtype: str = DTYPE,
) -> list[Row]:
    """The rows of the sweep's newest run, the smallest size first; empty if there is none.

    A run of fewer sizes does not displace a fuller one, nor does one of less than half the rungs
    that another run of as many sizes has. Runs of all `sizes` are as good as fuller ones. Without
    `gpu`, the GPU of the newest row.
    """
    sweep = SWEEPS[name]
    own = [
        row
        for row in rows
        if row.problem
        and row.problem["class"] == name
        and (row.case.layout, row.case.dtype) == (layout, dtype)
    ]
    runs = all_runs(own, "sweep", gpu)
    if not runs:
        return []

    def points(run: Sequence[Row]) -> int:
        return min(len(sweep.sizes), len({row.case for row in run if row.us and row.rung}))

    most = max(map(points, runs))
    fullest = [run for run in runs if points(run) == most]
    widest = max(len(lines(run)) for run in fullest)
    newest = [run for run in fullest if 2 * len(lines(run)) >= widest][-1]
    return sorted(newest, key=lambda row: sweep.size(row.case))


def lines(rows: Sequence[Row]) -> dict[str, str]:
    """The timed competitors' labels by their names: the rungs from the lowest, then cuBLAS."""
    timed = {row.competitor: row for row in rows if row.us}
    order = sorted(timed.values(), key=lambda row: (row.rung is None, row.number or 0))
    return {row.competitor: label(row) for row in order}


def by_case(rows: Sequence[Row]) -> dict[Case, dict[str, Row]]:
    """The rows by case and competitor."""
    found: dict[Case, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.case, {})[row.competitor] = row
    return found


def text(races: Sequence[Sequence[Row]]) -> str:
    """A table of TFLOP/s per sweep, one line per size."""
    rows = [row for race in races for row in race]
    own = {name: [row for row in rows if row.problem["class"] == name] for name in SWEEPS}
    parts = [_table(SWEEPS[name], found) for name, found in own.items() if found]
    return "\n\n".join(parts) or "nothing was measured"


def _table(sweep: Sweep, rows: Sequence[Row]) -> str:
    names = lines(rows)
    head = (sweep.swept[0], *names.values(), "roof", "best rung, x cuBLAS (= a tie)")
    body = [
        (
            str(sweep.size(case)),
            *(_speed(there.get(name)) for name in names),
            _roof(next(iter(there.values()))),
            _best(there),
        )
        for case, there in by_case(rows).items()
    ]
    case = rows[0].case
    title = f"{sweep.title}, {case.layout}, {case.dtype}, {rows[0].mode}, TFLOP/s"
    notes = dict.fromkeys(
        f"{label(row)} at {row.problem['id']}: {row.outcome}: {row.reason}"
        for row in rows
        if not row.us
    )
    return "\n".join([title, align([head, *body]), *notes])


def _speed(row: Row | None) -> str:
    return digits(row.tflops) if row and row.us else ""


def roof_tflops(row: Row) -> float | None:
    """What the roof allows the row's case, TFLOP/s; None where it was not measured."""
    return row.case.flops / row.roof.floor(row.case) / 1e6 if row.roof else None


def _roof(row: Row) -> str:
    roof = roof_tflops(row)
    return "" if roof is None else digits(roof)


def _best(there: Mapping[str, Row]) -> str:
    rungs = [row for name, row in there.items() if name != REFERENCE and row.ratio]
    if not rungs:
        return ""
    best = max(rungs, key=lambda row: row.ratio.p50)
    return f"{best.competitor} {'=' if best.tie else ''}{best.ratio.p50:.3f}"
