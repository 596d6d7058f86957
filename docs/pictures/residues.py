"""Whole numbers by their residues: the Chinese remainder theorem, and a product by it.

From the moduli and the weights that the kernels have.
"""

import dataclasses
import math
from collections.abc import Sequence
from statistics import NormalDist

from tritemm.kernels.residues import LEAST, symmetric
from tritemm.problem import MODULI

from . import draw
from .draw import LIGHT, MARGIN, Panel, picture

#: Of the picture: two moduli, and a row and a column whose product is found.
FEW = (3, 5)
ROW, COLUMN = (3, -1), (2, -1)
#: Of the page's example: as many of the kernels' moduli, and the operands.
COUNT = 3
A = ((0.3, -1.6), (2.5, 0.04))
B = ((1.25, -0.6), (0.7, 3.1))


def dot(row: Sequence, column: Sequence):
    return sum(x * y for x, y in zip(row, column, strict=True))


def places(moduli: Sequence[int] = FEW) -> dict[tuple[int, ...], int]:
    """Each of the P whole numbers around zero by its residues."""
    P = math.prod(moduli)
    return {tuple(symmetric(n, p) for p in moduli): n for n in range(-(P // 2), -(-P // 2))}


def theorem() -> str:
    """A place for every number."""
    found, (rows, columns) = places(), FEW
    left, top, wide, high = MARGIN + 150, 40, 46, 26
    own = tuple(symmetric(dot(ROW, COLUMN), p) for p in FEW)
    shapes = [draw.note(left + columns * wide / 2, 12, f"modulo {columns}", "middle"),
              draw.note(left - 40, top + rows * high / 2 + 4, f"modulo {rows}")]  # fmt: skip
    for j in range(columns):
        at = left + (j + 0.5) * wide
        shapes.append(draw.note(at, top - 8, j - columns // 2, "middle"))
    for i in range(rows):
        shapes.append(draw.note(left - 12, top + (i + 0.5) * high + 4, i - rows // 2))
        for j in range(columns):
            place = i - rows // 2, j - columns // 2
            color = LIGHT[1] if place == own else LIGHT[0]
            shapes.append(
                draw.cell(left + j * wide, top + i * high, wide, high, color, str(found[place]))
            )
    P = math.prod(FEW)
    sums = [
        f"modulo {p}: {terms(ROW, COLUMN, p)} = {dot(residues(ROW, p), residues(COLUMN, p))}, "
        f"so {residue}"
        for p, residue in zip(FEW, own, strict=True)
    ]
    return picture(
        f"Every number from {-(P // 2)} to {P // 2} has a place of its own",
        draw.paragraph(f"Its row is its residue modulo {rows}, its column that modulo {columns}."),
        Panel(top + rows * high + 8, shapes),
        draw.paragraph(f"A sum of products, by its residues: {terms(ROW, COLUMN)}"),
        *(draw.paragraph(words, draw.NORMAL) for words in sums),
        draw.paragraph(f"That place holds {found[own]}. {P // 2 + 1} would share the place of "
                       f"{P // 2 + 1 - P}, so sums must be less than half of {rows} x {columns}."),
    )  # fmt: skip


def residues(line: Sequence[int], p: int) -> tuple[int, ...]:
    return tuple(symmetric(n, p) for n in line)


def terms(row: Sequence[int], column: Sequence[int], p: int = 0) -> str:
    """`3 x 2 + (-1) x (-1)`, of residues if there is a modulus."""
    row, column = (residues(line, p) if p else line for line in (row, column))

    def signed(n: int) -> str:
        return f"({n})" if n < 0 else str(n)

    return " + ".join(f"{signed(x)} x {signed(y)}" for x, y in zip(row, column, strict=True))


@dataclasses.dataclass(frozen=True)
class Line:
    """Whole numbers, which are a row or a column times 2**exponent, rounded."""

    numbers: tuple[int, ...]
    exponent: int


def scaled(line: Sequence[float], count: int = COUNT) -> Line:
    """As large as it may be, so that products of two lines are less than P / 2 by so many moduli.

    Rounding moves the norm by sqrt(K) / 2 at most.
    """
    most = math.sqrt(math.prod(MODULI[:count]) / 2) - math.sqrt(len(line)) / 2
    exponent = math.floor(math.log2(most / math.hypot(*line)))
    return Line(tuple(round(math.ldexp(x, exponent)) for x in line), exponent)


ROWS = tuple(scaled(row) for row in A)
COLUMNS = tuple(scaled(column) for column in zip(*B, strict=True))


def weights(moduli: Sequence[int]) -> list[int]:
    """For each modulus, what is 1 modulo it and 0 modulo all others."""
    P = math.prod(moduli)
    return [symmetric(P // p * pow(P // p, -1, p), P) for p in moduli]


def recombined(row: Line, column: Line, count: int = COUNT) -> int:
    """The product of two lines, known by its residues alone."""
    moduli = MODULI[:count]
    sums = [dot(residues(row.numbers, p), residues(column.numbers, p)) % p for p in moduli]
    return symmetric(dot(sums, weights(moduli)), math.prod(moduli))


def overlap(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """sum |a| |b| over the product of norms if neither knows of the other; and what the facts of
    two such lines say it is at least."""
    facts = []
    for line in (a, b):
        root = math.sqrt(sum(x * x for x in line) / len(line))
        sizes = [abs(x) / root for x in line]
        mean = sum(sizes) / len(sizes)
        roots = (sum(map(math.sqrt, sizes)) / len(sizes)) ** 2
        inverse = sum(1 / max(size, LEAST.value) for size in sizes)
        facts.append((mean, roots, len(sizes) / inverse))
    (mean_a, roots_a, harmonic_a), (mean_b, roots_b, harmonic_b) = facts
    least = max(roots_a * harmonic_b, roots_b * harmonic_a) - LEAST.value
    return mean_a * mean_b, max(least, 0.0)


#: Elements of lines as their distribution has them, at even steps of probability.
NORMAL = tuple(map(NormalDist().inv_cdf, ((i + 0.5) / 4096 for i in range(4096))))
LINES = {
    "normal": NORMAL,
    "ReLU of normal": tuple(max(x, 0.0) for x in NORMAL),
    "one in ten isn't 0": tuple(x * (i % 10 == 0) for i, x in enumerate(NORMAL)),
    "exp(normal)": tuple(map(math.exp, NORMAL)),
    "exp(2 x normal)": tuple(math.exp(2 * x) for x in NORMAL),
}
