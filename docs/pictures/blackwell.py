"""A pair of SMs on Blackwell: who issues, where operands and sums are. Numbers are the kernel's."""

from docs.blackwell.shape import PAIR

from . import draw
from .draw import BLUE, GREEN, LIGHT, MARGIN, ORANGE, PINK, Panel, picture

#: Bytes of an element of A or B.
ELEMENT = 2
#: Rows of each program, and the columns of B that it loads.
ROWS, COLUMNS = PAIR.BLOCK_M // PAIR.CTAS, PAIR.BLOCK_N // PAIR.CTAS
#: Both SMs of the picture, where their boxes begin and how wide they are.
LEFTS, WIDE = (MARGIN, 245), 223
#: Where the rows of boxes begin, and how high a box is.
LOADED, CORES, SUMS, STORED, HIGH = 84, 176, 254, 340, 38


def stage() -> int:
    """Bytes of a stage in each program's shared memory."""
    return (ROWS + COLUMNS) * PAIR.BLOCK_K * ELEMENT


def box(x: float, y: float, width: float, color: str, *words: str) -> str:
    """A box of HIGH, with one line or two."""
    top = y + HIGH / 2 + 4.5 - 7.5 * (len(words) - 1)
    shown = [
        draw.text(x + width / 2, top + 15 * i, line, anchor="middle")
        for i, line in enumerate(words)
    ]
    return "".join([draw.rect(x, y, width, HIGH, color, draw.GREY), *shown])


def pair() -> str:
    """The way of a step from memory to the accumulators, and of these to C."""
    shapes = [
        draw.rect(MARGIN, 4, draw.WIDTH - 2 * MARGIN, 26, "#e8e8e8", draw.GREY),
        draw.text(draw.WIDTH / 2, 22, "A and B in memory", draw.NORMAL, "middle"),
    ]
    for program, left in enumerate(LEFTS):
        # The halves of a pair mirror each other: what both read is in the middle.
        outer, inner = (left + 8, left + 117) if program == 0 else (left + 117, left + 8)
        rows = f"{program * ROWS} to {(program + 1) * ROWS - 1}"
        columns = f"{program * COLUMNS} to {(program + 1) * COLUMNS - 1}"
        middle = inner + 49
        shapes += [
            draw.rect(left, 48, WIDE, STORED + HIGH + 10 - 48, "#fff", draw.GREY),
            draw.text(left + WIDE / 2, 62, f"program {program}:", anchor="middle"),
            draw.text(left + WIDE / 2, 77, "shared memory", anchor="middle"),
            box(outer, LOADED, 98, LIGHT[0], "A, rows", rows),
            box(inner, LOADED, 98, LIGHT[1], "B, columns", columns),
            box(inner, CORES, 98, "#e8e8e8", "tensor core"),
            box(left + 8, SUMS, WIDE - 16, LIGHT[2], f"tensor memory: {PAIR.ACCUMULATORS} x",
                f"[{ROWS} lanes, {PAIR.BLOCK_N} columns]"),
            box(left + 8, STORED, WIDE - 16, LIGHT[3], "store: 4 warps read the sums,",
                "TMA stores them as C"),
            draw.arrow(outer + 49, 30, outer + 49, LOADED - 1, BLUE),
            draw.arrow(middle, 30, middle, LOADED - 1, ORANGE),
            draw.arrow(outer + 49, LOADED + HIGH, inner + (12 if program == 0 else 86), CORES - 1,
                       BLUE),
            draw.arrow(middle, CORES + HIGH, middle, SUMS - 1, GREEN),
            draw.arrow(left + WIDE / 2, SUMS + HIGH, left + WIDE / 2, STORED - 1, PINK),
        ]  # fmt: skip
    first, second = LEFTS[0] + 166, LEFTS[1] + 57  # the middles of both tensor cores
    for start in (first, second):
        for end in (first, second):
            shapes.append(draw.arrow(start, LOADED + HIGH, end, CORES - 1, ORANGE))
    shapes += [
        box(LEFTS[0] + 8, CORES, 90, "#fff", "multiply:", "one thread"),
        draw.arrow(LEFTS[0] + 98, CORES + 12, LEFTS[0] + 116, CORES + 12),
        draw.path([(LEFTS[0] + 53, CORES + HIGH), (LEFTS[0] + 53, CORES + HIGH + 14),
                   (second - 24, CORES + HIGH + 14)], weight=1.8),
        draw.arrow(second - 24, CORES + HIGH + 14, second - 24, CORES + HIGH + 1),
        draw.note(LEFTS[1] + WIDE - 8, CORES + 16, "its own multiply"),
        draw.note(LEFTS[1] + WIDE - 8, CORES + 31, "issues nothing"),
    ]  # fmt: skip
    return picture(
        "Two SMs multiply one tile",
        draw.paragraph(
            f"A tile of {PAIR.BLOCK_M} x {PAIR.BLOCK_N} in steps of {PAIR.BLOCK_K}, 16-bit. A "
            f"stage is {stage() // 1024} KB in each program: its rows of A and its half of B, "
            "which both tensor cores read (orange)."
        ),
        Panel(STORED + HIGH + 16, shapes),
        draw.paragraph(
            "One thread of program 0 issues the products of both (black). The sums stay in tensor "
            "memory (green) until four warps of each program read them (pink)."
        ),
    )
