"""Operands of groups, and what is right of their products."""

import math

import torch

from tests.harness import DEVICE, assert_right, operand
from tritemm.problem import GATED, EpilogueInputs


def offsets(sizes):
    return torch.tensor(sizes, dtype=torch.int64).cumsum(0).to(DEVICE, torch.int32)


def bounds(offs):
    ends = offs.tolist()
    return list(zip([0, *ends], ends, strict=False))


def cut(form, n, k, count, total, dtype, layout="NN", **options):
    """A and B of a product of which so many rows, columns or terms are cut into groups."""
    a = {"m": (total, k), "n": (n, k), "k": (n, total)}[form]
    b = {"m": (k, n), "n": (k, total), "k": (total, n)}[form]
    of_a, of_b = ((count,) if form == "n" else ()), ((count,) if form == "m" else ())
    return (
        operand(*a, dtype, layout[0], of_a, **options),
        operand(*b, dtype, layout[1], of_b, **options),
    )


def poison(form, a, b, begin, end):
    """Fill what is cut with NaN from `begin` to `end`."""
    parts = {"m": (a,), "n": (b.mT,), "k": (a.mT, b)}[form]
    for part in parts:
        part[begin:end] = math.nan


def parts(form, c, a, b, offs):
    """The result and the operands of each group, and what of the result is behind the last."""
    pairs = []
    for g, (i, j) in enumerate(bounds(offs)):
        if form == "m":
            pairs.append((c[i:j], a[i:j], b[g]))
        elif form == "n":
            pairs.append((c[:, i:j], a[g], b[:, i:j]))
        else:
            pairs.append((c[g], a[:, i:j], b[i:j]))
    end = offs[-1]
    return pairs, {"m": c[end:], "n": c[:, end:], "k": c[:0]}[form]


def check(form, c, a, b, offs, bias=None, activation="", alpha=1.0, **options):
    pairs, rest = parts(form, c, a, b, offs)
    assert not rest.count_nonzero()
    for g, (found, x, y) in enumerate(pairs):
        then = EpilogueInputs(None if bias is None else bias[g], None, activation, alpha)
        if x.shape[1] == 0:
            assert not found.count_nonzero()
        elif found.numel():
            assert_right(found, x, y, ending=then, stepwise=activation in GATED, **options)
