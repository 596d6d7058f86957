"""Derivatives of the operator, forwards and backwards, to any order: by the operator.

If one is recorded, torch computes the activation, from a stored argument, which its derivative
needs anyway; the rest is linear, and its gradients are products. `repeated` runs a product of a
known kind without torch's dispatcher, and records the same.
"""

from __future__ import annotations

import math

import torch
from torch.compiler import is_dynamo_compiling

from ..dispatch.request import for_gradients
from ..plan.kinds import product
from ..problem import NOTHING, EpilogueInputs, after, mirrored, result_shape
from ..runtime import fast_path
from ..runtime.sizes import fits, known, summed
from ..runtime.torch_private import (
    Derivatives,
    differentiated,
    onwards,
    primal_of,
    pushing_forward,
)
from . import distributed
from .schema import GEMM, parted

_NAMES = "first", "second"


def rule(keys, forward_mode, a, b, *args):
    """The operator's rule; see `implement_whole`."""
    then, options = parted(args)
    tensors = a, b, then.bias, then.residual
    if then.activation:
        read, unread = (then.residual, None) if then.beta else (None, then.residual)
        linear = GEMM(a, b, *then._replace(residual=unread, activation="", beta=0.0), *options)
        result = after(linear, then.activation, read, then.beta)
        return mirrored(result) if then.symmetric else result
    then = then._replace(bias=None, residual=None)
    return _Linear.record(*tensors, then, options, keys, forward_mode)


class _Linear(Derivatives):
    """The derivatives of alpha * a @ b + bias + beta * residual, symmetric or not."""

    @staticmethod
    def forward(ctx, a, b, bias, residual, then, options, keys, forward_mode):
        ctx.kind, ctx.options = None, options
        ctx.operands = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (a, b))
        ctx.then = _saved(ctx, a, b, bias, residual, then)
        if forward_mode:
            ctx.save_for_forward(a, b)
        then = then._replace(bias=bias, residual=residual)
        return onwards(GEMM, keys, a, b, *then, *options)

    @staticmethod
    def backward(ctx, grad):
        needs, (alpha, beta, bias, residual) = ctx.needs_input_grad, ctx.then
        found = [None] * len(needs)
        if needs[0] or needs[1]:
            (a, b), kind = ctx.saved_tensors, ctx.kind
            operands = ctx.operands if kind is None else kind.operands
            if kind is None:
                word, *types, _ = ctx.options
                options = for_gradients(word), *types
                found[:2] = _gradients(grad, a, b, operands, needs, options)
            else:
                found[:2] = _short_gradients(kind, grad, a, b, needs)
            dtype = operands[0][2]
            if alpha != 1 or grad.dtype is not dtype:
                # Rounded once; the factor after the product, as torch does it.
                for i, t in enumerate(found[:2]):
                    if t is not None:
                        found[i] = (t if alpha == 1 else t * alpha).to(dtype)
        if needs[2]:
            found[2] = _summed(grad, *bias)
        if needs[3] and beta == 0:
            shape, dtype = residual
            found[3] = grad.new_zeros(shape, dtype=dtype)
        elif needs[3]:
            found[3] = _summed(grad if beta == 1 else grad * beta, *residual)
        return tuple(found)

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent, bias_tangent, residual_tangent, *_):
        terms = []
        alpha, beta, *_ = ctx.then
        with pushing_forward():
            a, b = map(primal_of, ctx.saved_tensors)
            if a_tangent is not None:
                terms.append(_product(a_tangent, b, ctx.options, alpha))
            if b_tangent is not None:
                terms.append(_product(a, b_tangent, ctx.options, alpha))
            if bias_tangent is not None:
                terms.append(bias_tangent)
            if residual_tangent is not None:
                terms.append(residual_tangent * beta if beta else residual_tangent.new_zeros(()))
            terms = [term.to(ctx.options[-1]) for term in terms]
            return sum(terms[1:], terms[0]).expand(result_shape(a, b))


class _Recorded(_Linear):
    """The same for a product on the fast path, which computes its gradients too."""

    @staticmethod
    def forward(ctx, a, b, bias, residual, call):  # type: ignore[override]
        then, ctx.kind, addresses = call
        ctx.then = _saved(ctx, a, b, bias, residual, then)
        result = fast_path.multiply(ctx.kind, addresses, None)
        return product(a, b, None, ctx.kind.options, then) if result is None else result

    @staticmethod
    def backward(ctx, grad):
        if ctx.then is not _PLAIN or grad.dtype is not ctx.kind.operands[0][2]:
            return _Linear.backward(ctx, grad)
        a, b = ctx.saved_tensors
        first, second = _short_gradients(ctx.kind, grad, a, b, ctx.needs_input_grad)
        return first, second, None, None, None


#: What `_saved` returns for a product without epilogue.
_PLAIN = 1.0, 1.0, None, None


def _saved(ctx, a, b, bias, residual, then: EpilogueInputs) -> tuple:
    """Save the operands that the gradients need; of added tensors, only shapes and types."""
    needs = ctx.needs_input_grad
    ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None)
    if bias is residual is None:
        return _PLAIN if then.alpha == 1 else (then.alpha, 1.0, None, None)
    added = [t if t is None else (t.shape, t.dtype) for t in (bias, residual)]
    return then.alpha, then.beta, *added


def _summed(grad, shape, dtype):
    """`grad` summed to a broadcast tensor's shape; torch keeps the terms in fp32 meanwhile."""
    if grad.dtype is dtype:
        return summed(grad, shape)
    return summed(grad.to(torch.promote_types(grad.dtype, dtype)), shape).to(dtype)


def repeated(
    a, b, out, options: tuple, then: EpilogueInputs = NOTHING, bias=None, residual=None
) -> torch.Tensor | None:
    """The result of a call of a known kind; None if it can't be computed this way.

    `bias` and `residual` are those of `then` as the caller passed them. The caller makes sure that
    only the result and its gradients are needed: `fast_path.usual`.
    """
    recorded = a.requires_grad or b.requires_grad
    if then is not NOTHING:
        for t in (bias, residual):
            recorded = recorded or (t is not None and t.requires_grad)
    recorded = recorded and fast_path.recording()
    if recorded and (out is not None or a.dim() < 2 or b.dim() < 2):
        return None
    if not (recorded and then.activation):
        try:
            key, addresses = fast_path.kind_of(a, b, out, options, then)
            kind = fast_path.KNOWN.get(key)
        except (AttributeError, TypeError, RuntimeError):  # nested tensors have no shape
            return None
        if kind is None or not (addresses[0] and addresses[1]):
            return None  # address 0 means no memory, as for unwritten zeros
        if then is not NOTHING and (0 in addresses[3:] or (out is not None and then.met_by(out))):
            return None
        if recorded and kind.launches is not None:
            return _Recorded.apply(a, b, bias, residual, (then, kind, addresses))
        if not kind.apart or out is not None:
            return fast_path.multiply(kind, addresses, out) if kind.launches else None
    return _apart(a, b, options, then, bias, residual)


def _apart(a, b, options, then, bias, residual) -> torch.Tensor | None:
    """The activation by torch; if `repeated`, applied to what precedes it."""
    if residual is not None and (residual.dtype is not a.dtype or residual.device != a.device):
        return None
    linear = repeated(a, b, None, options, then.before(), bias)
    if linear is None:
        return None
    result = after(linear, then.activation, residual, then.beta)
    return mirrored(result) if then.symmetric else result


def _product(a, b, options: tuple, alpha: float = 1.0) -> torch.Tensor:
    """alpha * a @ b, for derivatives, differentiable too."""
    if alpha == 1 and fast_path.available() and fast_path.usual(a, b, None):
        result = repeated(a, b, None, options)
        if result is not None:
            return result
    distributed.on_demand()
    return GEMM(a, b, *NOTHING._replace(alpha=alpha), *options)


def _gradients(grad, a, b, operands, needs, options):
    """Gradients of both operands, as `needs` says, each laid out as its operand is.

    `operands`: shape, strides and type of both, in the product. `a` is None if only its own
    gradient is needed, and so is `b`.
    """
    return (
        _gradient(0, grad, b, operands, options) if needs[0] else None,
        _gradient(1, grad, a, operands, options) if needs[1] else None,
    )


def _gradient(index, grad, other, operands, options):
    """The gradient of operand `index`, in fp32 perhaps for fp16; `other` is the other operand."""
    (shape, stride, _), (other_shape, _, dtype) = operands[index], operands[1 - index]
    if other.dtype != dtype or other.shape != other_shape:
        mine, others = _NAMES[index], _NAMES[1 - index]
        raise RuntimeError(
            f"the gradient of a product's {mine} operand needs the {others} as it was, "
            f"{list(other_shape)} of {dtype}; it is now {list(other.shape)} of {other.dtype}. "
            "It was changed through .data, Module.to or a saved-tensor hook"
        )
    narrow = dtype == torch.float16 != grad.dtype  # `grad` may exceed its range
    power = None
    if narrow:
        options = (*options[:2], torch.float32)
        if differentiated(grad, other):
            grad, other = grad.float(), other.float()
        elif grad.numel():
            power = _power_in_range(index, grad, shape)
            grad = torch.ldexp(grad, -power)
    x, y, turned = _factors(index, grad.to(other.dtype), other, shape, stride)
    to = (*shape[:-2], shape[-1], shape[-2]) if turned else shape
    found = _product_summed(x, y, to, options, torch.float32 if narrow else dtype)
    found = found.mT if turned else found
    return found if power is None else torch.ldexp(found, power)


def _power_in_range(index, grad, shape):
    """The powers of two by which `grad` must be divided so that fp16 holds its terms.

    One for each row of the first operand's gradient, which has `shape`, or column of the second's;
    other rows, columns and products of the batch have no effect.
    """
    first = grad.dim() - len(shape)
    summed_too = [i for i in range(grad.dim() - 2) if i < first or known(shape[i - first] == 1)]
    largest = grad.abs().amax([*summed_too, -1 - index], keepdim=True)
    return largest.reshape(largest.shape[first:]).log2().floor().clamp(-100, 127).sub(14)


def _factors(index, grad, other, shape, stride):
    """The two factors of the gradient of operand `index`, and whether it is transposed."""
    if index == 0:
        x, y = grad, other.mT
    else:
        if len(shape) == 2 and other.dim() > 2:  # the sum over the batch is a longer K
            other, grad = distributed.flat(other, grad) or (other, grad)
        x, y = other.mT, grad
    by_columns = known(stride[-2] == 1) and known(stride[-1] == shape[-2])
    if by_columns and not known(shape[-2] == 1):
        return y.mT, x.mT, True
    return x, y, False


def _product_summed(x, y, shape, options, dtype):
    """x @ y summed to `shape`, over the batch dimensions that an operand was broadcast along.

    The terms of a sum stay in fp32 until the end.
    """
    if len(shape) == 2 == x.dim() == y.dim() or fits(result_shape(x, y), shape, known):
        return _product(x, y, (*options, dtype))
    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if half else dtype
    return summed(_product(x, y, (*options, wide)), shape).to(dtype)


def _short_gradients(kind, grad, a, b, needs):
    """`_gradients` for a product of a `kind`; from the second time on without creating views."""
    # Replaces a missing operand, which only the other one's gradient would need.
    x, y = grad if a is None else a, grad if b is None else b
    long = is_dynamo_compiling() or torch.is_grad_enabled() or not fast_path.AVAILABLE
    if long or not fast_path.plain(grad) or not fast_path.usual(x, y, None):
        return _gradients(grad, a, b, kind.operands, needs, kind.for_gradients)
    try:
        key, addresses = fast_path.kind_of(x, y, grad, kind.for_gradients)
    except RuntimeError:  # zeros without memory
        addresses = (0,)
    if 0 in addresses:
        return _gradients(grad, a, b, kind.operands, needs, kind.for_gradients)
    key = key, needs
    steps, rest = kind.gradients.get(key, _UNKNOWN)
    found = steps and fast_path.multiply_each(kind.launches.device, steps, addresses)
    if found is None:
        found, rest = (None, None), needs
    elif rest is None:
        return found
    others = _gradients(grad, a, b, kind.operands, rest, kind.for_gradients)
    found = [x if y is None else y for x, y in zip(found, others, strict=True)]
    if rest is needs:
        # From now on, one launch makes each gradient whose memory needs no copy and no sum.
        steps = [_step(kind, 0, grad, b, found[0]), _step(kind, 1, grad, a, found[1])]
        if any(steps):  # else Triton may have been launching itself, for once
            rest = [needs[i] and not step for i, step in enumerate(steps)]
            kind.gradients[key] = steps, rest if any(rest) else None
    return found


#: For gradients of a kind that was not computed yet.
_UNKNOWN = None, None


def _step(kind, index, grad, other, result):
    """What computes the gradient of operand `index`, which was `result`, or None.

    It takes the addresses of a, b and `grad`, in this order.
    """
    if result is None or grad.dtype is not other.dtype:
        return None
    shape, stride, _ = kind.operands[index]
    x, y, turned = _factors(index, grad, other, shape, stride)
    places = (1 - index, 2) if (index == 1) != turned else (2, 1 - index)
    owners = [other if place < 2 else grad for place in places]
    if any(t.data_ptr() != owner.data_ptr() for t, owner in zip((x, y), owners, strict=True)):
        return None
    options = (*kind.for_gradients, grad.dtype)
    known = fast_path.KNOWN.get(fast_path.kind_of(x, y, None, options)[0])
    if known is None or known.launches is None or math.prod(known.size) != result.numel():
        return None
    return known.dropped(tuple(result.shape), result.stride()), *places
