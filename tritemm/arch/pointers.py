"""Triton rungs that load through pointers: arguments, tiles, and their needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from ..problem import Config, Constraint, Need, Problem, Tile
from ..spec import Arguments
from . import sm80, sm90
from .limits import SINGLE_COLUMNS, accumulated, in_registers, launchable
from .lines import once_per, sizes

#: Bytes of shared memory for barriers, in addition to tiles.
BARRIERS = 512


#: Arguments of the rungs that address their operands through pointers and strides.
POINTERS = Arguments(
    fixed=lambda problem, config: sizes(problem, "abc"),
    tensors=lambda problem, config, a, b, c: {"a_ptr": a, "b_ptr": b, "c_ptr": c},
)


def types_and_room(problem: Problem) -> tuple:
    """What tiles of the rungs in Triton follow from: types, room, and the width of loads."""
    types = problem.a.dtype, problem.c.dtype, problem.precision
    return *types, problem.device.shared, problem.vectorised, sm90.has_tma(problem.device)


def classic_tile(problem: Problem) -> Config:
    """The block tile of the CUDA HGEMM ladder, 256 x 128 with 64-byte rows of K, 8 warps.

    Other types than the 16-bit ones need smaller tiles to stay in registers, and so do loads of
    single elements, which hold many addresses.
    """
    if problem.a.dtype == torch.float64:
        return Config(64, 32, 16, num_warps=4)
    if problem.a.dtype == torch.float32:
        tile = (128, 128) if problem.vectorised else (64, 64)
        return Config(*tile, 16, num_warps=8)
    tile = (256, 128) if problem.vectorised and problem.itemsize == 2 else (128, 128)
    return Config(*tile, 64 // problem.itemsize, num_warps=8)


@once_per(types_and_room)
def classic_tiles(problem: Problem, *orders: str) -> tuple[Config, ...]:
    """The classic tile in each of the raster `orders`."""
    tile = classic_tile(problem)
    return _in_registers(problem, [dataclasses.replace(tile, ORDER=order) for order in orders])


@once_per(types_and_room)
def tiles_in_flight(problem: Problem) -> tuple[Config, ...]:
    """Tiles of rungs that overlap copies with products, the deepest ring first."""
    classic = classic_tile(problem)
    tiles, depths = [classic], [4, 3, 2]
    if problem.itemsize > 2:
        depths = [3]  # the others spill a few registers on sm_80
    if problem.itemsize == 2 and problem.vectorised:
        tiles = [Config(128, 256, 64, num_warps=8), classic]
    elif problem.by_ffma and problem.vectorised and sm90.has_tma(problem.device):
        tiles = [Config(64, 64, 16, num_warps=4)]  # five fit on an SM, and two of the classic one
    configs = [
        dataclasses.replace(tile, num_stages=stages, ORDER="grouped")
        for tile in tiles
        for stages in depths
    ]
    return _in_registers(problem, [config for config in configs if fits(problem, config)])


def _in_registers(problem: Problem, configs: list[Config]) -> tuple[Config, ...]:
    """`configs`, smaller where ptxas would spill: in fp32 before WGMMA read shared memory.

    There, fragments of split operands take registers in addition to the accumulator, as do the
    addresses of single elements in tiles of 64 x 64 with 8 warps: the ptxas of Triton 3.8 spills 8
    to 32 bytes per thread.
    """
    if problem.a.dtype != torch.float32 or sm90.has_tma(problem.device):
        return tuple(configs)
    if not problem.vectorised:
        return tuple(dataclasses.replace(config, num_warps=4) for config in configs)
    if "x" in problem.precision:
        return tuple(dataclasses.replace(config, BLOCK_N=64) for config in configs)
    return tuple(configs)


def fits(problem: Problem, config: Config, outputs: int = 0) -> bool:
    """Whether stages of A and B fit into shared memory, together with `outputs` tiles of C."""
    stage = (config.BLOCK_M + config.BLOCK_N) * config.BLOCK_K * problem.itemsize
    output = config.BLOCK_M * config.BLOCK_N * problem.c.dtype.itemsize
    return config.num_stages * stage + outputs * output + BARRIERS <= problem.device.shared


def least_depth(problem: Problem) -> int:
    """The least elements of K in a tensor-core instruction."""
    return sm80.DEPTH_OF_BYTES if problem.itemsize == 1 else sm80.DEPTH


def is_wgmma(problem: Problem, config: Config) -> bool:
    """Whether Triton uses WGMMA where it can: it needs enough rows and warpgroups."""
    rows, columns = config.BLOCK_M >= sm90.ROWS, config.BLOCK_N >= sm90.COLUMN_STEP
    enough = rows and columns and config.num_warps >= sm90.WARPGROUP
    return enough and sm90.has_wgmma(problem.device)


#: int8 on mma.sync, which Triton lets saturate: sums that can't overflow.
EXACT_INT8 = Constraint(
    "K is {p.K}: from 131072 on, int32 sums of int8 products can overflow, and mma.sync saturates "
    "instead of wrapping",
    lambda p: p.a.dtype != torch.int8 or p.K < 2**17,
)


def wraps(p: Problem) -> str | None:
    """The constraint on int8 without WGMMA, which wraps."""
    return None if sm90.has_wgmma(p.device) else EXACT_INT8(p)


def needs(configs: Callable[[Problem], Sequence[Config]], *first: Need) -> tuple[Need, ...]:
    """The needs of rungs whose tiles Triton multiplies, with a program for each, after the needs in
    `first`."""
    return (*first, SINGLE_COLUMNS, wraps, launchable(configs))


def _tile_wraps(t: Tile) -> str | None:
    reason = None if is_wgmma(t.p, t.c) else EXACT_INT8(t.p)
    return reason and f"{reason}; WGMMA wraps, in tiles of 64 rows or more and 4 warps or more"


class Dot(Tile):
    """A tile that Triton multiplies."""

    warpgroups = True
    needs: ClassVar[tuple[Need, ...]] = (
        Constraint(
            "BLOCK_K is {t.c.BLOCK_K}; the tensor core takes {t.least_depth} or more at a time",
            lambda t: t.least_depth <= t.c.BLOCK_K,
        ),
        in_registers,
        _tile_wraps,
        Constraint(
            "the tiles of A and B don't fit into shared memory; use smaller ones",
            lambda t: fits(t.p, t.c),
        ),
    )

    @property
    def least_depth(self) -> int:
        return least_depth(self.p)


class SmallDot(Dot):
    """A tile that is too small for warpgroups."""

    warpgroups = False


class Threads(Tile):
    """A tile without a tensor core."""

    needs = (accumulated,)
