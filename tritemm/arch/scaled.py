"""What products with scales need from a device and from tiles."""

from __future__ import annotations

from ..problem import BLOCK, Config, Constraint, Problem
from . import sm80, sm90
from .lines import once_per
from .pointers import Dot, fits, tiles_in_flight, types_and_room

HAS_FP8 = Constraint(
    "products of {p.a.dtype} need compute capability 8.9; {p.device.name} has {p.device.version}",
    lambda p: not p.is_fp8 or p.device.capability >= sm80.FP8_CAPABILITY,
)
#: Blocks of scales consist of whole steps of a kernel, whose sums are promoted one by one.
IN_BLOCKS = Constraint(
    f"BLOCK_K is {{t.c.BLOCK_K}}; {BLOCK} is possible where sums are promoted",
    lambda t: t.p.sums == "whole" or t.c.BLOCK_K == BLOCK,
)


#: One program adds all steps of K, in order.
WHOLE_K = Constraint(
    "PARTS is {t.c.PARTS}; 1 is possible where sums are promoted",
    lambda t: t.p.sums == "whole" or t.c.PARTS == 1,
)


class ScaledDot(Dot):
    """A tile that Triton multiplies, of scaled operands."""

    needs = (IN_BLOCKS, *Dot.needs)


@once_per(lambda p: (*types_and_room(p), p.sums, p.scales is None))
def scaled_tiles(problem: Problem) -> tuple[Config, ...]:
    """Tiles whose partial sums also fit in registers; none without scales."""
    if problem.scales is None:
        return tiles_in_flight(problem)
    hopper = sm90.has_tma(problem.device)
    tiles = [(128, 128, 8, 4), (128, 128, 8, 3), (64, 64, 4, 3)]
    configs = [
        Config(m, n, BLOCK, warps, stages if hopper else 2, "grouped")
        for m, n, warps, stages in tiles
    ]
    return tuple(config for config in configs if fits(problem, config))
