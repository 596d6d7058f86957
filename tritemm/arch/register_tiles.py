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
    """Clocks of an SM's programs apart from their steps, and of each element of C that they store;
    clocks to add up parts, and for each element of these; and the number of warps with which an SM
    reaches half its rate."""

    program: float
    element: float
    reduction: float
    part: float
    half: float

    def of(self, problem: Problem, config: Config, launch: Launch) -> float:
        """Those that the busiest SM is expected to take."""
        units, together = -(-config.units(problem) // problem.device.sms), launch.together
        warps, full = (config.num_warps * min(n, together) for n in (units, together))
        rate = launch.rate * (warps / (warps + self.half)) * ((full + self.half) / full)
        size, parts = config.BLOCK_M * config.BLOCK_N, config.SPLIT_K
        steps = -(-problem.K // (config.BLOCK_K * parts))
        apart = -(-units // together) * (self.program + self.element * size)
        added = (self.reduction + self.part * parts * size) * (parts > 1)
        return apart + units * size * steps * config.BLOCK_K / rate + added


class RegisterTile(Tile):
    """One of the `tiles` of a family, by BLOCK_M, BLOCK_N, BLOCK_K, warps and stages.

    `line` is the number of elements side by side that TMA swizzles: of K, which a step may have
    more of, or of lines across K; or 0 if it loads a tile at once, and swizzles those of K alone.
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
        depth = self.line or c.BLOCK_K
        return Box.of(p, p.a, rows, depth), Box.of(p, p.b, depth, columns)

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
            return {"maxnreg": cls.tiles[cls(problem, config).key].registers, "launch_pdl": True}

        return Arguments(fixed, tensors, cls.workspace, options)

    @classmethod
    def configs(cls, problem: Problem) -> tuple[Config, ...]:
        """The one that is expected to take the least time."""
        return _least(problem, cls)

    @classmethod
    def whole(cls, problem: Problem, parts: int) -> tuple[Config, ...]:
        """`Limits.ordered`: the one of those that have K whole, and no slices of a step."""
        return _least(problem, cls, (1,), True)

    @classmethod
    def limits(cls, dtype: torch.dtype) -> Limits:
        needs = SINGLE_COLUMNS, NO_INTERPRETER, _HAS_REGISTERS, cls.multiplied, readable, indices
        needs_all = (*needs, launchable(cls.configs))
        return Limits(cls.configs, needs_all, cls, dtype=dtype, ordered=cls.whole)


def suits(problem: Problem) -> bool:
    """Whether it is no product with a vector, nor with two of fp32, for which `gemv` is faster."""
    return min(problem.M, problem.N) > 8 // problem.itemsize


_HAS_REGISTERS = Constraint(
    "tiles have the registers of compute capability 9.0; {p.device.name} has {p.device.version}",
    lambda p: sm90.has_wgmma(p.device),
)


@once_per(lambda p: (p.M, p.N, p.K, p.batches, p.device.sms))
def _least(
    problem: Problem, family: type[RegisterTile], splits=SPLITS, unsliced=False
) -> tuple[Config, ...]:
    found: list[tuple[float, int, Config]] = []
    for tile, launch in family.tiles.items():
        if unsliced and family.line and tile[2] > family.line:
            continue
        for split in splits:
            config = Config(*tile, "grouped", 8, SPLIT_K=split)
            few = config.units(problem) <= MOST * problem.device.sms and not COUNTED_K(problem)
            if split == 1 or (few and split * LEAST <= problem.K):
                found.append((family.clocks.of(problem, config, launch), len(found), config))
    return (min(found)[-1],)


class FfmaTile(RegisterTile):
    """Tiles of fp32. Clocks are fitted to 528 times of an H200, of launches in a row, to 9 %."""

    tiles: ClassVar[dict[tuple[int, int, int, int, int], Launch]] = {
        (256, 128, 32, 8, 4): Launch(255, 1, 129.7),
        (128, 64, 16, 4, 4): Launch(168, 3, 107.2),
        (64, 64, 16, 4, 4): Launch(128, 4, 95.7),
        (64, 64, 32, 4, 4): Launch(128, 3, 101.0),
        (32, 64, 32, 4, 4): Launch(128, 4, 83.6),
        (32, 32, 32, 2, 4): Launch(128, 6, 81.9),
        (16, 64, 32, 2, 6): Launch(128, 3, 72.5),
    }
    clocks = Clocks(2134.0, 1.49, 666.0, 0.088, 0.48)
    multiplied = Constraint(
        "this rung multiplies fp32 as ieee, and operands are {p.a.dtype}, precision {p.precision}",
        lambda p: p.by_ffma,
    )


class DmmaTile(RegisterTile):
    """Tiles of fp64, of which DMMA does 128 FMA in a clock.

    Clocks are fitted to 434 times of an H200, of launches in a row, to 9 %.
    """

    tiles: ClassVar[dict[tuple[int, int, int, int, int], Launch]] = {
        (128, 128, 16, 8, 6): Launch(255, 1, 126.0),
        (64, 64, 16, 8, 6): Launch(128, 2, 122.6),
        (64, 64, 16, 4, 4): Launch(168, 3, 122.0),
        (64, 32, 16, 4, 5): Launch(128, 3, 109.9),
        (32, 32, 32, 8, 6): Launch(128, 2, 91.3),
        (32, 16, 32, 8, 8): Launch(128, 2, 62.8),
    }
    clocks = Clocks(3323.0, 0.349, 1121.0, 0.896, 5.62)
    line = LINE.value
    multiplied = Constraint(
        "this rung multiplies fp64, and operands are {p.a.dtype}",
        lambda p: p.a.dtype == torch.float64,
    )
