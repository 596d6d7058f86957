"""What runs instead of torch's kernels of mm and its kin, and counts of what happened.

Each function replaces one operator of torch, takes its arguments, and runs below autograd and
autocast, with plain tensors. If it refuses a call, `Route` passes the call to torch's original
kernel. A product of a known kind was checked when that kind was first made.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..dispatch.request import word_of
from ..dtypes import REAL, beyond_float, check_flag
from ..op.scaled import of_lines
from ..plan.kinds import key_of, product
from ..problem import (
    ACCUMULATE,
    ALONE,
    BLOCK,
    FP8,
    NOTHING,
    Besides,
    EpilogueInputs,
    Unsupported,
    result_shape,
    span,
)
from ..runtime import fast_path
from ..runtime.sizes import expands
from ..runtime.torch_private import capturing, untraced


@dataclasses.dataclass(frozen=True)
class Settings:
    """How torch's calls are multiplied: arguments of `matmul`."""

    batch_invariant: bool = False
    precision: str | None = None

    def __post_init__(self):
        check_flag("batch_invariant", self.batch_invariant)

    def options(self) -> dict[tuple, tuple]:
        """(operands' type, requested result type or None) -> the options of a plan."""
        word = word_of("auto", None, self.batch_invariant)
        table = {}
        for dtype in (*REAL, torch.float64):
            precision = self.precision if dtype == torch.float32 else None
            for asked in (None, dtype, torch.float32 if dtype in REAL else dtype):
                table[dtype, asked] = (word, precision, ACCUMULATE[dtype], asked or dtype)
        return table


#: `Settings.options` of the present settings; empty while torch's own kernels run.
_options: dict[tuple, tuple] = {}
#: Identifiers of the threads whose calls have come here since the registration.
callers: set[int] = set()
_thread = threading.get_ident
#: While nothing is routed, one in this many calls checks whether our kernels can be unregistered.
EVERY = 64


def leave() -> None:
    """Unregisters our kernels, if possible: see `integrate`."""


def use(settings: Settings | None) -> None:
    """Multiply with `settings` from here on, in all threads; None leaves everything to torch."""
    global _options
    _options = {} if settings is None else settings.options()


class Refused(Exception):
    """Why torch must run a call itself, in a few words that many calls share."""


class Route:
    """What torch calls for one operator, instead of its own kernel."""

    def __init__(self, name: str, work: Callable):
        self.name = name
        self.work = work
        #: Torch's own kernel; None where torch has none for this device.
        self.original: Any = None
        self.passed = 0
        #: Why torch's own kernel ran, None if ours did -> calls since the process began.
        self.counts: dict[str | None, int] = {None: 0}

    @untraced
    def __call__(self, keys, *args, **named):
        callers.add(_thread())
        if not _options:
            self.passed += 1
            if self.passed % EVERY == 0:
                leave()
            return self._torchs("nothing is routed", keys, *args, **named)
        try:
            result = self.work(*args, **named)
        except Refused as refusal:
            reason = str(refusal)
        else:
            self.counts[None] += 1
            return result
        self.counts[reason] = self.counts.get(reason, 0) + 1
        return self._torchs(reason, keys, *args, **named)

    def _torchs(self, reason: str, keys, *args, **named):
        if self.original is None:
            raise NotImplementedError(f"torch has no aten::{self.name} on this device: {reason}")
        return self.original.call_boxed(keys, *args, **named)


def _product(rank: int, a, b, out_dtype=None, *, out=None):
    """mm, or with rank 3 bmm: all their overloads."""
    options = _options.get((a.dtype, out_dtype))
    if options is not None and a.dim() == rank == b.dim() and (rank == 2 or a.size(0) == b.size(0)):
        key, addresses = fast_path.kind_of(a, b, out, options)
        kind = fast_path.KNOWN.get(key)
        if kind is not None and kind.launches is not None and fast_path.AVAILABLE:
            result = fast_path.multiply(kind, addresses, out)
            if result is not None:
                return result
    options = _checked(rank, a, b, out_dtype)
    make = functools.partial(_made, a, b, options)
    return make() if out is None else _written(out, a, result_shape(a, b), options, make)


def _sum(rank: int, input, a, b, out_dtype=None, *, beta=1, alpha=1, out=None, activation=""):
    """addmm, or with rank 3 baddbmm: all overloads that return a new tensor or write to `out`."""
    if beyond_float(alpha) or beyond_float(beta):
        raise Refused("alpha or beta beyond float32")
    options = _options.get((a.dtype, out_dtype))
    kind = None
    if options is not None and out is None and fast_path.AVAILABLE:
        kind, addresses = _kind_of_sum(rank, input, a, b, options, beta, alpha, activation)
        known = fast_path.KNOWN.get(kind)
        if known is not None and known.launches is not None:
            given = _given(addresses, beta, alpha)
            result = fast_path.multiply(known, given, None)
            if result is not None:
                return result
    options = _checked(rank, a, b, out_dtype)
    if isinstance(beta, complex) or isinstance(alpha, complex):
        raise Refused("complex alpha or beta")
    if input.dtype not in (a.dtype, options[-1]) or input.get_device() != a.get_device():
        raise Refused("input of another type or device")
    shape = result_shape(a, b)
    if not expands(input.shape, shape):
        raise Refused("input of another shape")
    make = functools.partial(_gemm, input, a, b, beta, alpha, options, activation)
    if out is None:
        return make(kind=kind)
    if beta != 0 and _meets_in_part(input, out):
        raise Refused("an out that input overlaps in part")
    return _written(out, a, shape, options, make)


def _kind_of_sum(rank, input, a, b, options, beta, alpha, activation) -> tuple[tuple, tuple]:
    """All that decides how a sum is made; and the addresses of a, b, none and `input`.

    This identifies a sum of a known kind at once, without building its `EpilogueInputs`.
    """
    key, addresses = fast_path.kind_of(a, b, None, options)
    address = input.data_ptr()
    lies = input.shape, input.stride(), input.dtype, address & 15, input.get_device()
    odd = isinstance(beta, complex) or isinstance(alpha, complex)  # a complex 1 equals 1
    factors = [factor if factor in (0, 1) else None for factor in (beta, alpha)]
    return (rank, key, lies, odd, *factors, activation), (*addresses, address)


def _given(addresses: tuple, beta, alpha) -> tuple:
    """What a launch of a known sum takes, given addresses, as `EpilogueInputs.read` has it."""
    if beta == 0:
        addresses = addresses[:3]
    if alpha != 1:
        addresses = (*addresses, float(alpha))
    return addresses if beta in (0, 1) else (*addresses, float(beta))


def _sum_in_place(rank: int, input, a, b, *, beta=1, alpha=1):
    """addmm_, or with rank 3 baddbmm_."""
    _checked(rank, a, b, None)
    if tuple(input.shape) != result_shape(a, b):
        raise Refused("input of another shape")
    return _sum(rank, input, a, b, beta=beta, alpha=alpha, out=input)


def _whole_numbers(a, b, *, out=None):
    """_int_mm: int8 operands of sizes that torch accepts."""
    options = ("auto", None, torch.int32, torch.int32)
    if not (a.dtype == b.dtype == torch.int8 and a.get_device() == b.get_device()):
        raise Refused("operands left to torch")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise Refused("shapes left to torch")
    if a.shape[0] <= 16 or b.numel() == 0 or b.shape[0] % 8 or b.shape[1] % 8:
        raise Refused("sizes that torch refuses")
    make = functools.partial(_made, a, b, options)
    if out is None:
        return make()
    if out.shape != result_shape(a, b) or not out.is_contiguous():
        raise Refused("an out left to torch")
    return _written(out, a, result_shape(a, b), options, make)


def _scaled(a, b, scale_a, scale_b, bias=None, result=None, dtype=None, fast=False, *, out=None):
    """_scaled_mm for fp8, with one scale, or scales for rows or blocks."""
    _check_scaled(a, b, bias, dtype)
    if result is not None:
        raise Refused("types left to torch")
    (M, K), N = a.shape, b.shape[1]
    scales = []
    for scale, lines in ((scale_a, M), (scale_b.mT if scale_b.dim() > 1 else scale_b, N)):
        steps, bands = -(-K // BLOCK), -(-lines // BLOCK)
        if scale.dtype != torch.float32 or scale.get_device() != a.get_device():
            raise Refused("scales of another type or device")
        if scale.numel() == 1:
            scale = scale.reshape(1, 1).expand(lines, 1)
        elif tuple(scale.shape) not in ((lines, 1), (lines, steps), (bands, steps)):
            raise Refused("scales left to torch")
        scales.append(scale)
    counts = scale_a.numel(), scale_b.numel()
    if counts != (1, 1) and any(n == 1 < of for n, of in zip(counts, (M, N), strict=True)):
        raise Refused("scales left to torch")  # of all elements, and of lines
    return _of_scales(a, b, scales, bias, dtype, fast, out)


def _by_recipes(
    a, b, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias=None, dtype=None,
    contraction_dim=(), fast=False, *, out=None,
):  # fmt: skip
    """_scaled_mm_v2, which `torch.nn.functional.scaled_mm` calls."""
    _check_scaled(a, b, bias, dtype)
    given = scale_a, recipe_a, scale_b, recipe_b
    if any(len(each) != 1 for each in given) or any((*swizzle_a, *swizzle_b)) or contraction_dim:
        raise Refused("scales of levels or orders left to torch")
    kind = torch.nn.functional.ScalingType
    try:
        of_a = of_lines("scale_a", scale_a[0], kind(recipe_a[0]), a, *a.shape)
        of_b = of_lines("scale_b", scale_b[0], kind(recipe_b[0]), b, *b.mT.shape)
    except (RuntimeError, ValueError):
        raise Refused("scales left to torch") from None
    return _of_scales(a, b, (of_a, of_b), bias, dtype, fast, out)


def _check_scaled(a, b, bias, dtype) -> None:
    """Refuse operands of a product with scales that torch must check itself."""
    fp8 = a.dtype in FP8 and b.dtype in FP8 and FP8[0] in (a.dtype, b.dtype)
    if not fp8 or dtype not in REAL or a.get_device() != b.get_device():
        raise Refused("types left to torch")
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.shape[1] % 16:
        raise Refused("shapes left to torch")
    if b.shape[1] % 16 or a.stride(1) != 1 or b.stride(0) != 1:
        raise Refused("shapes left to torch")
    if bias is not None and (bias.shape != b.shape[1:] or bias.dtype not in REAL):
        raise Refused("a bias left to torch")


def _of_scales(a, b, scales, bias, dtype, fast, out):
    """The fp8 product with scales [lines, steps of K]."""
    blocks = any(scale.shape[1] > 1 for scale in scales)
    word, *_ = _options.get((dtype, None), ("auto",))  # another thread may have disabled routing
    options = (word, None, None, dtype)
    then = EpilogueInputs.made(a, b, bias, None)
    besides = Besides(None, (*scales, blocks or not fast))
    make = functools.partial(_made, a, b, options, then=then, besides=besides)
    shape = a.shape[0], b.shape[1]
    return make() if out is None else _written(out, a, shape, options, make)


def _vector(input, a, vector, *, beta=1, alpha=1, out=None):
    """addmv, and mv, which is addmv with beta = 0, as products with one column."""
    if vector.dim() != 1 or input.dim() > 1:
        raise Refused("shapes left to torch")
    target = None
    if out is not None:
        _check_out(out, a, a.dtype)
        target = out.unsqueeze(-1) if out.shape == a.shape[:1] else None
    input = input.unsqueeze(-1) if input.dim() else input
    made = _sum(2, input, a, vector.unsqueeze(-1), beta=beta, alpha=alpha, out=target)
    if out is None:
        return made.squeeze(-1)
    return torch.mul(made.squeeze(-1), 1, out=out) if target is None else out  # resized


def _vector_in_place(input, a, vector, *, beta=1, alpha=1):
    """addmv_."""
    if input.shape != a.shape[:1]:
        raise Refused("input of another shape")
    return _vector(input, a, vector, beta=beta, alpha=alpha, out=input)


def _activated(input, a, b, *, beta=1, alpha=1, use_gelu=False, out=None):
    """_addmm_activation: relu, or gelu, which torch approximates by tanh on CUDA alone."""
    activation = ("gelu_tanh" if a.is_cuda else "gelu") if use_gelu else "relu"
    return _sum(2, input, a, b, beta=beta, alpha=alpha, out=out, activation=activation)


def _gemm(input, a, b, beta, alpha, options, activation, out=None, kind=None):
    """activation(beta * input + alpha * a @ b), rounded once, into `out` of its shape if given.

    With beta = 0, `input` isn't read, so its NaN don't matter. Records the call as `kind` too, if
    the kernel reads `input` in place.
    """
    bias = input if beta == 1 and input.shape == b.shape[-1:] else None
    residual = input if bias is None and beta != 0 else None
    if activation and residual is not None:
        raise Refused("an activation of more than a bias")
    then: Any = EpilogueInputs.made(a, b, bias, residual, activation, alpha, beta)
    result = _made(a, b, options, out, then)
    if kind is not None and (bias is None or then.bias.data_ptr() == bias.data_ptr()):
        known = fast_path.KNOWN.get(fast_path.kind_of(a, b, None, options, then)[0])
        if known is not None:
            fast_path.KNOWN[kind] = known
    return result


def _made(a, b, options, out=None, then=NOTHING, besides=ALONE):
    """The product of checked operands, written to `out` of its shape if given."""
    # Nothing can be compiled in a capture. With batch_invariant=True an error beats other bits.
    if a.is_cuda and capturing() and options[0] == "auto":
        key, _ = key_of(a, b, out, options, then, besides)
        if key not in fast_path.KNOWN:
            raise Refused("the first call of its kind, in the capture of a CUDA graph")
    try:
        return product(a, b, out, options, then, besides)
    except ValueError as error:  # batch_invariant=True, and no kernel sums that way
        raise Refused("no kernel for it") from error
    except Unsupported as error:
        raise Refused(error.short) from error


def _checked(rank: int, a, b, out_dtype) -> tuple:
    """The options of a supported product; refuses where torch would raise, so that torch does."""
    options = _options.get((a.dtype, out_dtype))
    if options is None:
        result = "" if out_dtype in (None, a.dtype) else f", {_short(out_dtype)} result"
        raise Refused(f"{_short(a.dtype)} operands{result}")
    if b.dtype != a.dtype:
        raise Refused("operands of two types")
    if a.get_device() != b.get_device():
        raise Refused("operands on two devices")
    fits = a.dim() == rank == b.dim()
    if not fits or a.shape[-1] != b.shape[-2] or (rank == 3 and a.shape[0] != b.shape[0]):
        raise Refused("shapes left to torch")
    return options


def _check_out(out, a, dtype: torch.dtype) -> None:
    if out.dtype != dtype or out.get_device() != a.get_device():
        raise Refused("an out of another type or device")


def _written(out, a, shape: tuple, options, make: Callable) -> torch.Tensor:
    """`out` with what `make` returns; it gets `shape` after the operands were read."""
    _check_out(out, a, options[-1])
    if tuple(out.shape) != shape:
        return torch.mul(make(), 1, out=out)  # resized, with torch's warning
    if 0 in out.stride() and any(
        size > 1 and step == 0 for size, step in zip(shape, out.stride(), strict=True)
    ):
        raise Refused("an out that overlaps itself")
    return make(out=out)


def _meets_in_part(input, out) -> bool:
    """Whether torch, which copies `input` to `out` first, would find that their elements overlap.

    torch checks only tensors of one shape without gaps.
    """
    if input.shape != out.shape:
        return False
    (first, size), (begin, room) = ((t.data_ptr(), span(t)) for t in (input, out))
    if first >= begin + room or begin >= first + size:
        return False
    same = first == begin and size == room and input.stride() == out.stride()
    return not same and all(span(t) == t.nbytes for t in (input, out))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _in_all_forms(name: str, work: Callable) -> dict[str, Callable]:
    return {name + form: work for form in ("", ".out", ".dtype", ".dtype_out")}


_WORK: dict[str, Callable] = {
    **_in_all_forms("mm", functools.partial(_product, 2)),
    **_in_all_forms("bmm", functools.partial(_product, 3)),
    **_in_all_forms("addmm", functools.partial(_sum, 2)),
    "addmm_": functools.partial(_sum_in_place, 2),
    **_in_all_forms("baddbmm", functools.partial(_sum, 3)),
    "baddbmm_": functools.partial(_sum_in_place, 3),
    "addmv": _vector,
    "addmv.out": _vector,
    "addmv_": _vector_in_place,
    "_addmm_activation": _activated,
    "_addmm_activation.out": _activated,
    "_int_mm": _whole_numbers,
    "_int_mm.out": _whole_numbers,
    "_scaled_mm": _scaled,
    "_scaled_mm.out": _scaled,
}
if hasattr(torch.ops.aten, "_scaled_mm_v2"):
    _WORK |= {"_scaled_mm_v2": _by_recipes, "_scaled_mm_v2.out": _by_recipes}
#: torch's operators and our replacements. `linear`, `matmul`, `mv`, `einsum` and the like call
#: these operators, and so do the derivatives of all of them.
ROUTES = {name: Route(name, work) for name, work in _WORK.items()}
