"""What the warps of one SM did, moment by moment, from the stamps of docs/timeline.

A line is a warpgroup: its first warp stands for it. Programs that follow each other on the SM have
the same lines. Above is what a tile is in, below what the warp does.
"""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from docs.timeline.measure import DATA, GROUP, RUNGS, WARP
from docs.timeline.stamps import ACTIVITIES

from . import draw
from .draw import BLUE, GREEN, MARGIN, ORANGE, Panel, picture

COLORS = {"other": "#efefef", "load": BLUE, "wait": "#b5b5b5", "multiply": GREEN, "store": ORANGE}
LEGEND = (
    (GREEN, "issues products or waits for them"), (BLUE, "issues loads"),
    (COLORS["wait"], "waits for data or its turn"), (ORANGE, "converts and stores"),
    (COLORS["other"], "does anything else"),
)  # fmt: skip
#: Cycles that the pictures of single rungs show.
SHOWN = 22_000
_LEFT, _BAND, _DETAIL, _LINE = MARGIN + 66, 9, 15, 38

Span = tuple[int, int, str]


@functools.cache
def data() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def spans(row: dict[str, Any]) -> list[Span]:
    """Begin, end and activity, in cycles."""
    ends = [*row["at"][1:], row["at"][-1]]
    return list(zip(row["at"], ends, [ACTIVITIES[i] for i in row["activity"]], strict=True))


def phases(row: dict[str, Any]) -> Iterator[Span]:
    """Spans of each tile: from its first product to its last ("multiply"), and its epilogue
    ("store"), by which a tile is known: a wait for products when there are none is no tile."""
    first = last = None
    for begin, end, activity in spans(row):
        if activity == "multiply":
            first, last = begin if first is None else first, end
        elif activity == "store":
            if first is not None:
                yield first, last, "multiply"
            first = None
            yield begin, end, "store"


def _lines(rung: str) -> dict[int, list[dict[str, Any]]]:
    """The rows of each warpgroup, whatever their programs."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in data()["rungs"][rung]["rows"]:
        found.setdefault(row["warp"] * WARP // GROUP, []).append(row)
    return dict(sorted(found.items()))


def _role(rows: list[dict[str, Any]], group: int) -> str:
    multiplies = ACTIVITIES.index("multiply")
    busy = any(multiplies in row["activity"] for row in rows)
    return f"warps {4 * group}-{4 * group + 3}" if busy else "producer"


def _at(most: int) -> Callable[[float], float]:
    """The place of a time, in thousands of cycles, if `most` cycles are shown."""
    return lambda cycles: _LEFT + 1000 * (draw.WIDTH - MARGIN - _LEFT) * cycles / most


def _axis(most: int, height: float) -> list[str]:
    step = 5 if most < 60_000 else 20
    return draw.columns(_at(most), range(0, most // 1000 + 1, step), 0, height)


def _bars(found: list[Span], y: float, height: float, most: int) -> list[str]:
    shapes, at = [], _at(most)
    for begin, end, activity in found:
        if begin < most and end > begin:
            x = at(begin / 1000)
            wide = max(0.3, at(min(end, most) / 1000) - x)
            shapes.append(draw.rect(x, y, wide, height, COLORS[activity]))
    return shapes


def detail(rung: str) -> str:
    """The first cycles of one rung."""
    found = data()["rungs"][rung]
    shapes: list[str] = []
    lines = _lines(rung)
    for i, (group, rows) in enumerate(lines.items()):
        y = i * _LINE
        shapes.append(draw.text(_LEFT - 6, y + 22, _role(rows, group), anchor="end"))
        for row in rows:
            shapes += _bars(list(phases(row)), y + 3, _BAND, SHOWN)
            shapes += _bars(spans(row), y + 4 + _BAND, _DETAIL, SHOWN)
    height = len(lines) * _LINE
    panel = Panel(height + 18, (*_axis(SHOWN, height), *shapes))
    return picture(
        f"One SM in {rung}",
        draw.paragraph(_case()),
        draw.paragraph("A line is a warpgroup. Its upper strip spans a tile's products, from the "
                       "first to the last, and its epilogue; the lower says what its first warp "
                       "does."),
        draw.legend(LEGEND),
        panel,
        draw.axis_name("thousand cycles of the SM's clock"),
        draw.paragraph(
            f"{found['cycles']:,} cycles in all without the stamps, {_last(rung):,} with them."
        ),
    )  # fmt: skip


def _case() -> str:
    case, gpu = data()["case"], data()["environment"]["gpu"]
    return f"{case['M']} x {case['N']} x {case['K']} {case['layout']}, {case['dtype']}, {gpu}."


def _tiles(rung: str) -> int:
    """As many as have an epilogue, of all warpgroups; those that share a tile count it once."""
    lines = _lines(rung).values()
    counts = [sum(s[2] == "store" for row in rows for s in phases(row)) for rows in lines]
    return sum(counts) if rung == "pingpong" else max(counts)


def _last(rung: str) -> int:
    return max(row["at"][-1] for row in data()["rungs"][rung]["rows"])


def overview() -> str:
    """All rungs at the same scale: products and epilogues alone."""
    most = max(map(_last, RUNGS))
    shapes: list[str] = []
    y = 0.0
    for rung in RUNGS:
        said = f"{rung}: {_tiles(rung)} tiles in {_last(rung):,} cycles"
        shapes.append(draw.text(MARGIN, y + 12, said))
        y += 17
        for group, rows in _lines(rung).items():
            if _role(rows, group) == "producer":
                continue
            shapes.append(draw.note(_LEFT - 6, y + 11, _role(rows, group)))
            for row in rows:
                shapes += _bars(list(phases(row)), y + 1, 12, most)
            y += 15
        y += 8
    return picture(
        "The same product in five rungs, on one SM",
        draw.paragraph(_case()),
        draw.paragraph("From a tile's first product to its last, and its epilogue. The tiles of "
                       "pingpong are half as large. "
                       "Where a column is white or orange in all lines, the tensor core idles. In "
                       "tiled it also idles within the green, during each step's loads."),
        draw.legend(((GREEN, "products"), (ORANGE, "epilogue"))),
        Panel(y + 18, (*_axis(most, y), *shapes)),
        draw.axis_name("thousand cycles of the SM's clock"),
    )  # fmt: skip


#: What draws each picture, by its name.
PICTURES: dict[str, Callable[[], str]] = {
    "timelines": overview,
    **{f"timeline-{rung}": functools.partial(detail, rung) for rung in RUNGS},
}
