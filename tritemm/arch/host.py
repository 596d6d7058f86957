"""Host helpers that several rungs share: arguments, tensor descriptors, tile sizes by type."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia import hopper as gluon
from triton.tools.tensor_descriptor import TensorDescriptor

from ..problem import Matrix, Problem, kept
from ..spec import TRITON_DTYPE, Arguments, Config
from .limits import grid_why_not, index_why_not, pairs_why_not, tile_why_not, units_why_not


def once_per_kind(configs: Callable[..., tuple[Config, ...]]):
    """A rung's `configs(problem, **more)`, found once for problems that are alike.

    That is: in types, precision, shared memory of the device, and whether loads are 16 bytes wide.
    `configs` may ask for nothing else. Cheaper, and the objects stay the same (`tuning.model`).
    """
    known: dict[tuple, tuple[Config, ...]] = {}

    @functools.wraps(configs)
    def found(problem: Problem, **more) -> tuple[Config, ...]:
        types = problem.a.dtype, problem.c.dtype, problem.precision
        kind = (*types, problem.device.shared, problem.vectorised, *more.items())
        if kind not in known:
            known[kind] = configs(problem, **more)
        return known[kind]

    return found


def classic_tile(problem: Problem) -> Config:
    """The block tile of the CUDA HGEMM ladder, 256 x 128 with 64-byte rows of K, 8 warps.

    Other types than the 16-bit ones need smaller tiles to stay in registers, and so do loads of
    single elements, which hold many addresses.
    """
    if problem.a.dtype == torch.float64:
        return Config(64, 32, 16, num_warps=4)
    if problem.a.dtype == torch.float32:
        tile = (128, 128) if problem.vectorised else (64, 64)
        return Config(*tile, 16, num_warps=8)
    tile = (256, 128) if problem.vectorised and problem.itemsize == 2 else (128, 128)
    return Config(*tile, 64 // problem.itemsize, num_warps=8)


def _sizes(problem: Problem) -> dict[str, int]:
    B0, B1 = problem.batches
    return {"M": problem.M, "N": problem.N, "K": problem.K, "B0": B0, "B1": B1}


def _strides(name: str, axes: str, matrix: Matrix) -> dict[str, int]:
    return {
        f"stride_{name}{axis}": stride for axis, stride in zip(axes, matrix.strides, strict=True)
    }


def _pointers(problem: Problem, config: Config) -> dict[str, Any]:
    return (
        _sizes(problem)
        | _strides("a", "01mk", problem.a)
        | _strides("b", "01kn", problem.b)
        | _strides("c", "01mn", problem.c)
    )


#: Of the rungs that address their operands through pointers and strides.
POINTERS = Arguments(
    fixed=_pointers,
    tensors=lambda problem, config, a, b, c: {"a_ptr": a, "b_ptr": b, "c_ptr": c},
)


@dataclasses.dataclass(frozen=True)
class Box:
    """The geometry of a tensor descriptor, and the matrix's major: stored by rows N, columns T.

    Batched matrices have rank 4. A broadcast batch dimension has extent 1 there, and the kernel
    clamps its index.
    """

    major: str
    shape: list[int]
    strides: list[int]
    block: list[int]

    @staticmethod
    def of(problem: Problem, matrix: Matrix, rows: int, cols: int) -> Box:
        """Of `matrix`, in blocks of [rows, cols]."""
        major = major_of(matrix)
        shape, block = [matrix.rows, matrix.cols], [rows, cols]
        if major == "T":
            shape, block = shape[::-1], block[::-1]
        pitch = matrix.pitch(major)
        strides = [pitch, 1]
        if problem.batch > 1:
            batch = matrix.strides[:2]
            extents = [size if s else 1 for size, s in zip(problem.batches, batch, strict=True)]
            shape = extents + shape
            strides = [s or pitch for s in batch] + strides
            block = [1, 1, *block]
        return Box(major, shape, strides, block)

    def descriptor(self, tensor) -> TensorDescriptor:
        """Of `tensor`, for a kernel in Triton."""
        return TensorDescriptor(tensor, self.shape, self.strides, self.block)

    def gluon_descriptor(self, tensor) -> gluon.TensorDescriptor:
        """Of `tensor`, for a kernel in Gluon, in the layout of shared memory that WGMMA reads.

        Gluon's blocks are powers of two; a kernel that loads others by PTX finds the largest that
        divides this one in the descriptor's type, and the tensor map has `box`.
        """
        block = [size & -size for size in self.block]
        layout = _shared_layout(tuple(block), tensor.dtype)
        descriptor = gluon.TensorDescriptor(tensor, self.shape, self.strides, block, layout)
        if block != self.block:
            descriptor.box = self.block
        return descriptor


@functools.cache
def _shared_layout(block: tuple[int, ...], dtype: torch.dtype) -> NVMMASharedLayout:
    """Of a block in shared memory: the widest swizzle that its lines allow."""
    return NVMMASharedLayout.get_default_for(list(block), TRITON_DTYPE[dtype])


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> tuple[Box, Box, Box | None]:
    """Of A, B and C; None where C is stored through pointers."""
    c = Box.of(problem, problem.c, config.BLOCK_M, config.BLOCK_N) if storable(problem) else None
    return (
        Box.of(problem, problem.a, config.BLOCK_M, config.BLOCK_K),
        Box.of(problem, problem.b, config.BLOCK_K, config.BLOCK_N),
        c,
    )


def described(make: Callable[[Box, Any], Any], boxes, a, b, c) -> dict[str, Any]:
    """Descriptors of A, B and C, and C's address; `make` is the one of `Box`.

    Of the `boxes` of each, that of C is None where it is stored through pointers.
    """
    box_a, box_b, box_c = boxes
    return {
        "a_desc": make(box_a, a),
        "b_desc": make(box_b, b),
        "c_desc": box_c and make(box_c, c),
        "c_ptr": c,
    }


def _descriptors_fixed(problem: Problem, config: Config) -> dict[str, Any]:
    a, b, c = _boxes(problem, config)
    values = {"A_MAJOR": a.major, "B_MAJOR": b.major, "TMA_STORE": c is not None}
    return values | _sizes(problem) | _strides("c", "01mn", problem.c)


def _descriptors(problem: Problem, config: Config, a, b, c) -> dict[str, Any]:
    return described(Box.descriptor, _boxes(problem, config), a, b, c)


#: Of the rungs whose tiles are moved by the copy engine (TMA).
DESCRIPTORS = Arguments(fixed=_descriptors_fixed, tensors=_descriptors)


def major_of(matrix: Matrix, by: str = "TMA") -> str:
    """How `matrix` is copied `by` TMA or threads, if it can be: by rows (N) where possible, or
    columns (T).
    """
    return "N" if refusal("", matrix, "N", by) is None else "T"


def from_registers(problem: Problem) -> bool:
    """Whether WGMMA takes A from registers, of the rungs that take tf32."""
    return problem.a.dtype == torch.float32 and major_of(problem.a) == "T"


def refusal(name: str, matrix: Matrix, major: str, by: str = "TMA") -> str | None:
    """Why 16 bytes at a time of `matrix` can't be copied `by` TMA, or by threads.

    Stored by rows (N) or columns (T); threads can also copy the same line again and again.
    """
    size = matrix.dtype.itemsize
    line = "row" if major == "N" else "column"
    if not matrix.aligned:
        return f"the first element of {name} is not on a 16-byte boundary, as {by} needs"
    pitch = matrix.pitch(major)
    if pitch is None:
        return f"the {line}s of {name} are not contiguous, as {by} needs"
    if pitch * size % 16 or (pitch == 0 and by == "TMA"):
        return f"{line} stride of {name} is {pitch * size} bytes; {by} needs a multiple of 16"
    for stride in matrix.strides[:2]:
        if stride * size % 16:
            return f"batch stride of {name} is {stride * size} bytes; {by} needs a multiple of 16"
    return None


def lines_why_not(problem: Problem, by: str = "TMA") -> str | None:
    """The refusal of what reads A and B, each by rows or by columns, in pieces of 16 bytes."""
    for name, matrix in (("a", problem.a), ("b", problem.b)):
        by_rows = refusal(name, matrix, "N", by)
        if by_rows and (by_columns := refusal(name, matrix, "T", by)):
            return by_columns if matrix.layout == "T" else by_rows
    return None


@kept
def storable(problem: Problem) -> bool:
    """Whether C can be written by the copy engine; otherwise the kernel stores through pointers.

    A TMA store writes whole 16-byte pieces, so a ragged last piece of a row would be overwritten
    (triton-lang/triton issue 11583).
    """
    matrix = problem.c
    return (
        refusal("c", matrix, "N") is None
        and matrix.cols * matrix.dtype.itemsize % 16 == 0
        and matrix.strides[3] == 1
        and all(s for s, n in zip(matrix.strides, problem.batches, strict=False) if n > 1)
    )


@kept
def tma_why_not(problem: Problem) -> str | None:
    """The refusal of the rungs that read A and B through tensor descriptors."""
    if problem.device.capability < (9, 0):
        major, minor = problem.device.capability
        return f"TMA needs compute capability 9.0; {problem.device.name} has {major}.{minor}"
    return lines_why_not(problem) or index_why_not(problem) or mma_why_not(problem)


def why_not_of_descriptors(problem: Problem) -> str | None:
    """The refusal of the rungs in Triton whose tiles the copy engine moves."""
    return pairs_why_not(problem) or tma_why_not(problem)


def fitting(problem: Problem, configs: list[Config], outputs: int) -> tuple[Config, ...]:
    """The configs whose stages of A and B fit into the device's shared memory.

    `outputs`: tiles of C that stand beside them, and not in their place.
    """
    return tuple(c for c in configs if _fits(problem, c, outputs))


def _fits(problem: Problem, config: Config, outputs: int) -> bool:
    stage = (config.BLOCK_M + config.BLOCK_N) * config.BLOCK_K * problem.itemsize
    output = config.BLOCK_M * config.BLOCK_N * problem.c.dtype.itemsize
    barriers = 512
    room = problem.device.shared - barriers - outputs * output
    return config.num_stages * stage <= room


def own_tiles(problem: Problem) -> int:
    """Tiles of C beside the stages where a program goes on to its next tile: the output, so that
    its store overlaps loads, and what the epilogue adds, which Triton exchanges between threads."""
    after = problem.epilogue
    return 2 if after.residual or (after.bias and problem.accumulate == torch.float16) else 1


def int8_why_not(problem: Problem) -> str | None:
    """The refusal of int8 sums that may overflow on mma.sync, which Triton lets saturate."""
    if problem.a.dtype == torch.int8 and problem.K >= 2**17:
        return (
            f"K is {problem.K}: from 131072 on, int32 sums of int8 products can overflow, and "
            "mma.sync saturates where the result should wrap"
        )
    return None


def mma_why_not(problem: Problem) -> str | None:
    """The refusal of the rungs that use mma.sync where there is no WGMMA."""
    return None if problem.device.capability[0] == 9 else int8_why_not(problem)


def is_wgmma(problem: Problem, config: Config) -> bool:
    """Whether Triton multiplies by WGMMA what WGMMA can: by its rows, and by warpgroups."""
    enough = config.BLOCK_M >= 64 and config.BLOCK_N >= 8 and config.num_warps >= 4
    return enough and problem.device.capability[0] == 9


def of_pointers(
    configs: Callable[[Problem], tuple[Config, ...]],
    first: Callable[[Problem], str | None] = lambda problem: None,
):
    """`why_not` of a rung with pointers that has a program for each tile of its `configs`.

    `first`: what else refuses.
    """

    def why_not(problem: Problem) -> str | None:
        reason = first(problem) or pairs_why_not(problem) or mma_why_not(problem)
        return reason or grid_why_not(problem, configs(problem))

    return why_not


def dot_why_not(problem: Problem, config: Config) -> str | None:
    """What refuses configs of the rungs whose tiles Triton multiplies."""
    least = 32 if problem.itemsize == 1 else 16
    if least > config.BLOCK_K:
        return f"BLOCK_K is {config.BLOCK_K}; the tensor core takes {least} or more at a time"
    if reason := tile_why_not(problem, config):
        return reason
    if not is_wgmma(problem, config) and (reason := int8_why_not(problem)):
        return f"{reason}; WGMMA wraps, in tiles of 64 rows or more and 4 warps or more"
    if not _fits(problem, config, outputs=0):
        return "the tiles of A and B don't fit into shared memory; take smaller ones"
    return None


def of_descriptors(outputs: Callable[[Problem], int]):
    """`config_why_not` of the rungs whose tiles the copy engine moves; see `fitting`."""

    def reason(problem: Problem, config: Config) -> str | None:
        if reason := dot_why_not(problem, config):
            return reason
        if reason := units_why_not(config.tiles(problem)):
            return reason
        least = 16 // min(problem.itemsize, problem.c.dtype.itemsize)
        if min(config.BLOCK_M, config.BLOCK_N, config.BLOCK_K) < least:
            return f"a side of the tile has fewer than {least} elements, or 16 bytes for TMA"
        if not _fits(problem, config, outputs(problem)):
            return "stages and output together don't fit into shared memory; take fewer stages"
        return None

    return reason


@once_per_kind
def tiles_in_flight(problem: Problem) -> tuple[Config, ...]:
    """Tiles of what overlaps copies with products, the deepest ring first."""
    classic = classic_tile(problem)
    tiles, depths = [classic], (4, 3, 2)
    if problem.itemsize > 2:
        depths = (3,)  # the others spill a few registers on sm_80
    if problem.itemsize == 2 and problem.vectorised:
        tiles = [Config(128, 256, 64, num_warps=8), classic]
    return fitting(
        problem,
        [
            dataclasses.replace(tile, num_stages=stages, ORDER="grouped")
            for tile in tiles
            for stages in depths
        ],
        outputs=0,
    )


@once_per_kind
def tma_tiles(problem: Problem, outputs: int) -> tuple[Config, ...]:
    """Tiles of the TMA rungs, the one for large problems first; `outputs` as in `fitting`.

    A row of K is 128 bytes, what the copy engine swizzles, where the rest leaves room: fp64 and
    fp32 on FFMA are short of registers; int8 with rows along M or N is transposed through
    shared memory, because its WGMMA reads only rows along K, and so is the widest output.
    """
    if problem.a.dtype == torch.float64:
        tiles = [(64, 64, 16, 4, 3)]
    elif problem.a.dtype == torch.float32 and problem.precision == "ieee":
        tiles = [(64, 128, 16, 8, 3)]
    elif problem.a.dtype == torch.float32:
        tiles = [(128, 128, 32, 8, 3), (64, 64, 32, 4, 4)]
    elif problem.a.dtype == torch.int8:
        tiles = [(128, 256, 64, 8, 3), (128, 128, 128, 8, 3), (64, 64, 128, 4, 4)]
    else:
        tiles = [(128, 256, 64, 8, stages) for stages in (4, 3)]
        tiles += [(128, 128, 64, 8, 4), (64, 64, 64, 4, 4)]
    configs = [
        Config(m, n, k, num_warps=warps, num_stages=stages, ORDER="grouped")
        for m, n, k, warps, stages in tiles
    ]
    return fitting(problem, configs, outputs)
