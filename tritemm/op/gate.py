"""The operator of a gated activation after a product that needs a gradient."""

from __future__ import annotations

import math

import torch

from ..kernels.gate import gated
from ..problem import GATED, activated
from ..runtime.operators import define, implement_whole
from ..runtime.torch_private import Derivatives, onwards

#: With `grad`, the result's gradient, it returns the gradient with respect to `x`.
GATE = define("gate(Tensor x, str activation, Tensor? grad=None) -> Tensor")


def _gate(x, activation, grad=None) -> torch.Tensor:
    out = _fake(x, activation, grad)
    if out.numel():
        gated(x.contiguous(), activation, out, None if grad is None else grad.contiguous())
    return out


def _fake(x, activation, grad=None) -> torch.Tensor:
    columns = x.shape[-1] // 2 if grad is None else x.shape[-1]
    return x.new_empty(*x.shape[:-1], columns)


def _gradient(x, activation, grad) -> torch.Tensor:
    """The gradient by operators that have derivatives of their own."""
    gate, up = x.chunk(2, -1)
    if GATED[activation] == "silu":
        share = torch.sigmoid(gate)
        slope = share * (1 + gate * (1 - share))
    else:
        share = torch.special.ndtr(gate)
        slope = share + gate * torch.exp(gate * gate / -2) / math.sqrt(2 * math.pi)
    return torch.cat((grad * up * slope, grad * gate * share), -1)


def _rule(keys, forward_mode, x, activation, grad=None):
    """Records one gradient, and leaves higher ones to torch's operators."""
    if grad is not None:
        return _gradient(x, activation, grad)
    return activated(x, activation) if forward_mode else _Gate.record(x, activation, keys)


class _Gate(Derivatives):
    @staticmethod
    def forward(ctx, x, activation, keys):
        ctx.activation = activation
        ctx.save_for_backward(x)
        return onwards(GATE, keys, x, activation)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return GATE(x, ctx.activation, grad), None, None


implement_whole(GATE, _gate, _fake, _rule)
