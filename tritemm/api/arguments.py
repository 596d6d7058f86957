"""Callers' operands, `out` and options, checked as torch checks them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypedDict

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from .. import dispatch
from ..dtypes import Precision, accumulator_type, check_precision, result_type
from ..problem import ACCUMULATE, INTERPRETED
from ..problem.config import Config
from ..rungs import Rung
from ..runtime.sizes import holds
from ..runtime.torch_private import unframed
from ..spec import Kernel


class Options(TypedDict, total=False):
    """The options that a function passes on to `matmul`."""

    kernel: Rung | Kernel
    config: Config | Mapping | None
    batch_invariant: bool
    precision: Precision | None
    accumulate: torch.dtype | None
    out_dtype: torch.dtype | None


OPTIONS = tuple(Options.__annotations__)


def without_tensors(function: Callable, *args, **named):
    """The result of a call whose first arguments, those passed by position, aren't all tensors.

    torch's override protocol decides it: `torch.fx` records its Proxies as a node of its graph.
    Where no override exists, torch's error is raised.
    """
    if has_torch_function(args):
        return handle_torch_function(function, args, *args, **named)
    names = inspect.signature(function).parameters
    _check_tensors(function.__name__, zip(names, args, strict=False))
    raise AssertionError("every argument is a tensor")


@unframed
def _check_tensors(function: str, named: Iterable[tuple[str, object]]) -> None:
    for position, (name, value) in enumerate(named, start=1):
        if name != "equation" and not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{function}(): argument '{name}' (position {position}) must be Tensor, "
                f"not {type(value).__name__}"
            )


@unframed
def operands(input, other, out, asked: tuple, function="matmul", compiled=False):
    """Both operands with at least two dimensions, and the operator's options; or an error.

    `asked`: kernel, precision, accumulator and result type, as the caller passed them. `function`
    names its operands input and other in messages; `compiled` code may come from any function.
    """
    compiled = compiled or is_dynamo_compiling()
    names = ("the first operand", "the second") if compiled else ("input", "other")
    input, other = pair(function, names, input, other, cast=out is None)
    a = input.unsqueeze(0) if input.dim() == 1 else input
    b = other.unsqueeze(-1) if other.dim() == 1 else other
    if a.dim() > 2 or b.dim() > 2:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # raises torch's RuntimeError
    return a, b, checked_options(asked, a.dtype)


@unframed
def checked_options(asked: tuple, dtype: torch.dtype) -> tuple:
    """`asked` (see `operands`) as the operator's options for operands of this type; or an error."""
    word, precision, accumulate, out_dtype = asked
    name = word.partition("/")[0]
    if name != "auto":
        dispatch.find(name)
    check_precision(precision, dtype)
    return word, precision, accumulator_type(accumulate, dtype), result_type(out_dtype, dtype)


@unframed
def pair(
    function: str, names: tuple[str, str], x, y, *, cast: bool = True, axis: int | None = -2
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands, cast as autocast casts them if `cast`; or an error.

    Messages use `function` and `names`. K is the last dimension of `x` and dimension `axis` of `y`,
    or the only one of a 1-D `y`; with `axis` None, K isn't checked.
    """
    _check_tensors(function, zip(names, (x, y), strict=True))
    if cast:
        x, y = autocast(x), autocast(y)
    first, second = names
    if axis is not None and (x.dim() == 0 or y.dim() == 0):
        raise RuntimeError(
            f"both arguments to {function} need to be at least 1D, "
            f"but {first} is {x.dim()}D and {second} {y.dim()}D"
        )
    if x.device != y.device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, "
            f"but {first} is on {x.device} and {second} on {y.device}"
        )
    kind = x.device.type
    if kind not in ("cuda", "cpu", "meta"):
        raise RuntimeError(f"tritemm multiplies CUDA tensors; {first} is on {x.device}")
    if kind == "cpu" and not INTERPRETED:
        raise RuntimeError(
            f"tritemm multiplies CUDA tensors; {first} is on cpu. Move it with .cuda(), or set "
            "TRITON_INTERPRET=1 before tritemm is imported to run the kernels, slowly, on the CPU"
        )
    check_dense(first, x)
    check_dense(second, y)
    if x.dtype != y.dtype:
        raise RuntimeError(
            f"expected {first} and {second} to have the same dtype, but got: {x.dtype} != {y.dtype}"
        )
    if x.dtype not in ACCUMULATE:
        able = ", ".join(str(dtype) for dtype in ACCUMULATE)
        raise NotImplementedError(
            f"tritemm.{function} is not implemented for {x.dtype}; {first} may be {able}"
        )
    if axis is not None:
        terms, others = x.shape[-1], y.shape[0 if y.dim() == 1 else axis]
        if not holds(terms == others):
            raise RuntimeError(
                f"{first} {tuple(x.shape)} and {second} {tuple(y.shape)} cannot be multiplied: "
                f"K is {terms} in {first} and {others} in {second}"
            )
    return x, y


@unframed
def check_options(function: Callable, options: Mapping, known: Collection[str] = OPTIONS) -> None:
    """TypeError for an option that is neither in `known` nor a parameter of `function`."""
    for name in options:
        if name not in known:
            able = dict.fromkeys([*(function.__kwdefaults__ or ()), *known])
            raise TypeError(
                f"{function.__name__}() got an unexpected keyword argument {name!r}; "
                f"its options are {', '.join(able)}"
            )


@unframed
def under_autocast(device: torch.device) -> bool:
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)


@unframed
def autocast(tensor):
    narrowed = tensor.is_floating_point() and tensor.dtype != torch.float64
    if not narrowed or not under_autocast(tensor.device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


@unframed
def check_dense(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor without strides, such as a nested one, whose shape can't even be read."""
    if tensor.is_nested:
        raise NotImplementedError(
            f"tritemm multiplies dense tensors; {name} is nested. Use .to_padded_tensor(0)"
        )
    if tensor.layout != torch.strided:
        raise NotImplementedError(
            f"tritemm multiplies dense tensors; {name} is {tensor.layout}. Use .to_dense()"
        )
