"""`explain`: what `matmul` would run, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from typing_extensions import Unpack

from .. import dispatch, plan
from ..arch import gpus
from ..dispatch.request import word_of
from ..dtypes import checked_epilogue
from ..problem import Activation, Device, EpilogueInputs, result_shape
from .arguments import OPTIONS, Options, check_dense, check_options
from .epilogue import activation_of, check_symmetric
from .matmul import DEFAULTS
from .scaled import operands_of


def explain(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    activation: Activation | None = None,
    symmetric: bool = False,
    device: str | int | torch.device | None = None,
    scales: Sequence | None = None,
    use_fast_accum: bool = False,
    **options: Unpack[Options],
) -> dispatch.Choice:
    """What `matmul`, or `scaled_mm` if `scales` are given, would run for these arguments, and why.

    Nothing is launched. Prints as a few lines: kernel, config, why, which operands are packed or
    swapped, waves, predicted time and its parts, roofline, the next candidates, and the kernels
    that refused, with their reasons. Where torch's kernels compute the activation, the lines
    describe the product before it, and `why` says so.

    Arguments, `options` and errors are those of `matmul`. An empty result, or K = 0, needs no
    kernel: ValueError.
    `device` is where the call would run, by default the operands' device: a GPU that need not be
    present, by name, "H100", or architecture, "sm_90"; or a torch device, "cuda:1". Then only the
    operands' sizes, strides and types count; they may be on any device, also on meta, where they
    take no memory. An unknown name raises ValueError, which lists those that are known.
    `scales`: scale_a, its recipe, scale_b and its recipe, as `scaled_mm` takes them; `out_dtype`
    is then bfloat16 by default, and `use_fast_accum` is that of `scaled_mm`.

    >>> import torch, tritemm
    >>> x, w = (torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(2))
    >>> tritemm.explain(x, w.mT, device="A100").problem.device.name
    'NVIDIA A100'
    """
    there = None
    if device is not None:
        if isinstance(device, str) and device.partition(":")[0] in ("cpu", "cuda"):
            device = torch.device(device)
        there = Device.of(device) if isinstance(device, torch.device) else gpus.named(device)
        input, other = _without_data("input", input), _without_data("other", other)
        if isinstance(scales, (list, tuple)):
            scales = [_without_data("scale", each) for each in scales]
    check_options(explain, options)
    named: Any = DEFAULTS | options
    kernel, config, batch_invariant, *types = (named[name] for name in OPTIONS)
    asked = word_of(kernel, config, batch_invariant), *types
    others = {"precision": types[0], "accumulate": types[1], "symmetric": symmetric}
    a, b, given, found = operands_of(
        "explain", input, other, asked, scales, use_fast_accum, **others
    )  # fmt: skip
    word, precision, accumulate, out_dtype = given
    after = activation_of(activation, b)
    checked_epilogue(a.dtype if found is None else torch.float32, after)
    shape = result_shape(a, b, after)
    check_symmetric(symmetric, shape, None, after)
    if 0 in shape or a.shape[-1] == 0:
        raise ValueError(f"no kernel runs: the result {shape} with K = {a.shape[-1]} needs none")
    out = torch.empty(shape, dtype=out_dtype, device="meta")
    then = EpilogueInputs.made(a, b, None, None, after, symmetric=symmetric)
    problem = plan.matrices(a, b, out, precision, accumulate, then, scales=found)[0]
    if there is not None:
        problem = dataclasses.replace(problem, device=there)
    return dispatch.first_choice(problem, word)


def _without_data(name: str, t: torch.Tensor) -> torch.Tensor:
    """A tensor like `t` on meta. Anything else is returned as it is; `operands` refuses it."""
    if not isinstance(t, torch.Tensor):
        return t
    check_dense(name, t)
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
