"""`enable` and `disable`: torch's own calls, routed to tritemm, and what became of them.

A kernel of ours is registered over torch's at the key of the device, below autograd, autocast,
`torch.func` and everything that traces, so all of them see `aten::mm` as ever, and the derivatives
that torch takes are routed too. Torch's own kernel is fetched before, for the calls that are its
own to do. Which calls are routed is a setting; what is registered changes only where no other
thread calls it.
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
#: What Inductor's own kernels, and its padding of K, would take from batch_invariant=True.
_INDUCTOR = {"max_autotune_gemm_backends": "ATEN", "shape_padding": False}
_lock = forks.lock(threading.RLock)


class Report:
    """How many calls tritemm ran, and how many torch's own kernels did and why, by operator.

    It counts from when it is made until `close`, in all threads, and prints as a table.
    """

    def __init__(self):
        self._first = _counts()
        self._last: Counter | None = None

    def close(self) -> Report:
        """Count no further."""
        if self._last is None:
            self._last = _counts()
        return self

    @property
    def ran(self) -> dict[str, int]:
        """Operator, "mm" or "addmm.out" -> calls that tritemm ran; without those of no call."""
        return {name: count for (name, why), count in self._counted().items() if why is None}

    @property
    def fell_back(self) -> dict[str, dict[str, int]]:
        """Operator -> why torch's own kernel ran -> calls; without those of no such call."""
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
    """Calls by operator and why torch's own kernel ran, None if it didn't, since the start."""
    routes = ROUTES.items()
    return Counter({(name, why): n for name, route in routes for why, n in route.counts.items()})


@dataclasses.dataclass(eq=False)
class _Block:
    """What torch's calls are to be routed by until it ends, and what is counted in it."""

    settings: Settings | None = None
    report: Report | None = None
    #: The one that entered it.
    thread: int = 0


class _State:
    """What torch's calls are routed by at present, which is one thing for the whole process."""

    #: Those that have begun and not ended, the process itself first. The last is what counts.
    blocks: ClassVar[list[_Block]] = [_Block()]
    #: What is registered.
    standing: torch.library.Library | None = None
    #: The kernels of the last registrations: a thread may still be on its way into one of them.
    kept: ClassVar[deque] = deque(maxlen=8)
    #: What Inductor was set to before, while it is set otherwise.
    inductor: dict | Any = None


def enable(
    *,
    batch_invariant: bool = False,
    precision: Precision | None = None,
    fp32: Precision | None = None,
) -> None:
    """Have tritemm multiply where torch is asked to: `a @ b`, F.linear, nn.Linear, einsum, ...

    Routed are mm, bmm, addmm, baddbmm, addmv and `_addmm_activation`, with their `out=`, in-place
    and `out_dtype` forms, of dense CUDA tensors (CPU tensors where kernels are interpreted) of
    float16, bfloat16, float32 or float64. What comes down to these is routed with them: linear,
    matmul, mv, einsum, the backward pass, graphs that were compiled before or are compiled now.
    Everything else runs torch's own kernel, and `disable` tells how often and why.

    The setting is one for the whole process, all threads and devices, like torch's own flags. A
    second call replaces the settings of the first and goes on counting. A graph that is compiled
    with max-autotune may hold Inductor's own kernels in the place of torch's calls.

    Args:
        batch_invariant: row i of every product, and of every linear layer, has the same bits
            however many rows there are. This is about products alone: mean, softmax, log_softmax
            and other reductions stay torch's; nor does it hold for calls that fall back. While
            it is set, Inductor compiles products to torch's operators, and pads none. But
            torch.compile(mode="max-autotune") turns products of one row into sums of its own all
            the same: give it options={"max_autotune": True} in place of the mode.
        precision: how float32 is multiplied, as for `tritemm.matmul`; None follows torch's flag.
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
    """Give torch its own kernels back; harmless where they were not taken.

    Returns:
        What was routed since `enable`, or in the block of `enabled` that this is called in. It
        prints as a table.

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
    """Blocks under `settings`, one each time that it is entered, or that what it decorates runs."""

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
            if block.report is not None:  # else it was disabled inside
                block.report.close()
            _State.blocks.remove(block)
            _route()

    def __call__(self, function: Any) -> Any:
        asked = inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction
        if any(is_one(function) for is_one in asked):
            raise TypeError(
                f"{function.__name__}() returns before it runs, and the block would end with that. "
                "Enter the block inside it, by `with`"
            )
        return super().__call__(function)


def enabled(
    *,
    batch_invariant: bool = False,
    precision: Precision | None = None,
    fp32: Precision | None = None,
) -> contextlib.AbstractContextManager[Report]:
    """`enable` for a block, or as a decorator for a function; then all is as it was before.

    Blocks nest: the inner one's settings count inside it. Other threads are routed too while it
    lasts: of blocks of several threads that overlap in time, the one that was entered last counts,
    and when the last has ended all is as it was before the first.

    Yields:
        The report of this block, inner ones included, which counts until the block ends.

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
    """A block in which products are batch invariant; with False, one that runs torch's kernels.

    Named as in the package batch_invariant_ops, whose users find their other calls in
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
    """Whether products are batch invariant at present."""
    settings = _State.blocks[-1].settings
    return settings is not None and settings.batch_invariant


@untraced
def _route() -> None:
    """Route as the last block has it, from now on.

    Torch's dispatcher is not to be changed under another thread's calls. While there are threads
    whose calls were routed, what is registered stays, and hands calls on to torch's kernels. Who
    calls this holds the lock.
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
    """Take back what is registered, if nothing is routed and no other thread alive called it."""
    if not _lock.acquire(blocking=False):  # whoever has it does this
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
    """What stands for torch's own kernels as long as it isn't unregistered."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*\n.*Overriding a previously registered kernel")
        for name, route in ROUTES.items():
            with contextlib.suppress(RuntimeError):  # torch has some for CUDA alone
                route.original = torch.library.get_kernel(f"aten::{name}", _KEY)
            library.impl(name, route, _KEY, with_keyset=True, allow_override=True)
    _State.kept.append([torch.library.get_kernel(f"aten::{name}", _KEY) for name in ROUTES])
    return library


def _fix_inductor(fixed: bool) -> None:
    """Have Inductor leave products to torch's operators, or as the user has set it."""
    if fixed == (_State.inductor is not None):
        return
    from torch._inductor import config  # a second, which only batch invariance takes

    if fixed:
        _State.inductor = {name: getattr(config, name) for name in _INDUCTOR}
        for name, value in _INDUCTOR.items():
            setattr(config, name, value)
        return
    for name, value in _State.inductor.items():
        if getattr(config, name) == _INDUCTOR[name]:  # else it was set since, or for other threads
            setattr(config, name, value)
    _State.inductor = None
