"""The device that products run on: its limits, and the interpreter in the place of one."""

from __future__ import annotations

import dataclasses
import functools

import torch

from ..machine import driver
from ..machine.interpreter import INTERPRETED


class Unsupported(RuntimeError):
    """No kernel is for the device; `short` says in a few words what it is."""

    def __init__(self, sentence: str, short: str = ""):
        super().__init__(sentence)
        self.short = short


@dataclasses.dataclass(frozen=True)
class Device:
    """The limits that kernels and their choice depend on. `shared` is bytes per program.

    `clusters`, of a card that is here: `driver.clusters_at_once`; of others, and those older than
    clusters, there are none (`gpus.clusters_at_once` knows of their models).
    """

    name: str
    capability: tuple[int, int]
    sms: int
    shared: int
    clusters: tuple[int, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # which a string keeps

    @property
    def version(self) -> str:
        """The compute capability as it is written."""
        return "{}.{}".format(*self.capability)

    @staticmethod
    def of(device: torch.device) -> Device:
        """The device that tensors on `device` are multiplied on; Unsupported if it is AMD's."""
        if device.type == "cuda" and not INTERPRETED:
            index = torch.cuda.current_device() if device.index is None else device.index
            return _cuda_device(index)
        return INTERPRETER


@functools.cache
def _cuda_device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip:  # where AMD's GPUs are cuda too, with numbers that NVIDIA's have
        raise Unsupported(
            f"tritemm's kernels are for NVIDIA GPUs, and cuda:{index} is AMD's {properties.name}; "
            "multiply by torch there",
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
