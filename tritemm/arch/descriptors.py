"""Triton rungs whose tiles TMA moves: arguments, tiles, and their needs."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..problem import Config, Constraint, Problem, kept, refusal
from ..spec import Arguments
from . import sm90
from .limits import SINGLE_COLUMNS, indices, units_why_not
from .lines import Box, Boxes, once_per, readable, sizes, storable
from .pointers import Dot, fits, types_and_room, wraps


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> Boxes:
    m, n, k = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K
    c = Box.of(problem, problem.c, m, n) if storable(problem) else None
    return Boxes(Box.of(problem, problem.a, m, k), Box.of(problem, problem.b, k, n), c)


def _fixed(problem: Problem, config: Config) -> dict[str, Any]:
    boxes = _boxes(problem, config)
    majors = {"A_MAJOR": boxes.a.major, "B_MAJOR": boxes.b.major, "TMA_STORE": boxes.c is not None}
    return majors | sizes(problem)


def _tensors(problem: Problem, config: Config, a, b, c) -> dict[str, Any]:
    return _boxes(problem, config).described(Box.descriptor, a, b, c)


DESCRIPTORS = Arguments(fixed=_fixed, tensors=_tensors)

HAS_TMA = Constraint(
    "TMA needs compute capability 9.0; {p.device.name} has {p.device.version}",
    lambda p: sm90.has_tma(p.device),
)


@kept
def tma_why_not(problem: Problem) -> str | None:
    """The constraint on A and B for reads through tensor descriptors."""
    return refusal((HAS_TMA, readable, indices, wraps), problem)


#: The rungs' needs.
NEEDS = (SINGLE_COLUMNS, tma_why_not)


class TmaTile(Dot):
    """A tile that TMA moves."""

    needs = (
        *Dot.needs,
        lambda t: units_why_not(t.c.tiles(t.p)),
        Constraint(
            "a side of the tile has fewer than {t.least_side} elements, or 16 bytes for TMA",
            lambda t: min(t.c.BLOCK_M, t.c.BLOCK_N, t.c.BLOCK_K) >= t.least_side,
        ),
        Constraint(
            "stages and output together don't fit into shared memory; use fewer stages",
            lambda t: fits(t.p, t.c, t.outputs(t.p)),
        ),
    )

    @property
    def least_side(self) -> int:
        """Elements of 16 bytes, of the narrower type."""
        return sm90.TMA_BYTES // min(self.p.itemsize, self.p.c.dtype.itemsize)

    @staticmethod
    def outputs(problem: Problem) -> int:
        """Tiles of C in addition to the stages: a converted tile replaces the stages; the
        accumulator itself is staged next to them."""
        return int(problem.accumulate == problem.c.dtype)

    @classmethod
    def configs(cls, problem: Problem) -> tuple[Config, ...]:
        """Tiles for the problem, the one for large problems first."""
        return _tiles(problem, cls.outputs(problem))


class PersistentTile(TmaTile):
    """The same for a program that continues with its next tile."""

    @staticmethod
    def outputs(problem: Problem) -> int:
        """The output, so that its store overlaps loads, and what the epilogue adds, which Triton
        exchanges between threads."""
        after = problem.epilogue
        return 2 if after.residual or (after.bias and problem.accumulate == torch.float16) else 1


def suits(problem: Problem) -> bool:
    """Whether FFMA's lanes can read tiles as TMA stores them: A along K, and B across it.

    Triton copies others within shared memory again, unswizzled, so that lanes share a bank.
    """
    return not problem.by_ffma or problem.layout == "NN"


@once_per(types_and_room)
def _tiles(problem: Problem, outputs: int) -> tuple[Config, ...]:
    """The tiles that fit together with that many `outputs`.

    A row of K is 128 bytes, what TMA swizzles, where the rest leaves room: fp64 and fp32 on FFMA
    are short of registers; int8 with rows along M or N is transposed through shared memory, because
    its WGMMA reads only rows along K, and so is the widest output.
    """
    if problem.a.dtype == torch.float64:
        tiles = [(64, 64, 16, 4, 3)]
    elif problem.by_ffma:
        tiles = [(64, 64, 16, 4, 3), (32, 64, 16, 4, 3)]
    elif problem.a.dtype == torch.float32:
        tiles = [(128, 128, 32, 8, 3), (64, 64, 32, 4, 4)]
    elif problem.a.dtype == torch.int8:
        tiles = [(128, 256, 64, 8, 3), (128, 128, 128, 8, 3), (64, 64, 128, 4, 4)]
    else:
        tiles = [(128, 256, 64, 8, stages) for stages in (4, 3)]
        tiles += [(128, 128, 64, 8, 4), (64, 64, 64, 4, 4)]
    configs = (Config(*tile, ORDER="grouped") for tile in tiles)
    return tuple(config for config in configs if fits(problem, config, outputs))
