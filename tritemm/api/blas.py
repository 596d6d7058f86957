"""Products and what follows them, under torch's names: `linear`, `addmm`, `baddbmm`, `mv`."""

from __future__ import annotations

import contextlib

import torch
from torch.compiler import is_dynamo_compiling
from typing_extensions import Unpack

from ..op.derivatives import repeated
from ..problem import GATED, NOTHING, Activation, EpilogueInputs
from ..runtime import fast_path
from ..runtime.sizes import expands, holds
from ..runtime.torch_private import unframed, untraced
from .arguments import Options, check_options, pair, without_tensors
from .epilogue import attends, check_added, factor
from .matmul import DEFAULTS, matmul

#: The options that `linear` passes to `matmul` if the caller gives none.
_ASKED = tuple(DEFAULTS[name] for name in Options.__annotations__)


def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: Activation | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> torch.Tensor:
    """activation(input @ weight.mT + bias) + residual.

    One kernel computes all of it. A gated activation is included where that is faster; otherwise
    torch's kernels compute it after the product.

    Args:
        input: [..., in_features].
        weight: [out_features, in_features], or [in_features], which drops the result's last
            dimension. Or a `tritemm.nn.Int4Weight`, with a bias of [out_features] and without
            `out` and options.
        bias: one element for each row of the weight; or one number, [] or [1].
        activation: "relu", "gelu" (by the error function), "gelu_tanh", "silu"; or gated:
            "swiglu", silu(gate) * up, or "geglu", gelu(gate) * up. The first half of the weight's
            rows gives gate and the second half up; the result has half as many columns.
        residual: broadcastable to the result's shape.
        out: see `matmul`.
        options: `kernel`, `config`, `batch_invariant`, `precision`, `accumulate`, `out_dtype`; see
            `matmul`.

    Returns:
        [..., out_features].

    If a gradient is recorded, backward keeps what torch's linear and activation keep: the input,
    the weight, and the activation's argument, which the kernel then stores as well.
    Raises the errors of `matmul`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> x, w = (torch.ones(2, 3, dtype=torch.float16, device=device) for _ in range(2))
    >>> bias = torch.tensor([-4, 1], dtype=torch.float16, device=device)
    >>> tritemm.linear(x, w, bias, activation="relu").tolist()
    [[0.0, 4.0], [0.0, 4.0]]
    """
    plain = not options and activation is residual is out is None and not is_dynamo_compiling()
    if plain and (result := again(input, weight, bias)) is not None:
        return result
    if not isinstance(weight, torch.Tensor):
        if getattr(type(weight), "multiplies_by_itself", False):  # an Int4Weight
            if given := [*options, *["out"] * (out is not None)]:
                raise TypeError(f"linear(): {', '.join(given)} don't go with an Int4Weight")
            return weight(input, bias, activation=activation, residual=residual)
        return without_tensors(
            linear, input, weight, bias,
            activation=activation, residual=residual, out=out, **options,
        )  # fmt: skip
    if options:
        check_options(linear, options)
    if weight.dim() > 2:
        raise RuntimeError(
            f"linear(): weight has shape {list(weight.shape)}; [out_features, in_features] and "
            "[in_features] are possible. matmul multiplies by stacks of matrices"
        )
    other = weight.t()  # weight itself, if it has one dimension
    try:
        if options:  # an empty ** costs every call the time of building a dictionary
            return matmul(
                input, other, out=out, bias=bias, activation=activation, residual=residual,
                **options,
            )  # fmt: skip
        result = matmul(input, other, out=out, bias=bias, activation=activation, residual=residual)
    except (RuntimeError, TypeError):
        pair("linear", ("input", "weight"), input, weight, cast=out is None, axis=-1)
        pairs = weight.dim() == 2 and holds(weight.shape[0] % 2 == 0)
        if isinstance(activation, str) and activation in GATED and not pairs:
            raise RuntimeError(
                f"linear(): weight has shape {list(weight.shape)}; a gated activation needs "
                "[2 * out_features, in_features], the gate's rows before the others"
            ) from None
        raise
    if plain:
        _learn(input, weight, other, bias)
    return result


@untraced
def again(input, weight, bias) -> torch.Tensor | None:
    """`linear(input, weight, bias)` of a kind that was multiplied before; None for any other.

    If no gradient is recorded, the weight itself identifies the kind, and no view is made.
    Not for compiled code.
    """
    if (found := _as_known(input, weight, bias)) is None:
        return None
    options, then = found
    recorded = input.requires_grad or weight.requires_grad
    recorded = recorded or (bias is not None and bias.requires_grad)
    if recorded and fast_path.recording():
        return repeated(input, weight.t(), None, options, then, bias) if weight.dim() == 2 else None
    return repeated(input, weight, None, (*options, _ASKED), then, bias)


@untraced
def _learn(input, weight, other, bias) -> None:
    """Record a kind that was just multiplied; `other` is a view of the weight."""
    if (found := _as_known(input, weight, bias)) is None:
        return
    options, then = found
    with contextlib.suppress(RuntimeError):  # raised by tensors without memory
        kind = fast_path.KNOWN.get(fast_path.kind_of(input, other, None, options, then)[0])
        if kind is not None and kind.launches is not None:
            key, _ = fast_path.kind_of(input, weight, None, (*options, _ASKED), then)
            fast_path.KNOWN[key] = kind


def _as_known(input, weight, bias) -> tuple[tuple, EpilogueInputs] | None:
    """The operator's options and the epilogue's inputs, if the kind of the call may be known."""
    if not fast_path.AVAILABLE or not fast_path.usual(input, weight, None):
        return None
    options = fast_path.OPTIONS.get((_ASKED, input.dtype))
    if options is None or (bias is not None and not fast_path.plain(bias)):
        return None
    try:
        then = NOTHING if bias is None else EpilogueInputs.made(input, weight, bias, None)
    except RuntimeError:  # a tensor without memory
        return None
    return options, then


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> torch.Tensor:
    """beta * input + alpha * mat1 @ mat2, as `torch.addmm`; [M, K] and [K, N] give [M, N].

    `input` is broadcastable to [M, N]; it isn't read if `beta` is 0. `options`: see `matmul`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 2, dtype=torch.float16, device=device)
    >>> tritemm.addmm(a, a, a, beta=3).tolist()
    [[5.0, 5.0], [5.0, 5.0]]
    """
    return _added(addmm, 2, input, mat1, mat2, beta, alpha, out, options)


def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> torch.Tensor:
    """beta * input + alpha * batch1 @ batch2, as `torch.baddbmm`; [B, M, N].

    `input` is broadcastable to the result; it isn't read if `beta` is 0. `options`: see `matmul`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(1, 2, 2, dtype=torch.float16, device=device)
    >>> tritemm.baddbmm(a, a, a, alpha=2).tolist()
    [[[5.0, 5.0], [5.0, 5.0]]]
    """
    return _added(baddbmm, 3, input, batch1, batch2, beta, alpha, out, options)


def mv(
    input: torch.Tensor,
    vec: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> torch.Tensor:
    """The product of a matrix [M, K] and a vector [K], as `torch.mv`. `options`: see `matmul`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 3, dtype=torch.float16, device=device)
    >>> tritemm.mv(a, a[0]).tolist()
    [3.0, 3.0]
    """
    if not (isinstance(input, torch.Tensor) and isinstance(vec, torch.Tensor)):
        return without_tensors(mv, input, vec, out=out, **options)
    _dimensions("mv", input=(input, 2), vec=(vec, 1))
    try:
        return matmul(input, vec, out=out, **options)
    except (RuntimeError, TypeError):
        check_options(mv, options, DEFAULTS)
        pair("mv", ("input", "vec"), input, vec, cast=out is None)
        raise


#: The options of the functions below, in addition to torch's arguments.
_OPTIONS = [n for n in DEFAULTS if n not in ("out", "alpha", "beta", "residual")]


@unframed
def _added(function, dims, input, x, y, beta, alpha, out, options) -> torch.Tensor:
    tensors = input, x, y
    if not all(isinstance(t, torch.Tensor) for t in tensors):
        return without_tensors(function, *tensors, beta=beta, alpha=alpha, out=out, **options)
    name = function.__name__
    first, second = ("mat1", "mat2") if dims == 2 else ("batch1", "batch2")
    _dimensions(name, **{first: (x, dims), second: (y, dims)})
    if dims == 3 and not holds(x.shape[0] == y.shape[0]):
        raise RuntimeError(
            f"{name}(): {first} has {x.shape[0]} matrices and {second} has {y.shape[0]}"
        )
    beta = factor("beta", beta)
    try:
        if beta == 0:
            _unread(name, input, x, y)
            if not attends(input):
                return matmul(x, y, alpha=alpha, out=out, **options)
        return matmul(x, y, residual=input, alpha=alpha, beta=beta, out=out, **options)
    except (RuntimeError, TypeError):
        check_options(function, options, _OPTIONS)
        pair(name, (first, second), x, y, cast=out is None)
        if beta != 0:
            check_added("input", input, x, (*x.shape[:-1], y.shape[-1]))
        raise


def _unread(name, input, x, y) -> None:
    """Refuse an unread `input` where torch does: some devices check its shape all the same."""
    if not expands(input.shape, (*x.shape[:-1], y.shape[-1])):
        shapes = input.shape, (*x.shape[:-1], 0), (*y.shape[:-2], 0, y.shape[-1])
        getattr(torch, name)(*(torch.empty(shape, device=x.device) for shape in shapes), beta=0)


@unframed
def _dimensions(name, **tensors) -> None:
    for argument, (tensor, count) in tensors.items():
        if tensor.dim() != count:
            raise RuntimeError(f"{name}(): {argument} has {tensor.dim()} dimensions, not {count}")
