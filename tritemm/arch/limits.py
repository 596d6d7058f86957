"""Constraints on sizes: the limits of one launch, 32-bit indices and K in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..kernels.device import raster, scheduler
from ..problem import PLAIN, Config, Constraint, Need, Problem, Tile, field
from . import sm80, sm90

#: Elements along M, N or K of a kernel whose indices have 32 bits: the last tile, or step of K,
#: reaches past the end, by less than 2**20 elements.
MOST_ELEMENTS = 2**31 - 2**20
#: Units of work of a kernel whose programs walk them: the one after the last is counted too, and
#: the raster order multiplies a little further.
MOST_UNITS = 2**30
#: Elements of K at whose multiples fixed `Config.PARTS` begin.
CUT = scheduler.CUT.value
#: Rows, columns and depth in K of the smallest tile of the rungs whose warps have roles.
LEAST_ROWS, LEAST_COLUMNS, LEAST_DEPTH = 64, 8, 32

#: For a rung that stores its accumulators unchanged.
PLAIN_ONLY = Constraint(
    "this rung has no epilogue, but the product has one: {p.epilogue}",
    lambda p: p.epilogue == PLAIN,
)
#: For a rung whose epilogue finishes each column of the product separately.
SINGLE_COLUMNS = Constraint(
    "this rung finishes columns one by one, but {p.epilogue.activation} takes pairs",
    lambda p: p.epilogue.per_column == 1,
)
#: For a kernel that counts the steps of K, of 16 or more, over all parts, 128 or fewer.
COUNTED_K = Constraint(
    "K is {p.K}; steps are counted in 32 bits, over all parts, up to 2**28 - 16",
    lambda p: p.K <= 2**28 - 16,
)


def programs_why_not(programs: int) -> str | None:
    """The refusal of a launch with this many programs."""
    if programs <= sm80.MOST_PROGRAMS:
        return None
    return f"{programs} programs are needed, and a launch has at most 2**31 - 1"


def launchable(configs: Callable[[Problem], Sequence[Config]], which: Callable = max) -> Need:
    """Whether a launch can have a program for each tile, in all its `configs`, or in any (min)."""

    def reason(p: Problem) -> str | None:
        if p.space.elements <= sm80.MOST_PROGRAMS:
            return None  # at once: a tile has an element or more
        return programs_why_not(which(config.units(p) for config in configs(p)))

    return reason


def units_why_not(units: int) -> str | None:
    """The refusal of this many tiles, or parts of tiles, which are counted in 32 bits."""
    if units <= MOST_UNITS:
        return None
    return f"{units} tiles, or parts of them, are counted in 32 bits here; 2**30 are possible"


def counted(p: Problem) -> str | None:
    """The constraint of kernels with 32-bit indices, tile counts and step counts.

    A program counts the steps of K over all its tiles.
    """
    tiles = p.space.tiles(LEAST_ROWS, LEAST_COLUMNS)
    steps = (tiles // p.device.sms + 2) * -(-p.K // LEAST_DEPTH)
    if (reason := indices(p)) or steps < 2**31:
        return reason
    return f"a program may get {steps} steps of K, more than its 32-bit count allows"


def indices(p: Problem) -> str | None:
    """The constraint of kernels with 32-bit indices and tile counts."""
    for name in "MNK":
        size = getattr(p, name)
        if size > MOST_ELEMENTS:
            return f"{name} is {size}; indices have 32 bits here, {MOST_ELEMENTS} is possible"
    if p.space.elements <= MOST_UNITS:
        return None  # at once, as above
    return units_why_not(p.space.tiles(LEAST_ROWS, LEAST_COLUMNS))


def order_why_not(problem: Problem, config: Config) -> str | None:
    """The refusal of a raster order whose groups of tiles can't be counted in 32 bits."""
    if config.ORDER == "grouped":
        # Clusters take tiles of 64 rows for half of one of 128.
        across = 2 * config.GROUP_M * -(-problem.N // config.BLOCK_N)
        if across > sm80.MOST_PROGRAMS:
            return f"GROUP_M is {config.GROUP_M}; groups of {across} tiles and more are too large"
    stripe = raster.STRIPE.value * -(-problem.M // config.BLOCK_M)
    if config.ORDER == "serpentine" and stripe > sm80.MOST_PROGRAMS:
        return f"BLOCK_M is {config.BLOCK_M}; stripes of C have more than 2**31 - 1 tiles"
    return None


def in_registers(t: Tile) -> str | None:
    """The constraint on tiles that a program's threads load, and accumulate in Triton."""
    c, threads = t.c, 32 * t.c.num_warps
    each = -(-(c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K // threads)
    if each > sm80.OPERANDS:
        return f"{each} elements of A and B per thread; {sm80.OPERANDS} are possible"
    return accumulated(t)


def accumulated(t: Tile) -> str | None:
    """The constraint on accumulators: in Triton, a program's threads need registers for them."""
    threads = 32 * t.c.num_warps
    words = t.c.BLOCK_M * t.c.BLOCK_N * max(1, t.p.accumulate.itemsize // 4)
    most = min(sm80.ACCUMULATORS, sm80.ALL_ACCUMULATORS // threads)
    if words > most * threads:
        return f"{-(-words // threads)} registers per thread for sums; {most} are possible"
    return None


#: K in parts of at least a step each, as many as can be counted; and in fixed `PARTS`, of which one
#: program computes all, or each program one.
PARTS = (
    lambda t: None if t.c.SPLIT_K == 1 else COUNTED_K(t.p),
    Constraint(
        "SPLIT_K is {t.c.SPLIT_K}; K = {t.p.K} has {t.steps} steps of {t.c.BLOCK_K}",
        lambda t: t.steps >= t.c.SPLIT_K,
    ),
    field("SPLIT_K", f"{sm90.MOST_PARTS} parts are possible", lambda n: n <= sm90.MOST_PARTS),
    lambda t: None if t.c.PARTS == 1 else _fixed_parts_why_not(t),
    lambda t: units_why_not(t.c.units(t.p)),
)


def _fixed_parts_why_not(t: Tile) -> str | None:
    count, split, pieces = t.c.PARTS, t.c.SPLIT_K, -(-t.p.K // CUT)
    if t.p.groups:
        return f"PARTS is {count}; with groups it must be 1, for each has its own K"
    if split not in (1, count):
        return f"PARTS is {count} and SPLIT_K {split}; SPLIT_K must be 1 or equal to PARTS"
    if CUT % t.c.BLOCK_K:
        return f"BLOCK_K is {t.c.BLOCK_K}; PARTS begin at multiples of {CUT} elements"
    if count > pieces:
        return f"PARTS is {count}; K = {t.p.K} has {pieces} times {CUT} elements"
    return COUNTED_K(t.p)
