"""What the rungs share that cut K into equal parts: units of work, and the consumer.

A unit is a tile and a part of K. The programs that have the parts of a tile deposit their sums in
device memory and add them up in their order.
"""

import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from ._gluon import finish, multiply, slab_rows, tile_at
from ._gluon_host import partial_sums, piece_columns, slabs
from ._gluon_store import (
    OWNERS,
    add_parts,
    arrive_last,
    arrive_owner,
    deposit,
    store_piece,
    store_tile,
    store_wait,
)

#: Parts of K at most.
MOST = 128


@gluon.constexpr_function
def shares(pieces, parts):
    """Into which the sum of a tile of so many pieces is cut."""
    return min(pieces, parts, OWNERS)


@gluon.jit
def unit_at(unit, tiles, K, BLOCK_K: gl.constexpr, SPLIT_K: gl.constexpr):
    """Tile, part of K, first step and number of steps of a unit of work: all tiles' first parts
    come first."""
    steps = gl.cdiv(K, BLOCK_K)
    part = unit // tiles
    first = steps * part // SPLIT_K
    return unit % tiles, part, first, steps * (part + 1) // SPLIT_K - first


@gluon.jit
def compute(
    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, TOGETHER: gl.constexpr, SLAB: gl.constexpr,
    COPIED: gl.constexpr = False,
):  # fmt: skip
    """A consumer: deposits its sums, then adds up a share of the tile's and stores it.

    The share is all or nothing, for the last to come, unless the parts are `TOGETHER`. `COPIED`:
    by threads, not by the copy engine.
    """
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    ROWS: gl.constexpr = slab_rows(BLOCK_M)
    gdc_wait()
    n = gl.to_tensor(0)
    for unit in range(gl.program_id(0), tiles * SPLIT_K, gl.num_programs(0)):
        tile, part, _, steps = unit_at(unit, tiles, K, BLOCK_K, SPLIT_K)
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        acc0, acc1 = multiply(
            a_ring, b0_ring, b1_ring, bars, n, steps,
            BLOCK_M, BLOCK_N, STAGES, A_MAJOR, B_MAJOR, gl.num_warps(), SLAB, COPIED,
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
            SHARES: gl.constexpr = shares(BLOCK_N // EPI_N, SPLIT_K) if TOGETHER else 1
            if TOGETHER:
                owners = arrive_owner(counters_ptr + slab, part, SPLIT_K, SHARES)
            else:
                owners = arrive_last(counters_ptr + slab, SPLIT_K).to(gl.int32)
            for i in range(BLOCK_N // EPI_N):
                if owners >> i % SHARES & 1:
                    piece = add_parts(sums, i, SPLIT_K, ROWS, BLOCK_N, EPI_N)
                    store_piece(
                        c_desc, c_ptr, c_memory, piece, b0, b1, row, col + i * EPI_N, M, N,
                        stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE, SLAB,
                    )  # fmt: skip
    store_wait(0)


# On the host


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
    most = min(-(-problem.K // config.BLOCK_K) // 4, MOST)
    return _splits(min(config.tiles(problem), 2 * sms), most, sms)


@functools.lru_cache(maxsize=1 << 14)
def _splits(tiles, most, sms):
    filling = {sms * rounds // tiles for rounds in (1, 2)}
    halves = {sms // (fraction * tiles) for fraction in (2, 3, 4)}
    return sorted({1} | {n for n in filling | halves if 1 < n <= most})


def grid(problem, config):
    return min(problem.device.sms, config.tiles(problem) * config.SPLIT_K)


def workspace(problem, config, device):
    if config.SPLIT_K == 1:
        return ()
    tiles = config.tiles(problem)
    floats = tiles * config.SPLIT_K * config.BLOCK_M * config.BLOCK_N
    return partial_sums(floats, tiles * slabs(config), device)
