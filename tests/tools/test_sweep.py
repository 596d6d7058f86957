"""Rows of `pairwise`: each two values meet, in few rows, the same in every process."""

import itertools

import pytest

from tests.sweep import pairwise

SIZES = [(8, 16, 2), (2, 8, 13, 4), (7, 5, 2, 2), (2, 2, 2, 2), (3, 1, 5), (1, 2, 6, 13), (4, 4, 4)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_two_values_meet(sizes):
    values = [[f"{column}{i}" for i in range(size)] for column, size in enumerate(sizes)]
    rows = pairwise(*values, every=False)
    assert rows == pairwise(*values, every=False)
    for one, other in itertools.combinations(range(len(sizes)), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(itertools.product(values[one], values[other]))
    least = sorted(sizes)[-2] * max(sizes)
    assert least <= len(rows) <= 2 * least
    assert len(rows) == len(set(rows))


def test_all_combinations_where_they_are_asked_for():
    assert pairwise("ab", [1, 2], "xyz", every=True) == list(itertools.product("ab", [1, 2], "xyz"))
    assert pairwise("ab", "xy", every=False) == list(itertools.product("ab", "xy"))
    assert pairwise("ab", [], "xy", every=False) == []
