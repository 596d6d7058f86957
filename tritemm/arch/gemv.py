"""Tiles of `gemv`: their constraints, and its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from triton import next_power_of_2

from ..kernels.device.words import WORD
from ..problem import Config, Constraint, Matrix, Problem, Tile, field
from ..runtime.workspace import Room
from ..spec import Arguments
from .descriptors import tma_why_not
from .limits import SINGLE_COLUMNS, launchable
from .pointers import POINTERS
from .sm80 import MOST_PROGRAMS
from .sm90 import launches_early

#: Bytes of a word.
WORD_BYTES = WORD.value
#: The most rows of C per program: more would leave no registers for loads in flight.
MOST_ROWS = 8
#: The most parts of K: the last program of a tile reads them all.
MOST_PARTS = 128

#: The most words of its lines that a thread loads at once; the least of its lines or A's rows.
IN_FLIGHT = 8
LEAST_IN_FLIGHT = 4
#: Warps, words of a line in a step, and lines of a thread, if lanes run along K. The fewer the
#: words, the fewer lanes' sums are added when a line ends, which is soon if K is short; with a long
#: K the wide ones read most evenly.
ALONG_K = (
    (8, 256, 4), (4, 128, 4), (8, 256, 2), (4, 128, 2), (4, 64, 1), (4, 32, 2), (8, 32, 2),
    (4, 32, 1), (4, 16, 2),
)  # fmt: skip
#: For a config that a caller names: words in flight, and sums, per thread. The code for a step
#: grows with both, and the compiler's time with the code.
MOST_IN_FLIGHT, MOST_SUMS = 16, 64
#: Programs per SM that keep it busy.
PROGRAMS = 3


def skewed(matrix: Matrix, line: int) -> bool:
    """Whether some line of `matrix` starts inside a word; `line`: elements between two lines."""
    steps = (*matrix.strides[:2], line)
    return not matrix.aligned or any(s * matrix.dtype.itemsize % WORD_BYTES for s in steps)


def along(problem: Problem) -> str:
    """The axis that B is contiguous along, "k" or "n", or "" if neither is."""
    *_, stride_k, stride_n = problem.b.strides
    if stride_k == 1:
        return "k"
    return "n" if stride_n == 1 else ""


def fixed(problem: Problem, config: Config):
    axis = along(problem)
    per = WORD_BYTES // problem.itemsize
    *_, stride_am, stride_ak = problem.a.strides
    *_, stride_bk, stride_bn = problem.b.strides
    return POINTERS.fixed(problem, config) | {
        "ALONG": axis,
        "A_WORDS": axis == "k" and stride_ak == 1,
        "A_SKEW": skewed(problem.a, stride_am),
        "B_SKEW": skewed(problem.b, stride_bn if axis == "k" else stride_bk),
        "RAGGED": problem.K % per != 0,
        "WIDE": problem.long,  # offsets always have 64 bits
        "SPLIT_K": config.SPLIT_K,
        "PDL": launches_early(problem.device),
        # 64 sums per thread of 4 warps are read at once.
        "PARTS": min(config.SPLIT_K, max(1, 8192 // (config.BLOCK_M * config.BLOCK_N))),
    }


def room(problem: Problem, config: Config) -> Room | None:
    """If K is split: for its partial sums, and a counter for each tile."""
    if config.SPLIT_K == 1:
        return None
    tiles = config.tiles(problem)
    half = problem.accumulate == torch.float16
    dtype = torch.float32 if half else problem.accumulate
    return Room(config.SPLIT_K * tiles * config.BLOCK_M * config.BLOCK_N, dtype, tiles)


def tensors(problem: Problem, config: Config, a, b, c, partial=None, counters=None):
    operands = POINTERS.tensors(problem, config, a, b, c)
    return operands | {"partial_ptr": partial, "counter_ptr": counters}


def few_rows(problem: Problem) -> int:
    """The most rows that count as few. If B runs along N, every row needs an accumulator for each
    element of a word, which is too many; and tensor cores are faster on what TMA can read.

    A word of fp32, which tensor cores can't multiply unsplit, has only four.

    If A is stored by columns, adjacent elements of A belong to different rows.
    """
    if along(problem) == "n" and problem.by_ffma:
        return MOST_ROWS
    if along(problem) == "n":
        return int(problem.itemsize != 2 or tma_why_not(problem) is not None)
    return 2 if problem.a.layout == "T" else MOST_ROWS


def options(problem: Problem, config: Config) -> dict[str, bool]:
    return {"launch_pdl": True} if launches_early(problem.device) else {}


class Words(Tile):
    """A tile that is read as words, or by single elements where B is contiguous along nothing."""

    needs = (
        field("SPLIT_K", "a power of two is possible", lambda n: n & (n - 1) == 0),
        field("SPLIT_K", f"{MOST_PARTS} parts are possible", lambda n: n <= MOST_PARTS),
        field("BLOCK_M", f"{MOST_ROWS} is possible", lambda n: n <= MOST_ROWS),
        Constraint(
            "{t.side} is {t.size}; a word has {t.per} elements, multiples of that are possible",
            lambda t: t.size % t.per == 0,
        ),
        Constraint(
            f"{{t.flying}} words of a thread are in flight; {MOST_IN_FLIGHT} are possible. "
            "Use a smaller tile, fewer stages or more warps",
            lambda t: t.flying <= MOST_IN_FLIGHT,
        ),
        Constraint(
            f"{{t.sums}} sums per thread; {MOST_SUMS} are possible. Use a smaller tile",
            lambda t: t.sums <= MOST_SUMS,
        ),
    )

    def __init__(self, p: Problem, c: Config):
        super().__init__(p, c)
        axis = along(p)
        self.per = WORD_BYTES // p.itemsize if axis else 1
        self.side = "BLOCK_N" if axis == "n" else "BLOCK_K"
        self.size = getattr(c, self.side)
        words = -(-c.BLOCK_N * c.BLOCK_K // (self.per * 32 * c.num_warps))
        self.flying = max(words, 1 if axis == "n" else c.BLOCK_M) * c.num_stages
        self.sums = words * c.BLOCK_M * (self.per if axis == "n" else 1)


def configs(problem: Problem) -> tuple[Config, ...]:
    """First what should suit: 4 to 8 words in flight per thread, and programs for every SM.

    Then fewer or more lines, or parts of K, per program.
    """
    rows = min(next_power_of_2(problem.M), MOST_ROWS)
    choices = _along_n if along(problem) == "n" else _along_k
    enough = PROGRAMS * problem.device.sms
    distinct = dict.fromkeys(choices(problem, rows))
    fewest_idle = sorted(distinct, key=lambda config: -min(config.units(problem), enough))
    if problem.space.elements > MOST_PROGRAMS:
        able = [c for c in fewest_idle if c.units(problem) <= MOST_PROGRAMS]
        return tuple(able or fewest_idle)
    return tuple(fewest_idle)


def _along_k(problem: Problem, rows: int) -> Iterator[Config]:
    per = WORD_BYTES // problem.itemsize if along(problem) else 1
    length = -(-problem.K // per)  # words
    for warps, most, lines in ALONG_K:
        if lines * rows > 16:
            continue
        words = min(most, next_power_of_2(length))
        columns = lines * 32 * warps // words
        flying = min(IN_FLIGHT // lines, MOST_IN_FLIGHT // max(lines, rows))
        stages = _stages(-(-length // words), flying)
        if max(lines, rows) * stages < LEAST_IN_FLIGHT:
            continue
        tile = Config(rows, columns, words * per, num_warps=warps, num_stages=stages)
        split = _split(problem, tile, programs=problem.device.sms)
        yield dataclasses.replace(tile, SPLIT_K=split)


def _stages(steps: int, most: int) -> int:
    """Steps whose words are in flight together: a power of two, which adds a quarter at most."""
    able = (n for n in (8, 4, 2) if n <= most and 4 * (-(-steps // n) * n) <= 5 * steps)
    return next(able, 1)


def _along_n(problem: Problem, rows: int) -> Iterator[Config]:
    per = WORD_BYTES // problem.itemsize
    # The accumulators of a word are rows * per.
    rows = min(rows, 32 // per)
    stages = 8 if rows * per <= 8 else 4
    length = -(-problem.N // per)  # words
    for most, occupancy in ((32, 6), (32, 3), (16, 6), (32, 12)):
        words = min(most, next_power_of_2(length))
        tile = Config(rows, words * per, 256 // words, num_warps=8, num_stages=stages)
        split = _split(problem, tile, programs=occupancy * problem.device.sms)
        yield dataclasses.replace(tile, SPLIT_K=split)


def _split(problem: Problem, tile: Config, programs: int) -> int:
    """Parts of K, a power of two, that make `programs` programs or leave one step to each."""
    wanted = programs // tile.tiles(problem)
    steps = problem.K // (tile.BLOCK_K * tile.num_stages)
    parts = max(1, min(wanted, steps, MOST_PARTS))
    return 1 << (parts.bit_length() - 1)


ARGUMENTS = Arguments(fixed, tensors, workspace=room, options=options)
#: All fits but pairs of columns, and tiles that are more than the programs of a launch.
NEEDS = (SINGLE_COLUMNS, launchable(configs, min))
