"""`matmul` where something follows the product: checks, the short way, the operator."""

from __future__ import annotations

import torch
from torch.compiler import is_dynamo_compiling

from ..dispatch.request import word_of
from ..dtypes import beyond_float, check_ending, whole
from ..op import distributed, ops
from ..op.fused import GEMM, GEMM_OUT, record
from ..plan import Ending, after, kind_of, result_shape
from ..problem import ACTIVATIONS, GATED
from ..runtime import fast_path
from ..runtime.sizes import expands, fits, holds
from ..runtime.torch_private import unframed, untraced
from .arguments import (
    NUMBERS,
    autocast,
    check_dense,
    check_out,
    drop,
    drop_shape,
    factor,
    needs_copy,
    operands,
    resize,
)

#: What a bias or a residual of floating-point operands may be.
ADDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@unframed
def gemm(
    input, other, bias, residual, activation, alpha, beta, out,
    kernel="auto", config=None, batch_invariant=False, precision=None, accumulate=None,
    out_dtype=None,
) -> torch.Tensor:  # fmt: skip
    """activation(alpha * input @ other + bias) + beta * residual, as `matmul` takes it."""
    word = word_of(kernel, config, batch_invariant)
    a, b, options = operands(input, other, out, word, precision, accumulate, out_dtype)
    if not is_dynamo_compiling():
        asked = (kernel, precision, accumulate, out_dtype, config, batch_invariant)
        fast_path.remember_options(asked, a.dtype, options)
    activation = activation_of(activation, b)
    alpha = factor("alpha", alpha)
    beta = None if beta is None else factor("beta", beta)
    onto = residual is None and out is not None and bool(beta)
    if onto and not isinstance(out, torch.Tensor):
        raise TypeError(f"out must be Tensor, not {type(out).__name__}")
    if beta is None:
        beta = 1 if residual is not None else 0
    elif residual is None and out is None:
        raise ValueError(
            "beta= is the factor of residual=, or of what out= holds; give one of them"
        )
    elif onto:
        residual = out
    check_ending(a.dtype, activation, alpha, beta)
    if a.dtype == torch.int8:
        alpha, beta = whole("alpha", alpha), whole("beta", beta)
    shape = drop_shape(a, b, input, other, activation)
    if onto and not fits(out.shape, shape):
        raise RuntimeError(
            f"out has shape {list(out.shape)} and the result {list(shape)}; what is added to must "
            "have the result's shape"
        )
    bias = _bias(bias, input, b, out)
    residual = _residual(residual, input, other, shape, beta)
    ending = bias, residual, activation, float(alpha), float(beta)
    distributed.on_demand()
    if out is None:
        return drop(GEMM(a, b, *ending, *options), input, other)
    check_out(out, [t for t in (input, other, bias, residual) if t is not None], options[-1])
    return _into(out, shape, a, b, input, other, ending, options)


@untraced
def known(input, other, ending: tuple, out, asked: tuple) -> torch.Tensor | None:
    """The result, past torch's dispatcher, of a call of a kind that was made before; else None.

    `ending` is bias, residual, activation, alpha and beta as `matmul` takes them, and `asked` its
    kernel, precision, accumulator, result type, config and batch_invariant. Not for compiled code.
    As of `fast_path.matmul`: nothing may be asked for but the result and its gradients. What is no
    part of the kind is looked at here, and what `gemm` would refuse is left to it.
    """
    if not fast_path.AVAILABLE or type(input) not in fast_path.PLAIN:
        return None
    options = fast_path.options_of(asked, input.dtype)
    bias, residual, activation, alpha, beta = ending
    if options is None or not isinstance(other, torch.Tensor) or min(input.dim(), other.dim()) < 2:
        return None
    if type(alpha) not in NUMBERS or beyond_float(alpha):
        return None
    if beta is not None and (type(beta) not in NUMBERS or beyond_float(beta)):
        return None
    if activation is not None and not _is_activation(activation):
        return None
    there = out if residual is None else residual
    if beta is None:
        beta = 1
    elif there is None or (beta == 0 and residual is not None):
        return None
    elif beta:
        residual = there
    if not fast_path.usual(input, other, out):
        return None
    needy = input.requires_grad or other.requires_grad
    for t in (bias, residual):
        if t is not None:
            if not fast_path.plain(t):
                return None
            needy = needy or t.requires_grad
    records = needy and fast_path.recording()
    if records and out is not None:
        return None
    if records and activation:
        return _apart(input, other, (bias, residual, activation, alpha, beta), asked)
    try:
        then = Ending.made(input, other, bias, residual, activation or "", alpha, beta)
        key, addresses = kind_of(input, other, out, options, then)
        kind = fast_path.KNOWN.get(key)
    except (IndexError, OverflowError, RuntimeError, TypeError):  # what doesn't fit, or is none
        return None
    if kind is None or 0 in (*addresses[:2], *addresses[3:]):
        return None  # a tensor at 0 only stands for memory
    if kind.apart and out is None:
        return _apart(input, other, (bias, residual, activation, alpha, beta), asked)
    if kind.launches is None or (then is not None and out is not None and then.met_by(out)):
        return None
    if records and then is None:
        return ops.record(input, other, kind)
    if records:
        return record(input, other, bias, residual, kind, then, addresses)
    return fast_path.multiply(kind, addresses, out)


def _apart(input, other, ending, asked) -> torch.Tensor | None:
    """The activation by torch, after what comes before it if that is `_known`."""
    bias, residual, activation, alpha, beta = ending
    if activation in GATED and other.shape[-1] % 2:
        return None
    linear = known(input, other, (bias, None, None, alpha, None), None, asked)
    if linear is not None and residual is not None:
        residual = added_to(residual, input, result_shape(input, other, activation))
    return linear if linear is None else after(linear, activation, residual, beta)


def _into(out, shape, a, b, input, other, ending, options) -> torch.Tensor:
    if needs_copy(out, shape, a, b, *(t for t in ending[:2] if t is not None)):
        result = drop(GEMM(a, b, *ending, *options), input, other)
        resize(out, shape)
        return out.copy_(result)
    resize(out, shape)
    target = out
    if other.dim() == 1:
        target = target.unsqueeze(-1)
    if input.dim() == 1:
        target = target.unsqueeze(-2)
    GEMM_OUT(a, b, *ending, *options[:-1], out=target)
    return out


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


def _bias(bias, input, b, out):
    """[N], as the operands are under autocast; or an error."""
    if bias is None:
        return None
    if not isinstance(bias, torch.Tensor):
        raise TypeError(f"bias must be Tensor, not {type(bias).__name__}")
    check_dense("bias", bias)
    if out is None:
        bias = autocast(bias)
    n = b.shape[-1]
    per_column = fits(bias.shape, (n,))
    if not per_column and not expands(bias.shape, (n,)):
        raise RuntimeError(
            f"bias has shape {list(bias.shape)}; the result has {n} columns, and a bias of [{n}] "
            "or of one number, [] or [1], is possible. What has rows of its own is a residual"
        )
    _same_kind("bias", bias, input)
    return bias if per_column else bias.expand(n)


@unframed
def added_to(residual, input, shape, beta=1, name="residual"):
    """`residual`, to be added to a result of this shape of operands like `input`; or an error.

    Where `beta` is 0 its shape alone is looked at. `name` is what its caller calls it.
    """
    if not isinstance(residual, torch.Tensor):
        raise TypeError(f"{name} must be Tensor, not {type(residual).__name__}")
    check_dense(name, residual)
    if beta != 0:
        _same_kind(name, residual, input)
    if not expands(residual.shape, shape):
        raise RuntimeError(
            f"{name} has shape {list(residual.shape)}, which can't be broadcast to the result's, "
            f"{list(shape)}"
        )
    return residual


def _residual(residual, input, other, shape, beta):
    """With the dimensions of the operands' product, None if it counts for nothing; or an error."""
    if residual is None:
        return None
    residual = added_to(residual, input, shape, beta)
    if beta == 0 and not attends(residual):  # its values, NaN among them, are not read
        return None
    if 1 in (input.dim(), other.dim()):
        residual = residual.expand(shape)
    if other.dim() == 1:
        residual = residual.unsqueeze(-1)
    if input.dim() == 1:
        residual = residual.unsqueeze(-2)
    return residual


def attends(residual: torch.Tensor) -> bool:
    """Whether a residual whose factor is 0 counts all the same: it gets a gradient of zeros then,
    or its class sees the call.
    """
    return residual.requires_grad or type(residual) not in fast_path.PLAIN


@unframed
def _same_kind(name, tensor, input) -> None:
    if tensor.device != input.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} is on {tensor.device} "
            f"and the operands are on {input.device}"
        )
    able = ADDED if input.dtype.is_floating_point else (torch.int32,)
    if tensor.dtype not in able:
        names = ", ".join(str(dtype) for dtype in able)
        raise RuntimeError(f"{name} is {tensor.dtype}; of {input.dtype} operands it may be {names}")
