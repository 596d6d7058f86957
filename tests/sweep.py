"""Which combinations of parameters are tested: each pair of values, or all of them.

Faults of one value, or of two values that meet, are found by rows that hold each pair once; the
full cross grows with the product of all parameters. Of what takes long to compile a few are drawn.
TRITEMM_SWEEP=all runs the full cross, and all.
"""

from __future__ import annotations

import collections
import itertools
import os
import random
from collections.abc import Iterable, Sequence
from typing import Any

from tools.suite_record import code_hash

EVERY = os.environ.get("TRITEMM_SWEEP") == "all"
#: The hash of `tritemm/`: of one code the same cases are drawn always, of another one others.
CODE = code_hash()


def drawn(items: Iterable[Any], count: int, every: bool = EVERY, code: str = CODE) -> list:
    """`count` of the items, drawn by the code, in their order; all of them if `every`."""
    items = list(items)
    if every or count >= len(items):
        return items
    return [items[i] for i in sorted(random.Random(code).sample(range(len(items)), count))]


def pairwise(*parameters: Sequence[Any], every: bool = EVERY) -> list[tuple]:
    """Rows with one value of each parameter, so that each two values of two parameters meet.

    The same rows in every process, about as many as the two longest parameters multiply to; every
    combination if `every`.

    Example:
        >>> pairwise("ab", "xy", [1, 2])
        [('a', 'x', 1), ('a', 'y', 2), ('b', 'x', 2), ('b', 'y', 1)]
    """
    if every or len(parameters) < 3 or not all(parameters):
        return list(itertools.product(*parameters))
    cells = [[(column, i) for i in range(len(each))] for column, each in enumerate(parameters)]
    longest_first = sorted(cells, key=len, reverse=True)
    lacking = dict.fromkeys(
        frozenset(pair)
        for columns in itertools.combinations(longest_first, 2)
        for pair in itertools.product(*columns)
    )
    used, rows = collections.Counter(), []
    while lacking:
        # A pair that lacks; then of each other column the value that meets most for the first time.
        row = dict(next(iter(lacking)))
        for column in longest_first:
            if column[0][0] not in row:
                gains = {
                    cell: (sum(frozenset((cell, it)) in lacking for it in row.items()), -used[cell])
                    for cell in column
                }
                row.update([max(gains, key=gains.get)])
        used.update(row.items())
        for pair in itertools.combinations(row.items(), 2):
            lacking.pop(frozenset(pair), None)
        rows.append(tuple(values[row[column]] for column, values in enumerate(parameters)))
    return rows
