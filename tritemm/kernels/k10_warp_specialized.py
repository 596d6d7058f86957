"""warp_specialized: warps with roles, one that loads and four, eight or twelve that multiply.

Adds to       persistent: a producer warp runs ahead on its own; loads never wait for an epilogue
Mirrors       wgmma_warp_specialized
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands, 8-bit ones in NT, or tf32 with B stored along K; lines 16-byte
              aligned; Gluon
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.roles import SHORT_K, typical_k
from ..arch.tiles import Cooperative, pairs_or_tf32, spares_a_copy
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.accumulate import accumulate
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.groups import make_scheduler
from .device.mainloop import make_mainloop
from .device.promote import slabs_each
from .device.roles import load, run_roles
from .device.scale_ring import make_scale_ring
from .device.scales import ScaleStrides
from .device.scheduler import SIZES


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH`: multiplies and stores its slab of tile after tile."""
    work, loop, out = args
    gdc_wait()
    work = work.begun() if work.SHAPE.GROUPS != "" else work
    n = gl.to_tensor(0)
    for i in range(work.first(), work.units(), work.stride()):
        unit = work.unit(i)
        acc, n = accumulate(loop, n, unit, work, WHICH)
        out.store(acc, unit, WHICH, WHICH * slabs_each(work.SHAPE))
    out.tail()


@gluon.jit(do_not_specialize=[*SIZES, "offs_ptr"])
def warp_specialized_kernel(
    a_desc, b_desc, b1_desc, c_desc, c_ptr, offs_ptr,
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
    work = make_scheduler(M, N, K, B0, B1, offs_ptr, SHAPE)
    loop = make_mainloop(a_desc, b_desc, b1_desc, SHAPE, make_scale_ring(epilogue, M, N, SHAPE))
    out = make_epilogue(c_desc, c_ptr, M, N, c_strides, epilogue, SHAPE)
    run_roles(compute, load, (work, loop, out))


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; the one for large problems first.
TILES = (
    (128, 256, 64, 8, 3), (256, 192, 64, 8, 3), (256, 160, 64, 8, 3), (192, 192, 64, 4, 4),
    (192, 128, 64, 4, 5), (128, 192, 64, 8, 4), (128, 128, 64, 8, 6), (128, 64, 64, 4, 8),
    (64, 256, 64, 4, 4), (64, 128, 64, 4, 7),
)  # fmt: skip
PROMOTED = (256, 128, 64, 8, 4), (128, 128, 64, 8, 6), (64, 128, 64, 4, 7)
NARROW = (128, 32, 128, 4, 5), (128, 16, 128, 4, 5)
TILES_OF = Cooperative.menu(TILES, NARROW, promoted=PROMOTED)


def grid(problem, config):
    return min(problem.device.sms, config.tiles(problem))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=warp_specialized_kernel, arguments=Cooperative.arguments(),
    grid=grid, interpreted=None,
    limits=Limits(
        TILES_OF, needs=(pairs_or_tf32,), tile=Cooperative, fixed_parts=True,
        symmetric=True, groups="mnk", sums=("whole", "promoted", "block"),
        ordered=Cooperative.whole(TILES_OF),
    ),
    policy=Policy(supersedes=True, suits=lambda p: typical_k(p) > SHORT_K, swap=spares_a_copy),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.4, a_registers=True),
)  # fmt: skip
