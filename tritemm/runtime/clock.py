"""Seconds of the GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch


def elapsed(call: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of the GPU per call, of `repeats` calls in a row on the current stream."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3 / repeats
