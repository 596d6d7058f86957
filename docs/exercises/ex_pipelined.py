"""How many stages fit?

On an H100 or H200 a program can have 232448 bytes of shared memory. A stage of `pipelined` holds
one step's tiles: BLOCK_M x BLOCK_K elements of A and BLOCK_K x BLOCK_N elements of B, of `itemsize`
bytes each. The ring may take all but 512 bytes. How many stages fit?
"""

from docs import code
from tritemm.compile.asm import Job, problem_of
from tritemm.rungs import find
from tritemm.spec import Config

from . import Answer, same

TILES = (
    (128, 256, 64), (256, 128, 32), (128, 128, 64), (64, 64, 64), (64, 256, 64), (128, 64, 128),
)  # fmt: skip
DTYPES = {2: "bf16", 1: "int8"}
#: By the size of an element, tiles so small that the 512 bytes are half a stage.
SMALL = {2: (16, 16, 16), 1: (16, 16, 32)}


def answer(BLOCK_M: int, BLOCK_N: int, BLOCK_K: int, itemsize: int) -> int:
    stage = (BLOCK_M + BLOCK_N) * BLOCK_K * itemsize
    return (232448 - 512) // stage


def check(function: Answer) -> None:
    """Against the configs that the rung refuses, and the shared memory of one that was compiled."""
    kernel = find("pipelined")
    for itemsize, dtype in DTYPES.items():
        problem = problem_of(Job("pipelined", layout="NT", dtype=dtype))
        for tile in (*TILES, SMALL[itemsize]):
            stages = 0
            while not kernel.config_why_not(problem, Config(*tile, 8, num_stages=stages + 1)):
                stages += 1
            names = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True))
            same(function, stages, **names, itemsize=itemsize)
    # The ring of the rung's first config, the deepest that fits, as it was compiled.
    want = code.load()["pipelined sm_90"]["shared"] // ((128 + 256) * 64 * 2)
    same(function, want, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, itemsize=2)
