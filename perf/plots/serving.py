"""Layers of served models as lines: the ratio to cuBLAS over M, a panel for each model."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ..report import origin
from ..rows import Row
from ..serving_report import ENOUGH, OURS, layers, reached
from ..stats import geomean
from .figures import CLASSES, GREY, apart, called, ratio_limits, ratio_ticks, save, shown

#: Name and version of the drawing, for the digest: another drawing makes every figure outdated.
DRAWING = "serving 1"

#: Inches: the figure; a panel, what lies between two, above the first and below the last.
WIDTH, HEIGHT, BETWEEN, TOP, BOTTOM = 8.0, 1.75, 0.42, 0.78, 0.88
#: Where the axes begin and what their labels take, in the left column and in the right one.
LEFTS, LABELS = (0.45, 4.4), 1.2
#: Points of a label, and of the distance between two.
SIZE, GAP = 7.0, 8.2
#: The least and the largest ratio that the axes reach: one outlier must not press all the others
#: together. An arrowhead stands for what is beyond.
BOUNDS = (0.7, 1.6)


def plot_serving(rows: Sequence[Row], path: Path) -> None:
    """Draw each problem's newest race into `path` (.png or .svg), cuBLAS at 1.

    ValueError if nothing of tritemm was measured.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    own = [row for row in shown(rows, OURS) if row.ratio]
    panels: dict[str, dict[str, list[Row]]] = {}
    for (model, layer), found in layers(own).items():
        panels.setdefault(model, {})[layer] = sorted(found, key=lambda row: row.case.M)
    low, high = ratio_limits([row.ratio.p50 for row in own])
    limits = max(low, BOUNDS[0]), min(high, BOUNDS[1])
    lines = (len(panels) + 1) // 2
    height = TOP + BOTTOM + lines * HEIGHT + (lines - 1) * BETWEEN
    figure = Figure(figsize=(WIDTH, height))
    for place, (model, found) in enumerate(panels.items()):
        # What has no neighbour is as wide as two.
        last = WIDTH if place % 2 or place + 1 == len(panels) else LEFTS[1] - LEFTS[0]
        left = LEFTS[place % 2]
        bottom = height - TOP - (place // 2) * (HEIGHT + BETWEEN) - HEIGHT
        box = (left / WIDTH, bottom / height, (last - left - LABELS) / WIDTH, HEIGHT / height)
        _panel(figure.add_axes(box), model, found, limits)
    _dress(figure, own, height, limits)
    save(figure, path, rows, DRAWING)


def _panel(axes, model: str, found: dict[str, list[Row]], limits: tuple[float, float]) -> None:
    """A line for each layer, with its name and mean at the end."""
    low, high = limits
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(1 / 1.15, max(4096, *(row.case.M for own in found.values() for row in own)) * 1.1)
    axes.set_ylim(low, high)
    ratio_ticks(axes.yaxis, low, high)
    _octaves(axes)
    axes.axhline(1, color=GREY, linewidth=1.4, zorder=1)
    ends = []
    for place, own in enumerate(found.values()):
        color, marker = CLASSES[place % len(CLASSES)]
        points = [(row.case.M, min(max(row.ratio.p50, low), high)) for row in own]
        look = {"color": color, "zorder": 3, "mew": 0}
        axes.plot(*zip(*points, strict=True), linewidth=0.9, marker=marker, markersize=2.2, **look)
        for edge, head in ((low, "v"), (high, "^")):
            off = [point for point in points if point[1] == edge]
            arrow = look | {"linestyle": "", "marker": head, "markersize": 5, "clip_on": False}
            axes.plot(*zip(*off, strict=True), **arrow)
        ends.append((*points[-1], color))
    _labels(axes, found, ends)
    axes.set_title(model, fontsize=9, loc="left", pad=3)
    axes.tick_params(labelsize=7.5, length=2.5)
    axes.grid(color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _octaves(axes) -> None:
    from matplotlib.ticker import NullLocator

    ticks = [4**power for power in range(16) if 4**power <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def _labels(axes, found: dict[str, list[Row]], ends: Sequence[tuple[int, float, str]]) -> None:
    """Right of the axes, no two on one another, with a line from where each ends."""
    from matplotlib.transforms import offset_copy

    low, high = axes.get_ylim()
    octave = 72 * HEIGHT / math.log2(high / low)  # in points
    moved = apart([octave * math.log2(ratio) for _, ratio, _ in ends], GAP,
                  octave * math.log2(low), octave * math.log2(high))  # fmt: skip
    beside = offset_copy(axes.get_yaxis_transform(), axes.figure, x=9, units="points")
    line = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 1.5, "relpos": (0, 0.5)}
    for (layer, own), (size, ratio, color), at in zip(found.items(), ends, moved, strict=True):
        axes.annotate(
            f"{layer} {geomean(row.ratio.p50 for row in own):.2f}", (size, ratio),
            xytext=(1, 2 ** (at / octave)), textcoords=beside, color=color, fontsize=SIZE,
            va="center", arrowprops=line | {"color": color},
        )  # fmt: skip


def _dress(figure, own: Sequence[Row], height: float, limits: tuple[float, float]) -> None:
    """Titles, axes' names, where the rows come from."""
    mean, share = geomean(row.ratio.p50 for row in own), reached(own) / len(own)
    words = f"{called(own)} over cuBLAS on layers of served models, {own[0].mode}"
    figure.text(0.02, 1 - 0.2 / height, words, fontsize=11, va="center")
    words = (
        f"x @ W.T in bf16, cuBLAS (grey) at 1: geomean {mean:.3f} of {len(own)} problems, "
        f"{100 * share:.0f} % at {ENOUGH} or more; at the lines' ends, theirs"
    )
    figure.text(0.02, 1 - 0.42 / height, words, fontsize=8.5, va="center")
    off = any(not limits[0] <= row.ratio.p50 <= limits[1] for row in own)
    words = "across: M, the rows of x; up: times cuBLAS's speed in the same rounds"
    words += " (arrow: further)" if off else ""
    figure.text(0.5, 0.5 / height, words, fontsize=8.5, ha="center", va="center")
    note = textwrap.fill(origin(own), 112)
    style = {"fontsize": 8.5, "color": "#555555", "ha": "center", "va": "center"}
    figure.text(0.5, 0.2 / height, note, **style)
