"""The tiles that rungs in Gluon offer: those of their menus that fit, and K in parts that suit."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from ..problem import Problem
from ..spec import Config
from .gluon_host import (
    POINTER_COLUMNS,
    beside_fragments,
    by_engine,
    c_major,
    columns_that_fit,
    least_columns,
    most_accumulators,
    odd_halves,
    slab_rows,
    slabs,
    sums_of,
)
from .host import from_registers, major_of
from .parts_host import MOST_PARTS

Tile = tuple[int, int, int, int, int]  # BLOCK_M, BLOCK_N, BLOCK_K, warps, stages


def configs_of(problem: Problem, tiles: Sequence[Tile], consumers: int) -> tuple[Config, ...]:
    """Those of the tiles that fit into shared memory; the same tuple for problems alike.

    Of 32-bit operands, a step is half as deep.
    """
    kind = not by_engine(c_major(problem)), problem.c.dtype.itemsize, problem.device.shared
    if problem.epilogue.gated:
        found = _fitting(tuple(tiles), consumers, problem.itemsize, *kind, True)
        found = _in_halves(found, problem.itemsize, major_of(problem.b))
    else:
        found = _fitting(tuple(tiles), consumers, problem.itemsize, *kind)
    return _with_registers(problem, found)


def _with_registers(problem: Problem, configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Those whose sums leave room for an A in registers, where WGMMA takes it from there."""
    return _beside_fragments(configs) if from_registers(problem) else configs


@functools.lru_cache(maxsize=4096)
def _beside_fragments(configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Kept, so that they are the same objects each time."""
    return tuple(config for config in configs if beside_fragments(config))


@functools.lru_cache
def _in_halves(configs, itemsize, b_major) -> tuple[Config, ...]:
    """Those of a gated product."""
    return tuple(config for config in configs if not odd_halves(config, itemsize, b_major))


@functools.lru_cache
def _fitting(
    tiles, consumers, itemsize, pointers, element, shared, gated=False
) -> tuple[Config, ...]:
    limit = POINTER_COLUMNS if pointers else 0
    return tuple(
        config_of(m, n, k, warps, stages)
        for m, n, k, warps, stages in ((m, n, 2 * k // itemsize, *more) for m, n, k, *more in tiles)
        if columns_that_fit(
            m, n, stages * (m + n) * k * itemsize, element, consumers, limit, shared, gated
        )
    )


@functools.cache
def config_of(
    m: int, n: int, k: int, warps: int, stages: int, split: int = 1, cluster: int = 1
) -> Config:
    """A config of a Gluon rung; one object for equal ones."""
    return Config(
        m, n, k, num_warps=warps, num_stages=stages, ORDER="grouped", SPLIT_K=split, CLUSTER=cluster
    )


def in_fixed_parts(configs: tuple[Config, ...], parts: int) -> tuple[Config, ...]:
    """The same with K in so many `PARTS`; as they are, without a look, for one."""
    return configs if parts == 1 else _in_fixed_parts(configs, parts)


@functools.lru_cache(maxsize=4096)
def _in_fixed_parts(configs: tuple[Config, ...], parts: int) -> tuple[Config, ...]:
    return tuple(dataclasses.replace(config, PARTS=parts) for config in configs)


def ordered(tiles: Sequence[Tile]) -> Callable[[Problem, int], Sequence[Config]]:
    """`Kernel.ordered` of a rung whose programs have all of K."""

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        own = in_fixed_parts(configs_of(problem, tiles, consumers=1), parts)
        own = _with_registers(problem, own)
        return own if parts == 1 else _with_room(own)

    return configs


@functools.lru_cache(maxsize=4096)
def _with_room(configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Those whose sums the registers hold."""
    return tuple(
        c for c in configs
        if sums_of(c) * slab_rows(c.BLOCK_M) * c.BLOCK_N
        <= 32 * c.num_warps * most_accumulators(c, slabs(c))
    )  # fmt: skip


def shared_parts(tiles: Sequence[Tile]) -> Callable[[Problem, int], Sequence[Config]]:
    """The same of one whose programs have a part each; few rows are also few columns."""

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        short, least = min(problem.M, problem.N), least_columns(problem)
        menu = _joined(tiles, skinny(short, least) if parts > 1 else narrow(short, least))
        whole = configs_of(problem, menu, consumers=1)
        return in_fixed_parts(_shared_by(whole, parts), parts)

    return configs


@functools.lru_cache(maxsize=4096)
def _shared_by(configs: tuple[Config, ...], split: int) -> tuple[Config, ...]:
    return tuple(_cut(config, split) for config in configs)


def of_few_rows(problem: Problem) -> tuple[Tile, ...]:
    """Tiles for gated products of at most 64 rows, where bytes in flight are what counts.

    Their operands can't be exchanged, so that few rows were columns.
    """
    few = problem.epilogue.gated and problem.M <= 64
    return ((64, 64, 64, 4, 12), (64, 32, 64, 4, 16)) if few else ()


@functools.lru_cache
def skinny(columns: int, least: int) -> tuple[Tile, ...]:
    """Tiles for at most 64 columns, where bytes in flight are what counts; `least` columns wide."""
    sizes = [n for n in (8, 16, 32, 64) if n >= least and (n < 2 * columns or n == least)]
    if columns > 64:
        return ()
    depths = ((128, 128, 5), (64, 128, 8), (64, 256, 5))
    return tuple((m, n, k, 4, stages) for m, k, stages in depths for n in sizes)


@functools.lru_cache
def narrow(columns: int, least: int) -> tuple[Tile, ...]:
    """Tiles for at most 64 columns where K is whole: as wide as those, since others read A twice,
    with as many stages as there is room for."""
    width = max(least, 8, 1 << (columns - 1).bit_length())
    tiles = {
        8: ((64, 8, 256, 4, 6), (64, 8, 128, 4, 12)),
        16: ((64, 16, 256, 4, 5), (64, 16, 128, 4, 10)),
        32: ((64, 32, 256, 4, 4), (64, 32, 128, 4, 8)),
        64: ((64, 64, 128, 4, 7), (64, 32, 128, 4, 8)),
    }
    return tiles.get(width, ())


def in_parts(problem: Problem, tiles: Sequence[Tile]) -> tuple[Config, ...]:
    """The same, and some for few columns, with K in numbers of parts that suit the problem."""
    menu = _joined(tiles, skinny(problem.N, least_columns(problem)))
    return tuple(
        _cut(config, split)
        for config in configs_of(problem, menu, consumers=1)
        for split in splits(config, problem)
    )


@functools.lru_cache(maxsize=4096)
def _joined(tiles, more):
    return tiles + more


def _cut(c: Config, split: int) -> Config:
    return config_of(c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages, split)


def splits(config: Config, problem: Problem) -> Sequence[int]:
    """Numbers of parts that fill one or two rounds of all SMs, or part of one; 4 steps or more.

    More rounds were the fastest for none of 578 problems that were searched.
    """
    sms = problem.device.sms
    most = min(-(-problem.K // config.BLOCK_K) // 4, MOST_PARTS)
    return _splits(min(config.tiles(problem), 2 * sms), most, sms)


@functools.lru_cache(maxsize=1 << 14)
def _splits(tiles, most, sms):
    filling = {sms * rounds // tiles for rounds in (1, 2)}
    halves = {sms // (fraction * tiles) for fraction in (2, 3, 4)}
    return sorted({1} | {n for n in filling | halves if 1 < n <= most})


@functools.lru_cache
def shared_out(configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Each with at most 4 or 8 programs that share one tile."""
    return tuple(_cut(config, most) for config in configs for most in (4, 8))
