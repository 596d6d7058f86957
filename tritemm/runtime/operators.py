"""Registers tritemm's operators with torch: all of them here, each by its schema."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..namespace import NAMESPACE
from .torch_private import (
    below_autograd,
    compute_requires_grad,
    has_tangent,
    untraced,
    without_gradient,
)

try:
    _LIBRARY = torch.library.Library(NAMESPACE, "DEF")
except RuntimeError as error:  # torch lets only one library define a namespace
    first = getattr(getattr(torch.ops, NAMESPACE), "gemm_into", None)
    where = first.__code__.co_filename if first else "elsewhere"
    raise ImportError(
        f"{NAMESPACE} is already in this process: {where} has registered its operators, and "
        f"{__file__} would be a second copy. Import only one of the two; to reload it, restart "
        "Python"
    ) from error


def define(schema: str) -> torch._ops.OpOverload:
    """The operator tritemm:: with this schema, not implemented yet."""
    name = _LIBRARY.define(schema)
    return getattr(getattr(torch.ops, NAMESPACE), name.removeprefix(f"{NAMESPACE}::")).default


def implement(operator: torch._ops.OpOverload, function: Callable, *keys: str) -> None:
    """Make the dispatcher call `function` for an operator at these keys; untraced.

    At "Autograd" it is a rule that gets the dispatch keys first. At "Fake" it makes a result
    without data; at "Vmap" it gets `info` and `in_dims` first.
    """
    for key in keys:
        if key == "Fake":
            torch.library.register_fake(operator._name, function, lib=_LIBRARY)
        elif key == "Vmap":
            torch.library.register_vmap(operator._name, function, lib=_LIBRARY)
        else:
            autograd = key == "Autograd"
            _LIBRARY.impl(operator, untraced(function), key, with_keyset=autograd)


def implement_whole(
    operator: torch._ops.OpOverload,
    function: Callable,
    fake: Callable,
    rule: Callable | None = None,
    vmap: Callable | None = None,
) -> None:
    """Let `function` make the operator's results on any device, and `fake` those without data.

    If it has derivatives, `rule` records them when a gradient or a tangent is needed. It gets the
    dispatch keys and whether there are tangents, then the arguments. Without `vmap`, the results of
    a batch are made one after another.
    """

    def one_by_one(info, in_dims, *args):
        count = info.batch_size
        parts = []
        for arg, dim in zip(args, in_dims, strict=True):
            if dim is None:
                parts.append([arg] * max(count, 1))
            elif count:
                parts.append(arg.unbind(dim))
            else:  # a result of zeros has the shape of the missing ones
                parts.append([arg.new_zeros(arg.shape[:dim] + arg.shape[dim + 1 :])])
        made = [operator(*one) for one in zip(*parts, strict=True)]
        if isinstance(made[0], torch.Tensor):
            return torch.stack(made)[:count], 0
        results = tuple(torch.stack(each)[:count] for each in zip(*made, strict=True))
        return results, (0,) * len(results)

    implement(operator, function, "CPU", "CUDA")
    implement(operator, fake, "Fake")
    implement(operator, vmap or one_by_one, "Vmap")
    if rule is not None:
        implement(operator, _recording(operator, rule), "Autograd")


def implement_out(operator: torch._ops.OpOverload, function: Callable) -> None:
    """Let `function(*arguments, out.dtype, out=out)` write the operator's result to `out`."""

    def write(*args, out) -> None:
        function(*args, out.dtype, out=out)

    implement(operator, write, "CPU", "CUDA")
    implement(operator, lambda *args, out: None, "Fake")
    implement(operator, without_gradient(operator), "Autograd")


def _recording(operator: torch._ops.OpOverload, rule: Callable) -> Callable:
    def record(keys, *args):
        tensors = [t for t in args if isinstance(t, torch.Tensor) and t.is_floating_point()]
        forward_mode = has_tangent(*tensors)
        if not forward_mode and not compute_requires_grad(*tensors):
            return below_autograd(operator, keys, *args)
        return rule(keys, forward_mode, *args)

    return record


def called_by_inductor(name: str, function: Callable) -> None:
    """Let compiled code call `function` as torch.ops.tritemm.`name`: see `inductor.lower`.

    The name begins with torch because generated code imports torch, and other processes load it.
    """
    setattr(getattr(torch.ops, NAMESPACE), name, function)
