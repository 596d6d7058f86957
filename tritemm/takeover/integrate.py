"""`enable` and `disable`: route torch's own calls to tritemm, and report what became of them.

Our kernels are registered over torch's for the device's dispatch key, below autograd, autocast,
`torch.func` and every tracer. So all of these see `aten::mm` as usual, and the derivatives that
torch computes are routed too. Torch's own kernel is looked up first, for calls that tritemm leaves
to torch. A setting says which calls are routed; the registration changes only while no other thread
calls it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import sys
import threading
import warnings
from collections import Counter, deque
from typing import Any, ClassVar

import torch

from ..dtypes import Precision, check_flag, of_fp32
from ..machine import forks
from ..problem import INTERPRETED
from ..runtime.torch_private import unregister, untraced
from . import routing
from .routing import ROUTES, Settings

_KEY = "CPU" if INTERPRETED else "CUDA"
#: Inductor's options that would replace batch-invariant products by its own kernels, or pad K.
_INDUCTOR = {"max_autotune_gemm_backends": "ATEN", "shape_padding": False}
_lock = forks.lock(threading.RLock)


class Report:
    """Calls that tritemm ran, and calls that torch's own kernels ran and why, by operator.

    It counts all threads' calls from its creation until `close`, and prints as a table.
    """

    def __init__(self):
        self._first = _counts()
        self._last: Counter | None = None

    def close(self) -> Report:
        """Stop counting."""
        if self._last is None:
            self._last = _counts()
        return self

    @property
    def ran(self) -> dict[str, int]:
        """Operator, "mm" or "addmm.out" -> calls that tritemm ran; only operators with calls."""
        return {name: count for (name, why), count in self._counted().items() if why is None}

    @property
    def fell_back(self) -> dict[str, dict[str, int]]:
        """Operator -> why torch's own kernel ran -> calls; only operators with such calls."""
        found: dict[str, dict[str, int]] = {}
        for (name, why), count in self._counted().items():
            if why is not None:
                found.setdefault(name, {})[why] = count
        return found

    def __str__(self) -> str:
        ran, fell_back = self.ran, self.fell_back
        rows = [("operator", "tritemm", "torch", "why torch")]
        for name in ROUTES:
            reasons = fell_back.get(name, {})
            if name in ran or reasons:
                why = "; ".join(f"{count} x {why}" for why, count in reasons.items())
                rows.append((name, str(ran.get(name, 0)), str(sum(reasons.values())), why))
        if len(rows) == 1:
            return "no call was routed"
        first, second, third, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
        lines = (f"{a:<{first}}  {b:>{second}}  {c:>{third}}  {why}" for a, b, c, why in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _counted(self) -> Counter:
        return (_counts() if self._last is None else self._last) - self._first


@untraced
def _counts() -> Counter[tuple[str, str | None]]:
    """Calls since the start, by operator and the reason for torch's own kernel, None for ours."""
    routes = ROUTES.items()
    return Counter({(name, why): n for name, route in routes for why, n in route.counts.items()})


@dataclasses.dataclass(eq=False)
class _Block:
    """How torch's calls are routed until the block ends, and the calls counted in it."""

    settings: Settings | None = None
    report: Report | None = None
    #: The thread that entered it.
    thread: int = 0


class _State:
    """How torch's calls are routed at present; one state for the whole process."""

    #: Blocks that have begun and not ended, the process itself first. The last one applies.
    blocks: ClassVar[list[_Block]] = [_Block()]
    #: What is registered with torch's dispatcher.
    standing: torch.library.Library | None = None
    #: The kernels of the last registrations: another thread may still be about to enter one.
    kept: ClassVar[deque] = deque(maxlen=8)
    #: Inductor's options as they were before we changed them, while they are changed.
    inductor: dict | Any = None


def enable(
    *,
    batch_invariant: bool = False,
    precision: Precision | None = None,
    fp32: Precision | None = None,
) -> None:
    """Route torch's own products to tritemm: `a @ b`, F.linear, nn.Linear, einsum, ...

    These operators are routed: mm, bmm, addmm, baddbmm, addmv and `_addmm_activation`, with their
    `out=`, in-place and `out_dtype` forms, for dense CUDA tensors (CPU tensors if kernels are
    interpreted) of float16, bfloat16, float32 or float64. So is everything that calls them: linear,
    matmul, mv, einsum, the backward pass, and graphs compiled before or after this call.
    Everything else runs torch's own kernel, and `disable` tells how often and why.

    The setting applies to the whole process, all threads and devices, like torch's own flags. A
    second call replaces the settings of the first and continues counting. A graph compiled with
    max-autotune may contain Inductor's own kernels instead of torch's calls.

    Args:
        batch_invariant: row i of every product, and of every linear layer, has the same bits
            however many rows there are. This covers products alone: mean, softmax, log_softmax and
            other reductions stay torch's, and calls that fall back aren't covered. While it is
            set, Inductor compiles products to torch's operators and pads none. But
            torch.compile(mode="max-autotune") still turns products of one row into its own sums:
            pass options={"max_autotune": True} instead of the mode.
        precision: how float32 is multiplied, as in `tritemm.matmul`; None follows torch's flag.
        fp32: another name of `precision`.

    Raises:
        ValueError: an unknown `precision`.
        TypeError: `batch_invariant` is no bool.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> layer = torch.nn.Linear(16, 8, device=device)
    >>> tritemm.enable()
    >>> y = layer(torch.ones(4, 16, device=device))
    >>> print(tritemm.disable())
    operator  tritemm  torch  why torch
    addmm           1      0
    """
    settings = Settings(batch_invariant, of_fp32(precision, fp32))
    with _lock:
        block = _State.blocks[-1]
        block.settings, block.report = settings, block.report or Report()
        _route()


def disable() -> Report:
    """Let torch run its own kernels again; harmless if they weren't replaced.

    Returns:
        The calls since `enable`, or in the block of `enabled` that contains this call, as a table
        when printed.

    >>> import tritemm
    >>> tritemm.enable()
    >>> print(tritemm.disable())
    no call was routed
    """
    with _lock:
        block = _State.blocks[-1]
        report = block.report or Report()
        block.settings = block.report = None
        _route()
        return report.close()


class _Blocks(contextlib.ContextDecorator):
    """Blocks with `settings`: one for each entry, or each call of the function it decorates."""

    def __init__(self, settings: Settings | None):
        self._settings = settings
        self._entered: list[_Block] = []

    def __enter__(self) -> Report:
        with _lock:
            report = Report()
            block = _Block(self._settings, report, threading.get_ident())
            self._entered.append(block)
            _State.blocks.append(block)
            _route()
            return report

    def __exit__(self, *error) -> None:
        with _lock:
            mine = [block for block in self._entered if block.thread == threading.get_ident()]
            block = (mine or self._entered)[-1]
            self._entered.remove(block)
            if block.report is not None:  # else `disable` was called inside
                block.report.close()
            _State.blocks.remove(block)
            _route()

    def __call__(self, function: Any) -> Any:
        asked = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
        if any(is_one(function) for is_one in asked):
            raise TypeError(
                f"{function.__name__}() returns before it runs, and the block would end then. Put "
                "a `with` block inside it"
            )
        return super().__call__(function)


def enabled(
    *,
    batch_invariant: bool = False,
    precision: Precision | None = None,
    fp32: Precision | None = None,
) -> contextlib.AbstractContextManager[Report]:
    """`enable` for a block, or as a decorator for a function; the former settings then return.

    Blocks nest; the inner one's settings apply inside it. Other threads are routed too while the
    block lasts: if blocks of several threads overlap in time, the one entered last applies, and
    when the last one has ended, the settings from before the first one return.

    Yields:
        The report of this block, including inner ones; it counts until the block ends.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(4, 4, device=device)
    >>> with tritemm.enabled(batch_invariant=True) as report:
    ...     b = a @ a
    >>> report.ran
    {'mm': 1}
    """
    return _Blocks(Settings(batch_invariant, of_fp32(precision, fp32)))


def set_batch_invariant_mode(enabled: bool = True) -> contextlib.AbstractContextManager[Report]:
    """A block in which products are batch-invariant; with False, one that runs torch's kernels.

    Named as in the package batch_invariant_ops; its other functions are in
    `tritemm.takeover.integrate`. Only products are replaced: see `enable`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> x, w = torch.randn(5, 16, device=device), torch.randn(16, 8, device=device)
    >>> with tritemm.set_batch_invariant_mode():
    ...     bool((x[:1] @ w == (x @ w)[:1]).all())
    True
    """
    check_flag("enabled", enabled)
    return _Blocks(Settings(batch_invariant=True) if enabled else None)


def enable_batch_invariant_mode() -> None:
    """`enable(batch_invariant=True)`."""
    enable(batch_invariant=True)


def disable_batch_invariant_mode() -> None:
    """`disable()`, without the report."""
    disable()


def is_batch_invariant_mode_enabled() -> bool:
    """Whether products are batch-invariant at present."""
    settings = _State.blocks[-1].settings
    return settings is not None and settings.batch_invariant


@untraced
def _route() -> None:
    """Route as the last block says, from here on.

    torch's dispatcher must not change under another thread's calls. While any thread whose calls
    were routed is alive, the registration stays, and passes calls on to torch's kernels. The caller
    holds the lock.
    """
    settings = _State.blocks[-1].settings
    if settings is not None and _State.standing is None:
        routing.callers.clear()
        _State.standing = _registered()
    routing.use(settings)
    _leave()
    _fix_inductor(is_batch_invariant_mode_enabled())


@untraced
def _leave() -> None:
    """Unregister our kernels if nothing is routed and no other living thread called them."""
    if not _lock.acquire(blocking=False):  # whoever holds it does this
        return
    try:
        others = (routing.callers - {threading.get_ident()}) & sys._current_frames().keys()
        routed = _State.blocks[-1].settings is not None
        if _State.standing is not None and not routed and not others:
            unregister(_State.standing)
            _State.standing = None
    finally:
        _lock.release()


routing.leave = _leave


def _registered() -> torch.library.Library:
    """Our kernels, which replace torch's until this library is destroyed."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*\n.*Overriding a previously registered kernel")
        for name, route in ROUTES.items():
            with contextlib.suppress(RuntimeError):  # torch has some only for CUDA
                route.original = torch.library.get_kernel(f"aten::{name}", _KEY)
            library.impl(name, route, _KEY, with_keyset=True, allow_override=True)
    _State.kept.append([torch.library.get_kernel(f"aten::{name}", _KEY) for name in ROUTES])
    return library


def _fix_inductor(fixed: bool) -> None:
    """Make Inductor leave products to torch's operators, or restore the user's options."""
    if fixed == (_State.inductor is not None):
        return
    from torch._inductor import config  # takes a second, so only for batch invariance

    if fixed:
        _State.inductor = {name: getattr(config, name) for name in _INDUCTOR}
        for name, value in _INDUCTOR.items():
            setattr(config, name, value)
        return
    for name, value in _State.inductor.items():
        if getattr(config, name) == _INDUCTOR[name]:  # else changed since, or for other threads
            setattr(config, name, value)
    _State.inductor = None
