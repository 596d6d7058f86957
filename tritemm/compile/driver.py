"""A stand-in for the CUDA driver, so that Triton compiles for a GPU that need not be present."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import triton
from triton.backends.compiler import GPUTarget


class _Driver:
    """What `JITFunction` asks a driver, answered for an architecture that may be absent."""

    def __init__(self, sm: int) -> None:
        self.sm = sm

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.sm, 32)

    def get_current_device(self) -> int:
        # Compiled kernels are cached by device: an index that no GPU has keeps them apart.
        return 1000 + self.sm

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, *device: int) -> tuple[int, int]:
        return divmod(self.sm, 10)


_LOCK = threading.Lock()


@contextlib.contextmanager
def standing_for(sm: int) -> Iterator[None]:
    """Inside the block, Triton's active driver is a stand-in for `sm`; one thread at a time."""
    config = triton.runtime.driver
    with _LOCK:
        try:
            before = config.active
        except RuntimeError:  # no GPU; setting None makes Triton look again
            before = None
        config.set_active(_Driver(sm))
        try:
            yield
        finally:
            config.set_active(before)
