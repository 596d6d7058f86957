"""The operator of grouped products: what torch's dispatcher, compilers and counters see.

`tritemm::grouped_mm` is activation(alpha * a @ b + bias), group by group. The gradients of each of
its forms are products of the other forms, so it is differentiable to any order by itself.
"""

from __future__ import annotations

from typing import cast

import torch
from torch.utils.flop_counter import register_flop_formula

from ..dispatch.request import for_gradients
from ..dtypes import wide
from ..plan.kinds import of_groups
from ..problem import GATED, Besides, EpilogueInputs, after, form_of, result_shape
from ..runtime import fast_path
from ..runtime.operators import define, implement_out, implement_whole
from ..runtime.torch_private import Derivatives, onwards, primal_of, pushing_forward, untraced
from .gate import GATE

_ARGUMENTS = "Tensor a, Tensor b, Tensor offs, Tensor? bias, str activation, float alpha, "
_ARGUMENTS += "str kernel, str? precision, ScalarType? accumulate"
GROUPED = define(f"grouped_mm({_ARGUMENTS}, ScalarType out_dtype) -> Tensor")
GROUPED_OUT = define(f"grouped_mm_out({_ARGUMENTS}, *, Tensor(a!) out) -> ()")


def grouped(a, b, offs, *args, out=None) -> torch.Tensor:
    """The operator's result, without torch's dispatcher if nobody watches; it is `out` if given.

    Without `out`, the last of the `args` is the result's type.
    """
    if fast_path.unwatched(a, b, (offs, args[0]), out):
        options = args if out is None else (*args, out.dtype)
        return _product(a, b, offs, *options, out=out)
    if out is None:
        return GROUPED(a, b, offs, *args)
    GROUPED_OUT(a, b, offs, *args, out=out)
    return out


@untraced
def _product(a, b, offs, bias, activation, alpha, *options, out=None) -> torch.Tensor:
    then = EpilogueInputs.made(a, b, bias, None, activation, alpha)
    return of_groups(a, b, out, options, then, Besides(offs.contiguous()))


def _fake(a, b, offs, bias, activation, alpha, *options) -> torch.Tensor:
    shape = result_shape(a, b, activation, offs.shape[0])
    return a.new_empty(shape, dtype=options[-1])


def _rule(keys, forward_mode, a, b, offs, bias, activation, alpha, *options):
    if activation:
        linear = GROUPED(a, b, offs, bias, "", alpha, *options)
        pairs = activation in GATED
        return GATE(linear, activation) if pairs else after(linear, activation, None, 1.0)
    return _Linear.record(a, b, offs, bias, alpha, options, keys, forward_mode)


class _Linear(Derivatives):
    """The derivatives of alpha * a @ b + bias."""

    @staticmethod
    def forward(ctx, a, b, offs, bias, alpha, options, keys, forward_mode):
        needs = ctx.needs_input_grad
        ctx.alpha, ctx.options, ctx.form = alpha, options, form_of(a, b)
        ctx.dtype, ctx.bias = a.dtype, None if bias is None else bias.dtype
        ctx.save_for_backward(a if needs[1] else None, b if needs[0] else None, offs)
        if forward_mode:
            ctx.save_for_forward(a, b, offs)
        return onwards(GROUPED, keys, a, b, offs, bias, "", alpha, *options)

    @staticmethod
    def backward(ctx, grad):
        a, b, offs = ctx.saved_tensors
        word, *types, _ = ctx.options
        options = for_gradients(word), *types
        needs, found = ctx.needs_input_grad, cast(list, [None] * 8)
        if needs[0]:
            found[0] = _gradient(grad, b.mT, offs, ctx, options)
        if needs[1]:
            found[1] = _gradient(a.mT, grad, offs, ctx, options)
        if needs[3] and ctx.form == "k":
            found[3] = grad.sum(1, dtype=wide(grad.dtype)).to(ctx.bias)
        elif needs[3]:
            found[3] = of_each_group(grad, offs, options[0]).to(ctx.bias)
        return tuple(found)

    @staticmethod
    def jvp(ctx, a_tangent, b_tangent, _, bias_tangent, *rest):
        with pushing_forward():
            a, b, offs = map(primal_of, ctx.saved_tensors)
            terms = []
            for x, y in ((a_tangent, b), (a, b_tangent)):
                if x is not None and y is not None:
                    terms.append(GROUPED(x, y, offs, None, "", ctx.alpha, *ctx.options))
            if bias_tangent is not None:  # one per group, for all of its rows: no product
                like = a.new_zeros(a.shape[0], 1), b.new_zeros(*b.shape[:-2], 1, b.shape[-1])
                terms.append(GROUPED(*like, offs, bias_tangent, "", 1.0, *ctx.options))
            return sum(terms[1:], terms[0])


def of_each_group(rows, offs, kernel: str) -> torch.Tensor:
    """The sum of the rows [T, N] of each group, in fp32 or fp64."""
    exact = "ieee" if rows.dtype == torch.float32 else None
    how = kernel, exact, None, wide(rows.dtype)
    return GROUPED(rows.new_ones(1, len(rows)), rows, offs, None, "", 1.0, *how).squeeze(-2)


def _gradient(x, y, offs, ctx, options) -> torch.Tensor:
    """alpha * x @ y, one of which is the gradient of the result, in the operands' type."""
    if x.dtype != y.dtype:  # a wider result's may exceed fp16
        to = torch.float32 if ctx.dtype == torch.float16 else ctx.dtype
        x, y, options = x.to(to), y.to(to), (*options[:2], None)
    return GROUPED(x, y, offs, None, "", ctx.alpha, *options, x.dtype).to(ctx.dtype)


implement_whole(GROUPED, _product, _fake, _rule)
implement_out(GROUPED_OUT, _product)


def flops(a_shape, b_shape, *args, out_shape=None, out=None) -> int:
    """Multiplications and additions, if the groups share the cut dimension equally."""
    return 2 * a_shape[-2] * a_shape[-1] * b_shape[-1]


register_flop_formula([GROUPED.overloadpacket, GROUPED_OUT.overloadpacket])(flops)
