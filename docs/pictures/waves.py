"""Tiles on the SMs of an H200, wave by wave, where each SM has room for one program."""

from . import draw, h200
from .draw import MARGIN, WIDTH, Panel, picture
from .split import COLUMNS, ROWS

ACROSS = 22  # SMs of a row of the picture
#: M and N of the products.
PRODUCTS = ((2048, 2048), (3072, 1536), (4096, 4096))


def tiles(M: int, N: int) -> int:
    return -(-M // ROWS) * -(-N // COLUMNS)


def waves(M: int, N: int) -> list[int]:
    """How many SMs have a tile in each wave."""
    count, sms = tiles(M, N), h200.DEVICE.sms
    return [min(sms, count - first) for first in range(0, count, sms)]


def _wave(busy: int, x: float, y: float, side: float) -> list[str]:
    """All SMs; those with a tile are coloured."""
    down = h200.DEVICE.sms // ACROSS
    rows = [min(ACROSS, max(0, busy - row * ACROSS)) for row in range(down)]
    colored = [
        draw.rect(x, y + row * side, count * side, side, draw.BLUE)
        for row, count in enumerate(rows)
        if count
    ]
    return [*colored, draw.grid(x, y, ACROSS * side, down * side, down, ACROSS)]


def tail() -> str:
    """Three products; each wave is a picture of all SMs."""
    side, down, most = 4.9, h200.DEVICE.sms // ACROSS, 4
    each = (WIDTH - 2 * MARGIN) / most
    panels = []
    for M, N in PRODUCTS:
        own = waves(M, N)
        share = sum(own) / (len(own) * h200.DEVICE.sms)
        plural = "s" * (len(own) > 1)
        said = f"{M} x {N}: {sum(own)} tiles, {len(own)} wave{plural}, {100 * share:.0f} % busy"
        shapes = []
        for i, busy in enumerate(own):
            shapes += _wave(busy, MARGIN + i * each, 2, side)
            middle = MARGIN + i * each + ACROSS * side / 2
            shapes.append(draw.note(middle, down * side + 16, f"wave {i + 1}: {busy}", "middle"))
        panels += [draw.paragraph(said, draw.NORMAL), Panel(down * side + 26, shapes)]
    return picture(
        f"Waves of tiles on {h200.DEVICE.sms} SMs",
        draw.paragraph(
            f"Tiles of {ROWS} x {COLUMNS}, one on an SM at a time. A small square is an SM, blue "
            "while it has a tile; time goes to the right."
        ),
        *panels,
    )
