"""A triangle of tiles, folded into a rectangle.

From `triangular` of tritemm/kernels/device/raster.py.
"""

from . import draw
from .draw import LIGHT, MARGIN, Panel, picture
from .formulas import module

#: Rows of the example's triangle.
COUNT = 7


def tiles(count: int, order: str = "linear", group: int = 1) -> list[tuple[int, int]]:
    """(row, column) of each program's tile."""
    triangular = module("raster").triangular
    return [triangular(pid, count, 1, 1, order, group) for pid in range(count * (count + 1) // 2)]


def folded() -> str:
    """The triangle, and the rectangle in which programs walk it."""
    wide, high, gap = 26, 20, 34
    shapes, right = [], MARGIN + COUNT * wide + gap
    shapes.append(draw.grid(MARGIN, 0, COUNT * wide, COUNT * high, COUNT, COUNT))
    across = COUNT + 1 - COUNT % 2
    for program, (row, col) in enumerate(tiles(COUNT)):
        nth, place = divmod(program, across)
        color = LIGHT[nth % 4]
        shapes.append(draw.cell(MARGIN + col * wide, row * high, wide, high, color, str(program)))
        words = f"{row},{col}"
        shapes.append(draw.cell(right + place * wide, nth * high, wide, high, color, words))
    return picture(
        f"A triangle of {COUNT} rows of tiles, folded",
        draw.paragraph(
            "Left: the tiles of C, each with the number of its program. Right: the rectangle that "
            "programs walk row by row, each place with the row and the column of its tile."
        ),
        Panel(COUNT * high + 6, shapes),
    )
