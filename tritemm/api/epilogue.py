"""What callers give of an epilogue, checked: activation, factors, bias, residual."""

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

#: What a bias or a residual of floating-point operands may be.
ADDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: The types of what most callers give as a factor.
NUMBERS = (int, float)
#: Those that torch's operators take as they are.
_SIMPLE = (*NUMBERS, torch.SymInt, torch.SymFloat)
#: Those of all that can be one.
_REAL = (*_SIMPLE, numbers.Real)


def checked(given: tuple | None, a, b, input, other, out) -> tuple[tuple[int, ...], EpilogueInputs]:
    """The result's shape, and what the operator is given to follow a @ b; or an error.

    `given`: bias, activation, residual, alpha, beta and symmetric as `matmul` takes them, or None
    if nothing follows. `a` and `b` are `input` and `other` with two dimensions or more.
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
            "beta= is the factor of residual=, or of what out= holds; give one of them"
        )
    elif onto:
        residual = out
    alpha, beta = checked_epilogue(a.dtype, activation, alpha, beta)
    if bias is not None:
        check_kind("bias", bias, input)
        bias = _of_columns(autocast(bias) if out is None else bias, b.shape[-1])
    if onto and not fits(residual.shape, shape):
        raise RuntimeError(
            f"out has shape {list(residual.shape)} and the result {list(shape)}; what is added to "
            "must have the result's shape"
        )
    if residual is not None:
        check_added("residual", residual, input, shape, any_type=beta == 0)
        if 1 in (input.dim(), other.dim()):
            residual = raised(residual.expand(shape), input, other)
    if beta == 0 and not (residual is None or attends(residual)):
        residual = None  # its values, NaN among them, are not read
    return shape, EpilogueInputs(bias, residual, activation, float(alpha), float(beta), symmetric)


def _shape(a, b, input, other, activation: str = "") -> tuple[int, ...]:
    """Shape of the result of a @ b, without the dimensions that 1-D operands were given."""
    *batch, m, n = result_shape(a, b, activation)
    return (*batch, *([] if input.dim() == 1 else [m]), *([] if other.dim() == 1 else [n]))


def check_symmetric(symmetric, shape: tuple[int, ...], bias, activation: str) -> None:
    """Refuse what is no flag, and if it is set, what makes a result of this shape unsymmetric."""
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
    """The bias for each of the product's columns; or an error."""
    if fits(bias.shape, (columns,)):
        return bias
    if not expands(bias.shape, (columns,)):
        raise RuntimeError(
            f"bias has shape {list(bias.shape)}; the result has {columns} columns, and a bias "
            f"of [{columns}] or of one number, [] or [1], is possible. What has rows of its "
            "own is a residual"
        )
    return bias.expand(columns)


def check_added(name: str, tensor, input, shape, any_type: bool = False) -> None:
    """Refuse a tensor that can't be added to a result of this shape, of operands like `input`."""
    check_kind(name, tensor, input, any_type)
    if not expands(tensor.shape, shape):
        raise RuntimeError(
            f"{name} has shape {list(tensor.shape)}, which can't be broadcast to the result's, "
            f"{list(shape)}"
        )


def check_kind(name: str, tensor, input, any_type: bool = False) -> None:
    """Refuse what is no tensor, or can't be added to a product of operands like `input`."""
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
        raise RuntimeError(f"{name} is {tensor.dtype}; of {input.dtype} operands it may be {names}")


def unchecked(given: tuple, a, b, out) -> tuple[EpilogueInputs, torch.Tensor, torch.Tensor] | None:
    """The same of a call whose kind decides the rest, with bias and residual as they are given.

    None where `checked` must look at it. What is no part of the kind is looked at here.
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
    except (IndexError, OverflowError, RuntimeError, TypeError):  # what doesn't fit, or is none
        return None
    return then, bias, residual


def _is_activation(name) -> bool:
    return isinstance(name, str) and (name in ACTIVATIONS or name in GATED)


def activation_of(name: str | None, b: torch.Tensor) -> str:
    """The word for what follows a product by `b`; or an error."""
    name = "" if name is None else name
    if not _is_activation(name):
        known = ", ".join([*filter(None, ACTIVATIONS), *GATED])
        raise ValueError(f"activation={name!r} is unknown; one of {known}")
    if name in GATED and not holds(b.shape[-1] % 2 == 0):
        raise RuntimeError(
            f"the product has {b.shape[-1]} columns; a gated activation takes pairs of one of the "
            "first half and one of the second"
        )
    return name


def factor(name: str, value) -> Any:
    """The number that a caller gives as `name`, alpha or beta; or an error."""
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
    """Whether a residual whose factor is 0 counts all the same: it gets a gradient of zeros then,
    or its class sees the call.
    """
    return residual.requires_grad or type(residual) not in fast_path.PLAIN
