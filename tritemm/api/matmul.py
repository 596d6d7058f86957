"""`matmul` and `explain`: torch.matmul's semantics in front of the operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from .. import dispatch, plan
from ..arch import gpus
from ..dispatch.request import word_of
from ..dtypes import Precision, check_ending
from ..op import distributed, ops
from ..problem import Activation, Device
from ..problem.config import Config
from ..rungs import Rung
from ..runtime import fast_path
from ..runtime.torch_private import implement, unframed
from ..spec import Kernel
from .arguments import (
    NUMBERS,
    check_dense,
    check_out,
    drop,
    drop_shape,
    needs_copy,
    operands,
    resize,
)
from .gemm import activation_of, gemm, known

_LIBRARY = torch.library.Library("tritemm", "FRAGMENT")
_LIBRARY.define(
    "matmul(Tensor input, Tensor other, str kernel, str? precision, ScalarType? accumulate, "
    "ScalarType? out_dtype) -> Tensor"
)
_MATMUL = torch.ops.tritemm.matmul.default


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
) -> torch.Tensor:
    """Matrix product with `torch.matmul`'s semantics, and what follows it in the same kernel.

    That is activation(alpha * input @ other + bias) + beta * residual.

    Args:
        input: 1-D to N-D tensor, [..., M, K]. Types: float16, bfloat16, float32, float64, int8.
        other: 1-D to N-D tensor of the same type and device, [..., K, N]. Batch dimensions
            broadcast. Strides are free: views are read in place.
        out: tensor to write the result to; resized, with torch's warning, if its shape differs.
        kernel: "auto", or a rung of `tritemm.ladder()` or its name, which then runs or raises.
        config: the config of the `kernel` that is named: a `tritemm.Config` or a mapping of its
            fields, {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "num_warps": 8, ...}.
        batch_invariant: row i of the result has the same bits however many rows and batches
            there are. Also holds for the gradient with respect to `input`.
        precision: how float32 is multiplied: "ieee", "tf32", "tf32x3", "bf16x3" or "bf16x6".
            None follows `torch.backends.cuda.matmul.fp32_precision`.
        accumulate: float32 (default) or float16 for float16 operands. Others have one choice.
        out_dtype: type of the result: by default the operands', int32 for int8. 16-bit and
            float32 operands may ask for float16, bfloat16 or float32.
        bias: [N], added to each row; or [] or [1], a number that is added to all.
        activation: "relu", "gelu" (by the error function), "gelu_tanh" or "silu"; or "swiglu" or
            "geglu", activation(gate) * up of the first and the second half of columns, of which
            the result has half as many: see `linear`.
        residual: what is added last; broadcastable to the result's shape.
        alpha, beta: factors of the product and of the residual. With `out` and no residual, `beta`
            is that of what `out` holds: `matmul(a, b, out=c, beta=1)` adds to it.

    Returns:
        A contiguous tensor, [..., M, N]; dimensions are dropped for 1-D operands as torch does.

    Raises:
        RuntimeError, TypeError, NotImplementedError: where torch.matmul raises them.
        ValueError: an option that this type or problem can't have, with what can.

    It is differentiable, forwards and backwards, to any order.
    Autocast, torch.compile, torch.func.vmap and FlopCounterMode treat it as they treat matmul.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 3, dtype=torch.float16, device=device)
    >>> tritemm.matmul(a, a.mT).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    alone = bias is activation is residual is beta is None
    alone = alone and type(alpha) in NUMBERS and alpha == 1
    if not is_dynamo_compiling():
        asked = (kernel, precision, accumulate, out_dtype, config, batch_invariant)
        if alone:
            result = fast_path.matmul(input, other, out, asked, ops.record)
        else:
            ending = bias, residual, activation, alpha, beta
            result = known(input, other, ending, out, asked)
        if result is not None:
            return result
    if not alone:
        tensors = tuple(t for t in (input, other, bias, residual, out) if t is not None)
        if has_torch_function(tensors):
            return handle_torch_function(
                matmul, tensors, input, other, out=out, kernel=kernel, config=config,
                batch_invariant=batch_invariant, precision=precision, accumulate=accumulate,
                out_dtype=out_dtype, bias=bias, activation=activation, residual=residual,
                alpha=alpha, beta=beta,
            )  # fmt: skip
        return gemm(
            input, other, bias, residual, activation, alpha, beta, out,
            kernel, config, batch_invariant, precision, accumulate, out_dtype,
        )  # fmt: skip
    if is_dynamo_compiling() and out is None and not has_torch_function((input, other)):
        # One node of the graph, for which few things have to be looked at before each call of it.
        word = word_of(kernel, config, batch_invariant)
        return _MATMUL(input, other, word, precision, accumulate, out_dtype)
    tensors = (input, other) if out is None else (input, other, out)
    if has_torch_function(tensors):
        return handle_torch_function(
            matmul, tensors, input, other, out=out, kernel=kernel, config=config,
            batch_invariant=batch_invariant, precision=precision, accumulate=accumulate,
            out_dtype=out_dtype,
        )  # fmt: skip
    word = word_of(kernel, config, batch_invariant)
    a, b, options = operands(input, other, out, word, precision, accumulate, out_dtype)
    if not is_dynamo_compiling():
        fast_path.remember_options(asked, a.dtype, options)
    if out is not None:
        return _into(out, a, b, input, other, options)
    if not fast_path.first_of_its_kind(input, other, None) or fast_path.records(a, b):
        return drop(ops.mm(a, b, *options), input, other)
    result = drop(plan.product(a, b, None, options), input, other)
    plan.learn((input, other, None), (a, b, None), result, options)
    return result


def _whole(input, other, word, precision, accumulate, out_dtype) -> torch.Tensor:
    """All of `matmul` but `out` and the short way, for graphs; made up of differentiable parts."""
    asked = word, precision, accumulate, out_dtype
    a, b, options = operands(input, other, None, *asked, compiled=True)
    return drop(ops.mm(a, b, *options), input, other)


# Under vmap as its parts.
implement(_LIBRARY, "matmul", _whole, "CompositeImplicitAutograd", "FuncTorchBatchedDecomposition")


@unframed
def _into(out, a, b, input, other, options) -> torch.Tensor:
    """The product of `a` and `b`, the operands with two dimensions or more, written to `out`."""
    shape = drop_shape(a, b, input, other)
    check_out(out, (input, other), options[-1])
    if needs_copy(out, shape, a, b):
        result = drop(ops.mm(a, b, *options), input, other)
        resize(out, shape)
        return out.copy_(result)
    resize(out, shape)
    target = out
    if other.dim() == 1:
        target = target.unsqueeze(-1)
    if input.dim() == 1:
        target = target.unsqueeze(-2)
    if fast_path.first_of_its_kind(input, other, out):
        plan.product(a, b, target, options)
        plan.learn((input, other, out), (a, b, target), out, options)
    else:
        distributed.on_demand()
        torch.ops.tritemm.mm_out.default(a, b, *options[:-1], out=target)
    return out


def explain(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    kernel: Rung | Kernel = "auto",
    config: Config | Mapping | None = None,
    batch_invariant: bool = False,
    precision: Precision | None = None,
    accumulate: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    activation: Activation | None = None,
    device: str | int | torch.device | None = None,
) -> dispatch.Choice:
    """What `matmul` would run for these arguments, and why; nothing is launched.

    Prints as a few lines: kernel, config, why, what is packed or swapped, waves, predicted time
    and its parts, roofline, the next candidates, what refused and why. Where torch's kernels make
    the activation, it is of the product before them, and `why` says so.
    Arguments and errors are `matmul`'s. Empty results, and K = 0, need no kernel: ValueError.

    `device` is where it would run, the operands' unless it is given: a GPU that need not be here,
    "H100" or by its architecture "sm_90", or a device of torch's, "cuda:1". Of the operands, sizes,
    strides and types count then; they may be on any device, also on meta, where they take no room.
    ValueError if there is none of that name, with those that are known.

    >>> import torch, tritemm
    >>> x, w = (torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta") for _ in range(2))
    >>> tritemm.explain(x, w.mT, device="A100").problem.device.name
    'NVIDIA A100'
    """
    if device is not None:
        device = _device_of(device)
        input, other = _without_data("input", input), _without_data("other", other)
    word = word_of(kernel, config, batch_invariant)
    a, b, options = operands(input, other, None, word, precision, accumulate, out_dtype, "explain")
    word, precision, accumulate, out_dtype = options
    activation = activation_of(activation, b)
    check_ending(a.dtype, activation)
    shape = plan.result_shape(a, b, activation)
    if 0 in shape or a.shape[-1] == 0:
        raise ValueError(f"no kernel runs: the result {shape} with K = {a.shape[-1]} needs none")
    out = torch.empty(shape, dtype=out_dtype, device="meta")
    ending = plan.Ending.made(a, b, None, None, activation)
    problem = plan.matrices(a, b, out, precision, accumulate, ending)[0]
    if device is not None:
        problem = dataclasses.replace(problem, device=device)
    return dispatch.first_choice(problem, word)


def _device_of(device: str | int | torch.device) -> Device:
    """One of torch's, or one that need not be here."""
    if isinstance(device, str) and device.partition(":")[0] in ("cpu", "cuda"):
        device = torch.device(device)
    return Device.of(device) if isinstance(device, torch.device) else gpus.named(device)


def _without_data(name: str, t: torch.Tensor) -> torch.Tensor:
    """A tensor like `t` on meta. What is no tensor is handed on, for `operands` to refuse."""
    if not isinstance(t, torch.Tensor):
        return t
    check_dense(name, t)
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
