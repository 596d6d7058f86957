"""A picture of ratios: a line for each problem, by class."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from . import figures, tables
from .rows import Row
from .tables import Result, Tally, median, us

#: Colour and marker of what is faster, within the noise and slower: they differ in lightness too.
LOOKS = {1: (figures.RUNG, "o"), 0: ("#222222", "D"), -1: (figures.CUDA_RUNG, "s")}
#: The visible range of ratios; a ratio beyond it is drawn at the edge, with its value beside it.
LEAST, MOST = 0.4, 3.0


def plot(own: Sequence[Result], words: str, named: Callable[[Row], str], reference: str):
    """Every problem's ratio to the reference; the title is `words` and the mean.

    `named` is the text beside a problem.
    """
    *classes, total = tables.tallies(own)
    groups = [tally for tally in classes if tally.results[0].ours.problem["class"] == tally.name]
    count = sum(len(tally.results) + 2 for tally in groups)
    figure, axes = figures.blank(1.6 + 0.17 * count)
    place, ticks = 0, {}
    for tally in groups:
        ticks[place] = f"{tally.name}: geomean {tally.mean or 'of none'}"
        for result in tally.results:
            place += 1
            ticks[place] = named(result.ours)
            _draw(axes, place, result, reference)
        place += 2
    for side, name, number in zip(LOOKS, ("faster", "noise", "slower"), total.sides, strict=True):
        color, marker = LOOKS[side]
        axes.plot([], [], color=color, marker=marker, markersize=4, label=f"{name}: {number}")
    figures.reference(axes, across=False)
    ends = [end for r in own if r.ratio for end in (r.ratio.p20, r.ratio.p80)]
    figures.ratio_axis(axes.xaxis, ends, (LEAST, MOST))
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=7.5, family="monospace")
    for label in axes.get_yticklabels():
        label.set_weight("bold" if "geomean" in label.get_text() else "normal")
    axes.set_ylim(place - 1, -1)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"times {reference}'s speed in the same rounds (line: p20-p80)", fontsize=8.5)
    figures.legend(axes, 3)
    words += f": geomean {total.mean} of {len(total.timed)} problems{without(total)}"
    figures.title(figure, words)
    figures.caption(figure, [result.ours for result in own])
    return figure


def _draw(axes, place: int, result: Result, reference: str) -> None:
    """A problem's line and its value, or its outcome if it has none."""
    row, ratio = result.ours, result.ratio
    beside = {"transform": axes.get_yaxis_transform(), "fontsize": 7.5, "va": "center"}
    if not ratio:
        alone = f"{us(row)} µs; {reference} has no time"
        words = textwrap.shorten(
            alone if row.us else f"{row.outcome}: {row.reason}", 60, placeholder=" …"
        )
        axes.text(0.99, place, words, ha="right", style="italic", color=figures.GREY, **beside)
        return
    color, marker = LOOKS[result.side]
    axes.barh(place, ratio.p50 - 1, left=1, height=0.6, color=color, alpha=0.25)
    axes.plot([ratio.p20, ratio.p80], [place, place], color=color, linewidth=1.1)
    axes.plot(ratio.p50, place, marker=marker, color=color, markersize=4)
    axes.text(1.01, place, median(ratio), **beside)


def without(total: Tally) -> str:
    count = len(total.results) - len(total.timed)
    return f" ({count} without a ratio)" if count else ""
