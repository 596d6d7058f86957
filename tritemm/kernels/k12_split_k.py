"""split_k: several programs share one tile's K; each adds up a part of the tile, in fixed order.

Adds to       warp_specialized: units of work are (tile, range of K), so few tiles fill all SMs
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands, 8-bit ones in NT, or tf32 with B stored along K; lines 16-byte
              aligned; Gluon
Note          For few tiles with a long K. Adding many parts costs 1 to 4 us.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.limits import COUNTED_K, SINGLE_COLUMNS
from ..arch.tiles import Split, in_parts, pairs_or_tf32, shared_parts, spares_a_copy
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.accumulate import accumulate
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.mainloop import make_mainloop
from .device.roles import load, run_roles
from .device.scales import ScaleStrides
from .device.scheduler import SIZES, Scheduler
from .device.split_k import SplitK


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies its slab, stores partial sums, adds and finishes a share."""
    work, loop, out, workspace = args
    gdc_wait()
    n = gl.to_tensor(0)
    for i in range(work.first(), work.units(), work.stride()):
        unit = work.unit(i)
        acc, n = accumulate(loop, n, unit, work, WHICH)
        if work.SHAPE.SPLIT_K == 1:
            out.store(acc, unit, WHICH, WHICH)
        else:
            workspace.reduce(acc, out, unit, unit.tile * work.SHAPE.CONSUMERS + WHICH, WHICH, WHICH)
    out.tail()


@gluon.jit(do_not_specialize=SIZES)
def split_k_kernel(
    a_desc, b_desc, b1_desc, c_desc, c_ptr, partials_ptr, counters_ptr,
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
    loop = make_mainloop(a_desc, b_desc, b1_desc, SHAPE)
    out = make_epilogue(c_desc, c_ptr, M, N, c_strides, epilogue, SHAPE)
    workspace = SplitK(partials_ptr, counters_ptr, SHAPE)
    run_roles(compute, load, (work, loop, out, workspace))


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; the one for large problems first.
TILES = (
    (128, 256, 64, 8, 3), (256, 192, 64, 8, 3), (192, 192, 64, 4, 4), (192, 128, 64, 4, 5),
    (128, 192, 64, 8, 4), (128, 128, 64, 8, 5), (64, 128, 64, 4, 7), (64, 64, 64, 4, 10),
)  # fmt: skip


def configs(problem):
    return in_parts(problem, TILES)


def grid(problem, config):
    return min(problem.device.sms, config.units(problem))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=split_k_kernel, arguments=Split.arguments(Split.workspace),
    grid=grid, interpreted=None,
    limits=Limits(
        configs, needs=(SINGLE_COLUMNS, COUNTED_K, pairs_or_tf32), tile=Split, fixed_parts=True,
        in_order=False, ordered=shared_parts(TILES), symmetric=True, sums=("whole",),
    ),
    policy=Policy(swap=spares_a_copy),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.3, a_registers=True),
)  # fmt: skip
