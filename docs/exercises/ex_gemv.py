"""How are words cut out of a row that begins anywhere?

A load of 8 bytes must begin at a multiple of 8, but rows may begin at any byte. `memory` maps
addresses that are multiples of 8 to the 8 bytes from there on, as an integer of 64 bits with the
first byte lowest. It has only the words that hold a byte of the row, because what is beyond may not
be mapped, and a kernel can't test whether it is. So you may only use `memory[address]`. The row
begins at address `start` and has `length` bytes. Return word number `word` of the row, its bytes
8 * word to 8 * word + 7, as such an integer; bytes past the row's end must be 0.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from . import Answer, Wrong
from .plain import function as plain

#: Addresses and lengths of rows, in bytes.
ROWS = ((64, 32), (64, 29), (70, 32), (70, 34), (71, 21), (75, 5), (77, 9), (65, 7))
FULL = 2**64 - 1


def answer(memory: dict[int, int], start: int, length: int, word: int) -> int:
    first = start + 8 * word
    skew = first % 8  # bytes that precede it in the aligned word
    value = memory[first - skew] >> (8 * skew)
    following = first - skew + 8
    if skew and following < start + length:
        value |= memory[following] << (8 * (8 - skew))
    left = min(8, length - 8 * word)
    return value & ((1 << (8 * left)) - 1)


class Memory(dict):
    """Words by their addresses, which can be read and nothing else; `said` is what it is read for.

    What it refuses is `Wrong`, which no `except KeyError` hides.
    """

    def __init__(self, words: dict[int, int], said: str):
        super().__init__(words)
        self.said = said

    def __missing__(self, address: int) -> int:
        raise Wrong(
            f"For {self.said} it reads memory[{address}], which holds no byte of the row, or is no "
            "multiple of 8."
        )

    def refuse(self, *_: Any) -> Any:
        raise Wrong(
            f"For {self.said} it asks which addresses there are, which a kernel can't; "
            "memory[address] is all that it can do."
        )

    get = keys = values = items = __contains__ = __iter__ = __len__ = refuse


def cutter(memory: dict[int, int]) -> Callable[[int, int, int], int]:
    """The kernel's `cut_words`, of a row's start, length and word."""

    def load(number, mask, other):
        """It reads aligned words by their number."""
        return memory[8 * number] if mask else other

    words = SimpleNamespace(
        load=load, where=lambda condition, a, b: a if condition else b, maximum=max,
        full=lambda shape, value, dtype: value & FULL, int64=int, constexpr=int,
    )  # fmt: skip
    cut_words = plain("device/words.py", "cut_words", tl=words, WORD=8)
    # Skewed and ragged: rows that begin and end anywhere.
    return lambda start, length, word: cut_words(0, start, word, length, True, True, True) & FULL


def check(function: Answer) -> None:
    """Against the words that `gemv` and `pack` read, in memory that holds random bytes."""
    bits = random.Random(0)
    for start, length in ROWS:
        places = range(start // 8 * 8, start + length, 8)
        memory = {place: bits.getrandbits(64) for place in places}
        cut = cutter(memory)
        for word in range(-(-length // 8)):
            said = f"word {word} of a row of {length} bytes at {start}"
            want = cut(start, length, word)
            got = function(Memory(memory, said), start, length, word)
            if got != want:
                got = f"{got:#018x}" if isinstance(got, int) else repr(got)
                raise Wrong(f"{said[0].upper()}{said[1:]} is {got}; it should be {want:#018x}.")
