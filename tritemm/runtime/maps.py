"""Tensor maps, by which TMA reads a tensor, encoded once for each address."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from ..machine.driver import have_context
from .torch_private import current_device

#: The most tensor maps to keep, all together: about 20 MB.
MAPS = 1 << 16


class Maps(dict):
    """Address -> tensor map, of one geometry.

    A map holds an address and a geometry and nothing else: a map of freed memory is valid again
    when the address is. Once `MAPS` have been made, all of them are dropped.
    """

    _every: ClassVar[weakref.WeakSet[Maps]] = weakref.WeakSet()
    _made: ClassVar[int] = 0
    _lock: ClassVar[threading.Lock] = threading.Lock()
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, encode: Callable[[Any], Any], descriptor):
        super().__init__()
        self._encode = encode
        self._kind = type(descriptor)
        self._geometry = {k: v for k, v in vars(descriptor).items() if k != "base"}
        with Maps._lock:
            Maps._every.add(self)

    def __missing__(self, address: int):
        if Maps._made >= MAPS:
            with Maps._lock:
                for maps in Maps._every:
                    maps.clear()
            Maps._made = 0
        Maps._made += 1
        have_context(current_device())
        # A descriptor as Triton's encoder reads it, without a tensor that would be kept alive.
        descriptor = object.__new__(self._kind)
        base = types.SimpleNamespace(data_ptr=lambda: address)
        descriptor.__dict__.update(self._geometry, base=base)
        tensor_map = self[address] = self._encode(descriptor)
        return tensor_map
