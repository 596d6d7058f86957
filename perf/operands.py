"""The data of a case: random operands, poisoned outputs, and the check of what was written."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import torch

from tritemm.budget import Verdict, check
from tritemm.budget import reference as exact

from .case import DTYPES, Case

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

#: Elements of C that are judged at a time: their fp64 reference and bound take some gigabytes.
STRIP = 2**27


def operands(case: Case, device: str) -> Operands:
    """A and B with normal values, in their layouts, and a poisoned output.

    Integers are normal values of standard deviation 32, as quantised activations are.
    """
    batch = (case.batch,) if case.batch > 1 else ()

    def matrix(rows: int, cols: int, layout: str) -> torch.Tensor:
        shape = (rows, cols) if layout == "N" else (cols, rows)
        dtype = DTYPES[case.dtype]
        if dtype.is_floating_point and dtype.itemsize > 1:
            stored = torch.randn((*batch, *shape), dtype=dtype, device=device)
        else:
            stored = torch.randn((*batch, *shape), dtype=torch.float16, device=device)
            stored = (stored if dtype.is_floating_point else _quantised(stored)).to(dtype)
        return stored if layout == "N" else stored.mT

    a = matrix(case.M, case.K, case.layout[0])
    b = matrix(case.K, case.N, case.layout[1])
    c = torch.empty((*batch, case.M, case.N), dtype=DTYPES[case.output], device=device)
    return a, b, poison(c)


def _quantised(values: torch.Tensor) -> torch.Tensor:
    return (values * 32).round().clamp(-127, 127)


def poison(c: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, or with the least integer, which no sum here reaches."""
    return c.fill_(math.nan if c.is_floating_point() else torch.iinfo(c.dtype).min)


def _unwritten(c: torch.Tensor) -> torch.Tensor:
    """Whether a poisoned element is left, or an infinity written, as a tensor."""
    if c.is_floating_point():
        return ~c.isfinite().all()
    return (c == torch.iinfo(c.dtype).min).any()


def verify(case: Case, sets: Sequence[Operands], replay, launches: int, accumulate=None) -> Verdict:
    """Poison, replay, and judge the outputs that `launches` products in a row must have written.

    The first and the last are compared element by element with fp64; no poison may be left in any.
    With an fp16 accumulator the bound of random data is wider than the result at some thousand
    terms, so there the same outputs must also be exact for small integers. `accumulate` judges by
    that accumulator, not by the case's.
    """
    accumulate = accumulate or case.accumulate
    for _, _, c in sets:
        poison(c)
    replay()
    reached = sets[:launches]
    left = torch.stack([_unwritten(c) for _, _, c in reached]).tolist()
    if any(left):
        index = left.index(True)
        return Verdict(False, math.inf, f"output {index} has an unwritten or infinite element")
    judged = list({id(s): s for s in (reached[0], reached[-1])}.values())
    verdicts = [
        _worst(
            check(c_, a_, b_, accumulate=DTYPES[accumulate], precision=case.precision)
            for a_, b_, c_ in _strips(*operands_)
        )
        for operands_ in judged
    ]
    if accumulate == "fp16":
        with _integers(judged):
            replay()
            verdicts += [_check_exact(*operands_) for operands_ in judged]
    return _worst(verdicts)


def _worst(verdicts) -> Verdict:
    return max(verdicts, key=lambda verdict: (not verdict.ok, verdict.worst))


def _strips(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Iterator[Operands]:
    """The product in pieces: of whole batches, or of rows of A and C."""
    step = max(1, STRIP * c.shape[0] // c.numel())
    for start in range(0, c.shape[0], step):
        part = slice(start, start + step)
        yield a[part], (b[part] if c.dim() == 3 else b), c[part]


@contextlib.contextmanager
def _integers(sets: Sequence[Operands]) -> Iterator[None]:
    """A and B hold -1, 0 and 1 inside the block, and C is poisoned.

    A sum of K such products, in any order, stays far below 2048, up to where fp16 holds every
    integer: its standard deviation is 2/3 sqrt(K).
    """
    kept = [(a.clone(), b.clone()) for a, b, _ in sets]
    try:
        for a, b, c in sets:
            for operand in (a, b):
                operand.copy_(torch.randint_like(operand, -1, 2))
            poison(c)
        yield
    finally:
        for (a, b, _), (old_a, old_b) in zip(sets, kept, strict=True):
            a.copy_(old_a)
            b.copy_(old_b)


def _check_exact(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Verdict:
    wrong = int((c.double() != exact(a, b)).sum())
    if not wrong:
        return Verdict(True, 0.0, "ok: sums of small integers are exact")
    message = f"{wrong} of {c.numel()} sums of small integers are not exact"
    return Verdict(False, math.inf, message)
