"""`python -m perf suite | random`: `tritemm.matmul` against cuBLAS, and peers, on many problems.

With `--peers`, and with `--batch-invariant`, the rows are an experiment with a name of its own, so
that no table of the suite takes them for a run of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
from collections.abc import Sequence

from .. import cli, figures, tables
from ..problems import SUITE, Problem, chosen, random_problems, read_suite
from ..race import Preset
from ..rows import INVARIANT, Row
from ..select import full_runs
from ..tables import Parts, Result, Table, Tally, median, us
from ..views import ENOUGH, Selection, View, full_suite, latest_of, newest_of, newest_suite

SUITE_EXAMPLES = """
python -m perf suite
python -m perf suite --class decode,ragged --kernel auto,persistent
python -m perf suite --id P1,S4 --rounds 30 --mode burst
python -m perf suite --file mine.csv --out mine.jsonl
python -m perf suite --batch-invariant --class decode
python -m perf suite --peers lt --class prefill,square
"""
RANDOM_EXAMPLES = """
python -m perf random
python -m perf random --n 60 --seed 7 --kernel tma
python -m perf random --gpus 4
python -m perf random --n 100 --peers lt
"""


def register(commands) -> None:
    described = "Race tritemm.matmul against cuBLAS on the shape suite, or on another."
    suite = (suite_problems, suite_options, text)
    Preset("suite", described, SUITE_EXAMPLES, *suite, rounds=5, most=24).register(commands)
    described = "Race tritemm.matmul against cuBLAS on log-uniform random 16-bit problems."
    # Of random problems only the means count.
    chance = (lambda args: random_problems(args.n, args.seed), random_options, text)
    Preset("random", described, RANDOM_EXAMPLES, *chance, rounds=4, most=5).register(commands)


def suite_options(command: argparse.ArgumentParser) -> None:
    cli.add_problems(command, SUITE)
    text = "race matmul(batch_invariant=True) too; rows are the experiment 'invariant'"
    command.add_argument("--batch-invariant", action="store_true", help=text)
    cli.add_kernels(command)
    cli.add_peers(command, "; rows are an experiment of their own")


def random_options(command: argparse.ArgumentParser) -> None:
    count = cli.argument(cli.positive)
    command.add_argument("--n", type=count, default=400, help="default: 400")
    cli.add_kernels(command)
    cli.add_peers(command, "; rows are an experiment of their own")


def suite_problems(args: argparse.Namespace) -> list[Problem]:
    problems = chosen(args.file, args.classes, args.ids)
    if ended := [problem.id for problem in problems if problem.case.ending]:
        told = f"{', '.join(ended)}: products with an ending are for perf race or linear"
        raise ValueError(told)
    return problems


# Tables

HEAD = ("class", "problems", "geomean", "least", "at 1.00 or more", "won", "tied", "lost")
PROBLEMS = ("problem", "", "kernel", "µs", "TFLOP/s", "GB/s", "x cuBLAS (p20-p80)", "% of roof")
PROBLEMS += ("cuBLAS µs",)


def text(rows: list[Row]) -> str:
    """Every problem, what was won and lost, and the means, for a terminal."""
    cost = _invariant(rows) if INVARIANT in tables.tritemms(rows) else ()
    return tables.text([*tables.report(rows), *cost])


def means(found: Sequence[Result]) -> Table:
    """A line for each class, and for all."""
    return Table.of(HEAD, tables.tallies(found), tables.TALLY)


def _runs(rows: list[Row], selection: Selection) -> Parts:
    """Each full run of the suite: whether they agree, and how quiet each was."""
    head = ("run", "commit", "problems", "geomean", "null test: geomean", "farthest from 1")
    body = []
    for run, own in tables.grouped(rows, lambda row: row.run).items():
        every = Tally("all", tables.against_cublas(own, selection.competitor))
        commit = (own[0].environment.commit or "unknown")[:7]
        found = tables.noise(own)
        quiet = (f"{found[0]:.4f}", f"{found[1]:.4f} ({found[2]})") if found else ("", "")
        count, mean = str(len(every.timed)), f"{every.geomean:.4f}"
        body.append((run[:16].replace("T", " "), commit, count, mean, *quiet))
    return [Table(head, body, words=2)]


def _to_auto(row: Row):
    """Auto's time over this row's."""
    return (row.versus or {}).get("auto")


def _invariant(rows: list[Row], selection: Selection | None = None) -> Parts:
    """What batch invariance costs: problems of few rows pay the most."""
    head = ("", "problems", "x cuBLAS", "least", "auto's x cuBLAS", "x auto", "least")
    found = tables.against_cublas(rows, INVARIANT)
    autos = {result.id: result for result in tables.against_cublas(rows)}
    groups = {tally.name: tally for tally in tables.tallies(found)}
    body = []
    for name in ("all 16-bit", "decode", "all"):
        if not (tally := groups.get(name)):
            continue
        both = [r for r in tally.timed if _to_auto(r.ours)]
        theirs = Tally("auto", [autos[r.id] for r in both if r.id in autos])
        alone = (dataclasses.replace(r.ours, ratio=_to_auto(r.ours)) for r in both)
        to_auto = Tally("x auto", [Result(row, {}) for row in alone])
        first = (name, tally.count, tally.mean, tally.least_at(), theirs.mean)
        body.append((*first, to_auto.mean, to_auto.least_at()))
    return [Table(head, body), tables.unmeasured(result.ours for result in found)]


# Pictures

#: Colour, marker and face of each verdict: they differ in lightness and in shape too.
WIN, TIE = (figures.RUNG, "o", figures.RUNG), ("#222222", "D", "white")
LOSS = (figures.CUDA_RUNG, "s", figures.CUDA_RUNG)
#: Inches: the figure, a line, margins; where the columns begin, and the axes and figures end.
WIDTH, LINE, TOP, BOTTOM = 8.0, 0.17, 1.0, 0.85
ID, NAME, SIZE, LEFT, RIGHT, VALUE = 0.1, 0.45, 2.42, 4.42, 7.5, 7.93


def verdict(result: Result) -> tuple[str, str, str]:
    """`WIN`, `TIE` or `LOSS`."""
    return {1: WIN, 0: TIE, -1: LOSS}[result.side]


def plot_suite(rows: list[Row], selection: Selection):
    """Every problem's ratio to cuBLAS, by class."""
    from matplotlib.transforms import blended_transform_factory

    own = [Result(row, {}) for row in figures.shown(rows, selection.competitor)]
    classes = tables.tallies(own)
    groups = [t for t in classes if t.name in {r.ours.problem["class"] for r in own}]
    count = sum(len(tally.results) + 1.5 for tally in groups) - 0.5
    height = TOP + BOTTOM + LINE * count
    figure, axes = figures.blank(height, WIDTH, layout="none")
    axes.set_position(
        (LEFT / WIDTH, BOTTOM / height, (RIGHT - LEFT) / WIDTH, LINE * count / height)
    )
    axes.patch.set_visible(False)  # the bands of the heads lie under it
    ends = [v for r in own if r.ratio for v in (r.ratio.p20, r.ratio.p80)]
    figures.ratio_axis(axes.xaxis, ends, (0.4, 3.0))
    axes.set_ylim(count - 0.5, -0.5)
    figures.reference(axes, across=False)
    # x in inches from the figure's left edge, y in lines.
    columns = blended_transform_factory(figure.dpi_scale_trans, axes.transData)
    place = 0.0
    for tally in groups:
        _draw_head(axes, place, tally, columns)
        for result in tally.results:
            place += 1
            _draw_problem(axes, place, result, columns)
        place += 1.5
    _finish(figure, axes, own, classes[-1], height)
    return figure


def _draw_head(axes, place: float, tally: Tally, columns) -> None:
    from matplotlib.patches import Rectangle

    band = Rectangle((0, place - 0.5), WIDTH, 1, transform=columns, clip_on=False, zorder=0)
    band.set(facecolor="#efefef", edgecolor="none")
    axes.add_patch(band)
    bold = {"transform": columns, "fontsize": 8.5, "va": "center", "weight": "bold"}
    axes.text(ID, place, tally.name, **bold)
    words = f"geomean of {len(tally.timed)}; {tally.reached()} at 1.0 or more"
    plain = bold | {"fontsize": 8, "weight": "normal"}
    axes.text(SIZE, place, words if tally.timed else "no ratio", **plain)
    if tally.timed:
        axes.text(VALUE, place, tally.mean, ha="right", **bold)
        axes.plot(tally.geomean, place, marker="|", color="black", markersize=10, mew=2.2)


def _draw_problem(axes, place: float, result: Result, columns) -> None:
    row, ratio = result.ours, result.ratio
    ink = "black" if ratio else figures.GREY
    style = {"transform": columns, "fontsize": 8, "va": "center", "color": ink}
    name = textwrap.shorten(row.problem["name"], 31, placeholder=" …")
    for column, words in ((ID, result.id), (NAME, name), (SIZE, compact(row))):
        axes.text(column, place, words, **style)
    if not ratio:
        became = f"{us(row)} µs; cuBLAS has no time" if row.us else f"{row.outcome}: {row.reason}"
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over cuBLAS's line
        words = textwrap.shorten(became, 60, placeholder=" …")
        axes.text(LEFT + 0.08, place, words, style="italic", bbox=box, **style)
        return
    color, marker, face = verdict(result)
    axes.barh(place, ratio.p50 - 1, left=1, height=0.62, color=color, alpha=0.25, zorder=2)
    axes.plot([ratio.p20, ratio.p80], [place, place], color=color, linewidth=1.1, zorder=3)
    low, high = axes.get_xlim()
    at, size = ratio.p50, 4
    if not low < at < high:
        at, marker = (high / 1.03, ">") if at >= high else (low * 1.03, "<")
        size, face = 6, color
    axes.plot(at, place, marker=marker, color=color, mfc=face, markersize=size, zorder=4)
    axes.text(VALUE, place, median(ratio), ha="right", **style)


def compact(row: Row) -> str:
    """`8192x28672x4096 NT bf16`: the batch, if any, first; the output's type where it differs."""
    case = row.case
    output = f"→{case.out_dtype}" if case.out_dtype else ""
    return f"{case.size.replace(' ', '')} {case.layout} {case.kind}{output}"


def _finish(figure, axes, own: Sequence[Result], total: Tally, height: float) -> None:
    """Titles, what the colours mean, the axis at both ends, where the rows come from."""
    from matplotlib.lines import Line2D

    rows = [result.ours for result in own]
    words = f"{figures.called(rows)} over cuBLAS, {rows[0].mode}: geomean {total.mean}"
    words += f" of {len(total.timed)} problems{_without(total)}"
    figures.frame(figure, rows, words, ID / WIDTH, 0.22)
    names = zip(("faster", "within the noise", "slower"), total.sides, strict=True)
    handles = [
        Line2D([], [], color=color, marker=marker, mfc=face, markersize=5, label=": ".join(name))
        for (color, marker, face), name in zip((WIN, TIE, LOSS), names, strict=True)
    ]
    where = {"loc": "center left", "bbox_to_anchor": (ID / WIDTH, 1 - 0.48 / height)}
    tight = {"frameon": False, "borderpad": 0, "borderaxespad": 0}
    figure.legend(handles=handles, ncols=3, fontsize=9, **where, **tight)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="x", labelsize=8, top=True, labeltop=True, length=3)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    low, high = axes.get_xlim()
    off = any(not low < result.ratio.p50 < high for result in total.timed)
    marks = f"line: p20-p80{'; arrow: further' if off else ''}"
    label = f"times cuBLAS's speed in the same rounds ({marks})"
    axes.set_xlabel(label, fontsize=8.5, x=1, ha="right")


def _without(total: Tally) -> str:
    count = len(total.results) - len(total.timed)
    return f" ({count} without a ratio)" if count else ""


def plot_random(rows: list[Row], selection: Selection):
    """How the ratio to cuBLAS goes with size and alignment.

    Across: microseconds that the roof allows; floating-point operations where no roof is known.
    """
    own = [Result(row, {}) for row in figures.shown(rows, selection.competitor)]
    *classes, total = tables.tallies(own)
    roofed = all(result.ours.roof for result in total.timed)
    figure, axes = figures.blank(5.2)
    figures.reference(axes)
    classes = sorted(classes, key=lambda tally: _alignment(tally.name), reverse=True)
    for tally, (color, marker) in zip(classes, figures.CLASSES, strict=False):
        points = [result.ours for result in tally.timed]
        across = [row.roof.floor(row.case) if roofed else row.case.flops for row in points]
        label = f"{tally.name}: geomean {tally.mean} of {len(points)}"
        style = {"s": 20, "marker": marker, "color": color, "alpha": 0.75, "linewidths": 0}
        up = [row.ratio.p50 for row in points]
        axes.scatter(across, up, zorder=2, label=label if points else tally.name, **style)
    axes.set_xscale("log")
    figures.ratio_axis(axes.yaxis, [result.ratio.p50 for result in total.timed])
    across = "microseconds at the roof" if roofed else "floating-point operations"
    axes.set_xlabel(across, fontsize=10)
    axes.set_ylabel("times cuBLAS's speed in the same rounds", fontsize=10)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if roofed else f"{x:.0e}")
    figures.legend(axes, 2)
    words = f"{figures.called(r.ours for r in own)} over cuBLAS, {rows[0].mode}, "
    words += f"{len(total.timed)} random problems{_without(total)}"
    share = total.share().rpartition(", ")[2]
    figures.title(figure, f"{words}:\n{share} at 1.0 or more, geomean {total.mean}")
    figures.caption(figure, [result.ours for result in own])
    return figure


def _alignment(group: str) -> int:
    """What a class's dimensions are multiples of, from its name: `multiples of 64`, `any size`."""
    found = re.search(r"\d+", group)
    return int(found[0]) if found else 1


# Views


def _summary(rows: list[Row], s: Selection) -> Parts:
    found = tables.against_cublas(rows, s.competitor)
    return [means(found), tables.quiet(rows), tables.commands(rows)]


def _problems(rows: list[Row], s: Selection) -> Parts:
    """Every problem; of what has no time, in a word, what became of it."""
    found = tables.against_cublas(rows, s.competitor)
    untimed = tables.unmeasured(result.ours for result in found)
    table = Table.of(PROBLEMS, found, tables.RESULT, words=3)
    return [table, untimed, tables.commands(rows)]


def _all_runs(rows: Sequence[Row], s: Selection) -> list[Row]:
    return full_runs(rows, "suite", s.competitor, full_suite(), gpu=s.gpu, mode=s.mode)


VIEWS = {
    "suite": View(newest_suite, _summary, plot_suite, "suite 2"),
    "problems": View(newest_suite, _problems),
    "runs": View(_all_runs, _runs),
    "random": View(latest_of("random", lambda: ENOUGH), _summary, plot_random, "random 2"),
    "invariant": View(
        newest_of("invariant", read_suite),
        lambda rows, s: [*_invariant(rows), tables.commands(rows)],
    ),
}
