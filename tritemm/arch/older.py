"""Tiles of the plain rungs on GPUs before sm_90, which have no WGMMA that reads shared memory."""

from __future__ import annotations

import dataclasses
import functools

import torch

from ..problem import Problem
from ..spec import Config


def in_registers(problem: Problem, configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """`configs`, smaller where ptxas would spill: in fp32 before sm_90.

    There, fragments of split operands take registers beside the accumulator, and so do the
    addresses of single elements in tiles of 64 x 64 with 8 warps: the ptxas of Triton 3.8 spills 8
    to 32 bytes per thread.
    """
    if problem.a.dtype != torch.float32 or problem.device.capability >= (9, 0):
        return configs
    if not problem.vectorised:
        return _with(configs, num_warps=4)
    return _with(configs, BLOCK_N=64) if "x" in problem.precision else configs


@functools.cache
def _with(configs: tuple[Config, ...], **changes: int) -> tuple[Config, ...]:
    """The same objects at every call, which is what tuning knows them by."""
    return tuple(dataclasses.replace(config, **changes) for config in configs)
