"""A picture of ratios: a bar for each problem, by class."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from . import figures, tables
from .rows import Row
from .tables import Result, Tally, median, us

#: Colour, marker and face of each verdict: they differ in lightness and in shape too.
WIN, TIE = (figures.RUNG, "o", figures.RUNG), ("#222222", "D", "white")
LOSS = (figures.CUDA_RUNG, "s", figures.CUDA_RUNG)
#: Inches: the figure, a line, margins; where the columns begin, and the axes and figures end.
WIDTH, LINE, TOP, BOTTOM = 8.0, 0.17, 1.0, 0.85
ID, NAME, SIZE, LEFT, RIGHT, VALUE = 0.1, 0.45, 2.42, 4.42, 7.5, 7.93


def verdict(result: Result) -> tuple[str, str, str]:
    """`WIN`, `TIE` or `LOSS`."""
    return {1: WIN, 0: TIE, -1: LOSS}[result.side]


def plot(
    own: Sequence[Result], words: str, cells: Callable[[Row], tuple[str, str, str]], reference: str
):
    """Every problem's ratio to the reference; the title is `words` and the mean.

    `cells` are what stands beside a problem: its id, its name, and more.
    """
    from matplotlib.transforms import blended_transform_factory

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
            _draw_problem(axes, place, result, columns, cells, reference)
        place += 1.5
    _finish(figure, axes, own, classes[-1], words, reference)
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


def _draw_problem(axes, place: float, result: Result, columns, cells, reference) -> None:
    row, ratio = result.ours, result.ratio
    ink = "black" if ratio else figures.GREY
    style = {"transform": columns, "fontsize": 8, "va": "center", "color": ink}
    for column, words in zip((ID, NAME, SIZE), cells(row), strict=True):
        axes.text(column, place, words, **style)
    if not ratio:
        alone = f"{us(row)} µs; {reference} has no time"
        became = alone if row.us else f"{row.outcome}: {row.reason}"
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


def _finish(figure, axes, own: Sequence[Result], total: Tally, words: str, reference: str) -> None:
    """Titles, what the colours mean, the axis at both ends, where the rows come from."""
    from matplotlib.lines import Line2D

    rows = [result.ours for result in own]
    words += f": geomean {total.mean} of {len(total.timed)} problems{without(total)}"
    figures.frame(figure, rows, words, ID / WIDTH, 0.22)
    names = zip(("faster", "within the noise", "slower"), total.sides, strict=True)
    handles = [
        Line2D([], [], color=color, marker=marker, mfc=face, markersize=5, label=": ".join(name))
        for (color, marker, face), name in zip((WIN, TIE, LOSS), names, strict=True)
    ]
    place = ID / WIDTH, 1 - 0.48 / figure.get_figheight()
    where = {"loc": "center left", "bbox_to_anchor": place}
    tight = {"frameon": False, "borderpad": 0, "borderaxespad": 0}
    figure.legend(handles=handles, ncols=3, fontsize=9, **where, **tight)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="x", labelsize=8, top=True, labeltop=True, length=3)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    low, high = axes.get_xlim()
    off = any(not low < result.ratio.p50 < high for result in total.timed)
    marks = f"line: p20-p80{'; arrow: further' if off else ''}"
    label = f"times {reference}'s speed in the same rounds ({marks})"
    axes.set_xlabel(label, fontsize=8.5, x=1, ha="right")


def without(total: Tally) -> str:
    count = len(total.results) - len(total.timed)
    return f" ({count} without a ratio)" if count else ""
