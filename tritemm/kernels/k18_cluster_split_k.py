"""cluster_split_k: the programs of a cluster share one tile's K and exchange partial sums.

Adds to       split_k: partial sums go to the other programs' shared memory; each adds up a part
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the layouts of accumulator and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands, or 8-bit ones in NT; lines 16-byte aligned; Gluon
Note          For few tiles that all run at once. No workspace. Barriers, WGMMA and the exchange are
              PTX.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.clusters import NEEDS_IN_PARTS
from ..arch.exchange import Exchanging, first, fitted, ordered
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.cluster_mainloop import make_cluster_mainloop, run_in_cluster
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.exchange import Exchange, unit_of_rank
from .device.promote import promoted
from .device.ptx import cluster_sync
from .device.scale_ring import make_scale_ring
from .device.scales import ScaleStrides
from .device.scheduler import SIZES, Scheduler
from .device.wgmma import wgmma_wait


@gluon.jit
def load(work, loop):
    """The producer: loads every step of this program's share of K."""
    if work.SHAPE.SLOTS > 0:
        cluster_sync()  # the others' barriers are there
    unit = unit_of_rank(work)
    Exchange(work.SHAPE).expect(loop.more(), unit.split)
    gdc_wait()
    loop.load(gl.to_tensor(0), unit)
    if work.SHAPE.SLOTS == 0:
        cluster_sync()


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies its slabs, sends the partial sums, finishes what it adds."""
    work, loop, out = args
    if work.SHAPE.SLOTS > 0:
        cluster_sync()
    full = loop.more()
    loop = loop.consumer(WHICH)
    unit = unit_of_rank(work)
    gdc_wait()
    n = gl.to_tensor(0)
    if work.SHAPE.SUMS == "whole":
        acc = wgmma_wait(loop.multiply(n, unit.steps), 0)
    else:
        acc, _ = promoted(loop, n, unit.steps, (), loop.SLAB, work.SHAPE)
    if work.SHAPE.SLOTS == 0:
        cluster_sync()  # all have read their stages, where the slots lie
    Exchange(work.SHAPE).reduce(acc, out, unit, full, WHICH, loop.SLAB)
    out.tail()


@gluon.jit(do_not_specialize=SIZES)
def cluster_split_k_kernel(
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
    gdc_launch_dependents()
    work = Scheduler(M, N, K, B0, B1, SHAPE)
    KERNEL_NAME: gl.constexpr = cluster_split_k_kernel.__name__
    scales = make_scale_ring(epilogue, M, N, SHAPE)
    loop = make_cluster_mainloop(a_desc, b_desc, KERNEL_NAME, SHAPE, 1, scales)
    out = make_epilogue(c_desc, c_ptr, M, N, c_strides, epilogue, SHAPE)
    run_in_cluster(compute, load, (work, loop, out), SYNCS=1)


#: BLOCK_M, BLOCK_N, BLOCK_K, and the warps of a tile, with as many stages as fit.
TILES = (
    (128, 256, 64, 8), (192, 192, 64, 12), (128, 192, 64, 8), (192, 128, 64, 12),
    (128, 128, 64, 8), (128, 96, 64, 8), (64, 128, 64, 4), (64, 64, 64, 4),
)  # fmt: skip


def suits(problem):
    """Whether the clusters of some tile fit at once."""
    return bool(fitted(problem, TILES))


def configs(problem):
    return fitted(problem, TILES) or (first(problem, TILES),)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_split_k_kernel, arguments=Exchanging.arguments(),
    clusters=lambda config: config.SPLIT_K,
    limits=Limits(
        configs, needs=NEEDS_IN_PARTS, tile=Exchanging, odd_tiles=True, fixed_parts=True,
        in_order=False, ordered=ordered(TILES), symmetric=True,
        sums=("whole", "promoted", "block"),
    ),
    policy=Policy(suits=suits), cost=CostHint(0.98, exchanges=True), interpreted=None,
)  # fmt: skip
