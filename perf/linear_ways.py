"""Ways to compute a linear layer and what follows it: `tritemm.linear`'s one launch, and torch's.

Torch's are the calls that a user would write, what `torch.compile` makes of them, for these sizes,
and where torch has a function for just that, that function. All return new tensors, but for those
that accumulate, and all are captured in CUDA graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

import torch
import torch.nn.functional as F

import tritemm
from tritemm import dispatch, plan
from tritemm.problem import GATED

from .case import DTYPES, Case
from .ending import Ending
from .engine import Competitor
from .model_steps import compiled_apart
from .operands import Operands
from .rows import NULL, REFERENCE, TRITON

OURS = "auto"
#: What may be left out, and what `torch.compile` is given for it: it takes its time to compile.
COMPILED = {"compile": {}, "max-autotune": {"mode": "max-autotune-no-cudagraphs"}}
#: Torch's single functions for an ending: the names are those of competitors.
ADDMM, EPILOGUE, ADDED = "torch.addmm", "torch._addmm_activation", "torch.mm, then add"

#: Of a, b, c, bias, residual, as `perf.operands` makes them; returns the result.
Way = Callable[..., torch.Tensor]


def ways(case: Case, operands: Operands, compiled: Collection[str]) -> list[Competitor]:
    """tritemm first, then torch eagerly, twice, then its other ways: `compiled`, of `COMPILED`."""
    torch.compiler.reset()  # what was compiled for the last case is of no use
    others = {name: _compiled(case.after, COMPILED[name]) for name in compiled}
    others |= _single(case.after)
    eager = _eager(case.after)
    return [
        dataclasses.replace(_ours(case, operands), rivals=tuple(others)),
        *(Competitor(name, way) for name, way in {REFERENCE: eager, NULL: eager, **others}.items()),
    ]


def _ours(case: Case, operands: Operands) -> Competitor:
    try:
        choice = _choice(case, *operands)
    except (NotImplementedError, ValueError) as error:
        return Competitor(OURS, _nothing, ladder=TRITON, refusal=str(error))
    return Competitor(
        OURS,
        _fused(case.after),
        ladder=TRITON,
        rung=choice.kernel.name,
        number=choice.kernel.number,
        config=dataclasses.asdict(choice.config),
    )


def _nothing(*operands: torch.Tensor | None) -> None:
    """What is refused isn't run."""


def _fused(after: Ending) -> Way:
    if after.accumulate:
        return lambda a, b, c, bias, residual: tritemm.matmul(
            a, b, out=c, beta=1, out_dtype=c.dtype
        )
    activation = after.activation or None
    return lambda a, b, c, bias, residual: tritemm.linear(
        a, b.mT, bias, activation=activation, residual=residual
    )


def _choice(case: Case, a, b, c, bias, residual) -> dispatch.Choice:
    """What tritemm runs; of a gated activation that torch ends, for the product before it."""
    after = case.after
    added = c if after.accumulate else residual
    ending = plan.Ending.made(a, b, bias, added, after.activation)
    shape = plan.result_shape(a, b, after.activation)
    out = torch.empty(shape, dtype=c.dtype, device="meta")
    problem = plan.matrices(a, b, out, None, DTYPES[case.accumulate], ending)[0]
    return dispatch.first_choice(problem)


def _eager(after: Ending) -> Way:
    if after.accumulate:
        return _accumulate
    layer = _layer(after)
    return lambda a, b, c, bias, residual: layer(a, b.mT, bias, residual)


def _accumulate(a, b, c, bias, residual) -> torch.Tensor:
    """Into fp32, of 16-bit operands: a form that torch's kernels for the CPU don't have."""
    if not c.is_cuda:
        return c.add_(a.to(c.dtype) @ b.to(c.dtype))
    return torch.addmm(c, a, b, out_dtype=c.dtype, out=c)


def _add(a, b, c) -> torch.Tensor:
    return c.add_(torch.mm(a, b))


def _layer(after: Ending) -> Callable[..., torch.Tensor]:
    """A module's forward, of an input, a weight [N, K], a bias and a residual."""
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


def _compiled(after: Ending, options: dict) -> Way:
    """For static sizes, without CUDA graphs of torch.compile's own."""
    if after.accumulate:
        add = compiled_apart(_add, **options)
        return lambda a, b, c, bias, residual: add(a, b, c)
    layer = compiled_apart(_layer(after), **options)
    return lambda a, b, c, bias, residual: layer(a, b.mT, bias, residual)


def _single(after: Ending) -> dict[str, Way]:
    """Torch's functions that do all of it, or the other form of it, by name."""
    if after.accumulate:
        return {ADDED: lambda a, b, c, bias, residual: _add(a, b, c)}
    if after == Ending(residual=True):
        return {ADDMM: lambda a, b, c, bias, residual: torch.addmm(residual, a, b)}
    if after == Ending(bias=True, activation="relu"):
        return {EPILOGUE: lambda a, b, c, bias, residual: torch._addmm_activation(bias, a, b)}
    return {}
