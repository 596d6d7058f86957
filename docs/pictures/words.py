"""Words that are cut out of a row: which bytes of which aligned words make up each.

From `cut_words` of tritemm/kernels/device/words.py, in a memory whose bytes are addresses.
"""

from . import draw
from .draw import LIGHT, MARGIN, Panel, picture

#: The row's address and bytes; 16-bit elements of which three words and a part of one are full.
START, LENGTH = 6, 28
WORD = 8


def cut(word: int) -> tuple[list[int], list[int]]:
    """The addresses of a word's bytes, and of the aligned words that are read for it."""
    from docs.exercises.ex_gemv import cutter  # which imports this package

    read = []

    class Memory(dict):
        def __missing__(self, place: int) -> int:
            read.append(place)
            return int.from_bytes(bytes(range(place, place + WORD)), "little")

    value = cutter(Memory())(START, LENGTH, word)
    return [*value.to_bytes(WORD, "little")][: min(WORD, LENGTH - WORD * word)], read


def skewed() -> str:
    """A row that begins inside an aligned word."""
    words = -(-LENGTH // WORD)
    aligned = -(-(START + LENGTH) // WORD)
    left, side, high = MARGIN + 2, 10.6, 26
    whose = {place: word for word in range(words) for place in cut(word)[0]}
    shapes, gap = [], 6

    def at(place: int) -> float:
        return left + place * side + place // WORD * gap

    for place in range(aligned * WORD):
        color = LIGHT[whose[place] % 4] if place in whose else "#e8e8e8"
        shapes.append(draw.rect(at(place), 18, side, high, color, "#fff"))
    for number in range(aligned):
        shapes.append(draw.text(at(number * WORD), 12, f"at {number * WORD}"))
    below = 118
    for word in range(words):
        x = left + word * (WORD * side + 20)
        places, read = cut(word)
        for i, place in enumerate(places):
            shapes.append(draw.rect(x + i * side, below, side, high, LIGHT[word % 4], "#fff"))
            if i == 0 or place % WORD == 0:
                run = [p for p in places if p // WORD == place // WORD]
                middle = (len(run) - 1) / 2 * side + side / 2
                shapes.append(
                    draw.arrow(at(place) + middle, 18 + high + 2, x + i * side + middle, below - 3)
                )
        for i in range(len(places), WORD):
            shapes.append(draw.rect(x + i * side, below, side, high, "#fff", draw.GREY))
        said = " and ".join(map(str, read))
        shapes.append(draw.text(x, below + high + 16, f"word {word}"))
        shapes.append(draw.text(x, below + high + 31, f"reads {said}"))
    return picture(
        "Words of a row that begins anywhere",
        draw.paragraph(
            f"A box is a byte. The row begins at address {START} and has {LENGTH} bytes, in four "
            "colours. Grey bytes are not part of it."
        ),
        Panel(below + high + 44, shapes),
        draw.paragraph("Each of its words is put together from two aligned ones that are loaded."),
    )
