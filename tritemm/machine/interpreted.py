"""Functions that run in Triton's interpreter, whatever else the process does with Triton.

The functions of Triton's own library are decorated when the process first imports triton. So while
one of ours runs, the library is switched to interpretation, and switched back afterwards.

Private to Triton and used: the interpreter's names `InterpretedFunction`, `_patch_lang`,
`_patch_builtin`, `_patch_lang_tensor`, `_convert_float`, `_get_np_dtype`, `interpreter_builder` and
`interpreter_semantic`, and how a `TritonSemantic` looks for overflow, as Triton 3.6 to 3.9 have it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import numpy
from triton import knobs
from triton import language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

#: The interpreter keeps its place in the grid and its patches in globals, so all copies of tritemm
#: in a process share this lock.
_LOCK = vars(interpreter).setdefault("_tritemm_lock", threading.RLock())
if hasattr(os, "register_at_fork"):  # a child has no other thread that would put them back
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )


class _Kernel(interpreter.InterpretedFunction):
    """A function that is interpreted whatever Triton's setting is when it runs."""

    def run(self, *args, **kwargs):
        quiet = numpy.errstate(all="ignore")  # as a GPU is at infinities
        with _LOCK, _interpreting(), quiet:
            return super().run(*args, **kwargs)


@contextlib.contextmanager
def decorating() -> Iterator[None]:
    """What `triton.jit` decorates inside runs in the interpreter."""
    with patch.object(interpreter, "InterpretedFunction", _Kernel), _knob():
        yield


@contextlib.contextmanager
def _interpreting() -> Iterator[None]:
    """Triton's library as TRITON_INTERPRET=1 makes it, until the end."""
    owners = (*_library(), tl.tensor, tl.dtype, tl.core.tensor_descriptor_base)
    before = [(owner, dict(vars(owner))) for owner in owners]
    try:
        for owner, values in before:
            for name, value in values.items():
                if isinstance(value, JITFunction):
                    twin = _interpreted(value.fn)
                    setattr(owner, name, _method(twin) if owner is tl.tensor else twin)
        ours: dict[str, Any] = {
            "_patch_lang_tensor": _patch_tensor,
            "_convert_float": _convert,
            "_get_np_dtype": _dtype,
            "TritonSemantic": _Semantic,  # Triton 3.6 makes one, newer ones have one
            "interpreter_semantic": _Semantic(interpreter.interpreter_builder),
        }
        with patch.multiple(interpreter, **ours, **_patching_once()), _knob():
            yield
    finally:
        # The interpreter leaves some of its patches behind. What it adds stays: kernels need it.
        for owner, values in before:
            now = vars(owner)
            for name, value in values.items():
                if now.get(name) is not value:
                    setattr(owner, name, value)


@functools.cache
def _library() -> tuple[ModuleType, ...]:
    return tuple(m for name, m in sys.modules.items() if f"{name}.".startswith("triton.language."))


@functools.cache
def _interpreted(function: FunctionType) -> interpreter.InterpretedFunction:
    """The same one for each name of a function: the interpreter knows some by identity."""
    return interpreter.InterpretedFunction(function)


def _method(function: interpreter.InterpretedFunction):
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


_patch_tensor_of_triton = interpreter._patch_lang_tensor


def _patch_tensor(tensor: type, scope: Any) -> None:
    """numpy 2.4 can't convert an array with dimensions to int, as Triton 3.6 does."""
    _patch_tensor_of_triton(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


_convert_of_triton = interpreter._convert_float


def _convert(values, source, target, rounding):
    """bf16 is the upper half of fp32; Triton's own conversion loses subnormal numbers."""
    if (source, target) == (tl.bfloat16, tl.float32):
        return values.view(numpy.uint16).astype(numpy.uint32) << 16
    if (source, target, rounding) == (tl.float32, tl.bfloat16, None):  # to the one nearer to 0
        bits = values.view(numpy.uint32)
        return (bits >> 16 | (values != values) << 6).astype(numpy.uint16)
    return _convert_of_triton(values, source, target, rounding)


_dtype_of_triton = interpreter._get_np_dtype
_dtype_of_numbers = functools.cache(_dtype_of_triton)


def _dtype(kind: Any) -> numpy.dtype:
    """Triton builds a table of all types for each one that it looks up."""
    scalar = kind.scalar
    return _dtype_of_triton(scalar) if scalar.is_ptr() else _dtype_of_numbers(scalar)


class _Semantic(interpreter.TritonSemantic):
    """Checks for overflow, which takes half of the time, only if Triton would report it."""

    def binary_op_sanitize_overflow_impl(self, *given):
        if self.builder.options.debug:
            super().binary_op_sanitize_overflow_impl(*given)


def _patching_once() -> dict[str, Any]:
    """Patching functions that act once for each place: it stays patched until the end.

    Triton patches at each call of a function within a kernel, which takes a third of the time.
    """

    def first(usual: Any, place: Any) -> Any:
        patched = set()

        def once(target: Any, *more: Any) -> Any:
            if place(target) in patched:
                return None
            patched.add(place(target))
            return usual(target, *more)

        return once

    places = {"_patch_lang": lambda function: id(function.__globals__), "_patch_builtin": id}
    return {name: first(getattr(interpreter, name), place) for name, place in places.items()}


@contextlib.contextmanager
def _knob() -> Iterator[None]:
    """Triton's setting without its side effect: assigning it also writes to the environment."""
    values = vars(knobs.runtime)
    old = values.get("interpret")
    values["interpret"] = True
    try:
        yield
    finally:
        if old is None:
            del values["interpret"]
        else:
            values["interpret"] = old
