"""Whether activation(gate) * up is right, where gate and up are the halves of one product.

Nothing but `tritemm.budget` says what a product may lose. Here that goes on through what follows
it, of which each step may round to the output's type, as torch's own operators do: gate and up,
the activation of the gate, and their product.
"""

from __future__ import annotations

import math

import torch

from tritemm.budget import STEEPEST, Verdict, bound, reference
from tritemm.plan import activated
from tritemm.problem import GATED


def check_gated(out, a, b, activation: str, **how) -> Verdict:
    """Compare `out` [M, N / 2] with what follows a @ b [M, N], element by element.

    `activation`: "swiglu" or "geglu"; `how`: the accumulator and the precision, as of
    `tritemm.budget.bound`.
    """
    halves = b.chunk(2, -1)
    gate, up = (reference(a, half) for half in halves)
    want = activated(gate, GATED[activation]) * up
    if out.shape != want.shape:
        return Verdict(False, math.inf, f"shape {tuple(out.shape)}, not {tuple(want.shape)}")
    allowed = _allowed(gate, up, a, halves, activation, out.dtype, how)
    ratio = ((out.double() - want).abs() / allowed).nan_to_num(nan=math.inf)
    worst = ratio.max().item()
    if worst <= 1:
        return Verdict(True, worst, f"ok: the worst error is {worst:.2g} of its bound")
    at = tuple(int(i) for i in torch.unravel_index(ratio.argmax(), ratio.shape))
    message = (
        f"{int((ratio > 1).sum())} of {ratio.numel()} elements are wrong; at {at}: got "
        f"{out[at].item():.9g}, want {want[at].item():.9g} within {allowed[at].item():.3g}"
    )
    return Verdict(False, worst, message)


def _allowed(gate, up, a, halves, activation, dtype, how) -> torch.Tensor:
    """Errors of both halves, each rounded, then of the activation's value and of the product's."""
    found = torch.finfo(dtype)
    unit, least = found.eps / 2, found.tiny * found.eps
    in_gate, in_up = (
        bound(sums, a, half, dtype, **how) for sums, half in zip((gate, up), halves, strict=True)
    )
    value = activated(gate, GATED[activation]).abs()
    in_value = STEEPEST * in_gate
    in_value = in_value + unit * (value + in_value) + least
    size, up = value * up.abs(), up.abs()
    error = in_value * up + value * in_up + in_value * in_up
    return error + unit * (size + error) + least
