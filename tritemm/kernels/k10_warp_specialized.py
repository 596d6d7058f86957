"""warp_specialized: warps with roles, one that loads and four, eight or twelve that multiply.

Adds to       persistent: a producer warp runs ahead by itself, so loads never wait for an epilogue
Mirrors       wgmma_warp_specialized
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands, or tf32 stored along K, with 16-byte aligned lines; Gluon
Note          1.03x cuBLAS at 8192^3 NN under sustained power, a tie at 4096^3 and 2048^3. Three
              consumers share a tile of 192 rows, 64 each: 2056^3 from 0.61x to 0.88x.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..spec import TritonKernel
from .common.epilogue import by_engine, store_tile, store_wait
from .common.gluon_host import arguments, config_why_not, configs_of, why_not_with_tf32
from .common.mainloop import buffers, fill_stages, finish, make_ring, multiply, slab_rows, tile_at


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
    c_desc, c_ptr, c_memory, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, EPI_N: gl.constexpr,
    A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr, C_MAJOR: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, SLAB: gl.constexpr,
):  # fmt: skip
    """A consumer: multiplies and stores its slab of tile after tile."""
    steps = gl.cdiv(K, BLOCK_K)
    tiles = gl.cdiv(M, BLOCK_M) * gl.cdiv(N, BLOCK_N) * B0 * B1
    gdc_wait()
    n = gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        b0, b1, row, col = tile_at(tile, M, N, B1, BLOCK_M, BLOCK_N, ORDER, GROUP_M, BATCHED)
        acc0, acc1 = multiply(
            a_ring, b0_ring, b1_ring, bars, n, steps,
            BLOCK_M, BLOCK_N, STAGES, A_MAJOR, B_MAJOR, gl.num_warps(), SLAB,
        )  # fmt: skip
        acc0, acc1 = finish(acc0, acc1, bars, n, steps, BLOCK_N, STAGES)
        n += steps
        row += SLAB * slab_rows(BLOCK_M)
        store_tile(
            c_desc, c_ptr, c_memory, acc0, acc1, b0, b1, row, col, M, N,
            stride_c0, stride_c1, stride_cm, stride_cn,
            BLOCK_N, EPI_N, C_MAJOR, BATCHED, WIDE, SLAB,
        )  # fmt: skip
    store_wait(0)


@gluon.jit(do_not_specialize=["M", "N", "K", "B0", "B1",
                              "stride_c0", "stride_c1", "stride_cm", "stride_cn"])  # fmt: skip
def warp_specialized_kernel(
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
    SLABS: gl.constexpr = BLOCK_M // slab_rows(BLOCK_M)
    c_memory = bars
    if by_engine(C_MAJOR):
        c_memory = buffers(SLABS, slab_rows(BLOCK_M), EPI_N, C_MAJOR, c_ptr.dtype.element_ty)
    if SLABS == 1:
        gl.warp_specialize(
            [
                (compute, (
                    c_desc, c_ptr, c_memory, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, 0,
                )),
                (load, (
                    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, A_MAJOR, B_MAJOR, BATCHED,
                )),
            ],
            [1], [24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (compute, (
                    c_desc, c_ptr, c_memory, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, 0,
                )),
                (compute, (
                    c_desc, c_ptr, c_memory, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, 1,
                )),
                (compute, (
                    c_desc, c_ptr, c_memory, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    stride_c0, stride_c1, stride_cm, stride_cn,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, EPI_N,
                    A_MAJOR, B_MAJOR, C_MAJOR, BATCHED, WIDE, 2,
                )),
                (load, (
                    a_desc, b_desc, b1_desc, a_ring, b0_ring, b1_ring, bars, M, N, K, B0, B1,
                    BLOCK_M, BLOCK_N, BLOCK_K, STAGES, ORDER, GROUP_M, A_MAJOR, B_MAJOR, BATCHED,
                )),
            ],
            [4, 4, 1], [160, 160, 24],
        )  # fmt: skip


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; the one for large problems first.
TILES = (
    (128, 256, 64, 8, 3),
    (256, 192, 64, 8, 3),
    (256, 160, 64, 8, 3),
    (192, 192, 64, 4, 4),
    (192, 128, 64, 4, 5),
    (128, 192, 64, 8, 4),
    (128, 128, 64, 8, 6),
    (128, 64, 64, 4, 8),
    (64, 256, 64, 4, 4),
    (64, 128, 64, 4, 7),
)


def configs(problem):
    return configs_of(problem, TILES, consumers=1)


def grid(problem, config):
    return min(problem.device.sms, config.tiles(problem))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=warp_specialized_kernel, arguments=arguments(consumers=1),
    grid=grid, why_not=why_not_with_tf32, configs=configs, interpreted=None,
    config_why_not=config_why_not(1, three=True),
)  # fmt: skip
