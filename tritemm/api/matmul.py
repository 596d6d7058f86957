"""`matmul`: torch.matmul's semantics and the epilogue's options, in front of the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from ..dispatch.request import word_of
from ..dtypes import Precision
from ..op.derivatives import repeated
from ..op.gemm import gemm
from ..problem import NOTHING, Activation
from ..problem.config import Config
from ..rungs import Rung
from ..runtime import fast_path
from ..runtime.operators import define, implement
from ..runtime.sizes import fits
from ..runtime.torch_private import unframed, untraced
from ..spec import Kernel
from .arguments import operands
from .epilogue import NUMBERS, checked, unchecked
from .result import check_out, drop, needs_copy, raised, resized

_MATMUL = define(
    "matmul(Tensor input, Tensor other, str kernel, str? precision, ScalarType? accumulate, "
    "ScalarType? out_dtype) -> Tensor"
)


def matmul(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    kernel: Rung | Kernel = "auto",
    config: Config | Mapping | None = None,
    batch_invariant: bool = False,
    precision: Precision | None = None,
    accumulate: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    bias: torch.Tensor | None = None,
    activation: Activation | None = None,
    residual: torch.Tensor | None = None,
    alpha: float = 1,
    beta: float | None = None,
    symmetric: bool = False,
) -> torch.Tensor:
    """Matrix product with `torch.matmul`'s semantics, and an epilogue in the same kernel.

    Returns activation(alpha * input @ other + bias) + beta * residual.

    Args:
        input: 1-D to N-D tensor, [..., M, K]. Types: float16, bfloat16, float32, float64, int8.
        other: 1-D to N-D tensor of the same type and device, [..., K, N]. Batch dimensions
            broadcast. Strides are free: views are read in place.
        out: tensor for the result; resized, with torch's warning, if its shape differs.
        kernel: "auto", or a rung of `tritemm.ladder()` or its name; that rung then runs or raises.
        config: the config of that `kernel`: a `tritemm.Config` or a mapping of its fields,
            {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8, ...}.
        batch_invariant: row i of the result has the same bits however many rows and batches
            there are. The same holds for the gradient of `input`.
        precision: how float32 is multiplied: "ieee", "tf32", "bf16x3", "tf32x3", "bf16x6" or
            "bf16x9"; None follows `torch.backends.cuda.matmul.fp32_precision`. For float32 and
            float64: "ieee", "int8" (int8 tensor cores, with as many moduli as the type needs), or
            "int8x5" to "int8x16", with that many moduli.
        accumulate: float32 (default) or float16 for float16 operands; other types have one choice.
        out_dtype: type of the result: by default the operands', int32 for int8. For 16-bit and
            float32 operands float16, bfloat16 or float32.
        bias: [N], added to each row; or one number, [] or [1], added to every element.
        activation: "relu", "gelu" (by the error function), "gelu_tanh" or "silu"; or gated, which
            halves the columns: "swiglu" or "geglu"; see `linear`.
            the result has half as many: see `linear`.
        residual: added last; broadcastable to the result's shape.
        alpha, beta: factors of the product and of the residual. With `out` and no residual, `beta`
            is the factor of what `out` holds: `matmul(a, b, out=c, beta=1)` adds to c.
        symmetric: True if the caller knows that the result is symmetric, as for a @ a.mT, or for
            symmetric matrices that commute; a residual must be symmetric too. The part above the
            diagonal is then copied from the part below, bit by bit, instead of computed.
            Derivatives are those of the product.

    Returns:
        A contiguous tensor, [..., M, N]; 1-D operands drop dimensions as in torch.

    Raises:
        RuntimeError, TypeError, NotImplementedError: where torch.matmul raises them.
        ValueError: an option that this type or problem doesn't allow, and what it allows.

    It is differentiable, forwards and backwards, to any order.
    Autocast, torch.compile, torch.func.vmap and FlopCounterMode treat it as they treat matmul.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 3, dtype=torch.float16, device=device)
    >>> tritemm.matmul(a, a.mT).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    given = bias, activation, residual, alpha, beta, symmetric
    nothing = bias is activation is residual is beta is None and symmetric is False
    plain = nothing and type(alpha) in NUMBERS and alpha == 1
    asked = kernel, config, batch_invariant, precision, accumulate, out_dtype
    if not is_dynamo_compiling():
        result = _known(input, other, None if plain else given, out, asked)
        if result is not None:
            return result
    tensors = tuple(t for t in (input, other, bias, residual, out) if t is not None)
    if has_torch_function(tensors):
        named: dict[str, Any] = dict(zip(_NAMED, (out, *asked, *given), strict=True))
        return handle_torch_function(matmul, tensors, input, other, **named)
    if is_dynamo_compiling() and plain and out is None:
        # One node of the graph, so that few guards run before each call.
        word = word_of(kernel, config, batch_invariant)
        return _MATMUL(input, other, word, precision, accumulate, out_dtype)
    return _multiplied(input, other, None if plain else given, out, asked)


#: What may be passed by name: the result, the options, and the epilogue.
DEFAULTS: Any = matmul.__kwdefaults__
_NAMED = tuple(DEFAULTS)


@untraced
def _known(input, other, given: tuple | None, out, asked: tuple) -> torch.Tensor | None:
    """The result of a call of a known kind, without torch's dispatcher; None for any other call.

    `given` is bias, activation, residual, alpha, beta and symmetric, or None if there is no
    epilogue; `asked` is kernel, config, batch_invariant, precision, accumulator and result type.
    Not for compiled code.
    """
    if not fast_path.AVAILABLE or not fast_path.usual(input, other, out):
        return None
    try:
        options = fast_path.OPTIONS.get((asked, input.dtype))
    except TypeError:  # unhashable options
        return None
    if options is None:
        return None
    inputs = (NOTHING, None, None) if given is None else unchecked(given, input, other, out)
    if inputs is None:
        return None
    then, bias, residual = inputs
    return repeated(input, other, out, options, then, bias, residual)


@unframed
def _multiplied(input, other, given: tuple | None, out, asked: tuple) -> torch.Tensor:
    """The result of any other call: checks everything, then calls the operator."""
    a, b, options = operands(input, other, out, (word_of(*asked[:3]), *asked[3:]))
    shape, then = checked(given, a, b, input, other, out)
    target = None
    if out is not None:
        tensors = [input, other, *then.tensors]
        check_out(out, tensors, options[-1])
        fitting = fits(out.shape, shape)
        if not needs_copy(out, fitting, tensors):
            result = resized(out, shape, fitting)
            target = raised(result, input, other)
    product = gemm(a, b, then, options, out=target)
    if target is None:
        result = drop(product, input, other)
        if out is not None:
            result = resized(out, shape, fitting).copy_(result)
    if not is_dynamo_compiling():
        called = (input, other, out) if given is None else None
        fast_path.learn(asked, options, called, (a, b, None if out is None else product), result)
    return result


def _whole(input, other, word, precision, accumulate, out_dtype) -> torch.Tensor:
    """A plain product, for graphs, made of differentiable parts, under vmap too."""
    asked = word, precision, accumulate, out_dtype
    a, b, options = operands(input, other, None, asked, compiled=True)
    return drop(gemm(a, b, NOTHING, options), input, other)


implement(_MATMUL, _whole, "CompositeImplicitAutograd", "FuncTorchBatchedDecomposition")
