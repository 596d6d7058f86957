"""Layers that multiply one input, as one product: the operators that compiled code calls.

`tritemm::merged` is the products of two or three layers, side by side in one tensor. It is one
launch where their weights lie one behind the other in memory, which is asked at each run, and
otherwise one launch a layer. Its gradients are one product for the input and one for the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.flop_counter import register_flop_formula

from ..api import matmul
from ..blas import linear
from ..runtime import inductor
from ..runtime.torch_private import apply_of, below_autograd, single_level, tangent_of
from .packing import packed

_LIBRARY = torch.library.Library("tritemm", "FRAGMENT")
_WEIGHTS = "Tensor first, Tensor second, Tensor? third"
_LIBRARY.define(
    f"merged(Tensor input, {_WEIGHTS}, Tensor? first_bias, Tensor? second_bias, "
    "Tensor? third_bias, str? precision) -> Tensor"
)
_LIBRARY.define(f"merged_input_gradient(Tensor gradient, {_WEIGHTS}, str? precision) -> Tensor")
_MERGED = torch.ops.tritemm.merged.default
_INPUT_GRADIENT = torch.ops.tritemm.merged_input_gradient.default
#: The most layers that the operators take.
MOST = 3


def merged(
    input: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    precision: str | None,
) -> torch.Tensor:
    """input @ weight.mT + bias of two or three layers: [..., K] -> [..., sum of N].

    Weights are [N, K] each; biases are as many, [N], or none.
    """
    return _MERGED(input, *_filled(weights), *_filled(biases), precision)


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


def _in_parts(input, first, second, third, bias_1, bias_2, bias_3, precision):
    """What the operator means, of differentiable parts."""
    weights, biases = _there(first, second, third), (bias_1, bias_2, bias_3)
    each = zip(weights, biases, strict=False)
    return torch.cat([linear(input, w, b, precision=precision) for w, b in each], -1)


def _merged_fake(input, first, second, third, bias_1, bias_2, bias_3, precision):
    rows = sum(w.shape[0] for w in _there(first, second, third))
    return input.new_empty((*input.shape[:-1], rows))


def _input_gradient(gradient, first, second, third, precision, out=None):
    weights = _there(first, second, third)
    weight = packed(*weights)
    if weight is not None:
        return matmul(gradient, weight, precision=precision, out=out)
    result = _input_gradient_in_parts(gradient, first, second, third, precision)
    return result if out is None else out.copy_(result)


def _input_gradient_in_parts(gradient, first, second, third, precision):
    weights = _there(first, second, third)
    parts = gradient.split([w.shape[0] for w in weights], -1)
    result = None
    for part, weight in zip(parts, weights, strict=True):
        result = matmul(part, weight, residual=result, precision=precision)
    return result


class _Merged(torch.autograd.Function):
    """The derivatives of `merged`, by one product for each of its two factors."""

    @staticmethod
    def forward(ctx, keys, input, *given):
        *tensors, ctx.precision = given
        weights = tensors[:MOST]
        needs, *needed = ctx.needs_input_grad[1 : 2 + MOST]
        ctx.rows = [w.shape[0] for w in _there(*weights)]
        ctx.save_for_backward(input if any(needed) else None, *(weights if needs else ()))
        return below_autograd(_MERGED, keys, input, *given)

    @staticmethod
    def backward(ctx, gradient):
        input, *weights = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        found = [None] * (1 + 2 * MOST)
        if weights:
            found[0] = _INPUT_GRADIENT(gradient, *weights, ctx.precision)
        rows = gradient.flatten(0, -2)
        if input is not None:
            both = matmul(rows.mT, input.flatten(0, -2), precision=ctx.precision)
            _give(found, needs, 1, both.split(ctx.rows))
        if any(needs[1 + MOST :]):
            _give(found, needs, 1 + MOST, rows.sum(0).split(ctx.rows))
        return None, *found, None


def _give(found, needs, start, parts) -> None:
    for index, part in enumerate(parts, start):
        if needs[index]:
            found[index] = part


#: `_Merged` of its arguments, recorded by autograd.
_recorded = apply_of(_Merged)


def _merged_autograd(keys, input, *given):
    tensors = _there(input, *given[:-1])
    if any(tangent_of(t) is not None for t in tensors):
        return _in_parts(input, *given)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        with single_level():
            return _recorded(keys, input, *given)
    return below_autograd(_MERGED, keys, input, *given)


def _input_gradient_autograd(keys, *given):
    tensors = _there(*given[:-1])
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if recorded or any(tangent_of(t) is not None for t in tensors):
        return _input_gradient_in_parts(*given)
    return below_autograd(_INPUT_GRADIENT, keys, *given)


for _name, _function, _with_autograd, _parts in (
    ("merged", _merged, _merged_autograd, _in_parts),
    ("merged_input_gradient", _input_gradient, _input_gradient_autograd, _input_gradient_in_parts),
):
    for _key in ("CPU", "CUDA"):
        _LIBRARY.impl(_name, _function, _key)
    _LIBRARY.impl(_name, _with_autograd, "Autograd", with_keyset=True)
    _LIBRARY.impl(_name, _parts, "FuncTorchBatchedDecomposition")  # vmap: as its parts


@torch.library.register_fake("tritemm::merged", lib=_LIBRARY)
def _fake(*given):
    inductor.lower(_MERGED, "torch.ops.tritemm.merged_into", tensors=3, optional=4)
    return _merged_fake(*given)


@torch.library.register_fake("tritemm::merged_input_gradient", lib=_LIBRARY)
def _input_gradient_fake(gradient, first, second, third, precision):
    name = "torch.ops.tritemm.merged_input_gradient_into"
    inductor.lower(_INPUT_GRADIENT, name, tensors=3, optional=1)
    return gradient.new_empty((*gradient.shape[:-1], first.shape[1]))


def _placed(given, required: int, optional: int) -> list:
    """The operator's arguments, of what Inductor's code gives: see `inductor.lower`."""
    count = len(given) - optional - 1 - required
    rest = iter(given[required : required + count])
    flags = given[required + count : -1]
    return [*given[:required], *(next(rest) if there else None for there in flags), given[-1]]


def _merged_into(*given, out):
    _merged(*_placed(given, 3, 4), out=out)


def _input_gradient_into(*given, out):
    _input_gradient(*_placed(given, 3, 1), out=out)


#: What code compiled by Inductor calls in place of the operators, into memory that it has planned.
#: By these names, because generated code imports torch and is kept between processes.
torch.ops.tritemm.merged_into = _merged_into
torch.ops.tritemm.merged_input_gradient_into = _input_gradient_into


@register_flop_formula(torch.ops.tritemm.merged)
def _flops(input_shape, *args, out_shape=None, **kwargs) -> int:
    flops = 2 * input_shape[-1]
    for size in out_shape:
        flops *= size
    return flops


@register_flop_formula(torch.ops.tritemm.merged_input_gradient)
def _input_gradient_flops(gradient_shape, *args, out_shape=None, **kwargs) -> int:
    return _flops(gradient_shape, out_shape=out_shape)
