"""cluster_pingpong: two consumers in each program of a cluster take turns, a tile each.

Adds to       cluster: turns as in pingpong: one consumer multiplies while the other stores
Mirrors       nothing; the two consumers of wgmma_cluster share a tile
Compiler does the layouts of accumulator and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands, or 8-bit ones in NT; lines 16-byte aligned; Gluon
Note          Gains where K is short. Multicast, barriers and WGMMA are PTX.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.clusters import NEEDS, Pingpong, offered, usual, worth_swapping
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.cluster_mainloop import load_in_cluster, make_cluster_mainloop, run_in_cluster
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.ptx import barrier_arrive, barrier_wait, cluster_sync
from .device.scales import ScaleStrides
from .device.scheduler import SIZES, Scheduler


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH` of two: multiplies and stores every other tile, in turns with the other."""
    work, loop, out = args
    cluster_sync()
    turns = loop.more()
    loop = loop.consumer(WHICH)
    gdc_wait()
    n = gl.to_tensor(0)
    if WHICH == 1:
        n += work.steps(work.first())
    turn = gl.to_tensor(1 - WHICH)  # consumer 0's first turn is free
    for i in range(work.first() + WHICH * work.stride(), work.units(), 2 * work.stride()):
        unit = work.unit(i)
        # Not before the other has issued all its loads: a barrier tells even from odd rounds,
        # and no more.
        barrier_wait(turns + WHICH * 8, turn)
        turn ^= 1
        acc = loop.multiply(n, unit.steps)
        barrier_arrive(turns + (1 - WHICH) * 8, loop.first_warp)
        acc, n = loop.multiply_tail(acc, n, unit.steps)
        n += work.steps(i + work.stride())  # the other's
        if work.SHAPE.LATE and WHICH == 0:
            gdc_launch_dependents()
        out.store(acc, unit, WHICH, loop.SLAB)
    out.tail()
    cluster_sync()


@gluon.jit(do_not_specialize=SIZES)
def cluster_pingpong_kernel(
    a_desc, b_desc, c_desc, c_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    scale_a_ptr, scale_b_ptr,
    stride_sa1, stride_sal, stride_sak, stride_sb1, stride_sbl, stride_sbk,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    SHAPE: gl.constexpr,
):  # fmt: skip
    c_strides = Strides(stride_c0, stride_c1, stride_cm, stride_cn)
    epilogue = EpilogueArgs(
        bias_ptr, residual_ptr, alpha, beta, Strides(stride_r0, stride_r1, stride_rm, stride_rn),
        scale_a_ptr, scale_b_ptr, ScaleStrides(stride_sa1, stride_sal, stride_sak),
        ScaleStrides(stride_sb1, stride_sbl, stride_sbk),
    )  # fmt: skip
    if not SHAPE.LATE:
        gdc_launch_dependents()
    work = Scheduler(M, N, K, B0, B1, SHAPE)
    KERNEL_NAME: gl.constexpr = cluster_pingpong_kernel.__name__
    loop = make_cluster_mainloop(a_desc, b_desc, KERNEL_NAME, SHAPE, 2)
    out = make_epilogue(c_desc, c_ptr, M, N, c_strides, epilogue, SHAPE)
    run_in_cluster(compute, load_in_cluster, (work, loop, out))


#: BLOCK_M, BLOCK_N, warps; the one for large problems first.
TILES = (
    (128, 192, 4), (128, 176, 4), (128, 160, 4), (128, 144, 4), (64, 192, 4), (64, 128, 4),
)  # fmt: skip
#: BLOCK_M, warps, programs of a cluster, least and most BLOCK_N of tiles that fit a problem.
FITTED = (
    (64, 4, 2, 40, 256), (64, 4, 4, 40, 256), (128, 4, 2, 96, 192),
)  # fmt: skip
#: BLOCK_M, warps, programs of a cluster, of tiles that have all of few columns.
WIDE = ((64, 4, 4), (64, 4, 2))
#: More, where tiles are few and K is whole.
NARROW = ((64, 32, 4), (64, 64, 4), (64, 96, 4))


def configs(problem):
    return offered(problem, TILES, FITTED, WIDE)


def ordered(problem, parts):
    return tuple(dict.fromkeys(configs(problem) + usual(problem, NARROW, (2, 4))))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_pingpong_kernel, interpreted=None,
    arguments=Pingpong.arguments(), grid=Pingpong.grid, clusters=Pingpong.programs,
    limits=Limits(
        configs, needs=NEEDS, tile=Pingpong, odd_tiles=True, ordered=ordered, symmetric=True,
        sums=("whole",),
    ),
    policy=Policy(swap=worth_swapping),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.8, pingpong=True),
)  # fmt: skip
