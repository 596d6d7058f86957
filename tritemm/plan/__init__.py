"""A kind of call and its launches: `run` makes those of one product."""

from __future__ import annotations

import contextlib

import torch

from .. import dispatch
from ..kernels.pack import pack
from ..problem import Problem
from ..problem.config import Config
from ..runtime import fast_path
from ..runtime.binding import Call
from ..runtime.torch_private import current_device
from ..spec import Kernel
from .views import matrices as matrices


def run(kernel: Kernel, problem: Problem, config: Config, a, b, c, *more) -> list[Call | None]:
    """Write the products of `a` and `b` into `c`, on `c`'s device and its current stream.

    `problem` is that of a, b, c, and `more` the inputs of its epilogue, as
    `EpilogueSpec.arguments` orders them. Returns what repeats each launch, in their order; None for
    one that nothing repeats, and nothing at all where there is nothing to multiply.
    """
    if is_trivial(problem.K, c):
        return []
    calls = []
    with on_device(c):
        if config.PACK:
            a, b, call = pack(problem, config.PACK, a, b)
            calls.append(call)
        if config.SWAP:
            a, b, c = b.mT, a.mT, c.mT
            more = [t.mT if isinstance(t, torch.Tensor) and t.dim() > 1 else t for t in more]
        calls.append(kernel.launch(config.view(problem), config, a, b, c, *more))
    return calls


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


def forget() -> None:
    """Plan and choose anew from now on: what was tuned has changed."""
    dispatch.forget()
    fast_path.KNOWN.clear()
