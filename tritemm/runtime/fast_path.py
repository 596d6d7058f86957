"""The path around torch's dispatcher, which takes longer than a small product.

Calls take it if nothing but the product, and the recording of its gradient, has to happen: plain
CUDA tensors of a kind that was multiplied before, no mode, no transform, no autocast, no tracing,
no profiler. All other calls go through the operator, where torch sees them: `torch.profiler` shows
`tritemm::gemm`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from ..problem import NOTHING, EpilogueInputs
from . import triton_private
from .bounded import Bounded
from .launches import Launches
from .torch_private import below_autograd_now as _below_autograd
from .torch_private import compute_requires_grad as _requires_grad
from .torch_private import dispatch_modes as _dispatch_modes
from .torch_private import empty_strided as _empty
from .torch_private import private as _private
from .torch_private import profiling as _profiling
from .torch_private import tracing_before_dispatch as _before_dispatch
from .torch_private import transform as _transform
from .torch_private import untraced as _untraced

#: The most kinds to remember.
KINDS = 4096

#: Two operands and the result, if there is one.
Triple = tuple[Any, Any, Any]

#: The types of tensors that consist of nothing but their memory.
PLAIN = (torch.Tensor, torch.nn.Parameter)

_grad_enabled = torch.is_grad_enabled
_autocast = torch.is_autocast_enabled
_inference = torch.is_inference_mode_enabled
_function_mode = _private("_is_torch_function_mode_enabled")
_tracing = _private("_is_tracing")
_fp32_precision = _private("_get_fp32_precision_getter") or (
    lambda backend, operator: torch.backends.cuda.matmul.fp32_precision
)
_count_write = _private("_increment_version")
_device = _private("_cuda_getDevice")
#: Whether torch has all the names that this module needs; if not, the operator runs every call.
AVAILABLE = None not in (
    _function_mode, _dispatch_modes, _before_dispatch, _transform, _tracing, _count_write, _device,
    _empty,
)  # fmt: skip


class Kind:
    """What is known of a kind of product: how its result is stored, and what it launches.

    `size`, `stride` and `dtype` are the result's; `spans` are the bytes from the first element to
    the end of the last, for a, b and the result. `launches` is None if Triton itself must launch.
    A product made `apart` is a kind of its own, whose activation torch computes.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    spans: tuple[int, int, int]
    launches: Launches | Any
    apart: bool
    #: Whether the result may be written twice, so that it can't also be the residual.
    twice = False

    def dropped(self, size: tuple[int, ...], stride: tuple[int, ...]) -> Kind:
        """The same with a result of fewer dimensions."""
        other = copy.copy(self)
        other.size, other.stride = size, stride
        return other


#: Addresses of a, b, the result and the epilogue's inputs; and the epilogue's factors.
Addresses = tuple[Any, ...]
#: A kind that has launches, and which two of some addresses it multiplies.
Step = tuple[Kind, int, int]
#: Kinds, by the keys of `kind_of`.
KNOWN: dict[tuple, Kind] = Bounded(KINDS)
#: All options of a `matmul` call, and the operands' type -> the operator's options.
OPTIONS: dict[tuple, tuple] = Bounded(KINDS)


def kind_of(a, b, out, options: tuple, then: EpilogueInputs = NOTHING) -> tuple[tuple, Addresses]:
    """The key of a call's kind, all that decides what runs; and what a launch of it takes.

    The latter are the addresses and the factors of `then`. `options`: kernel, precision,
    accumulator and result type, as the operator takes them.
    """
    first, second, third = a.data_ptr(), b.data_ptr(), 0
    dtype = a.dtype
    follows = dtype is torch.float32 and options[1] is None
    key: tuple = (
        a.shape, a.stride(), b.shape, b.stride(), dtype, b.dtype, first & 15, second & 15,
        a.get_device(), b.get_device(), options,
        _fp32_precision("cuda", "matmul") if follows else None,
    )  # fmt: skip
    if out is not None:
        third = out.data_ptr()
        key = (key, out.shape, out.stride(), out.dtype, third & 15, out.get_device())
    if then is NOTHING:
        return key, (first, second, third)
    return (key, then.key()), (first, second, third, *then.read())


@_untraced
def learn(
    asked: tuple, options: tuple, called: Triple | None, prepared: Triple, result
) -> None:  # fmt: skip
    """Remember that `asked`, for operands of this type, leads to these `options`.

    And remember products of 1-D operands like the products made of them. `called` are input, other
    and out as the caller passed them, or None if there was an epilogue; `prepared` are the same as
    they were multiplied, with at least two dimensions. `result` is the caller's.
    """
    with contextlib.suppress(TypeError):  # an unhashable config
        OPTIONS[asked, prepared[0].dtype] = options
    if called is None or min(t.dim() for t in called[:2]) > 1:
        return
    if not AVAILABLE or not usual(*called):
        return
    kind = KNOWN.get(kind_of(*prepared, options)[0])
    if kind is not None:
        kind = kind.dropped(tuple(result.shape), result.stride())
        KNOWN[kind_of(*called, options)[0]] = kind


def available() -> bool:
    """Whether the fast path is possible at all. Under torch.compile this is a constant, False."""
    return AVAILABLE and not is_dynamo_compiling()


def recording() -> bool:
    """Whether autograd records what happens to tensors that require grad.

    In inference mode, and below autograd in the dispatcher, it doesn't, whatever grad mode says.
    """
    return _grad_enabled() and not _below_autograd()


def usual(a, b, out) -> bool:
    """Whether nothing but the product, and recording its gradient, may happen in this call."""
    return (  # of other objects than plain tensors, only the type is read
        type(a) in PLAIN
        and type(b) in PLAIN
        and not a.is_neg()
        and not b.is_neg()
        and not _function_mode()
        and not _dispatch_modes()
        and not _before_dispatch()
        and _transform() is None
        and not _tracing()
        and not _autocast()
        and not _profiling()
        and forward_ad._current_level < 0
        and (out is None or usual_out(out))
    )


def plain(t) -> bool:
    """Whether the tensor consists of nothing but its memory."""
    return type(t) in PLAIN and not t.is_neg()


def unwatched(a, b, others: Sequence, out=None) -> bool:
    """Whether an operator on these tensors, two or more, would reach its kernels at once, and
    nobody watches it or needs a gradient."""
    if is_dynamo_compiling() or not AVAILABLE or not usual(a, b, out):
        return False
    tensors = [t for t in (a, b, *others) if t is not None]
    try:
        memory = all(plain(t) and t.data_ptr() for t in tensors)
    except RuntimeError:  # a vmapped batch, or symbolic zeros
        return False
    return memory and not _requires_grad(*tensors)


def check_writable(out) -> None:
    """Raise torch's error if `out` was created in inference mode, and that has ended."""
    if out.is_inference() and not _inference():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed: "
            "out was made in inference mode. Use out.clone()"
        )


def usual_out(out) -> bool:
    """Whether `out` may be written to, with its version counted, like any tensor."""
    return (
        plain(out)
        and not (out.requires_grad and _grad_enabled())
        and (_inference() or not out.is_inference())
    )


def multiply(kind: Kind, addresses: Addresses, out) -> torch.Tensor | None:
    """The product of the operands at the first two addresses, of a `kind` that has launches.

    After the result's address come those of its epilogue's inputs, which don't overlap it, and its
    factors. None if the launches can't be used: Triton has a hook, or `out` overlaps an operand.
    """
    launches = kind.launches
    if not triton_private.plain() or (out is not None and overlap(addresses[:3], kind.spans)):
        return None
    if kind.twice and addresses[2] in addresses[3:]:
        return None
    if _device() != launches.device:
        with torch.cuda.device(launches.device):
            return multiply(kind, addresses, out)
    if out is None:
        first, second, _, *more = addresses
        out = _empty(kind.size, kind.stride, kind.dtype)
        launches((first, second, out.data_ptr(), *more))
        return out
    launches(addresses)
    _count_write((out,))
    return out


def multiply_each(
    device: int, steps: Sequence[Step | None], addresses: Sequence[int]
) -> list[torch.Tensor | None] | None:
    """The product of each step, None for none; None, as in `multiply`, if they can't be made.

    `device` is the one that holds all of them.
    """
    if _device() != device or not triton_private.plain():
        return None
    made: list[torch.Tensor | None] = []
    for step in steps:
        out = None
        if step is not None:  # inlined: autograd's thread has little of this in its caches
            kind, first, second = step
            out = _empty(kind.size, kind.stride, kind.dtype)
            kind.launches((addresses[first], addresses[second], out.data_ptr()))
        made.append(out)
    return made


def write(kind: Kind | None, addresses: Addresses) -> bool:
    """Write the product to the third address, which overlaps no operand; False if impossible."""
    if kind is None or kind.launches is None or not triton_private.plain():
        return False
    if kind.twice and addresses[2] in addresses[3:]:
        return False
    if _device() != kind.launches.device:
        return False
    kind.launches(addresses)
    return True


def overlap(addresses: tuple[int, int, int], spans: tuple[int, int, int]) -> bool:
    """Whether the result's bytes overlap those of an operand; for a, b and the result."""
    first, second, start = addresses
    end = start + spans[2]
    return (start < first + spans[0] and first < end) or (
        start < second + spans[1] and second < end
    )
