"""How many bytes does a program load, and how many arrive?

The programs of a cluster have a tile of BLOCK_M x BLOCK_N each, and share their tile of B
(`shared` is "b") or of A ("a"). They take turns: in step n, counted from 0, program n % programs
loads all of the shared tile, which arrives in the shared memory of all of them. Each program also
loads its own tile of the other operand in every step. A step is 64 elements of K, of 2 bytes. How
many bytes does program `rank` load in the steps 0 to steps - 1, and for how many bytes does its
barrier wait before a step can be multiplied?
"""

from types import SimpleNamespace

from . import Answer, same
from .plain import LINE, Notes, cluster_loop

#: BLOCK_M, BLOCK_N, programs of a cluster, what they share.
CLUSTERS = (
    (128, 256, 2, "b"), (128, 256, 4, "b"), (128, 256, 2, "a"), (256, 192, 2, "a"),
    (64, 72, 4, "b"), (128, 96, 1, "b"),
)  # fmt: skip
#: Steps, of which the turns are full rounds, none, or a part of one.
STEPS = (1, 2, 7, 8, 9)


def answer(
    BLOCK_M: int, BLOCK_N: int, programs: int, shared: str, rank: int, steps: int
) -> tuple[int, int]:
    a, b = BLOCK_M * 64 * 2, BLOCK_N * 64 * 2
    together, own = (b, a) if shared == "b" else (a, b)
    turns = len(range(rank, steps, programs))
    return steps * own + turns * together, a + b


def asked(
    rows: int, columns: int, programs: int, shared: str, rank: int, steps: int
) -> tuple[int, int]:
    """What the kernel's producer asks for, and what it tells its barrier of a step to wait for."""
    shape = SimpleNamespace(
        BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=64, STAGES=4, CLUSTER=programs, SHARED=shared,
        A_MAJOR="N", B_MAJOR="T", BATCHED=False, RING=0, SUMS="whole",
        PRODUCTS=1,
    )  # fmt: skip
    notes = Notes()
    with cluster_loop(shape, rank, notes) as kernel:
        kernel.loop.load(0, SimpleNamespace(first=0, steps=steps, row=0, col=0, b0=0, b1=0))
    # In a stage the tile of A lies first, then that of B.
    lines = [rows if line % (rows + columns) == 0 else columns for line, _ in notes.loads]
    (expected,) = set(notes.expected)
    return sum(lines) * LINE, expected


def check(function: Answer) -> None:
    """Against the producer of the rungs whose programs come in clusters."""
    for rows, columns, programs, shared in CLUSTERS:
        for rank in range(programs):
            for steps in STEPS:
                want = asked(rows, columns, programs, shared, rank, steps)
                same(
                    function, want, BLOCK_M=rows, BLOCK_N=columns, programs=programs,
                    shared=shared, rank=rank, steps=steps,
                )  # fmt: skip
