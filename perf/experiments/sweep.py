"""`python -m perf sweep`: both ladders, `tritemm.matmul` and cuBLAS over squares, K and M."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.rungs import RUNGS

from .. import cli, figures, rungs, session
from ..case import Case
from ..competitors import rivals, rung_of
from ..engine import Plan
from ..problems import SUITE, chosen
from ..rows import CUDA, Row
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
        """A case's place on the axis of this sweep."""
        return getattr(case, self.swept[0])

    def holds(self, case: Case) -> bool:
        """Whether the case belongs to it, whichever sweep the file lists it under."""
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
    text = "time limit: a few sizes of every sweep come first, then the cheapest"
    minutes = {"type": cli.argument(float), "default": math.inf, "metavar": "M"}
    command.add_argument("--minutes", **minutes, help=text)
    cli.add_measurement(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    try:
        every = chosen(args.file, args.classes, args.ids)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    only = args.only or swept()

    def measure(there: session.Session) -> None:
        built = rungs.Built.of(args.ladders, only)
        tasks = [built.task(p.case, {"only": only, "auto": True}, p) for p in every]
        there.measure_roofs()
        there.measure(tasks, session.planned(args, PLAN), minutes=args.minutes)

    return session.run(args, "sweep", measure, rungs.text)


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


# The picture

#: The line of CUDA's ladder: its fastest rung of each size.
CUDA_BEST = "the fastest CUDA rung"


def report(rows: list[Row]):
    """TFLOP/s over the sizes as `triton.testing` plots and tabulates them: a figure, a DataFrame.

    Lines: Triton's rungs in their first configs, the fastest of CUDA's, `tritemm.matmul`, cuBLAS
    and the roof; each with its band from p20 to p80.
    """
    import matplotlib.pyplot as plt
    import triton

    timed = [row for row in rows if row.us and not row.competitor.endswith("]")]
    if not timed:
        raise figures.NothingMeasured
    # Some cases of two sweeps have the other's name.
    names = [(row.problem["class"], row.problem["name"]) for row in timed]
    name, title = max(names, key=names.count)
    found: dict[tuple, tuple[float, ...]] = {}
    for row in sorted(timed, key=lambda row: (place(row), -row.us.p50)):
        line = CUDA_BEST if row.ladder == CUDA else label(row)
        speeds = (row.us.p50, row.us.p80, row.us.p20)
        found[row.case, line] = tuple(row.case.flops / us / 1e6 for us in speeds)
    for case, roof in {row.case: row.roof for row in timed if row.roof}.items():
        found[case, "roof"] = (case.flops / roof.floor(case) / 1e6,) * 3
    lines = list(dict.fromkeys(line for _, line in found))
    dashes = {"cuBLAS": "-", "roof": "--", CUDA_BEST: ":", "tritemm.matmul": "-."}
    color = {line: plt.cm.turbo(place / len(lines)) for place, line in enumerate(lines)}
    sweep = SWEEPS[name]
    swept = sorted("MNK", key=lambda dimension: dimension not in sweep.swept)
    cases = dict.fromkeys(row.case for row in timed)
    bench = triton.testing.Benchmark(
        x_names=swept,
        x_vals=[tuple(getattr(case, dimension) for dimension in swept) for case in cases],
        x_log=True,
        y_log=sweep.log,
        line_arg="line",
        line_vals=lines,
        line_names=lines,
        styles=[("black", dashes[n]) if n in dashes else (color[n], "-") for n in lines],
        xlabel=f"{title}; {rows[0].case.layout}, {rows[0].case.dtype}, {rows[0].mode}",
        ylabel="TFLOP/s",
        plot_name=name,
        args={},
    )

    def speed(line: str, **size: int) -> tuple[float, ...]:
        case = next(case for case in cases if size.items() <= vars(case).items())
        return found.get((case, line), (math.nan,) * 3)

    (table,) = triton.testing.perf_report([bench])(speed).run(return_df=True)
    figure = plt.gcf()
    plt.close(figure)
    figure.set_size_inches(8, 5)
    figure.set_layout_engine("constrained")
    figure.axes[0].set_xscale("log", base=2)
    beside = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "frameon": False}
    figure.axes[0].legend(figure.axes[0].lines, lines, fontsize=8, **beside)
    figures.caption(figure, rows)
    return figure, table


@dataclasses.dataclass(frozen=True)
class SweepView(View):
    """Writes the TFLOP/s to a CSV file beside its picture."""

    def draw(self, rows: list[Row], path: Path, selection: Selection) -> Path:
        figure, table = report(rows)
        figures.save(figure, path, rows, self.drawing)
        table.to_csv(Path(path).with_suffix(".csv"), index=False, float_format="%.4g")
        return Path(path)


def _newest(name: str, rows: Sequence[Row], s: Selection) -> list[Row]:
    return latest_sweep(rows, name, s.gpu, **s.given("layout", "dtype"))


VIEWS = {
    f"sweep-{name}": SweepView(functools.partial(_newest, name), None, report, "sweep 4")
    for name in SWEEPS
}
