"""Checks callers' arguments for the epilogue: activation, factors, bias, residual."""

from __future__ import annotations

import numbers
import sys
from typing import Any

import torch

from ..dtypes import beyond_float, check_flag, checked_epilogue
from ..problem import ACTIVATIONS, GATED, NOTHING, EpilogueInputs, result_shape
from ..runtime import fast_path
from ..runtime.sizes import expands, fits, holds
from .arguments import autocast, check_dense
from .result import raised

#: Types that a bias or a residual of floating-point operands may have.
ADDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: The types of nearly all factors.
NUMBERS = (int, float)
#: Factors that torch's operators take as they are.
_SIMPLE = (*NUMBERS, torch.SymInt, torch.SymFloat)
#: All types that a factor may have.
_REAL = (*_SIMPLE, numbers.Real)


def checked(given: tuple | None, a, b, input, other, out) -> tuple[tuple[int, ...], EpilogueInputs]:
    """The result's shape, and the epilogue's inputs as the operator takes them; or an error.

    `given`: bias, activation, residual, alpha, beta and symmetric as `matmul` takes them, or None
    if there is no epilogue. `a` and `b` are `input` and `other` with two dimensions or more.
    """
    if given is None:
        return _shape(a, b, input, other), NOTHING
    bias, activation, residual, alpha, beta, symmetric = given
    activation = activation_of(activation, b)
    shape = _shape(a, b, input, other, activation)
    check_symmetric(symmetric, shape, bias, activation)
    alpha = factor("alpha", alpha)
    beta = None if beta is None else factor("beta", beta)
    onto = residual is None and out is not None and bool(beta)
    if onto and not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be Tensor, not {type(out).__name__}")
    if beta is None:
        beta = 1
    elif residual is None and out is None:
        raise ValueError(
            "beta= is the factor of residual=, or of what out= holds; pass one of these"
        )
    elif onto:
        residual = out
    alpha, beta = checked_epilogue(a.dtype, activation, alpha, beta)
    if bias is not None:
        check_kind("bias", bias, input)
        bias = _of_columns(autocast(bias) if out is None else bias, b.shape[-1])
    if onto and not fits(residual.shape, shape):
        raise RuntimeError(
            f"out has shape {list(residual.shape)} and the result {list(shape)}; to add "
            "to out, it must have the result's shape"
        )
    if residual is not None:
        check_added("residual", residual, input, shape, any_type=beta == 0)
        if 1 in (input.dim(), other.dim()):
            residual = raised(residual.expand(shape), input, other)
    if beta == 0 and not (residual is None or attends(residual)):
        residual = None  # with beta=0 its values, even NaN, are not read
    return shape, EpilogueInputs(bias, residual, activation, float(alpha), float(beta), symmetric)


def _shape(a, b, input, other, activation: str = "") -> tuple[int, ...]:
    """Shape of the result of a @ b, without the dimensions added to 1-D operands."""
    *batch, m, n = result_shape(a, b, activation)
    return (*batch, *([] if input.dim() == 1 else [m]), *([] if other.dim() == 1 else [n]))


def check_symmetric(symmetric, shape: tuple[int, ...], bias, activation: str) -> None:
    """Refuse a value that is no flag, and with True, whatever makes the result unsymmetric."""
    check_flag("symmetric", symmetric)
    if not symmetric:
        return
    if activation in GATED:
        raise ValueError(f"symmetric=True: activation= {activation} halves the columns")
    if len(shape) < 2 or not holds(shape[-1] == shape[-2]):
        raise ValueError(
            f"symmetric=True: the result has shape {list(shape)}, and a symmetric one is square"
        )
    if bias is not None:
        raise ValueError("symmetric=True: bias= adds to columns, so the result isn't symmetric")


def _of_columns(bias, columns: int) -> torch.Tensor:
    """The bias with one element for each of the product's columns; or an error."""
    if fits(bias.shape, (columns,)):
        return bias
    if not expands(bias.shape, (columns,)):
        raise RuntimeError(
            f"bias has shape {list(bias.shape)}; the result has {columns} columns, so a bias "
            f"must be [{columns}], [] or [1]. Pass a tensor with rows of its "
            "own as residual="
        )
    return bias.expand(columns)


def check_added(name: str, tensor, input, shape, any_type: bool = False) -> None:
    """Refuse a tensor that can't be added to a result of this shape with operands like `input`."""
    check_kind(name, tensor, input, any_type)
    if not expands(tensor.shape, shape):
        raise RuntimeError(
            f"{name} has shape {list(tensor.shape)}, which can't be broadcast to the result's, "
            f"{list(shape)}"
        )


def check_kind(name: str, tensor, input, any_type: bool = False) -> None:
    """Refuse what is no tensor, or can't be added to a product with operands like `input`."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be Tensor, not {type(tensor).__name__}")
    check_dense(name, tensor)
    if any_type:
        return
    if tensor.device != input.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} is on {tensor.device} "
            f"and the operands are on {input.device}"
        )
    able = ADDED if input.dtype.is_floating_point else (torch.int32,)
    if tensor.dtype not in able:
        names = ", ".join(str(dtype) for dtype in able)
        raise RuntimeError(f"{name} is {tensor.dtype}; with {input.dtype} operands use {names}")


def unchecked(given: tuple, a, b, out) -> tuple[EpilogueInputs, torch.Tensor, torch.Tensor] | None:
    """What `checked` returns, for a call whose kind settles all checks but those made here.

    Bias and residual stay as the caller passed them. None where `checked` must look at the call.
    """
    bias, activation, residual, alpha, beta, symmetric = given
    if symmetric is not False and (
        symmetric is not True or bias is not None or activation in GATED
    ):
        return None
    if type(alpha) not in NUMBERS or beyond_float(alpha):
        return None
    if beta is not None and (type(beta) not in NUMBERS or beyond_float(beta)):
        return None
    plain = activation is None or (type(activation) is str and activation in ACTIVATIONS)
    if not plain and (not _is_activation(activation) or b.shape[-1] % 2):
        return None
    there = out if residual is None else residual
    if beta is None:
        beta = 1
    elif there is None or (beta == 0 and residual is not None):
        return None
    elif beta:
        residual = there
    if not all(t is None or fast_path.plain(t) for t in (bias, residual)):
        return None
    try:
        then = EpilogueInputs.made(a, b, bias, residual, activation or "", alpha, beta, symmetric)
    except (IndexError, OverflowError, RuntimeError, TypeError):  # a misfit, or no tensor
        return None
    return then, bias, residual


def _is_activation(name) -> bool:
    return isinstance(name, str) and (name in ACTIVATIONS or name in GATED)


def activation_of(name: str | None, b: torch.Tensor) -> str:
    """The name of the epilogue's activation for a product by `b`, "" if none; or an error."""
    name = "" if name is None else name
    if not _is_activation(name):
        known = ", ".join([*filter(None, ACTIVATIONS), *GATED])
        raise ValueError(f"activation={name!r} is unknown; one of {known}")
    if name in GATED and not holds(b.shape[-1] % 2 == 0):
        raise RuntimeError(
            f"the product has {b.shape[-1]} columns; a gated activation needs an even number: the "
            "first half is the gate, the second half up"
        )
    return name


def factor(name: str, value) -> Any:
    """The number that a caller passed as `name`, alpha or beta; or an error."""
    is_tensor = isinstance(value, torch.Tensor)
    if is_tensor and (value.dim() or value.requires_grad):
        kind = "that requires grad" if value.requires_grad else f"of shape {list(value.shape)}"
        raise TypeError(
            f"{name} must be a real number, not a tensor {kind}. Multiply an operand or the "
            "result by it"
        )
    if is_tensor or (type(value).__module__ == "numpy" and getattr(value, "shape", None) == ()):
        value = value.item()
    if not isinstance(value, _REAL):
        raise TypeError(f"{name} must be a real number, not {type(value).__name__}")
    if isinstance(value, numbers.Rational) and abs(value) > sys.float_info.max:  # type: ignore[operator]
        raise ValueError(f"{name} is beyond the largest float, {sys.float_info.max:g}")
    return value if isinstance(value, _SIMPLE) else float(value)


def attends(residual: torch.Tensor) -> bool:
    """Whether a residual whose factor is 0 matters all the same: because it gets a gradient of
    zeros, or because its class overrides torch's functions.
    """
    return residual.requires_grad or type(residual) not in fast_path.PLAIN
