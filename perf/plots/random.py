"""Random problems as a cloud: how the ratio to cuBLAS goes with size and alignment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..rows import Row
from ..summary import Summary, summarise
from .figures import CLASSES, GREY, called, caption, ratio_limits, ratio_ticks, save, shown

#: Name and version of the drawing, for the digest: another drawing makes every figure outdated.
DRAWING = "random 1"


def plot_random(rows: Sequence[Row], path: Path, competitor: str | None = None) -> None:
    """Draw the rows of one run of `random` into `path` (.png or .svg), cuBLAS at 1.

    Across: microseconds that the roof allows; floating-point operations where no roof is known.
    `competitor` is "auto" unless named. ValueError if nothing of it was measured.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    own = shown(rows, competitor)
    timed = [row for row in own if row.ratio]
    roofed = all(row.roof for row in timed)
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(1, color=GREY, linewidth=1.4, zorder=1)
    classes = sorted({row.problem["class"] for row in own}, key=alignment, reverse=True)
    summaries = {summary.name: summary for summary in summarise(own)}
    for group, (color, marker) in zip(classes, CLASSES, strict=False):
        points = [row for row in timed if row.problem["class"] == group]
        axes.scatter(
            [row.roof.floor(row.case) if roofed else row.case.flops for row in points],
            [row.ratio.p50 for row in points],
            s=20, marker=marker, color=color, alpha=0.75, linewidths=0, zorder=2,
            label=_label(summaries[group]),
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    low, high = ratio_limits([row.ratio.p50 for row in timed])
    axes.set_ylim(low, high)
    ratio_ticks(axes.yaxis, low, high)
    axes.set_xlabel(
        "microseconds at the roof" if roofed else "floating-point operations", fontsize=10
    )
    axes.set_ylabel("times cuBLAS's speed in the same rounds", fontsize=10)
    axes.tick_params(labelsize=9)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if roofed else f"{x:.0e}")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, frameon=False, borderaxespad=0
    )
    figure.suptitle(_title(own), fontsize=11, x=0.01, ha="left")
    caption(figure, own)
    save(figure, path, rows, DRAWING)


def alignment(group: str) -> int:
    """What a class's dimensions are multiples of, from its name: `multiples of 64`, `any size`."""
    found = re.search(r"\d+", group)
    return int(found[0]) if found else 1


def _label(summary: Summary) -> str:
    if not summary.timed:
        return f"{summary.name}: none timed"
    return f"{summary.name}: geomean {summary.geomean:.3f} of {summary.timed}"


def _title(rows: Sequence[Row]) -> str:
    total = summarise(rows)[-1]
    without = total.problems - total.timed
    return (
        f"{called(rows)} over cuBLAS, {rows[0].mode}, {total.timed} random problems"
        f"{f' ({without} without a ratio)' if without else ''}:\n"
        f"{100 * total.share:.0f} % at 1.0 or more, geomean {total.geomean:.3f}"
    )
