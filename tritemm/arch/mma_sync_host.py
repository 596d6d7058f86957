"""Host helpers of the rungs on mma.sync by hand: refusals, the tile, the arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..kernels.device import mma_sync
from ..problem import Problem, kept
from ..problem.config import Config
from ..spec import Arguments
from .gluon_host import c_major, interpreter_why_not, types_why_not
from .host import POINTERS, lines_why_not, major_of
from .limits import grid_why_not, sums_only, tile_why_not

#: Who refuses what can't be copied 16 bytes at a time.
BY = "a copy of 16 bytes"
CHUNK, DEPTH = mma_sync.CHUNK.value, mma_sync.DEPTH.value


def classic_config(
    problem: Problem, stages: int = 1, shared: str = "", single: int = 128
) -> Config:
    """The block tile of the CUDA HGEMM ladder; half of it where the output has no room.

    Where single elements are loaded, `single` rows and columns.
    """
    classic = Config(256, 128, 32, 8, stages, ORDER="serpentine", SHARED=shared)
    if not _whole(problem):
        return dataclasses.replace(classic, BLOCK_M=single, BLOCK_N=single)
    return classic if _fits(problem, classic) else dataclasses.replace(classic, BLOCK_M=128)


@kept
def why_not(problem: Problem) -> str | None:
    """The refusal of the rungs on mma.sync whose threads copy chunks."""
    reason = sums_only(problem) or interpreter_why_not(problem) or types_why_not(problem)
    if reason:
        return reason
    if problem.accumulate == torch.float16 != problem.a.dtype:
        return f"sums of {problem.a.dtype} are kept in float32"
    return lines_why_not(problem, BY) or grid_why_not(problem, (classic_config(problem),))


def config_why_not(stages: tuple[int, ...], depth: int = DEPTH, most: int = 64):
    """What refuses configs of a rung that has so many `stages`, and takes `depth` of K at least.

    A thread keeps an address for each single element that it loads: it has room for `most`.
    """

    def reason(problem: Problem, config: Config) -> str | None:
        if config.num_stages not in stages:
            possible = " or ".join(map(str, stages))
            return f"num_stages is {config.num_stages}; {possible} is possible in this rung"
        for name, least in (("BLOCK_M", DEPTH), ("BLOCK_N", DEPTH), ("BLOCK_K", depth)):
            if getattr(config, name) < least:
                return f"{name} is {getattr(config, name)}; {least} is the least here"
        if reason := tile_why_not(problem, config):
            return reason
        lines = config.BLOCK_M + config.BLOCK_N
        each = lines * config.BLOCK_K // (32 * config.num_warps)
        if each > most and not _whole(problem):
            return f"{each} single elements of A and B per thread; {most} are possible"
        if not _fits(problem, config):
            return "the tiles don't fit into shared memory; take fewer stages or smaller tiles"
        return None

    return reason


def _fits(problem: Problem, config: Config) -> bool:
    """Whether shared memory has room for the tiles, and then for all of the output in their place.

    The compiler may pass the output through less.
    """
    padding = CHUNK * (config.SHARED == "padded")
    tiles = 0
    for side, lines in ((_a_side(problem), config.BLOCK_M), (_b_side(problem), config.BLOCK_N)):
        inner, outer = config.BLOCK_K, lines
        if side in "Ll":
            inner, outer = outer, inner
        tiles += 2 * config.num_stages * outer * (inner + padding)
    output = config.BLOCK_M * config.BLOCK_N * problem.c.dtype.itemsize
    return max(tiles, output) <= problem.device.shared


def _whole(problem: Problem) -> bool:
    """Whether A and B are copied in chunks."""
    return (_a_side(problem) + _b_side(problem)).isupper()


def _a_side(problem: Problem) -> str:
    """Along which side chunks lie, and whether they are whole: see `mma_sync`."""
    if major_of(problem.a, BY) == "N":
        return "k" if problem.K % CHUNK else "K"
    return "l" if problem.M % CHUNK else "L"


def _b_side(problem: Problem) -> str:
    return _a_side(problem.transposed())


def _fixed(problem: Problem, config: Config) -> dict[str, Any]:
    a, b = problem.a, problem.b
    return POINTERS.fixed(problem, config) | {
        "pitch_a": a.pitch(major_of(a, BY)),
        "pitch_b": b.pitch(major_of(b, BY)),
        "A_SIDE": _a_side(problem),
        "B_SIDE": _b_side(problem),
        "C_MAJOR": c_major(problem),
        "SHARED": config.SHARED or "permuted",
    }


ARGUMENTS = Arguments(_fixed, POINTERS.tensors)
