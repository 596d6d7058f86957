"""Split-K and stream-K: which programs have which steps of which tiles.

From `Scheduler` and `StreamK` of tritemm/kernels/device/, run in the place of every program.
"""

import dataclasses
import functools

from . import draw
from .draw import LIGHT, MARGIN, Panel, picture
from .formulas import module, shape

#: The kernels' tile, and the SMs of an H200.
ROWS, COLUMNS, DEPTH, SMS = 128, 256, 64, 132
#: Of the example: programs, tiles, steps of a tile, parts of a split K.
PROGRAMS, TILES, STEPS, PARTS = 8, 11, 12, 4


@dataclasses.dataclass(frozen=True)
class Piece:
    """Steps [first, first + steps) of a tile's K, a program's next work."""

    tile: int
    first: int
    steps: int


def pieces(
    name: str, tiles: int, steps: int, parts: int, program: int, programs: int
) -> list[Piece]:
    """Those of one program, by the "scheduler" or by "stream_k"; with one part, whole tiles.

    In stream-K at most `parts` programs share a tile.
    """
    own = shape(
        CLUSTER=1, SHARED="", BLOCK_M=ROWS, BLOCK_N=COLUMNS, BLOCK_K=DEPTH, GROUP_M=1,
        ORDER="grouped", SPLIT_K=parts,
    )  # fmt: skip
    kernel = module(name, program, programs)
    work = kernel.Scheduler(tiles * ROWS, COLUMNS, steps * DEPTH, 1, 1, own)
    numbers = range(work.first(), work.units(), work.stride())
    if name == "stream_k":
        work = kernel.stream_k(work)
        numbers = range(work.units())
    return [Piece(unit.tile, unit.first, unit.steps) for unit in map(work.unit, numbers)]


def of_all(name: str, tiles: int, steps: int, parts: int, programs: int) -> list[list[Piece]]:
    """The pieces of each program."""
    return [pieces(name, tiles, steps, parts, each, programs) for each in range(programs)]


split_k = functools.partial(of_all, "scheduler")
WAYS = {
    "Whole tiles": lambda *sizes: split_k(sizes[0], sizes[1], 1, sizes[3]),
    f"Split-K, {PARTS} parts": split_k,
    "Stream-K": functools.partial(of_all, "stream_k"),
}


def busiest(pieces: list[list[Piece]]) -> int:
    return max(sum(piece.steps for piece in own) for own in pieces)


def sums(pieces: list[list[Piece]], steps: int) -> int:
    """Partial sums that are written and read again: pieces that are no whole tile."""
    return sum(piece.steps < steps for own in pieces for piece in own)


def schedule(pieces: list[list[Piece]], most: int) -> Panel:
    """A row for each program, a box for each piece."""
    left, high = MARGIN + 26, 18
    unit = (draw.WIDTH - MARGIN - left) / most
    shapes = []
    for program, own in enumerate(pieces):
        x, y = left, program * high
        shapes.append(draw.note(left - 6, y + 13, f"P{program}"))
        for piece in own:
            wide = piece.steps * unit
            words = str(piece.tile) if wide > 22 else ""
            shapes.append(draw.cell(x, y, wide, high, LIGHT[piece.tile % 4], words))
            x += wide
    return Panel(len(pieces) * high + 10, shapes)


def schedules() -> str:
    """One product in three ways."""
    found = {words: way(TILES, STEPS, PARTS, PROGRAMS) for words, way in WAYS.items()}
    most = max(map(busiest, found.values()))
    panels = []
    for words, pieces in found.items():
        extra = sums(pieces, STEPS)
        said = f"{words}: {busiest(pieces)} steps, {extra or 'no'} partial sums"
        panels += [draw.paragraph(said, draw.NORMAL), schedule(pieces, most)]
    return picture(
        f"{TILES} tiles on {PROGRAMS} programs",
        draw.paragraph(
            f"Each tile has {STEPS} steps of K. A box has the number of its tile, and is as wide "
            "as the steps that a program does for it. Shared evenly, each program would have "
            f"{TILES * STEPS / PROGRAMS:g} steps."
        ),
        *panels,
    )


@functools.cache
def used(way: str, parts: int, tiles: int, steps: int = 64, programs: int = SMS) -> float:
    """The share of the SMs' time in which they multiply, if steps are all that takes any."""
    most = sum(piece.steps for piece in pieces(way, tiles, steps, parts, 0, programs))
    return tiles * steps / (programs * most)


CURVES = (
    ("Whole tiles", "scheduler", 1), ("Split-K, 2 parts", "scheduler", 2),
    ("Split-K, 4 parts", "scheduler", 4), ("Stream-K, tiles shared by up to 4", "stream_k", 4),
)  # fmt: skip
#: Tiles of the curves, three rounds.
LAST = 3 * SMS


def efficiency() -> str:
    """The share of time used, over the number of tiles."""
    panels = []
    left, right, high = MARGIN + 38, draw.WIDTH - MARGIN, 84

    def x(tiles: float) -> float:
        return left + (right - left) * tiles / LAST

    def y(percent: float) -> float:
        return 4 + high * (1 - percent / 100)

    for words, way, parts in CURVES:
        points = [(x(n), y(100 * used(way, parts, n))) for n in range(1, LAST + 1)]
        shapes = [
            *draw.columns(x, range(0, LAST + 1, SMS), 4, 4 + high),
            *draw.rows(y, (0, 50, 100), left, right, " %"),
            draw.path(points, draw.BLUE, 1.6),
        ]
        panels += [draw.paragraph(words, draw.NORMAL), Panel(high + 28, shapes)]
    return picture(
        f"How much of {SMS} SMs is at work",
        draw.paragraph("Over the number of tiles, each 64 steps of K deep:"),
        *panels,
        draw.axis_name("tiles"),
    )
