"""Tiles of `sgemm` and `dgemm`, read into registers: needs, which one is taken, arguments."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NamedTuple

import torch
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..kernels.device.dmma import LINE
from ..problem import Config, Constraint, Problem, Tile, field
from ..runtime.workspace import Room
from ..spec import Arguments, Limits
from . import sm90
from .limits import COUNTED_K, PARTS, SINGLE_COLUMNS, indices, launchable
from .lines import Box, major_of, once_per, readable, sizes
from .roles import A_RING, NO_INTERPRETER, partial_sums

#: Parts that K is cut into, of `LEAST` elements at least, and the most programs for each SM then.
SPLITS, LEAST, MOST = (*range(1, 13), 16, 24, 32, 48, 64, 96, 128), 64, 10


class Launch(NamedTuple):
    """Registers of a thread at most, programs of an SM, and its FMA in a clock when full of them:
    a fitted number, which leaves out beginnings and ends and may exceed what the unit can do."""

    registers: int
    together: int
    rate: float


class Clocks(NamedTuple):
    """Clocks of a product apart from its tiles, and of an SM's programs apart from their steps;
    steps that a tile's beginning and end take; clocks to add up parts, and an element of these; and
    the number of warps with which an SM reaches half its rate."""

    start: float
    program: float
    ends: float
    reduction: float
    element: float
    half: float

    def of(self, problem: Problem, config: Config, launch: Launch) -> float:
        """Those that the busiest SM is expected to take."""
        units, together = -(-config.units(problem) // problem.device.sms), launch.together
        warps, full = (config.num_warps * min(n, together) for n in (units, together))
        rate = launch.rate * (warps / (warps + self.half)) * ((full + self.half) / full)
        size, parts = config.BLOCK_M * config.BLOCK_N, config.SPLIT_K
        steps = -(-problem.K // (config.BLOCK_K * parts)) + self.ends
        work = units * size * steps * config.BLOCK_K / rate
        started = self.start + -(-units // together) * self.program
        return started + work + (self.reduction + self.element * parts * size) * (parts > 1)


class RegisterTile(Tile):
    """One of the `tiles` of a family, by BLOCK_M, BLOCK_N, BLOCK_K, warps and stages.

    `line` is the number of lines side by side that TMA swizzles where an operand lies across K; or
    0 if it loads all of a tile's at once, as they are.
    """

    tiles: ClassVar[dict[tuple[int, int, int, int, int], Launch]]
    clocks: ClassVar[Clocks]
    multiplied: ClassVar[Constraint]
    line: ClassVar[int] = 0
    needs = (
        Constraint(
            "the tile is {t.key}: BLOCK_M, BLOCK_N, BLOCK_K, warps and stages; {t.possible} are "
            "possible",
            lambda t: t.key in t.tiles,
        ),
        A_RING,
        field("PARTS", "1 is possible here", lambda n: n == 1),
        *PARTS,
    )

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        c = self.c
        return c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages

    @property
    def possible(self) -> str:
        return ", ".join(map(str, self.tiles))

    @functools.cached_property
    def boxes(self) -> tuple[Box, Box]:
        p, c = self.p, self.c
        rows = c.BLOCK_M if major_of(p.a) == "N" else self.line or c.BLOCK_M
        columns = c.BLOCK_N if major_of(p.b) == "T" else self.line or c.BLOCK_N
        return Box.of(p, p.a, rows, c.BLOCK_K), Box.of(p, p.b, c.BLOCK_K, columns)

    def described(self, box: Box, tensor, along_k: bool) -> TensorDescriptor:
        """The descriptor of a box."""
        size = self.p.itemsize
        width = min(sm90.LINE_BYTES, size * box.block[-1]) if along_k or self.line else 0
        layout = NVMMASharedLayout(width, 8 * size, len(box.block))
        descriptor = object.__new__(TensorDescriptor)  # whose __init__ refuses 64 bits
        names = "base", "shape", "strides", "block_shape", "layout"
        fields = tensor, box.shape, box.strides, box.block, layout
        vars(descriptor).update(zip(names, fields, strict=True))
        return descriptor

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
            tile = cls(problem, config)
            a, b = tile.boxes
            majors = {"A_MAJOR": a.major, "B_MAJOR": b.major}
            cut = {"parts": config.SPLIT_K, "SPLIT": config.SPLIT_K > 1}
            return sizes(problem) | majors | cut

        def tensors(problem: Problem, config: Config, a, b, c, *work) -> dict[str, Any]:
            tile = cls(problem, config)
            boxes = tile.boxes
            partials, counters = work or (None, None)
            return {
                "a_desc": tile.described(boxes[0], a, boxes[0].major == "N"),
                "b_desc": tile.described(boxes[1], b, boxes[1].major == "T"),
                "c_ptr": c, "partials_ptr": partials, "counters_ptr": counters,
            }  # fmt: skip

        def options(problem: Problem, config: Config) -> dict[str, Any]:
            return {"maxnreg": cls.tiles[cls(problem, config).key].registers}

        return Arguments(fixed, tensors, cls.workspace, options)

    @classmethod
    def configs(cls, problem: Problem) -> tuple[Config, ...]:
        """The one that is expected to take the least time."""
        return _least(problem, cls)

    @classmethod
    def whole(cls, problem: Problem, parts: int) -> tuple[Config, ...]:
        """`Limits.ordered`: the one of those that have K whole."""
        return _least(problem, cls, (1,))

    @classmethod
    def limits(cls, dtype: torch.dtype) -> Limits:
        needs = SINGLE_COLUMNS, NO_INTERPRETER, _HAS_REGISTERS, cls.multiplied, readable, indices
        needs_all = (*needs, launchable(cls.configs))
        return Limits(cls.configs, needs_all, cls, dtype=dtype, ordered=cls.whole)


def suits(problem: Problem) -> bool:
    """Whether it is no product with a vector."""
    return min(problem.M, problem.N) > 1


_HAS_REGISTERS = Constraint(
    "tiles have the registers of compute capability 9.0; {p.device.name} has {p.device.version}",
    lambda p: sm90.has_wgmma(p.device),
)


@once_per(lambda p: (p.M, p.N, p.K, p.batches, p.device.sms))
def _least(problem: Problem, family: type[RegisterTile], splits=SPLITS) -> tuple[Config, ...]:
    found: list[tuple[float, int, Config]] = []
    for tile, launch in family.tiles.items():
        for split in splits:
            config = Config(*tile, "grouped", 8, SPLIT_K=split)
            few = config.units(problem) <= MOST * problem.device.sms and not COUNTED_K(problem)
            if split == 1 or (few and split * LEAST <= problem.K):
                found.append((family.clocks.of(problem, config, launch), len(found), config))
    return (min(found)[-1],)


class FfmaTile(RegisterTile):
    """Tiles of fp32. Clocks are fitted to 1000 times of an H200, to 5 %."""

    tiles: ClassVar[dict[tuple[int, int, int, int, int], Launch]] = {
        (256, 128, 32, 8, 4): Launch(255, 1, 95.1),
        (128, 128, 16, 4, 4): Launch(255, 2, 82.7),
        (128, 64, 16, 4, 4): Launch(168, 3, 87.5),
        (64, 128, 16, 4, 4): Launch(168, 3, 87.5),
        (64, 64, 16, 4, 4): Launch(128, 4, 84.7),
        (64, 64, 16, 2, 4): Launch(192, 5, 84.3),
        (32, 64, 32, 4, 4): Launch(128, 4, 79.3),
        (32, 32, 32, 2, 4): Launch(128, 6, 63.3),
    }
    clocks = Clocks(700.0, 1670.0, 1.73, 3790.0, 0.093, 2.04)
    multiplied = Constraint(
        "this rung multiplies fp32 as ieee, and operands are {p.a.dtype}, precision {p.precision}",
        lambda p: p.by_ffma,
    )


class DmmaTile(RegisterTile):
    """Tiles of fp64, of which DMMA does 128 FMA in a clock.

    Clocks are fitted to 1248 times of an H200, from before rows were cut into pieces; since then
    the rate of 128 x 128 is an estimate.
    """

    tiles: ClassVar[dict[tuple[int, int, int, int, int], Launch]] = {
        (128, 128, 16, 8, 5): Launch(255, 1, 136.0),
        (128, 64, 16, 8, 6): Launch(255, 1, 128.5),
        (64, 128, 16, 8, 6): Launch(255, 1, 129.9),
        (64, 64, 16, 4, 6): Launch(255, 2, 124.1),
        (64, 32, 16, 4, 5): Launch(128, 3, 99.5),
        (32, 32, 16, 4, 8): Launch(128, 3, 78.5),
        (64, 16, 16, 4, 10): Launch(128, 2, 65.7),
        (32, 16, 16, 4, 17): Launch(128, 2, 43.5),
    }
    clocks = Clocks(4225.0, 3072.0, 6.32, 2454.0, 0.316, 7.67)
    line = LINE.value
    multiplied = Constraint(
        "this rung multiplies fp64, and operands are {p.a.dtype}",
        lambda p: p.a.dtype == torch.float64,
    )
