"""When the buffers of the classic rungs are filled and multiplied, by their own loops.

From `docs.exercises.loops`, which runs a rung's function with a clock.
"""

from docs.exercises import loops

from . import draw
from .draw import MARGIN, Panel, picture

#: Cycles of a step's copies and of its products, and steps.
LOAD, MULTIPLY, STEPS = 1300, 700, 12
#: Rung and buffers.
LOOPS = (("async", 1), ("async_pg2s", 2), *(("async_stages", count) for count in (2, 3, 4)))
FILLED, MULTIPLIED = draw.LIGHT[0], draw.BLUE


def loop(rung: str, buffers: int, most: int) -> list[Panel]:
    """Words, and a row for each buffer; `most` cycles are the width."""
    clock = loops.run(rung, STEPS, LOAD, MULTIPLY, buffers)
    left, high = MARGIN + 2, 13
    unit = (draw.WIDTH - MARGIN - left) / most
    shapes = []

    def box(step: int, begin: int, end: int, color: str) -> None:
        place = (left + begin * unit, step % buffers * high, (end - begin) * unit, high - 2)
        shapes.append(draw.rect(*place, color))

    for step, (begin, end) in enumerate(clock.copies[:STEPS]):
        box(step, begin, end, FILLED)
    for step, begin, end in clock.products:
        box(step, begin, end, MULTIPLIED)
    plural = "s" * (buffers > 1)
    words = f"{rung}, {buffers} buffer{plural}: {clock.now:,} cycles"
    return [draw.paragraph(words, draw.NORMAL), Panel(buffers * high + 8, shapes)]


def buffers() -> str:
    """Five loops over the same steps, at one scale."""
    most = max(loops.cycles(rung, STEPS, LOAD, MULTIPLY, count) for rung, count in LOOPS)
    panels = [panel for rung, count in LOOPS for panel in loop(rung, count, most)]
    return picture(
        f"{STEPS} steps: a row is a buffer",
        draw.paragraph(
            f"If a step's copies take {LOAD:,} cycles, its products {MULTIPLY}, and all else none."
        ),
        draw.legend([(FILLED, "copies in flight"), (MULTIPLIED, "being multiplied")]),
        *panels,
    )
