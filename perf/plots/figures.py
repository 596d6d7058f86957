"""What figures share: the rows that they show and carry a digest of, colours, axes of ratios."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from .. import sources
from ..machine import ROOT
from ..report import origin
from ..rows import REFERENCE, Row, lines
from ..summary import competitors

#: Where the documentation's pictures are.
FIGURES = ROOT / "docs" / "figures"
#: Bars and marks of Triton's rungs, of CUDA's, and of cuBLAS.
RUNG, CUDA_RUNG, GREY = "#2a6f97", "#d98032", "#8a8a8a"
#: What the digest stands behind in a file's description.
STAMP = "rows sha256:"
#: Pixels per inch of a saved figure: twice those of a page that shows 8 inches as 800 pixels.
DPI = 200
#: Of a saved figure's palette.
COLOURS = 128
#: Colour and marker of each class; the colours are Okabe and Ito's, which colour-blind readers
#: tell apart, and two more that their markers tell apart.
CLASSES = (
    ("#0072b2", "o"),
    ("#e69f00", "s"),
    ("#009e73", "^"),
    ("#111111", "D"),
    ("#d55e00", "v"),
    ("#56b4e9", "P"),
    ("#cc79a7", "X"),
    ("#8c564b", "<"),
    ("#7a7a00", ">"),
)


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


def save(figure, path: Path, rows: Sequence[Row], drawing: str) -> None:
    """Write a matplotlib figure (.png or .svg) that carries the digest of what it shows.

    The file's folder is made if it isn't there.

    The file's description holds the digest, so that `drawn_from` tells an outdated figure without
    a comparison of pixels, which differ between versions of matplotlib.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Description": STAMP + digest(rows, drawing)}
    if Path(path).suffix == ".svg":
        metadata["Date"] = None  # or the same rows would give another file each day
        figure.savefig(path, facecolor="white", metadata=metadata)
        return
    from PIL import Image, PngImagePlugin  # comes with matplotlib

    drawn, info = io.BytesIO(), PngImagePlugin.PngInfo()
    figure.savefig(drawn, dpi=DPI, facecolor="white")
    info.add_text("Description", metadata["Description"])
    with Image.open(drawn) as image:  # a palette: a fourth of the size, and nobody sees it
        image.convert("RGB").quantize(COLOURS).save(path, "PNG", pnginfo=info, optimize=True)


def caption(figure, rows: Sequence[Row]) -> None:
    """Below the axes: GPU, versions, commit and day."""
    figure.supxlabel(textwrap.fill(origin(rows), 112), fontsize=8.5, color="#555555")


def drawn_from(path: Path) -> str | None:
    """The digest that a file of `save` carries; None if it carries none or is not there."""
    path = Path(path)
    if not path.exists():
        return None
    if path.suffix == ".svg":
        text = path.read_text()
    else:
        from PIL import Image  # comes with matplotlib

        with Image.open(path) as image:
            text = image.info.get("Description", "")
    found = re.search(f"{STAMP}([0-9a-f]{{64}})", text)
    return found and found[1]


def shown(rows: Sequence[Row], competitor: str | None = None) -> list[Row]:
    """One row per problem: the competitor's, or cuBLAS's where nothing of the problem could run.

    The competitor is "auto" unless named, or the first where "auto" did not race.

    Raises:
        ValueError: none of these rows has a ratio to cuBLAS.
    """
    there = competitors(rows)
    competitor = competitor or ("auto" if "auto" in there else next(iter(there), None))
    found: dict[str, Row] = {}
    for row in rows:
        alone = row.competitor == REFERENCE and not row.us and row.problem["id"] not in found
        if row.competitor == competitor or alone:
            found[row.problem["id"]] = row
    if not any(row.ratio for row in found.values()):
        raise ValueError("there is no measured row to plot")
    return list(found.values())


def called(rows: Sequence[Row]) -> str:
    """What raced: `tritemm.matmul`, and the kernel that it was asked for."""
    name = next(row.competitor for row in rows if row.competitor != REFERENCE)
    return "tritemm.matmul" if name == "auto" else f"tritemm.matmul, kernel={name!r}"


def ratio_limits(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis of ratios: 1 and a tenth about it are always in sight."""
    return min(0.9, *values) / 1.06, max(1.1, *values) * 1.06


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places, moved as little as it takes to be `gap` apart, in their order, from low to high.

    The squares of the moves are the least; where the room is too small, `low` yields.
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    blocks: list[list[float]] = []  # of neighbours that touch: the sum of where they would begin
    for count, index in enumerate(order):
        blocks.append([places[index] - count * gap, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, members = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + members]
    begins = [total / members for total, members in blocks for _ in range(int(members))]
    last = high - (len(places) - 1) * gap
    moved = [0.0] * len(places)
    for count, (index, begin) in enumerate(zip(order, begins, strict=True)):
        moved[index] = min(max(begin, low), last) + count * gap
    return moved


def ratio_ticks(axis, low: float, high: float) -> None:
    """Ticks of a matplotlib axis of base 2: tenths, half octaves or octaves, as the span allows."""
    from matplotlib.ticker import NullLocator

    octaves = math.log2(high / low)
    if octaves <= 1.2:
        ticks = {i / 10: f"{i / 10:g}" for i in range(1, 40)}
    elif octaves <= 3:
        ticks = {2 ** (i / 2): f"{2 ** (i / 2):.2g}" for i in range(-8, 9)}
    else:
        ticks = {2.0**i: f"{2**i}" if i >= 0 else f"1/{2**-i}" for i in range(-12, 13)}
    ticks = {value: text for value, text in ticks.items() if low <= value <= high}
    axis.set_ticks(list(ticks), list(ticks.values()))
    axis.set_minor_locator(NullLocator())
