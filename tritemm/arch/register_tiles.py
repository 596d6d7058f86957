"""Tiles of `sgemm` and `dgemm`, read into registers: needs, which one is taken, arguments."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..kernels.device.dmma import LINE, slices_of
from ..kernels.device.register_ring import bands_of
from ..problem import Config, Constraint, Problem, Tile, field
from ..spec import Arguments, Limits
from . import sm90
from .gemv import room
from .limits import COUNTED_K, PARTS, SINGLE_COLUMNS, indices, launchable
from .lines import Box, major_of, once_per, readable, sizes
from .roles import NO_INTERPRETER

#: Parts that K is cut into, of `LEAST` elements at least, and the most programs for each SM then.
SPLITS, LEAST, MOST = (*range(1, 13), 16, 24, 32, 48, 64, 96, 128), 64, 10
#: The cost of adding parts in shares, besides reading them: equal to reading this many bytes.
SHARING = 2**16


class Launch(NamedTuple):
    """The most registers of a thread, how many programs share an SM, and the FMA that an SM does in
    a clock with that many. The rate is fitted without their beginnings and ends, so it may
    exceed what the units can do, 128."""

    registers: int
    together: int
    rate: float


class Clocks(NamedTuple):
    """What a product takes besides its steps, in clocks.

    `program`: a round of programs that run together on an SM, and `element`: as much more for each
    element of a tile of C; `reduction`: adding up parts of K, and `part`: for each byte of them
    that a program reads. `half` is the number of warps with which an SM reaches half of the rate
    that it would have with an unlimited number.
    """

    program: float
    element: float
    reduction: float
    part: float
    half: float

    def of(self, problem: Problem, config: Config, launch: Launch) -> float:
        """The predicted clocks of the busiest SM."""
        units, together = -(-config.units(problem) // problem.device.sms), launch.together
        warps, full = (config.num_warps * min(n, together) for n in (units, together))
        rate = launch.rate * (warps / (warps + self.half)) * ((full + self.half) / full)
        size, parts = config.BLOCK_M * config.BLOCK_N, config.SPLIT_K
        shares = _shares(problem, config, launch)
        read = parts * size * problem.itemsize / shares + SHARING * (shares > 1)
        steps = -(-problem.K // (config.BLOCK_K * parts))
        apart = -(-units // together) * (self.program + self.element * size)
        added = (self.reduction + self.part * read) * (parts > 1)
        return apart + units * size * steps * config.BLOCK_K / rate + added


class RegisterTile(Tile):
    """One of the `tiles` of a family, by BLOCK_M, BLOCK_N, BLOCK_K, warps and stages.

    `line` is the number of neighbours in a line of a box that TMA swizzles: k of one line, where a
    step with more of them takes several boxes, or lines of one k. It is 0 if a box is a whole tile;
    then only lines along K are swizzled.
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
        field("PARTS", "1 is possible here", lambda n: n == 1),
        *PARTS,
    )

    @property
    def key(self) -> tuple[int, int, int, int, int]:
        c = self.c
        return c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages

    @staticmethod
    def slices(rows: int, columns: int, depth: int) -> int:
        """How many sums of a step each element has."""
        return 1

    @property
    def possible(self) -> str:
        return ", ".join(map(str, self.tiles))

    @property
    def boxes(self) -> tuple[Box, Box]:
        p, c = self.p, self.c
        rows = c.BLOCK_M if major_of(p.a) == "N" else self.line or c.BLOCK_M
        columns = c.BLOCK_N if major_of(p.b) == "T" else self.line or c.BLOCK_N
        depth = self.line or c.BLOCK_K
        return Box.of(p, p.a, rows, depth), Box.of(p, p.b, depth, columns)

    def described(self, box: Box, tensor, along_k: str) -> TensorDescriptor:
        """The descriptor of a box; `along_k` is the major of lines along K."""
        size = self.p.itemsize
        swizzled = box.major == along_k or self.line
        width = min(sm90.LINE_BYTES, size * box.block[-1]) if swizzled else 0
        layout = NVMMASharedLayout(width, 8 * size, len(box.block))
        descriptor = object.__new__(TensorDescriptor)  # whose __init__ refuses 64 bits
        vars(descriptor).update(
            base=tensor, shape=box.shape, strides=box.strides, block_shape=box.block, layout=layout
        )
        return descriptor

    @classmethod
    def arguments(cls) -> Arguments:
        def fixed(problem: Problem, config: Config) -> dict[str, Any]:
            tile = cls(problem, config)
            (a, b), launch = tile.boxes, cls.tiles[tile.key]
            return sizes(problem) | {
                "A_ALONG_K": a.major == "N", "B_ALONG_K": b.major == "T",
                "VECTOR": _vector(problem), "parts": config.SPLIT_K, "SPLIT": config.SPLIT_K > 1,
                "TOGETHER": _shares(problem, config, launch) > 1,
            }  # fmt: skip

        def tensors(problem: Problem, config: Config, a, b, c, *work) -> dict[str, Any]:
            tile = cls(problem, config)
            of_a, of_b = tile.boxes
            partials, counters = work or (None, None)
            return {
                "a_desc": tile.described(of_a, a, "N"), "b_desc": tile.described(of_b, b, "T"),
                "c_ptr": c, "partials_ptr": partials, "counters_ptr": counters,
            }  # fmt: skip

        def options(problem: Problem, config: Config) -> dict[str, Any]:
            return {"maxnreg": cls.tiles[cls(problem, config).key].registers, "launch_pdl": True}

        return Arguments(fixed, tensors, room, options)

    @classmethod
    def configs(cls, problem: Problem) -> tuple[Config, ...]:
        """The tile with the least predicted time."""
        return _least(problem, cls)

    @classmethod
    def whole(cls, problem: Problem, parts: int) -> tuple[Config, ...]:
        """`Limits.ordered`: the fastest whose K is whole and whose steps have no slices."""
        return _least(problem, cls, True)

    @classmethod
    def limits(cls, dtype: torch.dtype) -> Limits:
        needs = SINGLE_COLUMNS, NO_INTERPRETER, _HAS_REGISTERS, cls.multiplied, readable, indices
        needs_all = (*needs, launchable(cls.configs))
        return Limits(cls.configs, needs_all, cls, dtype=dtype, ordered=cls.whole)


def suits(problem: Problem) -> bool:
    """Whether it is no product with a vector, nor in fp32 with two: `gemv` is faster for those."""
    return min(problem.M, problem.N) > 8 // problem.itemsize


def _shares(problem: Problem, config: Config, launch: Launch) -> int:
    """How many programs add a tile's parts, a share of its bands each: one, unless all programs run
    together and it takes less time."""
    parts, size = config.SPLIT_K, config.BLOCK_M * config.BLOCK_N * problem.itemsize
    shares = min(parts, bands_of(size, config.num_warps, True))
    together = config.units(problem) <= problem.device.sms * launch.together
    return shares if together and parts * size * (1 - 1 / shares) >= SHARING else 1


def _vector(problem: Problem) -> int:
    """The most neighbours, 16 bytes at most, that divide N and all strides of rows and batches of C
    and of the residual; 1 if one of them is stored by columns."""
    matrices = filter(None, (problem.c, problem.epilogue.residual))
    pitches = (stride for matrix in matrices for stride in matrix.strides[:3])
    return math.gcd(16 // problem.itemsize, problem.N, *pitches)


_HAS_REGISTERS = Constraint(
    "tiles have the registers of compute capability 9.0; {p.device.name} has {p.device.version}",
    lambda p: sm90.has_wgmma(p.device),
)


@once_per(lambda p: (p.M, p.N, p.K, p.batches, p.itemsize, p.device.sms))
def _least(problem: Problem, family: type[RegisterTile], ordered=False) -> tuple[Config, ...]:
    found: list[tuple[float, int, Config]] = []
    for tile, launch in family.tiles.items():
        if ordered and family.slices(*tile[:3]) > 1:
            continue
        for split in SPLITS[:1] if ordered else SPLITS:
            config = Config(*tile, "grouped", 8, SPLIT_K=split)
            few = config.units(problem) <= MOST * problem.device.sms and not COUNTED_K(problem)
            if split == 1 or (few and split * LEAST <= problem.K):
                found.append((family.clocks.of(problem, config, launch), len(found), config))
    return (min(found)[-1],)


class FfmaTile(RegisterTile):
    """Tiles of fp32. Clocks are fitted to 528 times of launches in a row on an H200, to 9 % on
    average."""

    tiles: ClassVar[dict[tuple[int, int, int, int, int], Launch]] = {
        (256, 128, 32, 8, 4): Launch(255, 1, 129.7),
        (128, 64, 16, 4, 4): Launch(168, 3, 107.2),
        (64, 64, 16, 4, 4): Launch(128, 4, 95.7),
        (64, 64, 32, 4, 4): Launch(128, 3, 101.0),
        (32, 64, 32, 4, 4): Launch(128, 4, 83.6),
        (32, 32, 32, 2, 4): Launch(128, 6, 81.9),
        (16, 64, 32, 2, 6): Launch(128, 3, 72.5),
    }
    clocks = Clocks(2134.0, 1.49, 666.0, 0.022, 0.48)
    multiplied = Constraint(
        "this rung multiplies fp32 as ieee, not {p.a.dtype} with precision {p.precision}",
        lambda p: p.by_ffma,
    )


class DmmaTile(RegisterTile):
    """Tiles of fp64, of which DMMA does 128 FMA in a clock.

    Clocks are fitted, to 7 % on average, to 497 times on an H200, of configs and cuBLAS in turns,
    each for so long that power may limit it.
    """

    tiles: ClassVar[dict[tuple[int, int, int, int, int], Launch]] = {
        (128, 128, 16, 8, 6): Launch(255, 1, 129.7),
        (64, 128, 32, 8, 4): Launch(255, 1, 124.6),
        (128, 64, 32, 8, 4): Launch(255, 1, 120.2),
        (64, 64, 16, 4, 4): Launch(168, 3, 112.1),
        (64, 32, 16, 4, 5): Launch(128, 3, 101.8),
        (32, 32, 32, 8, 6): Launch(128, 2, 94.9),
        (32, 16, 32, 8, 8): Launch(128, 2, 64.8),
    }
    clocks = Clocks(3029.0, 0.916, 5509.0, 0.0161, 3.97)
    line = LINE.value
    slices = staticmethod(slices_of)
    multiplied = Constraint(
        "this rung multiplies fp64, not {p.a.dtype}",
        lambda p: p.a.dtype == torch.float64,
    )
