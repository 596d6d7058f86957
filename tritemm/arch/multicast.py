"""Host helpers of the rungs whose clusters share loads: tiles that fit a problem, and the rest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..kernels.device import scheduler
from ..kernels.device.cluster_mainloop import LINE, slabs_of
from ..problem import Device, Problem
from ..runtime.workspace import Room
from ..spec import Arguments, Config
from . import cluster_host
from .gluon_host import partial_sums, piece_columns, unit
from .gpus import clusters_at_once
from .host import Box
from .parts_host import parts_why_not
from .tiles import config_of, in_fixed_parts

#: BLOCK_M, BLOCK_N and the warps of a tile, with as many stages as fit, in clusters of two.
Tile = tuple[int, int, int]
#: BLOCK_M, warps, programs of a cluster, the least and the most BLOCK_N, of tiles as wide as fill
#: so many rounds of all SMs; those of cuBLAS are so too, by its kernels' names.
Fitted = tuple[int, int, int, int, int]
ROUNDS = (1, 2, 3)
#: Parts that K is cut into, for one round; and steps of a part, at least.
PARTS = (2, 3, 4, 6, 8)
LEAST_STEPS = 8
#: BLOCK_M, BLOCK_N and programs of a cluster, of the smallest tile that is fitted.
SMALLEST = (64, 40, 2)
#: Of any problem whose K can be cut.
FOR_ANY = (config_of(128, 128, 64, 8, 4, 2, 2),)
#: Elements of C in the largest tile.
LARGEST = 128 * 256
#: As in the kernel; a call from the host costs several microseconds.
_cluster_tile = functools.cache(scheduler.cluster_tile)


def usual(
    problem: Problem, tiles: Sequence[Tile], programs: tuple[int, ...] = (2,)
) -> tuple[Config, ...]:
    """The configs of those of the `tiles` that fit, in clusters of so many `programs`."""
    return _usual(tiles, programs, problem.device.shared, *cluster_host.ring_kind(problem))


@functools.lru_cache
def _usual(tiles, programs, *kind) -> tuple[Config, ...]:
    found = (deepest(*tile, n, 1, *kind) for n in programs for tile in tiles)
    return tuple(config for config in found if config)


def fitted(
    problem: Problem, table: Sequence[Fitted], besides: Sequence[Tile] = (), cut: bool = False,
    counts: tuple[int, ...] = PARTS,
) -> tuple[Config, ...]:  # fmt: skip
    """Tiles whose columns are the fewest with which C takes so many rounds, the fewest possible.

    Or, with `cut`, those with which it takes one where K is cut, into one of `counts`. None of
    `besides`.
    """
    kind = problem.device.shared, *cluster_host.ring_kind(problem)
    parts = max(1, min(problem.K // (LEAST_STEPS * LINE.value), max(counts)))
    sizes = problem.M, problem.N, problem.batch, parts, problem.device
    return _fitted(table, besides, cut and counts, *sizes, *kind)


@functools.lru_cache
def _fitted(table, besides, cut, M, N, batch, parts, device, *kind) -> tuple[Config, ...]:
    rows, columns, programs = SMALLEST
    if M * N * batch * parts < rows * columns * clusters_at_once(programs, device):
        return ()
    found = {}
    for rows, warps, programs, least, most in table:
        step = 16 if cut else 8  # parts are added up piece by piece: no pieces of 8 columns
        if N + step <= least:
            continue
        # Programs that share B stand one below the other, those that share A side by side.
        high = -(-M // (rows * programs)) * batch
        low = -(-M // rows) * batch
        for clusters, split in _counts(programs, device, cut):
            tall, wide = clusters // high, clusters // low * programs
            width = (tall if tall > wide else wide) * step
            if not width or split > parts:
                continue
            columns = -(-N // width) * step
            if least <= columns <= most:
                if programs != 2 or (rows, columns, warps) not in besides:
                    found[deepest(rows, columns, warps, programs, split, *kind)] = None
                if not cut:
                    break
    found.pop(None, None)
    return tuple(found)


@functools.lru_cache
def _counts(programs: int, device: Device, cut: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Clusters of one to three rounds of whole tiles, or of one where K is cut; into how many."""
    room = clusters_at_once(programs, device)
    return tuple((room // n, n) for n in cut) if cut else tuple((n * room, 1) for n in ROUNDS)


@functools.lru_cache(maxsize=4096)
def deepest(rows: int, columns: int, warps: int, programs: int, split: int, *kind) -> Config | None:
    """With as many stages as fit, if any do."""
    able = [config_of(rows, columns, 64, warps, n, split, programs) for n in range(8, 2, -1)]
    # Consumers take turns where much is stored for what is multiplied: two buffers first, or
    # several of pieces that leave together.
    several = (8, 2, 1) if unit(columns) == 8 else (2, 1)
    for least in several if warps == 4 else (1,):
        for config in able:
            if buffers_of(config, *kind) >= least:
                return config
    return None


def ordered(
    tiles: Sequence[Tile], table: Sequence[Fitted], narrow: Sequence[Tile] = ()
) -> Callable[[Problem, int], Sequence[Config]]:
    """`Kernel.ordered` of a rung whose programs have all of K; with `narrow` tiles of any cluster,
    for C of few."""

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        own = usual(problem, tiles) + fitted(problem, table, tiles)
        if parts > 1:
            return _with_room(in_fixed_parts(own, parts))
        more = usual(problem, narrow, (2, 4)) if narrow else ()
        return tuple({id(config): config for config in own + more}.values()) if more else own

    return configs


@functools.lru_cache(maxsize=4096)
def _with_room(configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Those whose sums the registers hold."""
    return tuple(c for c in configs if cluster_host.most_columns(c) >= c.BLOCK_N)


def shared_parts(table: Sequence[Fitted]) -> Callable[[Problem, int], Sequence[Config]]:
    """The same of one whose clusters have a part each."""

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        if parts == 1:
            return ()
        return in_fixed_parts(fitted(problem, table, cut=True, counts=(parts,)), parts)

    return configs


def either(problem: Problem) -> bool:
    """Whether exchanged operands are worth a look: C is 0.1 to 3 rounds of large tiles."""
    rounds = problem.M * problem.N * problem.batch / (problem.device.sms * LARGEST)
    return 0.1 <= rounds <= 3


def shared_of(problem: Problem, config: Config) -> str:
    """The operand that the programs of a cluster share: with which C takes fewer clusters, or else
    that with the larger tiles; B of equals."""
    high, wide = (clusters_of(problem, config, operand) for operand in "ba")
    larger = "a" if config.BLOCK_M > config.BLOCK_N else "b"
    return larger if high == wide else "b" if high < wide else "a"


def clusters_of(problem: Problem, config: Config, shared: str = "") -> int:
    """That C takes, if they share that operand, or `shared_of`."""
    shared = shared or shared_of(problem, config)
    rows, columns = _cluster_tile(config.CLUSTER, shared, config.BLOCK_M, config.BLOCK_N)
    return -(-problem.M // rows) * -(-problem.N // columns) * problem.batch


def grid(problem: Problem, config: Config) -> int:
    """Clusters."""
    clusters = clusters_of(problem, config) * config.SPLIT_K
    return min(max(1, clusters_at_once(config.CLUSTER, problem.device)), clusters)


def together(problem: Problem, config: Config) -> bool:
    """Whether all parts of a tile's K find room at once: each then adds up a share of the sum."""
    clusters = clusters_of(problem, config) * config.SPLIT_K
    return config.SPLIT_K > 1 and clusters <= clusters_at_once(config.CLUSTER, problem.device)


def columns_at_once(problem: Problem, config: Config) -> int:
    """Of the epilogue."""
    most = unit(config.BLOCK_N)
    if not together(problem, config):
        return most
    return min(most, piece_columns(config.BLOCK_N, config.SPLIT_K))


def workspace(problem: Problem, config: Config) -> Room:
    """Where K is cut: for the sums of each program's consumers, and their counters."""
    programs = clusters_of(problem, config) * config.CLUSTER
    floats = programs * config.SPLIT_K * config.BLOCK_M * config.BLOCK_N
    return partial_sums(floats, programs * (config.num_warps // 4))


def consumers_of(config: Config) -> int:
    """Of 4 warps each: they share a tile, or there are two that take turns."""
    return max(config.num_warps // 4, 2)


@functools.lru_cache(maxsize=4096)
def buffers_of(config: Config, shared: int, b_major: str, element: int, engine: bool) -> int:
    """Of each consumer's output; see `cluster_host.arguments`."""
    rows, columns, warps = config.BLOCK_M, config.BLOCK_N, config.num_warps
    pieces = slabs_of(rows, warps) * columns // unit(columns)
    room = cluster_host.room_beside(config, shared, b_major)
    return cluster_host.output_buffers(
        room, consumers_of(config), unit(columns), pieces, element, engine
    )


def config_why_not(
    *possible: int, more: str = "", least: int = 1
) -> Callable[[Problem, Config], str | None]:
    """What refuses configs of the rung whose tiles have so many warps; `more` is said of others.

    K is cut into so many parts at `least`.
    """

    def reason(problem: Problem, config: Config) -> str | None:
        warps, programs = config.num_warps, config.CLUSTER
        if warps not in possible:
            words = " or ".join(map(str, possible))
            return f"num_warps is {warps}; {words} for a tile are possible{more}"
        if programs not in (2, 4):
            return f"CLUSTER is {programs}; 2 or 4 programs can share"
        if reason := cluster_host.tile_why_not(config):
            return reason
        if config.BLOCK_K != 64:
            return f"BLOCK_K is {config.BLOCK_K}; 64 is possible"
        if least > config.SPLIT_K:
            return f"SPLIT_K is {config.SPLIT_K}; {least} or more are possible"
        if reason := parts_why_not(problem, config):
            return reason
        row = consumers_of(config) * unit(config.BLOCK_N)
        return cluster_host.ring_why_not(problem, config, buffers_of, row)

    return reason


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> tuple[Box, Box, Box | None]:
    """Of A, B and C; None where C is stored by threads."""
    shared, sharers = shared_of(problem, config), config.CLUSTER
    a, b = (sharers, 1) if shared == "a" else (1, sharers)
    return cluster_host.boxes_of(problem, config, columns_at_once(problem, config), a, b)


def arguments(cut: bool = False) -> Arguments:
    """Of the rungs whose clusters share loads; `cut`: of the one that cuts K."""

    def more(problem: Problem, config: Config) -> dict[str, Any]:
        return {
            "SHARED": shared_of(problem, config),
            "EPI_N": columns_at_once(problem, config),
            "TOGETHER": together(problem, config),
        }

    work = workspace if cut else None
    return cluster_host.arguments(_boxes, buffers_of, more, consumers_of, work)
