"""Whether kernels run in Triton's interpreter: decided at import, for tritemm's own kernels alone.

Triton reads TRITON_INTERPRET when a function is decorated; if we set the variable, every child
process and every other kernel of this process would see it. So we leave it unchanged and decorate
our kernels inside `decorating`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

import torch
from triton import knobs


def chosen() -> bool:
    """TRITON_INTERPRET's value; without it, whether torch counts no GPU.

    torch asks NVML, so CUDA isn't initialised and the process may fork; it asks the driver only if
    NVML doesn't answer.
    """
    if "TRITON_INTERPRET" in os.environ or knobs.runtime.interpret:
        return knobs.runtime.interpret
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(NVML|nvml)")
        return torch.cuda.device_count() == 0


INTERPRETED = chosen()


@contextlib.contextmanager
def decorating() -> Iterator[None]:
    """Inside, what `triton.jit` decorates is interpreted if INTERPRETED says so."""
    if not INTERPRETED:
        yield
        return
    from . import interpreted  # private names of Triton, not needed with a GPU

    with interpreted.decorating():
        yield
