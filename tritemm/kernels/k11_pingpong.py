"""pingpong: two consumers with a tile each; one multiplies while the other stores.

Adds to       warp_specialized: a second consumer, which takes every other tile of the program
Mirrors       nothing; the two consumers of wgmma_warp_specialized share a tile
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          Gains where epilogues are a large part: 1.12x cuBLAS at 8192 x 8192 x 512 NT,
              1.06x at 25216 x 3072 x 1024 NT.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..spec import TritonKernel
from .common.epilogue import by_engine, store_tile, store_wait
from .common.gluon_host import arguments, config_why_not, configs_of, why_not
from .common.mainloop import (
    buffers,
    fill_stages,
    finish,
    make_barriers,
    make_ring,
    mbarrier,
    multiply,
    tile_at,
)


@gluon.jit
def load(
    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, BATCHED: gl.constexpr,
):  # fmt: skip
    """The producer: every step of every tile of this program."""
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    gdc_wait()
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        fill_stages(
            a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, n, b0, b1, row, col, 0, steps,
            BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_MAJOR, B_MAJOR, BATCHED,
        )  # fmt: skip
        n += steps


@gluon.jit
def compute(
    c_desc, c_ptr, c_memory, a_ring, b0_ring, b1_ring, bars, turns, M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Consumer WHICH of two: multiplies and stores every other tile, in turns with the other."""
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    first = gl.program_id(0) + WHICH * gl.num_programs(0)
    gdc_wait()
    n = gl.to_tensor(0) + WHICH * steps
    turn = gl.to_tensor(1 - WHICH)  # consumer 0's first turn is free
    for tile in range(first, tiles, 2 * gl.num_programs(0)):
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        # Not before the other has asked for all its stages: a barrier tells even from odd rounds,
        # and no more.
        mbarrier.wait(turns.index(WHICH), turn)
        turn ^= 1
        acc0, acc1 = multiply(
            a_ring, b0_ring, b1_ring, bars, n, steps,
            BLOCK_M, BLOCK_N, STAGES, A_MAJOR, B_MAJOR, gl.num_warps(),
        )  # fmt: skip
        mbarrier.arrive(turns.index(1 - WHICH))
        acc0, acc1 = finish(acc0, acc1, bars, n, steps, BLOCK_N, STAGES)
        n += 2 * steps
        store_tile(
            c_desc, c_ptr, c_memory, acc0, acc1, b0, b1, row, col, M, N,
            stride_c0, stride_c1, stride_cm, stride_cn, BLOCK_N, EPI_N, C_MAJOR, BATCHED, WIDE,
        )  # fmt: skip
    store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "B0", "B1",
                              "stride_c0", "stride_c1", "stride_cm", "stride_cn"])  # fmt: skip
def pingpong_kernel(
    a_desc, b_desc, b1_desc, c_desc, c_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    a_ring, b0_ring, b1_ring, bars = make_ring(
        a_desc, b_desc, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, A_MAJOR, B_MAJOR
    )
    turns = make_barriers(2)
    c0_memory = bars
    c1_memory = bars
    if by_engine(C_MAJOR):
        c0_memory = buffers(1, BLOCK_M, EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
        c1_memory = buffers(1, BLOCK_M, EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
    gl.warp_specialize(
        [
            (compute, (
                c_desc, c_ptr, c0_memory, a_ring, b0_ring, b1_ring, bars, turns,
                M, N, K, B0, B1,
                stride_c0, stride_c1, stride_cm, stride_cn,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N,
                A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, 0,
            )),
            (compute, (
                c_desc, c_ptr, c1_memory, a_ring, b0_ring, b1_ring, bars, turns,
                M, N, K, B0, B1,
                stride_c0, stride_c1, stride_cm, stride_cn,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N,
                A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, 1,
            )),
            (load, (
                a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, A_MAJOR, B_MAJOR, BATCHED,
            )),
        ],
        [4, 1], [240, 24],
    )  # fmt: skip


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; the one for large problems first.
TILES = (
    (128, 128, 64, 4, 5),
    (128, 192, 64, 4, 4),
    (128, 96, 64, 4, 6),
    (128, 64, 64, 4, 7),
    (64, 256, 64, 4, 4),
    (64, 192, 64, 4, 5),
    (64, 128, 64, 4, 7),
)


def configs(problem):
    return configs_of(problem, TILES, consumers=2)


def grid(problem, config):
    return min(problem.device.sms, config.tiles(problem))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=pingpong_kernel, arguments=arguments(consumers=2),
    grid=grid, why_not=why_not, configs=configs, interpreted=None,
    config_why_not=config_why_not(2),
)  # fmt: skip
