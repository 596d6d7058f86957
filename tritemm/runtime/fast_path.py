"""The way around torch's dispatcher, which costs more than a small product takes.

It is taken by calls in which nothing but the product happens, and its gradient is recorded: plain
CUDA tensors of a kind that was multiplied before, no mode, no transform, no autocast, no tracing,
no profiler. All others go through the operator, where torch sees them: `torch.profiler` shows
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

#: Kinds that are remembered.
KINDS = 4096

#: Two operands and the result, where there is one.
Triple = tuple[Any, Any, Any]

#: The types of tensors that are what their memory says.
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
#: Whether torch has all the names that this module needs; where not, the operator does all.
AVAILABLE = None not in (
    _function_mode, _dispatch_modes, _before_dispatch, _transform, _tracing, _count_write, _device,
    _empty,
)  # fmt: skip


class Kind:
    """What is known of a kind of product: how its result lies, and what it launches.

    `size`, `stride` and `dtype` are those of the result; `spans` are the bytes from the first
    element to the end of the last, of a, b and the result. `launches` is None where each launch is
    Triton's own. One that is made `apart` is a kind of its own, whose activation is torch's.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    spans: tuple[int, int, int]
    launches: Launches | Any
    apart: bool
    #: Whether the result may be written twice, so that it can't be the residual.
    twice = False

    def dropped(self, size: tuple[int, ...], stride: tuple[int, ...]) -> Kind:
        """The same with a result of fewer dimensions."""
        other = copy.copy(self)
        other.size, other.stride = size, stride
        return other


#: Those of a, b and the result, and of what the epilogue reads; and its factors.
Addresses = tuple[Any, ...]
#: A kind that has launches, and which two of some addresses it multiplies.
Step = tuple[Kind, int, int]
#: By the keys of `kind_of`.
KNOWN: dict[tuple, Kind] = Bounded(KINDS)
#: All that a caller of `matmul` asked for, and the operands' type -> the operator's options.
OPTIONS: dict[tuple, tuple] = Bounded(KINDS)


def kind_of(a, b, out, options: tuple, then: EpilogueInputs = NOTHING) -> tuple[tuple, Addresses]:
    """The key of a call's kind, all that decides what runs; and what a launch of it takes.

    The second is the addresses and the factors of `then`. `options`: kernel, precision, accumulator
    and result type, as the operator takes them.
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
    """Let `options` be known to follow from what was `asked`, of operands of this type.

    And let products of 1-D operands be known as those are that have been made of them. `called` are
    input, other and out as a caller gave them, or None if more than a product was asked for;
    `prepared` the same as they were multiplied, with two dimensions at least. `result` is what the
    caller gets.
    """
    with contextlib.suppress(TypeError):  # a config that can't be a key
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
    """Whether this way can be taken at all. Under torch.compile that is a constant: it can't."""
    return AVAILABLE and not is_dynamo_compiling()


def recording() -> bool:
    """Whether autograd records what happens to tensors that require grad.

    In inference mode, and below autograd in the dispatcher, it doesn't, whatever grad mode says.
    """
    return _grad_enabled() and not _below_autograd()


def usual(a, b, out) -> bool:
    """Whether nothing but the product, and recording its gradient, may happen in this call."""
    return (  # what is no plain tensor is asked for nothing but its type
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
    """Whether the tensor is what its memory says."""
    return type(t) in PLAIN and not t.is_neg()


def unwatched(a, b, others: Sequence, out=None) -> bool:
    """Whether an operator on these tensors, two of them and more, would come to its kernels at
    once, and nobody watches it or wants a gradient."""
    if is_dynamo_compiling() or not AVAILABLE or not usual(a, b, out):
        return False
    tensors = [t for t in (a, b, *others) if t is not None]
    try:
        memory = all(plain(t) and t.data_ptr() for t in tensors)
    except RuntimeError:  # of a batch, or nothing but zeros
        return False
    return memory and not _requires_grad(*tensors)


def check_writable(out) -> None:
    """Raise torch's error where `out` was made in inference mode, and that has ended."""
    if out.is_inference() and not _inference():
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed: "
            "out was made in inference mode. Take out.clone()"
        )


def usual_out(out) -> bool:
    """Whether `out` may be written to, and its write counted, as any tensor."""
    return (
        plain(out)
        and not (out.requires_grad and _grad_enabled())
        and (_inference() or not out.is_inference())
    )


def multiply(kind: Kind, addresses: Addresses, out) -> torch.Tensor | None:
    """The product of what lies at the first two addresses, of a `kind` that has launches.

    After the result's come those of what its epilogue reads, which don't meet it, and its factors.
    None where they can't be used: under a hook of Triton's, or `out` overlaps an operand.
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
    """The product of each step, None for none; None, as `multiply`, where they can't be made.

    `device` is the one on which all of them lie.
    """
    if _device() != device or not triton_private.plain():
        return None
    made: list[torch.Tensor | None] = []
    for step in steps:
        out = None
        if step is not None:  # written out: autograd's thread has little of this in its caches
            kind, first, second = step
            out = _empty(kind.size, kind.stride, kind.dtype)
            kind.launches((addresses[first], addresses[second], out.data_ptr()))
        made.append(out)
    return made


def write(kind: Kind | None, addresses: Addresses) -> bool:
    """Write the product to the third address, which no operand meets; False if it can't be."""
    if kind is None or kind.launches is None or not triton_private.plain():
        return False
    if kind.twice and addresses[2] in addresses[3:]:
        return False
    if _device() != kind.launches.device:
        return False
    kind.launches(addresses)
    return True


def overlap(addresses: tuple[int, int, int], spans: tuple[int, int, int]) -> bool:
    """Whether the result's bytes meet those of an operand; of a, b and the result."""
    first, second, start = addresses
    end = start + spans[2]
    return (start < first + spans[0] and first < end) or (
        start < second + spans[1] and second < end
    )
