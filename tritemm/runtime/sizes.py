"""Questions about sizes; in a graph only data answers some of them: those of `x[mask]`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch.compiler import is_dynamo_compiling


def _said(condition) -> bool | None:
    """The value of a condition that is yes or no; None for others.

    Under `torch.jit.trace` a condition is a tensor; like torch's own checks, this doesn't warn.
    """
    if isinstance(condition, torch.Tensor) and not is_dynamo_compiling():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            return bool(condition)
    return condition if type(condition) is bool and not is_dynamo_compiling() else None


def holds(condition: bool | torch.SymBool) -> bool:
    """Whether it holds. If only data will tell, yes: the graph then checks it at run time."""
    if (said := _said(condition)) is not None:
        return said
    from torch.fx.experimental.symbolic_shapes import guard_or_true  # takes long

    if not guard_or_true(condition):
        return False
    torch._check(condition)
    return True


def known(condition: bool | torch.SymBool) -> bool:
    """Whether it is known to hold; if only data will tell, no."""
    if (said := _said(condition)) is not None:
        return said
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # takes long

    return guard_or_false(condition)


def fits(shape: Sequence[int], other: Sequence[int], ask: Callable = holds) -> bool:
    """Whether two shapes are equal, judging each size with `ask`: `holds` or `known`."""
    return len(shape) == len(other) and all(ask(x == y) for x, y in zip(shape, other, strict=True))


def expands(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Whether a tensor of `shape` broadcasts to a result of the shape `to`; see `holds`."""
    sizes = zip(reversed(shape), reversed(to), strict=False)  # from the last dimension
    return len(shape) <= len(to) and all(
        known(size == 1) or holds(size == whole) for size, whole in sizes
    )


def in_one_piece(t: torch.Tensor) -> bool:
    """Whether `t` is known to be contiguous; `is_contiguous` would guard on its sizes."""
    step = 1
    for size, stride in zip(reversed(t.shape), reversed(t.stride()), strict=True):
        if not known(size == 1):
            if not known(stride == step):
                return False
            step = step * size
    return True


def summed(t: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """`t.sum_to_size(shape)`, also for sizes that only data will tell."""
    try:
        return t.sum_to_size(shape)
    except RuntimeError as error:
        if "data-dependent" not in str(error):
            raise
        first = t.dim() - len(shape)
        dims = [i for i in range(t.dim()) if i < first or known(shape[i - first] == 1)]
        return t.sum(dims, keepdim=True).reshape(shape)
