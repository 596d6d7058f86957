"""The shape suite as a chart: every problem's ratio to cuBLAS, by class."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ..case import Case
from ..report import digits, origin
from ..roofline import name
from ..rows import Row
from ..summary import Summary, summarise
from .figures import CUDA_RUNG, GREY, RUNG, called, ratio_limits, ratio_ticks, save, shown

#: Name and version of the drawing, for the digest: another drawing makes every figure outdated.
DRAWING = "suite 1"

#: Colour, marker and face of each verdict: they differ in lightness and in shape too.
WIN, TIE, LOSS = (RUNG, "o", RUNG), ("#222222", "D", "white"), (CUDA_RUNG, "s", CUDA_RUNG)

#: Inches: the figure, a line, margins; where the columns begin, and the axes and figures end.
WIDTH, LINE, TOP, BOTTOM = 8.0, 0.17, 1.0, 0.85
ID, NAME, SIZE, LEFT, RIGHT, VALUE = 0.1, 0.45, 2.42, 4.42, 7.5, 7.93
#: Characters that fit the name's column, and the room from the axes' left end on.
NAME_WIDTH, REASON_WIDTH = 31, 60
#: The least and the largest ratio that the axis reaches: one outlier must not press all the others
#: together. An arrowhead stands for what is beyond.
BOUNDS = (0.4, 3.0)


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of the chart: the head of a class, or a problem; `place` counts lines from the top."""

    place: float
    head: Summary | None = None
    row: Row | None = None


def plot_suite(rows: Sequence[Row], path: Path, competitor: str | None = None) -> None:
    """Draw the rows of one run of `suite` into `path` (.png or .svg), cuBLAS at 1.

    `competitor` is "auto" unless named. ValueError if nothing of it was measured.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    own = shown(rows, competitor)
    lines = layout(own)
    count = lines[-1].place + 1
    height = TOP + BOTTOM + LINE * count
    figure = Figure(figsize=(WIDTH, height))
    axes = figure.add_axes(
        (LEFT / WIDTH, BOTTOM / height, (RIGHT - LEFT) / WIDTH, LINE * count / height)
    )
    axes.patch.set_visible(False)  # the bands of the heads lie under it
    ratios = [row.ratio for row in own if row.ratio]
    low, high = ratio_limits([v for r in ratios for v in (r.p20, r.p80)])
    low, high = max(low, BOUNDS[0]), min(high, BOUNDS[1])
    axes.set_xscale("log", base=2)
    axes.set_xlim(low, high)
    axes.set_ylim(count - 0.5, -0.5)
    ratio_ticks(axes.xaxis, low, high)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.axvline(1, color=GREY, linewidth=1.4, zorder=1)
    for line in lines:
        (_draw_head if line.head else _draw_problem)(figure, axes, line)
    _finish(figure, axes, own, height)
    save(figure, path, rows, DRAWING)


def layout(rows: Sequence[Row]) -> list[Line]:
    """The classes in the order of appearance: a head, its problems, half a line of air."""
    heads = {summary.name: summary for summary in summarise(rows)}
    lines, place = [], 0.0
    for group in dict.fromkeys(row.problem["class"] for row in rows):
        lines.append(Line(place, head=heads[group]))
        for row in rows:
            if row.problem["class"] == group:
                place += 1
                lines.append(Line(place, row=row))
        place += 1.5
    return lines


def verdict(row: Row) -> tuple[str, str, str]:
    """`WIN`, `TIE` or `LOSS`, of a row with a ratio."""
    if row.tie:
        return TIE
    return WIN if row.ratio.p50 > 1 else LOSS


def compact(case: Case) -> str:
    """`8192x28672x4096 NT bf16`: the batch, if any, first; the output's type where it differs."""
    output = f"→{case.out_dtype}" if case.out_dtype else ""
    return f"{case.size.replace(' ', '')} {case.layout} {name(case)}{output}"


def _draw_head(figure, axes, line: Line) -> None:
    from matplotlib.patches import Rectangle

    transform, head = _columns(figure, axes), line.head
    band = Rectangle((0, line.place - 0.5), WIDTH, 1, transform=transform, clip_on=False, zorder=0)
    band.set(facecolor="#efefef", edgecolor="none")
    axes.add_patch(band)
    bold = {"transform": transform, "fontsize": 8.5, "va": "center", "weight": "bold"}
    axes.text(ID, line.place, head.name, **bold)
    count = f"geomean of {head.timed}; {head.reached} at 1.0 or more" if head.timed else "no ratio"
    axes.text(SIZE, line.place, count, transform=transform, fontsize=8, va="center")
    if head.timed:
        axes.text(VALUE, line.place, f"{head.geomean:.3f}", ha="right", **bold)
        axes.plot(head.geomean, line.place, marker="|", color="black", markersize=10, mew=2.2)


def _draw_problem(figure, axes, line: Line) -> None:
    row, place, transform = line.row, line.place, _columns(figure, axes)
    ink = "black" if row.ratio else GREY
    text = {"transform": transform, "fontsize": 8, "va": "center", "color": ink}
    title = row.problem["name"]
    if len(title) > NAME_WIDTH:
        title = title[: NAME_WIDTH - 1].rstrip() + "…"
    for column, words in ((ID, row.problem["id"]), (NAME, title), (SIZE, compact(row.case))):
        axes.text(column, place, words, **text)
    if not row.ratio:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}  # over cuBLAS's line
        axes.text(LEFT + 0.08, place, _outcome(row), style="italic", bbox=box, **text)
        return
    color, marker, face = verdict(row)
    ratio = row.ratio
    axes.barh(place, ratio.p50 - 1, left=1, height=0.62, color=color, alpha=0.25, zorder=2)
    axes.plot([ratio.p20, ratio.p80], [place, place], color=color, linewidth=1.1, zorder=3)
    low, high = axes.get_xlim()
    if low < ratio.p50 < high:
        axes.plot(ratio.p50, place, marker=marker, color=color, mfc=face, markersize=4, zorder=4)
    else:
        end, head = (low * 1.03, "<") if ratio.p50 <= low else (high / 1.03, ">")
        axes.plot(end, place, marker=head, color=color, markersize=6, zorder=4)
    axes.text(VALUE, place, f"{ratio.p50:.3f}", ha="right", **text)


def _columns(figure, axes):
    """x in inches from the figure's left edge, y in lines."""
    from matplotlib.transforms import blended_transform_factory

    return blended_transform_factory(figure.dpi_scale_trans, axes.transData)


def _outcome(row: Row) -> str:
    """Why there is no ratio."""
    if row.us:
        return f"{digits(row.us.p50)} µs; cuBLAS has no time"
    reason = f": {row.reason}" if row.reason else ""
    return textwrap.shorten(f"{row.outcome}{reason}", REASON_WIDTH, placeholder=" …")


def _finish(figure, axes, rows: Sequence[Row], height: float) -> None:
    """Titles, what the colours mean, the axis at both ends, where the rows come from."""
    from matplotlib.lines import Line2D

    total = summarise(rows)[-1]
    words = f"{called(rows)} over cuBLAS, {rows[0].mode}: geomean {total.geomean:.3f}"
    words += f" of {total.timed} problems"
    if total.problems > total.timed:
        words += f" ({total.problems - total.timed} without a ratio)"
    figure.text(ID / WIDTH, 1 - 0.22 / height, words, fontsize=11, va="center")
    handles = [
        Line2D([], [], color=color, marker=marker, mfc=face, markersize=5, label=label)
        for (color, marker, face), label in (
            (WIN, f"faster: {total.wins}"),
            (TIE, f"within the noise: {total.ties}"),
            (LOSS, f"slower: {total.losses}"),
        )
    ]
    figure.legend(
        handles=handles, ncols=3, fontsize=9, frameon=False, borderpad=0, borderaxespad=0,
        loc="center left", bbox_to_anchor=(ID / WIDTH, 1 - 0.48 / height),
    )  # fmt: skip
    axes.tick_params(axis="x", labelsize=8, top=True, labeltop=True, length=3)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    low, high = axes.get_xlim()
    off = any(row.ratio and not low < row.ratio.p50 < high for row in rows)
    marks = f"line: p20-p80{'; arrow: further' if off else ''}"
    label = f"times cuBLAS's speed in the same rounds ({marks})"
    axes.set_xlabel(label, fontsize=8.5, x=1, ha="right")
    caption = textwrap.fill(origin(rows), 112)
    center = (0.5, 0.2 / height)
    figure.text(*center, caption, fontsize=8.5, color="#555555", ha="center", va="center")
