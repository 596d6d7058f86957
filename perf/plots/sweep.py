"""Sweeps as the line plots that Triton's users know, drawn by `triton.testing.perf_report`.

`perf_report` asks for one line at one size at a time, and would so compare what ran minutes apart:
here it looks the speeds up in rows, which were measured in interleaved rounds.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import triton.testing

from ..rows import REFERENCE, Row
from ..sweep import DTYPE, LAYOUT, SWEEPS, Sweep, by_case, latest_sweep, lines, roof_tflops
from .figures import CLASSES, GREY, caption, save

#: Name and version of the drawing, for the digest: another drawing makes every figure outdated.
DRAWING = "sweep 1"

ROOF = "roof"
UNIT = "TFLOP/s"
#: Points between the middles of two labels at the lines' ends.
APART = 11.5
#: The house's looks, for figures that `perf_report` makes.
LOOKS = {
    "figure.figsize": (8, 4.6),
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "lines.linewidth": 1.5,
    "lines.markersize": 4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
}


def missing() -> str | None:
    """Which packages the pictures lack, as a sentence."""
    absent = [name for name in ("matplotlib", "pandas") if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"triton.testing's plots need {' and '.join(absent)}: pip install {' '.join(absent)}"


def draw_latest(
    rows: Sequence[Row],
    folder: Path,
    gpu: str | None = None,
    *,
    names: Iterable[str] = tuple(SWEEPS),
    layout: str = LAYOUT,
    dtype: str = DTYPE,
) -> list[Path]:
    """A picture and a CSV file, in `folder`, of the latest run of each sweep that was measured.

    `sweep-K.png`; the names of another layout or type end in it: `sweep-K-NN-fp16.png`.

    Returns the paths written, pictures and CSV files in turn.
    """
    written = []
    for name in names:
        own = latest_sweep(rows, name, gpu, layout=layout, dtype=dtype)
        if any(row.us for row in own):
            case = own[0].case
            usual = (case.layout, case.dtype) == (LAYOUT, DTYPE)
            more = "" if usual else f"-{case.layout}-{case.dtype}"
            written += draw(own, Path(folder) / f"sweep-{name}{more}.png")
    return written


def draw(rows: Sequence[Row], picture: Path) -> tuple[Path, Path]:
    """Draw the rows of one run of one sweep, and write the TFLOP/s to a CSV file beside it.

    Returns both paths. pyplot's backend is agg from then on.

    Raises:
        ValueError: no row was measured.
    """
    import matplotlib
    import matplotlib.pyplot as plt

    if not any(row.us for row in rows):
        raise ValueError("there is no measured row to plot")
    sweep = SWEEPS[rows[0].problem["class"]]
    rows = sorted(rows, key=lambda row: sweep.size(row.case))
    picture = Path(picture)
    table = picture.with_suffix(".csv")
    plt.switch_backend("agg")  # no window, and none of its toolkits
    with matplotlib.rc_context(LOOKS):
        mark = report(sweep, rows, picture.stem)
        # Without a path: perf_report would write a page beside the picture, and its own looks.
        frame = mark.run(save_path="", return_df=True)
        figure = plt.gcf()
        try:
            _dress(figure, sweep, rows, mark.benchmarks.line_vals)
            save(figure, picture, rows, DRAWING)
        finally:
            plt.close(figure)
    frame.astype(dict.fromkeys("MNK", int)).to_csv(table, index=False, float_format="%.4g")
    return picture, table


def report(sweep: Sweep, rows: Sequence[Row], name: str) -> triton.testing.Mark:
    """The benchmark, whose function gives a row's speeds, or NaN where there is none."""
    known = lines(rows)
    labels = known | ({ROOF: ROOF} if all(row.roof for row in rows) else {})
    numbers = {row.competitor: row.number for row in rows}
    races = {(case.M, case.N, case.K): there for case, there in by_case(rows).items()}
    axis = sweep.swept[0]  # the first argument is the picture's axis
    order = sorted("MNK", key=lambda dimension: dimension != axis)
    benchmark = triton.testing.Benchmark(
        x_names=order,
        x_vals=[tuple(size["MNK".index(dimension)] for dimension in order) for size in races],
        x_log=True,
        y_log=sweep.log,
        line_arg="provider",
        line_vals=list(labels),
        line_names=list(labels.values()),
        styles=[_style(provider, numbers.get(provider)) for provider in labels],
        xlabel=" = ".join(sweep.swept),
        ylabel=UNIT,
        plot_name=name,
        args={},
    )

    @triton.testing.perf_report(benchmark)
    def look_up(M: int, N: int, K: int, provider: str) -> tuple[float, float, float]:
        return speeds(races[M, N, K], provider)

    return look_up


def speeds(there: dict[str, Row], provider: str) -> tuple[float, float, float]:
    """Median, p20 and p80 of a provider's TFLOP/s at one size; NaN where there are none."""
    if provider == ROOF:
        return roof_tflops(next(iter(there.values()))), math.nan, math.nan
    row = there.get(provider)
    if row is None or not row.us:
        return (math.nan,) * 3
    return row.tflops, *(row.case.flops / us / 1e6 for us in (row.us.p80, row.us.p20))


def _style(provider: str, number: int | None) -> tuple[str, str]:
    """Colour and dashes; a rung's are the same in every picture."""
    if number is None:
        return (GREY, "-") if provider == REFERENCE else ("#222222", "--")
    return CLASSES[number % len(CLASSES)][0], "-" if number <= len(CLASSES) else "-."


def _dress(figure, sweep: Sweep, rows: Sequence[Row], providers: Sequence[str]) -> None:
    """Sizes as octaves, markers, labels at the lines' ends, title, where the rows come from."""
    from matplotlib.ticker import NullLocator

    axes = figure.axes[0]
    numbers = {row.competitor: row.number for row in rows}
    axes.get_legend().remove()
    for provider, line in zip(providers, axes.get_lines(), strict=True):
        if provider == REFERENCE:
            line.set(linewidth=3, zorder=1.9)
        elif provider != ROOF:
            line.set_marker(CLASSES[numbers[provider] % len(CLASSES)][1])
    axes.set_xscale("log", base=2)
    sizes = sorted({sweep.size(row.case) for row in rows})
    octaves = [size for size in sizes if size & (size - 1) == 0] or sizes
    axes.set_xticks(octaves, list(map(str, octaves)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(sizes[0] / 1.08, sizes[-1] * 1.08)
    if sweep.log:
        low, high = (math.log2(limit) for limit in axes.get_ylim())
        ticks = [2**bit for bit in range(math.ceil(low), math.floor(high) + 1)]
        axes.set_yscale("log", base=2)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(bottom=0)
    case = rows[0].case
    title = f"{sweep.title}, {case.layout}, {case.dtype}, {rows[0].mode} (band: p20-p80)"
    axes.set_title(title, fontsize=11, loc="left")
    caption(figure, rows)
    _label_ends(figure, axes)


def _label_ends(figure, axes) -> None:
    """Each line's name at the right, at the height of its end, or as near as the others allow."""
    figure.draw_without_rendering()  # the layout must stand before heights are read
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = []
    for line in axes.get_lines():
        x, y = next(p for p in reversed(line.get_xydata()) if not math.isnan(p[1]))
        ends.append((line, (x, y), to_axes.transform((x, y))[1]))
    points = axes.get_window_extent().height / figure.dpi * 72
    places = spread([height for *_, height in ends], APART / points)
    for (line, end, _), place in zip(ends, places, strict=True):
        # perf_report adds the unit to the names; the axis has it.
        name, color = line.get_label().removesuffix(f" ({UNIT})"), line.get_color()
        leader = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2}
        axes.annotate(
            name, xy=end, xytext=(1.03, place), textcoords="axes fraction", va="center",
            fontsize=9, color=color, annotation_clip=False,
            arrowprops=leader | {"relpos": (0, 0.5)},
        )  # fmt: skip


def spread(heights: Sequence[float], apart: float) -> list[float]:
    """Heights from 0 to 1, at least `apart` from each other, in order, nearest to the given ones.

    Least squares: neighbours that are too close form a block about the mean of what they want.
    Above 1 if there is no room.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    blocks: list[list[float]] = []  # of heights less the room that those below take
    for place, index in enumerate(order):
        blocks.append([heights[index] - place * apart])
        while len(blocks) > 1 and _mean(blocks[-2]) >= _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    room = max(0.0, 1 - (len(heights) - 1) * apart)
    levels = [min(max(_mean(block), 0.0), room) for block in blocks for _ in block]
    places = [0.0] * len(heights)
    for place, (index, level) in enumerate(zip(order, levels, strict=True)):
        places[index] = level + place * apart
    return places


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
