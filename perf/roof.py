"""The roofs: the card's copy rate, and its dense rate at the clock that a large product settles at.

Datasheets give both at a clock and a power that a GEMM does not see.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable

import torch

from tritemm.arch.gpus import flop_per_clock
from tritemm.problem import Device
from tritemm.runtime.clock import elapsed

from .case import DTYPES, Case
from .machine import State

#: Bytes of the buffer that is copied; launches in a row; size of the product that sets the clock.
COPY = 2**31
LAUNCHES = 1000
SIZE = 8192
SECONDS = 1.5


@dataclasses.dataclass(frozen=True)
class Roof:
    """`tflops` of the type's dense rate, and the `gbs` of a copy, read and written bytes alike."""

    tflops: float
    gbs: float

    def floor(self, case: Case) -> float:
        """Microseconds below which no kernel can go: arithmetic or memory, whichever is longer."""
        return max(case.flops / self.tflops / 1e6, case.bytes / self.gbs / 1e3)


@dataclasses.dataclass(frozen=True)
class Roofs:
    """A card's roofs: `mhz`, the clock that a bf16 product settles at; `gbs`, the copy rate.

    `launch`: microseconds of a kernel that does next to nothing, one of many in a CUDA graph.
    """

    device: Device
    mhz: float
    gbs: float
    launch: float = math.nan

    def of(self, case: Case, mhz: float | None = None) -> Roof:
        """The roof of the case's type, at `mhz` instead if given."""
        rate = flop_per_clock(DTYPES[case.dtype], case.precision, self.device)
        return Roof(tflops=rate * (mhz or self.mhz) / 1e6, gbs=self.gbs)


def measure(probe: Callable[[], State]) -> Roofs | None:
    """The current CUDA device's roofs, in about two seconds; None if its clock can't be read."""
    if probe().sm_mhz is None:
        return None
    gbs = copy_rate()
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    clocks, begin = [], time.monotonic()
    while time.monotonic() - begin < SECONDS:
        for _ in range(8):
            torch.mm(a, b)
        clocks.append(probe().sm_mhz)
        torch.cuda.synchronize()
    settled = statistics.median(clocks[len(clocks) // 2 :])
    return Roofs(Device.of(a.device), settled, gbs, launch_time())


def launch_time() -> float:
    """Microseconds of one of many small kernels in a CUDA graph."""
    one, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            one.add_(1)
    return 1e6 * min(elapsed(graph.replay) for _ in range(5)) / LAUNCHES


def copy_rate() -> float:
    """GB/s of a device-to-device copy, bytes read and written."""
    source = torch.randn(COPY // 4, device="cuda")
    target = torch.empty_like(source)
    seconds = [elapsed(lambda: target.copy_(source), repeats=4) for _ in range(5)]
    return 2 * COPY / statistics.median(seconds) / 1e9
