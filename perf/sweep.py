"""Speed against size: which cases a sweep races, and which of the recorded rows are one sweep's."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.rungs import RUNGS

from .case import Case
from .report import align, digits, label, text_table, unmeasured
from .rows import Row
from .select import all_runs, place, raced
from .twins import rivals, rung_of

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


#: What a full race of the ladders shows beside the sweeps: whole ladders, of the type that all of
#: CUDA's rungs multiply, in no fewer rounds than this.
COMPARED, COMPARED_ROUNDS = tuple(Case(n, n, n, "NT", "fp16") for n in (4096, 8192)), 5


def swept(quick: bool = False) -> list[str]:
    """The rungs that race unless others are named: Triton's from FIRST up, and their CUDA twins."""
    first = QUICK_FIRST if quick else FIRST
    triton = [kernel for kernel in RUNGS if kernel.number >= first]
    names = {kernel.name for kernel in triton}
    cuda = [k for k in CUDA_RUNGS if names & set(map(rung_of, rivals(k, CUDA_RUNGS, RUNGS)))]
    return [kernel.name for kernel in (*triton, *cuda)]


def cases(
    names: Collection[str], *, layout: str = LAYOUT, dtype: str = DTYPE, quick: bool = False
) -> dict[Case, dict[str, str]]:
    """What to race for some of the SWEEPS, in this order, and the rows' `problem` of each.

    Few sizes first and then the cheapest, so that a race that ends early has the whole range. A
    case that lies on two sweeps is one race.
    """
    rough, fine = {}, {}
    for sweep in (SWEEPS[name] for name in names):
        for size in sweep.sizes:
            problem = {"id": f"{sweep.name} {size}", "class": sweep.name, "name": sweep.title}
            there = rough if size in sweep.quick else fine
            there.setdefault(sweep.case(size, layout, dtype), problem)
    left = {} if quick else {case: fine[case] for case in sorted(fine, key=lambda c: c.flops)}
    return rough | {case: problem for case, problem in left.items() if case not in rough}


def latest_sweep(
    rows: Sequence[Row],
    name: str,
    gpu: str | None = None,
    *,
    layout: str = LAYOUT,
    dtype: str = DTYPE,
) -> list[Row]:
    """The rows of the sweep's newest run, the smallest size first; empty if there is none.

    A run does not displace one that has twice its sizes, or twice its rungs. Without `gpu`, the GPU
    of the newest row.
    """
    runs = all_runs(on(name, rows, layout, dtype), "sweep", gpu)

    def points(run: Sequence[Row]) -> int:
        return len({row.case for row in run if row.us and row.rung})

    # Without a row that is called so, other sweeps only cross this one.
    runs = [run for run in runs if any(row.problem["class"] == name for row in run)]
    most = max(map(points, runs), default=0)
    full = [run for run in runs if points(run) and 2 * points(run) >= most]
    widest = max((len(lines(run)) for run in full), default=0)
    wide = [run for run in full if 2 * len(lines(run)) >= widest]
    return wide[-1] if wide else []


def on(name: str, rows: Iterable[Row], layout: str, dtype: str) -> list[Row]:
    """The rows of cases that lie on the sweep, the smallest size first."""
    known = cases([name], layout=layout, dtype=dtype)
    return sorted((r for r in rows if r.case in known), key=lambda r: SWEEPS[name].size(r.case))


def lines(rows: Sequence[Row]) -> dict[str, str]:
    """The timed competitors' labels by their names: Triton's rungs, CUDA's, the others."""
    timed = {row.competitor: row for row in rows if row.us}
    return {row.competitor: label(row) for row in sorted(timed.values(), key=place)}


def by_case(rows: Sequence[Row]) -> dict[Case, dict[str, Row]]:
    """The rows by case and competitor."""
    return raced(rows, lambda row: row.case)


def text(races: Sequence[Sequence[Row]]) -> str:
    """A table of TFLOP/s per sweep, with a column per size."""
    parts = [text_table(race) for race in races if race[0].experiment == "ladder"]
    rows = [row for race in races for row in race if row.experiment == "sweep"]
    for name in dict.fromkeys(row.problem["class"] for row in rows):
        case = rows[0].case
        parts.append(_table(SWEEPS[name], on(name, rows, case.layout, case.dtype)))
    return "\n\n".join(parts) or "nothing was measured"


def _table(sweep: Sweep, rows: Sequence[Row]) -> str:
    races = by_case(rows)
    head = (sweep.title, *(str(sweep.size(case)) for case in races))
    body = [
        (name, *(_speed(there.get(competitor)) for there in races.values()))
        for competitor, name in lines(rows).items()
    ]
    roofs = ("roof", *(_roof(next(iter(there.values()))) for there in races.values()))
    case = rows[0].case
    title = f"{case.layout}, {case.dtype}, {rows[0].mode}, TFLOP/s"
    return "\n".join([title, align([head, *body, roofs]), *unmeasured(rows, label)])


def _speed(row: Row | None) -> str:
    return digits(row.tflops) if row and row.us else ""


def roof_tflops(row: Row) -> float | None:
    """What the roof allows the row's case, TFLOP/s; None where it was not measured."""
    return row.case.flops / row.roof.floor(row.case) / 1e6 if row.roof else None


def _roof(row: Row) -> str:
    roof = roof_tflops(row)
    return "" if roof is None else digits(roof)
