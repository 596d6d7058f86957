"""What callers give: operands, `out` and options, checked as torch checks them."""

from __future__ import annotations

import inspect
import numbers
import sys
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import TypedDict

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from .. import dispatch, plan
from ..dtypes import Precision, accumulator_type, check_precision, result_type
from ..problem import ACCUMULATE, INTERPRETED
from ..problem.config import Config
from ..rungs import Rung
from ..runtime.sizes import fits, holds, in_one_piece, known
from ..runtime.torch_private import compute_requires_grad, unframed
from ..spec import Kernel

#: The types of what most callers give as a factor.
NUMBERS = (int, float)
#: Those that torch's operators take as they are.
_SIMPLE = (*NUMBERS, torch.SymInt, torch.SymFloat)
#: Those of all that can be one.
_REAL = (*_SIMPLE, numbers.Real)


class Options(TypedDict, total=False):
    """What a function hands on to `matmul`."""

    kernel: Rung | Kernel
    config: Config | Mapping | None
    batch_invariant: bool
    precision: Precision | None
    accumulate: torch.dtype | None
    out_dtype: torch.dtype | None


def without_tensors(function: Callable, *args, **named):
    """What a call means whose first arguments, those given by place, are not all tensors.

    That is for torch's protocol to say, by which the Proxies of `torch.fx` make it a node of their
    graph; or else torch's error.
    """
    if has_torch_function(args):
        return handle_torch_function(function, args, *args, **named)
    names = list(inspect.signature(function).parameters)
    for position, (name, value) in enumerate(zip(names, args, strict=False), start=1):
        if name != "equation" and not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{function.__name__}(): argument '{name}' (position {position}) must be Tensor, "
                f"not {type(value).__name__}"
            )
    raise AssertionError("all of them are tensors")


@unframed
def operands(
    input, other, out, word, precision, accumulate, out_dtype, function="matmul", compiled=False
):
    """Both operands with at least two dimensions, and the operator's options; or an error.

    `function` is who calls its operands input and other; in `compiled` code that may be any.
    """
    compiled = compiled or is_dynamo_compiling()
    names = ("the first operand", "the second") if compiled else ("input", "other")
    input, other = pair(function, names, input, other, cast=out is None)
    a = input.unsqueeze(0) if input.dim() == 1 else input
    b = other.unsqueeze(-1) if other.dim() == 1 else other
    if a.dim() > 2 or b.dim() > 2:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # raises torch's RuntimeError
    name = word.partition("/")[0]
    if name != "auto":
        dispatch.find(name)
    check_precision(precision, a.dtype)
    accumulate = accumulator_type(accumulate, a.dtype)
    out_dtype = result_type(out_dtype, a.dtype)
    return a, b, (word, precision, accumulate, out_dtype)


@unframed
def pair(
    function: str, names: tuple[str, str], x, y, *, cast: bool = True, axis: int | None = -2
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands, with `cast` as they are under autocast; or an error.

    `function` and `names` are what the caller wrote. K is the last dimension of `x`, and that of
    `y` at this `axis`, its only one if it has one; None: of neither.
    """
    for position, (name, tensor) in enumerate(zip(names, (x, y), strict=True), start=1):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{function}(): argument '{name}' (position {position}) must be Tensor, "
                f"not {type(tensor).__name__}"
            )
    if cast:
        x, y = autocast(x), autocast(y)
    first, second = names
    if axis is not None and (x.dim() == 0 or y.dim() == 0):
        raise RuntimeError(
            f"both arguments to {function} need to be at least 1D, "
            f"but {first} is {x.dim()}D and {second} {y.dim()}D"
        )
    _check_devices(names, x, y)
    _check_types(function, names, x, y)
    if axis is not None:
        terms, others = x.shape[-1], y.shape[0 if y.dim() == 1 else axis]
        if not holds(terms == others):
            raise RuntimeError(
                f"{first} {tuple(x.shape)} and {second} {tuple(y.shape)} cannot be multiplied: "
                f"K is {terms} in {first} and {others} in {second}"
            )
    return x, y


@unframed
def check_options(function: str, options: Mapping, known: Collection[str]) -> None:
    """TypeError for one that `function` doesn't have."""
    for name in options:
        if name not in known:
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}; "
                f"its options are {', '.join(known)}"
            )


@unframed
def factor(name: str, value) -> float:
    """The number that a caller gives as `name`, alpha or beta; or an error."""
    if isinstance(value, torch.Tensor):
        if value.dim() or value.requires_grad:
            kind = "that requires grad" if value.requires_grad else f"of shape {list(value.shape)}"
            raise TypeError(
                f"{name} must be a real number, not a tensor {kind}. Multiply an operand or the "
                "result by it"
            )
        value = value.item()
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, _REAL):
        raise TypeError(f"{name} must be a real number, not {type(value).__name__}")
    if isinstance(value, numbers.Rational) and abs(value) > sys.float_info.max:
        raise ValueError(f"{name} is beyond the largest float, {sys.float_info.max:g}")
    return value if isinstance(value, _SIMPLE) else float(value)


@unframed
def under_autocast(device: torch.device) -> bool:
    return device.type in ("cpu", "cuda") and torch.is_autocast_enabled(device.type)


@unframed
def autocast(tensor):
    if not under_autocast(tensor.device):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


@unframed
def _check_devices(names, x, y):
    first, second = names
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


@unframed
def check_dense(name: str, tensor: torch.Tensor) -> None:
    """Refuse what has no strides, which nested tensors deny even to who asks for their shape."""
    if tensor.is_nested:
        raise NotImplementedError(
            f"tritemm multiplies dense tensors; {name} is nested. Use .to_padded_tensor(0)"
        )
    if tensor.layout != torch.strided:
        raise NotImplementedError(
            f"tritemm multiplies dense tensors; {name} is {tensor.layout}. Use .to_dense()"
        )


@unframed
def _check_types(function, names, x, y):
    first, second = names
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


def drop(result, input, other):
    """Remove the dimensions that 1-D operands were given."""
    if other.dim() == 1:
        result = result.squeeze(-1)
    if input.dim() == 1:
        result = result.squeeze(-1 if other.dim() == 1 else -2)
    return result


def drop_shape(a, b, input, other, activation=""):
    *batch, m, n = plan.result_shape(a, b, activation)
    return (*batch, *([] if input.dim() == 1 else [m]), *([] if other.dim() == 1 else [n]))


@unframed
def check_out(out, inputs, dtype) -> None:
    """Refuse an `out` that torch refuses, whatever its shape."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be Tensor, not {type(out).__name__}")
    check_dense("out", out)
    if compute_requires_grad(*inputs, out):
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


@unframed
def resize(out, shape) -> None:
    """Give `out` the result's shape, with torch's warning; refuse one whose elements overlap."""
    if not fits(out.shape, shape):
        if not torch.compiler.is_dynamo_compiling() and out.numel():
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


def needs_copy(out, shape, *tensors) -> bool:
    """Whether the result must be whole before `out` is touched.

    An operand must be read before its own tensor is given another shape; and a tensor that only
    stands for the negative of its memory is torch's to write. In a graph neither can be asked, and
    torch traces around both. There an operator writes only to what has no gaps and is no view: if
    where a view begins depends on a size, Inductor hands any operator that isn't torch's the start
    of the memory.
    """
    if is_dynamo_compiling():
        return out._base is not None or not in_one_piece(out)
    return (
        out.is_neg()
        or isinstance(out.storage_offset(), torch.SymInt)
        or (not fits(out.shape, shape) and any(torch._C._is_alias_of(out, t) for t in tensors))
    )
