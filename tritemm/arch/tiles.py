"""Tiles of powers of two: which of them fit, and the menus of the rungs that use them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from ..kernels.device import mainloop
from ..problem import BLOCK, Config, Constraint, Need, Problem, kept, refusal
from . import sm90
from .limits import PARTS, counted
from .lines import Box, Boxes, line_refusal, major_of, once_per, readable
from .roles import (
    A_RING,
    FITS,
    HAS_WGMMA,
    IN_32_BITS,
    NO_INTERPRETER,
    RoleTile,
    config_of,
    cut,
    facts,
    grouped,
    narrow_operands,
    piece_columns,
    typical_k,
)
from .scaled import IN_BLOCKS, WHOLE_K

#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; BLOCK_K of elements of 16 bits.
Numbers = tuple[int, int, int, int, int]
#: As in a kernel; a call from the host costs several microseconds.
_first_half = functools.cache(mainloop.first_block)
#: Columns that are stored through pointers at a time, via shared memory.
POINTER_COLUMNS = 64

_TF32_ALONG_K = Constraint(
    "b is not stored along K, as WGMMA reads tf32",
    lambda p: p.b.layout in ("T", "-") or line_refusal("b", p.b, "T") is None,
)
#: Products of pairs of columns, whose halves TMA loads. Those of swapped operands are rows. Where B
#: is stored by rows, the second half begins in the middle of a row, and has to begin on 16 bytes:
#: else the launch is an illegal instruction (H200).
_PAIRS = (
    Constraint(
        "{p.epilogue.activation} takes pairs of columns, but here they are rows",
        lambda p: p.epilogue.per_column == 1 or p.epilogue.along == "n",
    ),
    Constraint(
        "the second half of b begins {p.c.cols} elements into a row, which is not a multiple of 16 "
        "bytes; store b by columns, as the weight of a linear layer",
        lambda p: (
            p.epilogue.per_column == 1
            or major_of(p.b) == "T"
            or p.c.cols * p.itemsize % sm90.TMA_BYTES == 0
        ),
    ),
)


#: What the rungs need that take pairs.
NEEDS_PAIRS = (
    *_PAIRS,
    Constraint(
        "{p.epilogue.activation} takes pairs of columns, but block scales cover single columns",
        lambda p: p.epilogue.per_column == 1 or p.sums != "block",
    ),
    narrow_operands,
)
#: Of tf32, which WGMMA reads in shared memory along K alone; it takes an A that is stored otherwise
#: from registers (`fragments`).
NEEDS_TF32 = (
    _TF32_ALONG_K, *_PAIRS, NO_INTERPRETER, HAS_WGMMA, IN_32_BITS, readable, counted, grouped,
)  # fmt: skip


@kept
def pairs_or_tf32(problem: Problem) -> str | None:
    """The constraint of the rungs that support pairs, and tf32."""
    tf32 = problem.a.dtype == torch.float32 and problem.precision == "tf32"
    return refusal(NEEDS_TF32 if tf32 else NEEDS_PAIRS, problem)


@kept
def spares_a_copy(problem: Problem) -> bool:
    """Whether swapped tf32 operands avoid the copy that these need."""
    if problem.a.dtype != torch.float32 or pairs_or_tf32(problem) is None:
        return False
    return pairs_or_tf32(problem.transposed()) is None


#: The two halves of a tile of B whose columns make pairs, the gate's and the other: TMA fills a
#: stage by halves, and WGMMA reads it whole. Stored along K, its columns must follow one another,
#: each a line of 128 bytes, in groups of 8; stored along N, a half must be whole lines.
HALVES = (
    Constraint(
        "BLOCK_K is {t.c.BLOCK_K}; for a gated product {t.depths[0]} is possible",
        lambda t: t.facts.per_column == 1 or t.facts.b_major == "N" or t.depths[0] == t.c.BLOCK_K,
    ),
    Constraint(
        "BLOCK_N is {t.c.BLOCK_N}; {t.odd_halves[0]} of them can't be two halves, the gate's and "
        "the other, of {t.half_step} columns or a multiple",
        lambda t: t.facts.per_column == 1 or not t.odd_halves,
    ),
)
ACCUMULATORS = Constraint(
    "{t.of_a_thread} accumulators per thread; {t.most_accumulators} is possible",
    lambda t: t.of_a_thread <= t.most_accumulators,
)
#: A's part of a step; with three consumers, ptxas finds no registers, and waits for every WGMMA.
FRAGMENTS = Constraint(
    "a is not stored along K, so WGMMA takes its elements from registers, which have no room for "
    "them beside the accumulators",
    lambda t: (
        not t.facts.a_registers or (t.sharers == 1 and t.with_fragments <= t.most_accumulators)
    ),
)


#: Consumers of a symmetric C have a square each, which TMA can store with its mirror.
SLABS = Constraint(
    "BLOCK_M is {t.c.BLOCK_M} with {t.c.num_warps} warps; {t.some_rows} are possible",
    lambda t: (
        t.sharers == 1
        or (t.more and (t.c.BLOCK_M, t.c.num_warps) == (192, 4))
        or (t.facts.symmetric and t.sharers == 2)
        or t.facts.sums != "whole"
    ),
)
#: Sums that are promoted step by step, one slab of a consumer after another.
PROMOTED = (
    IN_BLOCKS,
    Constraint(
        "BLOCK_M is {t.c.BLOCK_M} with {t.c.num_warps} warps; multiples of 64 for each 4 warps are "
        "possible where sums are promoted",
        lambda t: t.facts.sums == "whole" or t.c.BLOCK_M % (t.rows * t.sharers) == 0,
    ),
    Constraint(
        "BLOCK_N is {t.c.BLOCK_N}; 128 columns share a scale, so a divisor of 128 is possible",
        lambda t: t.facts.sums != "block" or t.facts.b_lines == 1 or BLOCK % t.c.BLOCK_N == 0,
    ),
    WHOLE_K,
    Constraint(
        f"BLOCK_K is {{t.c.BLOCK_K}}; groups of K are blocks of {BLOCK}, so a divisor is possible",
        lambda t: not t.p.in_blocks or BLOCK % t.c.BLOCK_K == 0,
    ),
)


class PowerTile(RoleTile):
    """A tile of powers of two, of a consumer with `num_warps`, or of three with 4 each.

    `own`: consumers that have a tile each, in turns. `choices` of warps; `more` is said of rows. At
    most `limit` columns are stored at a time, if there is one.
    """

    choices: tuple[int, ...] = (4, 8)
    own, more, limit = 1, "", 0
    registers = (FRAGMENTS, ACCUMULATORS)
    needs: ClassVar[tuple[Need, ...]] = (
        SLABS,
        Constraint(
            "num_warps is {t.c.num_warps}; {t.possible} is possible",
            lambda t: t.c.num_warps in t.choices,
        ),
        Constraint(
            "BLOCK_M is {t.c.BLOCK_M}; WGMMA takes 64 or more for each 4 warps",
            lambda t: 16 * t.c.num_warps <= t.sharers * t.rows,
        ),
        Constraint(
            f"BLOCK_M is {{t.c.BLOCK_M}}; {sm90.BOX_LINES} is possible",
            lambda t: t.rows <= sm90.BOX_LINES,
        ),
        Constraint(
            "BLOCK_K is {t.c.BLOCK_K}; {t.some_depths} are possible",
            lambda t: t.c.BLOCK_K in t.depths,
        ),
        Constraint(
            "BLOCK_N is {t.c.BLOCK_N}; at least {t.least_columns} is possible here",
            lambda t: t.least_columns <= t.c.BLOCK_N,
        ),
        *HALVES,
        *PROMOTED,
        ACCUMULATORS,
        FRAGMENTS,
        A_RING,
        *PARTS,
        FITS,
    )

    def __init__(self, p: Problem, c: Config):
        super().__init__(p, c)
        known = self.facts
        self.rows = c.BLOCK_M & -c.BLOCK_M  # the largest power of two that divides it
        if known.symmetric and not known.a_registers and c.BLOCK_M % sm90.ROWS == 0:
            self.rows, self.of_tile = sm90.ROWS, sm90.WARPGROUP
        self.sharers = c.BLOCK_M // self.rows
        if known.sums != "whole":
            self.rows, self.of_tile = sm90.ROWS, sm90.WARPGROUP
            self.sharers = max(1, c.num_warps // sm90.WARPGROUP)
        self.warps, threads = self.of_tile, 32 * self.of_tile
        self.consumers = max(self.own, self.sharers)
        depths = sm90.DEPTHS + sm90.SHORT_DEPTHS * (typical_k(p) < math.inf)
        self.depths = [size // known.size for size in depths]
        self.least_columns = least_columns(p)
        #: The powers of two that make up the columns; the second may be 0.
        self.halves = _first_half(c.BLOCK_N), c.BLOCK_N - _first_half(c.BLOCK_N)
        #: For pairs: columns that must divide each half.
        by_rows = known.b_major == "N"
        self.half_step = sm90.LINE_BYTES // known.size if by_rows else sm90.COLUMN_STEP
        self.odd_halves = [half for half in self.halves if half % (2 * self.half_step)]
        #: Registers of a thread: accumulators, and these with an A that WGMMA takes from there.
        partial = self.rows * self.halves[0] if known.sums != "whole" else 0
        own = self.accumulators * c.BLOCK_M // self.sharers * c.BLOCK_N
        self.of_a_thread = (own + partial) // threads
        with_a = self.accumulators * c.BLOCK_N + c.BLOCK_K
        self.with_fragments = -(-c.BLOCK_M * with_a // threads)

    @property
    def some_depths(self) -> str:
        return ", ".join(map(str, sorted(self.depths)))

    @property
    def possible(self) -> str:
        return " or ".join(map(str, self.choices))

    @property
    def some_rows(self) -> str:
        return "64, 128 and 192" if self.facts.symmetric else f"powers of two{self.more}"

    @property
    def buffers(self) -> int:
        return int(self.columns > 0)

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return (self.c.BLOCK_M + self.c.BLOCK_N) * self.c.BLOCK_K * self.facts.size

    @property
    def columns(self) -> int:
        known = self.facts
        room = known.shared - sm90.RESERVE - self.c.num_stages * self.stage - self.of_scales
        pieces = known.symmetric or not known.c_by_tma
        most = self.limit or (POINTER_COLUMNS if pieces else self.c.BLOCK_N)
        columns = min(half for half in self.halves if half) // known.per_column
        columns = min(columns, most)
        while columns >= sm90.COLUMN_STEP:
            element = known.element * (1 + known.symmetric)  # a piece and its mirror
            if self.own * self.c.BLOCK_M * columns * element <= room:
                return columns
            columns //= 2
        return 0

    @functools.cached_property
    def boxes(self) -> Boxes:
        """Boxes of A, both halves of B, and C; of pairs, half as wide."""
        p, depth = self.p, self.c.BLOCK_K
        first, second = (half // self.facts.per_column for half in self.halves)
        a = b = functools.partial(Box.of, p)
        if p.groups == "k" and p.across:  # whose steps end where a group ends
            a, b = (functools.partial(Box.ragged, along=side) for side in "nm")
        return Boxes(
            a(p.a, self.rows, depth),
            b(p.b, depth, first),
            Box.of_c(p, self.rows, self.columns),
            b(p.b, depth, second) if second else None,
        )

    def described(self, a, b, c) -> dict[str, Any]:
        other = self.boxes.b1
        return super().described(a, b, c) | {"b1_desc": other and other.gluon_descriptor(b)}

    @classmethod
    def menu(
        cls,
        tiles: tuple[Numbers, ...],
        narrow: tuple[Numbers, ...],
        short: tuple[tuple[int, Numbers], ...] = (),
        promoted: tuple[Numbers, ...] = (),
    ) -> Callable[[Problem], tuple[Config, ...]]:
        """`Limits.configs` of a rung: those of the `tiles` that fit; for groups of columns, which
        may be few, the `narrow` ones; for a short K of groups, the first of the `short` ones for
        its length; for promoted sums, the `promoted` ones."""

        def configs(problem: Problem) -> tuple[Config, ...]:
            if problem.sums != "whole":
                return fitting(problem, cls, promoted)
            some = narrow if problem.groups == "n" else tiles
            some = next(((tile,) for most, tile in short if typical_k(problem) <= most), some)
            return fitting(problem, cls, some + (of_few_rows(problem) if cls.own == 1 else ()))

        return configs


class Cooperative(PowerTile):
    """A tile of one consumer, or of three that share 192 rows."""

    more = ", and 192 with 4 warps"


class Pingpong(PowerTile):
    """Tiles of two consumers, which take turns."""

    own, choices = 2, (4,)


class StreamK(PowerTile):
    """A tile of one consumer, or a part of its K, next to that of another."""

    limit = POINTER_COLUMNS


#: Otherwise ptxas spills.
MIRRORED_IN_PARTS = Constraint(
    "BLOCK_M is {t.c.BLOCK_M}, and C is symmetric: to store mirrors and to add up parts of K takes "
    "registers; 64 is possible, and 128 where TMA stores C",
    lambda t: not t.facts.symmetric or t.c.SPLIT_K == 1 or t.sharers <= (2 if t.in_squares else 1),
)


class Split(Cooperative):
    """A tile with K in parts, whose sums are added up from memory."""

    needs = (*PowerTile.needs, MIRRORED_IN_PARTS)

    @property
    def together(self) -> bool:
        return self.c.SPLIT_K > 1 and self.c.units(self.p) <= self.p.device.sms

    @property
    def limit(self) -> int:
        if self.together and not self.facts.symmetric:
            return piece_columns(self.c.BLOCK_N, self.c.SPLIT_K)
        return POINTER_COLUMNS


@once_per(facts)
def fitting(
    problem: Problem, kind: type[PowerTile], tiles: tuple[Numbers, ...]
) -> tuple[Config, ...]:
    """The configs of those of the `tiles` that fit; of 32-bit operands, a step is half as deep."""
    configs = (config_of(m, n, 2 * k // problem.itemsize, *more) for m, n, k, *more in tiles)
    if facts(problem).symmetric:
        configs = (_with_squares(problem, kind, config) for config in configs)
    return kind.able(problem, configs, SLABS, FITS, *HALVES, FRAGMENTS, ACCUMULATORS)


def _with_squares(problem: Problem, kind: type[PowerTile], c: Config) -> Config:
    """The config, with as many stages as leave room for the squares of a symmetric C and their
    mirrors, if there are three or more."""
    tile = c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps
    fewer = (config_of(*tile, stages) for stages in range(c.num_stages, 2, -1))
    return next((config for config in fewer if kind(problem, config).in_squares), c)


def shared_parts(tiles: tuple[Numbers, ...]) -> Callable[..., Sequence[Config]]:
    """`Limits.ordered` of a rung whose programs have a part each; few rows are also few columns."""

    def configs(problem: Problem, parts: int) -> Sequence[Config]:
        short, least = min(problem.M, problem.N), least_columns(problem)
        more = skinny(short, least) if parts > 1 else narrow(short, least)
        return tuple(cut(config, parts, parts) for config in fitting(problem, Split, tiles + more))

    return configs


def least_columns(problem: Problem) -> int:
    """The least columns of a tile of B: a line in shared memory has 32 bytes or more if it runs
    along columns."""
    return 8 if problem.b.layout == "T" else 16


def of_few_rows(problem: Problem) -> tuple[Numbers, ...]:
    """Tiles for pairs of columns with at most 64 rows, where bytes in flight matter most.

    Their operands can't be swapped to turn few rows into few columns.
    """
    few = problem.epilogue.per_column > 1 and problem.M <= sm90.ROWS
    return ((64, 64, 64, 4, 12), (64, 32, 64, 4, 16)) if few else ()


@functools.lru_cache
def skinny(columns: int, least: int) -> tuple[Numbers, ...]:
    """Tiles for at most 64 columns, where bytes in flight matter most; `least` columns wide."""
    sizes = [n for n in (8, 16, 32, 64) if n >= least and (n < 2 * columns or n == least)]
    if columns > 64:
        return ()
    deep = ((128, 128, 5), (64, 128, 8), (64, 256, 5))
    return tuple((m, n, k, 4, stages) for m, k, stages in deep for n in sizes)


@functools.lru_cache
def narrow(columns: int, least: int) -> tuple[Numbers, ...]:
    """Tiles for at most 64 columns with K whole: equally wide, since others would read A twice,
    with as many stages as fit."""
    width = max(least, 8, 1 << (columns - 1).bit_length())
    tiles = {
        8: ((64, 8, 256, 4, 6), (64, 8, 128, 4, 12)),
        16: ((64, 16, 256, 4, 5), (64, 16, 128, 4, 10)),
        32: ((64, 32, 256, 4, 4), (64, 32, 128, 4, 8)),
        64: ((64, 64, 128, 4, 7), (64, 32, 128, 4, 8)),
    }
    return tiles.get(width, ())


def in_parts(problem: Problem, tiles: tuple[Numbers, ...]) -> tuple[Config, ...]:
    """The tiles that fit, and some for few columns, with K in as many parts as fill one or two
    waves of all SMs, or part of one; 4 steps or more.

    More waves were fastest for none of the 578 problems searched.
    """
    sms, space, K = problem.device.sms, problem.space, problem.K
    found: list[Config] = []
    for config, known in _to_cut(problem, tiles + skinny(problem.N, least_columns(problem))):
        most = min(-(-K // config.BLOCK_K) // 4, sm90.MOST_PARTS)
        count = space.tiles(config.BLOCK_M, config.BLOCK_N)
        for split in _splits(min(count, 2 * sms), most, sms):
            if split not in known:
                known[split] = cut(config, split)
            found.append(known[split])
    return (
        Split.able(problem, found, MIRRORED_IN_PARTS) if facts(problem).symmetric else tuple(found)
    )


@once_per(facts)
def _to_cut(problem: Problem, tiles: tuple[Numbers, ...]) -> Sequence[tuple[Config, dict]]:
    """The tiles that fit; each with itself by the parts that K was cut into before."""
    return [(config, {}) for config in fitting(problem, Split, tiles)]


@functools.lru_cache(maxsize=1 << 14)
def _splits(tiles: int, most: int, sms: int) -> Sequence[int]:
    filling = {sms * waves // tiles for waves in (1, 2)}
    shares = {sms // (fraction * tiles) for fraction in (2, 3, 4)}
    return sorted({1} | {n for n in filling | shares if 1 < n <= most})
