"""The operator of linear layers in 8 bits, `tritemm::linear_8bit`: x @ weight.T + bias.

It takes x and the weight together with their quantised forms, so that compiled code quantises an
input of several layers only once. Backward keeps x.T in 8 bits, or x if that doesn't exist, and the
weight itself, because it may be sharded. If `offs` cuts rows into groups, each has its own weight
and bias, and scales are of blocks.
"""

from __future__ import annotations

import math

import torch
from torch.autograd.function import once_differentiable
from torch.utils.flop_counter import register_flop_formula

from ..dispatch.request import for_gradients
from ..problem import FP8
from ..runtime.operators import define, implement_whole
from ..runtime.torch_private import Derivatives, onwards
from .groups import of_each_group
from .quantize import quantized
from .scaled import scaled

E4M3, E5M2 = FP8
#: What shares a scale in x and in gradients, and in the weight and x.T; and the type of gradients.
#: With "block", one operand of each product has scales of 128 x 128, which is faster than two of
#: 1 x 128.
RECIPES = {"block": ("block", "block2d", E4M3), "row": ("row", "row", E5M2)}
#: `a` is x quantised, [rows, K], `at` its transpose, for the weight's gradient, and `b` the weight,
#: [N, K] or [groups, N, K]. A weight of 8 bits is `b` itself.
LINEAR = define(
    "linear_8bit(Tensor x, Tensor weight, Tensor? bias, Tensor a, Tensor a_scale, Tensor? at, "
    "Tensor? at_scale, Tensor b, Tensor b_scale, Tensor? offs, str recipe, ScalarType dtype, "
    "str kernel) -> Tensor"
)


def as_rows(x) -> torch.Tensor:
    """`x` [..., K] as a matrix."""
    return torch.atleast_2d(x).flatten(0, -2)


def _product(a, a_scale, b, b_scale, offs, dtype, kernel, bias=None) -> torch.Tensor:
    """(a * a_scale) @ (b * b_scale).T + bias; every 128 terms of fp8 are added in fp32."""
    how = a.dtype != torch.int8, bias, None, "", 1.0, 1.0, kernel, dtype
    return scaled(a, b.mT, a_scale, b_scale, offs, True, *how)


def _linear(x, weight, bias, a, a_scale, at, at_scale, b, b_scale, offs, recipe, dtype, kernel):
    y = _product(a, a_scale, b, b_scale, offs, x.dtype, kernel, bias)
    return torch.ops.aten._unsafe_view(y, [*x.shape[:-1], b.shape[-2]])  # no view for autograd


def _fake(x, weight, *args) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[-2])


class _Linear(Derivatives):
    """Ignores the rounding. Each gradient is an 8-bit product of the operands as they are then."""

    @staticmethod
    def forward(ctx, keys, *args):
        x, weight, bias, _, _, at, at_scale, _, scale, offs, recipe, dtype, kernel = args
        ctx.how = recipe, dtype, for_gradients(kernel), weight.dtype, getattr(bias, "dtype", None)
        none, (_, of_x, of_weight, *_) = (None, None), ctx.needs_input_grad
        turned = (x if at is None else at), at_scale
        kept = *((weight, scale) if of_x else none), *(turned if of_weight else none)
        ctx.save_for_backward(*kept, offs)
        return onwards(LINEAR, keys, *args)

    @staticmethod
    def backward(ctx, grad):
        return _gradients(ctx, grad, *ctx.saved_tensors)


@once_differentiable
def _gradients(ctx, grad, weight, scale, at, at_scale, offs):
    recipe, dtype, kernel, of_weight, of_bias = ctx.how
    (lines, blocks, _), needs, turned = RECIPES[recipe], ctx.needs_input_grad, []
    rows, found = as_rows(grad), dict.fromkeys(range(len(needs)))
    if needs[1] and of_weight == torch.int8:  # its scales run along the dimension summed here
        found[1] = grad @ (weight * scale).to(grad.dtype)
    elif needs[1]:
        how = (lines, None, offs) if needs[2] else ()
        g, g_scale, *turned = quantized(rows, dtype, lines, *how)
        w, w_scale = weight.mT, scale.mT  # fp8 in blocks
        if of_weight not in FP8:
            w, w_scale = quantized(w, E4M3, blocks)
        product = _product(g, g_scale, w, w_scale, offs, grad.dtype, kernel)
        found[1] = product.view(*grad.shape[:-1], weight.shape[-1])
    if needs[2]:
        g, g_scale, *ends = turned or _transpose(rows, dtype, lines, offs)
        if at_scale is None:
            at, at_scale, *_ = _transpose(as_rows(at), E4M3, blocks, offs)
        found[2] = _product(g, g_scale, at, at_scale, ends[0] if ends else None, of_weight, kernel)
    if needs[3] and offs is None:
        found[3] = rows.sum(0, dtype=torch.float32).to(of_bias)
    elif needs[3]:
        found[3] = of_each_group(rows, offs, kernel).to(of_bias)
    return tuple(found.values())


def _transpose(rows, dtype, scaling, offs) -> list[torch.Tensor]:
    """`rows` transposed and quantised; with groups, in blocks, and where these end."""
    if offs is None:
        return quantized(rows.mT, dtype, scaling)
    return quantized(rows, dtype, "block", scaling, None, offs)[2:]


implement_whole(LINEAR, _linear, _fake, lambda keys, _, *args: _Linear.record(keys, *args))
register_flop_formula(LINEAR.overloadpacket)(lambda x, w, *_, **__: 2 * math.prod(x) * w[-2])
