"""multicast_split_k: clusters that share loads, several of which share one tile's K.

Adds to       cluster_pingpong: K in parts, as split_k has them, where tiles are few
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the layouts of sums and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands with 16-byte aligned rows or columns; Gluon
Note          1008 x 136 x 6592 TT from 0.84x cuBLAS to 1.02x (K in 6 parts). Tiles of 4 warps are
              for consumers in turns, others for consumers that share a tile.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.clusters import NEEDS_IN_PARTS, SplitK, few_waves, fitted_in_parts, shared_parts
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.cluster_mainloop import idle, keep_ring, make_cluster_mainloop
from .device.epilogue import make_epilogue
from .device.parts import Parts
from .device.ptx import barrier_arrive, barrier_wait, cluster_sync
from .device.scheduler import SIZES, Scheduler


@gluon.jit
def load(work, loop):
    """The producer: every step of every tile, its share of the one of A and B that is shared."""
    cluster_sync()  # the others' barriers are there
    gdc_wait()
    n = gl.to_tensor(0)
    for i in range(work.first(), work.units(), work.stride()):
        n = loop.load(n, work.unit(i))
    cluster_sync()  # what others write or arrive at is still there


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: deposits its slabs' sums, then adds up a share of them and stores it."""
    work, loop, parts, out = args
    READERS: gl.constexpr = loop.SHAPE.WARPS // 4
    IN_TURNS: gl.constexpr = READERS == 1
    cluster_sync()
    turns = loop.more()
    loop = loop.consumer(WHICH)
    gdc_wait()
    n = gl.to_tensor(0)
    first, stride = work.first(), work.stride()
    if IN_TURNS:
        if WHICH == 1:
            n += work.steps(first)
        first += WHICH * stride
        stride *= 2
    turn = gl.to_tensor(1 - WHICH)  # consumer 0's first turn is free
    for i in range(first, work.units(), stride):
        unit = work.unit(i)
        if IN_TURNS:
            barrier_wait(turns + WHICH * 8, turn)
            turn ^= 1
        acc = loop.multiply(n, unit.steps)
        if IN_TURNS:
            barrier_arrive(turns + (1 - WHICH) * 8, loop.first_warp)
        acc, n = loop.multiply_tail(acc, n, unit.steps)
        if IN_TURNS:
            n += work.steps(i + work.stride())  # the other's
        place = (unit.tile * work.SHAPE.CLUSTER + work.rank()) * READERS + loop.SLAB // loop.SLABS
        parts.reduce(acc, out, unit, place, WHICH, loop.SLAB)
    out.tail()
    cluster_sync()


@gluon.jit(do_not_specialize=SIZES)
def multicast_split_k_kernel(
    a_desc, b_desc, c_desc, c_ptr, sums_ptr, counters_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    SHAPE: gl.constexpr,
):  # fmt: skip
    extra = (bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn)
    strides = (stride_c0, stride_c1, stride_cm, stride_cn)
    gdc_launch_dependents()
    work = Scheduler(M, N, K, B0, B1, SHAPE)
    loop = make_cluster_mainloop(a_desc, b_desc, "multicast_split_k_kernel", SHAPE, 2)
    out = make_epilogue(c_desc, c_ptr, M, N, strides, extra, SHAPE)
    parts = Parts(sums_ptr, counters_ptr, SHAPE)
    args = (work, loop, parts, out)
    if SHAPE.CONSUMERS == 2:
        gl.warp_specialize(
            [(compute, (args, 0)), (compute, (args, 1)), (load, args[:2]), (idle, ()), (idle, ())],
            [4, 1, 1, 2], [240, 24, 24, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (compute, (args, 0)), (compute, (args, 1)), (compute, (args, 2)),
                (load, args[:2]), (idle, ()), (idle, ()),
            ],
            [4, 4, 1, 1, 2], [160, 160, 24, 24, 24],
        )  # fmt: skip
    keep_ring(loop.ring)


#: BLOCK_M, warps, programs of a cluster, least and most BLOCK_N of tiles that fit a problem.
FITTED = (
    (64, 4, 2, 48, 256), (64, 4, 4, 48, 256), (128, 8, 2, 48, 192), (128, 8, 4, 48, 192),
    (128, 4, 2, 96, 192), (192, 12, 2, 64, 192), (192, 12, 4, 64, 192), (256, 8, 2, 64, 192),
)  # fmt: skip


def suits(problem):
    """Whether all parts of some tile's K find room at once."""
    return bool(fitted_in_parts(problem, FITTED))


def configs(problem):
    return fitted_in_parts(problem, FITTED) or SplitK.for_any


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=multicast_split_k_kernel, interpreted=None,
    arguments=SplitK.arguments(SplitK.workspace), grid=SplitK.grid, clusters=SplitK.programs,
    limits=Limits(
        configs, needs=NEEDS_IN_PARTS, tile=SplitK, odd_tiles=True, fixed_parts=True,
        in_order=False, ordered=shared_parts(FITTED),
    ),
    policy=Policy(suits=suits, swap=few_waves),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.75),
)  # fmt: skip
