"""The launches of one kind of product, one kernel after another, complete but for addresses."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import workspace
from .binding import Call
from .torch_private import current_stream, empty_strided
from .workspace import Room

#: Copies and sums begin at multiples of this many bytes: TMA's alignment, and L2's lines.
APART = 256


class Launches:
    """Copies of operands if there are any, then the product; safe to share between threads.

    Addresses that `calls` use: those of a, b and c; of each of the `copies`, given in bytes; of the
    partial sums and the counters, if there is `room`. All but the counters are one block of
    memory, which torch's allocator provides for each call.
    """

    __slots__ = ("_bytes", "_calls", "_counters", "_offsets", "device")

    def __init__(
        self, device: int, calls: Sequence[Call], copies: Sequence[int], room: Room | None
    ):
        self.device, self._calls = device, tuple(calls)
        self._counters = room.counters if room else 0
        offsets, end = [], 0
        for size in (*copies, *([room.bytes] if room else [])):
            offsets.append(end)
            end += -(-size // APART) * APART
        self._offsets, self._bytes = tuple(offsets), end

    def __call__(self, addresses: tuple[float, ...]) -> None:
        """Launch on the current stream of the current device, which is `device`.

        `addresses` are those of a, b, c and the epilogue's inputs, and the epilogue's factors.
        """
        stream = current_stream(self.device)
        if self._bytes:
            memory = empty_strided((self._bytes,), (1,), torch.uint8)
            begin = memory.data_ptr()
            addresses = (*addresses, *[begin + offset for offset in self._offsets])
            if self._counters:
                zeros = workspace.counters_of(self.device, stream, self._counters)
                addresses = (*addresses, zeros.data_ptr())
        for call in self._calls:
            call(stream, addresses)
