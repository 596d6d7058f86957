"""What is known about GPUs: a measured one has its own file, for others the architecture decides.

A file holds the `physics` of the GPU, which `python -m perf roofline --write` measures, and
may hold constants `fitted` to the times of kernels, for `tritemm.dispatch.cost_model`. It is
a lower layer than the kernels, because a grid of clusters depends on how many the GPU has room for.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...problem import PRODUCTS, RESIDUES, Device

#: NVIDIA's datasheet numbers of an architecture, and the sustained rates under a large GEMM:
#: dense 16-bit FLOP per clock and SM, Hz, bytes per second of device memory.
#: A100, A10/A40, L40S, H100, B200, RTX PRO 6000.
_ARCHITECTURE = {
    (8, 0): (2048, 1.30e9, 1.8e12),
    (8, 6): (1024, 1.50e9, 0.6e12),
    (8, 9): (1024, 2.00e9, 0.8e12),
    (9, 0): (4096, 1.48e9, 3.1e12),
    (10, 0): (8192, 1.60e9, 7.2e12),
    (12, 0): (1024, 2.20e9, 1.6e12),
}
#: Cards by the words of their names: architecture and SMs, from NVIDIA's datasheets. The first one
#: of an architecture represents it.
_CARDS = {
    "A100": (80, 108),
    "A10": (86, 72),
    "A40": (86, 84),
    "RTX 3090": (86, 82),
    "L40S": (89, 142),
    "L4": (89, 58),
    "RTX 4090": (89, 128),
    "H200": (90, 132),
    "H100": (90, 132),
    "B200": (100, 148),
    "B300": (103, 148),
    "RTX PRO 6000": (120, 188),
    "RTX 5090": (120, 170),
    "GB10": (121, 48),
}
#: KiB of shared memory per program: "maximum amount of shared memory per thread block", CUDA C++
#: Programming Guide, table of compute capabilities.
_SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
#: Architecture -> a device of it.
DEVICES = {
    sm: Device(
        f"sm_{sm}", divmod(sm, 10), next(n for of, n in _CARDS.values() if of == sm), kib * 1024
    )
    for sm, kib in _SHARED.items()
}
#: Rate of a type relative to 16-bit operands.
_TYPE_RATE = {1: 2.0, 8: 1 / 15}  # by bytes
_FP32_RATE = {"ieee": 1 / 15, "tf32": 0.5, "tf32x3": 1 / 6, "bf16x3": 1 / 3}
_FP32_RATE |= {name: 1 / products for name, products in PRODUCTS.items()}


@dataclasses.dataclass(frozen=True)
class Physics:
    """The limits of every kernel on a GPU.

    `clock`: Hz of an SM once a large bf16 product has settled. `copy_rate`: bytes per second of a
    copy, read plus written. `launch`: seconds of a kernel that does next to nothing, one of many in
    a CUDA graph. `l2`: bytes of operands that L2 keeps besides all else.
    """

    clock: float
    copy_rate: float
    launch: float = 2.0e-6
    l2: int = 32 * 2**20


@functools.cache
def files() -> tuple[Mapping[str, Any], ...]:
    """The content of each GPU's file."""
    folder = Path(__file__).parent
    return tuple(json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))


def path_of(gpu: str) -> Path:
    """The file of the GPU with this name; it need not exist."""
    return Path(__file__).parent / f"{'-'.join(gpu.lower().split())}.json"


def file_of(gpu: str) -> Mapping[str, Any]:
    """The content of the file of the GPU with this name; ValueError if it has none."""
    for data in files():
        if data["gpu"] == gpu:
            return data
    raise ValueError(f"{path_of(gpu)} is missing: measure the GPU first")


def text_of(data: Mapping[str, Any]) -> str:
    """A file's content as JSON, with one line per tile so that diffs are readable."""
    text = json.dumps(data, indent=1)
    return re.sub(r"\[\s+([^][]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text) + "\n"


def device_of(data: Mapping[str, Any]) -> Device:
    """The GPU that a file is of."""
    return Device(data["gpu"], tuple(data["capability"]), data["sms"], data["shared"])


def named(name: str | int) -> Device:
    """A GPU that need not be present: "H100", "NVIDIA H200", or its architecture, "sm_90", 90.

    A measured card is as its own file says. ValueError, with the known names, if it is unknown.
    """
    text = str(name).strip()
    architectures = ", ".join(device.name for device in DEVICES.values())
    if digits := re.fullmatch(r"(?:sm_?)?(\d+)[af]?", text.lower()):
        sm, oldest = int(digits[1]), min(DEVICES)
        if sm in DEVICES:
            return DEVICES[sm]
        reason = f"is older than sm_{oldest}, which tritemm needs" if sm < oldest else "is unknown"
        raise ValueError(f"architecture sm_{sm} {reason}; one of {architectures}")
    words = set(text.lower().split()) - {"nvidia"}
    for data in files():
        if words and words <= set(data["gpu"].lower().split()):
            return device_of(data)
    for card, (sm, sms) in _CARDS.items():
        if words and words == set(card.lower().split()):
            return dataclasses.replace(DEVICES[sm], name=f"NVIDIA {card}", sms=sms)
    raise ValueError(f"GPU {name!r} is unknown; one of {', '.join(_CARDS)}, or {architectures}")


@functools.lru_cache
def physics(device: Device) -> Physics:
    """What the device's own file says, else its architecture."""
    for data in files():
        if (data["gpu"], data["sms"]) == (device.name, device.sms):
            own = data["physics"]
            return Physics(**{f.name: own[f.name] for f in dataclasses.fields(Physics)})
    _, clock, memory = _architecture(device)
    return Physics(clock, memory)


def flop_per_clock(dtype: torch.dtype, precision: str, device: Device) -> float:
    """Dense FLOP per clock of the whole device; fp32 and fp64 at this precision."""
    relative = _TYPE_RATE.get(dtype.itemsize, 1.0)
    if precision in RESIDUES:
        relative = _TYPE_RATE[1] / RESIDUES[precision]
    elif dtype == torch.float32:
        relative = _FP32_RATE[precision]
    return relative * _architecture(device)[0] * device.sms


def flop_rate(dtype: torch.dtype, precision: str, device: Device) -> float:
    """The same per second, at the sustained clock."""
    return flop_per_clock(dtype, precision, device) * physics(device).clock


def clusters_at_once(programs: int, device: Device) -> int:
    """Clusters of this many programs, one per SM, that fit at once, as the card reports it.

    For a card that is not present, as many as for its model.
    """
    own = device.clusters
    return own[programs - 1] if own else clusters_of_model(programs, device)


@functools.lru_cache
def clusters_of_model(programs: int, device: Device) -> int:
    """Clusters that fit on all GPUs with this name, for choices that cards must agree on.

    A cluster is within a GPC, and GPCs differ in size: on GPUs that were not measured, about the
    same share of the SMs is assumed to be left over.
    """

    def alike(data: Mapping[str, Any]) -> tuple[bool, bool]:
        return data["sms"] == device.sms, data["gpu"] == device.name

    able = (data for data in reversed(files()) if data["physics"]["clusters"])
    data = max(able, key=alike)
    return device.sms * data["physics"]["clusters"][programs - 1] // data["sms"]


def _architecture(device: Device) -> tuple[float, float, float]:
    """The newest one that is not newer than the device."""
    known = [c for c in _ARCHITECTURE if c <= device.capability]
    return _ARCHITECTURE[max(known, default=min(_ARCHITECTURE))]
