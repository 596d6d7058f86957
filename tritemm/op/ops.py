"""The one operator boundary: what torch's dispatcher, autograd, vmap and compile see.

`tritemm::mm` multiplies matrices with broadcast batch dimensions, operands of at least two
dimensions, and carries its own derivatives: it differentiates however it is reached, forwards and
backwards. `tritemm::mm_out` writes into a tensor of the right shape. Checks that need no data
stand in `api.py`; these operators trust their arguments.
"""

from __future__ import annotations

import math

import torch
from torch.utils.flop_counter import register_flop_formula

from ..dispatch.request import for_gradients
from ..plan import product, result_shape
from ..runtime import fast_path, inductor
from ..runtime.sizes import known, same, summed
from ..runtime.torch_private import (
    Derivatives,
    below_autograd,
    compute_requires_grad,
    differentiated,
    has_tangent,
    implement,
    onwards,
    primal_of,
    profiling,
    pushing_forward,
    without_gradient,
)
from . import distributed

try:
    _LIBRARY = torch.library.Library("tritemm", "DEF")
except RuntimeError as error:  # torch lets one library define operators of a name
    first = getattr(torch.ops.tritemm, "mm_into", None)
    where = first.__code__.co_filename if first else "elsewhere"
    raise ImportError(
        f"tritemm is in this process already: {where} has registered its operators, and {__file__} "
        "would be a second copy. Import one of the two; to import it anew, start Python anew"
    ) from error
_OPTIONS = "str kernel, str? precision, ScalarType? accumulate"
_LIBRARY.define(f"mm(Tensor a, Tensor b, {_OPTIONS}, ScalarType out_dtype) -> Tensor")
_LIBRARY.define(f"mm_out(Tensor a, Tensor b, {_OPTIONS}, *, Tensor(a!) out) -> ()")
_MM, _MM_OUT = torch.ops.tritemm.mm.default, torch.ops.tritemm.mm_out.default
_NAMES = "first", "second"


def mm(a, b, *options) -> torch.Tensor:
    """Differentiable product of `a` [..., M, K] and `b` [..., K, N], batches broadcast.

    `options`: kernel, precision, accumulator and result type, as the operator takes them.
    """
    result = fast_path.product(a, b, None, options, record)
    if result is not None:
        return result
    distributed.on_demand()
    return _MM(a, b, *options)


def _mm(a, b, *options):
    return product(a, b, None, options)


def _mm_out(a, b, kernel, precision, accumulate, *, out):
    product(a, b, out, (kernel, precision, accumulate, out.dtype))


implement(_LIBRARY, "mm", _mm, "CPU", "CUDA")
implement(_LIBRARY, "mm_out", _mm_out, "CPU", "CUDA")


@torch.library.register_fake("tritemm::mm", lib=_LIBRARY)
def _mm_fake(a, b, kernel, precision, accumulate, out_dtype):
    inductor.lower(_MM, "torch.ops.tritemm.mm_into")
    return a.new_empty(result_shape(a, b), dtype=out_dtype)


@torch.library.register_fake("tritemm::mm_out", lib=_LIBRARY)
def _mm_out_fake(a, b, kernel, precision, accumulate, *, out):
    return None


def _mm_into(a, b, kernel, precision, accumulate, *, out):
    """What code compiled by Inductor calls in place of `mm`, into memory that it has planned."""
    options = kernel, precision, accumulate, out.dtype
    if profiling() or not fast_path.AVAILABLE:
        _MM_OUT(a, b, *options[:3], out=out)
        return
    addresses = a.data_ptr(), b.data_ptr(), out.data_ptr()
    plan = fast_path.KNOWN.get(fast_path.key_of(a, b, out, addresses, options))
    if not fast_path.write(plan, addresses):
        product(a, b, out, options)


#: By this name, because generated code imports torch and is kept between processes.
torch.ops.tritemm.mm_into = _mm_into


def _mm_vmap(info, in_dims, a, b, *options):
    """A vmapped dimension is one more batch dimension, in front."""
    rank = max(t.dim() - (dim is not None) for t, dim in zip((a, b), in_dims[:2], strict=True))
    a, b = (_batch_first(t, dim, rank) for t, dim in zip((a, b), in_dims[:2], strict=True))
    return _MM(a, b, *options), 0


def _batch_first(t, dim, rank):
    if dim is None:
        return t
    t = t.movedim(dim, 0)
    return t.reshape(t.shape[0], *(1,) * (rank + 1 - t.dim()), *t.shape[1:])


torch.library.register_vmap("tritemm::mm", _mm_vmap, lib=_LIBRARY)


@register_flop_formula(torch.ops.tritemm.mm)
def _mm_flops(a_shape, b_shape, *args, out_shape=None, **kwargs) -> int:
    return flops(a_shape, out_shape)


@register_flop_formula(torch.ops.tritemm.mm_out)
def _mm_out_flops(a_shape, b_shape, *args, out, **kwargs) -> int:
    return flops(a_shape, out)


def flops(a_shape, out_shape) -> int:
    """Multiplications and additions of a product, of the shapes of a and the result."""
    return 2 * a_shape[-1] * math.prod(out_shape)


# Derivatives


def _mm_autograd(keys, a, b, *options):
    """The operator's rule: records where a gradient or a tangent asks for it, and goes on."""
    forward_mode = has_tangent(a, b)
    if forward_mode or compute_requires_grad(a, b):
        return _MatMul.record(keys, forward_mode, a, b, *options)
    return below_autograd(_MM, keys, a, b, *options)


implement(_LIBRARY, "mm", _mm_autograd, "Autograd")
implement(_LIBRARY, "mm_out", without_gradient(_MM_OUT), "Autograd")


class _MatMul(Derivatives):
    """The operator's derivatives, by the operator."""

    @staticmethod
    def forward(ctx, keys, forward_mode, a, b, *options):
        ctx.word, ctx.precision, ctx.accumulate, ctx.out_dtype = options
        ctx.operands = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (a, b))
        _, _, *needs = ctx.needs_input_grad[:4]
        save(ctx, a, b, needs)
        if forward_mode:
            ctx.save_for_forward(a, b)
        return onwards(_MM, keys, a, b, *options)

    @staticmethod
    def backward(ctx, grad):
        options = for_gradients(ctx.word), ctx.precision, ctx.accumulate
        needs = ctx.needs_input_grad[2:4]
        found = gradients(grad, *ctx.saved_tensors, ctx.operands, needs, options)
        return None, None, *found, None, None, None, None

    @staticmethod
    def jvp(ctx, _keys, _forward_mode, a_tangent, b_tangent, *_options):
        options = ctx.word, ctx.precision, ctx.accumulate, ctx.out_dtype
        terms = []
        with pushing_forward():
            a, b = map(primal_of, ctx.saved_tensors)
            if a_tangent is not None:
                terms.append(mm(a_tangent, b, *options))
            if b_tangent is not None:
                terms.append(mm(a, b_tangent, *options))
            return sum(terms[1:], terms[0])


class _Recorded(Derivatives):
    """The derivatives of a product that the fast path makes, which makes them too."""

    @staticmethod
    def forward(ctx, a, b, plan):
        ctx.plan = plan
        save(ctx, a, b, ctx.needs_input_grad)
        result = fast_path.multiply(plan, (a.data_ptr(), b.data_ptr(), 0), None)
        return product(a, b, None, plan.options) if result is None else result

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return *short_gradients(ctx.plan, grad, a, b, ctx.needs_input_grad), None


#: (a, b, plan) -> the product by a prepared plan, recorded by autograd; for `fast_path.product`.
record = _Recorded.apply


def save(ctx, a, b, needs) -> None:
    """Keep of the operands what the gradients that are asked for need."""
    ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None)


def gradients(grad, a, b, operands, needs, options, alpha=1.0):
    """Of both operands, as `needs` says, each laid out as its operand is.

    `operands`: shape, strides and type of both, in the product. `a` is None where only its own
    gradient is asked for, and so is `b`.
    """
    return (
        _gradient(0, grad, b, operands, options, alpha) if needs[0] else None,
        _gradient(1, grad, a, operands, options, alpha) if needs[1] else None,
    )


def _gradient(index, grad, other, operands, options, alpha):
    """Of operand `index`; `other` is the other operand."""
    (shape, stride, _), (other_shape, _, dtype) = operands[index], operands[1 - index]
    if other.dtype != dtype or other.shape != other_shape:
        mine, others = _NAMES[index], _NAMES[1 - index]
        raise RuntimeError(
            f"the gradient of a product's {mine} operand needs the {others} as it was then, "
            f"{list(other_shape)} of {dtype}; by now it is {list(other.shape)} of {other.dtype}. "
            "It was changed through .data, Module.to or a saved-tensor hook"
        )
    narrow = dtype == torch.float16 != grad.dtype  # which `grad` need not fit into
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
    found = _summed(x, y, to, options, torch.float32 if narrow else dtype)
    found = found.mT if turned else found
    if power is not None:
        found = torch.ldexp(found, power)
    if alpha != 1:  # after the product, as torch does it
        found = found * alpha
    return found.to(dtype) if narrow else found


def _power_in_range(index, grad, shape):
    """By how many powers of two `grad` is to be divided, so that fp16 holds its terms.

    One for each row of the first operand's gradient, which has `shape`, or column of the second's:
    other rows, columns and products of the batch don't count.
    """
    first = grad.dim() - len(shape)
    summed_too = [i for i in range(grad.dim() - 2) if i < first or known(shape[i - first] == 1)]
    largest = grad.abs().amax([*summed_too, -1 - index], keepdim=True)
    return largest.reshape(largest.shape[first:]).log2().floor().clamp(-100, 127).sub(14)


def _factors(index, grad, other, shape, stride):
    """The two factors of the gradient of operand `index`, and whether theirs is its transpose."""
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


def _summed(x, y, shape, options, dtype):
    """x @ y summed to `shape`, over the batch dimensions that an operand was broadcast along.

    The terms of a sum stay in fp32 until it is done.
    """
    if len(shape) == 2 == x.dim() == y.dim() or same(result_shape(x, y), shape):
        return mm(x, y, *options, dtype)
    half = x.dtype in (torch.float16, torch.bfloat16)
    return summed(mm(x, y, *options, torch.float32 if half else dtype), shape).to(dtype)


def short_gradients(plan, grad, a, b, needs, alpha=1.0):
    """`gradients` of a product by `plan`; from the second time on without views of anything."""
    # In the place of an operand that is not there, which only the other one's gradient needs.
    x, y = grad if a is None else a, grad if b is None else b
    addresses = None
    short = fast_path.available() and not torch.is_grad_enabled()
    if short and fast_path.plain(grad) and fast_path.usual(x, y, None):
        addresses = fast_path.addresses_of(x, y, grad)
    if not addresses or not addresses[2]:
        return gradients(grad, a, b, plan.operands, needs, plan.for_gradients, alpha)
    key = fast_path.key_of(x, y, grad, addresses, plan.for_gradients), needs
    steps, rest = plan.gradients.get(key, (None, None))
    found = steps and fast_path.multiply_each(plan.launches.device, steps, addresses)
    if found is not None and alpha != 1:
        found = [t if t is None else t * alpha for t in found]
    if found is None:
        found = gradients(grad, a, b, plan.operands, needs, plan.for_gradients, alpha)
        _learn_gradients(plan, grad, a, b, key, found)
    elif rest:
        others = gradients(grad, a, b, plan.operands, rest, plan.for_gradients, alpha)
        found = [x if y is None else y for x, y in zip(found, others, strict=True)]
    return found


def _learn_gradients(plan, grad, a, b, key, found):
    """Let the next gradients of this kind be one launch each, on the addresses of a, b and `grad`.

    One can be where its factors lie in their memory, and their product needed no sum.
    """
    steps = [
        None if result is None else _step(plan, index, grad, other, result)
        for index, (other, result) in enumerate(zip((b, a), found, strict=True))
    ]
    rest = [step is None and r is not None for step, r in zip(steps, found, strict=True)]
    if any(steps):  # else Triton may have been launching itself, for once
        plan.gradients[key] = steps, rest if any(rest) else None


def _step(plan, index, grad, other, result):
    """What makes the gradient of operand `index`, which was `result`, or None.

    Of the addresses of a, b and `grad`, in this order.
    """
    if grad.dtype is not other.dtype:
        return None
    shape, stride, _ = plan.operands[index]
    x, y, turned = _factors(index, grad, other, shape, stride)
    places = (1 - index, 2) if (index == 1) != turned else (2, 1 - index)
    owners = [other if place < 2 else grad for place in places]
    addresses = x.data_ptr(), y.data_ptr(), 0
    if addresses[:2] != tuple(t.data_ptr() for t in owners):
        return None
    options = (*plan.for_gradients, grad.dtype)
    known = fast_path.KNOWN.get(fast_path.key_of(x, y, None, addresses, options))
    if known is None or known.launches is None or math.prod(known.size) != result.numel():
        return None
    return known.dropped(tuple(result.shape), result.stride()), *places
