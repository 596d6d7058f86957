"""Memory that a kernel needs during a call: partial sums, and counters that start at zero.

Partial sums may hold anything at first: torch's allocator provides their memory for each call, from
the current stream and pool, and frees it afterwards.

Programs that wait for each other count, and every launch must begin at zero. Clearing counters by
a separate launch would cost more than a small product. So a kernel leaves them as it found them, at
zero, and the next launch reuses the same memory. Launches of one stream run one after another, so a
stream needs one set. A stream is identified by a number that the driver never reuses: a handle may
come back as another stream's, while the first one's work still runs. Sets outlive the call, so they
are in no pool of a caller's (a CUDA graph's, or a `torch.cuda.MemPool`).

A CUDA graph can be replayed concurrently with anything but itself; so each stream of each capture
gets its own set, out of a slab that is cleared before any capture and kept forever. Without a slab,
clearing becomes a step of the graph.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from ..machine import driver
from .torch_private import capturing, current_stream

#: Initial counters per stream; and per device for all captures (4 MiB).
FIRST, SLAB = 1 << 12, 1 << 20
#: The least counters of a stream in a capture.
CAPTURED = 1 << 9
#: Sets begin this many counters apart: 128 bytes, so that no two share a cache line.
APART = 32

#: (device, stream's number) -> its counters.
_streams: dict[tuple[int, int], torch.Tensor] = {}
_slabs: dict[int, Slab] = {}
#: Slabs that are used up: graphs still write to their addresses.
_used_up: list[Slab] = []
#: (device, stream's handle) -> its latest capture and the counters that it got.
_captures: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
_lock = threading.Lock()


class Room(NamedTuple):
    """How much a call needs: `sums` elements of `dtype`, and `counters`."""

    sums: int
    dtype: torch.dtype
    counters: int

    @property
    def bytes(self) -> int:
        """Bytes of the partial sums."""
        return self.sums * self.dtype.itemsize

    def tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums and counters for one launch on the current stream of `device`."""
        sums = torch.empty(self.sums, dtype=self.dtype, device=device)
        return sums, counters(device, self.counters)


class Slab:
    """Zeros that are handed out once, a slice to each stream of each capture."""

    def __init__(self, zeros: torch.Tensor):
        self._zeros, self._used = zeros, 0
        #: Whether little is left; the next eager call then makes another.
        self.low = False

    def take(self, count: int) -> torch.Tensor | None:
        """`count` counters that nobody else gets; None if there are no more."""
        with _lock:
            start = self._used
            if start + count > self._zeros.numel():
                return None
            self._used = start + -(-count // APART) * APART
            self.low = 2 * self._used > self._zeros.numel()
        return self._zeros[start : start + count]


def counters(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` zeros, int32, [n], for one launch on the current stream of `device`.

    The kernel must leave zeros in all that it changes. A CUDA `device` must be the current device.
    Ask again for every launch.
    """
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    return counters_of(index, current_stream(index), count)


def counters_of(index: int, stream: int, count: int) -> torch.Tensor:
    """As above, on `stream`, the current one (its handle) of the current device, `index`."""
    # Stream 0, which most calls are on, can't be captured or destroyed.
    if stream:
        if capturing():
            return _captured(index, stream, count)
        stream = driver.number_of(stream)
    zeros = _streams.get((index, stream))
    if zeros is None or zeros.numel() < count:
        zeros = _grow(index, stream, count)
    elif (slab := _slabs.get(index)) and slab.low:
        slab.low = False  # one thread makes another, which takes a while
        _used_up.append(slab)
        _slabs[index] = Slab(_kept_zeros(index, SLAB))
    return zeros


def _captured(index: int, stream: int, count: int) -> torch.Tensor:
    """For a captured call: the counters of earlier calls in the same stream of the same capture."""
    # The handle suffices: captures have numbers. (Reading the stream's would end the capture.)
    key, capture = (index, stream), driver.capture_of(stream)
    known = _captures.get(key)
    if capture and known and known[0] == capture and known[1].numel() >= count:
        return known[1]
    slab = _slabs.get(index)
    size = max(count, CAPTURED) if capture else count
    zeros = slab.take(size) if slab else None
    if zeros is None:
        return _zeros(index, count)
    _captures[key] = (capture, zeros)
    return zeros


def _grow(index: int, stream: int, count: int) -> torch.Tensor:
    """More counters for a stream.

    The smaller set may still be in use: launches on the stream come one after another, and its
    memory goes back to torch only when the stream's work is done.
    """
    if index not in _slabs:
        _slabs.setdefault(index, Slab(_kept_zeros(index, SLAB)))
    zeros = _kept_zeros(index, max(FIRST, 1 << (count - 1).bit_length()))
    smaller = _streams.get((index, stream))
    if smaller is not None:
        smaller.record_stream(torch.cuda.current_stream(index))
    _streams[index, stream] = zeros
    return zeros


def _kept_zeros(index: int, count: int) -> torch.Tensor:
    """Zeros that any stream may use, outside of every pool of a caller's.

    Pools belong to a thread, so another thread makes them, on the default stream.
    """

    def make() -> torch.Tensor:
        with torch.cuda.device(index):
            zeros = _zeros(index, count)
            torch.cuda.current_stream(index).synchronize()
        return zeros

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def _zeros(index: int, count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=torch.device("cuda", index))
