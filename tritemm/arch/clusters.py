"""Tiles of clusters, which have any multiple of 8 columns: what fits, and what is shared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from ..kernels.device import cluster_mainloop, scheduler, wgmma
from ..kernels.device.cluster_mainloop import BARRIERS
from ..kernels.device.promote import PART_COLUMNS
from ..problem import PRODUCTS, Config, Constraint, Device, Matrix, Problem, field
from ..runtime.triton_private import clusters_why_not
from . import roles, sm90
from .gpus import clusters_at_once
from .limits import COUNTED_K, PARTS
from .lines import Box, Boxes, by_tma, major_of, once_per
from .roles import A_RING, FITS, RoleTile, config_of, cut, facts, piece_columns
from .scaled import WHOLE_K

#: BLOCK_M, BLOCK_N and the warps of a tile, with as many stages as fit, in clusters of two.
Numbers = tuple[int, int, int]
#: BLOCK_M, warps and programs of a cluster, for tiles that contain all of a few columns.
Wide = tuple[int, int, int]
#: BLOCK_M, warps, programs of a cluster, the least and the most BLOCK_N, of tiles just wide
#: enough to fill some waves of all SMs; so are those of cuBLAS, by its kernels' names.
Fitted = tuple[int, int, int, int, int]
WAVES = (1, 2, 3)
#: Parts that K is cut into, for one wave; and the least steps of a part. For a C of a few clusters
#: there are as many parts as fill the SMs, if they have `LONG_STEPS`: shorter ones weren't timed.
COUNTS = (2, 3, 4, 6, 8)
LEAST_STEPS, LONG_STEPS = 8, 512
#: BLOCK_M, BLOCK_N and programs of a cluster, of the smallest tile that is fitted.
SMALLEST = (64, 40, 2)
#: Columns of C up to which a tile may have all of them: then each row of A is read once.
FEW_COLUMNS = 64
#: The most stages of a tile for any problem; and of one for a given problem, with four steps of K
#: per stage: small tiles need many in flight, and a short K leaves room for the next
#: launch.
STAGES, DEEPEST, STEPS = 8, 16, 4
#: The least share of all SMs that a launch leaves free if the next one begins late.
FREE = 1 / 8
#: Elements of C in the largest tile.
LARGEST = 128 * 256
#: Cached as in a kernel; a call from the host costs several microseconds.
_line_bytes = functools.cache(cluster_mainloop.line_bytes)
_cluster_tile = functools.cache(scheduler.cluster_tile)
_slabs_of = functools.cache(cluster_mainloop.slabs_of)
unit = functools.cache(wgmma.unit)

#: The needs of rungs whose programs form clusters, and of those that cut K.
NEEDS = (*roles.NEEDS, lambda p: clusters_why_not())
NEEDS_IN_PARTS = (
    COUNTED_K,
    *NEEDS,
    Constraint(
        "K is {p.K}; a cluster needs at least two steps of {p.line}", lambda p: p.line < p.K
    ),
)
HOLDS_COLUMNS = Constraint(
    "BLOCK_N is {t.c.BLOCK_N}; multiples of {t.facts.step} up to {t.most_columns} are possible "
    "with {t.c.BLOCK_M} rows",
    lambda t: t.c.BLOCK_N % t.facts.step == 0 and t.most_columns >= t.c.BLOCK_N,
)
WARPS = Constraint(
    "num_warps is {t.c.num_warps}; {t.possible} are possible{t.more}",
    lambda t: t.c.num_warps in t.choices,
)
#: For consumers with 4 warps each.
TILE = (
    Constraint(
        "BLOCK_M is {t.c.BLOCK_M}; {t.possible_rows} are possible with {t.c.num_warps} warps",
        lambda t: t.c.BLOCK_M in t.some_rows,
    ),
    HOLDS_COLUMNS,
)
#: A ring that PTX addresses: it comes first in shared memory, where Triton puts the largest
#: allocation, and has room for few barriers after it.
RING = (
    A_RING,
    FITS,
    field("num_stages", f"{sm90.MOST_STAGES} is possible", lambda n: n <= sm90.MOST_STAGES),
    Constraint(
        "the output takes more shared memory than the stages; use more stages",
        lambda t: not by_tma(t.c_major) or t.buffers * t.buffer < t.stages,
    ),
)


class ClusterTile(RoleTile):
    """A tile of any multiple of 8 columns, for consumers with 4 warps each.

    A family adds: `choices` of warps; the columns of a `piece` of its output, and the most `pieces`
    that a consumer stores.
    """

    piece: int
    pieces: int
    choices: tuple[int, ...] = (4, 8, 12)
    more = ""
    registers = (HOLDS_COLUMNS,)

    def __init__(self, p: Problem, c: Config):
        super().__init__(p, c)
        self.sharers = c.num_warps // sm90.WARPGROUP
        #: Slabs of 64 rows of a consumer; and rows that a tile may have: one slab or two.
        self.slabs = _slabs_of(c.BLOCK_M, c.num_warps)
        least = 16 * c.num_warps
        self.some_rows = (least,) if c.num_warps == 12 else (least, 2 * least)
        #: Bytes of all stages together.
        lines = c.num_stages * c.BLOCK_K // p.line
        self.stages = lines * _line_bytes(c.BLOCK_M, c.BLOCK_N, self.facts.b_major)

    @property
    def possible_rows(self) -> str:
        return " and ".join(map(str, self.some_rows))

    @property
    def most_columns(self) -> int:
        """The most columns whose accumulators fit the consumers' registers."""
        if self.facts.sums in PRODUCTS:
            # Partial sums have at most this many columns, and are cut like the accumulator.
            most, few = self.most_accumulators, PART_COLUMNS.value
            whole = few if self.c.BLOCK_N % 64 else (2 * most - few) // self.slabs
            return whole if whole > few else min(few, 2 * most // (self.slabs + 1))
        each = self.slabs * self.accumulators + (self.facts.sums != "whole")
        return min(sm90.MOST_COLUMNS, 2 * self.most_accumulators // each)

    @property
    def buffer(self) -> int:
        """Bytes of a buffer of each consumer, with that of its mirror if there is one."""
        both = 1 + self.in_squares
        return both * sm90.ROWS * self.consumers * self.piece * self.facts.element

    @property
    def buffers(self) -> int:
        """As many as are useful; 0 if none fits."""
        apart = self.apart + self.of_scales
        room = self.facts.shared - self.stages - apart - BARRIERS.value - sm90.RESERVE
        if not by_tma(self.c_major):  # Triton pads what it exchanges between threads
            return int(self.buffer + self.buffer // 8 <= room)
        most = sm90.MOST_NARROW_BUFFERS if self.piece == 8 else sm90.MOST_BUFFERS
        return max(0, min(most, self.pieces, room // self.buffer))

    @functools.cached_property
    def boxes(self) -> Boxes:
        """Boxes for `load_lines`."""
        p, c = self.p, self.c
        a, b = _lines(p.a, "N", c.BLOCK_M, p.line), _lines(p.b, "T", c.BLOCK_N, p.line)[::-1]
        out = Box.of_c(p, sm90.ROWS, self.columns)
        return Boxes(Box.of(p, p.a, *a), Box.of(p, p.b, *b), out)


def _lines(matrix: Matrix, along_k: str, lines: int, line: int) -> tuple[int, int]:
    """Lines and elements of K of a box; along K it has as many lines as a tile."""
    return (lines if major_of(matrix) == along_k else sm90.ROWS), line


class Multicast(ClusterTile):
    """A tile of clusters that share the loads of an operand's tiles.

    `choices` of warps, and `more` to say of others. K is cut into at least `least` parts.
    """

    least = 1
    needs = (
        WARPS,
        field("CLUSTER", "2 or 4 programs can share", lambda n: n in sm90.SHARING),
        *TILE,
        Constraint(
            "BLOCK_K is {t.c.BLOCK_K}; {t.p.line} is possible", lambda t: t.p.line == t.c.BLOCK_K
        ),
        WHOLE_K,
        Constraint(
            "SPLIT_K is {t.c.SPLIT_K}; {t.least} or more are possible",
            lambda t: t.least <= t.c.SPLIT_K,
        ),
        *PARTS,
        *RING,
    )

    def __init__(self, p: Problem, c: Config):
        super().__init__(p, c)
        #: Consumers share a tile, or two take turns.
        self.consumers = max(self.sharers, 2)

    @property
    def possible(self) -> str:
        return f"{' or '.join(map(str, self.choices))} for a tile"

    @property
    def piece(self) -> int:
        return unit(self.c.BLOCK_N)

    @property
    def pieces(self) -> int:
        return self.slabs * self.c.BLOCK_N // self.piece

    @property
    def room(self) -> int:
        """Clusters that fit at once."""
        return clusters_at_once(self.c.CLUSTER, self.p.device)

    @property
    def shared(self) -> str:
        """The operand that a cluster's programs share: the one with which C needs fewer clusters,
        else the one with the larger tiles; if equal, B."""
        high, wide = self._clusters("b"), self._clusters("a")
        larger = "a" if self.c.BLOCK_M > self.c.BLOCK_N else "b"
        return larger if high == wide else "b" if high < wide else "a"

    def _clusters(self, shared: str) -> int:
        tile = _cluster_tile(self.c.CLUSTER, shared, self.c.BLOCK_M, self.c.BLOCK_N)
        return self.p.space.tiles(*tile)

    @property
    def clusters(self) -> int:
        """Clusters that C needs."""
        return self._clusters(self.shared)

    @property
    def together(self) -> bool:
        return self.c.SPLIT_K > 1 and self.clusters * self.c.SPLIT_K <= self.room

    @property
    def late(self) -> bool:
        """Whether the next launch should wait until this one, with one tile per program, ends.

        If the next one fits only in part, its first clusters take whichever SMs are free, and those
        in a crowded GPC take a third longer. If next to no SM is free, it makes no difference.
        """
        clusters = self.clusters
        if self.c.SPLIT_K > 1 or not self.room < 2 * clusters <= 2 * self.room:
            return False
        return clusters * self.c.CLUSTER <= (1 - FREE) * self.p.device.sms

    @property
    def columns(self) -> int:
        piece = piece_columns(self.c.BLOCK_N, self.c.SPLIT_K) if self.together else self.piece
        return min(self.piece, piece)

    @classmethod
    def grid(cls, problem: Problem, config: Config) -> int:
        """Clusters."""
        tile = cls(problem, config)
        return min(max(1, tile.room), tile.clusters * config.SPLIT_K)

    @staticmethod
    def programs(config: Config) -> int:
        """Programs of a cluster."""
        return config.CLUSTER

    @property
    def tiles(self) -> int:
        return self.clusters * self.c.CLUSTER


class Cooperative(Multicast):
    """Consumers share a tile."""

    choices, more = (8, 12), "; cluster_pingpong has 4"


class Pingpong(Multicast):
    """Each of two consumers has a tile."""

    choices = (4,)


class Split(Multicast):
    """Several clusters share a tile's K; consumers share a tile, or take turns."""

    least = 2

    @staticmethod
    def for_any(problem: Problem) -> tuple[Config, ...]:
        """A config for any problem whose K can be cut."""
        return (config_of(128, 128, problem.line, 8, 4, 2, 2),)


@once_per(facts)
def usual(problem: Problem, tiles: Sequence[Numbers], programs=(2,)) -> tuple[Config, ...]:
    """The configs of the `tiles` that fit, in clusters of that many `programs`.

    If consumers take turns, both variants: one more buffer for their output, or one more stage.
    """
    found: dict = {}
    for count in programs:
        for tile in tiles:
            for buffers in (2, 1) if tile[-1] == sm90.WARPGROUP else (1,):
                found[deepest(problem, *tile, count, 1, buffers)] = None
    found.pop(None, None)
    return tuple(found)


@functools.lru_cache
def fitted(
    problem: Problem, table: Sequence[Fitted], besides: Sequence[Numbers] = (),
    counts: Sequence[int] = (), deep: bool = False,
) -> tuple[Config, ...]:  # fmt: skip
    """Tiles with the fewest columns for which C needs a given number of waves.

    Or for which it needs one wave with K cut into one of `counts` parts, or, if `deep`, as many
    as fill it. None of `besides`.
    """
    space, device = problem.space, problem.device
    found: dict = {}
    rows, columns, programs = SMALLEST
    steps = problem.K // problem.line
    parts = max(1, min(steps // LEAST_STEPS, max(counts or COUNTS)))
    if deep:
        parts = max(parts, min(steps // LONG_STEPS, sm90.MOST_PARTS))
    if space.elements * parts < rows * columns * clusters_at_once(programs, device):
        return ()
    for rows, warps, programs, least, most in table:
        step = 16 if counts else facts(problem).step  # parts are added in pieces of 16 or more
        if problem.N + step <= least:
            continue
        # Programs that share B are one below the other, those that share A side by side.
        high, low = space.bands(rows * programs), space.bands(rows)
        for clusters, split in _waves(programs, device, counts, parts):
            tall, wide = clusters // high, clusters // low * programs
            width = (tall if tall > wide else wide) * step
            if not width:
                continue
            columns = -(-problem.N // width) * step
            known = programs == 2 and (rows, columns, warps) in besides
            if least <= columns <= most and not known:
                stages = _most_stages(problem, split)
                config = deepest(problem, rows, columns, warps, programs, split, 2, stages)
                found[config] = None
    found.pop(None, None)
    return tuple(found)


def offered(
    problem: Problem, tiles: Sequence[Numbers], table: Sequence[Fitted], wide: Sequence[Wide]
) -> tuple[Config, ...]:
    """The usual tiles, those that fill whole waves, and those with all of a few columns."""
    found = usual(problem, tiles) + fitted(problem, table, tiles) + as_wide(problem, wide)
    return tuple(dict.fromkeys(found))


def as_wide(problem: Problem, tiles: Sequence[Wide]) -> tuple[Config, ...]:
    """The `tiles` with all columns of C, if there are few."""
    step = facts(problem).step
    columns = -(-problem.N // step) * step
    if columns > FEW_COLUMNS:
        return ()
    stages = _most_stages(problem)
    found = (deepest(problem, rows, columns, *more, 1, 2, stages) for rows, *more in tiles)
    return tuple(filter(None, found))


def _most_stages(problem: Problem, split: int = 1) -> int:
    """Stages that are useful if K is in `split` parts."""
    return min(DEEPEST, max(STAGES, problem.K // (problem.line * split * STEPS)))


def fitted_in_parts(problem: Problem, table: Sequence[Fitted]) -> tuple[Config, ...]:
    """Tiles with K cut into some of `COUNTS` parts, or, if `deep`, into more."""
    return fitted(problem, table, counts=COUNTS, deep=True)


@functools.lru_cache
def _waves(
    programs: int, device: Device, counts: Sequence[int], parts: int
) -> Sequence[tuple[int, int]]:
    """Clusters of one to three waves of whole tiles, or of one if K is cut; and the parts of K.

    The parts are those in `counts`, or more if few clusters then fill the SMs; up to `parts`.
    """
    room = clusters_at_once(programs, device)
    if not counts:
        return [(n * room, 1) for n in WAVES]
    few = (room // n for n in range(1, room) if max(counts) < room // n)
    return [(room // n, n) for n in (*counts, *few) if n <= parts]


@once_per(facts)
def deepest(
    problem: Problem, rows: int, columns: int, warps: int, programs: int, split: int, buffers: int,
    most: int = STAGES,
) -> Config | None:  # fmt: skip
    """The config with as many stages as fit, up to `most`, if any do.

    Consumers take turns if they store much for what they multiply: first `buffers` for that, or
    several buffers of pieces that are stored together.
    """
    several = (8, 2, 1) if unit(columns) == 8 else (2, 1)
    for least in several if warps == sm90.WARPGROUP and buffers > 1 else (1,):
        for stages in range(most, 2, -1):
            config = config_of(rows, columns, problem.line, warps, stages, split, programs)
            tile = Multicast(problem, config)
            if tile.buffers >= least and HOLDS_COLUMNS.holds(tile):
                return config
    return None


def shared_parts(table: Sequence[Fitted]) -> Callable[[Problem, int], Sequence[Config]]:
    """`Limits.ordered` for a rung in whose clusters each program has a part."""

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        found = fitted(problem, table, counts=(parts,)) if parts > 1 else ()
        return tuple(cut(config, parts, parts) for config in found)

    return configs


def worth_swapping(problem: Problem) -> bool:
    """Whether swapped operands are worth a look: C is 0.1 waves of large tiles or more.

    1024 columns are 8 times 128, and 5.3 times 192.
    """
    return problem.space.elements >= 0.1 * problem.device.sms * LARGEST


def few_waves(problem: Problem) -> bool:
    """The same, for a C of at most 3 waves."""
    return worth_swapping(problem) and problem.space.elements <= 3 * problem.device.sms * LARGEST
