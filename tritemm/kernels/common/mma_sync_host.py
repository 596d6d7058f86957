"""Host helpers of the rungs on mma.sync by hand: refusals, the tile, the arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ...config import Config
from ...problem import INTERPRETER, Matrix, Problem, kept
from ...spec import Arguments
from . import mma_sync
from .gluon_host import c_major
from .host import POINTERS, lines_why_not, refusal
from .limits import grid_why_not, tile_why_not

#: Who refuses what can't be copied 16 bytes at a time.
BY = "a copy of 16 bytes"
CHUNK, DEPTH = mma_sync.CHUNK.value, mma_sync.DEPTH.value


def classic_config(problem: Problem, stages: int = 1, shared: str = "") -> Config:
    """The block tile of the CUDA HGEMM ladder; half of it where single elements are loaded, or the
    output has no room.
    """
    whole = Config(256, 128, 32, 8, stages, ORDER="serpentine", SHARED=shared)
    if (_a_side(problem) + _b_side(problem)).isupper() and _fits(problem, whole):
        return whole
    return dataclasses.replace(whole, BLOCK_M=128)


@kept
def why_not(problem: Problem) -> str | None:
    """The refusal of the rungs on mma.sync whose threads copy chunks."""
    if problem.device == INTERPRETER:
        return "Gluon kernels don't run in Triton's interpreter"
    if problem.itemsize != 2:
        return f"operands of 16 bits are needed, and these are {problem.a.dtype}"
    if problem.accumulate == torch.float16 != problem.a.dtype:
        return f"sums of {problem.a.dtype} are kept in float32"
    return lines_why_not(problem, BY) or grid_why_not(problem, (classic_config(problem),))


def config_why_not(stages: tuple[int, ...], depth: int = DEPTH):
    """What refuses configs of a rung that has so many `stages`, and takes `depth` of K at least."""

    def reason(problem: Problem, config: Config) -> str | None:
        if config.num_stages not in stages:
            possible = " or ".join(map(str, stages))
            return f"num_stages is {config.num_stages}; {possible} is possible in this rung"
        for name, least in (("BLOCK_M", DEPTH), ("BLOCK_N", DEPTH), ("BLOCK_K", depth)):
            if getattr(config, name) < least:
                return f"{name} is {getattr(config, name)}; {least} is the least here"
        if reason := tile_why_not(problem, config):
            return reason
        if not _fits(problem, config):
            return "the tiles don't fit into shared memory; take fewer stages or smaller tiles"
        return None

    return reason


def _fits(problem: Problem, config: Config) -> bool:
    """Whether shared memory has room for the tiles, and then for the output in their place."""
    lines, padding = config.BLOCK_M + config.BLOCK_N, CHUNK * (config.SHARED == "padded")
    tiles = 2 * config.num_stages * lines * (config.BLOCK_K + padding)
    output = config.BLOCK_M * config.BLOCK_N * problem.c.dtype.itemsize
    return max(tiles, output) <= problem.device.shared


def _major(matrix: Matrix) -> str:
    """How `matrix` is copied: by rows (N) where possible, or columns (T)."""
    return "N" if refusal("", matrix, "N", BY) is None else "T"


def _a_side(problem: Problem) -> str:
    """Along which side chunks lie, and whether they are whole: see `mma_sync`."""
    if _major(problem.a) == "N":
        return "k" if problem.K % CHUNK else "K"
    return "l" if problem.M % CHUNK else "L"


def _b_side(problem: Problem) -> str:
    return _a_side(problem.transposed())


def _fixed(problem: Problem, config: Config) -> dict[str, Any]:
    a, b = problem.a, problem.b
    return POINTERS.fixed(problem, config) | {
        "pitch_a": a.pitch(_major(a)),
        "pitch_b": b.pitch(_major(b)),
        "A_SIDE": _a_side(problem),
        "B_SIDE": _b_side(problem),
        "C_MAJOR": c_major(problem),
        "SHARED": config.SHARED or "permuted",
    }


ARGUMENTS = Arguments(_fixed, POINTERS.tensors)
