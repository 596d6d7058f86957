"""A linear layer whose K is sharded over processes; its bits don't depend on their number."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ..dtypes import Precision
from ..runtime.torch_private import in_transform
from .arguments import autocast, check_dense, pair
from .matmul import matmul


def row_parallel_linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    group: torch.distributed.ProcessGroup | None = None,
    parts: int = 8,
    precision: Precision | None = None,
) -> torch.Tensor:
    """The whole input @ weight.mT + bias, on every process; each process has a part of K.

    Process r of n has the r-th K / n columns of `input` and `weight`. K is cut into `parts`, for
    every n alike: each part is multiplied batch-invariantly and kept in float32 (float64 for
    float64), and neighbours are added until one sum is left: (p0 + p1) + (p2 + p3) and so on. Each
    process computes a subtree; the subtrees' sums are gathered, and each process adds them up. So a
    row has the same bits on 1, 2, 4, ... `parts` processes, and whatever other rows the input has.
    An all-reduce would move half as much data of a 16-bit type, or less, but its order of addition
    depends on the number of processes.

    Args:
        input: [..., K / n].
        weight: [out_features, K / n].
        bias: [out_features], the same on all processes; added once, in float32.
        group: n processes; by default all, or this one alone if `torch.distributed` isn't
            initialised.
        parts: a power of two and a multiple of n that divides K.
        precision: see `matmul`.

    Returns:
        [..., out_features], the same on all processes, in the input's type.

    Backward gives each process the gradients of its own columns, and expects the same gradient of
    the result on all processes. Only autograd works: `torch.func`, forward mode and, on several
    processes, gradients of gradients raise an error.

    Raises:
        ValueError: `parts` is no power of two, no multiple of n, or doesn't divide K.
        TypeError: an argument is no tensor, or holds no floats.
        RuntimeError: as `matmul`, for operands that don't fit together.
        NotImplementedError: under a transform of `torch.func`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> x, w = (torch.ones(2, 16, dtype=torch.float16, device=device) for _ in range(2))
    >>> tritemm.row_parallel_linear(x, w, parts=4).tolist()
    [[16.0, 16.0], [16.0, 16.0]]
    """
    given = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    tensors = tuple(given.values())
    if has_torch_function(tensors):
        named: dict[str, Any] = {"group": group, "parts": parts, "precision": precision}
        return handle_torch_function(row_parallel_linear, tensors, input, weight, bias, **named)
    if in_transform():
        raise NotImplementedError(
            "row_parallel_linear() supports autograd alone: torch.func can't transform a sum over "
            "several processes. Use loss.backward() or torch.autograd.grad"
        )
    for name, t in given.items():
        if not (isinstance(t, torch.Tensor) and t.is_floating_point()):
            kind = t.dtype if isinstance(t, torch.Tensor) else type(t).__name__
            raise TypeError(
                f"row_parallel_linear(): {name} is {kind}; a tensor of floats is needed"
            )
        check_dense(name, t)
    group, processes = _group(group)
    if weight.dim() != 2 or input.dim() < 1 or input.shape[-1] != weight.shape[-1]:
        raise RuntimeError(
            f"row_parallel_linear(): input has shape {list(input.shape)} and weight "
            f"{list(weight.shape)}; with {processes} processes, [..., K / n] and "
            "[out_features, K / n] are needed"
        )
    pair("row_parallel_linear", ("input", "weight"), input, weight, axis=-1)
    if type(parts) is not int or parts < 1 or parts & (parts - 1) or parts % processes:
        raise ValueError(
            f"parts is {parts!r}; a power of two and multiple of {processes} is needed"
        )
    own = parts // processes
    if weight.shape[-1] % own:
        raise ValueError(
            f"parts is {parts}, {own} for each of {processes} processes, which doesn't divide its "
            f"{weight.shape[-1]} columns of K"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(
            f"row_parallel_linear(): bias has shape {list(bias.shape)}; [{weight.shape[0]}] is "
            "needed"
        )
    cast = (t if t is None else autocast(t) for t in (input, weight, bias))
    return _RowParallel.apply(*cast, group, processes, own, precision)


def _group(group):
    """The group and how many processes it has; None and 1 without any."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None, 1
    processes = torch.distributed.get_world_size(group)
    if processes < 1:
        raise RuntimeError(
            f"row_parallel_linear(): process {torch.distributed.get_rank()} is not in `group`; "
            "only its members can call it"
        )
    return group, processes


class _RowParallel(torch.autograd.Function):
    """Multiplies, and differentiates with respect to a process's own columns."""

    @staticmethod
    def forward(ctx, input, weight, bias, group, processes, own, precision):
        needs_input, needs_weight, *_ = ctx.needs_input_grad
        ctx.save_for_backward(input if needs_weight else None, weight if needs_input else None)
        ctx.bias, ctx.precision = bias is not None and bias.dtype, precision
        ctx.processes = processes
        rows = _flat(input)
        total = added(products(rows, weight, own, precision))
        if processes > 1:
            total = added(_gathered(total, group, processes))
        if bias is not None:
            total = total + bias
        return total.to(input.dtype).reshape(*input.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx, grad):
        if ctx.processes > 1 and torch.is_grad_enabled():
            raise RuntimeError(
                "row_parallel_linear(): a gradient of its gradient needs the parts of "
                f"{ctx.processes} processes, which it doesn't gather; omit create_graph"
            )
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        options = {"precision": ctx.precision}
        rows = _flat(grad)
        found: list = [None] * 3
        if needs_input:
            found[0] = matmul(grad, weight, batch_invariant=True, **options)
        if needs_weight:
            found[1] = matmul(rows.mT, _flat(input), **options)
        if needs_bias:
            wide = torch.promote_types(grad.dtype, torch.float32)
            found[2] = rows.sum(0, dtype=wide).to(ctx.bias)
        return *found, *[None] * 4


def _flat(t: torch.Tensor) -> torch.Tensor:
    """`t` as a matrix of rows; there may be none, or empty ones."""
    return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])


def products(rows, weight, own: int, precision: Precision | None = None) -> torch.Tensor:
    """[own, M, N] from `rows` [M, K] and `weight` [N, K]: `own` parts' products, unrounded."""
    a, b = (t.unflatten(-1, (own, t.shape[-1] // own)).movedim(-2, 0) for t in (rows, weight))
    wide = torch.promote_types(rows.dtype, torch.float32)
    return matmul(a, b.mT, batch_invariant=True, precision=precision, out_dtype=wide)


def added(parts: torch.Tensor) -> torch.Tensor:
    """The sum of [a power of two, M, N] over the first dimension, adding neighbours repeatedly."""
    while len(parts) > 1:
        parts = parts[0::2] + parts[1::2]
    return parts[0]


def _gathered(total: torch.Tensor, group, processes: int) -> torch.Tensor:
    """[n, M, N] from the n processes of the group, in rank order."""
    everyone = total.new_empty((processes, *total.shape))
    gather = getattr(torch.distributed, "all_gather_single", None)  # its name since torch 2.14
    gather = gather or torch.distributed.all_gather_into_tensor
    gather(everyone.flatten(0, 1), total.contiguous(), group)
    return everyone
