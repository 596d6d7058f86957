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

Every element counts, and NaN fails: norms and means would pass a wrong element.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from .problem import ACCUMULATE

#: Relative error that each way to multiply fp32 leaves in an operand: tf32 keeps 10 bits and
#: truncates, bf16 keeps 7 and rounds; the split forms drop the product of the smallest parts.
OPERAND_ERROR = {
    "ieee": 0.0,
    "tf32": 2**-10,
    "tf32x3": 2**-19,
    "bf16x3": 2**-14,
    "bf16x6": 2**-21,
}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`worst` is the largest error over its bound, inf where a NaN or an infinity is wrong."""

    ok: bool
    worst: float
    message: str

    def __str__(self) -> str:
        return self.message


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in fp64, by torch."""
    return torch.matmul(a.double(), b.double())


def bound(want, a, b, out_dtype, *, accumulate=None, precision="ieee") -> torch.Tensor:
    """The largest error that each element of a @ b may have, in fp64; see the module.

    `want` is `reference(a, b)`.
    """
    terms = max(a.shape[-1], 1)
    magnitude = torch.matmul(a.double().abs(), b.double().abs())
    size = want.abs()
    accumulator = torch.finfo(accumulate or ACCUMULATE[a.dtype])
    growth = min(terms, 4 * math.sqrt(terms) + terms / 16)
    error = magnitude * (growth * accumulator.eps)
    if a.dtype == torch.float32:
        spread = min(1.0, 6 / math.sqrt(terms))
        error += 2 * OPERAND_ERROR[precision] * (size + magnitude * spread)
    out = torch.finfo(out_dtype)
    return error + out.eps / 2 * (size + error) + out.tiny * out.eps


def check(out, a, b, *, accumulate=None, precision="ieee") -> Verdict:
    """Compare `out` with a @ b element by element.

    Args:
        out: the result to judge, of any type and of torch.matmul's shape.
        a, b: the operands that produced it, at least 1-D.
        accumulate: accumulator type, by default the operands' own (`problem.ACCUMULATE`).
        precision: how fp32 operands were to be multiplied.
    """
    want = reference(a, b)
    if out.shape != want.shape:
        return Verdict(False, math.inf, f"shape {tuple(out.shape)}, not {tuple(want.shape)}")
    if out.numel() == 0:
        return Verdict(True, 0.0, "ok: nothing to compare")
    if a.dtype.is_floating_point:
        got = out.double()
        allowed = bound(want, a, b, out.dtype, accumulate=accumulate, precision=precision)
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
    wrong = int((ratio > 1).sum())
    message = (
        f"{wrong} of {ratio.numel()} elements are wrong; at {at}: got {got[at].item():.9g}, "
        f"want {want[at].item():.9g} within {allowed[at].item():.3g}"
    )
    return Verdict(False, worst, message)
