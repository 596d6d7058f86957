"""The way around torch's dispatcher, which costs more than a small product takes.

It is taken by calls in which nothing but the product happens: plain CUDA tensors of a kind that
was multiplied before, no gradient, no mode, no transform, no autocast, no tracing, no profiler.
All others go through the operators of `ops.py`, where torch sees them. So do calls under
`torch.profiler`, which therefore shows `tritemm::mm`.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from . import launch, shortcut
from .products import KNOWN, Product, remember, result_shape, span
from .torch_private import empty_strided as _empty
from .torch_private import private as _private

_PLAIN = (torch.Tensor, torch.nn.Parameter)


_grad_enabled = torch.is_grad_enabled
_autocast = torch.is_autocast_enabled
_function_mode = _private("_is_torch_function_mode_enabled")
_dispatch_modes = _private("_len_torch_dispatch_stack")
_transform = _private("_functorch.peek_interpreter_stack")
_tracing = _private("_is_tracing")
_profiling = _private("_autograd._profiler_enabled")
_fp32_precision = _private("_get_fp32_precision_getter")
_count_write = _private("_increment_version")
_device = _private("_cuda_getDevice")
#: Whether torch has all the names that this module needs; where not, `ops.py` does all the work.
AVAILABLE = None not in (
    _function_mode, _dispatch_modes, _transform, _tracing, _profiling, _fp32_precision,
    _count_write, _device, _empty,
)  # fmt: skip


def matmul(a, b, out: torch.Tensor | None, options: tuple) -> torch.Tensor | None:
    """The product of `a` and `b`, which is `out` if given; None if it can't be made this way.

    `options`: all other arguments of the caller that decide the result, the precision at index 1.
    Checks nothing but what may differ between calls of one kind: the first one was checked.
    """
    # Under torch.compile the first call is a constant, and the rest is not traced.
    if torch.compiler.is_dynamo_compiling() or not AVAILABLE:
        return None
    try:
        if _unusual(a, b, out):
            return None
        first, second = a.data_ptr(), b.data_ptr()
        third = 0 if out is None else out.data_ptr()
        product = KNOWN.get(_key(a, b, out, first, second, third, options))
    except (AttributeError, RuntimeError, TypeError):  # no tensors, no memory, odd options
        return None
    # An address of 0: a tensor that only stands for one, of zeros or in a transform.
    if product is None or product.call is None or not first or not second:
        return None
    if _device() == product.device:
        return _multiply(product, a, b, out, first, second, third)
    with torch.cuda.device(product.device):
        return _multiply(product, a, b, out, first, second, third)


def first(a, b, out, options: tuple, prepared: tuple) -> torch.Tensor | None:
    """The product of a new kind, after all checks; None if `ops.py` must make it.

    `prepared`: both operands with at least two dimensions, then kernel, precision, accumulator
    and result type, as the operator takes them. `out` has its final shape.
    """
    if torch.compiler.is_dynamo_compiling() or not AVAILABLE:
        return None
    x, y, kernel, precision, accumulate, out_dtype = prepared
    try:
        if _unusual(a, b, out) or not _on_gpu(a, b):
            return None
        addresses = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
        key = _key(a, b, out, *addresses, options)
        product = KNOWN.get(key)
    except (RuntimeError, TypeError):
        return None
    if 0 in addresses[:2]:
        return None
    if out is not None and _overlap(addresses, (span(a), span(b), span(out))):
        return None
    shape = result_shape(x, y)
    with launch.on_device(a):
        c = torch.empty(shape, dtype=out_dtype, device=a.device) if out is None else out.view(shape)
        if launch.is_trivial(x.shape[-1], c):
            return None
        if product is None:
            product = Product(x, y, c, kernel, precision, accumulate)
        product(x, y, c)
    if out is not None:
        _count_write((out,))
        result = out
    else:
        result = c.view(_without(shape, a.dim() == 1, b.dim() == 1))
    product.size, product.stride = tuple(result.shape), result.stride()
    remember(key, product)
    return result


def _without(shape: tuple[int, ...], rows: bool, columns: bool) -> tuple[int, ...]:
    """`shape` without the dimensions that 1-D operands were given."""
    *batch, m, n = shape
    return (*batch, *([] if rows else [m]), *([] if columns else [n]))


def _unusual(a, b, out) -> bool:
    """Whether anything but the product may happen in this call."""
    return (
        type(a) not in _PLAIN
        or type(b) not in _PLAIN
        or _function_mode()
        or _dispatch_modes() > 0
        or _transform() is not None
        or _tracing()
        or _autocast()
        or _profiling()
        or forward_ad._current_level >= 0
        or a.is_neg()
        or b.is_neg()
        or ((a.requires_grad or b.requires_grad) and _grad_enabled())
        or (out is not None and _unusual_out(out))
    )


def _on_gpu(a, b) -> bool:
    return a.is_cuda and b.is_cuda


def _unusual_out(out) -> bool:
    return type(out) not in _PLAIN or out.is_neg() or (out.requires_grad and _grad_enabled())


def _key(a, b, out, first: int, second: int, third: int, options: tuple) -> tuple:
    """All that decides what runs; `first`, `second`, `third` are the addresses."""
    dtype = a.dtype
    follows = dtype is torch.float32 and options[1] is None
    key = (
        a.shape, a.stride(), dtype, first & 15, a.device,
        b.shape, b.stride(), b.dtype, second & 15, b.get_device(),
        options, _fp32_precision("cuda", "matmul") if follows else None,
    )  # fmt: skip
    if out is None:
        return key
    return (key, out.shape, out.stride(), out.dtype, third & 15, out.get_device())


def _multiply(product: Product, a, b, out, first: int, second: int, third: int):
    """`product` of `a` and `b` at these addresses, on the current device, which is theirs."""
    if not shortcut.plain():
        return None
    if out is None:
        out = _empty(product.size, product.stride, product.dtype)
        product.launch(first, second, out.data_ptr(), a, b)
        return out
    if _overlap((first, second, third), product.spans):
        return None
    product.launch(first, second, third, a, b)
    _count_write((out,))
    return out


def _overlap(addresses: tuple[int, int, int], spans: tuple[int, int, int]) -> bool:
    """Whether the result's bytes meet those of an operand."""
    first, second, start = addresses
    end = start + spans[2]
    return (start < first + spans[0] and first < end) or (
        start < second + spans[1] and second < end
    )
