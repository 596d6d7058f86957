"""From a chosen kernel to the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from . import shortcut
from .kernels.pack import pack
from .problem import Problem
from .spec import Config, Kernel
from .torch_private import current_device


def is_trivial(terms: int, c: torch.Tensor) -> bool:
    """Whether there is nothing to multiply; then `c` is finished: sums of no terms are zero."""
    if terms == 0:
        c.zero_()
    return terms == 0 or c.numel() == 0


def on_device(tensor: torch.Tensor) -> contextlib.AbstractContextManager:
    """Where the device of `tensor` is the current one; on the CPU, any."""
    if not tensor.is_cuda or tensor.get_device() == current_device():
        return contextlib.nullcontext()
    return torch.cuda.device_of(tensor)


def run(kernel: Kernel, problem: Problem, config: Config, a, b, c) -> shortcut.Call | None:
    """Write the products of `a` and `b` into `c`, on `c`'s device and its current stream.

    Returns what repeats the last step, the kernel's own, if there is that.
    """
    if is_trivial(problem.K, c):
        return None
    with on_device(c):
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
