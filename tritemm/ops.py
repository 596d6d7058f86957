"""The one operator boundary: what torch's dispatcher, autograd, vmap and compile see.

`tritemm::mm` multiplies matrices with broadcast batch dimensions, operands of at least two
dimensions. `tritemm::mm_out` writes into a tensor of the right shape. Checks that need no data
stand in `api.py`; these operators trust their arguments.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from . import launch, products
from .products import plan as plan
from .products import result_shape
from .request import for_gradients

_LIBRARY = torch.library.Library("tritemm", "DEF")
_OPTIONS = "str kernel, str? precision, ScalarType? accumulate"
_LIBRARY.define(f"mm(Tensor a, Tensor b, {_OPTIONS}, ScalarType out_dtype) -> Tensor")
_LIBRARY.define(f"mm_out(Tensor a, Tensor b, {_OPTIONS}, *, Tensor(a!) out) -> ()")


def mm(a, b, kernel, precision, accumulate, out_dtype):
    """Differentiable product of `a` [..., M, K] and `b` [..., K, N], batches broadcast."""
    graph = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if graph or forward_ad._current_level >= 0:
        return _MatMul.apply(a, b, kernel, precision, accumulate, out_dtype)
    return torch.ops.tritemm.mm.default(a, b, kernel, precision, accumulate, out_dtype)


def _mm(a, b, kernel, precision, accumulate, out_dtype):
    out = a.new_empty(result_shape(a, b), dtype=out_dtype)
    _multiply(a, b, out, kernel, precision, accumulate)
    return out


def _mm_out(a, b, kernel, precision, accumulate, *, out):
    if any(_overlap(out, t) for t in (a, b)):
        temporary = torch.empty_like(out, memory_format=torch.contiguous_format)
        _multiply(a, b, temporary, kernel, precision, accumulate)
        out.copy_(temporary)
    else:
        _multiply(a, b, out, kernel, precision, accumulate)


def _multiply(a, b, out, kernel, precision, accumulate):
    if launch.is_trivial(a.shape[-1], out):
        return
    product = products.find(a, b, out, kernel, precision, accumulate)
    product(a, b, out)


def _overlap(x, y) -> bool:
    """Whether the address ranges of two tensors meet."""
    x_first, y_first = x.data_ptr(), y.data_ptr()
    return x_first < y_first + products.span(y) and y_first < x_first + products.span(x)


for _key in ("CPU", "CUDA"):
    _LIBRARY.impl("mm", _mm, _key)
    _LIBRARY.impl("mm_out", _mm_out, _key)


@torch.library.register_fake("tritemm::mm", lib=_LIBRARY)
def _mm_fake(a, b, kernel, precision, accumulate, out_dtype):
    return a.new_empty(result_shape(a, b), dtype=out_dtype)


@torch.library.register_fake("tritemm::mm_out", lib=_LIBRARY)
def _mm_out_fake(a, b, kernel, precision, accumulate, *, out):
    return None


def _mm_vmap(info, in_dims, a, b, kernel, precision, accumulate, out_dtype):
    """A vmapped dimension is one more batch dimension, in front."""
    rank = max(t.dim() - (dim is not None) for t, dim in zip((a, b), in_dims[:2], strict=True))
    a, b = (_batch_first(t, dim, rank) for t, dim in zip((a, b), in_dims[:2], strict=True))
    return mm(a, b, kernel, precision, accumulate, out_dtype), 0


def _batch_first(t, dim, rank):
    if dim is None:
        return t
    t = t.movedim(dim, 0)
    return t.reshape(t.shape[0], *(1,) * (rank + 1 - t.dim()), *t.shape[1:])


torch.library.register_vmap("tritemm::mm", _mm_vmap, lib=_LIBRARY)


@register_flop_formula(torch.ops.tritemm.mm)
def _mm_flops(a_shape, b_shape, *args, out_shape=None, **kwargs) -> int:
    flops = 2 * a_shape[-1]
    for size in out_shape:
        flops *= size
    return flops


class _MatMul(torch.autograd.Function):
    """Gradients by the same operator; no forward-mode derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b, kernel, precision, accumulate, out_dtype):
        return torch.ops.tritemm.mm.default(a, b, kernel, precision, accumulate, out_dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, word, ctx.precision, ctx.accumulate, _ = inputs
        ctx.word = for_gradients(word)
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        grad = grad.to(a.dtype)
        options = (ctx.word, ctx.precision, ctx.accumulate)
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = _product_summed_to(grad, b.mT, a, options)
        if ctx.needs_input_grad[1]:
            if b.dim() == 2 and a.dim() > 2:  # the sum over the batch is a longer K
                a, grad = a.flatten(0, -2), grad.flatten(0, -2)
            grad_b = _product_summed_to(a.mT, grad, b, options)
        return grad_a, grad_b, None, None, None, None


def _product_summed_to(x, y, like, options):
    """x @ y summed over the batch dimensions that `like` was broadcast along, in its type.

    The terms of a sum stay in fp32 until it is done.
    """
    summed = result_shape(x, y) != tuple(like.shape)
    half = like.dtype in (torch.float16, torch.bfloat16)
    out_dtype = torch.float32 if summed and half else like.dtype
    product = mm(x, y, *options, out_dtype)
    return product.sum_to_size(like.shape).to(like.dtype) if summed else product
