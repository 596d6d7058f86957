"""The sizes that one launch, and indices of 32 bits, have room for; and how a refusal says so."""

from __future__ import annotations

from collections.abc import Sequence

from ..kernels.device import raster
from ..problem import PLAIN, Problem
from ..spec import Config

#: Programs of a launch: the first dimension of a CUDA grid.
MOST_PROGRAMS = 2**31 - 1
#: Elements along M, N or K of a kernel whose indices have 32 bits: the last tile, or step of K,
#: reaches past the end, by less than 2**20 elements.
MOST_ELEMENTS = 2**31 - 2**20
#: Units of work of a kernel whose programs walk them: the one after the last is counted too, and
#: the raster order multiplies a little further.
MOST_UNITS = 2**30
#: Rows, columns and depth in K of the smallest tile of the rungs whose warps have roles.
LEAST_TILE = (64, 8, 32)
#: Registers that a thread keeps a tile's sums in, and those of a program: half of all there are.
#: With more, the compiler gives up on WGMMA, or spills for minutes.
MOST_SUMS, MOST_SUMS_OF_ALL = 128, 2**15
#: Elements of A's and B's tiles for each thread: the code to load them grows with their number.
MOST_OPERANDS = 256


def sums_only(problem: Problem) -> str | None:
    """The refusal of a rung that stores its sums as they are."""
    if problem.epilogue == PLAIN:
        return None
    return f"this rung stores sums as they are, and the result has more: {problem.epilogue}"


def pairs_why_not(problem: Problem) -> str | None:
    """The refusal of a rung whose epilogue finishes each column of the product by itself."""
    if not problem.epilogue.gated:
        return None
    return f"this rung finishes columns one by one, and {problem.epilogue.activation} takes pairs"


def programs_why_not(programs: int) -> str | None:
    """The refusal of a launch of so many programs."""
    if programs <= MOST_PROGRAMS:
        return None
    return f"{programs} programs are needed, and a launch has at most 2**31 - 1"


def grid_why_not(problem: Problem, configs: Sequence[Config]) -> str | None:
    """The refusal of what has a program for each tile, of any of the `configs`."""
    if problem.M * problem.N * problem.batch <= MOST_PROGRAMS:
        return None  # at once: a tile has an element or more
    return programs_why_not(max(c.tiles(problem) * c.SPLIT_K for c in configs))


def index_why_not(problem: Problem) -> str | None:
    """The refusal of kernels whose indices, and counts of tiles, have 32 bits."""
    for name in "MNK":
        size = getattr(problem, name)
        if size > MOST_ELEMENTS:
            return f"{name} is {size}; indices have 32 bits here, {MOST_ELEMENTS} is possible"
    if problem.M * problem.N * problem.batch <= MOST_UNITS:
        return None  # at once, as above
    rows, columns, _ = LEAST_TILE
    tiles = -(-problem.M // rows) * -(-problem.N // columns) * problem.batch
    return units_why_not(tiles)


def units_why_not(units: int) -> str | None:
    """The refusal of so many tiles, or parts of tiles, that are counted in 32 bits."""
    if units <= MOST_UNITS:
        return None
    return f"{units} tiles, or parts of them, are counted in 32 bits here; 2**30 are possible"


def steps_why_not(problem: Problem) -> str | None:
    """The refusal of kernels whose programs count the steps of K of all their tiles."""
    rows, columns, depth = LEAST_TILE
    tiles = -(-problem.M // rows) * -(-problem.N // columns) * problem.batch
    steps = (tiles // problem.device.sms + 2) * -(-problem.K // depth)
    if steps < 2**31:
        return None
    return f"{steps} steps of K may come to a program, which counts them in 32 bits"


def order_why_not(problem: Problem, config: Config) -> str | None:
    """The refusal of a raster order whose groups of tiles can't be counted in 32 bits."""
    if config.ORDER == "grouped":
        # Clusters take tiles of 64 rows for half of one of 128.
        across = 2 * config.GROUP_M * -(-problem.N // config.BLOCK_N)
        if across > MOST_PROGRAMS:
            return f"GROUP_M is {config.GROUP_M}; groups of {across} tiles and more are too large"
    elif (
        config.ORDER == "serpentine"
        and raster.STRIPE.value * -(-problem.M // config.BLOCK_M) > MOST_PROGRAMS
    ):
        return f"BLOCK_M is {config.BLOCK_M}; stripes of C have more than 2**31 - 1 tiles"
    return None


def sums_why_not(problem: Problem, config: Config) -> str | None:
    """The refusal of a tile whose sums a program's registers have no room for."""
    threads = 32 * config.num_warps
    sums = config.BLOCK_M * config.BLOCK_N * max(1, problem.accumulate.itemsize // 4)
    most = min(MOST_SUMS, MOST_SUMS_OF_ALL // threads)
    if sums > most * threads:
        return f"{-(-sums // threads)} registers per thread for sums; {most} are possible"
    return None


def tile_why_not(problem: Problem, config: Config) -> str | None:
    """The same, and of tiles of A and B that are too large for the program's threads."""
    operands = (config.BLOCK_M + config.BLOCK_N) * config.BLOCK_K
    each = -(-operands // (32 * config.num_warps))
    if each > MOST_OPERANDS:
        return f"{each} elements of A and B per thread; {MOST_OPERANDS} are possible"
    return sums_why_not(problem, config)
