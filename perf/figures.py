"""What pictures share: the digest of the rows that they show, colours, axes."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from . import sources
from .machine import ROOT
from .rows import REFERENCE, Row, lines
from .tables import Result, origin

#: Where the documentation's pictures are.
FIGURES = ROOT / "docs" / "figures"
#: Bars and marks of Triton's rungs, of CUDA's, and of cuBLAS; small print, and lines of a grid.
RUNG, CUDA_RUNG, GREY, PRINT, GRID = "#2a6f97", "#d98032", "#8a8a8a", "#555555", "#dddddd"
#: What precedes the digest in a file's description.
STAMP = "rows sha256:"
#: Pixels per inch of a saved figure: twice those of a page that shows 8 inches as 800 pixels; and
#: the colours of its palette: a third of the size, without a visible difference.
DPI, COLOURS = 200, 256
#: Colour and marker of each class; the colours are Okabe and Ito's, which colour-blind readers
#: tell apart, and four more that their markers tell apart.
_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#111111", "#d55e00", "#56b4e9", "#cc79a7", "#8c564b",
    "#7a7a00", "#7f3c8d", "#3a7d7d",
)  # fmt: skip
CLASSES = tuple(zip(_COLOURS, "os^DvPX<>*p", strict=True))


class NothingMeasured(ValueError):
    """There is no row to draw."""

    def __init__(self) -> None:
        super().__init__("there is no measured row to plot")


def missing() -> str | None:
    """Which package the pictures lack, as a sentence."""
    if importlib.util.find_spec("matplotlib"):
        return None
    return "matplotlib is missing: pip install matplotlib"


def digest(rows: Sequence[Row], drawing: str) -> str:
    """SHA-256, in hexadecimal, of the rows in their order and of a figure's name and version.

    And of what the caption says of the kernels' age.
    """
    text = "\n".join([drawing + sources.note(rows), *lines(rows)])
    return hashlib.sha256(text.encode()).hexdigest()


def blank(height: float, width: float = 8, **options):
    """A figure without pyplot (no display, no global state), and plain axes with a grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), **{"layout": "constrained"} | options)
    axes = figure.subplots()
    plain(axes)
    return figure, axes


def plain(axes, size: float = 9) -> None:
    axes.tick_params(labelsize=size)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def title(figure, text: str, size: float = 11) -> None:
    figure.suptitle(text, fontsize=size, x=0.01, ha="left")


def legend(axes, columns: int) -> None:
    """The legend, above the axes."""
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0}
    axes.legend(ncols=columns, fontsize=9, frameon=False, **above)


def reference(axes, across: bool = True) -> None:
    """CuBLAS's line in a picture of ratios to it."""
    draw = axes.axhline if across else axes.axvline
    draw(1, color=GREY, linewidth=1.4, zorder=1)


def save(figure, path: Path, rows: Sequence[Row], drawing: str) -> None:
    """Write a figure (.png or .svg); its folder is made if it isn't there.

    The file's description holds the digest of what it shows, so that `drawn_from` tells an outdated
    figure without a comparison of pixels, which differ between versions of matplotlib.
    """
    path, stamp = Path(path), STAMP + digest(rows, drawing)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":  # a date would give another file each day
        figure.savefig(path, facecolor="white", metadata={"Description": stamp, "Date": None})
        return
    from PIL import Image, PngImagePlugin  # comes with matplotlib

    drawn, info = io.BytesIO(), PngImagePlugin.PngInfo()
    figure.savefig(drawn, dpi=DPI, facecolor="white")
    info.add_text("Description", stamp)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(COLOURS).save(path, "PNG", pnginfo=info, optimize=True)


def caption(figure, rows: Sequence[Row]) -> None:
    """The caption below the axes: GPU, versions, commit and day."""
    figure.supxlabel(textwrap.fill(origin(rows), 112), fontsize=8.5, color=PRINT)


def drawn_from(path: Path) -> str | None:
    """The digest that a file of `save` carries; None if it carries none or is not there."""
    if not Path(path).exists():
        return None
    # In a PNG it is uncompressed, in a chunk of text.
    found = re.search(f"{STAMP}([0-9a-f]{{64}})".encode(), Path(path).read_bytes())
    return found and found[1].decode()


def measured(found: Sequence[Result]) -> Sequence[Result]:
    """What is drawn. Raises `NothingMeasured` if none of it has a ratio."""
    if not any(result.ratio for result in found):
        raise NothingMeasured
    return found


def called(rows: Iterable[Row]) -> str:
    """What raced: `tritemm.matmul`, and its `kernel=`."""
    name = next(row.competitor for row in rows if row.competitor != REFERENCE)
    return "tritemm.matmul" if name == "auto" else f"tritemm.matmul, kernel={name!r}"


def ratio_axis(
    axis, values: Sequence[float], bounds: tuple[float, float] = (0, math.inf)
) -> tuple[float, float]:
    """Make a matplotlib axis show ratios, in octaves; returns its ends.

    1 and a tenth about it are always in sight, and nothing beyond the bounds: one outlier must not
    compress all others. Ticks are tenths, half octaves or octaves, as the span allows.
    """
    low = max(min(0.9, *values) / 1.06, bounds[0])
    high = min(max(1.1, *values) * 1.06, bounds[1])
    span = math.log2(high / low)
    if span <= 1.2:
        ticks = {i / 10: f"{i / 10:g}" for i in range(1, 40)}
    elif span <= 3:
        ticks = {2 ** (i / 2): f"{2 ** (i / 2):.2g}" for i in range(-8, 9)}
    else:
        ticks = {2.0**i: f"{2**i}" if i >= 0 else f"1/{2**-i}" for i in range(-12, 13)}
    octaves(axis, {value: text for value, text in ticks.items() if low <= value <= high})
    getattr(axis.axes, f"set_{axis.axis_name}lim")(low, high)
    return low, high


def octaves(axis, ticks: Mapping[float, str]) -> None:
    """Make a matplotlib axis logarithmic, with these ticks alone."""
    from matplotlib.ticker import NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=2)
    axis.set_ticks(list(ticks), list(ticks.values()))
    axis.set_minor_locator(NullLocator())
