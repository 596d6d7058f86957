"""Products with what follows them, by torch's names: `linear`, `addmm`, `baddbmm`, `mv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import handle_torch_function, has_torch_function

from . import distributed
from .arguments import autocast, check_out, drop, drop_shape, needs_copy, operands, resize
from .config import Config
from .dispatch.request import word_of
from .fused import GEMM, GEMM_OUT, after, record
from .plan import Ending, activated, kind_of
from .problem import ACTIVATIONS, GATED
from .runtime import fast_path
from .spec import Kernel

#: What a bias or a residual of floating-point operands may be.
ADDED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def linear(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    kernel: str | Kernel = "auto",
    config: Config | Mapping | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
    accumulate: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """activation(input @ weight.mT + bias) + residual.

    In one kernel; of the gated activations, the product by two in one and the rest by torch.

    Args:
        input: [..., in_features].
        weight: [out_features, in_features], or [in_features]: then the result has one dimension
            less.
        bias: [out_features].
        activation: "relu", "gelu" (by the error function), "gelu_tanh", "silu"; or a gated one,
            "swiglu", silu(gate) * up, or "geglu", gelu(gate) * up, of a weight whose first half of
            rows is the gate's and whose second half is up's: the result has half of its rows.
        residual: broadcastable to the result's shape.
        out, kernel, config, batch_invariant, precision, accumulate, out_dtype: as of `matmul`.

    Returns:
        [..., out_features].

    Where a gradient is recorded, backward keeps what torch's own linear and activation keep: input,
    weight, and the activation's argument, which the kernel then stores.
    Raises what `matmul` raises.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> x, w = (torch.ones(2, 3, dtype=torch.float16, device=device) for _ in range(2))
    >>> bias = torch.tensor([-4, 1], dtype=torch.float16, device=device)
    >>> tritemm.linear(x, w, bias, activation="relu").tolist()
    [[0.0, 4.0], [0.0, 4.0]]
    """
    if not isinstance(weight, torch.Tensor):
        raise TypeError(
            f"linear(): argument 'weight' (position 2) must be Tensor, not {type(weight).__name__}"
        )
    if weight.dim() > 2:
        raise RuntimeError(
            f"linear(): weight has shape {list(weight.shape)}; [out_features, in_features] and "
            "[in_features] are possible. matmul multiplies by stacks of matrices"
        )
    other = weight.mT if weight.dim() == 2 else weight
    options = kernel, config, batch_invariant, precision, accumulate, out_dtype
    if activation in GATED:
        return _gated(input, weight, bias, GATED[activation], residual, out, options)
    return gemm(linear, input, other, bias, residual, activation, 1, None, out, *options)


def _gated(input, weight, bias, activation, residual, out, options) -> torch.Tensor:
    """Of the packed `weight` [2 * out_features, in_features]."""
    if weight.dim() != 2 or weight.shape[0] % 2:
        raise RuntimeError(
            f"linear(): weight has shape {list(weight.shape)}; a gated activation needs "
            "[2 * out_features, in_features], the gate's rows before the others"
        )
    if out is not None:
        raise ValueError("out= is not possible with a gated activation")
    pair = gemm(linear, input, weight.mT, bias, None, None, 1, None, None, *options)
    gate, up = pair.chunk(2, -1)
    result = activated(gate, activation) * up
    return result if residual is None else (result + residual).to(pair.dtype)


def addmm(
    input: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    **options,
) -> torch.Tensor:
    """beta * input + alpha * mat1 @ mat2, as `torch.addmm`; [M, N] of [M, K] and [K, N].

    `input` is broadcastable to [M, N], and not read where `beta` is 0. `options`: `matmul`'s.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 2, dtype=torch.float16, device=device)
    >>> tritemm.addmm(a, a, a, beta=3).tolist()
    [[5.0, 5.0], [5.0, 5.0]]
    """
    return _added("addmm", 2, input, mat1, mat2, beta, alpha, out, options)


def baddbmm(
    input: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    **options,
) -> torch.Tensor:
    """beta * input + alpha * batch1 @ batch2, as `torch.baddbmm`; [B, M, N].

    `input` is broadcastable to that, and not read where `beta` is 0. `options`: those of `matmul`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(1, 2, 2, dtype=torch.float16, device=device)
    >>> tritemm.baddbmm(a, a, a, alpha=2).tolist()
    [[[5.0, 5.0], [5.0, 5.0]]]
    """
    return _added("baddbmm", 3, input, batch1, batch2, beta, alpha, out, options)


def mv(
    input: torch.Tensor, vec: torch.Tensor, *, out: torch.Tensor | None = None, **options
) -> torch.Tensor:
    """The product of a matrix [M, K] and a vector [K], as `torch.mv`. `options`: `matmul`'s.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 3, dtype=torch.float16, device=device)
    >>> tritemm.mv(a, a[0]).tolist()
    [3.0, 3.0]
    """
    _dimensions("mv", input=(input, 2), vec=(vec, 1))
    return gemm(mv, input, vec, None, None, None, 1, None, out, **options)


def _added(name, dims, input, x, y, beta, alpha, out, options) -> torch.Tensor:
    first, second = ("mat1", "mat2") if dims == 2 else ("batch1", "batch2")
    _dimensions(name, **{first: (x, dims), second: (y, dims)})
    if x.shape[0] != y.shape[0] and dims == 3:
        raise RuntimeError(
            f"{name}(): {first} has {x.shape[0]} matrices and {second} has {y.shape[0]}"
        )
    residual = input if beta != 0 else None
    function = addmm if dims == 2 else baddbmm
    return gemm(function, x, y, None, residual, None, alpha, beta, out, **options)


def _dimensions(name, **tensors) -> None:
    for argument, (tensor, count) in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{name}(): argument '{argument}' must be Tensor, not {type(tensor).__name__}"
            )
        if tensor.dim() != count:
            raise RuntimeError(f"{name}(): {argument} has {tensor.dim()} dimensions, not {count}")


def gemm(
    function: Callable, input, other, bias, residual, activation, alpha, beta, out,
    kernel="auto", config=None, batch_invariant=False, precision=None, accumulate=None,
    out_dtype=None,
) -> torch.Tensor:  # fmt: skip
    """activation(alpha * input @ other + bias) + beta * residual, of a caller of `function`."""
    asked = (kernel, precision, accumulate, out_dtype, config, batch_invariant)
    if not is_dynamo_compiling():
        ending = bias, residual, activation, alpha, beta
        result = _known(input, other, ending, out, asked)
        if result is not None:
            return result
    tensors = [input, other, *(t for t in (bias, residual, out) if t is not None)]
    if has_torch_function(tensors):
        named = {"bias": bias, "residual": residual, "activation": activation, "alpha": alpha}
        return handle_torch_function(
            _of_matrices, tensors, input, other, beta=beta, out=out, kernel=kernel, config=config,
            batch_invariant=batch_invariant, precision=precision, accumulate=accumulate,
            out_dtype=out_dtype, **named,
        )  # fmt: skip
    word = word_of(kernel, config, batch_invariant)
    a, b, options = operands(input, other, out, word, precision, accumulate, out_dtype)
    if not is_dynamo_compiling():
        fast_path.remember_options(asked, a.dtype, options)
    activation = _activation(activation)
    if beta is None:
        beta = 1 if residual is not None else 0
    elif residual is None and out is not None and beta != 0:
        residual = out
    if a.dtype == torch.int8 and (activation or any(int(x) != x for x in (alpha, beta))):
        raise ValueError(
            f"activation={activation or None!r}, alpha={alpha}, beta={beta} are not possible for "
            "int8 operands, whose sums are whole numbers; convert the result"
        )
    shape = drop_shape(a, b, input, other)
    bias = _bias(bias, input, other, b, out)
    residual = _residual(residual, input, other, shape)
    ending = bias, residual, activation, float(alpha), float(beta)
    distributed.on_demand()
    if out is None:
        return drop(GEMM(a, b, *ending, *options), input, other)
    check_out(out, [t for t in (input, other, bias, residual) if t is not None], options[-1])
    return _into(out, shape, a, b, input, other, ending, options)


def _known(input, other, ending, out, asked) -> torch.Tensor | None:
    """The result, past torch's dispatcher, of a call of a kind that was made before; else None.

    As of `fast_path.matmul`: nothing may be asked for but the result and its gradients.
    """
    if not fast_path.AVAILABLE or type(input) not in (torch.Tensor, Parameter):
        return None
    options = fast_path.options_of(asked, input.dtype)
    bias, residual, activation, alpha, beta = ending
    if options is None or not isinstance(other, torch.Tensor) or input.dim() < 2 > other.dim():
        return None
    if beta is None:
        beta = 1
    elif residual is None and out is not None and beta != 0:
        residual = out
    more = [t for t in (bias, residual) if t is not None]
    if not all(isinstance(t, torch.Tensor) and fast_path.plain(t) for t in more):
        return None
    if not fast_path.usual(input, other, out):
        return None
    records = fast_path.records(input, other) or any(fast_path.records(t, t) for t in more)
    if records and out is not None:
        return None
    if records and activation:
        linear = _known(input, other, (bias, None, None, alpha, None), None, asked)
        return linear if linear is None else after(linear, activation, residual, beta)
    try:
        then = Ending.made(input, other, bias, residual, activation or "", alpha, beta)
        if not all(fast_path.addresses_of(t, input, out) for t in (other, *more)):
            return None
        key, addresses = kind_of(input, other, out, options, then)
        kind = fast_path.KNOWN.get(key)
    except (RuntimeError, TypeError):  # shapes that don't fit, numbers that are none
        return None
    if kind is None or kind.launches is None or (then and out is not None and then.met_by(out)):
        return None
    if records:
        return record(input, other, bias, residual, kind, then)
    return fast_path.multiply(kind, addresses, out)


def _of_matrices(input, other, **named) -> torch.Tensor:
    """`gemm` as a function of tensors, which `__torch_function__` is told of."""
    rest = [named.pop(name) for name in ("bias", "residual", "activation", "alpha", "beta", "out")]
    return gemm(_of_matrices, input, other, *rest, **named)


def _into(out, shape, a, b, input, other, ending, options) -> torch.Tensor:
    if needs_copy(out, shape, a, b):
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


def _activation(name: str | None) -> str:
    name = name or ""
    if name not in ACTIVATIONS:
        known = ", ".join(filter(None, ACTIVATIONS))
        gated = f"; linear has {' and '.join(GATED)} as well" if name in GATED else ""
        raise ValueError(f"activation={name!r} is unknown; one of {known}{gated}")
    return name


def _bias(bias, input, other, b, out):
    """[N], as the operands are under autocast; or an error."""
    if bias is None:
        return None
    if not isinstance(bias, torch.Tensor):
        raise TypeError(f"bias must be Tensor, not {type(bias).__name__}")
    if out is None:
        bias = autocast(bias)
    n = b.shape[-1]
    vector = other.dim() == 1
    if tuple(bias.shape) not in ([(n,), ()] if vector else [(n,)]):
        raise RuntimeError(
            f"bias has shape {list(bias.shape)}; the result has {n} columns, and a bias of [{n}] "
            "is possible. What has rows of its own is a residual"
        )
    _same_kind("bias", bias, input)
    return bias.reshape(n)


def _residual(residual, input, other, shape):
    """With the dimensions of the operands' product; or an error."""
    if residual is None:
        return None
    if not isinstance(residual, torch.Tensor):
        raise TypeError(f"residual must be Tensor, not {type(residual).__name__}")
    _same_kind("residual", residual, input)
    try:
        whole = torch.broadcast_shapes(residual.shape, shape) == torch.Size(shape)
    except RuntimeError:
        whole = False
    if not whole:
        raise RuntimeError(
            f"residual has shape {list(residual.shape)}, which can't be broadcast to the result's, "
            f"{list(shape)}"
        )
    if other.dim() == 1:
        residual = residual.unsqueeze(-1)
    if input.dim() == 1:
        residual = residual.unsqueeze(-2) if other.dim() > 1 else residual.reshape(1, 1)
    return residual


def _same_kind(name, tensor, input) -> None:
    if tensor.device != input.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {name} is on {tensor.device} "
            f"and input on {input.device}"
        )
    if tensor.layout != torch.strided:
        raise NotImplementedError(f"{name} is {tensor.layout}. Use .to_dense()")
    able = ADDED if input.dtype.is_floating_point else (torch.int32,)
    if tensor.dtype not in able:
        names = ", ".join(str(dtype) for dtype in able)
        raise RuntimeError(f"{name} is {tensor.dtype}; of {input.dtype} operands it may be {names}")
