"""cluster: programs share each tile of B, or of A, and WGMMA is as wide as the tile.

Adds to       warp_specialized: each of 2 or 4 programs multicasts a share of B, or of A; tiles as
              wide as fill rounds of the SMs; K in parts where tiles are few
Mirrors       wgmma_cluster
Compiler does the layouts of sums and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          1.05x cuBLAS at 65536 x 3072 x 768 NT (in turns); 4096 x 1280 x 8192 NT from 0.88x to
              a tie, 39 x 6736 x 3248 NT from 0.79x to 1.03x (64 x 64, in fours), 1008 x 136 x 6592
              TT from 0.84x to 1.02x (K in 6 parts). Multicast, barriers of several programs and
              WGMMA are PTX: Triton 3.6 has no word for the first, nor tensors of 96 columns.
"""

import dataclasses
import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..problem import Problem
from ..runtime.triton_private import clusters_why_not
from ..runtime.workspace import Room
from ..spec import Config, TritonKernel, clusters_at_once
from .common import gluon_host
from .common.cluster_host import arguments, boxes_of, ring_why_not, tile_why_not
from .common.cluster_mainloop import (
    LINE,
    consumers_of,
    keep_ring,
    line_bytes,
    load_lines,
    make_ring,
    map_of,
    slabs_of,
)
from .common.cluster_tiles import buffers_of, either, offered
from .common.epilogue import (
    add_parts,
    by_engine,
    deposit_piece,
    part_of,
    shares,
    store_piece,
    store_wait,
    take_shares,
)
from .common.gluon_host import parts_why_not, piece_columns
from .common.host import Box
from .common.mainloop import buffers, tile_at, unit_at
from .common.ptx import (
    add_products,
    arrive,
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


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the roles know when they are compiled; sizes in elements; `word`: the type in PTX.

    A cluster's `programs` lie one below the other and share each tile of B, or side by side and
    share A: `shared` says which. `consumers` have `slabs` of 64 rows each: of the same tile, or of
    every other one in `turns`. Their output goes by way of `buffers` each, in pieces of `piece`
    columns. Each tile's K is cut into `parts`, which run `together` or as it happens.
    """

    programs: int
    shared: str
    rows: int
    columns: int
    stages: int
    consumers: int
    slabs: int
    turns: bool
    buffers: int
    piece: int
    parts: int
    together: bool
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
def cluster_tile(programs, shared, rows, columns):
    """Rows and columns of what a cluster computes at once."""
    return (programs * rows, columns) if shared == "b" else (rows, programs * columns)


@gluon.constexpr_function
def group_of(rows, group):
    """Clusters of so many rows, one below the other, that are as high as `group` tiles of 128."""
    return max(1, 128 * group // rows)


@gluon.constexpr_function
def sharers_of(shape, operand):
    """Programs that load a tile of it together."""
    return shape.programs if shape.shared == operand else 1


@gluon.constexpr_function
def readers_of(shape):
    """Consumers that share a tile."""
    return 1 if shape.turns else shape.consumers


@gluon.constexpr_function
def stage_bytes(shape):
    """Of a stage, a line deep."""
    return line_bytes(shape.rows, shape.columns, shape.b_major)


@gluon.jit
def rank_of(SHAPE: gl.constexpr):
    """This program's place in its cluster."""
    return gl.program_id(0) % SHAPE.programs


@gluon.jit
def place(tile, M, N, B1, SHAPE: gl.constexpr):
    """Batch indices, first row and first column of this program's part of a cluster's tile."""
    TILE: gl.constexpr = cluster_tile(SHAPE.programs, SHAPE.shared, SHAPE.rows, SHAPE.columns)
    ORDER: gl.constexpr = SHAPE.order
    GROUP: gl.constexpr = SHAPE.group
    BATCHED: gl.constexpr = SHAPE.batched
    b0, b1, row, col = tile_at(tile, M, N, B1, TILE[0], TILE[1], ORDER, GROUP, BATCHED)
    if SHAPE.shared == "b":
        row += rank_of(SHAPE) * SHAPE.rows
    else:
        col += rank_of(SHAPE) * SHAPE.columns
    return b0, b1, row, col


@gluon.jit
def tiles_of(M, N, B0, B1, SHAPE: gl.constexpr):
    """Tiles of clusters in all; this cluster's first unit of work, and the next one's distance."""
    TILE: gl.constexpr = cluster_tile(SHAPE.programs, SHAPE.shared, SHAPE.rows, SHAPE.columns)
    count = gl.cdiv(M, TILE[0]) * gl.cdiv(N, TILE[1]) * B0 * B1
    return count, gl.program_id(0) // SHAPE.programs, gl.num_programs(0) // SHAPE.programs


@gluon.jit
def work_of(unit, tiles, K, SHAPE: gl.constexpr):
    """Tile, part of K, first step and number of steps of a unit of work."""
    if SHAPE.parts == 1:
        tile, part, first, steps = unit, 0, 0, gl.cdiv(K, LINE)
    else:
        tile, part, first, steps = unit_at(unit, tiles, K, LINE, SHAPE.parts)
        gl.assume(steps > 0)  # else ptxas serialises WGMMA for the sake of sums without any
    return tile, part, first, steps


@gluon.jit
def load(inputs, SHAPE: gl.constexpr):
    """The producer: every step of every tile, its share of the one of A and B that is shared."""
    M, N, K, B0, B1, a_batch0, a_batch1, b_batch0, b_batch1 = inputs
    BYTES: gl.constexpr = stage_bytes(SHAPE)
    STAGES: gl.constexpr = SHAPE.stages
    BATCHED: gl.constexpr = SHAPE.batched
    MAP_A: gl.constexpr = map_of("cluster_kernel", "a", BATCHED)
    MAP_B: gl.constexpr = map_of("cluster_kernel", "b", BATCHED)
    A_SHARERS: gl.constexpr = sharers_of(SHAPE, "a")
    B_SHARERS: gl.constexpr = sharers_of(SHAPE, "b")
    meet_cluster()  # the others' barriers are there
    rank = rank_of(SHAPE)
    ring = shared_memory()
    gdc_wait()
    n = gl.to_tensor(0)
    tiles, begin, distance = tiles_of(M, N, B0, B1, SHAPE)
    for work in range(begin, tiles * SHAPE.parts, distance):
        tile, _, first, steps = work_of(work, tiles, K, SHAPE)
        b0, b1, row, col = place(tile, M, N, B1, SHAPE)
        # A broadcast batch has extent 1.
        a0, a1 = gl.minimum(b0, a_batch0 - 1), gl.minimum(b1, a_batch1 - 1)
        b0, b1 = gl.minimum(b0, b_batch0 - 1), gl.minimum(b1, b_batch1 - 1)
        for step in range(steps):
            stage = n % STAGES
            ready = ring + STAGES * BYTES + stage * 8
            wait(ready + STAGES * 8, (n // STAGES & 1) ^ 1)  # free in all, since all are written
            expect(ready, BYTES)
            to = ring + stage * BYTES
            k = (first + step) * LINE
            load_lines(
                to, ready, row, k, a0, a1, rank, SHAPE.rows, SHAPE.a_major == "N", A_SHARERS,
                MAP_A, BATCHED,
            )  # fmt: skip
            load_lines(
                to + SHAPE.rows * 128, ready, col, k, b0, b1, rank, SHAPE.columns,
                SHAPE.b_major == "T", B_SHARERS, MAP_B, BATCHED,
            )  # fmt: skip
            n += 1
    meet_cluster()  # what others write or arrive at is still there


@gluon.jit
def compute(output, SHAPE: gl.constexpr, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies and stores its slabs of tile after tile.

    Where K is cut, it deposits their sums, and stores the share of them that it adds up.
    """
    (c_desc, c_ptr, c_memory, sums_ptr, counters_ptr, M, N, K, B0, B1,
     stride_c0, stride_c1, stride_cm, stride_cn) = output  # fmt: skip
    PROGRAMS: gl.constexpr = SHAPE.programs
    BYTES: gl.constexpr = stage_bytes(SHAPE)
    COLUMNS: gl.constexpr = SHAPE.columns
    STAGES: gl.constexpr = SHAPE.stages
    SLABS: gl.constexpr = SHAPE.slabs
    TURNS: gl.constexpr = SHAPE.turns
    BUFFERS: gl.constexpr = SHAPE.buffers
    FIRST_SLAB: gl.constexpr = 0 if TURNS else WHICH * SLABS
    UNIT: gl.constexpr = unit(COLUMNS)
    UNITS: gl.constexpr = COLUMNS // UNIT
    PIECE: gl.constexpr = SHAPE.piece
    PARTS: gl.constexpr = SHAPE.parts
    TYPE: gl.constexpr = SHAPE.word
    A_MAJOR: gl.constexpr = SHAPE.a_major
    B_MAJOR: gl.constexpr = SHAPE.b_major
    C_MAJOR: gl.constexpr = SHAPE.c_major
    BATCHED: gl.constexpr = SHAPE.batched
    WIDE: gl.constexpr = SHAPE.wide
    meet_cluster()
    ring = shared_memory()
    ready = ring + STAGES * BYTES
    empty = ready + STAGES * 8
    turns = empty + STAGES * 8
    first_warp = is_first_warp()
    a_first = matrix(ring + FIRST_SLAB * 8192, 16)
    b_first = matrix(ring + SHAPE.rows * 128, 16 if B_MAJOR == "T" else 8192)
    gdc_wait()
    tiles, begin, distance = tiles_of(M, N, B0, B1, SHAPE)
    n = gl.to_tensor(0)
    if TURNS:
        if WHICH == 1:
            n += work_of(begin, tiles, K, SHAPE)[3]
        begin += WHICH * distance
        distance *= 2
    turn = gl.to_tensor(1 - WHICH)  # consumer 0's first turn is free
    for work in range(begin, tiles * PARTS, distance):
        tile, part, _, steps = work_of(work, tiles, K, SHAPE)
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
            release(empty + (n + STAGES - 1) % STAGES * 8, first_warp, step > 0, PROGRAMS)
            n += 1
        if TURNS:
            arrive(turns + (1 - WHICH) * 8, first_warp)
        sums = finish(sums, COLUMNS, SLABS, 0)
        release(empty + (n + STAGES - 1) % STAGES * 8, first_warp, steps > 0, PROGRAMS)
        if TURNS:
            n += work_of(work + distance // 2, tiles, K, SHAPE)[3]  # the other's
        if PARTS == 1:
            for i in gl.static_range(SLABS * UNITS):
                store_piece(
                    c_desc, c_ptr, c_memory, sums[i], b0, b1, row + (FIRST_SLAB + i // UNITS) * 64,
                    col + i % UNITS * UNIT, M, N, stride_c0, stride_c1, stride_cm, stride_cn,
                    C_MAJOR, BATCHED, WIDE, WHICH, i, BUFFERS,
                )  # fmt: skip
        else:
            # As if its slabs stood side by side: [parts, 64, SLABS * COLUMNS]
            OWN: gl.constexpr = SLABS * COLUMNS
            IN_UNIT: gl.constexpr = UNIT // PIECE
            IN_SLAB: gl.constexpr = COLUMNS // PIECE
            place_of = (tile * PROGRAMS + rank_of(SHAPE)) * readers_of(SHAPE)
            place_of += FIRST_SLAB // SLABS
            own = sums_ptr + gl.cast(place_of, gl.int64) * (PARTS * 64 * OWN)
            for i in gl.static_range(OWN // PIECE):
                part_sums = part_of(sums[i // IN_UNIT], i % IN_UNIT, IN_UNIT)
                deposit_piece(own + part * (64 * OWN), part_sums, i)
            SHARES: gl.constexpr = shares(OWN // PIECE, PARTS, SHAPE.together)
            mine = take_shares(counters_ptr + place_of, part, PARTS, SHARES)
            for i in range(OWN // PIECE):
                if mine >> i % SHARES & 1:
                    piece = add_parts(own, i, PARTS, 64, OWN, PIECE)
                    store_piece(
                        c_desc, c_ptr, c_memory, piece, b0, b1,
                        row + (FIRST_SLAB + i // IN_SLAB) * 64, col + i % IN_SLAB * PIECE, M, N,
                        stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE, WHICH,
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
    a_desc, b_desc, c_desc, c_ptr, sums_ptr, counters_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TYPE: gl.constexpr, WARPS: gl.constexpr,
    BUFFERS: gl.constexpr, CLUSTER: gl.constexpr, SHARED: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    TILE: gl.constexpr = cluster_tile(CLUSTER, SHARED, BLOCK_M, BLOCK_N)
    SHAPE: gl.constexpr = shape_of(
        CLUSTER, SHARED, BLOCK_M, BLOCK_N, STAGES, consumers_of(WARPS), slabs_of(BLOCK_M, WARPS),
        WARPS == 4, BUFFERS, EPI_N, SPLIT_K, TOGETHER, ORDER, group_of(TILE[0], GROUP_M), A_MAJOR,
        B_MAJOR, C_MAJOR, BATCHED, WIDE, TYPE,
    )  # fmt: skip
    CONSUMERS: gl.constexpr = SHAPE.consumers
    RING: gl.constexpr = STAGES * stage_bytes(SHAPE)
    ring = make_ring(RING)
    init_barriers(shared_memory() + RING, STAGES, CLUSTER * readers_of(SHAPE), 2)
    c_memory = ring
    if by_engine(C_MAJOR):
        c_memory = buffers(CONSUMERS * BUFFERS, 64, EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
    a_batch0, a_batch1, b_batch0, b_batch1 = 1, 1, 1, 1
    if BATCHED:
        a_batch0, a_batch1 = a_desc.shape[0], a_desc.shape[1]
        b_batch0, b_batch1 = b_desc.shape[0], b_desc.shape[1]
    inputs = (M, N, K, B0, B1, a_batch0, a_batch1, b_batch0, b_batch1)
    output = (c_desc, c_ptr, c_memory, sums_ptr, counters_ptr, M, N, K, B0, B1,
              stride_c0, stride_c1, stride_cm, stride_cn)  # fmt: skip
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


#: As in the kernel; a call from the host costs several microseconds.
_cluster_tile = functools.cache(cluster_tile)


def shared_of(problem: Problem, config: Config) -> str:
    """The operand that the programs of a cluster share: with which C takes fewer clusters, or else
    that with the larger tiles; B of equals."""
    high, wide = (_clusters(problem, config, operand) for operand in "ba")
    larger = "a" if config.BLOCK_M > config.BLOCK_N else "b"
    return larger if high == wide else "b" if high < wide else "a"


def _clusters(problem: Problem, config: Config, shared: str) -> int:
    """That C takes."""
    rows, columns = _cluster_tile(config.CLUSTER, shared, config.BLOCK_M, config.BLOCK_N)
    return -(-problem.M // rows) * -(-problem.N // columns) * problem.batch


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> tuple[Box, Box, Box | None]:
    """Of A, B and C; None where C is stored by threads."""
    shared, sharers = shared_of(problem, config), config.CLUSTER
    together = (sharers, 1) if shared == "a" else (1, sharers)
    return boxes_of(problem, config, columns_at_once(problem, config), *together)


def together(problem: Problem, config: Config) -> bool:
    """Whether all parts of a tile's K find room at once: each then adds up a share of the sum."""
    clusters = _clusters(problem, config, shared_of(problem, config)) * config.SPLIT_K
    return config.SPLIT_K > 1 and clusters <= clusters_at_once(config.CLUSTER, problem.device.sms)


def columns_at_once(problem: Problem, config: Config) -> int:
    """Of the epilogue."""
    most = unit(config.BLOCK_N)
    if not together(problem, config):
        return most
    return min(most, piece_columns(config.BLOCK_N, config.SPLIT_K))


def workspace(problem: Problem, config: Config) -> Room | None:
    """Where K is cut: for the sums of each program's consumers, and their counters."""
    if config.SPLIT_K == 1:
        return None
    programs = _clusters(problem, config, shared_of(problem, config)) * config.CLUSTER
    floats = programs * config.SPLIT_K * config.BLOCK_M * config.BLOCK_N
    return gluon_host.partial_sums(floats, programs * (config.num_warps // 4))


def why_not(problem: Problem) -> str | None:
    return gluon_host.why_not(problem) or clusters_why_not()


def config_why_not(problem: Problem, config: Config) -> str | None:
    warps, programs = config.num_warps, config.CLUSTER
    if warps not in (4, 8, 12):
        return f"num_warps is {warps}; 8 or 12 for a tile are possible, or 4 that take turns"
    if programs not in (2, 4):
        return f"CLUSTER is {programs}; 2 or 4 programs can share"
    if reason := tile_why_not(config, 8 * programs):
        return reason
    if config.BLOCK_K != 64:
        return f"BLOCK_K is {config.BLOCK_K}; 64 is possible"
    if reason := parts_why_not(problem, config):
        return reason
    row = consumers_of(warps) * unit(config.BLOCK_N)
    return ring_why_not(problem, config, buffers_of, row)


def grid(problem, config):
    """Clusters."""
    clusters = _clusters(problem, config, shared_of(problem, config)) * config.SPLIT_K
    return min(max(1, clusters_at_once(config.CLUSTER, problem.device.sms)), clusters)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_kernel,
    arguments=arguments(
        _boxes, buffers_of,
        lambda problem, config: {
            "SHARED": shared_of(problem, config),
            "EPI_N": columns_at_once(problem, config),
            "TOGETHER": together(problem, config),
        },
        workspace,
    ),
    grid=grid, why_not=why_not, configs=offered, interpreted=None, either=either,
    config_why_not=config_why_not, odd_tiles=True, clusters=lambda config: config.CLUSTER,
)  # fmt: skip
