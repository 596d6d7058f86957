"""A layer's product, dense or grouped, with operands quantised at each call."""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling, is_exporting

from ..dispatch.request import word_of
from ..op.float8 import LINEAR, RECIPES, as_rows
from ..runtime.sizes import fits
from ..runtime.torch_private import compute_requires_grad, in_transform
from .arguments import autocast, without_tensors
from .quantize import Quantized, quantize


def linear_8bit(
    input, weight, bias, invariant=False, scale=None, recipe="block", dtype=None, offs=None
) -> torch.Tensor:
    """input @ weight.mT + bias, multiplied as in `Float8Linear`; in int8 if `scale` is given.

    With groups of rows that end at `offs`, the weight is [G, N, K] and the bias [G, N]; the weight
    may then be `Quantized`, in "block2d".
    """
    known = weight if isinstance(weight, Quantized) else None
    weight = weight if known is None else known.values
    if not isinstance(input, torch.Tensor):
        args = known or weight, bias, invariant, scale, recipe, dtype, offs
        return without_tensors(linear_8bit, input, *args)
    x, given = autocast(input), [t for t in (input, weight, bias) if t is not None]
    fit = fits(x.shape[-1:], weight.shape[-1:])
    fit = fit and (bias is None or fits(bias.shape, weight.shape[:-1]))
    if not fit or len({t.device for t in given}) > 1:
        told = ", ".join(f"{list(t.shape)} on {t.device}" for t in given)
        raise RuntimeError(f"input, weight and bias are {told}, not [..., K], [N, K] and [N]")
    turn = compute_requires_grad(weight)
    if not is_dynamo_compiling():
        if torch.jit.is_tracing() or is_exporting():  # for any number of rows; backward turns x
            turn = False
        else:  # an inner transform doesn't say what an outer one needs
            turn = turn or (in_transform() and scale is None and known is None)
    lines, blocks, usual = RECIPES[recipe if scale is None else "row"]
    kind, rows = "fp8" if scale is None else "int8", as_rows(x)
    made = quantize(rows, kind, lines, transpose=turn and blocks, offs=offs if turn else None)
    a = (*made[0], *made[1]) if turn else (*made, None, None)
    b = known or (quantize(weight, kind, blocks) if scale is None else (weight, scale.float()))
    how = recipe, dtype or usual, word_of("auto", None, invariant)
    return LINEAR(x, weight, bias, *a, *b, offs, *how)
