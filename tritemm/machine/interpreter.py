"""Whether kernels run in Triton's interpreter: at import, and for tritemm's own kernels alone.

Triton reads TRITON_INTERPRET where a function is decorated: set here, the variable would reach
every child process and every other kernel of this one. So it is left alone, and kernels are
decorated inside `decorating`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator

import torch
from triton import knobs


def chosen() -> bool:
    """As TRITON_INTERPRET says; without it, whether torch counts no GPU.

    It asks NVML, so that CUDA is not started and the process may fork; and the driver only where
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
    """What `triton.jit` decorates inside is interpreted if INTERPRETED says so."""
    if not INTERPRETED:
        yield
        return
    from . import interpreted  # private names of Triton, which a GPU does without

    with interpreted.decorating():
        yield
