"""Tiles of clusters whose programs share one tile's K and exchange sums through shared memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ..problem import BLOCK, Config, Constraint, Device, Problem, field
from . import sm90
from .clusters import HOLDS_COLUMNS, RING, TILE, WARPS, ClusterTile
from .gpus import clusters_at_once
from .limits import PARTS
from .lines import once_per
from .roles import Facts, config_of, cut, facts, piece_columns
from .scaled import IN_BLOCKS, WHOLE_K

#: BLOCK_M, BLOCK_N, BLOCK_K of 16-bit elements, and the warps of a tile; as many stages as fit.
Numbers = tuple[int, int, int, int]
#: Elements of K of a step; stages at most.
MOST_DEPTH, DEEPEST = 256, 12
#: The most bytes of partial sums with room of their own; more of them reuse the stages'
#: did.
APART = 24 * 1024

#: Partial sums, in the stages' memory, or in their own; the barriers follow.
SLOTS_FIT = Constraint(
    "the sums don't fit into the stages' memory; use more stages",
    lambda t: t.slots <= max(t.stages, APART),
)


class Exchanging(ClusterTile):
    """A tile of a cluster."""

    possible = "4, 8 or 12"
    needs = (
        WARPS,
        *TILE,
        Constraint(
            "BLOCK_K is {t.c.BLOCK_K}; multiples of {t.p.line} "
            f"up to {MOST_DEPTH} are possible",
            lambda t: t.c.BLOCK_K % t.p.line == 0 and t.c.BLOCK_K <= MOST_DEPTH,
        ),
        IN_BLOCKS,
        WHOLE_K,
        field(
            "SPLIT_K",
            f"clusters of 2 to {sm90.MOST_EXCHANGING} programs are possible",
            lambda n: 2 <= n <= sm90.MOST_EXCHANGING,
        ),
        *PARTS,
        *RING,
        SLOTS_FIT,
    )

    def __init__(self, p: Problem, c: Config):
        super().__init__(p, c)
        self.consumers = self.sharers

    @property
    def piece(self) -> int:
        return piece_columns(self.c.BLOCK_N, self.c.SPLIT_K)

    columns = piece

    @property
    def own_pieces(self) -> int:
        """Pieces of the program that adds most."""
        return -(-self.c.BLOCK_N // (self.piece * self.c.SPLIT_K))

    @property
    def pieces(self) -> int:
        return self.slabs * self.own_pieces

    @property
    def slots(self) -> int:
        """Bytes of the partial sums that a program receives: for each piece a slot per program."""
        return 4 * self.c.BLOCK_M * self.piece * self.c.SPLIT_K * self.own_pieces

    @property
    def apart(self) -> int:
        return self.slots if self.slots <= APART else 0


@functools.lru_cache
def fitted(problem: Problem, tiles: tuple[Numbers, ...]) -> tuple[Config, ...]:
    """The configs of the `tiles`, and of some for few columns, whose clusters find room at once."""
    if not sm90.has_wgmma(problem.device):
        return ()
    found, device = [], problem.device
    for tile in _with_narrow(tiles, problem.N, facts(problem)):
        count = problem.space.tiles(*tile[:2])
        if 2 * count <= device.sms:
            for split in _splits(count, -(-problem.K // tile[2]), device):
                found.append(deepest(problem, *tile, split))
    return tuple(filter(None, found))


def first(problem: Problem, tiles: tuple[Numbers, ...]) -> Config:
    """The first of the `tiles` that fits, in clusters of 2 programs, whether or not they find room
    at once."""
    found = (deepest(problem, *tile, 2) for tile in _as_deep(tiles, facts(problem)))
    return next(config for config in found if config)


def ordered(tiles: tuple[Numbers, ...]) -> Callable[[Problem, int], Sequence[Config]]:
    """`Limits.ordered`: the same with clusters of as many programs as K has fixed parts.

    Those for few columns also where rows are few; none of sums that are promoted.
    """

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        if problem.sums != "whole" or not 2 <= parts <= sm90.MOST_EXCHANGING:
            return ()
        room = clusters_at_once(parts, problem.device)
        found = (
            deepest(problem, *tile, parts)
            for tile in _with_narrow(tiles, min(problem.M, problem.N), facts(problem))
            if problem.space.tiles(*tile[:2]) <= room
        )
        return tuple(cut(config, parts, parts) for config in found if config)

    return configs


@functools.lru_cache(maxsize=4096)
def _with_narrow(tiles: tuple[Numbers, ...], columns: int, known: Facts) -> tuple[Numbers, ...]:
    """The tiles, and some for at most 64 columns."""
    if columns <= 64:
        sizes = sorted({8, 16, 32, -(-columns // known.step) * known.step})
        sizes = [n for n in sizes if n < 2 * columns and n != 64]
        tiles += tuple((m, n, 128, m // 16) for m in (64, 128) for n in sizes)
    return _as_deep(tiles, known)


def _as_deep(tiles: tuple[Numbers, ...], known: Facts) -> tuple[Numbers, ...]:
    """The tiles for 16-bit elements, with steps of equally many bytes, or of one promoted block."""
    most = MOST_DEPTH if known.sums == "whole" else BLOCK
    return tuple((m, n, min(2 * k // known.size, most), warps) for m, n, k, warps in tiles)


@functools.lru_cache(maxsize=4096)
def _splits(tiles: int, steps: int, device: Device) -> tuple[int, ...]:
    """Numbers of programs for a tile: the most that one wave of all SMs has room for, and half
    as many; 4 steps or more each."""
    if steps < 8:
        return ()
    able = range(2, sm90.MOST_EXCHANGING + 1)
    most = max((n for n in able if tiles <= clusters_at_once(n, device)), default=0)
    return tuple(n for n in sorted({most, most // 2}) if 2 <= n <= steps // 4)


@once_per(facts)
def deepest(problem: Problem, *numbers: int) -> Config | None:
    """The config with as many stages as fit; None if its partial sums don't fit there, or
    registers don't hold its accumulators.

    `numbers`: those of the tile, and programs of the cluster.
    """
    *tile, split = numbers
    able = (config_of(*tile, stages, split) for stages in range(DEEPEST, 1, -1))
    config = next(config for config in able if Exchanging(problem, config).buffers)
    made = Exchanging(problem, config)
    return config if SLOTS_FIT.holds(made) and HOLDS_COLUMNS.holds(made) else None
