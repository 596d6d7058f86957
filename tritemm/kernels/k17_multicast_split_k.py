"""multicast_split_k: clusters that share loads; several of them share one tile's K.

Adds to       cluster_pingpong: split-K, for few tiles
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the layouts of accumulator and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands, or 8-bit ones in NT; lines 16-byte aligned; Gluon
Note          For few tiles with a long K. With 4 warps, consumers take turns, a tile each.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.clusters import NEEDS_IN_PARTS, Split, few_waves, fitted_in_parts, shared_parts
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.cluster_mainloop import load_in_cluster, make_cluster_mainloop, run_in_cluster
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.ptx import barrier_arrive, barrier_wait, cluster_sync
from .device.scales import ScaleStrides
from .device.scheduler import SIZES, Scheduler
from .device.split_k import SplitK


@gluon.jit
def compute_cooperative(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies its slabs of each unit, adds a share of the partial sums."""
    work, loop, workspace, out = args
    cluster_sync()
    loop = loop.consumer(WHICH)
    gdc_wait()
    n = gl.to_tensor(0)
    for i in range(work.first(), work.units(), work.stride()):
        unit = work.unit(i)
        acc = loop.multiply(n, unit.steps)
        acc, n = loop.multiply_tail(acc, n, unit.steps)
        workspace.reduce(acc, out, unit, place_of(work, loop, unit), WHICH, loop.SLAB)
    out.tail()
    cluster_sync()


@gluon.jit
def compute_pingpong(args, WHICH: gl.constexpr):
    """Consumer `WHICH` of two: the same of every other unit, in turns with the other."""
    work, loop, workspace, out = args
    cluster_sync()
    turns = loop.more()
    loop = loop.consumer(WHICH)
    gdc_wait()
    n = gl.to_tensor(0)
    first, stride = work.first(), work.stride()
    if WHICH == 1:
        n += work.steps(first)
    turn = gl.to_tensor(1 - WHICH)  # consumer 0's first turn is free
    for i in range(first + WHICH * stride, work.units(), 2 * stride):
        unit = work.unit(i)
        barrier_wait(turns + WHICH * 8, turn)
        turn ^= 1
        acc = loop.multiply(n, unit.steps)
        barrier_arrive(turns + (1 - WHICH) * 8, loop.first_warp)
        acc, n = loop.multiply_tail(acc, n, unit.steps)
        n += work.steps(i + stride)  # the other's
        workspace.reduce(acc, out, unit, place_of(work, loop, unit), WHICH, loop.SLAB)
    out.tail()
    cluster_sync()


@gluon.jit
def place_of(work, loop, unit):
    """The place of a consumer's slabs among those of all tiles."""
    READERS: gl.constexpr = work.SHAPE.WARPS // 4
    tile = unit.tile * work.SHAPE.CLUSTER + work.rank()
    return tile * READERS + loop.SLAB // loop.SLABS


@gluon.jit(do_not_specialize=SIZES)
def multicast_split_k_kernel(
    a_desc, b_desc, c_desc, c_ptr, partials_ptr, counters_ptr,
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
    gdc_launch_dependents()
    work = Scheduler(M, N, K, B0, B1, SHAPE)
    KERNEL_NAME: gl.constexpr = multicast_split_k_kernel.__name__
    loop = make_cluster_mainloop(a_desc, b_desc, KERNEL_NAME, SHAPE, 2)
    out = make_epilogue(c_desc, c_ptr, M, N, c_strides, epilogue, SHAPE)
    workspace = SplitK(partials_ptr, counters_ptr, SHAPE)
    args = (work, loop, workspace, out)
    if SHAPE.WARPS == 4:
        run_in_cluster(compute_pingpong, load_in_cluster, args)
    else:
        run_in_cluster(compute_cooperative, load_in_cluster, args)


#: BLOCK_M, warps, programs of a cluster, least and most BLOCK_N of tiles that fit a problem.
FITTED = (
    (64, 4, 2, 48, 256), (64, 4, 4, 48, 256), (128, 8, 2, 48, 192), (128, 8, 4, 48, 192),
    (128, 4, 2, 96, 192), (192, 12, 2, 64, 192), (192, 12, 4, 64, 192), (256, 8, 2, 64, 192),
)  # fmt: skip


def suits(problem):
    """Whether all parts of some tile's K fit at once."""
    return bool(fitted_in_parts(problem, FITTED))


def configs(problem):
    return fitted_in_parts(problem, FITTED) or Split.for_any(problem)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=multicast_split_k_kernel, interpreted=None,
    arguments=Split.arguments(Split.workspace), grid=Split.grid, clusters=Split.programs,
    limits=Limits(
        configs, needs=NEEDS_IN_PARTS, tile=Split, odd_tiles=True, fixed_parts=True,
        in_order=False, ordered=shared_parts(FITTED), sums=("whole",),
    ),
    policy=Policy(suits=suits, swap=few_waves),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.75),
)  # fmt: skip
