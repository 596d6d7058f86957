"""cluster_split_k: the programs of a cluster share one tile's K and exchange their sums.

Adds to       split_k: sums go from shared memory to shared memory, and each program adds up a share
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the layouts of sums and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          1.50x cuBLAS at 128 x 256 x 7168 NT (in 8 parts), 1.47x at 8 x 1280 x 8192 NT (in 5,
              operands swapped). No workspace. Barriers, WGMMA and the exchange are PTX.
"""

import dataclasses
import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..problem import Problem, kept
from ..runtime.triton_private import clusters_why_not
from ..spec import Config, TritonKernel, clusters_at_once
from .common import gluon_host
from .common.cluster_host import (
    arguments,
    boxes_of,
    output_buffers,
    ring_bytes,
    ring_kind,
    ring_why_not,
    stages_bytes,
    tile_why_not,
)
from .common.cluster_mainloop import (
    LINE,
    keep_ring,
    line_bytes,
    load_lines,
    make_ring,
    map_of,
    slabs_of,
)
from .common.epilogue import by_engine, store_piece, store_wait
from .common.gluon_host import config_of, parts_why_not, piece_columns
from .common.host import Box, major_of
from .common.mainloop import buffers, tile_at
from .common.ptx import (
    add_products,
    add_up,
    arrive,
    expect,
    finish,
    hand_out,
    init_barriers,
    is_first_warp,
    matrix,
    meet_cluster,
    shared_memory,
    unit,
    wait,
    zeros,
)

#: Programs of a cluster at most, on any device.
MOST = 8
#: Bytes of a tile's sums that have room of their own; those of others lie where its stages did.
APART = gl.constexpr(24 * 1024)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the roles know when they are compiled; sizes in elements; `word`: the type in PTX.

    A stage is `depth` elements of K deep. `consumers` have `slabs` of 64 rows each. `programs`
    share a tile, whose columns they add up in pieces of `piece`. A consumer has `buffers` for them.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    consumers: int
    slabs: int
    programs: int
    piece: int
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
def most_pieces(columns, programs, piece):
    """Pieces of the program that has most."""
    return -(-columns // (piece * programs))


@gluon.constexpr_function
def slot_bytes(shape):
    """Of one program's sums of a piece."""
    return 4 * shape.rows * shape.piece


@gluon.constexpr_function
def sums_bytes(rows, columns, programs, piece):
    """Of all slots of a program."""
    return 4 * rows * piece * programs * most_pieces(columns, programs, piece)


@gluon.constexpr_function
def apart_bytes(sums):
    """Of the slots, if they have room of their own behind the stages."""
    return sums if sums <= APART else 0


@gluon.constexpr_function
def stage_bytes(shape):
    lines = line_bytes(shape.rows, shape.columns, shape.b_major)
    return shape.depth // LINE * lines


@gluon.constexpr_function
def bars_at(shape):
    """Where the barriers are: behind the stages and slots."""
    sums = sums_bytes(shape.rows, shape.columns, shape.programs, shape.piece)
    return shape.stages * stage_bytes(shape) + apart_bytes(sums)


@gluon.constexpr_function
def is_apart(shape):
    """Whether slots have room of their own: programs then meet at the beginning, and else once all
    have read their stages."""
    return bars_at(shape) > shape.stages * stage_bytes(shape)


@gluon.jit
def place(M, N, B1, SHAPE: gl.constexpr):
    """Batch indices, first row and first column of this cluster's tile."""
    ROWS: gl.constexpr = SHAPE.rows
    COLUMNS: gl.constexpr = SHAPE.columns
    ORDER: gl.constexpr = SHAPE.order
    GROUP: gl.constexpr = SHAPE.group
    BATCHED: gl.constexpr = SHAPE.batched
    tile = gl.program_id(0) // SHAPE.programs
    return tile_at(tile, M, N, B1, ROWS, COLUMNS, ORDER, GROUP, BATCHED)


@gluon.jit
def part_of(K, SHAPE: gl.constexpr):
    """The first step of this program's part of K, and how many there are: one or more."""
    PROGRAMS: gl.constexpr = SHAPE.programs
    rank = gl.program_id(0) % PROGRAMS
    steps = gl.cdiv(K, SHAPE.depth)
    first = steps * rank // PROGRAMS
    count = steps * (rank + 1) // PROGRAMS - first
    gl.assume(count > 0)  # else ptxas serialises WGMMA for the sake of sums without any
    return first, count


@gluon.jit
def load(inputs, SHAPE: gl.constexpr):
    """The producer: every step of this program's part."""
    M, N, K, B1, a_batch0, a_batch1, b_batch0, b_batch1 = inputs
    STAGES: gl.constexpr = SHAPE.stages
    BYTES: gl.constexpr = stage_bytes(SHAPE)
    LINES: gl.constexpr = SHAPE.depth // LINE
    BATCHED: gl.constexpr = SHAPE.batched
    MAP_A: gl.constexpr = map_of("cluster_split_k_kernel", "a", BATCHED)
    MAP_B: gl.constexpr = map_of("cluster_split_k_kernel", "b", BATCHED)
    PROGRAMS: gl.constexpr = SHAPE.programs
    PIECES: gl.constexpr = SHAPE.columns // SHAPE.piece
    if is_apart(SHAPE):
        meet_cluster()
    ready = shared_memory() + bars_at(SHAPE)
    empty = ready + STAGES * 8
    rank = gl.program_id(0) % PROGRAMS
    own = (PIECES - 1 - rank + PROGRAMS) // PROGRAMS
    expect(empty + STAGES * 8, own * (PROGRAMS * slot_bytes(SHAPE)))
    b0, b1, row, col = place(M, N, B1, SHAPE)
    # A broadcast batch has extent 1.
    a0, a1 = gl.minimum(b0, a_batch0 - 1), gl.minimum(b1, a_batch1 - 1)
    b0, b1 = gl.minimum(b0, b_batch0 - 1), gl.minimum(b1, b_batch1 - 1)
    first, steps = part_of(K, SHAPE)
    gdc_wait()
    for step in range(steps):
        stage = step % STAGES
        wait(empty + stage * 8, (step // STAGES & 1) ^ 1)
        bar = ready + stage * 8
        expect(bar, BYTES)
        to = shared_memory() + stage * BYTES
        for line in gl.static_range(LINES):
            k = (first + step) * SHAPE.depth + line * LINE
            load_lines(
                to, bar, row, k, a0, a1, 0, SHAPE.rows, SHAPE.a_major == "N", 1, MAP_A, BATCHED
            )
            load_lines(
                to + SHAPE.rows * 128, bar, col, k, b0, b1, 0, SHAPE.columns,
                SHAPE.b_major == "T", 1, MAP_B, BATCHED,
            )  # fmt: skip
            to += BYTES // LINES
    if not is_apart(SHAPE):
        meet_cluster()


@gluon.jit
def compute(output, SHAPE: gl.constexpr, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies its slabs, hands their sums out, and stores what it adds up."""
    c_desc, c_ptr, c_memory, M, N, K, B1, stride_c0, stride_c1, stride_cm, stride_cn = output
    STAGES: gl.constexpr = SHAPE.stages
    BYTES: gl.constexpr = stage_bytes(SHAPE)
    LINES: gl.constexpr = SHAPE.depth // LINE
    COLUMNS: gl.constexpr = SHAPE.columns
    SLABS: gl.constexpr = SHAPE.slabs
    UNIT: gl.constexpr = unit(COLUMNS)
    UNITS: gl.constexpr = COLUMNS // UNIT
    PIECE: gl.constexpr = SHAPE.piece
    PIECES: gl.constexpr = COLUMNS // PIECE
    PROGRAMS: gl.constexpr = SHAPE.programs
    BUFFERS: gl.constexpr = SHAPE.buffers
    SLOT: gl.constexpr = slot_bytes(SHAPE)
    TYPE: gl.constexpr = SHAPE.word
    A_MAJOR: gl.constexpr = SHAPE.a_major
    B_MAJOR: gl.constexpr = SHAPE.b_major
    C_MAJOR: gl.constexpr = SHAPE.c_major
    BATCHED: gl.constexpr = SHAPE.batched
    WIDE: gl.constexpr = SHAPE.wide
    if is_apart(SHAPE):
        meet_cluster()
    ring = shared_memory()
    ready = ring + bars_at(SHAPE)
    empty = ready + STAGES * 8
    full = empty + STAGES * 8
    slots = ring
    if is_apart(SHAPE):
        slots += STAGES * BYTES
    first_warp = is_first_warp()
    a_first = matrix(ring + WHICH * SLABS * 8192, 16)
    b_first = matrix(ring + SHAPE.rows * 128, 16 if B_MAJOR == "T" else 8192)
    b0, b1, row, col = place(M, N, B1, SHAPE)
    rank = gl.program_id(0) % PROGRAMS
    _, steps = part_of(K, SHAPE)
    sums = zeros(COLUMNS, SLABS)
    gdc_wait()
    for step in range(steps):
        stage = step % STAGES
        wait(ready + stage * 8, step // STAGES & 1)
        for line in gl.static_range(LINES):
            at = (stage * LINES + line) * (BYTES // LINES // 16)
            sums = add_products(
                sums, a_first + at, b_first + at, step * LINES + line > 0, COLUMNS, SLABS, TYPE,
                A_MAJOR, B_MAJOR,
            )  # fmt: skip
        sums = finish(sums, COLUMNS, SLABS, LINES)
        # This step's WGMMA may still read its stage; that of the step before has finished.
        arrive(empty + (step + STAGES - 1) % STAGES * 8, first_warp & (step > 0))
    sums = finish(sums, COLUMNS, SLABS, 0)
    if not is_apart(SHAPE):
        meet_cluster()
    for i in gl.static_range(SLABS * UNITS):
        slab = (WHICH * SLABS + i // UNITS) * (SLOT // (SHAPE.rows // 64))
        hand_out(
            sums[i], slots + rank * SLOT + slab, full, i % UNITS * (UNIT // PIECE), PIECE, PROGRAMS,
            PROGRAMS * SLOT,
        )  # fmt: skip
    wait(full, 0, True)
    for nth in gl.static_range((PIECES + PROGRAMS - 1) // PROGRAMS):
        piece = nth * PROGRAMS + rank
        if PIECES % PROGRAMS == 0 or piece < PIECES:
            for i in gl.static_range(SLABS):
                slab = WHICH * SLABS + i
                own = add_up(
                    slots + (nth * PROGRAMS * SLOT + slab * (SLOT // (SHAPE.rows // 64))),
                    PIECE, PROGRAMS, SLOT,
                )  # fmt: skip
                store_piece(
                    c_desc, c_ptr, c_memory, own, b0, b1, row + slab * 64, col + piece * PIECE,
                    M, N, stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE,
                    WHICH, nth * SLABS + i, BUFFERS,
                )  # fmt: skip
    store_wait(0)


@gluon.jit
def idle():
    """Warps that make up a warpgroup: clusters meet with all their threads."""
    meet_cluster()


@gluon.jit(do_not_specialize=["M", "N", "K", "B0", "B1",
                              "stride_c0", "stride_c1", "stride_cm", "stride_cn"])  # fmt: skip
def cluster_split_k_kernel(
    a_desc, b_desc, c_desc, c_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TYPE: gl.constexpr, WARPS: gl.constexpr,
    BUFFERS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    CONSUMERS: gl.constexpr = WARPS // 4
    SHAPE: gl.constexpr = shape_of(
        BLOCK_M, BLOCK_N, BLOCK_K, STAGES, CONSUMERS, slabs_of(BLOCK_M, WARPS), SPLIT_K, EPI_N,
        BUFFERS, ORDER, GROUP_M, A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TYPE,
    )  # fmt: skip
    ring = make_ring(bars_at(SHAPE))
    init_barriers(shared_memory() + bars_at(SHAPE), STAGES, CONSUMERS, 1)
    c_memory = ring
    if by_engine(C_MAJOR):
        c_memory = buffers(CONSUMERS * BUFFERS, 64, EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
    a_batch0, a_batch1, b_batch0, b_batch1 = 1, 1, 1, 1
    if BATCHED:
        a_batch0, a_batch1 = a_desc.shape[0], a_desc.shape[1]
        b_batch0, b_batch1 = b_desc.shape[0], b_desc.shape[1]
    inputs = (M, N, K, B1, a_batch0, a_batch1, b_batch0, b_batch1)
    output = (c_desc, c_ptr, c_memory, M, N, K, B1, stride_c0, stride_c1, stride_cm, stride_cn)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (compute, (output, SHAPE, 0)), (load, (inputs, SHAPE)),
                (idle, ()), (idle, ()),
            ],
            [1, 1, 2], [24, 24, 24],
        )  # fmt: skip
    elif CONSUMERS == 2:
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


#: BLOCK_M, BLOCK_N, BLOCK_K, and the warps of a tile, with as many stages as fit.
TILES = (
    (128, 256, 64, 8),
    (192, 192, 64, 12),
    (128, 192, 64, 8),
    (192, 128, 64, 12),
    (128, 128, 64, 8),
    (128, 96, 64, 8),
    (64, 128, 64, 4),
    (64, 64, 64, 4),
)
#: Stages at most.
DEEPEST = 12
#: As in the kernel; a call from the host costs several microseconds.
_apart_bytes = functools.cache(apart_bytes)
_sums_bytes = functools.cache(sums_bytes)


def _piece(config: Config) -> int:
    """Columns of a piece."""
    return piece_columns(config.BLOCK_N, config.SPLIT_K)


def _sums(config: Config) -> int:
    """Bytes of all slots."""
    return _sums_bytes(config.BLOCK_M, config.BLOCK_N, config.SPLIT_K, _piece(config))


@functools.lru_cache(maxsize=4096)
def _buffers(config: Config, shared: int, b_major: str, element: int, engine: bool) -> int:
    """See `arguments`."""
    piece, warps = _piece(config), config.num_warps
    own = most_pieces(config.BLOCK_N, config.SPLIT_K, piece) * slabs_of(config.BLOCK_M, warps)
    room = shared - ring_bytes(stages_bytes(config, b_major)) - _apart_bytes(_sums(config))
    return output_buffers(room, warps // 4, piece, own, element, engine)


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> tuple[Box, Box, Box | None]:
    """Of A, B and C; None where C is stored by threads."""
    return boxes_of(problem, config, _piece(config))


def why_not(problem: Problem) -> str | None:
    reason = gluon_host.why_not_in_parts(problem) or clusters_why_not()
    if not reason and -(-problem.K // LINE.value) < 2:
        return f"K is {problem.K}; a cluster shares two steps of {LINE.value} or more"
    return reason


def suits(problem: Problem) -> bool:
    """Whether the clusters of some tile find room at once."""
    return problem.device.capability[0] == 9 and bool(_at_once(problem))


def configs(problem):
    return _at_once(problem) or (
        _fitting(*TILES[0], 2, problem.device.shared, *ring_kind(problem)),
    )


@kept
def _at_once(problem: Problem) -> tuple[Config, ...]:
    M, N, K, batch, sms = problem.M, problem.N, problem.K, problem.batch, problem.device.sms
    kind = problem.device.shared, *ring_kind(problem)
    found = []
    for rows, columns, depth, warps in _tiles(N):
        tiles = -(-M // rows) * -(-N // columns) * batch
        if 2 * tiles <= sms:
            for split in splits(tiles, -(-K // depth), sms):
                found.append(_fitting(rows, columns, depth, warps, split, *kind))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _tiles(columns: int) -> tuple[tuple[int, int, int, int], ...]:
    """With some for at most 64 columns."""
    if columns > 64:
        return TILES
    sizes = sorted({8, 16, 32, -(-columns // 8) * 8})
    sizes = [n for n in sizes if n < 2 * columns and n != 64]
    return TILES + tuple((m, n, 128, m // 16) for m in (64, 128) for n in sizes)


@functools.lru_cache(maxsize=4096)
def splits(tiles: int, steps: int, sms: int) -> tuple[int, ...]:
    """Numbers of programs for a tile: the most that one round of all SMs has room for, and half
    as many; 4 steps or more each."""
    if steps < 8:
        return ()
    most = max((n for n in range(2, MOST + 1) if tiles <= clusters_at_once(n, sms)), default=0)
    return tuple(n for n in sorted({most, most // 2}) if 2 <= n <= steps // 4)


@functools.lru_cache
def _fitting(rows, columns, depth, warps, split, shared, *kind) -> Config:
    able = (config_of(rows, columns, depth, warps, n, split) for n in range(DEEPEST, 1, -1))
    return next(config for config in able if _buffers(config, shared, *kind))


def config_why_not(problem: Problem, config: Config) -> str | None:
    warps, split = config.num_warps, config.SPLIT_K
    if warps not in (4, 8, 12):
        return f"num_warps is {warps}; 4, 8 or 12 are possible"
    if reason := tile_why_not(config, 8):
        return reason
    if config.BLOCK_K % 64 or not 64 <= config.BLOCK_K <= 256:
        return f"BLOCK_K is {config.BLOCK_K}; multiples of 64 up to 256 are possible"
    if not 2 <= split <= MOST:
        return f"SPLIT_K is {split}; clusters of 2 to {MOST} programs are possible"
    if reason := parts_why_not(problem, config):
        return reason
    if reason := ring_why_not(problem, config, _buffers, warps // 4 * _piece(config)):
        return reason
    if _sums(config) > max(stages_bytes(config, major_of(problem.b)), APART.value):
        return "the sums don't fit where the stages lie; take more stages"
    return None


def grid(problem, config):
    """Clusters."""
    return config.tiles(problem)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_split_k_kernel,
    arguments=arguments(_boxes, _buffers, lambda _, config: {"EPI_N": _piece(config)}),
    grid=grid, why_not=why_not, suits=suits, configs=configs, interpreted=None,
    config_why_not=config_why_not, odd_tiles=True, in_order=False,
    clusters=lambda config: config.SPLIT_K,
)  # fmt: skip
