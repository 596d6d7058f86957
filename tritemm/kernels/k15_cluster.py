"""cluster: two programs share each tile of B, and WGMMA is as wide as the tile.

Adds to       warp_specialized: half of B multicast by each of two programs; tiles of any 16 columns
Mirrors       wgmma_cluster
Compiler does the layouts of sums and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          1.05x cuBLAS at 65536 x 3072 x 768 NT, where consumers take turns; 4096 x 1280 x 8192
              NT from 0.88x to a tie. Multicast, barriers of two programs and WGMMA are PTX: Triton
              3.6 has no word for the first, and its tensors have powers of two of columns.
"""

import dataclasses
import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..problem import Problem
from ..spec import Config, TritonKernel
from ..triton_private import clusters_why_not
from . import _gluon_host
from ._cluster import (
    LINE,
    b_lines,
    box_lines,
    keep_ring,
    line_bytes,
    make_ring,
    map_of,
    slabs_of,
)
from ._cluster_host import (
    arguments,
    output_buffers,
    ring_bytes,
    ring_kind,
    ring_why_not,
    stages_bytes,
    tile_why_not,
)
from ._gluon import buffers, tile_at
from ._gluon_host import c_box, config_of
from ._gluon_store import by_engine, store_piece, store_wait
from ._host import Box, major_of
from ._ptx import (
    add_products,
    arrive,
    ask,
    expect,
    finish,
    init_barriers,
    is_first_warp,
    matrix,
    meet_cluster,
    release,
    shared_memory,
    unit,
    wait,
    zeros,
)

#: Programs that share a tile of B.
CLUSTER = gl.constexpr(2)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the roles know when they are compiled; sizes in elements; `word`: the type in PTX.

    `consumers` have `slabs` of 64 rows each: of the same tile, or of every other one in `turns`.
    Their output goes by way of `buffers` each.
    """

    rows: int
    columns: int
    stages: int
    consumers: int
    slabs: int
    turns: bool
    buffers: int
    order: str
    group: int
    a_major: str
    b_major: str
    c_major: str
    batched: bool
    wide: bool
    word: str


@gluon.constexpr_function
def shape_of(*values):
    return Shape(*values)


@gluon.constexpr_function
def consumers_of(warps):
    """Warpgroups that multiply: they share a tile, or there are two, with 4 warps for a tile."""
    return max(warps // 4, 2)


@gluon.constexpr_function
def group_of(rows, group):
    """Clusters one below the other that are as high as `group` tiles of 128 rows."""
    return max(1, 128 * group // (2 * rows))


@gluon.constexpr_function
def stage_bytes(shape):
    """Of a stage, a line deep."""
    return line_bytes(shape.rows, shape.columns, shape.b_major)


@gluon.jit
def first_tile():
    """The first tile of this program's cluster."""
    return gl.program_id(0) // CLUSTER


@gluon.jit
def place(tile, M, N, B1, SHAPE: gl.constexpr):
    """Batch indices, first row and first column of this program's half of a cluster's tile."""
    ROWS: gl.constexpr = SHAPE.rows
    COLUMNS: gl.constexpr = SHAPE.columns
    ORDER: gl.constexpr = SHAPE.order
    GROUP: gl.constexpr = SHAPE.group
    BATCHED: gl.constexpr = SHAPE.batched
    b0, b1, row, col = tile_at(tile, M, N, B1, CLUSTER * ROWS, COLUMNS, ORDER, GROUP, BATCHED)
    return b0, b1, row + gl.program_id(0) % CLUSTER * ROWS, col


@gluon.jit
def count_tiles(M, N, B0, B1, SHAPE: gl.constexpr):
    """Of clusters."""
    return gl.cdiv(M, CLUSTER * SHAPE.rows) * gl.cdiv(N, SHAPE.columns) * B0 * B1


@gluon.jit
def load(inputs, SHAPE: gl.constexpr):
    """The producer: every step of every tile, A for this program and half of B for both."""
    M, N, K, B0, B1, a_batch0, a_batch1, b_batch0, b_batch1 = inputs
    BYTES: gl.constexpr = stage_bytes(SHAPE)
    LINES: gl.constexpr = b_lines(SHAPE.columns, SHAPE.b_major)
    STAGES: gl.constexpr = SHAPE.stages
    BATCHED: gl.constexpr = SHAPE.batched
    MAP_A: gl.constexpr = map_of("cluster_kernel", "a", BATCHED)
    MAP_B: gl.constexpr = map_of("cluster_kernel", "b", BATCHED)
    BOX: gl.constexpr = box_lines(SHAPE.columns // 2)
    meet_cluster()  # the other's barriers are there
    rank = gl.program_id(0) % CLUSTER
    steps = gl.cdiv(K, LINE)
    ring = shared_memory()
    gdc_wait()
    n = gl.to_tensor(0)
    for tile in range(
        first_tile(), count_tiles(M, N, B0, B1, SHAPE), gl.num_programs(0) // CLUSTER
    ):
        b0, b1, row, col = place(tile, M, N, B1, SHAPE)
        # A broadcast batch has extent 1.
        a0, a1 = gl.minimum(b0, a_batch0 - 1), gl.minimum(b1, a_batch1 - 1)
        b0, b1 = gl.minimum(b0, b_batch0 - 1), gl.minimum(b1, b_batch1 - 1)
        for step in range(steps):
            stage = n % STAGES
            ready = ring + STAGES * BYTES + stage * 8
            wait(ready + STAGES * 8, (n // STAGES & 1) ^ 1)  # free in both, since both are written
            expect(ready, BYTES)
            to = ring + stage * BYTES
            k = step * LINE
            for i in gl.static_range(SHAPE.rows // 64):
                if SHAPE.a_major == "N":
                    ask(to + i * 8192, ready, row + i * 64, k, a0, a1, MAP_A, BATCHED)
                else:
                    ask(to + i * 8192, ready, k, row + i * 64, a0, a1, MAP_A, BATCHED)
            to += SHAPE.rows * 128
            if SHAPE.b_major == "T":
                for i in gl.static_range(SHAPE.columns // 2 // BOX):
                    at = rank * (SHAPE.columns // 2) + i * BOX
                    ask(to + at * 128, ready, col + at, k, b0, b1, MAP_B, BATCHED, True)
            else:
                for i in gl.static_range(LINES // 64):
                    ask(
                        to + i * 8192 + rank * 4096, ready, k + rank * 32, col + i * 64, b0, b1,
                        MAP_B, BATCHED, True,
                    )  # fmt: skip
            n += 1
    meet_cluster()  # what the other writes or arrives at is still there


@gluon.jit
def compute(output, SHAPE: gl.constexpr, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies and stores its slabs of tile after tile."""
    c_desc, c_ptr, c_memory, M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn = output
    BYTES: gl.constexpr = stage_bytes(SHAPE)
    COLUMNS: gl.constexpr = SHAPE.columns
    STAGES: gl.constexpr = SHAPE.stages
    SLABS: gl.constexpr = SHAPE.slabs
    TURNS: gl.constexpr = SHAPE.turns
    BUFFERS: gl.constexpr = SHAPE.buffers
    FIRST_SLAB: gl.constexpr = 0 if TURNS else WHICH * SLABS
    UNIT: gl.constexpr = unit(COLUMNS)
    PARTS: gl.constexpr = COLUMNS // UNIT
    TYPE: gl.constexpr = SHAPE.word
    A_MAJOR: gl.constexpr = SHAPE.a_major
    B_MAJOR: gl.constexpr = SHAPE.b_major
    C_MAJOR: gl.constexpr = SHAPE.c_major
    BATCHED: gl.constexpr = SHAPE.batched
    WIDE: gl.constexpr = SHAPE.wide
    meet_cluster()
    steps = gl.cdiv(K, LINE)
    ring = shared_memory()
    ready = ring + STAGES * BYTES
    empty = ready + STAGES * 8
    turns = empty + STAGES * 8
    first_warp = is_first_warp()
    a_first = matrix(ring + FIRST_SLAB * 8192, 16)
    b_first = matrix(ring + SHAPE.rows * 128, 16 if B_MAJOR == "T" else 8192)
    gdc_wait()
    first, stride = first_tile(), gl.num_programs(0) // CLUSTER
    n = gl.to_tensor(0)
    if TURNS:
        first += WHICH * stride
        stride *= 2
        n += WHICH * steps
    turn = gl.to_tensor(1 - WHICH)  # consumer 0's first turn is free
    for tile in range(first, count_tiles(M, N, B0, B1, SHAPE), stride):
        b0, b1, row, col = place(tile, M, N, B1, SHAPE)
        sums = zeros(COLUMNS, SLABS)
        if TURNS:
            # Not before the other has begun all its products: a barrier tells even from odd
            # rounds, and no more.
            wait(turns + WHICH * 8, turn)
            turn ^= 1
        for step in range(steps):
            stage = n % STAGES
            wait(ready + stage * 8, n // STAGES & 1)
            at = stage * (BYTES // 16)
            sums = add_products(
                sums, a_first + at, b_first + at, step > 0, COLUMNS, SLABS, TYPE, A_MAJOR, B_MAJOR
            )
            sums = finish(sums, COLUMNS, SLABS, 1)
            # This step's WGMMA may still read its stage; that of the step before has finished.
            release(empty + (n + STAGES - 1) % STAGES * 8, first_warp, step > 0)
            n += 1
        if TURNS:
            arrive(turns + (1 - WHICH) * 8, first_warp)
        sums = finish(sums, COLUMNS, SLABS, 0)
        release(empty + (n + STAGES - 1) % STAGES * 8, first_warp, steps > 0)
        if TURNS:
            n += steps
        for i in gl.static_range(SLABS * PARTS):
            store_piece(
                c_desc, c_ptr, c_memory, sums[i], b0, b1, row + (FIRST_SLAB + i // PARTS) * 64,
                col + i % PARTS * UNIT, M, N, stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR,
                BATCHED, WIDE, WHICH, i, BUFFERS,
            )  # fmt: skip
    store_wait(0)
    meet_cluster()


@gluon.jit
def idle():
    """Warps that make up a warpgroup: clusters meet with all their threads."""
    meet_cluster()
    meet_cluster()


@gluon.jit(do_not_specialize=["M", "N", "K", "B0", "B1",
                              "stride_c0", "stride_c1", "stride_cm", "stride_cn"])  # fmt: skip
def cluster_kernel(
    a_desc, b_desc, c_desc, c_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TYPE: gl.constexpr, WARPS: gl.constexpr,
    BUFFERS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    SHAPE: gl.constexpr = shape_of(
        BLOCK_M, BLOCK_N, STAGES, consumers_of(WARPS), slabs_of(BLOCK_M, WARPS), WARPS == 4,
        BUFFERS, ORDER, group_of(BLOCK_M, GROUP_M), A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TYPE,
    )  # fmt: skip
    CONSUMERS: gl.constexpr = SHAPE.consumers
    RING: gl.constexpr = STAGES * stage_bytes(SHAPE)
    ring = make_ring(RING)
    READERS: gl.constexpr = 1 if SHAPE.turns else CONSUMERS
    init_barriers(shared_memory() + RING, STAGES, CLUSTER * READERS, 2)
    c_memory = ring
    if by_engine(C_MAJOR):
        c_memory = buffers(CONSUMERS * BUFFERS, 64, unit(BLOCK_N), C_MAJOR, c_ptr.dtype.element_ty)
    a_batch0, a_batch1, b_batch0, b_batch1 = 1, 1, 1, 1
    if BATCHED:
        a_batch0, a_batch1 = a_desc.shape[0], a_desc.shape[1]
        b_batch0, b_batch1 = b_desc.shape[0], b_desc.shape[1]
    inputs = (M, N, K, B0, B1, a_batch0, a_batch1, b_batch0, b_batch1)
    output = (c_desc, c_ptr, c_memory, M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn)
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (compute, (output, SHAPE, 0)), (compute, (output, SHAPE, 1)),
                (load, (inputs, SHAPE)), (idle, ()), (idle, ()),
            ],
            [4, 1, 1, 2], [240, 24, 24, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (compute, (output, SHAPE, 0)), (compute, (output, SHAPE, 1)),
                (compute, (output, SHAPE, 2)),
                (load, (inputs, SHAPE)), (idle, ()), (idle, ()),
            ],
            [4, 4, 1, 1, 2], [160, 160, 24, 24, 24],
        )  # fmt: skip
    keep_ring(ring)


#: BLOCK_M, BLOCK_N and the warps of a tile, with as many stages as fit; the one for large
#: problems first.
TILES = (
    (128, 256, 8),
    (128, 128, 8),
    (128, 96, 8),
    (192, 192, 12),
    (192, 96, 12),
    (256, 192, 8),
    (256, 160, 8),
    (256, 128, 8),
    (128, 192, 4),
    (128, 160, 4),
    (64, 192, 4),
    (64, 128, 4),
)


@functools.lru_cache(maxsize=4096)
def _buffers(config: Config, shared: int, b_major: str, element: int, engine: bool) -> int:
    """See `arguments`."""
    rows, columns, warps = config.BLOCK_M, config.BLOCK_N, config.num_warps
    at_once = unit(columns)
    pieces = slabs_of(rows, warps) * columns // at_once
    room = shared - ring_bytes(stages_bytes(config, b_major))
    return output_buffers(room, consumers_of(warps), at_once, pieces, element, engine)


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> tuple[Box, Box, Box | None]:
    """Of A, B and C; None where C is stored by threads."""
    box = (64, box_lines(config.BLOCK_N // 2)) if major_of(problem.b) == "T" else (32, 64)
    b = Box.of(problem, problem.b, *box)
    return Box.of(problem, problem.a, 64, 64), b, c_box(problem, 64, unit(config.BLOCK_N))


def why_not(problem: Problem) -> str | None:
    return _gluon_host.why_not(problem) or clusters_why_not()


def configs(problem):
    return _fitting(problem.device.shared, *ring_kind(problem))


@functools.lru_cache
def _fitting(shared: int, *kind) -> tuple[Config, ...]:
    found = []
    for rows, columns, warps in TILES:
        able = [config_of(rows, columns, 64, warps, stages) for stages in range(8, 2, -1)]
        # Consumers take turns where much is stored for what is multiplied: two buffers first.
        for least in (2, 1) if warps == 4 else (1,):
            some = [config for config in able if _buffers(config, shared, *kind) >= least][:1]
            if some:
                break
        found += some
    return tuple(found)


def config_why_not(problem: Problem, config: Config) -> str | None:
    warps = config.num_warps
    if warps not in (4, 8, 12):
        return f"num_warps is {warps}; 8 or 12 for a tile are possible, or 4 that take turns"
    if reason := tile_why_not(config, 16):
        return reason
    if config.BLOCK_K != 64:
        return f"BLOCK_K is {config.BLOCK_K}; 64 is possible"
    return ring_why_not(problem, config, _buffers)


def grid(problem, config):
    """Clusters."""
    rows = -(-problem.M // (CLUSTER.value * config.BLOCK_M))
    tiles = rows * -(-problem.N // config.BLOCK_N) * problem.batch
    return min(max(1, problem.device.sms // CLUSTER.value), tiles)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_kernel,
    arguments=arguments(_boxes, _buffers),
    grid=grid, why_not=why_not, configs=configs, interpreted=None,
    config_why_not=config_why_not, odd_tiles=True, clusters=lambda config: CLUSTER.value,
)  # fmt: skip
