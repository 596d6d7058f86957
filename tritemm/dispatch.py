"""Problem -> kernel and config, and why.

`kernel="auto"` takes the highest rung that doesn't refuse, in the config with the least predicted
time. The model is coarse: it compares configs of one rung, and it tells `explain` what to expect.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import torch

from .problem import INTERPRETED, Device, Problem
from .rungs import RUNGS
from .spec import Config, Kernel

#: Dense FLOP per clock and SM for 16-bit operands, by compute-capability major. For Hopper:
#: 989 TFLOP/s at 1830 MHz on 132 SMs (NVIDIA H200 datasheet).
FLOP_PER_CLOCK = {8: 2048, 9: 4096, 10: 8192, 12: 1024}
#: The SM clock that a power-limited H200 sustains under a large GEMM, in Hz (measured).
CLOCK = 1.43e9
#: Device-memory bytes per second of an H200 (measured: copy, read plus written).
MEMORY_RATE = 4.3e12
#: Bytes per second and SM from L2 to shared memory (measured on an H200: 7 to 8 TB/s in all).
L2_RATE = 7.5e12 / 132
#: Seconds to launch, fill the pipeline and drain it.
RAMP = 4e-6

#: Rate of a type relative to 16-bit operands.
_TYPE_RATE = {torch.int8: 2.0, torch.float8_e4m3fn: 2.0, torch.float64: 1 / 15}
_FP32_RATE = {"ieee": 1 / 15, "tf32": 0.5, "tf32x3": 1 / 6, "bf16x3": 1 / 3, "bf16x6": 1 / 6}


@dataclasses.dataclass(frozen=True)
class Choice:
    """A kernel, its config, and what was refused on the way to it."""

    problem: Problem
    kernel: Kernel
    config: Config
    asked: str
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def predicted(self) -> float:
        """Seconds that the model expects."""
        return predict(self.problem, self.config)

    @property
    def roofline(self) -> float:
        """Seconds below which no kernel can go: arithmetic or memory, whichever is longer."""
        return max(*_floors(self.problem))

    def __str__(self) -> str:
        problem, config = self.problem, self.config
        tiles, sms = config.tiles(problem), problem.device.sms
        if self.asked == "auto":
            why = "the highest rung that can run this problem"
        else:
            why = f'asked for with kernel="{self.asked}"'
        arithmetic, memory = _floors(problem)
        bound = "arithmetic" if arithmetic >= memory else "memory"
        waves = tiles / sms
        lines = [
            f"problem    {problem}",
            f"kernel     {self.kernel.name}: {self.kernel.title}",
            f"config     {config}",
            f"why        {why}; {tiles} tiles on {sms} SMs are {waves:.2f} waves, "
            f"{100 * waves / math.ceil(waves):.0f} % full",
            *(f"refused    {name}: {reason}" for name, reason in self.refused),
        ]
        if INTERPRETED:
            lines.append("predicted  nothing: Triton's interpreter runs the kernel on the CPU")
        else:
            lines.append(
                f"predicted  {1e6 * self.predicted:.1f} us; roofline {1e6 * self.roofline:.1f} us, "
                f"bound by {bound} ({problem.flops / max(problem.bytes, 1):.0f} FLOP per byte)"
            )
        return "\n".join(lines)


@functools.lru_cache(maxsize=4096)
def choose(problem: Problem, kernel: str = "auto") -> Choice:
    """The kernel and config that will run `problem`.

    Raises:
        ValueError: `kernel` is no rung, or the rung refuses; the message says why and what can.
        RuntimeError: the device is older than sm_80.
    """
    if problem.device.capability < (8, 0):
        major, minor = problem.device.capability
        raise RuntimeError(
            f"tritemm needs compute capability 8.0; {problem.device.name} has {major}.{minor}"
        )
    if kernel != "auto":
        rung = find(kernel)
        reason = rung.why_not(problem)
        if reason:
            able = next((k.name for k in reversed(RUNGS) if not k.why_not(problem)), None)
            hint = f'; kernel="{able}" can run this' if able else ""
            raise ValueError(f'kernel="{kernel}" cannot run this problem: {reason}{hint}')
        return Choice(problem, rung, best_config(rung, problem), kernel)
    refused = []
    for rung in reversed(RUNGS):
        reason = rung.why_not(problem)
        if reason is None:
            return Choice(problem, rung, best_config(rung, problem), kernel, tuple(refused))
        refused.append((rung.name, reason))
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
    raise ValueError(f"no kernel can run {problem}: {reasons}")


def find(name: str) -> Kernel:
    """The rung called `name`; ValueError with all names if there is none."""
    for rung in RUNGS:
        if rung.name == name:
            return rung
    names = ", ".join(rung.name for rung in RUNGS)
    raise ValueError(f'kernel="{name}" is unknown; one of auto, {names}')


def best_config(kernel: Kernel, problem: Problem) -> Config:
    """The kernel's config with the least predicted time; the earlier one where they tie."""
    if INTERPRETED:
        return kernel.interpreted
    return min(kernel.configs(problem), key=lambda config: predict(problem, config))


def predict(problem: Problem, config: Config) -> float:
    """Seconds: waves of tiles, each bound by its arithmetic or its L2 reads, plus the ramp."""
    waves = math.ceil(config.tiles(problem) / problem.device.sms)
    flops = 2 * config.BLOCK_M * config.BLOCK_N * problem.K
    loads = (config.BLOCK_M + config.BLOCK_N) * problem.K * problem.itemsize
    tile = max(flops / (_rate(problem) / problem.device.sms), loads / L2_RATE)
    return max(waves * tile, _floors(problem)[1]) + RAMP


def _floors(problem: Problem) -> tuple[float, float]:
    """Seconds for the arithmetic and for the bytes, each at its full rate."""
    return problem.flops / _rate(problem), problem.bytes / MEMORY_RATE


def _rate(problem: Problem) -> float:
    """FLOP per second of the whole device for the problem's type."""
    return CLOCK * flop_per_clock(problem.a.dtype, problem.precision, problem.device)


def flop_per_clock(dtype: torch.dtype, precision: str, device: Device) -> float:
    """Dense FLOP per clock of the whole device; `precision` says how fp32 is multiplied."""
    relative = _FP32_RATE[precision] if dtype == torch.float32 else _TYPE_RATE.get(dtype, 1.0)
    per_clock = FLOP_PER_CLOCK.get(device.capability[0], max(FLOP_PER_CLOCK.values()))
    return relative * per_clock * device.sms
