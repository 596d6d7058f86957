"""split_k: several programs share one tile's K, and add up their sums in order, each a share.

Adds to       warp_specialized: units of work are (tile, part of K), so few tiles fill all SMs
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands, or tf32 stored along K, with 16-byte aligned lines; Gluon
Note          1.24x cuBLAS at 64 x 64 x 131072 NN (K in 33 parts), a tie at 768 x 768 x 65536 TN
              (in 8; 0.93x while the last part added up all). To sum many parts costs 1 to 4 us.
"""

import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..spec import TritonKernel
from .common.epilogue import (
    add_parts,
    by_engine,
    deposit,
    shares,
    store_piece,
    store_tile,
    store_wait,
    take_shares,
)
from .common.gluon_host import (
    MOST_PARTS,
    arguments,
    config_of,
    config_why_not,
    configs_of,
    least_columns,
    partial_sums,
    piece_columns,
    skinny,
    slabs,
    too_long,
    why_not_with_tf32,
)
from .common.mainloop import (
    buffers,
    fill_stages,
    finish,
    make_ring,
    multiply,
    slab_rows,
    tile_at,
    unit_at,
)

#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; the one for large problems first.
TILES = (
    (128, 256, 64, 8, 3),
    (256, 192, 64, 8, 3),
    (192, 192, 64, 4, 4),
    (192, 128, 64, 4, 5),
    (128, 192, 64, 8, 4),
    (128, 128, 64, 8, 5),
    (64, 128, 64, 4, 7),
    (64, 64, 64, 4, 10),
)


@gluon.jit
def load(
    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, BATCHED: gl.constexpr,
):  # fmt: skip
    """The producer: every step of every unit of this program."""
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    gdc_wait()
    n = gl.to_tensor(0)
    for unit in range(gl.program_id(0), tiles * SPLIT_K, gl.num_programs(0)):
        tile, _, first, steps = unit_at(unit, tiles, K, BLOCK_K, SPLIT_K)
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        fill_stages(
            a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, n,
            b0, b1, row, col, first * BLOCK_K, steps,
            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_MAJOR, B_MAJOR, BATCHED,
        )  # fmt: skip
        n += steps


@gluon.jit
def compute(
    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TOGETHER: gl.constexpr, SLAB: gl.constexpr,
):  # fmt: skip
    """A consumer: deposits its sums, then adds up a share of the tile's and stores it."""
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    ROWS: gl.constexpr = slab_rows(BLOCK_M)
    gdc_wait()
    n = gl.to_tensor(0)
    for unit in range(gl.program_id(0), tiles * SPLIT_K, gl.num_programs(0)):
        tile, part, _, steps = unit_at(unit, tiles, K, BLOCK_K, SPLIT_K)
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        acc0, acc1 = multiply(
            a_ring, b0_ring, b1_ring, bars, n, steps,
            BLOCK_M, BLOCK_N, STAGES, A_MAJOR, B_MAJOR, gl.num_warps(), SLAB,
        )  # fmt: skip
        acc0, acc1 = finish(acc0, acc1, bars, n, steps, BLOCK_N, STAGES)
        n += steps
        row += SLAB * ROWS
        if SPLIT_K == 1:
            store_tile(
                c_desc, c_ptr, c_memory, acc0, acc1, b0, b1, row, col, M, N,
                stride_c0, stride_c1, stride_cm, stride_cn, BLOCK_N, EPI_N, C_MAJOR, BATCHED, WIDE,
                SLAB,
            )  # fmt: skip
        else:
            SIZE: gl.constexpr = ROWS * BLOCK_N
            slab = tile * (BLOCK_M // ROWS) + SLAB
            sums = sums_ptr + gl.cast(slab, gl.int64) * (SPLIT_K * SIZE)
            deposit(sums + part * SIZE, acc0, acc1, BLOCK_N, EPI_N)
            PIECES: gl.constexpr = BLOCK_N // EPI_N
            SHARES: gl.constexpr = shares(PIECES, SPLIT_K, TOGETHER)
            mine = take_shares(counters_ptr + slab, part, SPLIT_K, SHARES)
            for i in range(PIECES):
                if mine >> i % SHARES & 1:
                    piece = add_parts(sums, i, SPLIT_K, ROWS, BLOCK_N, EPI_N)
                    store_piece(
                        c_desc, c_ptr, c_memory, piece, b0, b1, row, col + i * EPI_N, M, N,
                        stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE, SLAB,
                    )  # fmt: skip
    store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "B0", "B1",
                              "stride_c0", "stride_c1", "stride_cm", "stride_cn"])  # fmt: skip
def split_k_kernel(
    a_desc, b_desc, b1_desc, c_desc, c_ptr, sums_ptr, counters_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    a_ring, b0_ring, b1_ring, bars = make_ring(
        a_desc, b_desc, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_MAJOR, B_MAJOR
    )
    SLABS: gl.constexpr = BLOCK_M // slab_rows(BLOCK_M)
    c_memory = bars
    if by_engine(C_MAJOR):
        c_memory = buffers(SLABS, slab_rows(BLOCK_M), EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
    if SLABS == 1:
        gl.warp_specialize(
            [
                (compute, (
                    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
                    M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N, SPLIT_K,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TOGETHER, 0,
                )),
                (load, (
                    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, SPLIT_K,
                    A_MAJOR, B_MAJOR, BATCHED,
                )),
            ],
            [1], [24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (compute, (
                    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
                    M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N, SPLIT_K,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TOGETHER, 0,
                )),
                (compute, (
                    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
                    M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N, SPLIT_K,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TOGETHER, 1,
                )),
                (compute, (
                    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
                    M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N, SPLIT_K,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, TOGETHER, 2,
                )),
                (load, (
                    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, SPLIT_K,
                    A_MAJOR, B_MAJOR, BATCHED,
                )),
            ],
            [4, 4, 1], [160, 160, 24],
        )  # fmt: skip


def why_not(problem):
    return too_long(problem) or why_not_with_tf32(problem)


def configs(problem):
    return tuple(
        config_of(c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages, split)
        for c in configs_of(problem, _tiles(problem.N, least_columns(problem)), consumers=1)
        for split in splits(c, problem)
    )


@functools.lru_cache(maxsize=4096)
def _tiles(columns, least):
    return TILES + skinny(columns, least)


def together(problem, config):
    """Whether all parts of a tile find room at once: each then waits for the others."""
    return config.SPLIT_K > 1 and config.tiles(problem) * config.SPLIT_K <= problem.device.sms


def columns_at_once(problem, config):
    """Of the epilogue."""
    return piece_columns(config.BLOCK_N, config.SPLIT_K) if together(problem, config) else 64


def splits(config, problem):
    """Numbers of parts that fill one or two rounds of all SMs, or part of one; 4 steps or more.

    More rounds were the fastest for none of 578 problems that were searched.
    """
    sms = problem.device.sms
    most = min(-(-problem.K // config.BLOCK_K) // 4, MOST_PARTS)
    return _splits(min(config.tiles(problem), 2 * sms), most, sms)


@functools.lru_cache(maxsize=1 << 14)
def _splits(tiles, most, sms):
    filling = {sms * rounds // tiles for rounds in (1, 2)}
    halves = {sms // (fraction * tiles) for fraction in (2, 3, 4)}
    return sorted({1} | {n for n in filling | halves if 1 < n <= most})


def grid(problem, config):
    return min(problem.device.sms, config.tiles(problem) * config.SPLIT_K)


def workspace(problem, config):
    if config.SPLIT_K == 1:
        return None
    tiles = config.tiles(problem)
    floats = tiles * config.SPLIT_K * config.BLOCK_M * config.BLOCK_N
    return partial_sums(floats, tiles * slabs(config))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=split_k_kernel,
    arguments=arguments(
        consumers=1, limit=columns_at_once, workspace=workspace,
        more=lambda problem, config: {"TOGETHER": together(problem, config)},
    ),
    grid=grid, why_not=why_not, configs=configs, interpreted=None,
    config_why_not=config_why_not(1, three=True),
    in_order=False,
)  # fmt: skip
