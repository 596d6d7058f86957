"""Sweeps as small panels on the same axes: one for each Triton rung, with its CUDA twins."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from ..rows import CUDA, REFERENCE, Row
from ..sweep import SWEEPS, Sweep, by_case, latest_sweep, lines, roof_tflops
from .figures import CUDA_RUNG, GREY, RUNG, caption, save
from .ladder import families

#: Name and version of the drawing, for the digest: another drawing makes every figure outdated.
DRAWING = "sweep 2"
COLUMNS = 3
#: Of the roof, and of the twins in one panel, in turn.
ROOF = {"color": "#222222", "linestyle": (0, (5, 2)), "linewidth": 0.8}
STYLES = (("-", "s"), ("--", "^"), (":", "D"), ("-.", "v"), ((0, (1, 1)), "P"))


def draw_latest(
    rows: Sequence[Row], folder: Path, layout: str | None = None, dtype: str | None = None
) -> list[Path]:
    """A picture and a CSV file, in `folder`, of the newest run of each sweep in the rows.

    `sweep-K-NT-bf16.png`: of the layout and type of the newest row.
    """
    written = []
    newest = next((row.case for row in reversed(rows) if row.experiment == "sweep"), None)
    for name in SWEEPS if newest else ():
        own = latest_sweep(rows, name, layout=newest.layout, dtype=newest.dtype)
        if own:
            stem = f"sweep-{name}-{newest.layout}-{newest.dtype}"
            written += draw(own, Path(folder) / f"{stem}.png")
    return written


def draw(rows: Sequence[Row], picture: Path) -> tuple[Path, Path]:
    """Draw the rows of one run of one sweep, and write the TFLOP/s to a CSV file beside it.

    Returns both paths.

    Raises:
        ValueError: no row was measured.
    """
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    if not any(row.us for row in rows):
        raise ValueError("there is no measured row to plot")
    sweep, races = _sweep(rows), by_case(rows)
    panels = _panels(rows)
    count = math.ceil(len(panels) / COLUMNS)
    figure = Figure(figsize=(8, 1.2 + 1.4 * count), layout="constrained")
    grid = figure.subplots(count, COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    for axes, (title, own) in zip(grid, panels.items(), strict=False):
        _panel(axes, sweep, races, own)
        axes.set_title(title, fontsize=8, loc="left", pad=2)
    for axes in grid[len(panels) :]:
        axes.remove()
    for axes in grid[max(0, len(panels) - COLUMNS) : len(panels)]:
        axes.tick_params(labelbottom=True)
    _dress(figure, grid[0], sweep, races)
    caption(figure, rows)
    save(figure, picture, rows, DRAWING)
    return Path(picture), _write(Path(picture).with_suffix(".csv"), sweep, rows)


def _sweep(rows: Sequence[Row]) -> Sweep:
    """The one that all rows lie on: some that lie on two have the other's name."""
    names = [row.problem["class"] for row in rows]
    return SWEEPS[max(names, key=names.count)]


def _panels(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """By title, a row of each competitor in the panel: `tritemm.matmul`, then every family."""
    names = lines(rows)
    rows = sorted(rows, key=lambda row: len(row.versus or ()))  # twins may lack at some sizes
    timed = {row.competitor: row for row in rows if row.us}
    panels = {names[name]: {name: timed[name]} for name in names if name == "auto"}
    for family in families([timed[name] for name in names]):
        panels[names[family[0].competitor]] = {row.competitor: row for row in family}
    return panels


def _panel(axes, sweep: Sweep, races: dict, own: dict[str, Row]) -> None:
    """cuBLAS and the roof in grey, Triton with its band from p20 to p80, each twin in its style."""
    _line(axes, sweep, races, REFERENCE, color=GREY, linewidth=2.2)
    roofs = [(sweep.size(case), roof_tflops(next(iter(r.values())))) for case, r in races.items()]
    if all(tflops for _, tflops in roofs):
        axes.plot(*zip(*roofs, strict=True), **ROOF)
    styles = iter(STYLES * len(own))
    for name, row in own.items():
        if row.ladder == CUDA:
            dashes, marker = next(styles)
            look = {"color": CUDA_RUNG, "linestyle": dashes, "marker": marker, "label": name}
        else:
            look = {"color": RUNG, "marker": "o"}
        _line(axes, sweep, races, name, linewidth=1, markersize=2.2, **look)
    if any(row.ladder == CUDA for row in own.values()):
        axes.legend(fontsize=5.5, frameon=False, handlelength=2.4, labelspacing=0.2)


def _line(axes, sweep: Sweep, races: dict, name: str, **look) -> None:
    found = [(sweep.size(c), there[name]) for c, there in races.items() if name in there]
    timed = [(size, row) for size, row in found if row.us]
    sizes = [size for size, _ in timed]
    axes.plot(sizes, [row.tflops for _, row in timed], **look)
    low, high = ([r.case.flops / getattr(r.us, p) / 1e6 for _, r in timed] for p in ("p80", "p20"))
    axes.fill_between(sizes, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _dress(figure, axes, sweep: Sweep, races: dict) -> None:
    """Of all panels: sizes as octaves, some of them named; one legend, one title."""
    from matplotlib.lines import Line2D
    from matplotlib.ticker import NullLocator

    sizes = [sweep.size(case) for case in races]
    octaves = [2**bit for bit in range(math.floor(math.log2(max(sizes))) + 1)]
    octaves = [size for size in octaves if size >= min(sizes)]
    axes.set_xscale("log", base=2)
    axes.set_xticks(octaves, [str(n) if i % 3 == 0 else "" for i, n in enumerate(octaves)])
    axes.xaxis.set_minor_locator(NullLocator())
    if sweep.log:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)
    for each in figure.axes:
        each.tick_params(labelsize=7)
        each.grid(color="#e4e4e4", linewidth=0.5)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    case = next(iter(races))
    mode = next(iter(races[case].values())).mode
    title = f"TFLOP/s, {sweep.title}, {case.layout}, {case.dtype}, {mode} (band: p20-p80)"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    looks = {
        "Triton": {"color": RUNG, "marker": "o", "markersize": 3},
        "CUDA twins": {"color": CUDA_RUNG, "marker": "s", "markersize": 3},
        "cuBLAS": {"color": GREY, "linewidth": 2.2},
        "roof": ROOF,
    }
    if not any(row.ladder == CUDA for there in races.values() for row in there.values()):
        del looks["CUDA twins"]
    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    beside = {"loc": "outside upper right", "ncols": 4, "fontsize": 7, "handlelength": 1.6}
    figure.legend(handles=handles, columnspacing=1, frameon=False, **beside)


def _write(path: Path, sweep: Sweep, rows: Sequence[Row]) -> Path:
    """TFLOP/s: a line per size, a column per competitor; empty where there is none."""
    names = lines(rows)
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*"MNK", *(f"{name} (TFLOP/s)" for name in (*names.values(), "roof"))])
        for case, there in by_case(rows).items():
            speeds = [there[name].tflops if name in there else None for name in names]
            speeds.append(roof_tflops(next(iter(there.values()))))
            cells = [f"{tflops:.4g}" if tflops else "" for tflops in speeds]
            table.writerow([case.M, case.N, case.K, *cells])
    return path
