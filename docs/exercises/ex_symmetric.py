"""Which tile of a folded triangle does a program get?

C is symmetric and has `count` rows of square tiles. Row r of its lower triangle has r + 1 tiles,
from (r, 0) to (r, r). The triangle is folded into a rectangle without gaps: the rectangle's first
row begins with the triangle's longest row, its second with the second longest, and so on, and the
short row that fills it follows, first tile first. If `count` is even, the row of one tile follows
the longest row, the row of two the second longest, and so on. If `count` is odd, the longest row
fills a row of the rectangle alone, and the row of one tile follows the second longest. Programs
walk the rectangle row by row. In which row and column of tiles is the tile of program number
`program`?
"""

from docs.pictures import formulas

from . import Answer, same

#: Rows of tiles.
COUNTS = (1, 2, 3, 4, 7, 8, 16, 33)


def answer(program: int, count: int) -> tuple[int, int]:
    odd = count % 2
    nth, place = divmod(program, count + 1 - odd)
    row = count - 1 - nth
    if place <= row:
        return row, place
    return nth - odd, place - row - 1


def check(function: Answer) -> None:
    """Against the order of the rungs that compute a triangle."""
    triangular = formulas.module("raster").triangular
    for count in COUNTS:
        for program in range(count * (count + 1) // 2):
            want = triangular(program, 128 * count, 128, 128, "linear", 1)
            same(function, want, program=program, count=count)
