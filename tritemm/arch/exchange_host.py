"""Host helpers of the rung whose clusters exchange sums: tiles that fit, refusals, arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ..kernels.device import exchange
from ..kernels.device.cluster_mainloop import slabs_of
from ..kernels.device.exchange import most_pieces
from ..machine.driver import MOST_PROGRAMS
from ..problem import Device, Problem
from ..spec import Config
from . import cluster_host
from .gluon_host import piece_columns
from .gpus import clusters_at_once
from .host import Box, major_of
from .parts_host import parts_why_not
from .tiles import config_of, in_fixed_parts

#: BLOCK_M, BLOCK_N, BLOCK_K, and the warps of a tile, with as many stages as fit.
Tile = tuple[int, int, int, int]
#: Programs of a cluster at most, on any device; and stages.
MOST, DEEPEST = MOST_PROGRAMS, 12
#: As in the kernel; a call from the host costs several microseconds.
_apart_bytes = functools.cache(exchange.apart_bytes)
_sums_bytes = functools.cache(exchange.slots_bytes)


def fitted(problem: Problem, tiles: Sequence[Tile]) -> tuple[Config, ...]:
    """The configs of the `tiles`, and of some for few columns, whose clusters find room at once."""
    if problem.device.capability[0] != 9:
        return ()
    sizes = problem.M, problem.N, problem.K, problem.batch, problem.device
    return _fitted(tiles, *sizes, problem.device.shared, *cluster_host.ring_kind(problem))


@functools.lru_cache
def _fitted(tiles, M, N, K, batch, device, *kind) -> tuple[Config, ...]:
    found = []
    for rows, columns, depth, warps in _with_narrow(tiles, N):
        count = -(-M // rows) * -(-N // columns) * batch
        if 2 * count <= device.sms:
            for split in splits(count, -(-K // depth), device):
                found.append(_deepest(rows, columns, depth, warps, split, *kind))
    return tuple(filter(None, found))


def ordered(tiles: Sequence[Tile]) -> Callable[[Problem, int], Sequence[Config]]:
    """`Kernel.ordered`: the same with clusters of as many programs as K has fixed parts.

    Those for few columns also where rows are few.
    """

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        if not 2 <= parts <= MOST:
            return ()
        sizes = problem.M, problem.N, problem.batch, clusters_at_once(parts, problem.device)
        kind = problem.device.shared, *cluster_host.ring_kind(problem)
        return in_fixed_parts(_in_one_round(tiles, parts, *sizes, *kind), parts)

    return configs


@functools.lru_cache
def _in_one_round(tiles, split, M, N, batch, room, *kind) -> tuple[Config, ...]:
    found = (
        _deepest(*tile, split, *kind)
        for tile in _with_narrow(tiles, min(M, N))
        if -(-M // tile[0]) * -(-N // tile[1]) * batch <= room
    )
    return tuple(filter(None, found))


@functools.lru_cache(maxsize=4096)
def _with_narrow(tiles: Sequence[Tile], columns: int) -> Sequence[Tile]:
    """With some for at most 64 columns."""
    if columns > 64:
        return tiles
    sizes = sorted({8, 16, 32, -(-columns // 8) * 8})
    sizes = [n for n in sizes if n < 2 * columns and n != 64]
    return tiles + tuple((m, n, 128, m // 16) for m in (64, 128) for n in sizes)


@functools.lru_cache(maxsize=4096)
def splits(tiles: int, steps: int, device: Device) -> tuple[int, ...]:
    """Numbers of programs for a tile: the most that one round of all SMs has room for, and half
    as many; 4 steps or more each."""
    if steps < 8:
        return ()
    most = max((n for n in range(2, MOST + 1) if tiles <= clusters_at_once(n, device)), default=0)
    return tuple(n for n in sorted({most, most // 2}) if 2 <= n <= steps // 4)


def deepest(problem: Problem, *tile: int) -> Config:
    """With as many stages as fit."""
    return _deepest(*tile, problem.device.shared, *cluster_host.ring_kind(problem))


@functools.lru_cache
def _deepest(rows, columns, depth, warps, split, shared, b_major, *stores) -> Config | None:
    """None if the sums don't fit where the most stages lie that there is room for."""
    able = (config_of(rows, columns, depth, warps, n, split) for n in range(DEEPEST, 1, -1))
    config = next(config for config in able if _buffers(config, shared, b_major, *stores))
    return config if _sums_fit(config, b_major) else None


def _sums_fit(config: Config, b_major: str) -> bool:
    """Where the stages lie, or in room of their own; behind them are the barriers."""
    room = max(cluster_host.stages_bytes(config, b_major), exchange.APART.value)
    return _sums(config) <= room


def _piece(config: Config) -> int:
    """Columns of a piece."""
    return piece_columns(config.BLOCK_N, config.SPLIT_K)


def _sums(config: Config) -> int:
    """Bytes of all slots."""
    return _sums_bytes(config.BLOCK_M, config.BLOCK_N, config.SPLIT_K, _piece(config))


@functools.lru_cache(maxsize=4096)
def _buffers(config: Config, shared: int, b_major: str, element: int, engine: bool) -> int:
    """See `cluster_host.arguments`."""
    piece, warps = _piece(config), config.num_warps
    own = most_pieces(config.BLOCK_N, config.SPLIT_K, piece) * slabs_of(config.BLOCK_M, warps)
    room = cluster_host.room_beside(config, shared, b_major) - _apart_bytes(_sums(config))
    return cluster_host.output_buffers(room, warps // 4, piece, own, element, engine)


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> tuple[Box, Box, Box | None]:
    """Of A, B and C; None where C is stored by threads."""
    return cluster_host.boxes_of(problem, config, _piece(config))


def config_why_not(problem: Problem, config: Config) -> str | None:
    warps, split = config.num_warps, config.SPLIT_K
    if warps not in (4, 8, 12):
        return f"num_warps is {warps}; 4, 8 or 12 are possible"
    if reason := cluster_host.tile_why_not(config):
        return reason
    if config.BLOCK_K % 64 or not 64 <= config.BLOCK_K <= 256:
        return f"BLOCK_K is {config.BLOCK_K}; multiples of 64 up to 256 are possible"
    if not 2 <= split <= MOST:
        return f"SPLIT_K is {split}; clusters of 2 to {MOST} programs are possible"
    if reason := parts_why_not(problem, config):
        return reason
    if reason := cluster_host.ring_why_not(problem, config, _buffers, warps // 4 * _piece(config)):
        return reason
    if not _sums_fit(config, major_of(problem.b)):
        return "the sums don't fit where the stages lie; take more stages"
    return None


def grid(problem: Problem, config: Config) -> int:
    """Clusters."""
    return config.tiles(problem)


ARGUMENTS = cluster_host.arguments(
    _boxes, _buffers, lambda _, config: {"EPI_N": _piece(config)},
    consumers=lambda config: config.num_warps // 4,
)  # fmt: skip
