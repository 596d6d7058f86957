"""Which combinations of parameters are tested: each pair of values, or all of them.

Faults of one value, or of two values that meet, are found by rows that hold each pair once; the
full cross grows with the product of all parameters. TRITEMM_SWEEP=all runs the full cross.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Sequence
from typing import Any

EVERY = os.environ.get("TRITEMM_SWEEP") == "all"


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
    longest_first = sorted(range(len(parameters)), key=lambda i: -len(parameters[i]))
    sizes = [len(parameters[i]) for i in longest_first]
    rows = [list(row) for row in itertools.product(range(sizes[0]), range(sizes[1]))]
    for count in sizes[2:]:
        _widen(rows, sizes[: len(rows[0])], count)
    place = {i: column for column, i in enumerate(longest_first)}
    found = [[values[row[place[i]]] for i, values in enumerate(parameters)] for row in rows]
    return [tuple(row) for row in found]


def _widen(rows: list[list[int]], sizes: Sequence[int], count: int) -> None:
    """Give each row one of `count` values more, and add the rows of pairs that still lack."""
    lacking = {
        (column, value, new)
        for column, size in enumerate(sizes)
        for value in range(size)
        for new in range(count)
    }
    used = collections.Counter()
    for row in rows:
        pairs = [[(column, value, new) for column, value in enumerate(row)] for new in range(count)]
        new = max(range(count), key=lambda new: (len(lacking.intersection(pairs[new])), -used[new]))
        lacking.difference_update(pairs[new])
        used[new] += 1
        row.append(new)
    # A row for each pair that lacks, but those of other columns share rows.
    added: list[dict[int, int]] = []
    for column, value, new in sorted(lacking):
        row = next((r for r in added if r[len(sizes)] == new and column not in r), None)
        if row is None:
            row = {len(sizes): new}
            added.append(row)
        row[column] = value
    for index, row in enumerate(added):
        rows.append([row.get(c, index % n) for c, n in enumerate((*sizes, count))])
