"""`matmul` and `explain`: torch.matmul's semantics in front of the operators."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function

from . import dispatch, ops, plan
from .config import Config
from .dispatch.request import word_of
from .dtypes import accumulator_type, check_precision, result_type
from .problem import ACCUMULATE, INTERPRETED
from .runtime import fast_path
from .spec import Kernel

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
    kernel: str | Kernel = "auto",
    config: Config | Mapping | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
    accumulate: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Matrix product with `torch.matmul`'s semantics.

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
    asked = (kernel, precision, accumulate, out_dtype, config, batch_invariant)
    if not is_dynamo_compiling():
        result = fast_path.matmul(input, other, out, asked, ops.record)
        if result is not None:
            return result
    elif out is None and not has_torch_function((input, other)):
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
        return _drop(ops.mm(a, b, *options), input, other)
    result = _drop(plan.product(a, b, None, options), input, other)
    plan.learn((input, other, None), (a, b, None), result, options)
    return result


def _whole(input, other, word, precision, accumulate, out_dtype) -> torch.Tensor:
    """All of `matmul` but `out` and the short way, for graphs; made up of differentiable parts."""
    a, b, options = operands(input, other, None, word, precision, accumulate, out_dtype)
    return _drop(ops.mm(a, b, *options), input, other)


for _key in ("CompositeImplicitAutograd", "FuncTorchBatchedDecomposition"):  # vmap: as its parts
    _LIBRARY.impl("matmul", _whole, _key)


def _into(out, a, b, input, other, options) -> torch.Tensor:
    """The product of `a` and `b`, the operands with two dimensions or more, written to `out`."""
    shape = _drop_shape(a, b, input, other)
    _check_out(out, (input, other), options[-1])
    if _needs_copy(out, shape, a, b):
        result = _drop(ops.mm(a, b, *options), input, other)
        _resize(out, shape)
        return out.copy_(result)
    _resize(out, shape)
    target = out
    if other.dim() == 1:
        target = target.unsqueeze(-1)
    if input.dim() == 1:
        target = target.unsqueeze(-2)
    if fast_path.first_of_its_kind(input, other, out):
        plan.product(a, b, target, options)
        plan.learn((input, other, out), (a, b, target), out, options)
    else:
        torch.ops.tritemm.mm_out.default(a, b, *options[:-1], out=target)
    return out


def explain(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    kernel: str | Kernel = "auto",
    config: Config | Mapping | None = None,
    batch_invariant: bool = False,
    precision: str | None = None,
    accumulate: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
) -> dispatch.Choice:
    """What `matmul` would run for these arguments, and why; nothing is launched.

    Prints as a few lines: kernel, config, why, what is packed or swapped, waves, predicted time
    and its parts, roofline, the next candidates, what refused and why.
    Arguments and errors are `matmul`'s. Empty results, and K = 0, need no kernel: ValueError.
    """
    word = word_of(kernel, config, batch_invariant)
    a, b, options = operands(input, other, None, word, precision, accumulate, out_dtype)
    word, precision, accumulate, out_dtype = options
    shape = plan.result_shape(a, b)
    if 0 in shape or a.shape[-1] == 0:
        raise ValueError(f"no kernel runs: the result {shape} with K = {a.shape[-1]} needs none")
    out = torch.empty(shape, dtype=out_dtype, device="meta")
    return dispatch.choose(plan.matrices(a, b, out, precision, accumulate)[0], word)


def operands(input, other, out, word, precision, accumulate, out_dtype):
    """Both operands with at least two dimensions, and the operator's options; or an error."""
    for position, (name, tensor) in enumerate((("input", input), ("other", other)), start=1):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"matmul(): argument '{name}' (position {position}) must be Tensor, "
                f"not {type(tensor).__name__}"
            )
    if out is None:
        input, other = _autocast(input), _autocast(other)
    if input.dim() == 0 or other.dim() == 0:
        raise RuntimeError(
            "both arguments to matmul need to be at least 1D, "
            f"but they are {input.dim()}D and {other.dim()}D"
        )
    _check_devices(input, other)
    _check_types(input, other)
    a = input.unsqueeze(0) if input.dim() == 1 else input
    b = other.unsqueeze(-1) if other.dim() == 1 else other
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(
            f"input {tuple(input.shape)} and other {tuple(other.shape)} cannot be multiplied: "
            f"K is {a.shape[-1]} in one and {b.shape[-2]} in the other"
        )
    if a.dim() > 2 or b.dim() > 2:
        torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # raises torch's RuntimeError
    name = word.partition("/")[0]
    if name != "auto":
        dispatch.find(name)
    check_precision(precision, a.dtype)
    accumulate = accumulator_type(accumulate, a.dtype)
    out_dtype = result_type(out_dtype, a.dtype)
    return a, b, (word, precision, accumulate, out_dtype)


def _autocast(tensor):
    kind = tensor.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def _check_devices(input, other):
    if input.device != other.device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, "
            f"but input is on {input.device} and other on {other.device}"
        )
    kind = input.device.type
    if kind not in ("cuda", "cpu", "meta"):
        raise RuntimeError(f"tritemm multiplies CUDA tensors; input is on {input.device}")
    if kind == "cpu" and not INTERPRETED:
        raise RuntimeError(
            "tritemm multiplies CUDA tensors; input is on cpu. Move it with .cuda(), or set "
            "TRITON_INTERPRET=1 before tritemm is imported to run the kernels, slowly, on the CPU"
        )


def _check_types(input, other):
    for name, tensor in (("input", input), ("other", other)):
        if tensor.layout != torch.strided:
            raise NotImplementedError(
                f"tritemm multiplies dense tensors; {name} is {tensor.layout}. Use .to_dense()"
            )
        if tensor.is_nested:
            raise NotImplementedError(
                f"tritemm multiplies dense tensors; {name} is nested. Use .to_padded_tensor(0)"
            )
    if input.dtype != other.dtype:
        raise RuntimeError(
            "expected input and other to have the same dtype, "
            f"but got: {input.dtype} != {other.dtype}"
        )
    if input.dtype not in ACCUMULATE:
        names = ", ".join(str(dtype) for dtype in ACCUMULATE)
        raise NotImplementedError(
            f"tritemm.matmul is not implemented for {input.dtype}; input may be {names}"
        )


def _drop(result, input, other):
    """Remove the dimensions that 1-D operands were given."""
    if other.dim() == 1:
        result = result.squeeze(-1)
    if input.dim() == 1:
        result = result.squeeze(-1 if other.dim() == 1 else -2)
    return result


def _drop_shape(a, b, input, other):
    *batch, m, n = plan.result_shape(a, b)
    return (*batch, *([] if input.dim() == 1 else [m]), *([] if other.dim() == 1 else [n]))


def _check_out(out, inputs, dtype) -> None:
    """Refuse an `out` that torch refuses, whatever its shape."""
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"matmul(): argument 'out' must be Tensor, not {type(out).__name__}")
    if torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, out)):
        raise RuntimeError(
            "matmul(): functions with out=... arguments don't support automatic differentiation, "
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


def _resize(out, shape) -> None:
    """Give `out` the result's shape, with torch's warning; refuse one whose elements overlap."""
    if tuple(out.shape) != shape:
        if out.numel():
            warnings.warn(
                f"out was resized: it had shape {list(out.shape)}, the result has {list(shape)}. "
                "torch deprecates this; resize out to 0 elements first to reuse its memory",
                stacklevel=4,
            )
        out.resize_(shape)
    if any(size > 1 and stride == 0 for size, stride in zip(out.shape, out.stride(), strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of out refers to a single memory "
            "location. Please clone() out before calling matmul"
        )


def _needs_copy(out, shape, a, b) -> bool:
    """Whether the result must be whole before `out` is touched.

    An operand must be read before its own tensor is given another shape; and a tensor that only
    stands for the negative of its memory is torch's to write.
    """
    if torch.compiler.is_dynamo_compiling():  # neither can be asked; torch traces around both
        return False
    return out.is_neg() or (
        tuple(out.shape) != shape and any(torch._C._is_alias_of(out, t) for t in (a, b))
    )
