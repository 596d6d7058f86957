"""What sum does a kernel get if the tensor core keeps few digits?

An instruction of this tensor core adds 32 whole numbers to a sum. Of the largest of these 33
numbers it keeps the `bits` highest binary digits, and of the others the digits at the same places.
Lower digits of each number are dropped before they are added. If the largest has no more than
`bits` digits, nothing is dropped.

The kernel sums 128 of the `terms` in this way, from zero and with four instructions. It multiplies
that sum by the scale of the 128, and adds it to a sum of its own, which loses nothing. Then it
takes the next 128, until there are none. There is one of the `scales` for every 128 terms, and no
number is negative. Return the kernel's sum.
"""

import random
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from tritemm.rungs import find

from . import Answer, same
from .plain import nothing

#: Elements of K in a step of the kernel, and in an instruction.
STEP, DEPTH = 128, 32
#: Steps, bits, and the largest term.
CASES = (
    (1, 14, 900), (1, 6, 40), (2, 5, 3), (2, 8, 200), (3, 4, 1), (3, 7, 90), (4, 10, 1000),
    (5, 5, 1),
)  # fmt: skip


def answer(terms: tuple[int, ...], scales: tuple[int, ...], bits: int) -> int:
    total = 0
    for step, scale in enumerate(scales):
        partial = 0
        for first in range(128 * step, 128 * step + 128, 32):
            numbers = [partial, *terms[first : first + 32]]
            unit = 2 ** max(max(numbers).bit_length() - bits, 0)
            partial = sum(number - number % unit for number in numbers)
        total += scale * partial
    return total


def check(function: Answer) -> None:
    """Against the rung's own function, for one element of C."""
    draw = random.Random(21)
    for steps, bits, largest in CASES:
        terms = tuple(draw.randint(0, largest) for _ in range(steps * STEP))
        scales = tuple(draw.randint(1, 5) for _ in range(steps))
        same(function, summed(terms, scales, bits), terms=terms, scales=scales, bits=bits)


def summed(terms: tuple[int, ...], scales: tuple[int, ...], bits: int) -> int:
    """What the kernel stores if A's row is the terms and B's column ones."""
    stored: list[int] = []
    code = find("scaled").fn.fn.__code__
    known = {
        "M": 1, "N": 1, "K": len(terms), "a_ptr": 0, "stride_ak": 1, "b_ptr": len(terms),
        "BLOCK_M": 1, "BLOCK_N": 1, "BLOCK_K": STEP, "GROUPS": "", "SUMS": "block",
    }  # fmt: skip
    names = code.co_varnames[: code.co_argcount]
    kernel = FunctionType(code, _language([*terms, 1], scales, bits, stored))
    kernel(*(known.get(name, 0) for name in names))
    return stored[0]


def _language(memory: list[int], scales: tuple[int, ...], bits: int, stored: list[int]) -> dict:
    """What the rung's function names, with a memory and the question's tensor core behind it."""

    def load(places: np.ndarray, mask: np.ndarray, other: float) -> np.ndarray:
        return np.where(mask, np.array(memory)[places % len(memory)], int(other))

    def dot(a: np.ndarray, b: np.ndarray, acc: np.ndarray, precision: Any) -> np.ndarray:
        numbers, total = (a.ravel() * b.ravel()).tolist(), acc.item()
        for first in range(0, STEP, DEPTH):
            added = [total, *numbers[first : first + DEPTH]]
            lost = max(max(added).bit_length() - bits, 0)
            total = sum(number >> lost << lost for number in added)
        return np.array([[total]])

    words = SimpleNamespace(
        program_id=lambda axis: 0, arange=np.arange, assume=nothing, maximum=max,
        cdiv=lambda a, b: -(-a // b), zeros=lambda shape, dtype: np.zeros(shape, int),
        range=lambda first, last, num_stages: range(first, last),
    )  # fmt: skip
    words.load = load
    return {
        "tl": words, "range": range, "dot": dot, "BLOCK": STEP, "widen": lambda x, wide: x,
        "split_batch": lambda *_: (0, 0, 0), "raster": lambda *_: (0, 0),
        "batch_offset": lambda *_: 0, "Strides": nothing, "ScaleStrides": nothing,
        "EpilogueArgs": nothing,
        "a_scale": lambda args, b1, rows, M, k, lines: scales[k],
        "b_scale": lambda *_: 1, "apply_epilogue": lambda acc, *_: acc,
        "store": lambda ptr, acc, *_: stored.append(acc.item()),
    }  # fmt: skip
