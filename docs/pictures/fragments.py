"""Who holds which element: fragments of mma, ldmatrix, wgmma and wmma, from their index formulas.

The formulas are `cuda_reference.types.fragments`, which a device confirms
(tests/cuda/test_fragments.py).
"""

from collections.abc import Iterable, Mapping

from cuda_reference.types import find
from cuda_reference.types.fragments import Fragment, fragment, ldmatrix

from . import draw
from .draw import LIGHT, MARGIN, Panel, picture

MMA = find("mma.m16n8k16.row.col.f32.f16.f16.f32")
WMMA = find("wmma.m16n16k16.row.col.f32.f32")
WGMMA = find("wgmma.m64n16k16.row.col.f32.f16.f16")
#: Width of a word of two elements, and the height of a row.
WORD, ROW = 25.5, 19
#: Whose elements are outlined: of the second group of four, the second.
SHOWN = 5

#: (row, column) of an element -> (thread, number of the word of two neighbours that it is in).
Words = Mapping[tuple[int, int], tuple[int, int]]


def words(held: Fragment) -> Words:
    """The thread of each element, and which pair of that thread's it belongs to.

    Where a thread holds an element several times, the first counts.
    """
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for thread, elements in enumerate(held.elements):
        for i, element in enumerate(elements):
            found.setdefault(element, (thread, i // 2))
    return found


def table(found: Words, x: float, y: float, down: bool = False, wide: float = WORD,
          high: float = ROW, shown: int = SHOWN, first: int = 0) -> list[str]:  # fmt: skip
    """A matrix of words, whose colour is the register and whose text the thread; with the numbers
    of every second row, from `first` on, and column.

    `down`: the two elements of a word are neighbours in a column, not in a row.
    """
    shapes, marks = [], []
    for (row, col), (thread, word) in sorted(found.items()):
        along, across = (row, col) if down else (col, row)
        if along % 2:
            continue
        place = (across, along // 2) if down else (along // 2, across)
        left, top = x + place[0] * wide, y + place[1] * high
        shapes.append(draw.cell(left, top, wide, high, LIGHT[word % len(LIGHT)], f"T{thread}"))
        if thread == shown:
            marks.append(draw.rect(left, top, wide, high, "none", draw.INK, 2))
    rows, cols = (1 + max(places) for places in zip(*found, strict=True))
    each = (2, 1) if down else (1, 2)
    shapes += numbered_rows(x, y, range(first, first + rows, 2 * each[0]), 2 * high)
    marks += [draw.note(x + (2 * i + 0.5) * wide, y - 5, number, "middle")
              for i, number in enumerate(range(0, cols, 2 * each[1]))]  # fmt: skip
    return shapes + marks


def numbered_rows(x: float, y: float, numbers: Iterable[int], step: float) -> list[str]:
    """The numbers of rows, beside a table."""
    return [draw.note(x - 4, y + (i + 0.375) * step, number) for i, number in enumerate(numbers)]


def product(a: Words, b: Words, d: Words, k: int, n: int) -> Panel:
    """B above D, and A beside it, as the product is written."""
    left = MARGIN + 18
    right, top = left + k // 2 * WORD + 26, 40
    below = top + k // 2 * ROW + 40
    shapes = [
        draw.note(left, 40, "T5 is thread 5 of the warp;", ""),
        draw.note(left, 56, "its elements are outlined.", ""),
        draw.text(left, below - 22, f"A, 16 x {k}", draw.NORMAL),
        draw.text(right, top - 22, f"B, {k} x {n}", draw.NORMAL),
        draw.text(right, below - 22, f"D, 16 x {n}", draw.NORMAL),
        *table(a, left, below),
        *table(b, right, top, down=True),
        *table(d, right, below, wide=2 * WORD),
    ]
    return Panel(below + 16 * ROW + 8, shapes)


def mma() -> str:
    """A, B and D of m16n8k16."""
    a, b, d = (words(fragment(MMA, operand)) for operand in "abd")
    keys = [(LIGHT[i], f"a{i}" + f", b{i}, d{2 * i} d{2 * i + 1}" * (i < 2)) for i in range(4)]
    return picture(
        "mma.m16n8k16, 16-bit: who holds what",
        draw.legend(keys),
        product(a, b, d, 16, 8),
        draw.paragraph(
            "The colour is the register. Each of A's and B's holds two neighbours along K; D's are "
            "fp32, two registers for two neighbours of a row."
        ),
    )


def addresses(trans: bool) -> dict[int, tuple[int, int]]:
    """lane -> (row, first column) that it points ldmatrix to, so that A, or B by rows, comes out.

    Worked out of what ldmatrix gives and what mma takes: row L of what is loaded is where lane L
    points.
    """
    count, operand = (2, "b") if trans else (4, "a")
    found = {}
    loaded, taken = ldmatrix(count, trans), fragment(MMA, operand)
    for given, wanted in zip(loaded.elements, taken.elements, strict=True):
        for (row, col), (at_row, at_col) in zip(given, wanted, strict=True):
            if col == 0:
                found[row] = (at_row, at_col)
    return found


def pointers(found: Mapping[int, tuple[int, int]], x: float, y: float, wide: float) -> list[str]:
    """Each lane in the row of 16 bytes that it points to."""
    shapes = numbered_rows(x, y, range(0, 16, 2), 2 * ROW)
    for lane, (row, col) in sorted(found.items()):
        at = (x + col // 8 * wide, y + row * ROW)
        shapes.append(draw.cell(*at, wide, ROW, LIGHT[lane // 8 % 4], f"lane {lane}"))
    return shapes


def loads() -> str:
    """Where the lanes point, and who receives what: of A, and of B stored by rows."""
    a, b = words(fragment(MMA, "a")), words(fragment(MMA, "b"))
    left, wide, top = MARGIN + 18, 72, 30
    right = left + 2 * wide + 44
    of_a = [
        draw.note(left, 10, "16 bytes that each points to", ""),
        draw.note(right, 10, "who receives which pair", ""),
        *pointers(addresses(False), left, top, wide),
        *table(a, right, top),
    ]
    of_b = [
        *pointers(addresses(True), left, top, wide),
        *table(b, right, top, down=True, high=2 * ROW),
        draw.note(right + 4 * WORD, top + 16 * ROW + 14, "a pair is two rows of K", "middle"),
    ]
    height = top + 16 * ROW
    keys = [(LIGHT[i], f"matrix and register {i}") for i in range(4)]
    return picture(
        "ldmatrix: 8 x 8 matrices, a row for each lane's address",
        draw.paragraph("A, 16 x 16 by rows: ldmatrix.x4", draw.NORMAL),
        draw.legend(keys),
        Panel(height + 10, of_a),
        draw.paragraph("B, 16 x 8 by rows: ldmatrix.x2.trans", draw.NORMAL),
        Panel(height + 24, of_b),
        draw.paragraph(
            "Lanes 8 i to 8 i + 7 point to the rows of matrix i, and every lane receives two "
            "elements of each matrix, which is where mma needs them. With .trans they come from a "
            "column, so B need not be stored along K."
        ),
    )


def wgmma() -> str:
    """D of m64n16k16: the warps' rows, and one warp's elements."""
    held = fragment(WGMMA, "d")
    found = words(held)
    high, left = 46, MARGIN + 40
    whole = []
    for warp in range(4):
        rows = sorted({row for row, _ in sum(held.elements[32 * warp : 32 * warp + 32], ())})
        top = warp * high
        said = f"warp {warp}: threads {32 * warp} to {32 * warp + 31}"
        whole += [
            draw.rect(left, top, 392, high, "#f2f2f2" if warp != 1 else "#dcdcdc", "#fff"),
            draw.note(left - 6, top + 16, rows[0]),
            draw.note(left - 6, top + high - 6, rows[-1]),
            draw.text(left + 10, top + 28, said, draw.NORMAL),
        ]
    second = {(row - 16, col): at for (row, col), at in found.items() if 16 <= row < 32}
    detail = table(second, left, 18, wide=49, shown=32 + SHOWN, first=16)
    keys = [(LIGHT[i], f"d{2 * i} d{2 * i + 1}") for i in range(4)]
    return picture(
        "wgmma.m64n16k16: a warpgroup's D, 64 x 16",
        draw.paragraph("Each of the four warps has 16 rows:", draw.NORMAL),
        Panel(4 * high + 10, whole),
        draw.paragraph("Rows 16 to 31, those of warp 1, and all 16 columns:", draw.NORMAL),
        draw.legend(keys),
        Panel(18 + 16 * ROW + 10, detail),
        draw.paragraph(
            "A pair is two fp32 registers. If there are more columns, the next 8 are the next 4 "
            "registers. A and B are in shared memory; if A is in registers, each warp has it as "
            "mma does."
        ),
    )


def wmma() -> str:
    """D and A of m16n16k16."""
    d, a = words(fragment(WMMA, "d")), words(fragment(WMMA, "a"))
    left, wide = MARGIN + 22, 53
    middle = left + 4 * wide
    line = draw.path([(middle, 4), (middle, 18 + 16 * ROW)], weight=2.5)
    of_d = [*table(d, left, 18, wide=wide), line]
    of_a = table(a, left, 18, wide=wide)
    height = 18 + 16 * ROW + 10
    return picture(
        "wmma.m16n16k16 on sm_80 and sm_90",
        draw.paragraph("D, 16 x 16 in fp32: two D of mma.m16n8k16", draw.NORMAL),
        draw.legend([(LIGHT[i], f"d{2 * i} d{2 * i + 1}") for i in range(4)]),
        Panel(height, of_d),
        draw.paragraph("A, 16 x 16 in fp16: that of mma.m16n8k16", draw.NORMAL),
        draw.legend([(LIGHT[i], f"a{i}, a{i + 4}") for i in range(4)]),
        Panel(height, of_a),
        draw.paragraph(
            "No document promises any of this: it is what these GPUs do. A has eight registers, as "
            "on Volta, of which the last four repeat the first."
        ),
    )
