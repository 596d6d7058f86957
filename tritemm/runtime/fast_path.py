"""The way around torch's dispatcher, which costs more than a small product takes.

It is taken by calls in which nothing but the product happens, and its gradient is recorded: plain
CUDA tensors of a kind that was multiplied before, no mode, no transform, no autocast, no tracing,
no profiler. All others go through the operators of `ops.py`, where torch sees them. So do calls
under `torch.profiler`, which therefore shows `tritemm::mm`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from . import triton_private
from .bounded import Bounded
from .launches import Launches
from .torch_private import below_autograd_now as _below_autograd
from .torch_private import dispatch_modes as _dispatch_modes
from .torch_private import empty_strided as _empty
from .torch_private import private as _private
from .torch_private import profiling as _profiling
from .torch_private import tracing_before_dispatch as _before_dispatch
from .torch_private import transform as _transform
from .torch_private import untraced as _untraced

#: Kinds that are remembered.
KINDS = 4096

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
#: Whether torch has all the names that this module needs; where not, `ops.py` does all the work.
AVAILABLE = None not in (
    _function_mode, _dispatch_modes, _before_dispatch, _transform, _tracing, _count_write, _device,
    _empty,
)  # fmt: skip


class Kind(Protocol):
    """What is known of a kind of product: how its result lies, and what it launches.

    `size`, `stride` and `dtype` are those of the result; `spans` are the bytes from the first
    element to the end of the last, of a, b and the result. `launches` is None where each launch is
    Triton's own.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    spans: tuple[int, int, int]
    launches: Launches | None


#: A kind that has launches, and which two of some addresses it multiplies.
Step = tuple[Kind, int, int]
#: By `key_of`.
KNOWN: dict[tuple, Kind] = Bounded(KINDS)
#: All that a caller of `matmul` asked for, and the operands' type -> the operator's options.
_OPTIONS: dict[tuple, tuple] = Bounded(KINDS)


@_untraced
def remember_options(asked: tuple, dtype: torch.dtype, options: tuple) -> None:
    """Have `options`, which follow from what was asked for operands of `dtype`."""
    with contextlib.suppress(TypeError):  # a config that can't be a key
        _OPTIONS[asked, dtype] = options


@_untraced
def matmul(a, b, out, asked: tuple, record: Callable[..., torch.Tensor]) -> torch.Tensor | None:
    """`product` for a caller who asked for that much: all arguments that decide the result.

    Not under torch.compile.
    """
    if not AVAILABLE or type(a) not in PLAIN:  # others are asked for nothing, not their type
        return None
    options = options_of(asked, a.dtype)
    return None if options is None else _product(a, b, out, options, record)


def options_of(asked: tuple, dtype: torch.dtype) -> tuple | None:
    """What `remember_options` was told."""
    try:
        return _OPTIONS.get((asked, dtype))
    except TypeError:  # odd options
        return None


def product(a, b, out, options: tuple, record: Callable[..., torch.Tensor]) -> torch.Tensor | None:
    """The product of `a` and `b`, which is `out` if given; None if it can't be made this way.

    `options`: kernel, precision, accumulator and result type, as the operators take them.
    `record(a, b, kind)` makes it where a gradient is to be recorded.
    Checks nothing but what may differ between calls of one kind: the first one was checked.
    """
    return _product(a, b, out, options, record) if available() else None


@_untraced
def _product(a, b, out, options: tuple, record: Callable[..., torch.Tensor]) -> torch.Tensor | None:
    try:
        if not usual(a, b, out):
            return None
        addresses = addresses_of(a, b, out)
        kind = addresses and KNOWN.get(key_of(a, b, out, addresses, options))
    except (AttributeError, TypeError, RuntimeError):  # no tensors, or nested ones: no shape
        return None
    if kind is None or kind.launches is None:
        return None
    if records(a, b):
        return record(a, b, kind) if out is None and a.dim() > 1 < b.dim() else None
    return multiply(kind, addresses, out)


def available() -> bool:
    """Whether this way can be taken at all. Under torch.compile that is a constant: it can't."""
    return AVAILABLE and not is_dynamo_compiling()


def first_of_its_kind(a, b, out) -> bool:
    """Whether the next product of this kind may be made by `matmul`, once it is known."""
    if not available():
        return False
    return usual(a, b, out) and on_gpu(a, b) and addresses_of(a, b, out) is not None


def addresses_of(a, b, out) -> tuple[int, int, int] | None:
    """Those of a, b and out, 0 without one; None of tensors that only stand for memory.

    Such are zeros that nobody has written, and what a transform leaves behind or hands in.
    """
    try:
        first, second = a.data_ptr(), b.data_ptr()
        third = 0 if out is None else out.data_ptr()
    except RuntimeError:
        return None
    return (first, second, third) if first and second else None


def on_gpu(a, b) -> bool:
    return a.is_cuda and b.is_cuda


def records(a, b) -> bool:
    """Whether autograd records what happens to `a` and `b`."""
    return (a.requires_grad or b.requires_grad) and recording()


def recording() -> bool:
    """Whether autograd records what happens to tensors that require grad.

    In inference mode, and below autograd in the dispatcher, it doesn't, whatever grad mode says.
    """
    return _grad_enabled() and not _below_autograd()


def usual(a, b, out) -> bool:
    """Whether nothing but the product, and recording its gradient, may happen in this call."""
    return (
        plain(a)
        and plain(b)
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


def usual_out(out) -> bool:
    """Whether `out` may be written to, and its write counted, as any tensor."""
    return (
        plain(out)
        and not (out.requires_grad and _grad_enabled())
        and (_inference() or not out.is_inference())
    )


def key_of(a, b, out, addresses: tuple[int, int, int], options: tuple) -> tuple:
    """All that decides what runs; `addresses` are those of a, b and out."""
    dtype, device = a.dtype, a.get_device()
    follows = dtype is torch.float32 and options[1] is None
    first, second, third = addresses
    key = (
        a.shape, a.stride(), b.shape, b.stride(), dtype, b.dtype, first & 15, second & 15,
        device, b.get_device(), options, _fp32_precision("cuda", "matmul") if follows else None,
    )  # fmt: skip
    if out is None:
        return key
    return (key, out.shape, out.stride(), out.dtype, third & 15, out.get_device())


def multiply(kind: Kind, addresses: tuple[int, ...], out) -> torch.Tensor | None:
    """The product of what lies at the first two addresses, of a `kind` that has launches.

    After the result's come those of what its epilogue reads, which don't meet it, and its factors.
    None where they can't be used: under a hook of Triton's, or `out` overlaps an operand.
    """
    launches = kind.launches
    if not triton_private.plain():
        return None
    if _device() != launches.device:
        with torch.cuda.device(launches.device):
            return multiply(kind, addresses, out)
    if out is None:
        return _fresh(kind, addresses[0], addresses[1], *addresses[3:])
    if overlap(addresses[:3], kind.spans):
        return None
    launches(*addresses)
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
    return [step and _fresh(step[0], addresses[step[1]], addresses[step[2]]) for step in steps]


def write(kind: Kind | None, addresses: tuple[int, int, int]) -> bool:
    """Write the product to the third address, which no operand meets; False if it can't be."""
    if kind is None or kind.launches is None or not triton_private.plain():
        return False
    if _device() != kind.launches.device:
        return False
    kind.launches(*addresses)
    return True


def _fresh(kind: Kind, first: int, second: int, *more: int) -> torch.Tensor:
    """The product of what lies at these addresses of the current device."""
    out = _empty(kind.size, kind.stride, kind.dtype)
    kind.launches(first, second, out.data_ptr(), *more)
    return out


def overlap(addresses: tuple[int, int, int], spans: tuple[int, int, int]) -> bool:
    """Whether the result's bytes meet those of an operand; of a, b and the result."""
    first, second, start = addresses
    end = start + spans[2]
    return (start < first + spans[0] and first < end) or (
        start < second + spans[1] and second < end
    )
