"""Whole models as bars: tritemm's speed over torch's, by model, work and mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..model import OURS
from ..model_report import title
from ..report import digits
from ..rows import REFERENCE, Row
from ..select import raced
from .figures import CUDA_RUNG, GREY, RUNG, caption, ratio_limits, save

#: Name and version of the drawing, for the digest: another drawing makes every figure outdated.
DRAWING = "model 2"

#: Colour of a bar that is within the noise of torch.
TIE = "#9db8c8"


def plot_model(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows of `model_report.latest` into `path` (.png or .svg), torch at 1.

    ValueError if nothing of tritemm was measured.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    found = list(raced(rows).values())
    own = [race.get(OURS) or race[REFERENCE] for race in found]
    timed = [row.ratio for row in own if row.competitor == OURS and row.ratio]
    if not timed:
        raise ValueError("there is no measured row to plot")
    figure = Figure(figsize=(8, 1.3 + 0.27 * len(own)), layout="constrained")
    axes = figure.subplots()
    low, high = ratio_limits([v for ratio in timed for v in (ratio.p20, ratio.p80)])
    axes.set_xlim(low, high)
    axes.axvline(1, color=GREY, linewidth=1.4, zorder=1)
    places = _places(own)
    for place, row in zip(places, own, strict=True):
        _bar(axes, place, row, low)
    axes.set_yticks(places, [title(row) for row in own], fontsize=9)
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9)
    axes.set_xlabel("times torch's speed in the same rounds (line: p20-p80)", fontsize=10)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(
        "transformers' models by tritemm, by torch (grey) at 1; ms per step at the right",
        fontsize=11, x=0.01, ha="left",
    )  # fmt: skip
    caption(figure, rows)
    _times(axes, places, found)
    save(figure, path, rows, DRAWING)


def _places(rows: Sequence[Row]) -> list[float]:
    """Lines from the top, with half a line of air between one work and the next."""
    places, place, before = [], -1.0, None
    for row in rows:
        work = row.problem["id"].rpartition(" ")[0]
        place += 1.5 if before not in (None, work) else 1.0
        places.append(place)
        before = work
    return places


def _bar(axes, place: float, row: Row, low: float) -> None:
    if row.competitor != OURS or not row.ratio:
        text = f"{row.outcome}: {row.reason or ''}"[:60] if row.competitor == OURS else "not raced"
        axes.text(low, place, f" {text}", fontsize=8, va="center", style="italic", color=GREY)
        return
    ratio = row.ratio
    color = TIE if row.tie else RUNG if ratio.p50 > 1 else CUDA_RUNG
    axes.barh(place, ratio.p50 - 1, left=1, height=0.66, color=color, zorder=2)
    axes.plot([ratio.p20, ratio.p80], [place, place], color="black", linewidth=1, zorder=3)


def _times(axes, places: Sequence[float], found: Sequence[dict[str, Row]]) -> None:
    """`1.034   3.75 -> 2.02`: the ratio, and both times in milliseconds, right of the axes."""
    for place, race in zip(places, found, strict=True):
        torchs, ours = race.get(REFERENCE), race.get(OURS)
        if not (torchs and torchs.us and ours and ours.us and ours.ratio):
            continue
        times = " → ".join(digits(row.us.p50 / 1e3) for row in (torchs, ours))
        axes.annotate(
            f"{ours.ratio.p50:.3f}   {times}", (1, place), xytext=(6, 0), fontsize=8.5,
            xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
        )  # fmt: skip
