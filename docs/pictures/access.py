"""What a warp's load touches: 32 neighbouring elements, or 32 that are far apart."""

from . import draw, h200
from .draw import MARGIN, WIDTH, Panel, picture

#: Bytes of an element, of a sector, which is the least that is moved, and of a line of a cache.
ELEMENT, SECTOR, LINE = 4, 32, 128
STRIDES = (1, 2, 8)


def addresses(stride: int) -> list[int]:
    """The first byte of each thread's element."""
    return [thread * stride * ELEMENT for thread in range(h200.WARP)]


def sectors(stride: int) -> list[int]:
    """The sectors that the warp's load touches, once each."""
    return sorted({address // SECTOR for address in addresses(stride)})


def used(stride: int) -> float:
    """The share of the bytes moved that the warp asked for."""
    return h200.WARP * ELEMENT / (len(sectors(stride)) * SECTOR)


def _memory(stride: int) -> Panel:
    """Lines of memory below each other: what is asked for, and what moves with it."""
    side, high = (WIDTH - 2 * MARGIN) / (LINE // ELEMENT), 15
    wanted, moved = set(addresses(stride)), set(sectors(stride))
    lines = max(wanted) // LINE + 1
    shapes = []
    for line in range(lines):
        for word in range(LINE // ELEMENT):
            address = line * LINE + word * ELEMENT
            asked = address in wanted
            fill = "#ffffff"
            if address // SECTOR in moved:
                fill = draw.BLUE if asked else draw.LIGHT[0]
            place = (MARGIN + word * side, line * (high + 3), side, high)
            shapes.append(draw.rect(*place, fill, draw.FAINT))
    return Panel(lines * (high + 3) + 6, shapes)


def warp() -> str:
    """Three strides of the same load."""
    panels = []
    for stride in STRIDES:
        moved = len(sectors(stride)) * SECTOR
        said = f"stride {stride}: {moved:,} bytes are moved, {100 * used(stride):g} % are used"
        panels += [draw.paragraph(said, draw.NORMAL), _memory(stride)]
    return picture(
        "One load of a warp",
        draw.paragraph(
            f"{h200.WARP} threads load {ELEMENT} bytes each. A row is {LINE} bytes of memory, a "
            f"box {ELEMENT} of them. Memory moves whole sectors of {SECTOR} bytes."
        ),
        draw.legend([(draw.BLUE, "asked for"), (draw.LIGHT[0], "moved, too")]),
        *panels,
    )
