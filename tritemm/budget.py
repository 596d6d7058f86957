"""The one tolerance: an fp64 reference and an element-wise error bound.

For C = A B with K terms per element, S = sum |a||b| over those terms, and C's own rounding:

    |c - ref| <= E + u_out (|ref| + E) + tiny,
    E = S g(K) u_acc + 2 u_in (|ref| + S s(K))

g(K) = min(K, 4 sqrt(K) + K / 16) rounding errors of the accumulator: independent ones add up like
sqrt(K) (N. Higham, T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", 2019), of
which 4 standard deviations are allowed; tensor cores truncate once per 16 terms, which is biased
and adds up like K / 16. u_acc is the unit of truncation, 2^-23 for fp32.
u_in is what `precision` loses of each fp32 operand, biased (|ref|) and at random,
s(K) = min(1, 6 / sqrt(K)).
Integers are exact modulo 2^32.

For fp8 the tensor core keeps 13 bits after a sum's leading one (Hopper; DeepSeek-V3 counts 14 in
all, arXiv 2412.19437, 3.3.2), so u_acc is 2^-13. It truncates each product there: an H200 that adds
up 65 536 terms of about 1 stops at 17 700. Each loses half a unit, relative to a sum that grows:
g8(K) = 2 sqrt(K) + K / 4, and no more than S. If every 128 terms are promoted, n = K / 128 such
sums are added in fp32: E = S (g8(128) 2^-13 + g(n) 2^-23). Scales, in fp32, are exact to three
roundings.

For fp32 by planes of bf16, the tensor core truncates sums of 64 elements, at most 4 times, and
n = K / 64 of these are added in fp32. Up to 8 smaller products come first, each at most 2^-8 S; in
their sum half a unit is truncated every 16 elements, 8 (K / 16) 2^-9 units in all:
E = S (4 + g(n) + K / 1024) 2^-23 + 2 u_in (|ref| + S s(K)).

For residues (`problem.residues`), ALLOWED u S bounds the root mean square of errors, u being half
the type's eps; otherwise FFMA or DMMA multiplies again: E = S 4 ALLOWED u.

For a long K, E exceeds one term, so a dropped term passes: at K = 65536 in fp32, and for fp16 sums
from K = 256 on. There exact sums decide. If operands hold small integers and the accumulator can
hold S, it can hold every partial sum, in any order, and E is 0; `exact_operands` makes such
operands.

Every element counts, and NaN fails: norms and means would pass a wrong element.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from .problem import ACCUMULATE, BLOCK, GATED, PLANE_STEP, PRODUCTS, activated, span, spread
from .problem.residues import RESIDUES, allowed

#: Relative error that each way to multiply fp32 leaves in an operand: tf32 keeps 10 bits and
#: truncates, bf16 keeps 7 and rounds; the split forms drop products of the smallest parts, but for
#: bf16x9.
OPERAND_ERROR = {
    "ieee": 0.0,
    "tf32": 2**-10,
    "tf32x3": 2**-19,
    "bf16x3": 2**-14,
    "bf16x6": 2**-24,
    "bf16x9": 0.0,
}


#: Slope of gelu at about x = 1.4, the steepest of any activation: 1.129.
STEEPEST = 1.13


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`worst` is the largest error divided by its bound, inf if a NaN or an infinity is wrong."""

    ok: bool
    worst: float
    message: str

    def __str__(self) -> str:
        return self.message


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in fp64, by torch."""
    return torch.matmul(a.double(), b.double())


def bound(
    want, a, b, out_dtype, *, accumulate=None, precision="ieee", ending=None, stepwise=False,
    summed: str = "",
) -> torch.Tensor:  # fmt: skip
    """The largest error that each element of a @ b may have, in fp64; see the module.

    `want` is `reference(a, b)`, or `ending` applied to it; `stepwise`: see `check`. For operands
    already multiplied by their scales, `summed` says how they were summed: int8, promoted or fast;
    for fp32 or fp64 operands that were split, it is the precision.
    """
    terms = max(a.shape[-1], 1)
    magnitude = torch.matmul(a.double().abs(), b.double().abs())
    size = want.abs()
    own = not summed or summed in RESIDUES
    accumulate = accumulate or (ACCUMULATE[a.dtype] if own else torch.float32)
    error = magnitude * relative(terms, summed, accumulate)
    if a.dtype == torch.float32:
        spread = min(1.0, 6 / math.sqrt(terms))
        error += 2 * OPERAND_ERROR.get(precision, 0.0) * (size + magnitude * spread)
    whole = summed in RESIDUES and terms < 2**15  # for more, the rounding of weights shows
    if (whole or summed in ("", *PRODUCTS)) and _small_integers(a) and _small_integers(b):
        error = torch.where(magnitude <= largest_exact(accumulate), 0.0, error)
    if ending:
        wide = torch.promote_types(accumulate, torch.float32)
        size, error = _after(ending, want, error, wide, out_dtype if stepwise else None)
    return _rounded(size, error, out_dtype)


def relative(terms: int, summed: str = "", accumulate: torch.dtype = torch.float32) -> float:
    """E / S for this many terms, without the loss of `precision`; `summed`: see `bound`."""
    eps = torch.finfo(accumulate).eps
    if summed in RESIDUES:
        return 4 * allowed(RESIDUES[summed], accumulate)
    if summed in PRODUCTS:
        return (4 + _growth(-(-terms // PLANE_STEP)) + terms / 1024) * eps
    if summed == "int8":
        return 4 * eps
    if summed == "fast":
        return _truncated(terms) + 3 * eps
    if summed == "promoted":
        return _truncated(min(terms, BLOCK)) + (_growth(-(-terms // BLOCK)) + 3) * eps
    return _growth(terms) * eps


def _growth(terms: int) -> float:
    """g(K) of the module."""
    return min(terms, 4 * math.sqrt(terms) + terms / 16)


def _truncated(terms: int) -> float:
    """What the tensor core loses of an fp8 sum: g8(K) 2^-13 of the module, or all."""
    return min(1.0, (2 * math.sqrt(terms) + terms / 4) * 2.0**-13)


def dequantized(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`values` [lines, K] times their scales [lines, steps], of a line or 128 each, in fp64."""
    return values.double() * spread(scale.double(), *values.shape)


def _after(ending, sums, error, dtype, stored) -> tuple[torch.Tensor, torch.Tensor]:
    """Size and error of `ending`'s result, in `dtype`, for sums with an error.

    Each of its steps rounds once; with `stored` not None, the steps of swiglu or geglu also round
    to that type. No activation is steeper than `STEEPEST`, and each adds a few roundings of its
    argument.
    """
    eps = torch.finfo(dtype).eps
    magnitude = (ending.alpha * sums).abs()
    argument = ending.alpha * sums
    if ending.bias is not None:
        argument = argument + ending.bias.double()
        magnitude = magnitude + ending.bias.double().abs()
    error = abs(ending.alpha) * error + eps * magnitude
    if ending.activation in GATED:
        error = _of_pairs(ending, argument, error, eps, stored)
        magnitude = activated(argument, ending.activation).abs()
    elif ending.activation:
        error = STEEPEST * error + 4 * eps * argument.abs()
    if ending.residual is not None:
        added = (ending.beta * ending.residual.double()).abs()
        error = error + eps * (magnitude + added)
    return ending.of(sums, torch.float64).abs(), error


def _of_pairs(ending, argument, error, eps, stored) -> torch.Tensor:
    """The error of activation(gate) * up, for the halves of an argument with an error."""
    error = _rounded(argument.abs(), error, stored)
    (gate, up), (in_gate, in_up) = argument.chunk(2, -1), error.chunk(2, -1)
    value = activated(gate, GATED[ending.activation]).abs()
    in_value = STEEPEST * in_gate + 4 * eps * gate.abs()
    in_value = _rounded(value, in_value, stored)
    error = in_value * up.abs() + value * in_up + in_value * in_up
    error = error + eps * (value * up.abs() + error)
    return _rounded(value * up.abs(), error, stored)


def _rounded(size, error, dtype) -> torch.Tensor:
    """The error after rounding a value of this size and error to `dtype`, if not None."""
    if dtype is None:
        return error
    kind = torch.finfo(dtype)
    return error + kind.eps / 2 * (size + error) + kind.tiny * kind.eps


def largest_exact(dtype: torch.dtype) -> int:
    """The largest integer up to which a floating-point type holds all integers."""
    return round(2 / torch.finfo(dtype).eps)


def _small_integers(t: torch.Tensor) -> bool:
    """Whether all elements are integers that every precision keeps: bf16 does up to 256."""
    t = t.double()  # fp8 has no rounding
    return bool(((t == t.round()) & (t.abs() <= largest_exact(torch.bfloat16))).all())


def exact_operands(a, b, accumulate=None) -> tuple[torch.Tensor, torch.Tensor]:
    """Operands for `check`, stored like `a` and `b`: their sums are exact, and every term counts.

    They hold 1 and -1 in floating-point types, the same at every call. An element of C has no more
    terms than the accumulator can count; if K is longer, the rest are zeros, at other k in each row
    of C (or column, if there are more columns), so that each k counts in one of a few rows.
    """
    terms, most = a.shape[-1], largest_exact(accumulate or ACCUMULATE[a.dtype])
    generator = torch.Generator(a.device).manual_seed(0)
    a, b = _signs_like(a, generator), _signs_like(b, generator)
    period = -(-terms // most)
    if period > 1:
        _thin(a if a.shape[-2] >= b.shape[-1] else b.mT, period)
    return a, b


def _signs_like(t: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """1 and -1 at random, with the sizes, strides and alignment of `t`; in memory of its own."""
    first = t.data_ptr() % 16 // t.element_size()
    size = first + span(t) // t.element_size()
    storage = torch.empty(size, dtype=t.dtype, device=t.device)
    storage.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    return storage.as_strided(t.shape, t.stride(), first)


def _thin(lines: torch.Tensor, period: int) -> None:
    """Keep every `period`-th k of `lines` [..., lines, K], shifted by one in each line."""
    for dim, step in enumerate(lines.stride()):
        if step == 0:
            lines = lines.narrow(dim, 0, 1)  # the others are in the same memory
    sizes = lines.shape[-2:]
    line, k = (torch.arange(n, dtype=torch.int32, device=lines.device) for n in sizes)
    lines.masked_fill_((line[:, None] + k) % period != 0, 0)


def check(
    out, a, b, *, accumulate=None, precision="ieee", ending=None, stepwise=False, scales=None,
    planes=False,
) -> Verdict:  # fmt: skip
    """Compare `out` with a @ b, or with `ending` applied to it, element by element.

    Args:
        out: the result to judge, of any type and of torch.matmul's shape.
        a, b: the operands that produced it, at least 1-D.
        accumulate: accumulator type, by default the operands' own (`problem.ACCUMULATE`).
        precision: how fp32 operands were to be multiplied.
        ending: the epilogue, a `problem.EpilogueInputs`.
        stepwise: whether swiglu or geglu may consist of steps that each round to the type of
            `out`, as torch's operators do: gate and up, the activation, and their product.
        scales: for 8-bit operands, see `Problem.of`.
        planes: whether operands were multiplied as planes of bf16, or as residues.
    """
    summed = precision if planes else ""
    if scales:
        first, second, promoted = scales
        summed = "int8" if a.dtype == torch.int8 else "promoted" if promoted else "fast"
        a, b = dequantized(a, first), dequantized(b.mT, second).mT
    sums = want = reference(a, b)
    if ending:
        want = ending.of(sums, torch.float64)
    if out.shape != want.shape:
        return Verdict(False, math.inf, f"shape {tuple(out.shape)}, not {tuple(want.shape)}")
    if out.numel() == 0:
        return Verdict(True, 0.0, "ok: nothing to compare")
    if a.dtype.is_floating_point:
        got = out.double()
        allowed = bound(
            sums, a, b, out.dtype, accumulate=accumulate, precision=precision, ending=ending,
            stepwise=stepwise, summed=summed,
        )  # fmt: skip
        ratio = (got - want).abs() / allowed
        same = (got == want) | (got.isnan() & want.isnan())
        ratio = torch.where(same, 0.0, ratio).nan_to_num(nan=math.inf)
    else:
        wrapped = (want.long() + 2**31) % 2**32 - 2**31
        got, allowed = out.long(), torch.zeros_like(want)
        ratio = torch.where(got == wrapped, 0.0, math.inf)
    worst = ratio.max().item()
    if worst <= 1:
        return Verdict(True, worst, f"ok: the worst error is {worst:.2g} of its bound")
    at = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    wrong = (ratio > 1).nonzero()
    first, last = (tuple(wrong.amin(0).tolist()), tuple(wrong.amax(0).tolist()))
    message = (
        f"{len(wrong)} of {ratio.numel()} elements are wrong, all between {first} and {last}; at "
        f"{at}: got {got[at].item():.9g}, want {want[at].item():.9g} within "
        f"{allowed[at].item():.3g}"
    )
    return Verdict(False, worst, message)
