"""Where does a consumer begin?

Of `clusters` clusters, cluster `c` takes the tiles c, c + clusters, c + 2 clusters and so on. In
each of its programs, one producer fills a ring of `stages` stages with the steps of these tiles,
one tile after another, `steps` steps for each: the first step is n = 0, and step n is in stage
n % stages. The two consumers take the tiles in turns: consumer 0 the first, consumer 1 the second,
consumer 0 the third. A barrier tells whether a stage is full by a parity: 0 in the ring's first
round, 1 in the second, 0 in the third. For the `turn`-th tile of a consumer, counted from 0: which
tile is it, and for which stage and which parity does the consumer wait first?
"""

from types import SimpleNamespace

from docs.pictures import formulas

from . import Answer, same
from .plain import Notes, cluster_loop, function, nothing

#: Clusters, steps of a tile, stages.
SHAPES = ((3, 4, 4), (2, 5, 4), (5, 12, 4), (1, 3, 5))
TURNS = 4


def answer(
    cluster: int, clusters: int, consumer: int, turn: int, steps: int, stages: int
) -> tuple[int, int, int]:
    before = 2 * turn + consumer  # tiles of this cluster, of both consumers
    n = before * steps
    return cluster + before * clusters, n % stages, n // stages % 2


def tiles(
    cluster: int, clusters: int, consumer: int, steps: int, stages: int
) -> list[tuple[int, int, int]]:
    """(tile, stage, parity) of each turn, as the rung's `compute` goes through them."""
    shape = formulas.shape(
        BLOCK_M=128, BLOCK_N=192, BLOCK_K=64, STAGES=stages, CLUSTER=2, SHARED="b", WARPS=4,
        A_MAJOR="N", B_MAJOR="T", TYPE="bf16", ORDER="linear", GROUP_M=1, LATE=False,
    )  # fmt: skip
    kernel = formulas.module("scheduler", 2 * cluster, 2 * clusters)
    columns = 2 * TURNS * clusters
    work = kernel.Scheduler(256, 192 * columns, 64 * steps, 1, 1, shape)
    notes, found = Notes(), []
    with cluster_loop(shape, 0, notes) as cluster_kernel:
        loop = cluster_kernel.loop

        def store(acc, unit, which, slab):
            """At a tile's end: its first wait was `steps` waits ago."""
            bar, parity = notes.waits[-steps]
            found.append((unit.tile, bar - loop.full() // 8, parity))

        compute = function(
            "k16_cluster_pingpong.py", "compute", cluster_sync=nothing, gdc_wait=nothing,
            barrier_wait=nothing, barrier_arrive=nothing,
            gl=SimpleNamespace(to_tensor=int, constexpr=int),
        )  # fmt: skip
        out = SimpleNamespace(store=store, tail=nothing)
        compute((work, loop, out), consumer)
    return found


def check(function: Answer) -> None:
    """Against the consumers of the rung."""
    for clusters, steps, stages in SHAPES:
        for cluster in range(clusters):
            for consumer in (0, 1):
                own = tiles(cluster, clusters, consumer, steps, stages)
                for turn, want in enumerate(own):
                    same(
                        function, want, cluster=cluster, clusters=clusters, consumer=consumer,
                        turn=turn, steps=steps, stages=stages,
                    )  # fmt: skip
