"""The operator of an activation of pairs, where it comes after a product that is differentiated."""

from __future__ import annotations

import math

import torch

from ..kernels.gate import gated
from ..problem import GATED, activated
from ..runtime.operators import define, implement_whole
from ..runtime.torch_private import (
    Derivatives,
    below_autograd,
    compute_requires_grad,
    has_tangent,
    onwards,
)

GATE = define("gate(Tensor x, str activation) -> Tensor")
GATE_GRADIENT = define("gate_gradient(Tensor grad, Tensor x, str activation) -> Tensor")


def _gate(x, activation) -> torch.Tensor:
    out = _fake(x, activation)
    if out.numel():
        gated(x.contiguous().view(-1, x.shape[-1]), activation, out)
    return out


def _fake(x, activation) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


def _gradient(grad, x, activation) -> torch.Tensor:
    out = _fake_gradient(grad, x, activation)
    if out.numel():
        grad = grad.contiguous().view(-1, grad.shape[-1])
        gated(x.contiguous().view(-1, x.shape[-1]), activation, out, grad)
    return out


def _fake_gradient(grad, x, activation) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _by_torch(grad, x, activation) -> torch.Tensor:
    """The gradient by operators that have derivatives of their own."""
    gate, up = x.chunk(2, -1)
    if GATED[activation] == "silu":
        share = torch.sigmoid(gate)
        slope = share * (1 + gate * (1 - share))
    else:
        share = torch.special.ndtr(gate)
        slope = share + gate * torch.exp(gate * gate / -2) / math.sqrt(2 * math.pi)
    return torch.cat((grad * up * slope, grad * gate * share), -1)


def _rule(keys, x, activation):
    if has_tangent(x):
        return activated(x, activation)
    if not compute_requires_grad(x):
        return below_autograd(GATE, keys, x, activation)
    return _Gate.record(x, activation, keys)


def _rule_of_gradient(keys, grad, x, activation):
    if has_tangent(grad, x) or compute_requires_grad(grad, x):
        return _by_torch(grad, x, activation)
    return below_autograd(GATE_GRADIENT, keys, grad, x, activation)


class _Gate(Derivatives):
    @staticmethod
    def forward(ctx, x, activation, keys):
        ctx.activation = activation
        ctx.save_for_backward(x)
        return onwards(GATE, keys, x, activation)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return GATE_GRADIENT(grad, x, ctx.activation), None, None


implement_whole(GATE, _gate, _fake, _rule)
implement_whole(GATE_GRADIENT, _gradient, _fake_gradient, _rule_of_gradient)
