"""cluster: two programs share each tile of B, and WGMMA is as wide as the tile.

Adds to       warp_specialized: half of B multicast by each of two programs; tiles of any 16 columns
Mirrors       wgmma_cluster
Compiler does the layouts of sums and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          Multicast, barriers of two programs and WGMMA are PTX: Triton 3.6 has no word for
              the first, and its tensors have powers of two of columns.
"""

import dataclasses
import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..problem import Problem
from ..spec import Arguments, Config, TritonKernel
from . import _gluon_host
from ._gluon import buffers, mbarrier, tile_at
from ._gluon_host import OPTIONS, OPTIONS_OF_THREE, RESERVE, c_major, config_of
from ._gluon_store import by_engine, store_piece, store_wait
from ._host import Box, _sizes, _strides
from ._ptx import (
    add_products,
    ask,
    expect,
    finish,
    init_barriers,
    is_first_warp,
    matrix,
    meet_cluster,
    parameter,
    release,
    shared_memory,
    unit,
    wait,
    zeros,
)

#: Programs that share a tile of B, and elements of K in a stage.
CLUSTER = gl.constexpr(2)
DEPTH = gl.constexpr(64)


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the roles know when they are compiled; sizes in elements; `word`: the type in PTX."""

    rows: int
    columns: int
    stages: int
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
def b_lines(columns, major):
    """Lines of 128 bytes of a tile of B: its columns, or 64 for each block of 64 columns."""
    return columns if major == "T" else -(-columns // 64) * 64


@gluon.constexpr_function
def stage_bytes(shape):
    """Of a stage: a tile of A, then one of B."""
    return 128 * (shape.rows + b_lines(shape.columns, shape.b_major))


@gluon.constexpr_function
def box_columns(columns):
    """Of B stored by columns, in one box: a power of two that divides half a tile's."""
    return (columns // 2) & -(columns // 2)


@gluon.constexpr_function
def map_of(operand, batched):
    """The tensor map of A or B as a parameter; sizes and strides of A stand between the two."""
    return parameter("cluster_kernel", 0 if operand == "a" else 1 + 2 * (4 if batched else 2))


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
    MAP_A: gl.constexpr = map_of("a", BATCHED)
    MAP_B: gl.constexpr = map_of("b", BATCHED)
    BOX: gl.constexpr = box_columns(SHAPE.columns)
    meet_cluster()  # the other's barriers are there
    rank = gl.program_id(0) % CLUSTER
    steps = gl.cdiv(K, DEPTH)
    ring = shared_memory()
    gdc_wait()
    n = gl.to_tensor(0)
    for tile in range(first_tile(), count_tiles(M, N, B0, B1, SHAPE), gl.num_programs(0) // CLUSTER):
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
            k = step * DEPTH
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
def compute(output, SHAPE: gl.constexpr, SLAB: gl.constexpr):
    """A consumer: multiplies and stores 64 rows of tile after tile."""
    c_desc, c_ptr, c_memory, M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn = output
    BYTES: gl.constexpr = stage_bytes(SHAPE)
    COLUMNS: gl.constexpr = SHAPE.columns
    STAGES: gl.constexpr = SHAPE.stages
    TYPE: gl.constexpr = SHAPE.word
    A_MAJOR: gl.constexpr = SHAPE.a_major
    B_MAJOR: gl.constexpr = SHAPE.b_major
    C_MAJOR: gl.constexpr = SHAPE.c_major
    BATCHED: gl.constexpr = SHAPE.batched
    WIDE: gl.constexpr = SHAPE.wide
    meet_cluster()
    steps = gl.cdiv(K, DEPTH)
    ring = shared_memory()
    ready = ring + STAGES * BYTES
    empty = ready + STAGES * 8
    first_warp = is_first_warp()
    a_first = matrix(ring + SLAB * 8192, 16)
    b_first = matrix(ring + SHAPE.rows * 128, 16 if SHAPE.b_major == "T" else 8192)
    gdc_wait()
    n = gl.to_tensor(0)
    for tile in range(first_tile(), count_tiles(M, N, B0, B1, SHAPE), gl.num_programs(0) // CLUSTER):
        b0, b1, row, col = place(tile, M, N, B1, SHAPE)
        sums = zeros(COLUMNS)
        for step in range(steps):
            stage = n % STAGES
            wait(ready + stage * 8, n // STAGES & 1)
            at = stage * (BYTES // 16)
            sums = add_products(
                sums, a_first + at, b_first + at, step > 0, COLUMNS, TYPE, A_MAJOR, B_MAJOR
            )
            sums = finish(sums, COLUMNS, 1)
            # This step's WGMMA may still read its stage; that of the step before has finished.
            release(empty + (n + STAGES - 1) % STAGES * 8, first_warp, step > 0)
            n += 1
        sums = finish(sums, COLUMNS, 0)
        release(empty + (n + STAGES - 1) % STAGES * 8, first_warp, steps > 0)
        for i in gl.static_range(COLUMNS // unit(COLUMNS)):
            store_piece(
                c_desc, c_ptr, c_memory, sums[i], b0, b1, row + SLAB * 64, col + i * unit(COLUMNS),
                M, N, stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE, SLAB,
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
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TYPE: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    SHAPE: gl.constexpr = shape_of(
        BLOCK_M, BLOCK_N, STAGES, ORDER, GROUP_M, A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TYPE
    )
    SLABS: gl.constexpr = BLOCK_M // 64
    # Stages, then their barriers: the largest allocation, which therefore comes first. It lives
    # from here to the end because Gluon touches it here and there.
    RING: gl.constexpr = STAGES * stage_bytes(SHAPE)
    ring = gl.allocate_shared_memory(
        gl.int64, [RING // 8 + 2 * STAGES + 1, 1], mbarrier.MBarrierLayout()
    )
    mbarrier.init(ring.index(RING // 8 + 2 * STAGES), count=1)
    init_barriers(shared_memory() + RING, STAGES, CLUSTER * SLABS)
    c_memory = ring
    if by_engine(C_MAJOR):
        c_memory = buffers(SLABS, 64, unit(BLOCK_N), C_MAJOR, c_ptr.dtype.element_ty)
    a_batch0, a_batch1, b_batch0, b_batch1 = 1, 1, 1, 1
    if BATCHED:
        a_batch0, a_batch1 = a_desc.shape[0], a_desc.shape[1]
        b_batch0, b_batch1 = b_desc.shape[0], b_desc.shape[1]
    inputs = (M, N, K, B0, B1, a_batch0, a_batch1, b_batch0, b_batch1)
    output = (c_desc, c_ptr, c_memory, M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn)
    if SLABS == 1:
        gl.warp_specialize(
            [
                (compute, (output, SHAPE, 0)),
                (load, (inputs, SHAPE)), (idle, ()), (idle, ()),
            ],
            [1, 1, 2], [24, 24, 24],
        )  # fmt: skip
    elif SLABS == 2:
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
    mbarrier.invalidate(ring.index(RING // 8 + 2 * STAGES))


#: BLOCK_M, BLOCK_N; the one for large problems first. As many stages as fit, up to 8.
TILES = (
    (128, 256),
    (128, 224),
    (128, 192),
    (128, 176),
    (128, 160),
    (128, 144),
    (128, 128),
    (128, 112),
    (128, 96),
    (192, 192),
    (192, 160),
    (192, 128),
    (192, 96),
)


def _shared(problem: Problem, config: Config) -> int:
    """Bytes of shared memory."""
    lines = b_lines(config.BLOCK_N, _b_major(problem))
    output = config.BLOCK_M * unit(config.BLOCK_N) * problem.c.dtype.itemsize
    if not by_engine(c_major(problem)):
        output += output // 8  # Triton pads what it exchanges between threads
    return config.num_stages * 128 * (config.BLOCK_M + lines) + output + RESERVE


def _b_major(problem: Problem) -> str:
    return _boxes(problem, config_of(64, 64, 64, 4, 2))[1].major


@functools.lru_cache(maxsize=4096)
def _boxes(problem: Problem, config: Config) -> tuple[Box, Box, Box | None]:
    """Of A, B and C; None where C is stored by threads."""
    b = Box.of(problem, problem.b, 32, 64)
    if b.major == "T":
        b = Box.of(problem, problem.b, 64, box_columns(config.BLOCK_N))
    columns = unit(config.BLOCK_N)
    c = None
    if c_major(problem) == "N":
        c = Box.of(problem, problem.c, 64, columns)
    elif c_major(problem) == "T":
        c = Box.of(problem.transposed(), problem.c.transposed(), columns, 64)
    return Box.of(problem, problem.a, 64, 64), b, c


def configs(problem):
    found = []
    for rows, columns in TILES:
        for stages in range(8, 2, -1):
            config = config_of(rows, columns, 64, 4, stages)
            if _shared(problem, config) <= problem.device.shared:
                found.append(config)
                break
    return tuple(found)


def config_why_not(problem: Problem, config: Config) -> str | None:
    if config.BLOCK_M not in (64, 128, 192):
        return f"BLOCK_M is {config.BLOCK_M}; 64, 128 and 192 are possible"
    most = 256 if config.BLOCK_M < 192 else 192
    if config.BLOCK_N % 16 or config.BLOCK_N > most:
        return f"BLOCK_N is {config.BLOCK_N}; multiples of 16 up to {most} are possible"
    if (config.BLOCK_K, config.num_warps) != (64, 4):
        return (
            f"BLOCK_K is {config.BLOCK_K} and num_warps {config.num_warps}; 64 and 4 are possible"
        )
    if config.num_stages < 2:
        return f"num_stages is {config.num_stages}; a ring needs 2 or more"
    if config.SPLIT_K != 1:
        return f"SPLIT_K is {config.SPLIT_K}; this rung doesn't split K"
    if _shared(problem, config) > problem.device.shared:
        return "stages and output together don't fit into shared memory; take fewer stages"
    return None


def grid(problem, config):
    """Clusters."""
    rows = -(-problem.M // (CLUSTER.value * config.BLOCK_M))
    tiles = rows * -(-problem.N // config.BLOCK_N) * problem.batch
    return min(max(1, problem.device.sms // CLUSTER.value), tiles)


def _fixed(problem: Problem, config: Config):
    a, b, _ = _boxes(problem, config)
    values = {
        "A_MAJOR": a.major,
        "B_MAJOR": b.major,
        "C_MAJOR": c_major(problem),
        "TYPE": "bf16" if "bfloat16" in str(problem.a.dtype) else "f16",
    }
    return values | _sizes(problem) | _strides("c", "01mn", problem.c)


def _tensors(problem: Problem, config: Config, a, b, c):
    box_a, box_b, box_c = _boxes(problem, config)
    return {
        "a_desc": box_a.gluon_descriptor(a),
        "b_desc": box_b.gluon_descriptor(b),
        "c_desc": box_c and box_c.gluon_descriptor(c),
        "c_ptr": c,
    }


def _options(problem: Problem, config: Config):
    return OPTIONS if config.BLOCK_M < 192 else OPTIONS_OF_THREE


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_kernel,
    arguments=Arguments(_fixed, _tensors, options=_options),
    grid=grid, why_not=_gluon_host.why_not, configs=configs, interpreted=None,
    config_why_not=config_why_not, cluster=CLUSTER.value,
)  # fmt: skip
