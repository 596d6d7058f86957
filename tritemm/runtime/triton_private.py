"""What we use of Triton's private parts: its call of the launching C function, its kernels' names.

Triton 3.6 to 3.9 have these names. If one is not as expected, `Loaded.of` raises, and Triton
launches the kernel.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import triton
from triton import knobs
from triton.runtime import jit

_SETTLING = threading.Lock()


def settle(fn) -> None:
    """Make `fn`'s name in Triton's disk cache depend on its source alone.

    Triton 3.6 names a kernel by the constants of those called functions that already have names;
    3.8 does not. So a process may not find what another one compiled, if that compiled other
    kernels before. Here all called functions get their names first. If that can't be done, a
    warning says so, and kernels are compiled again.
    """
    if getattr(fn, "hash", "there") is not None or not _needs_settling():
        return
    try:
        with _SETTLING:
            _name(fn, set())
    except Exception as error:  # something has moved
        warnings.warn(
            f"can't fix the kernels' names in Triton's cache ({error}): processes may "
            "compile again what others have compiled",
            stacklevel=2,
        )


@functools.cache
def _needs_settling() -> bool:
    return tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)


def _name(fn, begun: set) -> None:
    """The name of `fn`, after naming what it calls; functions in `begun` may be recursive."""
    if fn.hash is not None or id(fn) in begun:
        return
    begun.add(id(fn))

    class Callees(jit.DependenciesFinder):
        def _update_hash(self, func):
            _name(func, begun)

    outer = inspect.getclosurevars(fn.fn).nonlocals
    Callees(fn.__name__, fn.__globals__, outer, fn.src).visit(fn.parse())
    _ = fn.cache_key


class Moved(Exception):
    """Triton is not as this module expects it, or the kernel needs more than a launch."""


def plain() -> bool:
    """Whether Triton's own launch would only launch: no hook, no debugging, no instrumentation."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return not (
        getattr(enter, "calls", enter)
        or getattr(leave, "calls", leave)
        or runtime.debug
        or knobs.compilation.instrumentation_mode
        or getattr(runtime, "add_stages_inspection_hook", None)
    )


@functools.cache
def clusters_why_not() -> str | None:
    """Why `in_clusters` doesn't work with this release of Triton; None if it does."""
    marks = types.SimpleNamespace(num_warps=object(), num_ctas=object(), shared=object())
    try:
        from triton.backends.nvidia.compiler import CUDABackend

        _, programs, *_ = CUDABackend.pack_metadata(None, marks)
    except Exception:  # something has moved
        programs = None
    if programs is marks.num_ctas:
        return None
    return f"Triton {triton.__version__} doesn't launch clusters in the way of 3.6 to 3.9"


def in_clusters(compiled, size: int) -> None:
    """Launch `compiled` in clusters of `size` programs; its grid then counts clusters.

    Triton launches clusters of kernels that it compiled for them, with tensor layouts that span all
    programs. At the launch it reads only this number.
    """
    warps, programs, *more = compiled.packed_metadata
    if programs not in (1, size) or compiled.metadata.num_ctas != 1:
        raise Moved(f"clusters of {size}: the launcher's metadata are {compiled.packed_metadata}")
    compiled.packed_metadata = (warps, size, *more)


def in_boxes(compiled, boxes: Sequence[Sequence[int] | None]) -> None:
    """Encode the tensor maps of `compiled`'s descriptors with these boxes, where not None.

    Triton takes a map's box from the descriptor's block, whose sizes are powers of two; the copy
    engine takes any up to 256. Its encoder reads only these entries, at each launch.
    """
    entries = getattr(compiled.metadata, "tensordesc_meta", None) or ()
    if len(entries) != len(boxes) or any("block_size" not in entry for entry in entries):
        raise Moved(f"boxes of {boxes}: the kernel's descriptors are {entries}")
    for entry, box in zip(entries, boxes, strict=True):
        if box:
            entry["block_size"] = list(box)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A compiled kernel on one device: the C function that launches it, and its arguments.

    `head`: what precedes the kernel's own arguments, beginning with three for the grid; `stream`:
    the stream's place there. `nested`: the kernel's arguments are one sequence (Triton 3.9), not
    spread out. `encoders`: one for each tensor descriptor, in the order of the parameters.
    `kernel` is kept because dropping it may unload its code.
    """

    run: Callable[..., None]
    head: tuple[Any, ...]
    stream: int
    nested: bool
    encoders: tuple[Callable[[Any], Any], ...]
    kernel: Any

    @staticmethod
    def of(compiled, count: int) -> Loaded:
        """A compiled kernel with `count` parameters, loaded on the current device.

        The C function's arguments are observed, not known: Triton's launcher runs once with marks
        as arguments, and with a recorder instead of the C function.
        """
        runner = compiled.run
        if runner.global_scratch_size or runner.profile_scratch_size:
            raise Moved("the kernel needs scratch memory at every launch")
        if getattr(runner, "gsan_enabled", False):
            raise Moved("the kernel is sanitized")
        seen: list[tuple] = []
        probe = copy.copy(runner)
        probe.launch = lambda *args: seen.append(args)
        marks = [object() for _ in range(4 + count)]
        grid, stream, own = marks[:3], marks[3], marks[4:]
        hooks = (None, None, None)
        probe(*grid, stream, compiled.function, compiled.packed_metadata, *hooks, *own)
        (args,) = seen
        nested = isinstance(args[-1], tuple | list)
        head, tail = (args[:-1], args[-1]) if nested else (args[:-count], args[-count:])
        if list(tail) != own or list(head[:3]) != grid:
            raise Moved("the launcher's arguments are in another order")
        places = [i for i, value in enumerate(head) if value is stream]
        if len(places) != 1 or any(value in own for value in head):
            raise Moved("the launcher's arguments are in another order")
        run = _c_function(runner.launch)
        return Loaded(run, head, places[0], nested, _encoders(compiled), compiled)


def _c_function(launch) -> Callable[..., None]:
    """The C function; for kernels with tensor descriptors it is inside a Python function."""
    if isinstance(launch, types.FunctionType):
        cells = dict(zip(launch.__code__.co_freevars, launch.__closure__ or (), strict=True))
        launch = cells["launcher"].cell_contents
    if isinstance(launch, types.FunctionType):
        raise Moved("the launcher is a Python function")
    return launch


def _encoders(compiled) -> tuple[Callable[[Any], Any], ...]:
    """Descriptor -> tensor map, for each entry of the kernel's metadata."""
    entries = getattr(compiled.metadata, "tensordesc_meta", None) or ()
    if not entries:
        return ()
    make = sys.modules[type(compiled.run).__module__].make_tensordesc_arg
    more = (None,) * (len(inspect.signature(make).parameters) - 2)
    return tuple(
        lambda descriptor, entry=entry: make(descriptor, entry, *more)[0] for entry in entries
    )
