"""The rungs whose warps have roles: the needs of WGMMA and TMA, and the kernels' arguments."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from ..kernels.device import epilogue_ops, scale_ring, split_k, subtile
from ..kernels.device.shape import Shape
from ..problem import (
    BLOCK,
    GATED,
    INTERPRETER,
    PLAIN,
    PRODUCTS,
    Config,
    Constraint,
    Problem,
    Tile,
    field,
    kept,
    refusal,
)
from ..runtime.workspace import Room
from ..spec import Arguments, Workspace
from . import sm90
from .limits import SINGLE_COLUMNS, counted
from .lines import LINES, Box, Boxes, by_tma, c_major, crossed, major_of, readable, sizes

#: The most accumulators per thread with which the epilogue prefetches a residual; the most programs
#: that own a share of a tile's sum.
LOADED_AHEAD, OWNERS = subtile.ROOMY.value, split_k.OWNERS.value
#: The most groups that each warp's threads count together; more would take too many registers.
MOST_GROUPS = 512
#: K of a typical group up to which tiles are small and steps short; and rows and columns of a C
#: that takes long to write. TMA stores nothing while it loads, even zeros: if K is short, C waits
#: for the loads.
SHORT_K, LARGE_SIDES = 32, 256
#: Types of operands, in PTX.
TYPES = {
    torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "tf32", torch.int8: "s8",
    torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2",
}  # fmt: skip

#: As in a kernel; a call from the host costs several microseconds.
_sizes_of = functools.cache(scale_ring.sizes_of)

NO_INTERPRETER = Constraint(
    "Gluon kernels don't run in Triton's interpreter", lambda p: p.device != INTERPRETER
)
NARROW = Constraint(
    "operands of 16 or 8 bits are needed, not {p.a.dtype}", lambda p: p.itemsize <= 2
)
BYTES_ALONG_K = Constraint(
    "a and b are stored {p.layout}; WGMMA reads 8-bit operands along K: NT",
    lambda p: p.itemsize > 1 or (major_of(p.a), major_of(p.b)) == ("N", "T"),
)
HAS_WGMMA = Constraint(
    "WGMMA needs compute capability 9.0; {p.device.name} has {p.device.version}",
    lambda p: sm90.has_wgmma(p.device),
)
IN_32_BITS = Constraint(
    "sums are kept in 32 bits, not in {p.accumulate}", lambda p: p.accumulate.itemsize == 4
)


#: Groups that a warp can count by itself, and the room in a map that ends with a group.
_FEW_GROUPS = Constraint(
    f"there are {{p.batch}} groups; warps count at most {MOST_GROUPS}",
    lambda p: p.batch <= MOST_GROUPS,
)
_SHORT = Constraint(
    f"M, N and K are {{p.M}}, {{p.N}} and {{p.K}}; with groups, at most {LINES // 2}",
    lambda p: max(p.M, p.N, p.K) <= LINES // 2,
)
_ACROSS = Constraint(
    "groups cut the lines of an operand, where TMA can only begin at multiples of 16 bytes",
    lambda p: not crossed(p),
)
_SCALE_EACH = Constraint(
    f"columns are cut into groups, which begin anywhere, but {BLOCK} columns share a scale",
    lambda p: p.groups != "n" or p.sums != "block" or p.lines_per_scale[1] != BLOCK,
)


@kept
def grouped(problem: Problem) -> str | None:
    """What groups need, cached; nothing for other problems."""
    return refusal((_FEW_GROUPS, _SHORT, _ACROSS, _SCALE_EACH), problem) if problem.groups else None


@kept
def typical_k(problem: Problem) -> float:
    """K of a typical group, if K is cut, C is large and operands have 16 bits; else infinite."""
    if problem.groups != "k" or problem.itemsize != 2 or problem.epilogue.per_column > 1:
        return math.inf
    large = min(problem.M, problem.N) >= LARGE_SIDES
    return problem.typical[2] if large else math.inf


@kept
def narrow_operands(problem: Problem) -> str | None:
    """The needs of nearly all of the rungs, cached."""
    return refusal(_OF_ALL, problem)


_OF_ALL = (
    NO_INTERPRETER, HAS_WGMMA, NARROW, IN_32_BITS, readable, BYTES_ALONG_K, counted, grouped,
)  # fmt: skip


#: The needs of the rungs that finish columns one by one.
NEEDS = (SINGLE_COLUMNS, narrow_operands)


class Facts(NamedTuple):
    """What a problem's tiles must fit; sizes in bytes."""

    shared: int  # of a program
    size: int  # of an element of A and B
    element: int  # of an element of C
    b_major: str
    c_by_tma: bool  # TMA stores C
    c_by_rows: bool  # and along its rows
    a_registers: bool  # WGMMA takes A from registers: a tf32 one that is not stored along K
    per_column: int  # `EpilogueSpec`
    symmetric: bool
    sums: str  # `Problem`
    b_lines: int
    step: int  # divides the columns of a tile of any width


@kept
def facts(problem: Problem) -> Facts:
    a_registers = problem.a.dtype == torch.float32 and major_of(problem.a) == "T"
    return Facts(
        problem.device.shared, problem.itemsize, problem.c.dtype.itemsize, major_of(problem.b),
        by_tma(c_major(problem)), c_major(problem) == "N", a_registers,
        problem.epilogue.per_column, problem.epilogue.symmetric,
        problem.sums, problem.lines_per_scale[1], sm90.column_step(problem.a.dtype),
    )  # fmt: skip


@functools.cache
def config_of(
    m: int,
    n: int,
    k: int,
    warps: int,
    stages: int,
    split: int = 1,
    cluster: int = 1,
    parts: int = 1,
) -> Config:
    """A config of a Gluon rung; one object for equal ones."""
    return Config(m, n, k, warps, stages, "grouped", SPLIT_K=split, CLUSTER=cluster, PARTS=parts)


def cut(c: Config, split: int, parts: int = 1) -> Config:
    """The same with K split among that many programs, and cut into that many fixed parts."""
    tile = c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages
    return config_of(*tile, split, c.CLUSTER, parts)


@functools.cache
def piece_columns(columns: int, programs: int) -> int:
    """Columns of the pieces of a tile that `programs` programs divide among them.

    As few as possible for the program that has most; a piece costs as much as some more.
    """
    widths = [width for width in (64, 32, 16, 8) if columns % width == 0]
    return min(widths, key=lambda width: -(-columns // (width * programs)) * (width + 4))


A_RING = field("num_stages", "a ring needs 2 or more", lambda n: n >= 2)
FITS = Constraint(
    "stages and output together don't fit into shared memory; use fewer stages",
    lambda t: t.buffers > 0,
)


class RoleTile(Tile):
    """What a kernel needs to know about a tile at compile time (`Shape`), and its boxes.

    A family says: `consumers`; how many of them share a tile (`sharers`); the `warps` of a launch;
    the `rows` of a consumer's slab; the `columns` that the epilogue stores at a time; the `buffers`
    of each consumer's output, 0 if none fits; the `boxes`; the operand that a cluster's programs
    share (`shared`); whether all parts of a tile's K run `together`; whether the next launch
    begins `late`; its needs that concern `registers`; bytes of a cluster's `stages`, and of the
    gap between them and the barriers (`apart`).
    """

    consumers: int
    sharers: int
    columns: int
    buffers: int
    boxes: Boxes
    warpgroups = True
    rows, warps, shared, together = sm90.ROWS, sm90.WARPGROUP, "b", False
    stages = apart = 0
    late = False
    registers: ClassVar[tuple[Constraint, ...]] = ()

    def __init__(self, problem: Problem, config: Config):
        super().__init__(problem, config)
        self.facts = facts(problem)
        #: Warps that multiply a tile, or a consumer's slab.
        self.of_tile = config.num_warps
        #: Accumulators of each element of a tile: for K so far, or also for the present part.
        self.accumulators = 2 if config.PARTS > config.SPLIT_K else 1

    @property
    def in_squares(self) -> bool:
        """Whether TMA stores the pieces of a symmetric C and their mirrors; else threads do."""
        return self.facts.symmetric and self.facts.c_by_rows and self.columns == self.rows

    @property
    def c_major(self) -> str:
        """How C is stored; see `lines.c_major`."""
        if self.facts.symmetric and not self.in_squares:
            return "t" if self.p.c.layout == "T" else "n"
        return c_major(self.p)

    @property
    def most_accumulators(self) -> int:
        """Accumulators that a thread has registers for."""
        whole, in_parts, mirrored = sm90.ACCUMULATORS[self.sharers]
        if self.facts.symmetric and not self.in_squares:
            return mirrored
        return in_parts if self.accumulators > 1 or self.facts.sums != "whole" else whole

    @property
    def of_scales(self) -> int:
        """Bytes of the ring of scales, if there is one."""
        if self.facts.sums != "block":
            return 0
        sizes = _sizes_of(self.c.BLOCK_M, self.c.BLOCK_N, self.facts.b_lines)
        return 4 * self.c.num_stages * sum(sizes)

    @property
    def tiles(self) -> int:
        """Tiles of C, whole clusters of them."""
        return self.c.tiles(self.p)

    @classmethod
    def workspace(cls, problem: Problem, config: Config) -> Room | None:
        """Where K is cut: for the sums of each consumer's slab, and their counters."""
        if config.SPLIT_K == 1:
            return None
        tile = cls(problem, config)
        count = tile.tiles * config.SPLIT_K * config.BLOCK_M * config.BLOCK_N
        return Room(count, problem.accumulate, tile.tiles * tile.sharers)

    def described(self, a, b, c) -> dict[str, Any]:
        """Descriptors of the boxes, and C's address."""
        return self.boxes.described(Box.gluon_descriptor, a, b, c)

    @classmethod
    def able(cls, problem: Problem, configs: Iterable[Config], *needs: Constraint):
        """Those of the `configs` whose tiles meet the `needs`."""
        return tuple(c for c in configs if refusal(needs, cls(problem, c)) is None)

    @classmethod
    def whole(cls, configs: Callable[[Problem], Sequence[Config]]):
        """`Limits.ordered` for a rung whose programs have all of K, in one of its `configs`."""

        def ordered(problem: Problem, parts: int) -> Sequence[Config]:
            in_parts = (cut(config, 1, parts) for config in configs(problem))
            return cls.able(problem, in_parts, *cls.registers)

        return ordered

    @classmethod
    def arguments(cls, workspace: Workspace | None = None) -> Arguments:
        """A rung's; the tensors of its `workspace` are the partial sums and the counters."""
        tile_of = functools.lru_cache(maxsize=4096)(cls)

        def tensors(problem: Problem, config: Config, a, b, c, *work) -> dict[str, Any]:
            named = tile_of(problem, config).described(a, b, c)
            if workspace:
                named["partials_ptr"], named["counters_ptr"] = work or (None, None)
            return named

        def fixed(problem: Problem, config: Config) -> dict[str, Any]:
            shape = {"SHAPE": tile_of(problem, config).shape}
            return shape | sizes(problem)

        def options(problem: Problem, config: Config) -> dict[str, Any]:
            return tile_of(problem, config).options

        return Arguments(fixed, tensors, workspace, options)

    @property
    def options(self) -> dict[str, Any]:
        """Triton's. A launch may begin before the previous one has ended: kernels wait for it."""
        registers = sm90.REGISTERS[self.sharers]
        return {"num_warps": self.warps, "maxnreg": registers, "launch_pdl": True}

    @property
    def shape(self) -> Shape:
        p, c, after, boxes = self.p, self.c, self.p.epilogue, self.boxes
        plain = after == PLAIN and (p.scales is None or p.sums == "block")  # C gets the accumulator
        if after.symmetric:
            plain = dataclasses.replace(after, symmetric=False) == PLAIN
        return _shape(
            c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_stages, self.of_tile, self.consumers, self.rows,
            c.ORDER, c.GROUP_M, c.SPLIT_K, c.CLUSTER, self.columns,
            A_MAJOR=boxes.a.major, B_MAJOR=boxes.b.major, C_MAJOR=self.c_major,
            BATCHED=p.batched, WIDE=p.wide, BUFFERS=self.buffers,
            TYPE=f"{TYPES[p.a.dtype]}.{TYPES[p.b.dtype]}",
            SHARED=self.shared, TOGETHER=self.together, PARTS=c.PARTS, PLAIN=plain,
            TRIANGULAR=after.symmetric, LINES=_in_lines(p), BIAS=after.along,
            GATED=after.per_column > 1, ACTIVATION=GATED.get(after.activation, after.activation),
            RING=self.stages + self.apart, SLOTS=self.stages if self.apart else 0, LATE=self.late,
            GROUPS=p.groups, MOST_GROUPS=_counted(p),
            SUMS=p.sums, A_LINES=p.lines_per_scale[0], B_LINES=p.lines_per_scale[1],
            **(_in_planes(p) if p.planes else {}),
        )  # fmt: skip


#: Equal configs share an object; there are few: creating one is slow, and so is comparing two.
_shape = functools.lru_cache(maxsize=4096)(Shape)


#: The planes of each product's A and of its B as digits of base 4, the least products on the right;
#: bf16x6 leaves out three.
_PLANES = {"A_PLANES": "010120212", "B_PLANES": "001102122"}


def _in_planes(problem: Problem) -> dict[str, int]:
    """Fields of a `Shape` of planes."""
    count = PRODUCTS[problem.precision]
    return {"PRODUCTS": count} | {name: int(of[:count], 4) for name, of in _PLANES.items()}


def _counted(problem: Problem) -> int:
    """Groups that a warp counts, if it does: a power of two; each value is compiled."""
    count = problem.batch if problem.groups in ("m", "n") else 1
    return max(32, 1 << (count - 1).bit_length())


def _in_lines(problem: Problem) -> bool:
    """Whether there is an epilogue with operands as `LINES` of `load_operands` takes them."""
    residual, vector = problem.epilogue.residual, epilogue_ops.VECTOR.value
    if problem.epilogue == PLAIN or problem.c.cols % vector:
        return False
    if residual is None:  # a bias for rows of C isn't read in lines
        return problem.epilogue.bias is not None and problem.epilogue.along == "n"
    pitches = *residual.strides[:2], residual.pitch("N") or 1
    return residual.aligned and not any(pitch % vector for pitch in pitches)
