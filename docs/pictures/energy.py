"""Where 8192³'s energy goes: watts times seconds of the committed rows, bytes moved by level, and
how much of it the cost model's fit lays on the tile's shape.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence

from perf.rows import CUDA, REFERENCE, TRITON, Row, recorded
from tritemm.arch import gpus
from tritemm.dispatch.cost_model import constants
from tritemm.dispatch.cost_model.constants import Constants

from . import draw
from .draw import BLUE, MARGIN, ORANGE, Bar, Panel, picture
from .formulas import constant
from .raster import Order

SIZE = 8192
FLOP = 2 * SIZE**3
GPU = "NVIDIA H200"


@dataclasses.dataclass(frozen=True)
class Energy:
    """What races measured of a kernel: medians, and the 20th and 80th percentile of the joules."""

    name: str
    ladder: str | None
    joules: float
    low: float
    high: float
    watts: float
    seconds: float
    races: int


@functools.cache
def rows() -> tuple[Row, ...]:
    return tuple(recorded())


def energies(every: Sequence[Row]) -> list[Energy]:
    """The joules of each rung's first config and of cuBLAS, the hungriest first.

    Of 8192³ in 16 bits summed in fp32, sustained. The watts are read while a kernel is timed, the
    card's own average; so single races scatter, and the median of all is shown.
    """
    found: dict[tuple[str | None, str], list[Row]] = {}
    for row in every:
        case = row.case
        alone = (case.accumulate, case.batch, case.ending) == ("fp32", 1, None)
        same = alone and (case.M, case.N, case.K) == (SIZE,) * 3
        first = row.competitor == (row.rung or REFERENCE)
        if (same and first and case.dtype in ("bf16", "fp16") and row.mode == "sustained"
                and row.us and row.power_w and row.environment.gpu == GPU):  # fmt: skip
            found.setdefault((row.ladder, row.competitor), []).append(row)
    return sorted((_energy(*key, own) for key, own in found.items()), key=lambda e: -e.joules)


def _energy(ladder: str | None, name: str, own: Sequence[Row]) -> Energy:
    joules = sorted(row.power_w * row.us.p50 / 1e6 for row in own)
    low, high = (joules[round(share * (len(joules) - 1))] for share in (0.2, 0.8))
    watts = statistics.median(row.power_w for row in own)
    seconds = statistics.median(row.us.p50 for row in own) / 1e6
    return Energy(name, ladder, statistics.median(joules), low, high, watts, seconds, len(own))


def dots(own: Sequence[Energy], color: str, reference: float) -> Panel:
    """A line for each: its percentiles and its median, on a logarithmic axis."""
    left, right, each = MARGIN + 154, draw.WIDTH - MARGIN - 104, 19
    most, least = 130.0, 0.9

    def at(joules: float) -> float:
        return left + (right - left) * math.log(joules / least) / math.log(most / least)

    bottom = len(own) * each
    shapes = draw.columns(at, (1, 2, 5, 10, 20, 50, 100), 0, bottom)
    shapes.append(draw.path([(at(reference), 0), (at(reference), bottom)], draw.GREY, 1.5))
    for i, energy in enumerate(own):
        y = i * each + each / 2
        said = f"{energy.joules:.3g} J, {energy.watts:.0f} W"
        shapes += [
            draw.text(left - 8, y + 4, energy.name, anchor="end"),
            draw.path([(at(energy.low), y), (at(energy.high), y)], color, 3),
            draw.dot(at(energy.joules), y, color),
            draw.note(draw.WIDTH - MARGIN, y + 4, said),
        ]
    return Panel(bottom + 22, shapes)


def rungs() -> str:
    """Joules of one product by rung, of both ladders."""
    every = energies(rows())
    reference = next(each for each in every if each.name == REFERENCE)
    panels = []
    for ladder, words, color in ((TRITON, "Triton", BLUE), (CUDA, "CUDA", ORANGE)):
        own = [each for each in every if each.ladder == ladder]
        panels += [draw.paragraph(words, draw.NORMAL), dots(own, color, reference.joules)]
    return picture(
        "Joules of one product, 8192³",
        draw.paragraph(
            "16-bit, summed in fp32: watts times seconds on an H200. The dot is the median of all "
            "committed races, the bar their 20th to 80th percentile, the grey line cuBLAS: "
            f"{reference.joules:.2f} J at {reference.watts:.0f} W."
        ),
        *panels,
    )


#: Rungs that multiply alike and take different times: their words, colour, ladder, and names.
FAMILIES = (
    ("wmma, CUDA", draw.PINK, CUDA, ("wmma_base", "wmma_padding", "wmma_async")),
    ("mma, CUDA", ORANGE, CUDA, ("mma_base", "mma_permuted", "mma_async")),
    ("mma, Triton", BLUE, TRITON, ("permuted", "async")),
)
#: Those whose products are WGMMA, in tiles of 128 x 256.
WGMMA = ("tma", "persistent", "warp_specialized", "wgmma_persistent", "wgmma_cluster")


@dataclasses.dataclass(frozen=True)
class Line:
    """Joules = `work` + `watts` * seconds, through the rungs of a family; least squares."""

    words: str
    color: str
    points: tuple[Energy, ...]
    work: float
    watts: float


def fitted_lines(every: Sequence[Energy]) -> list[Line]:
    found = []
    for words, color, ladder, names in FAMILIES:
        own = tuple(e for e in every if e.ladder == ladder and e.name.startswith(names))
        watts, work = statistics.linear_regression(
            [e.seconds for e in own], [e.joules for e in own]
        )
        found.append(Line(words, color, own, work, watts))
    return found


def over_time() -> str:
    """Joules over milliseconds: what the work takes, and what time takes."""
    every = energies(rows())
    left, right, top, bottom = MARGIN + 30, draw.WIDTH - MARGIN - 4, 8, 258
    most_ms, most_joules = 10, 4

    def x(ms: float) -> float:
        return left + (right - left) * ms / most_ms

    def y(joules: float) -> float:
        return bottom - (bottom - top) * joules / most_joules

    shapes = draw.columns(x, range(0, most_ms + 1, 2), top, bottom)
    shapes += draw.rows(y, range(most_joules + 1), left, right)
    lines = fitted_lines(every)
    for each in lines:
        last = max(point.seconds for point in each.points)
        ends = [(left, y(each.work)), (x(1e3 * last), y(each.work + each.watts * last))]
        shapes.append(draw.path(ends, each.color, 1.8))
    families = [(each.color, each.points) for each in lines]
    families.append((draw.GREEN, [energy for energy in every if energy.name in WGMMA]))
    for color, points in families:
        shapes += [draw.dot(x(1e3 * each.seconds), y(each.joules), color) for each in points]
    said = [f"{each.words}: {each.work:.2f} J + {each.watts:.0f} W x time" for each in lines]
    return picture(
        "Joules over milliseconds, 8192³",
        draw.legend([*((each.color, words) for each, words in zip(lines, said, strict=True)),
                     (draw.GREEN, "WGMMA, five rungs")]),
        draw.paragraph("joules of one product", color=draw.GREY),
        Panel(bottom + 20, shapes),
        draw.axis_name("milliseconds of one product"),
        draw.paragraph(
            "A dot is a rung. Rungs of one colour do the same products and differ in how long they "
            "wait. The line's slope is the power that the card draws whatever it does; its value "
            "at 0 ms is the work itself."
        ),
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Moved:
    """Bytes of one product by level, and its instructions, each of a warp or of a warpgroup."""

    words: str
    unit: str
    memory: int
    l2: int
    shared: int
    instructions: int


def moved() -> tuple[Moved, ...]:
    """Bytes of the classic tile with mma, and of a warpgroup's with WGMMA.

    From device memory as the waves touch it (`raster`), from L2 as the tiles ask for it, from
    shared memory what fragments or WGMMA read.
    """
    wm, wn = constant("mma_base.cu", "WM"), constant("mma_base.cu", "WN")
    columns, depth = constant("include/roles.cuh", "BN"), 16
    classic, wide = Order("serpentine", size=SIZE), Order("grouped", 16, SIZE, 128, columns)
    cube = SIZE**3
    return (
        Moved("Warps of 64 x 64 in 256 x 128", "mma", classic.read(), classic.asked(),
              cube // (wm * wn * depth) * (wm + wn) * depth * 2, cube // (16 * 8 * depth)),
        Moved("Warpgroups of 64 x 256 in 128 x 256", "wgmma", wide.read(), wide.asked(),
              cube // (64 * columns * depth) * (64 + columns) * depth * 2,
              cube // (64 * columns * depth)),
    )  # fmt: skip


def levels() -> str:
    """Bytes by level of two designs."""
    entries = moved()
    most = max(each.shared for each in entries)
    panels = []
    for each, color in zip(entries, (ORANGE, BLUE), strict=True):
        bars = [
            Bar(f"from {level}", value, f"{value / 1e9:.1f} GB", color)
            for level, value in (
                ("device memory", each.memory), ("L2", each.l2), ("shared memory", each.shared),
            )
        ]  # fmt: skip
        words = f"{each.words}: {each.instructions / 1e6:.3g} million {each.unit}"
        panels += [draw.paragraph(words, draw.NORMAL), draw.bars(bars, most)]
    return picture(
        "What 8192³ moves, by level",
        draw.paragraph("A and B once are 0.27 GB, in 16 bits; the product is 1.1 TFLOP."),
        *panels,
    )


def known() -> tuple[Constants, float]:
    """The fitted constants of the H200, and the watts at which its large products run."""
    device = gpus.device_of(gpus.file_of(GPU))
    watts = next(each.watts for each in energies(rows()) if each.name == REFERENCE)
    return constants.of(device), watts


def estimated(rows_: int, columns: int, fitted: Constants, watts: float) -> tuple[float, float]:
    """Joules of 8192³ that the fit lays on the FLOP alone, and on the tile's shape."""
    return (watts * FLOP * fitted.power,
            watts * FLOP * fitted.traffic * (1 / rows_ + 1 / columns))  # fmt: skip


TILES = ((64, 64), (128, 128), (128, 192), (128, 256), (192, 192), (256, 192))


def tiles() -> str:
    """The fit's two parts by the tile."""
    fitted, watts = known()
    found = {tile: estimated(*tile, fitted, watts) for tile in TILES}
    bars = [
        Bar(f"{rows_} x {columns}", base, f"{base:.2f} + {more:.2f} J", draw.GREY, more=more)
        for (rows_, columns), (base, more) in found.items()
    ]
    return picture(
        "An estimate: how much the tile's shape costs",
        draw.legend([(draw.GREY, "for each FLOP"), (ORANGE, "for what the tile moves on chip")]),
        draw.bars(bars),
        draw.paragraph(
            f"Joules of 8192³ at {watts:.0f} W, by two constants of the cost model that were "
            "fitted to times at the power limit, not measured by a meter for each part."
        ),
    )
