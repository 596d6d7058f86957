"""Layers that multiply one input, as one product: the operator that compiled code calls.

`tritemm::merged` is the products of two or three layers, side by side in one tensor. It is one
launch where their weights lie one behind the other in memory, which is asked at each run, and
otherwise one launch a layer. Where a gradient is recorded, `tritemm::merged_parts` gives each
layer's part as a tensor of its own. Their gradients are products of their own too: to put the
parts' gradients side by side first would take longer than one product instead of three saves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.flop_counter import register_flop_formula

from .. import ops
from ..api import matmul
from ..blas import linear
from ..runtime import inductor
from ..runtime.torch_private import (
    apply_of,
    below_autograd,
    compute_requires_grad,
    has_tangent,
    single_level,
)
from .packing import packed

_LIBRARY = torch.library.Library("tritemm", "FRAGMENT")
_ARGUMENTS = (
    "Tensor input, Tensor first, Tensor second, Tensor? third, Tensor? first_bias, "
    "Tensor? second_bias, Tensor? third_bias, str? precision"
)
_LIBRARY.define(f"merged({_ARGUMENTS}) -> Tensor")
_LIBRARY.define(f"merged_parts({_ARGUMENTS}) -> Tensor[]")
_MERGED, _PARTS = torch.ops.tritemm.merged.default, torch.ops.tritemm.merged_parts.default
#: The most layers that the operators take.
MOST = 3


def merged(
    input: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    precision: str | None,
) -> Sequence[torch.Tensor]:
    """input @ weight.mT + bias of two or three layers: [..., N] each, views of one tensor.

    Weights are [N, K] each; biases are as many, [N], or none. Input is [..., K].
    """
    given = *_filled(weights), *_filled(biases), precision
    if compute_requires_grad(input, *weights, *biases):
        return _PARTS(input, *given)
    return _MERGED(input, *given).split([weight.shape[0] for weight in weights], -1)


def _filled(tensors: Sequence) -> tuple:
    return (*tensors, *(None,) * (MOST - len(tensors)))


def _there(*tensors) -> list:
    return [t for t in tensors if t is not None]


def _merged(input, first, second, third, bias_1, bias_2, bias_3, precision, out=None):
    weights, biases = _there(first, second, third), _there(bias_1, bias_2, bias_3)
    weight, bias = packed(*weights), packed(*biases) if biases else None
    if weight is not None and (bias is not None or not biases):
        return linear(input, weight, bias, precision=precision, out=out)
    if out is None:
        out = _merged_fake(input, first, second, third, bias_1, bias_2, bias_3, precision)
    parts = out.split([w.shape[0] for w in weights], -1)
    for w, b, part in zip(weights, biases or _filled(()), parts, strict=False):
        linear(input, w, b, precision=precision, out=part)
    return out


def _each(input, first, second, third, bias_1, bias_2, bias_3, precision) -> list:
    """The parts, as products of their own, differentiable."""
    each = zip(_there(first, second, third), (bias_1, bias_2, bias_3), strict=False)
    return [linear(input, w, b, precision=precision) for w, b in each]


def _side_by_side(*given):
    """What the operator means, of differentiable parts."""
    return torch.cat(_each(*given), -1)


def _merged_fake(input, first, second, third, bias_1, bias_2, bias_3, precision):
    rows = sum(w.shape[0] for w in _there(first, second, third))
    return input.new_empty((*input.shape[:-1], rows))


class _Parts(torch.autograd.Function):
    """The parts of one product, and the derivatives of each by products of its own."""

    @staticmethod
    def forward(ctx, input, *given):
        *tensors, ctx.precision = given
        ctx.set_materialize_grads(False)  # a layer whose result is not used has no gradient
        weights = tensors[:MOST]
        needs, *needed = ctx.needs_input_grad[: 1 + MOST]
        ctx.save_for_backward(input if any(needed) else None, *(weights if needs else ()))
        with torch._C._AutoDispatchBelowAutograd():
            whole = _MERGED(input, *given)
        return whole.split([w.shape[0] for w in _there(*weights)], -1)

    @staticmethod
    def backward(ctx, *gradients):
        input, *weights = ctx.saved_tensors
        needs = ctx.needs_input_grad
        options = {"precision": ctx.precision}
        of_input, of_weights, of_biases = None, [None] * MOST, [None] * MOST
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if weights:
                of_input = matmul(gradient, weights[index], residual=of_input, **options)
            rows = gradient.flatten(0, -2)
            if needs[1 + index]:
                of_weights[index] = matmul(rows.mT, input.flatten(0, -2), **options)
            if needs[1 + MOST + index]:
                of_biases[index] = rows.sum(0)
        return of_input, *of_weights, *of_biases, None


#: `_Parts` of its arguments, recorded by autograd.
_recorded = apply_of(_Parts)


def _merged_autograd(keys, *given):
    """As one tensor it is differentiated as what it means."""
    return _side_by_side(*given) if _asks(given) else below_autograd(_MERGED, keys, *given)


def _parts_autograd(keys, *given):
    if has_tangent(*given[:-1]):
        return _each(*given)
    if _asks(given):
        with single_level():
            return list(_recorded(*given))
    return below_autograd(_PARTS, keys, *given)


def _asks(given) -> bool:
    """Whether a gradient or a tangent is to be recorded."""
    return compute_requires_grad(*given[:-1]) or has_tangent(*given[:-1])


for _name, _function, _with_autograd, _meaning in (
    ("merged", _merged, _merged_autograd, _side_by_side),
    ("merged_parts", _each, _parts_autograd, _each),
):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _function, _key)
    _LIBRARY.impl(_name, _with_autograd, "Autograd", with_keyset=True)
    _LIBRARY.impl(_name, _meaning, "FuncTorchBatchedDecomposition")  # vmap: as its parts


@torch.library.register_fake("tritemm::merged", lib=_LIBRARY)
def _fake(*given):
    inductor.lower(_MERGED, "torch.ops.tritemm.merged_into", tensors=3, optional=4)
    return _merged_fake(*given)


@torch.library.register_fake("tritemm::merged_parts", lib=_LIBRARY)
def _parts_fake(input, first, second, third, *given):
    weights = _there(first, second, third)
    return [input.new_empty((*input.shape[:-1], w.shape[0])) for w in weights]


def _merged_into(input, first, second, *rest, out):
    """What code compiled by Inductor calls in place of `merged`, into memory that it has planned.

    `rest`: those of the other tensors that are there; of each whether it is; the precision.
    """
    *others, third, bias_1, bias_2, bias_3, precision = rest
    others = iter(others)
    filled = (next(others) if there else None for there in (third, bias_1, bias_2, bias_3))
    _merged(input, first, second, *filled, precision, out=out)


#: By this name, because generated code imports torch and is kept between processes.
torch.ops.tritemm.merged_into = _merged_into


@register_flop_formula(torch.ops.tritemm.merged)
def _flops(input_shape, *args, out_shape=None, **kwargs) -> int:
    return ops.flops(input_shape, out_shape)
