"""cluster_split_k: the programs of a cluster share one tile's K and exchange their sums.

Adds to       split_k: sums go from shared memory to shared memory, and each program adds up a share
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the layouts of sums and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          1.50x cuBLAS at 128 x 256 x 7168 NT (in 8 parts), 1.47x at 8 x 1280 x 8192 NT (in 5,
              operands swapped). No workspace. Barriers, WGMMA and the exchange are PTX.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.clusters import NEEDS_IN_PARTS
from ..arch.exchange import Exchanging, deepest, fitted, ordered
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.cluster_mainloop import idle, keep_ring, make_cluster_mainloop
from .device.epilogue import make_epilogue
from .device.exchange import Exchange, gap_of
from .device.ptx import cluster_sync, wgmma_wait
from .device.scheduler import SIZES, Scheduler


@gluon.jit
def load(work, loop, sums):
    """The producer: every step of this program's part."""
    if loop.GAP > 0:
        cluster_sync()  # the others' barriers are there
    unit = work.unit_of_rank()
    sums.expect(loop.more(), unit.part)
    gdc_wait()
    loop.load(gl.to_tensor(0), unit)
    if loop.GAP == 0:
        cluster_sync()


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies its slabs, hands their sums out, and stores what it adds up."""
    work, loop, sums, out = args
    GAP: gl.constexpr = loop.GAP
    if GAP > 0:
        cluster_sync()
    full = loop.more()
    loop = loop.consumer(WHICH)
    unit = work.unit_of_rank()
    gdc_wait()
    acc = loop.multiply(gl.to_tensor(0), unit.steps)
    acc = wgmma_wait(acc, 0)
    if GAP == 0:
        cluster_sync()  # all have read their stages, where the sums come to lie
    sums.reduce(acc, out, unit, full, WHICH, loop.SLAB)
    out.tail()


@gluon.jit(do_not_specialize=SIZES)
def cluster_split_k_kernel(
    a_desc, b_desc, c_desc, c_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    SHAPE: gl.constexpr,
):  # fmt: skip
    extra = (bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn)
    strides = (stride_c0, stride_c1, stride_cm, stride_cn)
    gdc_launch_dependents()
    work = Scheduler(M, N, K, B0, B1, SHAPE)
    loop = make_cluster_mainloop(a_desc, b_desc, "cluster_split_k_kernel", SHAPE, 1, gap_of(SHAPE))
    out = make_epilogue(c_desc, c_ptr, M, N, strides, extra, SHAPE)
    sums = Exchange(SHAPE)
    args = (work, loop, sums, out)
    if SHAPE.CONSUMERS == 1:
        gl.warp_specialize(
            [(compute, (args, 0)), (load, args[:3]), (idle, (1,)), (idle, (1,))],
            [1, 1, 2], [24, 24, 24],
        )  # fmt: skip
    elif SHAPE.CONSUMERS == 2:
        gl.warp_specialize(
            [
                (compute, (args, 0)), (compute, (args, 1)),
                (load, args[:3]), (idle, (1,)), (idle, (1,)),
            ],
            [4, 1, 1, 2], [240, 24, 24, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (compute, (args, 0)), (compute, (args, 1)), (compute, (args, 2)),
                (load, args[:3]), (idle, (1,)), (idle, (1,)),
            ],
            [4, 4, 1, 1, 2], [160, 160, 24, 24, 24],
        )  # fmt: skip
    keep_ring(loop.ring)


#: BLOCK_M, BLOCK_N, BLOCK_K, and the warps of a tile, with as many stages as fit.
TILES = (
    (128, 256, 64, 8), (192, 192, 64, 12), (128, 192, 64, 8), (192, 128, 64, 12),
    (128, 128, 64, 8), (128, 96, 64, 8), (64, 128, 64, 4), (64, 64, 64, 4),
)  # fmt: skip


def suits(problem):
    """Whether the clusters of some tile find room at once."""
    return bool(fitted(problem, TILES))


def configs(problem):
    return fitted(problem, TILES) or (deepest(problem, *TILES[0], 2),)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_split_k_kernel, arguments=Exchanging.arguments(),
    grid=lambda problem, config: config.tiles(problem), clusters=lambda config: config.SPLIT_K,
    limits=Limits(
        configs, needs=NEEDS_IN_PARTS, tile=Exchanging, odd_tiles=True, fixed_parts=True,
        in_order=False, ordered=ordered(TILES),
    ),
    policy=Policy(suits=suits), cost=CostHint(0.98, exchanges=True), interpreted=None,
)  # fmt: skip
