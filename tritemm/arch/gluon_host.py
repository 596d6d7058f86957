"""Host helpers of the Gluon rungs: refusals, tiles that fit, arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ..kernels.device import epilogue, epilogue_ops, memory, wgmma
from ..kernels.device.shape import Shape
from ..problem import GATED, INTERPRETER, PLAIN, Problem, kept
from ..runtime.workspace import Room
from ..spec import Arguments, Config, Workspace
from .host import (
    Box,
    _sizes,
    _strides,
    described,
    from_registers,
    major_of,
    refusal,
    storable,
    tma_why_not,
)
from .limits import pairs_why_not, steps_why_not
from .parts_host import parts_why_not, too_long

#: As in a kernel; a call from the host costs several microseconds.
first_part = functools.cache(memory.first_block)
slab_rows = functools.cache(memory.slab_rows)
by_engine = functools.cache(epilogue.by_tma)
unit = functools.cache(wgmma.unit)

#: Registers per thread before the roles take and give, of up to two consumers and of three:
#: the warpgroups of 128 threads, one of which is the producer's, share 65536.
#: A launch may begin before the one before it has ended: the kernels wait for it themselves.
OPTIONS = {"maxnreg": 168, "launch_pdl": True}
OPTIONS_OF_THREE = OPTIONS | {"maxnreg": 128}
#: Bytes of shared memory besides stages and output: barriers, and what the roles are handed.
RESERVE = 2048
#: fp32 accumulators of a thread: 240 registers hold these and the addresses.
ACCUMULATORS = 192
#: Of each of three consumers; ptxas plans with the registers before they are given.
ACCUMULATORS_OF_THREE = 96
#: The same where half of them hold the sum of the parts of K so far.
ACCUMULATORS_IN_PARTS, ACCUMULATORS_IN_PARTS_OF_THREE = 192, 128
#: Columns that are stored through pointers at a time, by way of shared memory.
POINTER_COLUMNS = 64
#: Rows of a tile at most, as of a box of the copy engine.
MOST_ROWS = 256
#: Bytes of a line of K of a stage: one to four of the lines that the copy engine swizzles.
DEPTHS = (128, 256, 512)
#: Of operands, in PTX.
TYPES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "tf32"}


@kept
def why_not(problem: Problem) -> str | None:
    """The refusal of the rungs whose warps have roles."""
    return pairs_why_not(problem) or why_not_with_pairs(problem)


@kept
def why_not_with_pairs(problem: Problem) -> str | None:
    """The same of rungs that also take gated products."""
    reason = halves_why_not(problem) or why_not_of_wgmma(problem)
    return reason or tma_why_not(problem) or steps_why_not(problem)


def halves_why_not(problem: Problem) -> str | None:
    """The refusal of a gated product whose halves the copy engine can't load.

    Those of exchanged operands are rows. Where B is stored by rows, the second half begins in the
    middle of a row, and has to begin on 16 bytes: else the launch is an illegal instruction (H200).
    """
    if not problem.epilogue.gated:
        return None
    if problem.epilogue.along == "m":
        return f"{problem.epilogue.activation} takes pairs of columns, and here they are rows"
    columns = problem.c.cols
    if major_of(problem.b) == "N" and columns * problem.itemsize % 16:
        return (
            f"the second half of b begins {columns} elements into a row, which is no multiple of "
            "16 bytes; store b by columns, as the weight of a linear layer"
        )
    return None


def why_not_with_tf32(problem: Problem) -> str | None:
    """The same of rungs that take tf32 as well.

    WGMMA reads it in shared memory along K alone, and takes an A that is stored otherwise from
    registers (`fragments`).
    """
    if problem.a.dtype != torch.float32 or problem.precision != "tf32":
        return why_not_with_pairs(problem)
    if problem.b.layout not in ("T", "-") and refusal("b", problem.b, "T"):
        return "b is not stored along K, as WGMMA reads tf32"
    reason = halves_why_not(problem) or why_not_of_wgmma(problem, torch.float32)
    return reason or tma_why_not(problem) or steps_why_not(problem)


@kept
def either(problem: Problem) -> bool:
    """Whether exchanged operands can do without the copy that these need, of tf32."""
    if problem.a.dtype != torch.float32 or why_not_with_tf32(problem) is None:
        return False
    return why_not_with_tf32(problem.transposed()) is None


def why_not_of_wgmma(problem: Problem, *more: torch.dtype) -> str | None:
    """The refusal of what multiplies 16-bit operands, and those of `more` types, by WGMMA."""
    if reason := interpreter_why_not(problem):
        return reason
    if problem.device.capability[0] != 9:
        major, minor = problem.device.capability
        return f"WGMMA needs compute capability 9.0; {problem.device.name} has {major}.{minor}"
    if reason := types_why_not(problem, *more):
        return reason
    if problem.accumulate != torch.float32:
        return f"sums are kept in float32, not in {problem.accumulate}"
    return None


def interpreter_why_not(problem: Problem) -> str | None:
    """The refusal of what is no device."""
    if problem.device == INTERPRETER:
        return "Gluon kernels don't run in Triton's interpreter"
    return None


def types_why_not(problem: Problem, *more: torch.dtype) -> str | None:
    """The refusal of operands that have neither 16 bits nor one of `more` types."""
    if problem.a.dtype not in (torch.float16, torch.bfloat16, *more):
        return f"operands of 16 bits are needed, and these are {problem.a.dtype}"
    return None


def why_not_in_parts(problem: Problem) -> str | None:
    """The refusal of the rungs that cut K into parts."""
    return too_long(problem) or why_not(problem)


def sums_of(config: Config) -> int:
    """Sums that a program keeps of each element of a tile: of K so far, or of this part too."""
    return 2 if config.PARTS > config.SPLIT_K else 1


def config_why_not(consumers: int, three: bool = False):
    """What refuses configs of the rungs with that many consumers, each of `num_warps` warps.

    `three`: whether three consumers of 4 warps may share 192 rows.
    """

    def reason(problem: Problem, config: Config) -> str | None:
        warps = config.num_warps
        rows, many = slab_rows(config.BLOCK_M), slabs(config)
        if many > 1 and not (three and (config.BLOCK_M, warps) == (192, 4)):
            possible = "; powers of two are possible" + ", and 192 with 4 warps" * three
            return f"BLOCK_M is {config.BLOCK_M} with {warps} warps{possible}"
        if warps not in (4, 8)[: 3 - consumers]:
            return f"num_warps is {warps}; {'4 or 8' if consumers == 1 else '4'} is possible"
        if 16 * warps > rows:
            return f"BLOCK_M is {config.BLOCK_M}; WGMMA takes 64 or more for each 4 warps"
        if rows > MOST_ROWS:
            return f"BLOCK_M is {config.BLOCK_M}; {MOST_ROWS} is possible"
        depths = [size // problem.itemsize for size in DEPTHS]
        if config.BLOCK_K not in depths:
            return f"BLOCK_K is {config.BLOCK_K}; {', '.join(map(str, depths))} are possible"
        if least_columns(problem) > config.BLOCK_N:
            return (
                f"BLOCK_N is {config.BLOCK_N}; at least {least_columns(problem)} is possible here"
            )
        if reason := tile_halves_why_not(problem, config):
            return reason
        accumulators = sums_of(config) * rows * config.BLOCK_N // (32 * warps)
        most = most_accumulators(config, many)
        if accumulators > most:
            return f"{accumulators} accumulators per thread; {most} is possible"
        if lacks_registers(problem, config):
            return (
                "a is not stored along K, and WGMMA takes its elements from registers, which have "
                "no room for them beside the accumulators"
            )
        if config.num_stages < 2:
            return f"num_stages is {config.num_stages}; a ring needs 2 or more"
        if reason := parts_why_not(problem, config):
            return reason
        if not output_columns(problem, config, consumers):
            return "stages and output together don't fit into shared memory; take fewer stages"
        return None

    return reason


def tile_halves_why_not(problem: Problem, config: Config) -> str | None:
    """The refusal of a gated product's tile whose columns don't lie in memory as two halves do."""
    if not problem.epilogue.gated:
        return None
    return odd_halves(config, problem.itemsize, major_of(problem.b))


def odd_halves(config: Config, size: int, b_major: str) -> str | None:
    """The same, of elements of `size` bytes.

    The copy engine fills a stage of B by halves, the gate's and the other; WGMMA reads it whole.
    Stored along K, its columns must follow one another, each a line of 128 bytes, in groups of 8;
    stored along N, a half must be whole lines.
    """
    line = DEPTHS[0] // size
    if b_major == "T" and line != config.BLOCK_K:
        return f"BLOCK_K is {config.BLOCK_K}; of a gated product {line} is possible"
    half = 8 if b_major == "T" else line
    odd = [part for part in parts(config.BLOCK_N) if part % (2 * half)]
    if odd:
        return (
            f"BLOCK_N is {config.BLOCK_N}, of which {odd[0]} are no two halves, the gate's and the "
            f"other, of {half} columns or a multiple"
        )
    return None


def beside_fragments(config: Config) -> bool:
    """Whether registers have room for A's part of a step; with three consumers, ptxas finds none,
    and waits for every WGMMA."""
    each = sums_of(config) * config.BLOCK_N + config.BLOCK_K
    return slabs(config) == 1 and config.BLOCK_M * each <= 32 * config.num_warps * ACCUMULATORS


def lacks_registers(problem: Problem, config: Config) -> bool:
    """Whether WGMMA takes A from registers, of which the sums leave too few."""
    return from_registers(problem) and not beside_fragments(config)


def most_accumulators(config: Config, consumers: int) -> int:
    """Of a thread of a program with one or two consumers, or three."""
    if sums_of(config) == 1:
        return ACCUMULATORS if consumers < 3 else ACCUMULATORS_OF_THREE
    return ACCUMULATORS_IN_PARTS if consumers < 3 else ACCUMULATORS_IN_PARTS_OF_THREE


@kept
def c_major(problem: Problem) -> str:
    """How C is stored: by the copy engine along rows (N) or columns (T), else by threads (n, t)."""
    if storable(problem):
        return "N"
    if storable(problem.transposed()):
        return "T"
    return "t" if problem.c.layout == "T" else "n"


def slabs(config: Config) -> int:
    """How many consumers share a tile's rows."""
    return config.BLOCK_M // slab_rows(config.BLOCK_M)


def parts(columns: int) -> tuple[int, int]:
    """The powers of two that make up the columns of a tile; the second may be 0."""
    first = first_part(columns)
    return first, columns - first


def output_columns(problem: Problem, config: Config, consumers: int, limit: int = 0) -> int:
    """Columns that the epilogue stages at a time; 0 where the config doesn't fit."""
    if not by_engine(c_major(problem)):
        limit = limit or POINTER_COLUMNS
    c = config
    return columns_that_fit(
        c.BLOCK_M, c.BLOCK_N, c.num_stages * (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K * problem.itemsize,
        problem.c.dtype.itemsize, consumers, limit, problem.device.shared, problem.epilogue.gated,
    )  # fmt: skip


@functools.lru_cache
def columns_that_fit(rows, columns, stages, element, consumers, limit, shared, gated=False) -> int:
    """As above, of a tile whose `stages` take that many bytes."""
    room = shared - RESERVE - stages
    columns = min(part for part in parts(columns) if part) // (1 + gated)
    columns = min(columns, limit or columns)
    while columns >= 8:
        if consumers * rows * columns * element <= room:
            return columns
        columns //= 2
    return 0


def least_columns(problem: Problem) -> int:
    """Of a tile of B: a line in shared memory has 32 bytes or more, where it runs along columns."""
    return 8 if problem.b.layout == "T" else 16


def c_box(problem: Problem, rows: int, columns: int) -> Box | None:
    """Of C, in pieces of [rows, columns]; None where it is stored by threads."""
    if c_major(problem) == "N":
        return Box.of(problem, problem.c, rows, columns)
    if c_major(problem) == "T":
        return Box.of(problem.transposed(), problem.c.transposed(), columns, rows)
    return None


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config, consumers: int, limit: int):
    """Of A, both parts of B, and C; None where there is none. Gated products' are half as wide."""
    first, second = (part // (1 + problem.epilogue.gated) for part in parts(config.BLOCK_N))
    m, k = slab_rows(config.BLOCK_M), config.BLOCK_K
    return (
        Box.of(problem, problem.a, m, k),
        Box.of(problem, problem.b, k, first),
        Box.of(problem, problem.b, k, second) if second else None,
        c_box(problem, m, output_columns(problem, config, consumers, limit)),
    )


def piece_columns(columns: int, programs: int) -> int:
    """Of the pieces of a tile that so many programs divide between them.

    As few columns as possible for the program that has most; a piece costs as much as some more.
    """
    widths = [width for width in (64, 32, 16, 8) if columns % width == 0]
    return min(widths, key=lambda width: -(-columns // (width * programs)) * (width + 4))


def together(problem: Problem, config: Config) -> bool:
    """Whether all parts of a tile find room at once: each then waits for the others."""
    return config.SPLIT_K > 1 and config.tiles(problem) * config.SPLIT_K <= problem.device.sms


def columns_at_once(problem: Problem, config: Config) -> int:
    """Of the epilogue."""
    return piece_columns(config.BLOCK_N, config.SPLIT_K) if together(problem, config) else 64


def workspace_of_parts(problem: Problem, config: Config) -> Room | None:
    """Where K is cut: for the sums of each consumer's slab."""
    if config.SPLIT_K == 1:
        return None
    tiles = config.tiles(problem)
    floats = tiles * config.SPLIT_K * config.BLOCK_M * config.BLOCK_N
    return partial_sums(floats, tiles * slabs(config))


def arguments(
    consumers: int, workspace: Workspace | None = None,
    most: Callable[[Problem, Config], int] = lambda problem, config: 0,
    together: Callable[[Problem, Config], bool] = lambda problem, config: False,
) -> Arguments:  # fmt: skip
    """Of the rungs with that many consumers; the epilogue takes at most so many columns at a time.

    The tensors of a `workspace` are the partial sums and the counters.
    """

    def fixed(problem: Problem, config: Config) -> dict[str, Any]:
        columns = most(problem, config)
        a, b, *_ = _boxes(problem, config, consumers, columns)
        shape = shape_of(
            problem, config, max(consumers, slabs(config)), slab_rows(config.BLOCK_M),
            A_MAJOR=a.major, B_MAJOR=b.major,
            EPI_N=output_columns(problem, config, consumers, columns),
            TOGETHER=together(problem, config),
        )  # fmt: skip
        return {"SHAPE": shape} | _sizes(problem) | _strides("c", "01mn", problem.c)

    def tensors(problem: Problem, config: Config, a, b, c, *work) -> dict[str, Any]:
        box_a, box_b, box_b1, box_c = _boxes(problem, config, consumers, most(problem, config))
        return {
            **described(Box.gluon_descriptor, (box_a, box_b, box_c), a, b, c),
            "b1_desc": box_b1 and box_b1.gluon_descriptor(b),
            **(named_sums(work) if workspace else {}),
        }

    def options(problem: Problem, config: Config) -> dict[str, Any]:
        return OPTIONS if slabs(config) == 1 else OPTIONS_OF_THREE

    return Arguments(fixed, tensors, workspace, options)


def shape_of(problem: Problem, config: Config, consumers: int, rows: int, **more: Any) -> Shape:
    """What the kernel knows when it is compiled; `more` are those fields that rungs differ in."""
    activation = problem.epilogue.activation
    return Shape(
        config.BLOCK_M, config.BLOCK_N, config.BLOCK_K, config.num_stages, config.num_warps,
        consumers, rows, config.ORDER, config.GROUP_M, config.SPLIT_K, config.CLUSTER,
        C_MAJOR=c_major(problem),
        BATCHED=problem.batch > 1, WIDE=problem.wide,
        TYPE=TYPES[problem.a.dtype],
        PLAIN=problem.epilogue == PLAIN, LINES=in_lines(problem), BIAS=problem.epilogue.along,
        ACTIVATION=GATED.get(activation, activation), GATED=problem.epilogue.gated,
        PARTS=config.PARTS, **more,
    )  # fmt: skip


def in_lines(problem: Problem) -> bool:
    """Whether there is an epilogue with operands as `LINES` of `load_operands` takes them."""
    residual, vector = problem.epilogue.residual, epilogue_ops.VECTOR.value
    if problem.epilogue == PLAIN or problem.c.cols % vector:
        return False
    if residual is None:
        return True
    pitches = *residual.strides[:2], residual.pitch("N") or 1
    return residual.aligned and not any(pitch % vector for pitch in pitches)


def named_sums(work: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor | None]:
    """Partial sums and counters, if there are any, as a kernel calls them."""
    sums, counters = work or (None, None)
    return {"partials_ptr": sums, "counters_ptr": counters}


def partial_sums(floats: int, tiles: int) -> Room:
    """Room for so many partial sums, and for a counter per tile."""
    return Room(floats, torch.float32, tiles)
