"""Tiles of the rungs that use mma.sync directly: their needs, and the kernels' arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..kernels.device import mma_sync
from ..problem import Config, Constraint, Problem, Tile, field
from ..spec import Arguments
from .limits import PLAIN_ONLY, in_registers, launchable
from .lines import c_major, major_of, readable
from .pointers import POINTERS
from .roles import NO_INTERPRETER

#: The subject of refusals of what can't be copied 16 bytes at a time.
BY = "a copy of 16 bytes"
CHUNK, DEPTH = mma_sync.CHUNK.value, mma_sync.DEPTH.value


def classic_config(
    problem: Problem, stages: int = 1, shared: str = "", single: int = 128
) -> Config:
    """The block tile of the CUDA HGEMM ladder; half of it if the output has no room.

    If single elements are loaded, `single` rows and columns.
    """
    classic = Config(256, 128, 32, 8, stages, ORDER="serpentine", SHARED=shared)
    if not _sides(problem).isupper():
        return dataclasses.replace(classic, BLOCK_M=single, BLOCK_N=single)
    return classic if _fits(problem, classic) else dataclasses.replace(classic, BLOCK_M=128)


#: What the rungs need.
NEEDS = (
    PLAIN_ONLY,
    NO_INTERPRETER,
    Constraint("operands of 16 bits are needed, not {p.a.dtype}", lambda p: p.itemsize == 2),
    Constraint(
        "sums of {p.a.dtype} are kept in float32",
        lambda p: p.accumulate != torch.float16 or p.a.dtype == torch.float16,
    ),
    lambda p: readable(p, BY),
    launchable(lambda p: (classic_config(p),)),
)


class ChunkTile(Tile):
    """A tile that threads copy in chunks; it has as many `stages` as one of these.

    It is `depth` deep at least. A thread keeps an address for each single element that it loads: at
    most `most`.
    """

    stages: tuple[int, ...] = (1,)
    depth, most = DEPTH, 64
    needs = (
        Constraint(
            "num_stages is {t.c.num_stages}; {t.possible} is possible in this rung",
            lambda t: t.c.num_stages in t.stages,
        ),
        field("BLOCK_M", f"{DEPTH} is the least here", lambda n: n >= DEPTH),
        field("BLOCK_N", f"{DEPTH} is the least here", lambda n: n >= DEPTH),
        Constraint(
            "BLOCK_K is {t.c.BLOCK_K}; {t.depth} is the least here",
            lambda t: t.depth <= t.c.BLOCK_K,
        ),
        in_registers,
        Constraint(
            "{t.each} single elements of A and B per thread; {t.most} are possible",
            lambda t: t.each <= t.most or _sides(t.p).isupper(),
        ),
        Constraint(
            "the tiles don't fit into shared memory; use fewer stages or smaller tiles",
            lambda t: _fits(t.p, t.c),
        ),
    )

    @property
    def possible(self) -> str:
        return " or ".join(map(str, self.stages))

    @property
    def each(self) -> int:
        """Elements of A and B for each thread."""
        lines = self.c.BLOCK_M + self.c.BLOCK_N
        return lines * self.c.BLOCK_K // (32 * self.c.num_warps)


class TwoStages(ChunkTile):
    stages = (2,)


class Stages(ChunkTile):
    stages, depth, most = (2, 3, 4), 32, 16


def _fits(problem: Problem, config: Config) -> bool:
    """Whether shared memory has room for the tiles, and then for all of the output instead.

    The compiler may pass the output through less.
    """
    padding = CHUNK * (config.SHARED == "padded")
    tiles = 0
    for side, lines in zip(_sides(problem), (config.BLOCK_M, config.BLOCK_N), strict=True):
        inner, outer = config.BLOCK_K, lines
        if side in "Ll":
            inner, outer = outer, inner
        tiles += 2 * config.num_stages * outer * (inner + padding)
    output = config.BLOCK_M * config.BLOCK_N * problem.c.dtype.itemsize
    return max(tiles, output) <= problem.device.shared


def _sides(problem: Problem) -> str:
    """The sides along which chunks of A and B run, in capitals if all are whole: see `mma_sync`."""
    sides = ""
    for view in (problem, problem.transposed()):
        along_k = major_of(view.a, BY) == "N"
        whole = (view.K if along_k else view.M) % CHUNK == 0
        side = "k" if along_k else "l"
        sides += side.upper() if whole else side
    return sides


def _fixed(problem: Problem, config: Config) -> dict[str, Any]:
    a, b, sides = problem.a, problem.b, _sides(problem)
    return POINTERS.fixed(problem, config) | {
        "pitch_a": a.pitch(major_of(a, BY)),
        "pitch_b": b.pitch(major_of(b, BY)),
        "A_SIDE": sides[0],
        "B_SIDE": sides[1],
        "C_MAJOR": c_major(problem),
        "SHARED": config.SHARED or "permuted",
    }


ARGUMENTS = Arguments(_fixed, POINTERS.tensors)
