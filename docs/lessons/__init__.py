"""What the pages of docs/tutorial derive: facts, counters, instructions, figures, exercises.

On a GPU `python -m docs.record counters` and `joules` measure, without one `instructions` compiles;
`make docs` fills the pages from what they leave in this folder.
"""

from __future__ import annotations

import dataclasses

from perf.case import Case

#: The product of the classic rungs' lessons.
SQUARE = Case(4096, 4096, 4096, "NT", "bf16")


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A rung, the rung that its page starts from, the product on which they are compared there, and
    which of `counters.LABELS` show the problem."""

    rung: str
    below: str | None
    counters: tuple[str, ...]
    case: Case = SQUARE


_DEFAULT = ("tensor pipe busy", "DRAM read", "L2 traffic")

#: In the order of the ladder. Where a rung's idea needs another shape than a square, that is shown.
LESSONS = (
    Lesson("simt", None, ("duration", "tensor pipe busy", "L2 traffic")),
    Lesson("naive", "simt", ("duration", *_DEFAULT)),
    Lesson("tiled", "naive", ("L2 traffic", "DRAM read", "tensor pipe busy")),
    Lesson(
        "swizzled", "tiled", ("DRAM read", "L2 hit rate", "tensor pipe busy"),
        Case(8192, 8192, 8192, "NT", "bf16"),
    ),
    Lesson(
        "permuted", "swizzled",
        ("duration", "tensor pipe busy", "WGMMA instructions", "shared-memory bank conflicts"),
    ),
    Lesson("async", "permuted", ("duration", "tensor pipe busy", "shared-memory bank conflicts")),
    Lesson("async_pg2s", "async", ("duration", "tensor pipe busy", "shared memory per block")),
    Lesson(
        "async_pg2s_ps2r", "async_pg2s", ("duration", "tensor pipe busy", "registers per thread"),
    ),
    Lesson(
        "async_stages", "async_pg2s_ps2r",
        ("duration", "tensor pipe busy", "shared memory per block"),
    ),
    Lesson("pipelined", "swizzled", ("duration", "tensor pipe busy", "shared memory per block")),
    Lesson("tma", "pipelined", ("duration", "tensor pipe busy", "registers per thread")),
    Lesson("persistent", "tma", ("duration", "tensor pipe busy", "shared memory per block")),
    Lesson(
        "warp_specialized", "persistent", ("duration", "tensor pipe busy", "registers per thread"),
    ),
    Lesson(
        "pingpong", "warp_specialized", ("duration", "tensor pipe busy"),
        Case(8192, 8192, 512, "NT", "bf16"),
    ),
    Lesson(
        "split_k", "warp_specialized", ("duration", "SMs at work", "L2 traffic"),
        Case(768, 768, 65536, "TN", "bf16"),
    ),
    Lesson(
        "stream_k", "split_k", ("duration", "SMs at work", "tensor pipe busy"),
        Case(3072, 3072, 3072, "NT", "bf16"),
    ),
    Lesson(
        "gemv", "split_k", ("duration", "SMs at work", "DRAM read"),
        Case(1, 4096, 4096, "NT", "bf16"),
    ),
    Lesson(
        "cluster", "warp_specialized", ("L2 traffic", "tensor pipe busy"),
        Case(8192, 8192, 8192, "NN", "bf16"),
    ),
    Lesson(
        "cluster_pingpong", "cluster", ("duration", "tensor pipe busy"),
        Case(65536, 3072, 768, "NT", "bf16"),
    ),
    Lesson(
        "multicast_split_k", "cluster_pingpong", ("duration", "SMs at work", "L2 traffic"),
        Case(1008, 136, 6592, "TT", "bf16"),
    ),
    Lesson(
        "cluster_split_k", "split_k", ("duration", "SMs at work"),
        Case(128, 256, 7168, "NT", "bf16"),
    ),
)  # fmt: skip
