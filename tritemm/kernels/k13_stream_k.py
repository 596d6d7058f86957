"""stream_k: the tiles that would not fill a wave are cut into equal shares of K-steps.

Adds to       split_k: shares that end anywhere, so that every SM has the same work to the step
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          Gains where a round of large tiles leaves a small rest; where L2 can't hold the
              operands, programs in the middle of K share no reads.
"""

import functools

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..spec import TritonKernel
from .common.epilogue import (
    arrive_last,
    by_engine,
    deposit,
    piece_offsets,
    store_piece,
    store_tile,
    store_wait,
)
from .common.gluon_host import (
    arguments,
    config_of,
    config_why_not,
    configs_of,
    partial_sums,
    why_not_in_parts,
)
from .common.mainloop import buffers, fill_stages, finish, make_ring, multiply, tile_at


@gluon.jit
def share_of(program, tiles, steps, SPLIT_K: gl.constexpr):
    """The steps [begin, end) of one program, of all steps of the tiles that are shared out."""
    sharers = gl.minimum(gl.num_programs(0), tiles * SPLIT_K)
    share = tiles * steps // gl.maximum(sharers, 1)
    more = tiles * steps - share * sharers
    begin = gl.where(program < sharers, program * share + gl.minimum(program, more), 0)
    return begin, gl.where(program < sharers, begin + share + (program < more).to(gl.int32), 0)


@gluon.jit
def owner_of(step, tiles, steps, SPLIT_K: gl.constexpr):
    """The program in whose share a step lies."""
    sharers = gl.minimum(gl.num_programs(0), tiles * SPLIT_K)
    share = tiles * steps // sharers
    more = tiles * steps - share * sharers
    large = more * (share + 1)
    return gl.where(step < large, step // (share + 1), more + (step - large) // share)


@gluon.jit
def plan(tiles, steps, SPLIT_K: gl.constexpr):
    """Whole tiles of this program, its share of the rest, and how many pieces both are."""
    whole = tiles // gl.num_programs(0)
    begin, end = share_of(gl.program_id(0), tiles - whole * gl.num_programs(0), steps, SPLIT_K)
    pieces = gl.where(end > begin, (end - 1) // steps - begin // steps + 1, 0)
    return whole, begin, end, whole + pieces


@gluon.jit
def piece_at(i, whole, begin, end, steps):
    """Tile, first step and number of steps of this program's piece `i`."""
    tile = begin // steps + i - whole
    first = gl.maximum(begin - tile * steps, 0)
    count = gl.minimum(end - tile * steps, steps) - first
    shared = i >= whole
    tile = gl.where(shared, whole * gl.num_programs(0) + tile,
                    gl.program_id(0) + i * gl.num_programs(0))  # fmt: skip
    return tile, gl.where(shared, first, 0), gl.where(shared, count, steps)


@gluon.jit
def slot_of(program, tile, tiles, steps, SPLIT_K: gl.constexpr):
    """Where a program's sums of a shared tile stand: it begins in one tile and ends in another."""
    begin, _ = share_of(program, tiles, steps, SPLIT_K)
    return gl.cast(2 * program + gl.where(begin < tile * steps, 1, 0), gl.int64)


@gluon.jit
def load(
    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, BATCHED: gl.constexpr,
):  # fmt: skip
    """The producer: every step of every piece of this program."""
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    gdc_wait()
    n = gl.to_tensor(0)
    whole, begin, end, pieces = plan(tiles, steps, SPLIT_K)
    for i in range(pieces):
        tile, first, count = piece_at(i, whole, begin, end, steps)
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        fill_stages(
            a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, n,
            b0, b1, row, col, first * BLOCK_K, count,
            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_MAJOR, B_MAJOR, BATCHED,
        )  # fmt: skip
        n += count


@gluon.jit
def compute(
    c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    """The consumer: stores whole tiles; of a shared one, the last program adds all sums."""
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    gdc_wait()
    n = gl.to_tensor(0)
    whole, begin, end, pieces = plan(tiles, steps, SPLIT_K)
    for i in range(pieces):
        tile, _, count = piece_at(i, whole, begin, end, steps)
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        acc0, acc1 = multiply(
            a_ring, b0_ring, b1_ring, bars, n, count,
            BLOCK_M, BLOCK_N, STAGES, A_MAJOR, B_MAJOR, gl.num_warps(),
        )  # fmt: skip
        acc0, acc1 = finish(acc0, acc1, bars, n, count, BLOCK_N, STAGES)
        n += count
        if count == steps:
            store_tile(
                c_desc, c_ptr, c_memory, acc0, acc1, b0, b1, row, col, M, N,
                stride_c0, stride_c1, stride_cm, stride_cn, BLOCK_N, EPI_N, C_MAJOR, BATCHED, WIDE,
            )  # fmt: skip
        else:
            SIZE: gl.constexpr = BLOCK_M * BLOCK_N
            here = tile - whole * gl.num_programs(0)
            rest = tiles - whole * gl.num_programs(0)
            mine = slot_of(gl.program_id(0), here, rest, steps, SPLIT_K)
            deposit(sums_ptr + mine * SIZE, acc0, acc1, BLOCK_N, EPI_N)
            start = owner_of(here * steps, rest, steps, SPLIT_K)
            stop = owner_of((here + 1) * steps - 1, rest, steps, SPLIT_K) + 1
            if arrive_last(counters_ptr + here, stop - start):
                for part in gl.static_range(BLOCK_N // EPI_N):
                    where = piece_offsets(part, BLOCK_M, EPI_N)
                    sums = sums_ptr + slot_of(start, here, rest, steps, SPLIT_K) * SIZE
                    piece = gl.load(sums + where, cache_modifier=".cg")
                    # Whoever comes after the first began inside the tile: its first slot. Four at
                    # a time, so that their loads are in flight together.
                    for other in range(start + 1, stop, 4):
                        for j in gl.static_range(4):
                            sums = sums_ptr + gl.cast(2 * (other + j), gl.int64) * SIZE
                            inside = (where >= 0) & (other + j < stop)
                            piece += gl.load(
                                sums + where, mask=inside, other=0.0, cache_modifier=".cg"
                            )
                    store_piece(
                        c_desc, c_ptr, c_memory, piece, b0, b1, row, col + part * EPI_N, M, N,
                        stride_c0, stride_c1, stride_cm, stride_cn, C_MAJOR, BATCHED, WIDE,
                    )  # fmt: skip
    store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "B0", "B1",
                              "stride_c0", "stride_c1", "stride_cm", "stride_cn"])  # fmt: skip
def stream_k_kernel(
    a_desc, b_desc, b1_desc, c_desc, c_ptr, sums_ptr, counters_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr, SPLIT_K: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    a_ring, b0_ring, b1_ring, bars = make_ring(
        a_desc, b_desc, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_MAJOR, B_MAJOR
    )
    c_memory = bars
    if by_engine(C_MAJOR):
        c_memory = buffers(1, BLOCK_M, EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
    gl.warp_specialize(
        [
            (compute, (
                c_desc, c_ptr, sums_ptr, counters_ptr, c_memory, a_ring, b0_ring, b1_ring, bars,
                M, N, K, B0, B1, stride_c0, stride_c1, stride_cm, stride_cn,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N, SPLIT_K,
                A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE,
            )),
            (load, (
                a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, SPLIT_K,
                A_MAJOR, B_MAJOR, BATCHED,
            )),
        ],
        [1], [24],
    )  # fmt: skip


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages: large ones, of which a wave is long. The one for large
#: problems first.
TILES = (
    (128, 256, 64, 8, 3),
    (128, 192, 64, 8, 4),
    (128, 128, 64, 8, 5),
)


def configs(problem):
    return _shared(configs_of(problem, TILES, consumers=1))


@functools.lru_cache
def _shared(found):
    """Each with at most 4 or 8 programs that share one tile."""
    return tuple(
        config_of(c.BLOCK_M, c.BLOCK_N, c.BLOCK_K, c.num_warps, c.num_stages, most)
        for c in found
        for most in (4, 8)
    )


def suits(problem):
    """Whether there are tiles for more than a round, long enough for their rest to be shared."""
    tiles = problem.M * problem.N * problem.batch // (128 * 128)
    return problem.K >= 4096 and tiles >= problem.device.sms


def grid(problem, config):
    steps = -(-problem.K // config.BLOCK_K)
    return min(problem.device.sms, config.tiles(problem) * steps)


def workspace(problem, config):
    programs = grid(problem, config)
    return partial_sums(2 * programs * config.BLOCK_M * config.BLOCK_N, programs)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=stream_k_kernel,
    arguments=arguments(
        consumers=1, limit=lambda problem, config: 64, workspace=workspace
    ),
    grid=grid, suits=suits, why_not=why_not_in_parts, configs=configs, interpreted=None,
    config_why_not=config_why_not(1),
    in_order=False,
)  # fmt: skip
