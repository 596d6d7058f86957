"""The tiles that `cluster` offers: the usual ones, and those that fit a problem.

The latter are as wide as a round of all SMs asks for, as those of cuBLAS are by its kernels' names.
"""

from __future__ import annotations

import functools

from ...problem import Problem, kept
from ...spec import Config, clusters_at_once
from .cluster_host import most_columns, output_buffers, ring_bytes, ring_kind, stages_bytes
from .cluster_mainloop import LINE, consumers_of, slabs_of
from .gluon_host import config_of
from .ptx import unit

#: BLOCK_M, BLOCK_N and the warps of a tile, with as many stages as fit, in clusters of two; the one
#: for large problems first.
TILES = (
    (128, 256, 8),
    (128, 128, 8),
    (128, 96, 8),
    (192, 192, 12),
    (192, 96, 12),
    (256, 192, 8),
    (256, 160, 8),
    (256, 128, 8),
    (128, 192, 4),
    (128, 160, 4),
    (64, 192, 4),
    (64, 128, 4),
)
#: BLOCK_M, warps, programs of a cluster, and the least BLOCK_N, of tiles as wide as fill so many
#: rounds of all SMs.
FITTED = (
    (64, 4, 2, 48),
    (64, 4, 4, 48),
    (128, 8, 2, 48),
    (128, 8, 4, 48),
    (128, 4, 2, 96),
    (192, 12, 2, 64),
    (192, 12, 4, 64),
    (256, 8, 2, 64),
)
ROUNDS = (1, 2, 3)
#: Parts that K is cut into, for one round.
PARTS = (2, 3, 4, 6, 8)
#: Steps of a part, at least.
LEAST_STEPS = 8
#: Of these tiles, by rows: the most columns.
WIDEST = {rows: most_columns(rows, warps) for rows, warps, *_ in FITTED}
#: Elements of C in the largest tile.
LARGEST = TILES[0][0] * TILES[0][1]


@kept
def offered(problem: Problem) -> tuple[Config, ...]:
    """The configs that suit the problem, those of `TILES` first."""
    M, N, batch, sms = problem.M, problem.N, problem.batch, problem.device.sms
    kind = problem.device.shared, *ring_kind(problem)
    parts = max(1, min(problem.K // (LEAST_STEPS * LINE.value), PARTS[-1]))
    return usual(*kind) + fitted(M, N, batch, parts, sms, *kind)


@functools.lru_cache
def usual(*kind) -> tuple[Config, ...]:
    """Those of `TILES` that fit."""
    found = (_deepest(*tile, 2, 1, *kind) for tile in TILES)
    return tuple(config for config in found if config)


def fitted(M: int, N: int, batch: int, parts: int, sms: int, *kind) -> tuple[Config, ...]:
    """Tiles whose columns are the fewest with which C takes so many rounds, the fewest possible.

    And those with which it takes one where K is cut, into so many `parts` at most.
    """
    rows, _, programs, least = FITTED[0]
    if M * N * batch * parts < rows * least * clusters_at_once(programs, sms):
        return ()
    found = {}
    for rows, warps, programs, least in FITTED:
        step = max(16, 8 * programs)
        if N + step <= least:
            continue
        # Programs that share B stand one below the other, those that share A side by side.
        high = -(-M // (rows * programs)) * batch
        low = -(-M // rows) * batch
        whole = False
        for clusters, split in _counts(programs, sms):
            if split > parts or (whole and split == 1):
                continue
            tall, wide = clusters // high, clusters // low * programs
            width = (tall if tall > wide else wide) * step
            if not width:
                continue
            columns = -(-N // width) * step
            if least <= columns <= WIDEST[rows]:
                whole |= split == 1
                if split > 1 or programs != 2 or (rows, columns, warps) not in TILES:
                    found[_deepest(rows, columns, warps, programs, split, *kind)] = None
    found.pop(None, None)
    return tuple(found)


@functools.lru_cache
def _counts(programs: int, sms: int) -> tuple[tuple[int, int], ...]:
    """Clusters of one to three rounds of whole tiles, and of one where K is cut; into how many."""
    room = clusters_at_once(programs, sms)
    return *((n * room, 1) for n in ROUNDS), *((room // n, n) for n in PARTS)


@functools.lru_cache(maxsize=4096)
def _deepest(
    rows: int, columns: int, warps: int, programs: int, split: int, *kind
) -> Config | None:
    """With as many stages as fit, if any do."""
    able = [config_of(rows, columns, 64, warps, n, split, programs) for n in range(8, 2, -1)]
    # Consumers take turns where much is stored for what is multiplied: two buffers first.
    for least in (2, 1) if warps == 4 else (1,):
        for config in able:
            if buffers_of(config, *kind) >= least:
                return config
    return None


def either(problem: Problem) -> bool:
    """Whether exchanged operands are worth a look: C is 0.1 to 3 rounds of large tiles."""
    rounds = problem.M * problem.N * problem.batch / (problem.device.sms * LARGEST)
    return 0.1 <= rounds <= 3


@functools.lru_cache(maxsize=4096)
def buffers_of(config: Config, shared: int, b_major: str, element: int, engine: bool) -> int:
    """Of each consumer's output; see `cluster_host.arguments`."""
    rows, columns, warps = config.BLOCK_M, config.BLOCK_N, config.num_warps
    at_once = unit(columns)
    pieces = slabs_of(rows, warps) * columns // at_once
    room = shared - ring_bytes(stages_bytes(config, b_major))
    return output_buffers(room, consumers_of(warps), at_once, pieces, element, engine)
