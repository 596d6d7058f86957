"""From a chosen kernel to the GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from . import shortcut
from .kernels.pack import pack
from .problem import Problem
from .spec import Config, Kernel


def is_trivial(terms: int, c: torch.Tensor) -> bool:
    """Whether there is nothing to multiply; then `c` is finished: sums of no terms are zero."""
    if terms == 0:
        c.zero_()
    return terms == 0 or c.numel() == 0


def run(kernel: Kernel, problem: Problem, config: Config, a, b, c) -> shortcut.Call | None:
    """Write the products of `a` and `b` into `c`, on `c`'s device and its current stream.

    Returns what repeats the last step, the kernel's own, if there is that.
    """
    if is_trivial(problem.K, c):
        return None
    with torch.cuda.device_of(c):
        if config.PACK:
            a, b = pack(problem, config.PACK, a, b)
        if config.SWAP:
            a, b, c = b.mT, a.mT, c.mT
        return kernel.launch(config.view(problem), config, a, b, c)


def elapsed(call: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of the GPU per call, of `repeats` calls in a row on the current stream."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3 / repeats
