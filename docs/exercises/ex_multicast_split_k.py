"""Into how many parts should K be cut?

Programs of BLOCK_M x BLOCK_N come in clusters of `programs`, and the GPU has room for `room`
clusters at once. A cluster is a tile of programs * BLOCK_M rows and BLOCK_N columns if its programs
share B, or of BLOCK_M rows and programs * BLOCK_N columns if they share A; the kernel chooses the
way that needs fewer clusters for an M x N output. Each part of a tile's K is the work of one
cluster. In this exercise K may be cut into 2, 3, 4, 6 or 8 parts, and K // (8 * 64) parts at most,
so that a part has about 8 steps of 64 or more. (The rung itself takes more parts where C has few
clusters and K is long.) What is the largest number of parts with which all clusters can run at the
same time? Return 1 if there is none.
"""

from tritemm.arch.clusters import COUNTS, LEAST_STEPS, Split
from tritemm.arch.gpus import clusters_at_once
from tritemm.arch.roles import config_of
from tritemm.compile.asm import DEVICES, Job, problem_of

from . import Answer, same

#: M, N, K; BLOCK_M, BLOCK_N, and programs of a cluster.
CASES = (
    (136, 1008, 6592, 128, 96, 2), (768, 768, 65536, 128, 192, 2), (136, 1008, 2048, 128, 96, 2),
    (952, 440, 7464, 128, 144, 2), (512, 1536, 294912, 192, 192, 2), (920, 136, 8904, 128, 80, 4),
    (4096, 1280, 8192, 128, 160, 2), (128, 2048, 16384, 128, 128, 4), (384, 896, 8192, 128, 128, 2),
    (136, 1008, 2040, 128, 96, 2), (1024, 1536, 8192, 128, 192, 2), (512, 768, 8192, 128, 192, 2),
)  # fmt: skip


def answer(M: int, N: int, K: int, BLOCK_M: int, BLOCK_N: int, programs: int, room: int) -> int:
    def tiles(rows, columns):
        return -(-M // rows) * -(-N // columns)

    clusters = min(tiles(programs * BLOCK_M, BLOCK_N), tiles(BLOCK_M, programs * BLOCK_N))
    able = [n for n in (2, 3, 4, 6, 8) if n * clusters <= room and n <= K // (8 * 64)]
    return max(able, default=1)


def parts(M: int, N: int, K: int, rows: int, columns: int, programs: int) -> int:
    """By what the rung asks before it lets each part add up a share."""
    problem = problem_of(Job("multicast_split_k", M=M, N=N, K=K, layout="NT"))
    warps = 12 if rows == 192 else 8
    able = [
        count
        for count in COUNTS
        if K // (LEAST_STEPS * problem.line) >= count
        and Split(problem, config_of(rows, columns, 64, warps, 4, count, programs)).together
    ]
    return max(able, default=1)


def check(function: Answer) -> None:
    """Against the host functions that choose the rung's configs."""
    for M, N, K, rows, columns, programs in CASES:
        same(
            function, parts(M, N, K, rows, columns, programs), M=M, N=N, K=K, BLOCK_M=rows,
            BLOCK_N=columns, programs=programs, room=clusters_at_once(programs, DEVICES[90]),
        )  # fmt: skip
