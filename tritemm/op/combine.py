"""The operator that moves tokens to the rows of their experts, and combines these again.

`tritemm::combine` computes the rows, the tokens or the weights from the other two: see
`kernels.combine`. It is linear in each, and its gradients are its own results for the others.
`tritemm::route` computes the row of a token for an expert.
"""

from __future__ import annotations

import torch

from ..kernels.combine import combine, route
from ..runtime import fast_path
from ..runtime.operators import define, implement_whole
from ..runtime.torch_private import Derivatives, onwards, primal_of, pushing_forward

COMBINE = define(
    "combine(str find, Tensor? rows, Tensor? tokens, Tensor? weights, Tensor places, Tensor offs, "
    "ScalarType dtype) -> Tensor"
)
#: What `find` may be; that argument of the call is None.
FACTORS = ("rows", "tokens", "weights")
#: The place of each of the choices `index` once they are sorted, and the end of each expert's.
ROUTE = define("route(Tensor index, int experts) -> (Tensor, Tensor)")


def combined(find, rows, tokens, weights, places, offs, dtype) -> torch.Tensor:
    """The result of `COMBINE`, without torch's dispatcher if nobody watches."""
    arguments = find, rows, tokens, weights, places, offs, dtype
    first = tokens if rows is None else rows
    if fast_path.unwatched(first, places, (tokens, weights, offs)):
        return _combine(*arguments)
    return COMBINE(*arguments)


def _route(index, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    places, offs = _fake_route(index, experts)
    route(index.contiguous(), places, offs)
    return places, offs


def _fake_route(index, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    places = index.new_empty(index.shape, dtype=torch.int32)
    return places, index.new_empty(experts, dtype=torch.int32)


def _fake(find, rows, tokens, weights, places, offs, dtype) -> torch.Tensor:
    like = tokens if rows is None else rows
    sizes = {"rows": (places.numel(),), "tokens": (places.shape[0],)}
    shape = places.shape if find == "weights" else (*sizes[find], like.shape[-1])
    return like.new_empty(shape, dtype=dtype)


def _combine(find, rows, tokens, weights, places, offs, dtype) -> torch.Tensor:
    found = _fake(find, rows, tokens, weights, places, offs, dtype)
    given = [None if t is None else t.contiguous() for t in (rows, tokens, weights, places, offs)]
    given[FACTORS.index(find)] = found
    if any(t is not None and t.numel() == 0 for t in given):
        return found.zero_()
    combine(find, *given)
    return found


def _rule(keys, forward_mode, *args):
    return _Product.record(*args, keys, forward_mode)


class _Product(Derivatives):
    """The derivatives of an operator that is linear in each of its two factors."""

    @staticmethod
    def forward(ctx, find, rows, tokens, weights, places, offs, dtype, keys, forward_mode):
        factors, needs = (rows, tokens, weights), ctx.needs_input_grad[1:4]
        ctx.find, ctx.dtype = find, dtype
        ctx.dtypes = [None if t is None else t.dtype for t in factors]
        kept = [t if any(needs[:i] + needs[i + 1 :]) else None for i, t in enumerate(factors)]
        ctx.save_for_backward(*kept, places, offs)
        if forward_mode:
            ctx.save_for_forward(*factors, places, offs)
        return onwards(COMBINE, keys, find, *factors, places, offs, dtype)

    @staticmethod
    def backward(ctx, grad):
        *factors, places, offs = ctx.saved_tensors
        factors[FACTORS.index(ctx.find)] = grad
        found = [None] * 9
        for i, find in enumerate(FACTORS):
            if ctx.needs_input_grad[1 + i]:
                others = [None if j == i else t for j, t in enumerate(factors)]
                found[1 + i] = COMBINE(find, *others, places, offs, ctx.dtypes[i])
        return tuple(found)

    @staticmethod
    def jvp(ctx, _, *tangents):
        with pushing_forward():
            *factors, places, offs = (t if t is None else primal_of(t) for t in ctx.saved_tensors)
            terms = []
            for i, tangent in enumerate(tangents[:3]):
                if tangent is not None:
                    others = [tangent if j == i else t for j, t in enumerate(factors)]
                    terms.append(COMBINE(ctx.find, *others, places, offs, ctx.dtype))
            return sum(terms[1:], terms[0])


implement_whole(COMBINE, _combine, _fake, _rule)
implement_whole(ROUTE, _route, _fake_route)
