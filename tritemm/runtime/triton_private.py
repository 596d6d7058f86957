"""What is private to Triton and used all the same: how it calls the C function that launches.

Triton 3.6 to 3.9 have the names. Where one is not as expected, `Loaded.of` raises, and the kernel
is launched by Triton. And how it names kernels in its cache on disk.
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
    """Have `fn`'s name in Triton's cache on disk follow from its source alone.

    Triton 3.6 names a kernel by the constants of the functions that it calls as far as these have
    names already; 3.8 does not. So one process doesn't find what another compiled, if that had
    other kernels before. Here functions that are called get their names first. Where that can't be
    done, a warning says so: kernels are compiled again then.
    """
    if getattr(fn, "hash", "there") is not None or not _needs_settling():
        return
    try:
        with _SETTLING:
            _name(fn, set())
    except Exception as error:  # whatever has moved
        warnings.warn(
            f"the kernels' names in Triton's cache are not settled ({error}): processes may "
            "compile what others have compiled",
            stacklevel=2,
        )


@functools.cache
def _needs_settling() -> bool:
    return tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)


def _name(fn, begun: set) -> None:
    """That of `fn`, after those of what it calls; `begun` may call themselves."""
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
    except Exception:  # whatever has moved
        programs = None
    if programs is marks.num_ctas:
        return None
    return f"Triton {triton.__version__} can't be told to launch clusters as 3.6 to 3.9 can"


def in_clusters(compiled, size: int) -> None:
    """Have `compiled` launched in clusters of `size` programs, which its grid then counts.

    Triton launches clusters of kernels that it compiled for them, with layouts of tensors that
    are spread over all their programs. What it reads at the launch is this number alone.
    """
    warps, programs, *more = compiled.packed_metadata
    if programs not in (1, size) or compiled.metadata.num_ctas != 1:
        raise Moved(f"clusters of {size}: the launcher's metadata are {compiled.packed_metadata}")
    compiled.packed_metadata = (warps, size, *more)


def in_boxes(compiled, boxes: Sequence[Sequence[int] | None]) -> None:
    """Have the tensor maps of `compiled`'s descriptors encoded with these boxes, where not None.

    Triton takes a map's box from the descriptor's block, whose sizes are powers of two; the copy
    engine takes any up to 256. Its encoder reads these entries alone, at each launch.
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

    `head`: what stands before the kernel's own arguments, beginning with three for the grid;
    `stream`: the stream's place there. `nested`: the kernel's arguments are one sequence (Triton
    3.9), not spread out. `encoders`: of each tensor descriptor, in the order of the parameters.
    `kernel` is kept because its code may be unloaded with it.
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

        What the C function is given is not known here but observed: Triton's launcher runs once
        with marks for arguments, and a recorder in the C function's place.
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
    """The C function, which kernels with tensor descriptors have inside a Python function."""
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
