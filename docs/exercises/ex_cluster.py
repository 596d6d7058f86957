"""What is asked for, and what arrives?

The programs of a cluster have a tile of BLOCK_M x BLOCK_N each, and share their tile of B
(`shared` is "b") or of A ("a"). Of what they share, each program asks L2 for an equal part, which
arrives in the shared memory of all of them. Of the other operand, each asks for its own tile. A
step is 64 elements of K, of 2 bytes. How many bytes does a program ask for in a step, and for how
many does its barrier wait until the step can be multiplied? BLOCK_M and BLOCK_N are multiples of
8 times the number of programs.
"""

from types import SimpleNamespace

from . import Answer, same
from .plain import LINE, Notes, cluster_loop

CLUSTERS = (
    (128, 256, 2, "b"), (128, 256, 4, "b"), (128, 256, 2, "a"), (256, 192, 2, "a"),
    (64, 64, 4, "b"), (128, 96, 1, "b"),
)  # fmt: skip


def answer(BLOCK_M: int, BLOCK_N: int, programs: int, shared: str) -> tuple[int, int]:
    a, b = BLOCK_M * 64 * 2, BLOCK_N * 64 * 2
    asked = a + b // programs if shared == "b" else a // programs + b
    return asked, a + b


def step(rows: int, columns: int, programs: int, shared: str) -> tuple[int, int]:
    """What the kernel's producer asks for, and what it tells its barrier to wait for."""
    shape = SimpleNamespace(
        BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=64, STAGES=4, CLUSTER=programs, SHARED=shared,
        A_MAJOR="N", B_MAJOR="T", BATCHED=False, RING=0,
    )  # fmt: skip
    notes = Notes()
    with cluster_loop(shape, 0, notes) as kernel:
        kernel.loop.load(0, SimpleNamespace(first=0, steps=1, row=0, col=0, b0=0, b1=0))
        asked = 0
        # The tile of A lies first, then that of B.
        for (_, sharers), lines in zip(notes.loads, (rows, columns), strict=True):
            asked += kernel.share_of(lines, sharers) * LINE
    (expected,) = notes.expected
    return asked, expected


def check(function: Answer) -> None:
    """Against the producer of the rungs whose programs come in clusters."""
    for rows, columns, programs, shared in CLUSTERS:
        want = step(rows, columns, programs, shared)
        same(function, want, BLOCK_M=rows, BLOCK_N=columns, programs=programs, shared=shared)
