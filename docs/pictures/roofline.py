"""The roofline of an H200: rates of arithmetic that memory allows, and products under it."""

import dataclasses
import math

from docs.cards import TUNED
from perf import tables
from perf.views import newest_suite

from . import draw, energy, h200
from .draw import MARGIN, WIDTH, Panel, picture

#: FLOP for each byte, and TFLOP/s, at the ends of the axes.
INTENSITIES, SPEEDS = (0.05, 10_000.0), (0.1, 2000.0)
#: Bytes of an element of 16 bits.
SIZE = 2
#: Of the suite: one row, some rows, a small square and a large one.
SHOWN = ("D1", "D4", "S1", "S4")
COLORS = (draw.RED, draw.ORANGE, draw.GREEN, draw.BLUE)


@dataclasses.dataclass(frozen=True)
class Point:
    """A measured product."""

    words: str
    intensity: float
    tflops: float


def intensity(M: int, N: int, K: int) -> float:
    """FLOP for each byte of A, B and C, of 16 bits, if each element is moved once."""
    return 2 * M * N * K / (SIZE * (M * K + K * N + M * N))


def allowed(intensity: float) -> float:
    """FLOP per second that memory and arithmetic allow."""
    return min(h200.DENSE, intensity * h200.COPY)


def points() -> list[Point]:
    """The newest rows of `SHOWN`, of tritemm.matmul."""
    results = tables.against_cublas(newest_suite(list(energy.rows()), TUNED))
    own = {result.id: result.ours for result in results}
    found = []
    for name in SHOWN:
        row = own[name]
        case = row.case
        words = f"{case.M} x {case.N} x {case.K}"
        found.append(Point(words, intensity(case.M, case.N, case.K), row.tflops))
    return found


def roof() -> str:
    """The roof, where it bends, and the points."""
    left, right, top, bottom = MARGIN + 34, WIDTH - MARGIN - 4, 8, 280

    def x(value: float) -> float:
        return left + (right - left) * _share(value, *INTENSITIES)

    def y(tflops: float) -> float:
        return bottom - (bottom - top) * _share(tflops, *SPEEDS)

    ends = (INTENSITIES[0], h200.RIDGE, INTENSITIES[1])
    line = [(x(each), y(allowed(each) / 1e12)) for each in ends]
    shapes = [
        *draw.columns(x, (0.1, 1, 10, 100, 1000), top, bottom),
        *draw.rows(y, (0.1, 1, 10, 100, 1000), left, right),
        draw.lines([(x(h200.RIDGE), y(h200.DENSE / 1e12), x(h200.RIDGE), bottom)], draw.GREY),
        draw.path(line, draw.INK, 2),
        draw.text(x(h200.RIDGE) + 5, bottom - 8, f"ridge: {h200.RIDGE:.0f}"),
        draw.text(x(0.07), y(14), f"memory: {h200.COPY / 1e12:.2f} TB/s"),
        draw.text(
            right, y(h200.DENSE / 1e12) - 6, f"{h200.DENSE / 1e12:.0f} TFLOP/s", anchor="end"
        ),
    ]
    entries = []
    for point, color in zip(points(), COLORS, strict=True):
        shapes.append(draw.dot(x(point.intensity), y(point.tflops), color))
        of_byte = float(f"{point.intensity:.3g}")
        words = f"{point.words}: {of_byte:,g} FLOP/byte, {point.tflops:.3g} TFLOP/s"
        entries.append((color, words))
    return picture(
        "The roofline of an H200",
        draw.paragraph("TFLOP/s over FLOP per byte; both axes are logarithmic", color=draw.GREY),
        Panel(bottom + 18, shapes),
        draw.axis_name("FLOP per byte"),
        *(draw.legend([entry]) for entry in entries),
        draw.paragraph(
            "The line is what memory and the tensor cores allow. A dot is what tritemm.matmul "
            "reached in bf16, by the newest race of the suite."
        ),
    )  # fmt: skip


def _share(value: float, least: float, most: float) -> float:
    """Its place on a logarithmic axis, from 0 to 1."""
    return math.log(value / least) / math.log(most / least)
