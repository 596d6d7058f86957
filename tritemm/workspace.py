"""Memory that a kernel needs for the time of a call: partial sums, and counters that are zero.

Programs that wait for each other count; every launch must begin at zero. Clearing the counters by a
launch of their own would cost more than a small product. So a kernel leaves them as it found them,
at zero, and the same memory serves the next launch. Partial sums can be anything at first: they
are torch's memory, made for each call and free again after it.

On a stream, launches run one after another, so a stream needs one set of counters. A CUDA graph can
be replayed beside anything but itself; so each stream of each capture gets a set of its own, out of
a slab that is cleared before any capture and kept for ever. Without one, clearing becomes a step of
the graph.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch

from .torch_private import capturing, current_stream, empty_strided

#: Counters per stream at first; and per device for all captures (4 MiB).
FIRST, SLAB = 1 << 12, 1 << 20
#: Counters of a stream of a capture, at least.
CAPTURED = 1 << 9
#: Sets begin this many counters apart: 128 bytes, so that no two share a cache line.
APART = 32

_streams: dict[tuple[int, int], torch.Tensor] = {}
_slabs: dict[int, Slab] = {}
#: Slabs that are used up: graphs still write to their addresses.
_used_up: list[Slab] = []
#: Devices whose slab is nearly used up.
_low: set[int] = set()
#: (device, stream) -> its latest capture and the counters that it got.
_captures: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
_lock = threading.Lock()


class Room(NamedTuple):
    """How much a kind of call needs: `sums` elements of `dtype`, and `counters`."""

    sums: int
    dtype: torch.dtype
    counters: int

    @staticmethod
    def of(work: Sequence[torch.Tensor]) -> Room | None:
        """Of what a rung's workspace made, partial sums and counters; None of nothing."""
        if not work:
            return None
        sums, zeros = work
        return Room(sums.numel(), sums.dtype, zeros.numel())

    def take(self, index: int, stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums and counters for one launch on `stream`, the current one of the current device.

        `index` is that device's. Both must live until the kernel is launched, and no longer.
        """
        if empty_strided is None:
            device = torch.device("cuda", index)
            sums = torch.empty(self.sums, dtype=self.dtype, device=device)
        else:
            sums = empty_strided((self.sums,), (1,), self.dtype)
        return sums, _counters(index, stream, self.counters)


class Slab:
    """Zeros that are given out once, a slice to each stream of each capture."""

    def __init__(self, zeros: torch.Tensor):
        self._zeros, self._used = zeros, 0

    @property
    def low(self) -> bool:
        """Whether there is little left; the next eager call then makes another."""
        return 2 * self._used > self._zeros.numel()

    def take(self, count: int) -> torch.Tensor | None:
        """`count` counters that nobody else gets; None when there are no more."""
        with _lock:
            start = self._used
            if start + count > self._zeros.numel():
                return None
            self._used = start + -(-count // APART) * APART
        return self._zeros[start : start + count]


def counters(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` zeros, int32, [n], for one launch on the current stream of `device`.

    The kernel must leave zeros in all that it changes. `device` is the current device where it is
    a CUDA one. Ask anew for every launch.
    """
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return _counters(index, current_stream(index), count)


def _counters(index: int, stream: int, count: int) -> torch.Tensor:
    """As above, on the current stream of the current device."""
    key = (index, stream)
    # Stream 0, which most calls are on, can't be captured.
    if stream and capturing():
        return _captured(key, count)
    zeros = _streams.get(key)
    if zeros is None or zeros.numel() < count:
        zeros = _grow(key, count)
    elif index in _low:
        _low.discard(index)
        _used_up.append(_slabs[index])
        _slabs[index] = _new_slab(index)
    return zeros


def _captured(key: tuple[int, int], count: int) -> torch.Tensor:
    """For a captured call: those of the calls before it in the same stream of the same capture."""
    index, stream = key
    capture = _capture_of(stream)
    known = _captures.get(key)
    if capture and known and known[0] == capture and known[1].numel() >= count:
        return known[1]
    slab = _slabs.get(index)
    zeros = slab and slab.take(max(count, CAPTURED) if capture else count)
    if zeros is None:
        return _zeros(index, count)
    if slab.low:
        _low.add(index)
    _captures[key] = (capture, zeros)
    return zeros


def _capture_of(stream: int) -> int:
    """The driver's number of the capture that `stream` takes part in; 0 if it doesn't say."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    ask = _driver()
    if ask is None or ask(stream, ctypes.byref(status), ctypes.byref(number), None, None, None):
        return 0
    return number.value if status.value == 1 else 0


@functools.cache
def _driver():
    """cuStreamGetCaptureInfo_v2 of the CUDA driver API; None if there is none."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (AttributeError, OSError):
        return None
    function.argtypes = [ctypes.c_void_p] * 6
    return function


def _grow(key: tuple[int, int], count: int) -> torch.Tensor:
    """More counters for a stream.

    Whoever still has the smaller set may use it: launches on the stream come one after another,
    and its memory goes back to the same stream.
    """
    index, _ = key
    if index not in _slabs:
        _slabs.setdefault(index, _new_slab(index))
    zeros = _zeros(index, max(FIRST, 1 << (count - 1).bit_length()))
    _streams[key] = zeros
    return zeros


def _new_slab(index: int) -> Slab:
    zeros = _zeros(index, SLAB)
    # Graphs are replayed on other streams, which don't wait for this one.
    torch.cuda.current_stream(index).synchronize()
    return Slab(zeros)


def _zeros(index: int, count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=torch.device("cuda", index))
