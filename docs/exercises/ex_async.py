"""How wide may a copy be?

`cp.async` copies 16, 8 or 4 bytes, and both addresses must be multiples of that number. A matrix
has elements of `itemsize` bytes. Neighbouring rows begin `pitch` elements apart, and the first row
begins `first` elements behind an address that is a multiple of 16. What is the widest copy that can
begin at the beginning of every row? Return 0 if there is none.
"""

import itertools

import torch

from tritemm.arch.lines import line_refusal
from tritemm.problem import Problem

from . import Answer, same

DTYPES = {1: torch.int8, 2: torch.float16, 4: torch.float32}
#: In elements.
PITCHES, FIRSTS = (32, 40, 36, 34, 33, 64, 20), (0, 1, 2, 4, 8, 12)
ROWS, COLUMNS = 16, 16


def answer(itemsize: int, pitch: int, first: int) -> int:
    for width in (16, 8, 4):
        if pitch * itemsize % width == 0 and first * itemsize % width == 0:
            return width
    return 0


def check(function: Answer) -> None:
    """Against the addresses of a tensor's rows; 16 against what the rungs refuse."""
    for itemsize, pitch, first in itertools.product(DTYPES, PITCHES, FIRSTS):
        memory = torch.empty(first + ROWS * pitch, dtype=DTYPES[itemsize])
        matrix = memory.as_strided((ROWS, COLUMNS), (pitch, 1), first)
        widest = [w for w in (16, 8, 4) if all(row.data_ptr() % w == 0 for row in matrix)]
        want = widest[0] if widest else 0
        taken = line_refusal("a", Problem.of(matrix, matrix.T, matrix).a, "N", "a copy") is None
        assert taken == (want == 16) and memory.data_ptr() % 16 == 0
        same(function, want, itemsize=itemsize, pitch=pitch, first=first)
