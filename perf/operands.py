"""The data of a case: random operands, poisoned outputs, the check; and the reference.

A case has A, B and C. With an ending, it has the bias and the residual too, None where there is
none; to accumulate, C begins as the residual. By a weight of 4 bits, B is that in 16, and its bytes
and scales come last. With groups, it has where each ends. With scales, A's and B's come last: [rows
of A or columns of B, steps of K], where a scale may be shared by 128 lines, or by all; [groups,
...] if each group has its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F

from tritemm.budget import Verdict, check
from tritemm.budget import reference as exact
from tritemm.nn import Int4Weight
from tritemm.problem import EpilogueInputs, spread

from .case import DTYPES, FAST, INT4_GROUP, SCALINGS, WHOLE, Case, sharing

Operands = tuple[torch.Tensor | None, ...]

#: Elements of C that are judged at a time: their fp64 reference and bound take some gigabytes.
STRIP = 2**27


def operands(case: Case, device: str) -> Operands:
    """A and B with normal values, in their layouts, a poisoned output, and what an ending needs.

    Integers are normal values of standard deviation 32, as quantised activations are. What has
    scales is quantised from normal values.
    """
    if case.scaling:
        return _scaled_operands(case, device)
    batch = (case.batch,) if case.batch > 1 else ()
    each = {case.groups.cut: (case.groups.count,)} if case.groups else {}
    dtype = DTYPES[case.dtype]
    drawn = dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.float16

    def matrix(rows: int, cols: int, layout: str, batch: tuple[int, ...] = batch) -> torch.Tensor:
        shape = (rows, cols) if layout == "N" else (cols, rows)
        stored = torch.randn((*batch, *shape), dtype=drawn, device=device)
        if not dtype.is_floating_point:
            stored = (stored * 32).round().clamp(-127, 127)
        stored = stored.to(dtype)
        return stored if layout == "N" else stored.mT

    a = matrix(case.M, case.K, case.layout[0])
    own = each.get("m", batch)
    b = a.mT if case.after.symmetric else matrix(case.K, case.N, case.layout[1], own)
    shape = (*each.get("k", batch), case.M, case.columns)
    c = torch.empty(shape, dtype=DTYPES[case.output], device=device)
    if case.groups:
        return a, b, poison(c), torch.tensor(case.ends, dtype=torch.int32, device=device)
    if case.ending is None:
        return a, b, poison(c)
    after = case.after
    bias = torch.randn(case.N, dtype=a.dtype, device=device) if after.bias else None
    residual = torch.randn_like(c) if after.residual or after.accumulate else None
    weight = _of_4_bits(b) if after.int4 else ()
    return a, b, _begun(case, c, residual), bias, residual, *weight


def _of_4_bits(b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The bytes and scales of a random weight; B becomes the same. Powers of 2 times whole numbers
    aren't rounded."""
    K, N = b.shape
    numbers = torch.randint(-8, 8, (N, K), device=b.device)
    power = torch.randint(-4, 0, (K // INT4_GROUP, N), device=b.device)
    scale = torch.exp2(power.float()).to(b.dtype)
    b.copy_((numbers * scale.mT.repeat_interleave(INT4_GROUP, 1)).mT)
    return Int4Weight.pack(numbers), scale


def _scaled_operands(case: Case, device: str) -> Operands:
    groups, found = case.groups, []
    by_rows = bool(groups) and groups.cut == "m"
    ends = case.ends if groups else ()
    for lines, recipe, own in zip(
        (case.M, case.N), SCALINGS[case.scaling], (False, by_rows), strict=True
    ):
        made = [
            _quantised(_normal(case, lines, device), DTYPES[case.dtype], recipe)
            for _ in range(groups.count if own else 1)
        ]
        values, scale = map(torch.stack, zip(*made, strict=True)) if own else made[0]
        if groups and not by_rows and recipe in WHOLE:  # each has its own of all of its K
            scale = scale.repeat(groups.count, 1, 1)
        found.append((values, scale))
    (a, scale_a), (b, scale_b) = found
    a = a if case.layout[0] == "N" else a.mT.contiguous().mT
    b = b.mT if case.layout[1] == "T" else b.mT.contiguous()
    stack = (groups.count,) if groups and not by_rows else ()
    shape = (*stack, case.M, case.N)
    c = poison(torch.empty(shape, dtype=DTYPES[case.output], device=device))
    if not groups:
        return a, b, c, scale_a, scale_b
    return a, b, c, torch.tensor(ends, dtype=torch.int32, device=device), scale_a, scale_b


def _normal(case: Case, lines: int, device: str) -> torch.Tensor:
    """Normal values, and zeros where groups of K end inside a block."""
    x = torch.randn(lines, case.depth, device=device)
    if case.in_blocks:
        whole = (
            itertools.pairwise((0, *case.ends)),
            itertools.pairwise((0, *case.groups.ends(case.K))),
        )
        for (begin, end), (first, last) in zip(*whole, strict=True):
            x[:, begin + last - first : end] = 0
    return x


def _quantised(x: torch.Tensor, dtype: torch.dtype, recipe: str) -> tuple[torch.Tensor, ...]:
    """The values and the scales of x, [lines, K], where torch's kernels for Hopper read them.

    There lines are contiguous, but of square blocks steps, at a pitch of a multiple of 4.
    """
    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    rows, terms = sharing(recipe, *x.shape)
    whole = F.pad(x.abs(), (0, -x.shape[1] % terms, 0, -x.shape[0] % rows))
    scale = whole.unflatten(1, (-1, terms)).unflatten(0, (-1, rows)).amax((1, 3)) / most
    values = x / spread(scale, *x.shape)
    values = (values if dtype.is_floating_point else values.round()).to(dtype)
    if recipe == "block2d":
        return values, F.pad(scale, (0, -scale.shape[1] % 4))[:, : scale.shape[1]]
    return values, scale.mT.contiguous().mT


def _begun(case: Case, c: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    """An output as it is before the first launch."""
    return c.copy_(residual) if case.after.accumulate else poison(c)


def alone(a, b, c, offs, *scales) -> Operands:
    """One dense product: all of A, by the first of the groups' B."""
    return a, *(t[0] if t.dim() == 3 else t for t in (b, c, *scales))


def products(case: Case, a, b, c, *more) -> Iterator[Operands]:
    """The product of each group, but for those that write nothing; or the one there is."""
    if not case.groups:
        yield a, b, c, *more
        return
    offs, *scales = more
    by_rows = case.groups.cut == "m"
    if scales and by_rows:
        scales[0] = spread(scales[0], case.M, scales[0].shape[1])
    elif scales:
        K = a.shape[1]
        each = zip(scales, (case.M, case.N), strict=True)
        scales = [t if t.dim() == 3 else spread(t, lines, K).expand(-1, K) for t, lines in each]
    for group, (begin, end) in enumerate(itertools.pairwise([0, *offs.tolist()])):
        part = slice(begin, end)
        own = [t[group] if t.dim() == 3 else t[part] if by_rows else t[:, part] for t in scales]
        if not by_rows:
            yield a[:, part], b[part], c[group], *own
        elif begin < end:
            yield a[part], b[group], c[part], *own


def poison(c: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, or with the least integer, which no sum here reaches."""
    return c.fill_(math.nan if c.is_floating_point() else torch.iinfo(c.dtype).min)


def _unwritten(c: torch.Tensor) -> torch.Tensor:
    """Whether a poisoned element is left, or an infinity written, as a tensor."""
    if c.is_floating_point():  # in pieces: the results of many groups leave little memory
        return torch.stack([~piece.isfinite().all() for piece in c.flatten().split(STRIP)]).any()
    return (c == torch.iinfo(c.dtype).min).any()


def verify(
    case: Case,
    sets: Sequence[Operands],
    replay,
    launches: int,
    accumulate=None,
    results: Sequence[torch.Tensor | None] = (),
    dense: bool = False,
    split: bool = False,
) -> Verdict:
    """Poison, replay, and judge the outputs that `launches` products in a row must have written.

    The first and the last are compared element by element with fp64; no poison may be left in any.
    With an fp16 accumulator the bound of random data is wider than the result at some thousand
    terms, so there the same outputs must also be exact for small integers. `accumulate` judges by
    that accumulator, not by the case's. `results`: of `engine.Loop`; they count where something
    follows the product, it is of groups or has scales, and a product alone must be in C. What is
    `dense` is judged as `alone`, and what is `split` by the bound of planes or residues.
    """
    accumulate = accumulate or case.accumulate
    if dense:
        case, sets = dataclasses.replace(case, groups=None), [alone(*each) for each in sets]
    if case.ending is None and case.groups is None and case.scaling is None:
        results = ()
    for _, _, c, *more in sets:
        _begun(case, c, more[1] if case.ending else None)
    for result, (_, _, c, *_) in zip(results, sets, strict=False):
        if result is not None and result is not c:
            poison(result)
    replay()
    reached = [
        (a, b, c if result is None else result, *more)
        for (a, b, c, *more), result in itertools.zip_longest(sets, results[: len(sets)])
    ][:launches]
    left = torch.stack([_unwritten(c) for _, _, c, *_ in reached]).tolist()
    if any(left):
        index = left.index(True)
        return Verdict(False, math.inf, f"output {index} has an unwritten or infinite element")
    ends = sorted({0, len(reached) - 1})
    # To accumulate, a set has received its product as often as it was launched on.
    verdicts = [
        _judged(case, accumulate, split, len(range(i, launches, len(sets))), *strip)
        for i in ends
        for product in products(case, *reached[i])
        for strip in _strips(case, *product)
    ]
    if accumulate == "fp16":
        judged = [reached[i] for i in ends]
        with _integers(judged):
            replay()
            verdicts += [exactly(c, exact(a, b).to(c.dtype)) for a, b, c in judged]
    return max(verdicts, key=lambda verdict: (not verdict.ok, verdict.worst))


def _judged(case: Case, accumulate: str, split: bool, times: int, a, b, c, *more) -> Verdict:
    """C of A and B, and what follows them; `times` over, to accumulate.

    Whatever scales there are, int32 holds the product without them.
    """
    if case.scaling:
        scale_a, scale_b = more
        scales = None if c.dtype == torch.int32 else (scale_a, scale_b, accumulate != FAST)
        return check(c, a, b, scales=scales)
    bias, residual = more[:2] or (None, None)
    after, how = case.after, {"accumulate": DTYPES[accumulate], "precision": case.precision}
    how["planes"] = split
    alpha = float(times if after.accumulate else 1)
    ending = EpilogueInputs(bias, residual, after.activation, alpha, 1.0)
    how["ending"] = None if case.ending is None else ending
    return check(c, a, b, stepwise=True, **how)


def _strips(case: Case, a, b, c, *more) -> Iterator[Operands]:
    """The product in pieces: of whole batches, or of rows of A and C, and of what has those rows:
    the residual, or A's scales."""
    rowed = 1
    if case.scaling:
        scale_a, scale_b = more
        scale_a = spread(scale_a, len(a), scale_a.shape[1]).expand(len(a), -1)
        rowed, more = 0, (scale_a, scale_b)
    step = max(1, STRIP * c.shape[0] // c.numel())
    for start in range(0, c.shape[0], step):
        part = slice(start, start + step)
        rest = [t[part] if i == rowed and t is not None else t for i, t in enumerate(more)]
        yield a[part], (b[part] if c.dim() == 3 else b), c[part], *rest


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


def integers(case: Case, device: str) -> tuple[Operands, torch.Tensor]:
    """Operands of small integers, whose sums are exact in any order, and the product they have.

    A sum of K products of -2 ... 2 has a standard deviation of 2 sqrt(K), and fp32 holds all
    integers up to 2^24; of -1 ... 1 it is 2/3 sqrt(K), and fp16 holds them up to 2^11. Scales are
    1 or 2.
    """
    a, b, c, *more = operands(case, device)
    most = 1 if case.accumulate == "fp16" else 2
    for t in (a, b):
        t.copy_(torch.randint(-most, most + 1, t.shape, dtype=torch.int8, device=device))
    for t in more[-2:] if case.scaling else ():
        t.copy_(torch.randint(1, 3, t.shape, device=device))
    wide, want = torch.float64 if case.dtype == "fp64" else torch.float32, torch.empty_like(c)
    # fp32 is multiplied exactly too where torch takes tf32 for it: these integers fit.
    for x, y, z, *scales in products(case, a, b, want, *more):
        x, y = x.to(wide), y.to(wide)
        if scales:
            x *= spread(scales[0], *x.shape)
            y *= spread(scales[1], *y.mT.shape).mT
        z.copy_(torch.matmul(x, y))
    return (a, b, c, *more), want


def exactly(c: torch.Tensor, want: torch.Tensor) -> Verdict:
    """Whether every element has the expected value."""
    wrong = c != want
    count = int(wrong.sum())
    if not count:
        return Verdict(True, 0.0, "ok: sums of small integers are exact")
    at = tuple(wrong.nonzero()[0].tolist())
    told = f"{count} of {c.numel()} are wrong; at {at}: got {c[at]:g}, want {want[at]:g}"
    return Verdict(False, math.inf, told)


def reference(case: Case, accumulate: str | None = None):
    """`run(a, b, c)` of cuBLAS with the case's accumulator or, of fp16 or with scales, another one.

    fp32 and fp64 are multiplied as the case's precision says where torch can (ieee, tf32), else in
    IEEE. fp8 operands have one scale of 1 each where the case has none, and torch's default,
    `use_fast_accum=False`, unless they are accumulated `FAST`. Torch has no int8 product with
    scales: its fastest part of one, `torch._int_mm`, leaves them out, in a new tensor.
    """
    torch.backends.cuda.matmul.fp32_precision = "tf32" if case.precision == "tf32" else "ieee"
    if case.dtype == "int8" and case.scaling:
        return lambda a, b, c, *scales: torch._int_mm(a, b)
    if case.dtype == "int8":
        return lambda a, b, c: torch._int_mm(a, b, out=c)
    if case.dtype == "fp8":
        return _scaled(DTYPES[case.output], accumulate == FAST)
    if case.out_dtype:
        multiply, out_dtype = (torch.mm if case.batch == 1 else torch.bmm), DTYPES[case.out_dtype]
        return lambda a, b, c: multiply(a, b, out_dtype=out_dtype, out=c)
    return _matmul(accumulate or case.accumulate)


def _matmul(accumulate: str):
    flags = torch.backends.cuda.matmul

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        before = flags.allow_fp16_accumulation
        flags.allow_fp16_accumulation = accumulate == "fp16"
        try:
            torch.matmul(a, b, out=c)
        finally:
            flags.allow_fp16_accumulation = before

    return run


def _scaled(out_dtype: torch.dtype, fast: bool):
    # Made by the first call, before a graph is captured, not inside.
    one = functools.cache(lambda device: torch.ones(1, 1, device=device))
    how = {"out_dtype": out_dtype, "use_fast_accum": fast}

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *scales: torch.Tensor) -> None:
        scale_a, scale_b = scales or (one(a.device), one(a.device))
        torch._scaled_mm(a, b, scale_a, scale_b.mT, out=c, **how)

    return run
