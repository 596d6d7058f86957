"""The operator of a product and what follows it, `tritemm::gemm`, to torch.

It is activation(alpha * a @ b + bias) + beta * residual, in one kernel; of gated activations, where
that is faster than a product that torch ends (`dispatch.choose_gated`). Where a gradient is
recorded the activation is torch's own, on a stored argument, which its derivative needs anyway; the
rest is linear, and its gradients are products.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import register_flop_formula

from ..dispatch.request import for_gradients
from ..plan import Ending, after, kind_of, product, result_shape, sums_type
from ..problem import ACCUMULATE
from ..runtime import fast_path, inductor
from ..runtime.sizes import summed
from ..runtime.torch_private import (
    Derivatives,
    below_autograd,
    compute_requires_grad,
    has_tangent,
    implement,
    onwards,
    profiling,
    without_gradient,
)
from . import ops

_LIBRARY = torch.library.Library("tritemm", "FRAGMENT")
_OPERANDS = "Tensor a, Tensor b, Tensor? bias, Tensor? residual, str activation, float alpha"
_OPTIONS = "float beta, str kernel, str? precision, ScalarType? accumulate"
_LIBRARY.define(f"gemm({_OPERANDS}, {_OPTIONS}, ScalarType out_dtype) -> Tensor")
_LIBRARY.define(f"gemm_out({_OPERANDS}, {_OPTIONS}, *, Tensor(a!) out) -> ()")
GEMM, GEMM_OUT = torch.ops.tritemm.gemm.default, torch.ops.tritemm.gemm_out.default


def _gemm(a, b, bias, residual, activation, alpha, beta, *options):
    return product(a, b, None, options, Ending.made(a, b, bias, residual, activation, alpha, beta))


def _gemm_out(a, b, bias, residual, activation, alpha, beta, *options, out):
    ending = Ending.made(a, b, bias, residual, activation, alpha, beta)
    product(a, b, out, (*options, out.dtype), ending)


implement(_LIBRARY, "gemm", _gemm, "CPU", "CUDA")
implement(_LIBRARY, "gemm_out", _gemm_out, "CPU", "CUDA")


@torch.library.register_fake("tritemm::gemm", lib=_LIBRARY)
def _gemm_fake(a, b, bias, residual, activation, alpha, beta, kernel, precision, accumulate, dtype):
    inductor.lower(GEMM, "torch.ops.tritemm.gemm_into", optional=2)
    return a.new_empty(result_shape(a, b, activation), dtype=dtype)


@torch.library.register_fake("tritemm::gemm_out", lib=_LIBRARY)
def _gemm_out_fake(*args, out):
    return None


def _gemm_into(a, b, *rest, out):
    """What code compiled by Inductor calls in place of `gemm`, into memory that it has planned."""
    *more, biased, added, activation, alpha, beta, kernel, precision, accumulate = rest
    bias = more[0] if biased else None
    residual = more[-1] if added else None
    if profiling() or not fast_path.AVAILABLE:
        GEMM_OUT(a, b, bias, residual, activation, alpha, beta, *rest[-3:], out=out)
        return
    options = kernel, precision, accumulate, out.dtype
    ending = Ending.made(a, b, bias, residual, activation, alpha, beta)
    key, addresses = kind_of(a, b, out, options, ending)
    if not fast_path.write(fast_path.KNOWN.get(key), addresses):
        product(a, b, out, options, ending)


#: By this name, because generated code imports torch and is kept between processes.
torch.ops.tritemm.gemm_into = _gemm_into


@register_flop_formula(torch.ops.tritemm.gemm)
def _gemm_flops(
    a_shape, b_shape, bias, residual, activation, *args, out_shape=None, **kwargs
) -> int:
    return ops.flops(a_shape, (*out_shape[:-1], b_shape[-1]))


@register_flop_formula(torch.ops.tritemm.gemm_out)
def _gemm_out_flops(a_shape, b_shape, *args, out, **kwargs) -> int:
    return ops.flops(a_shape, (*out[:-1], b_shape[-1]))


def _parts(a, b, bias, residual, activation, alpha, beta, kernel, precision, accumulate, out_dtype):
    """The same, made of a product and torch's operators: for vmap and forward mode."""
    wide = sums_type(accumulate or ACCUMULATE[a.dtype])
    if alpha == 0:  # whatever the operands hold
        sums, alpha = a.new_zeros(result_shape(a, b), dtype=wide), 1.0
    else:
        sums = ops.mm(a, b, kernel, precision, accumulate, wide)
    return Ending(bias, residual if beta else None, activation, alpha, beta).of(sums, out_dtype)


implement(_LIBRARY, "gemm", _parts, "FuncTorchBatchedDecomposition")


# Derivatives


def _gemm_autograd(keys, a, b, bias, residual, activation, alpha, beta, *options):
    """The operator's rule: records where a gradient or a tangent asks for it, and goes on."""
    tensors = a, b, bias, residual
    if has_tangent(*tensors):
        return _parts(a, b, bias, residual, activation, alpha, beta, *options)
    if not compute_requires_grad(*tensors):
        return below_autograd(GEMM, keys, a, b, bias, residual, activation, alpha, beta, *options)
    if activation:
        read, unread = (residual, None) if beta else (None, residual)
        linear = GEMM(a, b, bias, unread, "", alpha, 0.0, *options)
        return after(linear, activation, read, beta)
    return _Linear.record(keys, a, b, bias, residual, alpha, beta, *options)


implement(_LIBRARY, "gemm", _gemm_autograd, "Autograd")
implement(_LIBRARY, "gemm_out", without_gradient(GEMM_OUT), "Autograd")


class _Linear(Derivatives):
    """Derivatives of alpha * a @ b + bias + beta * residual."""

    @staticmethod
    def forward(ctx, keys, a, b, bias, residual, alpha, beta, *options):
        ctx.word, ctx.precision, ctx.accumulate, _ = options
        ctx.alpha, ctx.beta = alpha, beta
        ctx.operands = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (a, b))
        ctx.more = [t if t is None else (t.shape, t.dtype) for t in (bias, residual)]
        ops.save(ctx, a, b, ctx.needs_input_grad[1:3])
        return onwards(GEMM, keys, a, b, bias, residual, "", alpha, beta, *options)

    @staticmethod
    def backward(ctx, grad):
        _, *needs = ctx.needs_input_grad[:5]
        options = for_gradients(ctx.word), ctx.precision, ctx.accumulate

        def gradients():
            tensors, alpha = ctx.saved_tensors, ctx.alpha
            return ops.gradients(grad, *tensors, ctx.operands, needs[:2], options, alpha)

        return None, *_found(grad, gradients, needs, ctx.more, ctx.beta), *[None] * 6


class _Recorded(Derivatives):
    """The same of a kind that was made before, past torch's dispatcher."""

    @staticmethod
    def forward(ctx, a, b, bias, residual, plan, ending, addresses):
        ctx.plan, ctx.alpha, ctx.beta = plan, ending.alpha, ending.beta
        ctx.more = [t if t is None else (t.shape, t.dtype) for t in (bias, residual)]
        ops.save(ctx, a, b, ctx.needs_input_grad)
        result = fast_path.multiply(plan, addresses, None)
        return product(a, b, None, plan.options, ending) if result is None else result

    @staticmethod
    def backward(ctx, grad):
        needs = ctx.needs_input_grad[:4]

        def gradients():
            return ops.short_gradients(ctx.plan, grad, *ctx.saved_tensors, needs[:2], ctx.alpha)

        return *_found(grad, gradients, needs, ctx.more, ctx.beta), None, None, None


def _found(grad, gradients, needs, more, beta) -> list:
    """Gradients of a, b, bias and residual, as `needs` says; `gradients()` are the first two.

    `more`: shape and type of the bias and of the residual.
    """
    found = [None] * 4
    if needs[0] or needs[1]:
        found[:2] = gradients()
    if needs[2]:
        found[2] = _summed(grad, *more[0])
    if needs[3] and beta == 0:
        shape, dtype = more[1]
        found[3] = grad.new_zeros(shape, dtype=dtype)
    elif needs[3]:
        found[3] = _summed(grad if beta == 1 else grad * beta, *more[1])
    return found


def _summed(grad, shape, dtype):
    """`grad` summed to a broadcast tensor's shape; torch keeps the terms in fp32 meanwhile."""
    if grad.dtype is dtype:
        return summed(grad, shape)
    return summed(grad.to(torch.promote_types(grad.dtype, dtype)), shape).to(dtype)


#: (a, b, bias, residual, plan, ending, and the addresses that `kind_of` has of them all) -> the
#: result by a prepared plan, recorded by autograd.
record = _Recorded.apply
