"""`python -m perf sweep`: both ladders, `tritemm.matmul` and cuBLAS over squares, K and M."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.rungs import RUNGS

from .. import cli, figures, rungs, session, tables
from ..case import Case
from ..competitors import rivals, rung_of
from ..engine import Plan
from ..problems import SUITE, Problem, chosen
from ..rows import CUDA, REFERENCE, Row
from ..rungs import label
from ..select import place, runs
from ..views import Selection, View

#: The products: few sizes of every sweep come first, then the cheapest, so that a race that ends
#: early has the whole range.
SIZES = SUITE.with_name("sweep.csv")
#: The rungs that race unless others are named: 01 and 02 are slow, and flat at every size.
FIRST = 3
#: Many races in a row keep the card hot, so that each can be short.
ROUNDS, PLAN = 5, Plan(replay=0.02, settle=1.0)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """One picture: the dimensions in `swept` run through sizes, the others are `fixed`."""

    swept: str
    fixed: int = 0
    log: bool = False  # of the axis of TFLOP/s, where they span several octaves

    def size(self, case: Case) -> int:
        """Where a case of this sweep stands on its axis."""
        return getattr(case, self.swept[0])

    def holds(self, case: Case) -> bool:
        """Whether the case lies on it, of whichever sweep it is in the file."""
        wanted = {d: self.size(case) if d in self.swept else self.fixed for d in "MNK"}
        return all(getattr(case, dimension) == size for dimension, size in wanted.items())


#: By the classes of the file.
SWEEPS = {"squares": Sweep("MNK"), "K": Sweep("K", 8192), "M": Sweep("M", 4096, log=True)}

EXAMPLES = """
python -m perf sweep
python -m perf sweep --class squares,K
python -m perf sweep --class M --only pipelined,persistent
python -m perf sweep --ladders triton --quick
python -m perf sweep --rounds 3 --minutes 9
"""


def register(commands) -> None:
    described = "Race both ladders and tritemm.matmul against cuBLAS over sizes, sustained."
    command = cli.add_command(commands, "sweep", run, described, EXAMPLES)
    cli.add_problems(command, SIZES)
    rungs.add_ladders(command, f"{FIRST:02d} and up, and their CUDA twins")
    text = "end within so many: few sizes of every sweep come first, then the cheapest"
    minutes = {"type": cli.argument(float), "default": math.inf, "metavar": "M"}
    command.add_argument("--minutes", **minutes, help=text)
    cli.add_shared(command, ROUNDS, modes=False)


def run(args: argparse.Namespace) -> int:
    try:
        every = chosen(args.file, args.classes, args.ids)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    only = args.only or swept()

    def measure(there: session.Session, mine: Sequence[Problem]) -> None:
        built = rungs.Built.of(args.ladders, only)
        tasks = [built.task(p.case, {"only": only, "auto": True}, p) for p in mine]
        there.measure_roofs()
        there.measure(tasks, session.planned(args, PLAN), minutes=args.minutes)

    return session.run(args, "sweep", every, measure, rungs.text)


def swept() -> list[str]:
    """The rungs that race unless others are named: Triton's from FIRST up, and their CUDA twins."""
    triton = [kernel for kernel in RUNGS if kernel.number >= FIRST]
    names = {kernel.name for kernel in triton}
    cuda = [k for k in CUDA_RUNGS if names & set(map(rung_of, rivals(k, CUDA_RUNGS, RUNGS)))]
    return [kernel.name for kernel in (*triton, *cuda)]


# What is shown


def latest_sweep(
    rows: Sequence[Row], name: str, gpu: str | None = None, layout: str = "NT", dtype: str = "bf16"
) -> list[Row]:
    """The rows of the sweep's newest run, the smallest size first; empty if there is none.

    A run does not displace one that has twice its sizes, or twice its rungs.
    """
    sweep = SWEEPS[name]
    own = [row for row in rows if (row.case.layout, row.case.dtype) == (layout, dtype)]
    own = [row for row in own if sweep.holds(row.case)]
    table = runs(sorted(own, key=lambda row: sweep.size(row.case)), "sweep", gpu)
    # Without a row that is called so, other sweeps only cross this one.
    called = {row.run for row in table.row if row.problem["class"] == name}
    timed = table[table.timed & table.run.isin(called)]
    points = timed[timed.rung.notna()].groupby("run").case.nunique()
    full = points.index[2 * points >= points.max()]
    wide = timed[timed.run.isin(full)].groupby("run").competitor.nunique()
    kept = wide.index[2 * wide >= wide.max()]
    return list(table.row[table.run == kept[-1]]) if len(kept) else []


def lines(rows: Iterable[Row]) -> dict[str, str]:
    """The timed competitors' labels by their names: Triton's rungs, CUDA's, the others."""
    timed = {row.competitor: row for row in rows if row.us}
    return {row.competitor: label(row) for row in sorted(timed.values(), key=place)}


def by_case(rows: Iterable[Row]) -> dict[Case, dict[str, Row]]:
    """The rows by case and competitor."""
    return tables.raced(rows, lambda row: row.case)


def speeds(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    """TFLOP/s of each case, by the competitor's label, and the roof's; None where there is none."""
    races = by_case(rows).values()
    found = {
        label: [race[name].tflops if name in race else None for race in races]
        for name, label in lines(rows).items()
    }
    return found | {"roof": [roof_tflops(race) for race in races]}


def roof_tflops(race: dict[str, Row]) -> float | None:
    """What the roof allows a race's case, TFLOP/s; None where it was not measured."""
    row = next(iter(race.values()))
    return row.case.flops / row.roof.floor(row.case) / 1e6 if row.roof else None


# Pictures

COLUMNS = 3
#: Of the roof, and of the twins in one panel, in turn.
ROOF = {"color": "#222222", "linestyle": (0, (5, 2)), "linewidth": 0.8}
STYLES = (("-", "s"), ("--", "^"), (":", "D"), ("-.", "v"), ((0, (1, 1)), "P"))


def plot(rows: list[Row], selection: Selection):
    """Small panels on the same axes: one for each Triton rung, with its CUDA twins."""
    from matplotlib.figure import Figure

    if not any(row.us for row in rows):
        raise figures.NothingMeasured
    # Some that lie on two sweeps have the other's name.
    names = [(row.problem["class"], row.problem["name"]) for row in rows]
    name, title = max(names, key=names.count)
    sweep, races, found = SWEEPS[name], by_case(rows), panels(rows)
    count = math.ceil(len(found) / COLUMNS)
    figure = Figure(figsize=(8, 1.2 + 1.4 * count), layout="constrained")
    grid = figure.subplots(count, COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    for axes, (rung, own) in zip(grid, found.items(), strict=False):
        _panel(axes, sweep, races, own)
        axes.set_title(rung, fontsize=8, loc="left", pad=2)
    for axes in grid[len(found) :]:
        axes.remove()
    for axes in grid[max(0, len(found) - COLUMNS) : len(found)]:
        axes.tick_params(labelbottom=True)
    _dress(figure, grid[0], sweep, title, rows)
    figures.caption(figure, rows)
    return figure


def panels(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Panels by title, each with a row of its competitors: `tritemm.matmul`, then every family."""
    names = lines(rows)
    rows = sorted(rows, key=lambda row: len(row.versus or ()))  # twins may lack at some sizes
    timed = {row.competitor: row for row in rows if row.us}
    found = {names[name]: {name: timed[name]} for name in names if name == "auto"}
    for family in rungs.families([timed[name] for name in names]):
        found[names[family[0].competitor]] = {row.competitor: row for row in family}
    return found


def _panel(axes, sweep: Sweep, races: dict, own: dict[str, Row]) -> None:
    """cuBLAS and the roof in grey, Triton with its band from p20 to p80, each twin in its style."""
    figures.plain(axes, 7)
    _line(axes, sweep, races, REFERENCE, color=figures.GREY, linewidth=2.2)
    roofs = [(sweep.size(case), roof_tflops(race)) for case, race in races.items()]
    if all(tflops for _, tflops in roofs):
        axes.plot(*zip(*roofs, strict=True), **ROOF)
    styles = iter(STYLES * len(own))
    for name, row in own.items():
        look = {"color": figures.RUNG, "marker": "o"}
        if row.ladder == CUDA:
            dashes, marker = next(styles)
            look = {"linestyle": dashes, "marker": marker, "label": name}
            look["color"] = figures.CUDA_RUNG
        _line(axes, sweep, races, name, linewidth=1, markersize=2.2, **look)
    if any(row.ladder == CUDA for row in own.values()):
        axes.legend(fontsize=5.5, frameon=False, handlelength=2.4, labelspacing=0.2)


def _line(axes, sweep: Sweep, races: dict, name: str, **look) -> None:
    found = [(sweep.size(c), there[name]) for c, there in races.items() if name in there]
    timed = [(size, row) for size, row in found if row.us]
    sizes = [size for size, _ in timed]
    axes.plot(sizes, [row.tflops for _, row in timed], **look)
    low, high = ([r.case.flops / getattr(r.us, p) / 1e6 for _, r in timed] for p in ("p80", "p20"))
    axes.fill_between(sizes, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _dress(figure, axes, sweep: Sweep, title: str, rows: Sequence[Row]) -> None:
    """Dress all panels: sizes as octaves, some of them named; one legend, one title."""
    from matplotlib.lines import Line2D

    sizes = [sweep.size(row.case) for row in rows]
    octaves = [2**bit for bit in range(31) if min(sizes) <= 2**bit <= max(sizes)]
    figures.octaves(axes.xaxis, {n: "" if i % 3 else str(n) for i, n in enumerate(octaves)})
    if sweep.log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    kind = f"{rows[0].case.layout}, {rows[0].case.dtype}, {rows[0].mode}"
    figures.title(figure, f"TFLOP/s, {title}, {kind} (band: p20-p80)", 10)
    looks = {
        "Triton": {"color": figures.RUNG, "marker": "o", "markersize": 3},
        "CUDA twins": {"color": figures.CUDA_RUNG, "marker": "s", "markersize": 3},
        "cuBLAS": {"color": figures.GREY, "linewidth": 2.2},
        "roof": ROOF,
    }
    if not any(row.ladder == CUDA for row in rows):
        del looks["CUDA twins"]
    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    beside = {"loc": "outside upper right", "ncols": 4, "fontsize": 7, "handlelength": 1.6}
    figure.legend(handles=handles, columnspacing=1, frameon=False, **beside)


@dataclasses.dataclass(frozen=True)
class SweepView(View):
    """Writes the TFLOP/s to a CSV file beside its picture."""

    def draw(self, rows: list[Row], path: Path, selection: Selection) -> Path:
        found = super().draw(rows, path, selection)
        table = speeds(rows)
        with open(Path(path).with_suffix(".csv"), "w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow([*"MNK", *(f"{name} (TFLOP/s)" for name in table)])
            for case, *cells in zip(by_case(rows), *table.values(), strict=True):
                out.writerow([case.M, case.N, case.K, *(f"{c:.4g}" if c else "" for c in cells)])
        return found


def _newest(name: str, rows: Sequence[Row], s: Selection) -> list[Row]:
    return latest_sweep(rows, name, s.gpu, **s.given("layout", "dtype"))


VIEWS = {
    f"sweep-{name}": SweepView(functools.partial(_newest, name), None, plot, "sweep 3")
    for name in SWEEPS
}
