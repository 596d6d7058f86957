"""The device that products run on and its limits; the interpreter counts as one."""

from __future__ import annotations

import dataclasses
import functools

import torch

from ..machine import driver
from ..machine.interpreter import INTERPRETED


class Unsupported(RuntimeError):
    """No kernel supports the device; `short` describes the device in a few words."""

    def __init__(self, sentence: str, short: str = ""):
        super().__init__(sentence)
        self.short = short


@dataclasses.dataclass(frozen=True)
class Device:
    """The limits that kernels and their choice depend on. `shared` is bytes per program.

    `clusters`, for a GPU that is present: `driver.clusters_at_once`; empty for others and for those
    older than clusters (`gpus.clusters_at_once` knows about their models).
    """

    name: str
    capability: tuple[int, int]
    sms: int
    shared: int
    clusters: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # which a string caches

    @property
    def version(self) -> str:
        """The compute capability , as in 9.0."""
        return "{}.{}".format(*self.capability)

    @staticmethod
    def of(device: torch.device) -> Device:
        """The device that multiplies tensors on `device`; Unsupported if it is AMD's."""
        if device.type == "cuda" and not INTERPRETED:
            index = torch.cuda.current_device() if device.index is None else device.index
            return _cuda_device(index)
        return INTERPRETER


@functools.cache
def _cuda_device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:  # AMD's GPUs are cuda too, with NVIDIA's version numbers
        raise Unsupported(
            f"tritemm's kernels are for NVIDIA GPUs, and cuda:{index} is AMD's {properties.name}; "
            "use torch there",
            "an AMD GPU",
        )
    shared = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
    return Device(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sms=properties.multi_processor_count,
        shared=shared,
        clusters=driver.clusters_at_once(index, shared),
    )


#: Triton's interpreter: no limits of its own; few "SMs", so that persistent loops do loop.
INTERPRETER = Device("Triton interpreter", (9, 0), 3, 1 << 30)
