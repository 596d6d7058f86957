"""The ladder as a chart, legible at the width of a README (about 800 pixels)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ..report import label
from ..rows import CUDA, HALF, REFERENCE, TRITON, Row
from ..select import newest
from .figures import CUDA_RUNG, GREY, RUNG, caption, save

#: Names and versions of the drawings, for the digest.
LADDER, COMPARE = "ladder 1", "compare 1"
#: Of the lines that stand for cuBLAS.
STYLES = {REFERENCE: "--", HALF: ":"}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """A picture of each case that was measured; of both ladders where both took part."""
    written = []
    for case in dict.fromkeys(row.case for row in rows):
        own = newest(rows, case)
        if any(row.us for row in own):
            name = re.sub(r"\W+", "-", str(case).replace(" x ", "x")).strip("-")
            written.append(Path(folder) / f"ladder-{name}.png")
            both = any(row.ladder == CUDA for row in own)
            (plot_compare if both else plot_ladder)(own, written[-1])
    return written


def plot_ladder(rows: Sequence[Row], path: Path) -> None:
    """Draw `select.latest_ladder(...)` as bars of TFLOP/s into `path` (.png or .svg)."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    if not any(row.us for row in rows):
        raise ValueError("there is no measured row to plot")
    figure = Figure(figsize=(8, 1.5 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    top = max(row.tflops for row in rows if row.us)
    for place, row in enumerate(rows):
        if not row.us:
            axes.text(
                top / 100, place, f"{row.outcome}: {textwrap.shorten(row.reason or '', 80)}",
                va="center", fontsize=9, style="italic", color=GREY,
            )  # fmt: skip
            continue
        axes.barh(place, row.tflops, height=0.68, color=RUNG if row.rung else GREY)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}  # over cuBLAS's line
        axes.text(row.tflops + top / 80, place, _text(row), va="center", fontsize=10, bbox=box)
        if row.rung is None:
            axes.axvline(row.tflops, color=GREY, linestyle="--", linewidth=1, zorder=0)
    axes.set_yticks(range(len(rows)), [label(row) for row in rows], fontsize=11)
    axes.invert_yaxis()
    axes.set_xlim(0, top * 1.15)  # room for the labels at the bars' ends
    _finish(figure, axes, rows, path, LADDER)


def plot_compare(rows: Sequence[Row], path: Path) -> None:
    """Draw `select.latest_compare(...)`: each Triton rung's bar, under it its CUDA twins'."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    measured = [row for row in rows if row.us]
    if not measured:
        raise ValueError("there is no measured row to plot")
    groups = families(measured)
    top = max(row.tflops for row in measured)
    count = sum(map(len, groups))
    figure = Figure(figsize=(8, 1.5 + 0.25 * (count + 0.5 * len(groups))), layout="constrained")
    axes = figure.subplots()
    place, ticks = 0.0, {}
    for group in groups:
        for row in group:
            color = CUDA_RUNG if row.ladder == CUDA else RUNG
            axes.barh(place, row.tflops, height=0.78, color=color)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
            axes.text(row.tflops + top / 80, place, _text(row), va="center", fontsize=9, bbox=box)
            ticks[place] = label(row)
            place += 1
        place += 0.5
    for row in measured:
        if row.competitor in STYLES:
            style = STYLES[row.competitor]
            axes.axvline(row.tflops, color=GREY, linestyle=style, linewidth=1, zorder=0)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlim(0, top * 1.17)
    handles = [Patch(color=RUNG, label="Triton"), Patch(color=CUDA_RUNG, label="CUDA")]
    handles += [
        Line2D([], [], color=GREY, linestyle=STYLES[row.competitor], label=_named(row))
        for row in measured
        if row.competitor in STYLES
    ]
    axes.legend(handles=handles, fontsize=9, loc="upper right", framealpha=1)
    _finish(figure, axes, rows, path, COMPARE)


def _text(row: Row) -> str:
    """A bar's label: its speed, and its ratio to cuBLAS's."""
    text = f"{row.tflops:.{0 if row.tflops >= 10 else 1}f}"
    if row.rung and row.ratio:
        text += f"  ({row.ratio.p50:.{2 if row.ratio.p50 >= 0.1 else 3}f}x)"
    return text


def _finish(figure, axes, rows: Sequence[Row], path: Path, drawing: str) -> None:
    """Title, axis, where the rows come from; then the file."""
    axes.set_title(f"{rows[0].case}, {rows[0].mode}", fontsize=11, loc="left")
    axes.set_xlabel("TFLOP/s (times cuBLAS's speed in the same rounds)", fontsize=10)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    caption(figure, rows)
    save(figure, path, rows, drawing)


def _named(row: Row) -> str:
    return f"{label(row)}, {row.tflops:.0f}"


def families(rows: Sequence[Row]) -> list[list[Row]]:
    """Triton's rungs, each followed by the CUDA rungs whose first twin it is; then the others."""
    groups = {row.competitor: [row] for row in rows if row.ladder == TRITON and row.number}
    alone = []
    for row in rows:
        if row.ladder == CUDA:
            twin = next((name for name in row.versus or {} if name in groups), None)
            (groups[twin] if twin else alone).append(row)
    return [*groups.values(), *([alone] if alone else [])]
