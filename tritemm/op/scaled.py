"""The operator of products with scales: what torch's dispatcher, compilers and counters see.

`tritemm::scaled_mm` is activation(alpha * (a * scale_a) @ (b * scale_b) + bias) + beta * residual
of 8-bit operands, for each group if `offs` cuts them as in `grouped_mm`; for `in_blocks` see
`Problem`. Scales are [lines, steps of K], or one such matrix per group, as `of_lines` makes them.
It has no derivatives, because its operands have none.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from ..plan.kinds import of_groups, product
from ..problem import BLOCK, RECIPES, Besides, EpilogueInputs, result_shape
from ..runtime import fast_path
from ..runtime.operators import define, implement_out, implement_whole
from ..runtime.sizes import fits, holds, known
from ..runtime.torch_private import untraced
from .groups import flops

#: One of `RECIPES`, or torch's `ScalingType`.
Recipe = Any
_ARGUMENTS = "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? offs, bool in_blocks, "
_ARGUMENTS += "bool promoted, Tensor? bias, Tensor? residual, str activation, float alpha, "
_ARGUMENTS += "float beta, str kernel"
SCALED = define(f"scaled_mm({_ARGUMENTS}, ScalarType out_dtype) -> Tensor")
SCALED_OUT = define(f"scaled_mm_out({_ARGUMENTS}, *, Tensor(a!) out) -> ()")


def scaled(a, b, scale_a, scale_b, offs, *args, out=None) -> torch.Tensor:
    """The operator's result, without torch's dispatcher if nobody watches; it is `out` if given.

    Without `out`, the last of the `args` is the result's type.
    """
    if fast_path.unwatched(a, b, (scale_a, scale_b, offs, *args[2:4]), out):
        options = args if out is None else (*args, out.dtype)
        return _product(a, b, scale_a, scale_b, offs, *options, out=out)
    if out is None:
        return SCALED(a, b, scale_a, scale_b, offs, *args)
    SCALED_OUT(a, b, scale_a, scale_b, offs, *args, out=out)
    return out


@untraced
def _product(a, b, scale_a, scale_b, offs, in_blocks, promoted, *args, out=None) -> torch.Tensor:
    *epilogue, kernel, out_dtype = args
    then, options = EpilogueInputs.made(a, b, *epilogue), (kernel, None, None, out_dtype)
    scales = scale_a, scale_b, promoted
    if offs is None:
        return product(a, b, out, options, then, Besides(None, scales))
    return of_groups(a, b, out, options, then, Besides(offs.contiguous(), scales, in_blocks))


def _fake(a, b, scale_a, scale_b, offs, in_blocks, promoted, *args) -> torch.Tensor:
    groups = () if offs is None else (offs.shape[0],)
    return a.new_empty(result_shape(a, b, args[2], *groups), dtype=args[-1])


def of_lines(
    name: str, scale, recipe: Recipe, matrix, lines: int, K: int, groups=()
) -> torch.Tensor:
    """A matrix's scales as the operator takes them, [lines, steps of K]; or an error.

    `groups`: (G,) if each group has scales of its own: for 3-dimensional operands, and, if K is
    cut, for scales that cover a group's whole K.
    """
    if not isinstance(scale, torch.Tensor):
        raise TypeError(f"{name} must be Tensor, not {type(scale).__name__}")
    if scale.dtype != torch.float32 or scale.device != matrix.device:
        raise RuntimeError(
            f"{name} is {scale.dtype} on {scale.device}; it must be float32, on {matrix.device}"
        )
    word = _word_of(name, recipe)
    if matrix.dim() == 2 and word.startswith("block"):
        groups = ()  # blocks divide the whole matrix, wherever groups cut it
    steps, bands = -(-K // BLOCK), -(-lines // BLOCK)
    count = math.prod(groups)
    shape, each = scale.shape, "".join(f"{n}, " for n in groups)
    if word == "tensor":
        if known(scale.numel() == 1):
            return scale.reshape(1, 1).expand(lines, 1)
        if groups and holds(scale.numel() == count):
            return scale.reshape(*groups, 1, 1).expand(*groups, lines, 1)
        possible = "one number" + (f", or [{count}]" if groups else "")
    elif word == "row":
        able = (count * lines,), *((*groups, *each) for each in ((lines,), (lines, 1), (1, lines)))
        if any(fits(shape, each) for each in able):
            return scale.reshape(*groups, lines, 1)
        possible = f"[{each}{lines}]" if groups else f"[{lines}, 1] or [1, {lines}]"
    elif word == "block":
        if fits(shape, (*groups, lines, steps)):
            return scale
        possible = f"[{each}{lines}, {steps}]"
    else:
        padded = -(-steps // 4) * 4  # as in torch
        by_steps = any(fits(shape, (*groups, n, bands), known) for n in (steps, padded))
        by_lines = fits(shape, (*groups, bands, steps), known)
        if by_steps and not (by_lines and known(scale.stride(-1) == 1 != scale.stride(-2))):
            return scale.mT[..., :steps]
        if by_lines:
            return scale
        possible = f"[{each}{steps}, {bands}] or [{each}{bands}, {steps}]"
    raise RuntimeError(f"{name} has shape {list(shape)}; for {word!r} it must be {possible}")


def _word_of(name: str, recipe: Recipe) -> str:
    """The name of a recipe."""
    given = recipe if isinstance(recipe, str) else getattr(recipe, "name", None)
    for word, torchs in RECIPES.items():
        if given in (word, torchs):
            return word
    raise ValueError(f"scale_recipe of {name} is {recipe!r}; one of {', '.join(RECIPES)}")


def _no_derivative(keys, forward_mode, *args):
    raise NotImplementedError(
        "scaled_mm and scaled_grouped_mm have no derivatives, but an argument requires grad: "
        "detach the scales, and add a trainable bias or residual to the result"
    )


implement_whole(SCALED, _product, _fake, _no_derivative)
implement_out(SCALED_OUT, _product)
register_flop_formula([SCALED.overloadpacket, SCALED_OUT.overloadpacket])(flops)
