"""From a chosen kernel to the GPU."""

from __future__ import annotations

import torch

from .problem import Problem
from .spec import Config, Kernel


def run(kernel: Kernel, problem: Problem, config: Config, a, b, c) -> None:
    """Write the products of `a` and `b` into `c`, on `c`'s device and its current stream.

    With K = 0 there is nothing to multiply: `c` is zeroed, whatever the kernel.
    """
    if c.numel() == 0:
        return
    if problem.K == 0:
        c.zero_()
        return
    with torch.cuda.device_of(c):
        kernel.launch(problem, config, a, b, c)
