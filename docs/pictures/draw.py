"""SVG by hand: shapes are strings, panels stack below each other, and a picture is one file.

A picture is 480 units wide, so that its smallest text is 9 pixels high on a phone that shows it 380
pixels wide. It has a white ground of its own, for pages that are dark. Text is text, in DejaVu Sans
or in Verdana, whose widths are the same. Nothing in a file depends on when or where it was drawn.
"""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Sequence
from xml.sax.saxutils import escape

#: Units; the pixels of a picture where a page has room for more.
WIDTH, MARGIN = 480, 12
PIXELS = 720
#: Sizes of text. The smallest is 9 pixels where the picture is 380 wide.
SMALL, NORMAL, LARGE = 11.5, 12.5, 14.5
#: Of a line of text, a letter of a word and a digit, relative to the size.
LINE, LETTER, DIGIT = 1.35, 0.535, 0.64
INK, GREY, FAINT = "#111111", "#5a5a5a", "#c4c4c4"
#: Okabe and Ito's colours, which colour-blind readers tell apart; the same, light enough for text.
BLUE, ORANGE, GREEN, PINK, RED = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00"
LIGHT = ("#cfe6f7", "#ffe2a8", "#c5ebdb", "#f3d3e5")
#: A value of an axis -> its place.
Scale = Callable[[float], float]
_CLASSES = {SMALL: "s", NORMAL: "n", LARGE: "t"}
_STYLE = (
    "text{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#111}"
    f".s{{font-size:{SMALL}px}}.n{{font-size:{NORMAL}px}}"
    f".t{{font-size:{LARGE}px;font-weight:bold}}"
    ".middle{text-anchor:middle}.end{text-anchor:end}"
)


@dataclasses.dataclass(frozen=True)
class Panel:
    """Shapes that take so many units of height, from (0, 0) down."""

    height: float
    shapes: Sequence[str]


def number(value: float) -> str:
    return f"{round(value, 1):g}"


def rect(
    x: float, y: float, width: float, height: float, fill: str, line: str = "", weight: float = 1
) -> str:
    place = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
    stroke = f' stroke="{line}"' if line else ""
    stroke += f' stroke-width="{number(weight)}"' if weight != 1 else ""
    return f'<rect {place} fill="{fill}"{stroke}/>'


def path(points: Sequence[tuple[float, float]], color: str = INK, weight: float = 1) -> str:
    """A line through the points."""
    steps = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return (
        f'<polyline points="{steps}" fill="none" stroke="{color}" stroke-width="{number(weight)}"/>'
    )


def lines(segments: Sequence[tuple[float, float, float, float]], color: str = FAINT) -> str:
    """Many thin lines (x, y, x, y) as one shape."""
    steps = "".join(f"M{number(a)} {number(b)}L{number(c)} {number(d)}" for a, b, c, d in segments)
    return f'<path d="{steps}" stroke="{color}" stroke-width=".7" fill="none"/>'


def grid(x: float, y: float, width: float, height: float, rows: int, cols: int) -> str:
    across = [(x, y + i * height / rows, x + width, y + i * height / rows) for i in range(rows + 1)]
    down = [(x + i * width / cols, y, x + i * width / cols, y + height) for i in range(cols + 1)]
    return lines([*across, *down])


def arrow(x: float, y: float, to_x: float, to_y: float, color: str = INK) -> str:
    """A straight one, which ends in a triangle."""
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    along = ((to_x - x) / length, (to_y - y) / length)
    base = (to_x - 8 * along[0], to_y - 8 * along[1])
    side = (-4 * along[1], 4 * along[0])
    corners = [(to_x, to_y), (base[0] + side[0], base[1] + side[1]),
               (base[0] - side[0], base[1] - side[1])]  # fmt: skip
    points = " ".join(f"{number(a)},{number(b)}" for a, b in corners)
    return path([(x, y), base], color, 1.8) + f'<polygon points="{points}" fill="{color}"/>'


def text(
    x: float, y: float, words: str, size: float = SMALL, anchor: str = "", color: str = INK
) -> str:
    """One line whose baseline is at y; `anchor` is "", "middle" or "end"."""
    classes = f"{_CLASSES[size]} {anchor}".strip()
    fill = f' style="fill:{color}"' if color != INK else ""
    return f'<text class="{classes}" x="{number(x)}" y="{number(y)}"{fill}>{escape(words)}</text>'


def note(x: float, y: float, words: object, anchor: str = "end") -> str:
    """Grey words beside a shape."""
    return text(x, y, str(words), anchor=anchor, color=GREY)


def cell(
    x: float, y: float, width: float, height: float, fill: str, words: str, color: str = INK
) -> str:
    """A box with words in its middle."""
    middle = text(x + width / 2, y + height / 2 + 4.5, words, anchor="middle", color=color)
    return rect(x, y, width, height, fill, "#fff") + middle


def columns(at: Scale, values: Iterable[float], top: float, bottom: float) -> list[str]:
    """Vertical lines at some values of an axis, and the numbers below."""
    values = list(values)
    numbers = (note(at(v), bottom + 13, f"{v:g}", "middle") for v in values)
    return [lines([(at(v), top, at(v), bottom) for v in values]), *numbers]


def rows(
    at: Scale, values: Iterable[float], left: float, right: float, unit: str = ""
) -> list[str]:
    """Horizontal lines at some values of an axis, and the numbers to the left."""
    values = list(values)
    numbers = (note(left - 6, at(v) + 4, f"{v:g}{unit}") for v in values)
    return [lines([(left, at(v), right, at(v)) for v in values]), *numbers]


def dot(x: float, y: float, color: str) -> str:
    return f'<circle cx="{number(x)}" cy="{number(y)}" r="4.5" fill="{color}" stroke="#fff"/>'


def width_of(words: str, size: float = SMALL) -> float:
    """About: letters of DejaVu Sans differ, and bold ones are wider."""
    digits = sum(letter.isdigit() or letter.isupper() for letter in words)
    wide = 1.14 if size == LARGE else 1
    return (digits * DIGIT + (len(words) - digits) * LETTER) * size * wide


def paragraph(words: str, size: float = SMALL, color: str = INK) -> Panel:
    """Lines as wide as the picture."""
    room = int((WIDTH - 2 * MARGIN) / (LETTER * size))
    broken = textwrap.wrap(words, room)
    height = size * LINE
    shapes = [
        text(MARGIN, (i + 0.8) * height, line, size, "", color) for i, line in enumerate(broken)
    ]
    return Panel(len(broken) * height + 4, shapes)


def axis_name(words: str) -> Panel:
    """The label of a horizontal axis, at its end."""
    return Panel(SMALL * LINE + 2, [note(WIDTH - MARGIN, 10, words)])


def heading(words: str) -> Panel:
    """Bold, and with room above."""
    broken = textwrap.wrap(words, int((WIDTH - 2 * MARGIN) / (LETTER * 1.14 * LARGE)))
    shapes = [text(MARGIN, 20 + i * LARGE * LINE, line, LARGE) for i, line in enumerate(broken)]
    return Panel(12 + len(broken) * LARGE * LINE, shapes)


def legend(entries: Sequence[tuple[str, str]]) -> Panel:
    """(colour, words) beside each other, as many lines as it takes."""
    shapes, x, y = [], MARGIN, 0.0
    for color, words in entries:
        need = 18 + width_of(words) + 10
        if x > MARGIN and x + need > WIDTH - MARGIN + 10:
            x, y = MARGIN, y + 18
        shapes += [rect(x, y + 1, 13, 13, color, GREY), text(x + 18, y + 12, words)]
        x += need
    return Panel(y + 22, shapes)


def picture(title: str, *panels: Panel) -> str:
    """The file: panels below each other, under the title."""
    y, parts = 4.0, []
    for panel in (heading(title), *panels):
        parts.append(f'<g transform="translate(0 {number(y)})">{"".join(panel.shapes)}</g>')
        y += panel.height
    height = number(y + 8)
    size = f'width="{PIXELS}" height="{number(PIXELS / WIDTH * (y + 8))}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>'
    ground = f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#fff"/>'
    return "\n".join(
        [head, f"<title>{escape(title)}</title><style>{_STYLE}</style>", ground, *parts, "</svg>\n"]
    )


@dataclasses.dataclass(frozen=True)
class Bar:
    """A value with its words.

    `mark` is another value of the same thing, shown as a line, and `more` is added to it in orange.
    """

    words: str
    value: float
    said: str
    color: str = BLUE
    mark: float | None = None
    more: float = 0


def bars(entries: Sequence[Bar], most: float | None = None) -> Panel:
    """Bars from 0 below each other, each under its words."""
    most = most or max(max(bar.value + bar.more, bar.mark or 0) for bar in entries)
    room, each = WIDTH - 2 * MARGIN - 4, 38
    shapes = []
    for i, bar in enumerate(entries):
        y, wide = i * each, max(1.0, room * bar.value / most)
        shapes += [
            text(MARGIN, y + 13, bar.words),
            note(WIDTH - MARGIN, y + 13, bar.said),
            rect(MARGIN, y + 18, wide, 13, bar.color),
        ]
        if bar.more:
            shapes.append(rect(MARGIN + wide, y + 18, room * bar.more / most, 13, ORANGE))
        if bar.mark is not None:
            x = MARGIN + room * bar.mark / most
            shapes.append(path([(x, y + 15), (x, y + 34)], INK, 2.5))
    return Panel(len(entries) * each + 4, shapes)
