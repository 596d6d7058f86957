"""Where does a chunk go?

A tile in shared memory has rows of 64 bytes, four chunks of 16 bytes each. Count places in units of
16 bytes. There are 32 banks of 4 bytes, so place p takes the four banks from 4 (p % 8) on.
`ldmatrix` reads the same chunk of eight rows at once: of rows 0 to 7, or of rows 8 to 15, and so
on. Give each chunk a place, so that a row keeps its own four, 4 row to 4 row + 3, and so that eight
rows that are read at once come from all banks. There is more than one right answer.
"""

from docs.pictures.banks import together

from . import Answer, Wrong

ROWS = 64


def answer(row: int, chunk: int) -> int:
    return 4 * row + (chunk + row // 2) % 4


def check(function: Answer) -> None:
    """By its properties, counted as the conflicts of the kernels' own layouts are."""
    for row in range(ROWS):
        own = range(4 * row, 4 * row + 4)
        places = [function(row=row, chunk=chunk) for chunk in range(4)]
        if any(place not in own for place in places) or len(set(places)) < 4:
            raise Wrong(
                f"answer(row={row}, chunk=0 to 3) is {places}; it should be {own[0]} to {own[-1]} "
                "in some order."
            )
    for first in range(0, ROWS, 8):
        for chunk in range(4):
            if (worst := max(together(function, range(first, first + 8), chunk))) > 1:
                raise Wrong(
                    f"chunk {chunk} of rows {first} to {first + 7}: {worst} of the eight lie in "
                    "the same banks."
                )
