"""From a chosen kernel to the GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .problem import Problem
from .spec import Config, Kernel


def is_trivial(terms: int, c: torch.Tensor) -> bool:
    """Whether there is nothing to multiply; then `c` is finished: sums of no terms are zero."""
    if terms == 0:
        c.zero_()
    return terms == 0 or c.numel() == 0


def run(kernel: Kernel, problem: Problem, config: Config, a, b, c) -> None:
    """Write the products of `a` and `b` into `c`, on `c`'s device and its current stream."""
    if is_trivial(problem.K, c):
        return
    with torch.cuda.device_of(c):
        kernel.launch(problem, config, a, b, c)


def elapsed(call: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of the GPU per call, of `repeats` calls in a row on the current stream."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3 / repeats
