"""The refusals of K cut into parts."""

from __future__ import annotations

from ..kernels.device import scheduler
from ..problem import Problem
from ..spec import Config
from .limits import units_why_not

#: Parts of K at most: who comes to add them up is counted in 8 bits (`parts`), and the steps
#: of all parts in 32.
MOST_PARTS = 128
CUT = scheduler.CUT.value


def too_long(problem: Problem) -> str | None:
    """The refusal of what counts the steps of K of all parts."""
    if problem.K >= 2**28:
        return f"K is {problem.K}; steps of K are counted in 32 bits, for all parts, below 2**28"
    return None


def parts_why_not(problem: Problem, config: Config) -> str | None:
    """The refusal of K cut into more parts than it has steps, or than can be counted."""
    split, steps = config.SPLIT_K, -(-problem.K // config.BLOCK_K)
    if split > 1 and (reason := too_long(problem)):
        return reason
    if steps < split:
        return f"SPLIT_K is {split}; K = {problem.K} has {steps} steps of {config.BLOCK_K}"
    if split > MOST_PARTS:
        return f"SPLIT_K is {split}; {MOST_PARTS} parts are possible"
    if reason := fixed_parts_why_not(problem, config):
        return reason
    return units_why_not(config.tiles(problem) * split)


def fixed_parts_why_not(problem: Problem, config: Config) -> str | None:
    """The refusal of `PARTS` that are too many, or that steps or programs don't meet."""
    count, split = config.PARTS, config.SPLIT_K
    if count == 1:
        return None
    if split not in (1, count):
        return f"PARTS is {count} and SPLIT_K {split}; one program takes all parts, or each one"
    if CUT % config.BLOCK_K:
        return f"BLOCK_K is {config.BLOCK_K}; PARTS begin at multiples of {CUT} elements"
    pieces = -(-problem.K // CUT)
    if count > pieces:
        return f"PARTS is {count}; K = {problem.K} has {pieces} times {CUT} elements"
    return too_long(problem)
