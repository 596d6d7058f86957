"""Orders of tiles: which of A and B the programs that run at the same time touch.

From `raster` of tritemm/kernels/device/raster.py. What is read from memory is what each wave
touches, on the assumption that L2 keeps it for as long as the wave runs and then nothing: every
program walks along K, so what a wave has read is gone when the next one begins.
"""

import dataclasses
import functools
import itertools
import json
from typing import Any

from perf.experiments.profile import COUNTERS

from . import draw
from .draw import LIGHT, MARGIN, Bar, Panel, picture
from .formulas import ROOT, module

PROFILES = ROOT / "perf" / "results" / "profile" / "nvidia-h200.jsonl"
#: Programs that run at the same time, one on each SM.
SMS = 132


@dataclasses.dataclass(frozen=True)
class Order:
    """How a product's tiles are walked: sizes in elements, of 2 bytes."""

    name: str
    group: int = 16
    size: int = 4096
    rows: int = 256
    columns: int = 128

    @property
    def words(self) -> str:
        return f"groups of {self.group}" if self.name == "grouped" else self.name

    def tiles(self) -> list[tuple[int, int]]:
        """(row, column) of the tile of each program."""
        raster = module("raster").raster
        count = -(-self.size // self.rows) * -(-self.size // self.columns)
        return [raster(pid, self.size, self.size, self.rows, self.columns, self.name, self.group)
                for pid in range(count)]  # fmt: skip

    def waves(self) -> list[list[tuple[int, int]]]:
        tiles = self.tiles()
        return [tiles[first : first + SMS] for first in range(0, len(tiles), SMS)]

    def touched(self) -> list[tuple[int, int]]:
        """How many rows of tiles of A and columns of B each wave reads."""
        return [(len({row for row, _ in wave}), len({col for _, col in wave}))
                for wave in self.waves()]  # fmt: skip

    def read(self) -> int:
        """Bytes of A and B that all waves read from memory."""
        lines = sum(rows * self.rows + cols * self.columns for rows, cols in self.touched())
        return lines * self.size * 2

    def asked(self) -> int:
        """Bytes that all programs ask L2 for."""
        return len(self.tiles()) * (self.rows + self.columns) * self.size * 2

    def once(self) -> int:
        """Bytes of A and B."""
        return 2 * self.size * self.size * 2


ORDERS = tuple(Order(name) for name in ("linear", "serpentine", "grouped"))
LARGE = (
    Order("linear", size=8192),
    Order("serpentine", size=8192),
    *(Order("grouped", group, 8192) for group in (4, 8, 16)),
)


@functools.cache
def profiles() -> dict[str, dict[str, Any]]:
    """The committed counters of Nsight Compute, the newest of each rung."""
    rows = map(json.loads, PROFILES.read_text().splitlines())  # in the order of time
    return {row["rung"]: row for row in rows}


def counted(profile: dict[str, Any], label: str) -> float:
    """A counter of `perf profile`, of all kernels of a profile."""
    counter = next(each for each in COUNTERS if each.label.strip() == label)
    return sum(counter.value(kernel["values"]) for kernel in profile["kernels"])


def measured() -> dict[str, list[tuple[str, float]]]:
    """By order, the (rung, bytes read) of the profiles of 4096³ in these tiles."""
    found: dict[str, list[tuple[str, float]]] = {}
    for rung, profile in profiles().items():
        case, config = profile["case"], profile["config"]
        tile = config["BLOCK_M"], config["BLOCK_N"]
        if (case["M"], case["N"], case["K"], *tile) == (4096, 4096, 4096, 256, 128):
            found.setdefault(config["ORDER"], []).append((rung, counted(profile, "DRAM read")))
    return found


def orders() -> str:
    """The grid of tiles in each order, a colour for each wave."""
    panels = []
    wide, high = 14, 11
    for order in ORDERS:
        shapes, waves = [], order.waves()
        for nth, wave in enumerate(waves):
            for row, cells in itertools.groupby(sorted(wave), key=lambda tile: tile[0]):
                cols = [col for _, col in cells]
                for _, run in itertools.groupby(enumerate(cols), key=lambda p: p[1] - p[0]):
                    part = [col for _, col in run]
                    x, y = MARGIN + part[0] * wide, row * high
                    shapes.append(draw.rect(x, y, len(part) * wide, high, LIGHT[nth % 4]))
        shapes.append(draw.grid(MARGIN, 0, 32 * wide, 16 * high, 16, 32))
        centres = [(MARGIN + (col + 0.5) * wide, (row + 0.5) * high) for row, col in waves[0]]
        shapes.append(draw.path(_corners(centres), draw.INK, 1.2))
        rows, cols = order.touched()[0]
        one = ", here one" if order.name == "grouped" and order.group >= 16 else ""
        words = f"{order.words[0].upper()}{order.words[1:]}{one}: {rows} x {cols} tiles in wave 1"
        words += f"; all waves read {order.read() / 1e6:.0f} MB"
        panels += [draw.paragraph(words, draw.NORMAL), Panel(16 * high + 10, shapes)]
    return picture(
        "Which tiles run together: 4096³ in tiles of 256 x 128",
        draw.paragraph(
            f"16 x 32 tiles, {SMS} programs at a time. The line is the order of the first wave, "
            "which reads its rows' part of A and its columns' part of B."
        ),
        draw.legend([(LIGHT[i], f"wave {i + 1}") for i in range(4)]),
        *panels,
    )


def _corners(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line at which it turns."""
    kept = [points[0]]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        straight = (here[0] - before[0], here[1] - before[1])
        if straight != (after[0] - here[0], after[1] - here[1]):
            kept.append(here)
    return [*kept, points[-1]]


def traffic() -> str:
    """Bytes read from memory by the order, counted and measured."""
    profiles = measured()
    small = []
    for order in ORDERS:
        values = [value for _, value in profiles.get(order.name, ())]
        mark = sum(values) / len(values) if values else None
        said = f"counted {order.read() / 1e6:.0f} MB"
        said += f", measured {mark / 1e6:.0f}" if mark else ", not measured"
        small.append(Bar(order.words, order.read(), said, mark=mark))
    large = [Bar(order.words, order.read(), f"{order.read() / 1e9:.2f} GB") for order in LARGE]
    words, few, many = "A and B once", ORDERS[0].once(), LARGE[0].once()
    small.append(Bar(words, few, f"{few / 1e6:.0f} MB", draw.GREY))
    large.append(Bar(words, many, f"{many / 1e9:.2f} GB", draw.GREY))
    return picture(
        "What each order reads from memory",
        draw.paragraph("4096³, 16-bit, tiles of 256 x 128:", draw.NORMAL),
        draw.bars(small),
        draw.paragraph(
            "The bar is what the waves touch; the black line is what Nsight Compute counted on an "
            "H200, the mean of the kernels in that order."
        ),
        draw.paragraph("8192³, the same tiles:", draw.NORMAL),
        draw.bars(large),
    )
