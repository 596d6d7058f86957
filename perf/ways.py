"""Who races where something follows the product, or its weight has 4 bits: `tritemm.linear`, and
every way that torch has.

Torch's ways are the calls that a user would write, what `torch.compile` makes of them, for these
sizes, and where torch has a function for just that, that function. All return new tensors, but for
those that accumulate, and all are captured in CUDA graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import torch
import torch.nn.functional as F

import tritemm
from tritemm import dispatch, plan
from tritemm.nn import Int4Weight
from tritemm.problem import GATED, EpilogueInputs, result_shape

from .calls import OURS, compiled_apart
from .case import DTYPES, Case, Ending
from .engine import Competitor
from .operands import Operands
from .rows import NULL, REFERENCE, TRITON

#: What may be left out, and what `torch.compile` is given for it (for static sizes, and without
#: CUDA graphs of its own): it takes its time to compile.
COMPILED = {"compile": {}, "max-autotune": {"mode": "max-autotune-no-cudagraphs"}}
#: Torch's single functions for an ending: the names are those of competitors.
ADDMM, EPILOGUE, ADDED = "torch.addmm", "torch._addmm_activation", "torch.mm, then add"

#: Of a, b, c, bias, residual and more, as `perf.operands` makes them; returns the result.
Way = Callable[..., torch.Tensor]


def ways(case: Case, operands: Operands, compiled: Collection[str]) -> list[Competitor]:
    """tritemm first, then torch eagerly, twice, then its other ways: `compiled`, of `COMPILED`."""
    torch.compiler.reset()  # what was compiled for the last case is of no use
    after = case.after
    compiled = () if after.int4 else compiled  # there is nothing to fuse
    body = _add if after.accumulate else _layer(after)
    others = {name: _way(after, compiled_apart(body, **COMPILED[name])) for name in compiled}
    others |= _single(after)
    eager = _way(after, _accumulate if after.accumulate else body)
    return [
        dataclasses.replace(_ours(case, operands), rivals=tuple(others)),
        *(Competitor(name, way) for name, way in {REFERENCE: eager, NULL: eager, **others}.items()),
    ]


def _ours(case: Case, operands: Operands) -> Competitor:
    fused = _fused(case.after)
    if case.after.int4:
        return Competitor(OURS, fused, TRITON, slack=1.0)  # no rung, and bound by the same error
    try:
        choice = _choice(case, *operands)
    except (NotImplementedError, ValueError) as error:
        return Competitor(OURS, fused, ladder=TRITON, refusal=str(error))
    kernel, config = choice.kernel, dataclasses.asdict(choice.config)
    return Competitor(OURS, fused, TRITON, kernel.name, kernel.number, config)


def _fused(after: Ending) -> Way:
    if after.accumulate:
        return lambda a, b, c, bias, residual: tritemm.matmul(
            a, b, out=c, beta=1, out_dtype=c.dtype
        )
    if after.symmetric:
        return lambda a, b, c, bias, residual: tritemm.syrk(a)
    if after.int4:
        return lambda a, b, c, bias, residual, packed, scale: tritemm.linear(
            a, Int4Weight(packed, scale)
        )
    activation = after.activation or None
    return lambda a, b, c, bias, residual: tritemm.linear(
        a, b.mT, bias, activation=activation, residual=residual
    )


def _choice(case: Case, a, b, c, bias, residual) -> dispatch.Choice:
    """What tritemm runs; of a gated activation that torch ends, for the product before it."""
    after = case.after
    added = c if after.accumulate else residual
    more = {"activation": after.activation, "symmetric": after.symmetric}
    ending = EpilogueInputs.made(a, b, bias, added, **more)
    shape = result_shape(a, b, after.activation)
    out = torch.empty(shape, dtype=c.dtype, device="meta")
    problem = plan.matrices(a, b, out, None, DTYPES[case.accumulate], ending)[0]
    return dispatch.first_choice(problem)


def _way(after: Ending, body: Callable[..., torch.Tensor]) -> Way:
    """A way of a function of a, b, c, if the ending accumulates, or of a layer's arguments."""
    if after.accumulate:
        return lambda a, b, c, bias, residual: body(a, b, c)
    return lambda a, b, c, bias, residual, *weight: body(a, b.mT, bias, residual)


def _accumulate(a, b, c) -> torch.Tensor:
    """Into fp32, of 16-bit operands: a form that torch's kernels for the CPU don't have."""
    if not c.is_cuda:
        return c.add_(a.to(c.dtype) @ b.to(c.dtype))
    return torch.addmm(c, a, b, out_dtype=c.dtype, out=c)


def _add(a, b, c) -> torch.Tensor:
    return c.add_(torch.mm(a, b))


def _layer(after: Ending) -> Callable[..., torch.Tensor]:
    """A module's forward, of an input, a weight [N, K], a bias and a residual."""
    if after.symmetric:
        return lambda x, weight, bias, residual: torch.matmul(x, weight.mT)
    name, gated = after.activation, after.gated
    activation = getattr(F, GATED.get(name, name).removesuffix("_tanh")) if name else None
    options = {"approximate": "tanh"} if name == "gelu_tanh" else {}

    def forward(x, weight, bias, residual):
        y = F.linear(x, weight, bias)
        if gated:
            gate, up = y.chunk(2, -1)
            y = activation(gate) * up
        elif activation is not None:
            y = activation(y, **options)
        return y if residual is None else y + residual

    return forward


def _single(after: Ending) -> dict[str, Way]:
    """Torch's functions that do all of it, or the other form of it, by name."""
    if after.accumulate:
        return {ADDED: _way(after, _add)}
    if after == Ending(residual=True):
        return {ADDMM: lambda a, b, c, bias, residual: torch.addmm(residual, a, b)}
    if after == Ending(bias=True, activation="relu"):
        return {EPILOGUE: lambda a, b, c, bias, residual: torch._addmm_activation(bias, a, b)}
    return {}
