"""cluster: programs share each tile of B, or of A; one WGMMA is as wide as the tile.

Adds to       warp_specialized: 2 or 4 programs take turns at multicasting B, or A, to all of them;
              tiles of any width, chosen to fill waves
Mirrors       wgmma_cluster
Compiler does the layouts of accumulator and output, the epilogue, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, UCGABAR_ARV, no LDGSTS
Needs         sm_90; 16-bit operands, or 8-bit ones in NT; lines 16-byte aligned; Gluon
Note          Gains where tiles are few or small: they share loads, and their widths fill waves.
              Multicast, barriers across programs and WGMMA are PTX: Triton 3.6 supports neither
              multicast nor tensors of 96 columns.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.clusters import NEEDS, Cooperative, offered, worth_swapping
from ..problem import PRODUCTS
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.accumulate import accumulate
from .device.cluster_mainloop import load_in_cluster, make_cluster_mainloop, run_in_cluster
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.planes import multiply_planes, unscaled
from .device.ptx import cluster_sync
from .device.scale_ring import make_scale_ring
from .device.scales import ScaleStrides
from .device.scheduler import SIZES, Scheduler


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies and stores its slabs of tile after tile."""
    work, loop, out = args
    cluster_sync()
    loop = loop.consumer(WHICH)
    gdc_wait()
    n = gl.to_tensor(0)
    for i in range(work.first(), work.units(), work.stride()):
        unit = work.unit(i)
        if work.SHAPE.PRODUCTS > 1:
            acc, n = multiply_planes(loop, n, unit, work.SHAPE)
            acc = unscaled(acc, out.args.flag_ptr)
        else:
            acc, n = accumulate(loop, n, unit, work, WHICH)
        if work.SHAPE.LATE and WHICH == 0:
            gdc_launch_dependents()
        out.store(acc, unit, WHICH, loop.SLAB)
    out.tail()
    cluster_sync()


@gluon.jit(do_not_specialize=SIZES)
def cluster_kernel(
    a_desc, b_desc, c_desc, c_ptr,
    M, N, K, B0, B1,
    stride_c0, stride_c1, stride_cm, stride_cn,
    scale_a_ptr, scale_b_ptr,
    stride_sa1, stride_sal, stride_sak, stride_sb1, stride_sbl, stride_sbk,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    flag_ptr,
    SHAPE: gl.constexpr,
):  # fmt: skip
    c_strides = Strides(stride_c0, stride_c1, stride_cm, stride_cn)
    epilogue = EpilogueArgs(
        bias_ptr, residual_ptr, alpha, beta, Strides(stride_r0, stride_r1, stride_rm, stride_rn),
        scale_a_ptr, scale_b_ptr, ScaleStrides(stride_sa1, stride_sal, stride_sak),
        ScaleStrides(stride_sb1, stride_sbl, stride_sbk), flag_ptr,
    )  # fmt: skip
    if not SHAPE.LATE:
        gdc_launch_dependents()
    work = Scheduler(M, N, K, B0, B1, SHAPE)
    KERNEL_NAME: gl.constexpr = cluster_kernel.__name__
    scales = make_scale_ring(epilogue, M, N, SHAPE)
    loop = make_cluster_mainloop(a_desc, b_desc, KERNEL_NAME, SHAPE, scales=scales)
    out = make_epilogue(c_desc, c_ptr, M, N, c_strides, epilogue, SHAPE)
    run_in_cluster(compute, load_in_cluster, (work, loop, out))


#: BLOCK_M, BLOCK_N, warps; the one for large problems first.
TILES = (
    (128, 256, 8), (128, 128, 8), (128, 96, 8), (192, 192, 12), (192, 96, 12), (256, 192, 8),
    (256, 160, 8), (256, 128, 8),
)  # fmt: skip
#: BLOCK_M, warps, programs of a cluster, least and most BLOCK_N of tiles that fit a problem.
FITTED = (
    (128, 8, 2, 48, 192), (128, 8, 4, 48, 192), (192, 12, 2, 64, 192), (192, 12, 4, 64, 192),
    (256, 8, 2, 64, 192),
)  # fmt: skip
#: BLOCK_M, warps, programs of a cluster, of tiles that have all of few columns.
WIDE = ((128, 8, 4), (128, 8, 2))


def configs(problem):
    return offered(problem, TILES, FITTED, WIDE)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=cluster_kernel, interpreted=None,
    arguments=Cooperative.arguments(), grid=Cooperative.grid, clusters=Cooperative.programs,
    limits=Limits(
        configs, needs=NEEDS, tile=Cooperative, odd_tiles=True, fixed_parts=True,
        ordered=Cooperative.whole(configs), symmetric=True,
        sums=("whole", "promoted", "block", *PRODUCTS),
    ),
    policy=Policy(swap=worth_swapping),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.75),
)  # fmt: skip
