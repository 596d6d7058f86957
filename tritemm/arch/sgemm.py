"""Tiles of `sgemm`: what they need, which one a problem gets, and their arguments."""

from __future__ import annotations

import functools
from typing import Any

from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..problem import Config, Constraint, Problem, Tile, field
from ..runtime.workspace import Room
from ..spec import Arguments
from . import sm90
from .limits import COUNTED_K, PARTS, SINGLE_COLUMNS, indices, launchable
from .lines import Box, once_per, readable, sizes
from .roles import A_RING, NO_INTERPRETER, partial_sums

#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; registers of a thread at most, programs of an SM, and
#: FMA that it does in a clock where it is full of them.
TILES = {
    (256, 128, 32, 8, 4): (255, 1, 95.1),
    (128, 128, 16, 4, 4): (255, 2, 82.7),
    (128, 64, 16, 4, 4): (168, 3, 87.5),
    (64, 128, 16, 4, 4): (168, 3, 87.5),
    (64, 64, 16, 4, 4): (128, 4, 84.7),
    (64, 64, 16, 2, 4): (192, 5, 84.3),
    (32, 64, 32, 4, 4): (128, 4, 79.3),
    (32, 32, 32, 2, 4): (128, 6, 63.3),
}
#: Parts that K is cut into, of `LEAST` elements at least; and of all tiles for each SM, at most.
SPLITS, LEAST, MOST = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128), 64, 10
#: Clocks of a product beside its tiles, and of an SM's programs beside their steps; steps that a
#: tile's beginning and end take; clocks to add up parts, and an element of these; and the warps
#: with which an SM does half of what it can. All fitted to 1000 times of an H200, to 5 %.
START, PROGRAM, ENDS, REDUCTION, ELEMENT, HALF = 700.0, 1670.0, 1.73, 3790.0, 0.093, 2.04

NEEDS = (
    SINGLE_COLUMNS,
    NO_INTERPRETER,
    Constraint(
        "tiles have the registers of compute capability 9.0; {p.device.name} has "
        "{p.device.version}",
        lambda p: sm90.has_wgmma(p.device),
    ),
    Constraint(
        "this rung multiplies fp32 as ieee, and operands are {p.a.dtype}, precision {p.precision}",
        lambda p: p.by_ffma,
    ),
    readable,
    indices,
    launchable(lambda p: configs(p)),
)


class FfmaTile(Tile):
    """One of `TILES`."""

    needs = (
        Constraint(
            "the tile is {t.key}: BLOCK_M, BLOCK_N, BLOCK_K, warps and stages; {t.possible} are "
            "possible",
            lambda t: t.key in TILES,
        ),
        A_RING,
        field("PARTS", "1 is possible here", lambda n: n == 1),
        *PARTS,
    )

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        c = self.c
        return c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages

    possible = ", ".join(map(str, TILES))

    @functools.cached_property
    def boxes(self) -> tuple[Box, Box]:
        p, c = self.p, self.c
        a, b = (c.BLOCK_M, c.BLOCK_K), (c.BLOCK_K, c.BLOCK_N)
        return Box.of(p, p.a, *a), Box.of(p, p.b, *b)

    @classmethod
    def workspace(cls, problem: Problem, config: Config) -> Room | None:
        """Where K is cut: for the sums of each part, and a counter for each tile."""
        if config.SPLIT_K == 1:
            return None
        tiles = config.tiles(problem)
        size = config.BLOCK_M * config.BLOCK_N
        return partial_sums(problem, tiles * config.SPLIT_K * size, tiles)

    @classmethod
    def arguments(cls) -> Arguments:
        def fixed(problem: Problem, config: Config) -> dict[str, Any]:
            a, b = cls(problem, config).boxes
            cut = {"parts": config.SPLIT_K, "SPLIT": config.SPLIT_K > 1}
            return sizes(problem) | cut | {"A_MAJOR": a.major, "B_MAJOR": b.major}

        def tensors(problem: Problem, config: Config, a, b, c, *work) -> dict[str, Any]:
            boxes = cls(problem, config).boxes
            partials, counters = work or (None, None)
            return {
                "a_desc": _described(boxes[0], a, boxes[0].major == "N"),
                "b_desc": _described(boxes[1], b, boxes[1].major == "T"),
                "c_ptr": c, "partials_ptr": partials, "counters_ptr": counters,
            }  # fmt: skip

        def options(problem: Problem, config: Config) -> dict[str, Any]:
            registers, *_ = TILES[cls(problem, config).key]
            return {"maxnreg": registers}

        return Arguments(fixed, tensors, cls.workspace, options)


def _described(box: Box, tensor, along_k: bool) -> TensorDescriptor:
    """The descriptor of a box, whose lines are swizzled where they lie along K."""
    width = min(sm90.LINE_BYTES, 4 * box.block[-1]) if along_k else 0
    layout = NVMMASharedLayout(width, 32, len(box.block))
    return TensorDescriptor(tensor, box.shape, box.strides, box.block, layout)


def suits(problem: Problem) -> bool:
    """Whether it is no product with a vector."""
    return problem.by_ffma and min(problem.M, problem.N) > 1


@once_per(lambda p: (p.M, p.N, p.K, p.batches, p.device.sms))
def configs(problem: Problem) -> tuple[Config, ...]:
    """The one that is expected to take the least time."""
    found: list[tuple[float, int, Config]] = []
    for tile in TILES:
        for split in SPLITS:
            config = Config(*tile, "grouped", 8, SPLIT_K=split)
            few = config.units(problem) <= MOST * problem.device.sms and not COUNTED_K(problem)
            if split == 1 or (few and split * LEAST <= problem.K):
                found.append((_clocks(problem, config, *TILES[tile][1:]), len(found), config))
    return (min(found)[-1],)


def _clocks(problem: Problem, config: Config, together: int, most: float) -> float:
    """Clocks that the busiest SM is expected to take."""
    units = -(-config.units(problem) // problem.device.sms)
    warps, full = (config.num_warps * min(n, together) for n in (units, together))
    rate = most * (warps / (warps + HALF)) * ((full + HALF) / full)
    size, parts = config.BLOCK_M * config.BLOCK_N, config.SPLIT_K
    work = units * size * (-(-problem.K // parts) + ENDS * config.BLOCK_K) / rate
    started = START + -(-units // together) * PROGRAM
    return started + work + (REDUCTION + ELEMENT * parts * size) * (parts > 1)
