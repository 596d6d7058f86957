"""Host helpers of the rungs whose programs come in clusters: what fits, and the arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..kernels.device import cluster_mainloop
from ..kernels.device.cluster_mainloop import LINE, slabs_of
from ..problem import Matrix, Problem, kept
from ..runtime.triton_private import clusters_why_not
from ..spec import Arguments, Config, Workspace
from . import gluon_host, parts_host
from .host import Box, _sizes, _strides, described, major_of

#: As in a kernel; a call from the host costs several microseconds.
line_bytes = functools.cache(cluster_mainloop.line_bytes)
ring_bytes = functools.cache(cluster_mainloop.ring_bytes)
#: Buffers of a consumer's output, at most; and of pieces of 8 columns, which leave together.
MOST_BUFFERS, MOST_NARROW_BUFFERS = 4, 16
#: Stages at most: two barriers for each, and two more, in the 512 bytes behind them.
MOST_STAGES = 31


@kept
def ring_kind(problem: Problem) -> tuple[str, int, bool]:
    """What stages and output need to know of a problem, to fit into shared memory.

    B's major, the bytes of an element of C, and whether the copy engine stores C.
    """
    return (
        major_of(problem.b),
        problem.c.dtype.itemsize,
        gluon_host.by_engine(gluon_host.c_major(problem)),
    )


def why_not(problem: Problem) -> str | None:
    """The refusal of the rungs whose programs come in clusters."""
    return gluon_host.why_not(problem) or clusters_why_not()


def why_not_in_parts(problem: Problem) -> str | None:
    """The same where each tile's K is cut."""
    reason = parts_host.too_long(problem) or why_not(problem)
    if not reason and -(-problem.K // LINE.value) < 2:
        return f"K is {problem.K}; a cluster shares two steps of {LINE.value} or more"
    return reason


def stages_bytes(config: Config, b_major: str) -> int:
    """Of all stages together."""
    lines = config.num_stages * config.BLOCK_K // LINE.value
    return lines * line_bytes(config.BLOCK_M, config.BLOCK_N, b_major)


def room_beside(config: Config, shared: int, b_major: str) -> int:
    """Bytes of shared memory that the ring leaves."""
    return shared - ring_bytes(stages_bytes(config, b_major))


def output_buffers(
    room: int, consumers: int, columns: int, pieces: int, element: int, engine: bool
) -> int:
    """Buffers of each consumer for its output: as many as are of use; 0 if none fits.

    `room`: bytes beside the ring. A consumer has so many `pieces` of 64 rows and `columns` of a
    tile, of elements of C that have `element` bytes, stored by the copy `engine` or not.
    """
    output = 64 * consumers * columns * element
    if not engine:
        output += output // 8  # Triton pads what it exchanges between threads
    most = min(MOST_NARROW_BUFFERS if columns == 8 else MOST_BUFFERS, pieces) if engine else 1
    return max(0, min(most, (room - gluon_host.RESERVE) // output))


def most_columns(config: Config) -> int:
    """Of a tile whose sums the consumers' registers hold."""
    most = gluon_host.most_accumulators(config, config.num_warps // 4)
    each = slabs_of(config.BLOCK_M, config.num_warps) * gluon_host.sums_of(config)
    return min(256, 2 * most // each)


def tile_why_not(config: Config) -> str | None:
    """The refusal of a tile whose columns WGMMA can't have, or too many for 4, 8 or 12 warps."""
    m, n, warps = config.BLOCK_M, config.BLOCK_N, config.num_warps
    least = 16 * warps
    rows = (least,) if warps == 12 else (least, 2 * least)
    if m not in rows:
        return f"BLOCK_M is {m}; {' and '.join(map(str, rows))} are possible with {warps} warps"
    most = most_columns(config)
    if n % 8 or not 8 <= n <= most:
        return f"BLOCK_N is {n}; multiples of 8 up to {most} are possible with {m} rows"
    return None


def ring_why_not(
    problem: Problem, config: Config, buffers: Callable[..., int], row: int
) -> str | None:
    """The refusal of stages that are too few, or leave no room for the output's `buffers`.

    One buffer of each consumer is 64 rows of `row` elements. The ring is addressed as the first in
    shared memory, where Triton puts what is largest; and the room behind it is for few barriers.
    """
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; a ring needs 2 or more"
    kind = major, element, engine = ring_kind(problem)
    count = buffers(config, problem.device.shared, *kind)
    if not count:
        return "stages and output together don't fit into shared memory; take fewer stages"
    if config.num_stages > MOST_STAGES:
        return f"num_stages is {config.num_stages}; {MOST_STAGES} is possible"
    if engine and count * 64 * row * element >= stages_bytes(config, major):
        return "the output takes more shared memory than the stages; take more stages"
    return None


def boxes_of(
    problem: Problem, config: Config, columns: int, a_sharers: int = 1, b_sharers: int = 1
) -> tuple[Box, Box, Box | None]:
    """Of A, B and C, for `load_lines` and pieces of so many `columns`.

    So many programs load a tile of A, and one of B, together.
    """
    a = _lines(problem.a, "N", config.BLOCK_M, a_sharers)
    b = _lines(problem.b, "T", config.BLOCK_N, b_sharers)[::-1]
    c = gluon_host.c_box(problem, 64, columns)
    return Box.of(problem, problem.a, *a), Box.of(problem, problem.b, *b), c


def _lines(matrix: Matrix, along_k: str, lines: int, sharers: int) -> tuple[int, int]:
    """Lines and elements of K of a box; a box has 256 lines at most, as many as a tile."""
    if major_of(matrix) == along_k:
        return cluster_mainloop.share_of(lines, sharers), LINE.value
    return 64, LINE.value // sharers


def arguments(
    boxes: Callable[[Problem, Config], tuple[Box, Box, Box | None]], buffers: Callable[..., int],
    more: Callable[[Problem, Config], dict[str, Any]], consumers: Callable[[Config], int],
    workspace: Workspace | None = None,
) -> Arguments:  # fmt: skip
    """Of rungs with these `boxes` of A, B and C, the last None where C is stored by threads.

    `buffers(config, shared memory, *ring_kind)` are those of each consumer's output; `more`: other
    values. The tensors of a `workspace` are the partial sums and the counters.
    """

    def fixed(problem: Problem, config: Config) -> dict[str, Any]:
        a, b, _ = boxes(problem, config)
        shape = gluon_host.shape_of(
            problem, config, consumers(config), 64, A_MAJOR=a.major, B_MAJOR=b.major,
            BUFFERS=buffers(config, problem.device.shared, *ring_kind(problem)),
            **more(problem, config),
        )  # fmt: skip
        return {"SHAPE": shape} | _sizes(problem) | _strides("c", "01mn", problem.c)

    def tensors(problem: Problem, config: Config, a, b, c, *work) -> dict[str, Any]:
        operands = described(Box.gluon_descriptor, boxes(problem, config), a, b, c)
        return operands | (gluon_host.named_sums(work) if workspace else {})

    return Arguments(fixed, tensors, workspace, _options)


def _options(problem: Problem, config: Config) -> dict[str, Any]:
    """Each consumer is a role of its own, of 4 warps."""
    return {
        "num_warps": 4,
        **(gluon_host.OPTIONS if config.num_warps < 12 else gluon_host.OPTIONS_OF_THREE),
    }
