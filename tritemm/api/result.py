"""The result as a caller gets it: its dimensions, and `out=` with torch's checks."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch.compiler import is_dynamo_compiling

from ..runtime.sizes import fits, in_one_piece, known
from .arguments import check_dense


def drop(result, input, other):
    """Remove the dimensions that were added to 1-D operands."""
    if other.dim() == 1:
        result = result.squeeze(-1)
    if input.dim() == 1:
        result = result.squeeze(-1 if other.dim() == 1 else -2)
    return result


def raised(out, input, other):
    """A view of `out` with the dimensions that were added to 1-D operands."""
    if other.dim() == 1:
        out = out.unsqueeze(-1)
    return out.unsqueeze(-2) if input.dim() == 1 else out


def check_out(out, inputs, dtype) -> None:
    """Refuse an `out` that torch refuses, whatever its shape."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be Tensor, not {type(out).__name__}")
    check_dense("out", out)
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, out)):
        raise RuntimeError(
            "functions with out=... arguments don't support automatic differentiation, "
            "but one of the arguments requires grad."
        )
    if out.dtype != dtype:
        raise RuntimeError(
            f"Expected out tensor to have dtype {dtype}, but got {out.dtype} instead"
        )
    if out.device != inputs[0].device:
        raise RuntimeError(
            f"Expected out tensor to be on {inputs[0].device}, but it is on {out.device}"
        )


def written(operator: Callable, args: tuple, dtype, out, shape, inputs) -> torch.Tensor:
    """`operator(*args)` in `dtype`: a new tensor, or written to `out` after checking it."""
    if out is None:
        return operator(*args, dtype)
    check_out(out, inputs, dtype)
    fitting = fits(out.shape, shape)
    if needs_copy(out, fitting, inputs):
        made = operator(*args, dtype)
        return resized(out, shape, fitting).copy_(made)
    return operator(*args, out=resized(out, shape, fitting))


def resized(out, shape, fitting: bool) -> torch.Tensor:
    """`out` in the result's shape, with torch's warning; or an error if its elements overlap."""
    if not fitting:
        if not is_dynamo_compiling() and out.numel():
            warnings.warn(
                f"out was resized: it had shape {list(out.shape)}, the result has {list(shape)}. "
                "torch deprecates this; resize out to 0 elements first to reuse its memory",
                stacklevel=4,
            )
        out.resize_(shape)
    steps = zip(out.shape, out.stride(), strict=True)
    several = any(known(stride == 0) and not known(size <= 1) for size, stride in steps)
    if several and not any(known(size == 0) for size in out.shape):
        raise RuntimeError(
            "unsupported operation: more than one element of out refers to a single memory "
            "location. Please clone() out first"
        )
    return out


def needs_copy(out, fitting: bool, tensors) -> bool:
    """Whether the result must be complete before `out` is touched.

    An operand must be read before its own tensor gets another shape, and only torch can write to a
    tensor whose negative bit is set. A graph can't ask for either, and torch traces around both. In
    a graph, an operator writes only to an `out` that has no gaps and is no view: if a view's offset
    depends on a size, Inductor passes the start of the memory to any operator that isn't torch's.
    """
    if is_dynamo_compiling():
        return out._base is not None or not in_one_piece(out)
    return (
        out.is_neg()
        or isinstance(out.storage_offset(), torch.SymInt)
        or (not fitting and any(torch._C._is_alias_of(out, t) for t in tensors))  # type: ignore[attr-defined]
    )
