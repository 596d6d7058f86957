"""pingpong: two consumers with a tile each; one multiplies while the other stores.

Adds to       warp_specialized: a second consumer, which takes every other tile of the program
Mirrors       nothing; the two consumers of wgmma_warp_specialized share a tile
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands, or 8-bit ones in NT; lines 16-byte aligned; Gluon
Note          Gains where epilogues take long compared with the loop over K.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.roles import SHORT_K
from ..arch.tiles import NEEDS_PAIRS, Pingpong
from ..spec import CostHint, Limits, TritonKernel
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.groups import make_scheduler
from .device.mainloop import make_barriers, make_mainloop, mbarrier
from .device.roles import load, run_roles
from .device.scales import ScaleStrides
from .device.scheduler import SIZES


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """Consumer `WHICH` of two: multiplies and stores every other tile, in turns with the other."""
    work, loop, out, turns = args
    gdc_wait()
    work = work.begun() if work.SHAPE.GROUPS != "" else work
    n = gl.to_tensor(0)
    if WHICH == 1:
        n += work.steps(work.first())
    turn = gl.to_tensor(1 - WHICH)  # consumer 0's first turn is free
    for i in range(work.first() + WHICH * work.stride(), work.units(), 2 * work.stride()):
        unit = work.unit(i)
        # Not before the other has issued all its loads: a barrier tells even from odd rounds,
        # and no more.
        mbarrier.wait(turns.index(WHICH), turn)
        turn ^= 1
        acc = loop.multiply(n, unit.steps)
        mbarrier.arrive(turns.index(1 - WHICH))
        acc, n = loop.multiply_tail(acc, n, unit.steps)
        n += work.steps(i + work.stride())  # the other's
        out.store(acc, unit, WHICH, 0)
    out.tail()


@gluon.jit(do_not_specialize=[*SIZES, "offs_ptr"])
def pingpong_kernel(
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
    loop = make_mainloop(a_desc, b_desc, b1_desc, SHAPE)
    out = make_epilogue(c_desc, c_ptr, M, N, c_strides, epilogue, SHAPE)
    turns = make_barriers(2)
    run_roles(compute, load, (work, loop, out, turns))


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages; the one for large problems first.
TILES = (
    (128, 128, 64, 4, 5), (128, 192, 64, 4, 4), (128, 96, 64, 4, 6), (128, 64, 64, 4, 7),
    (64, 256, 64, 4, 4), (64, 192, 64, 4, 5), (64, 128, 64, 4, 7),
)  # fmt: skip
NARROW = (64, 64, 128, 4, 5), (128, 64, 64, 4, 7), (128, 32, 64, 4, 8), (128, 16, 128, 4, 5)
SHORT = (SHORT_K // 4, (64, 128, 16, 4, 6)), (SHORT_K, (64, 128, 32, 4, 5))


def grid(problem, config):
    return min(problem.device.sms, config.tiles(problem))


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=pingpong_kernel, arguments=Pingpong.arguments(),
    grid=grid, interpreted=None,
    limits=Limits(
        Pingpong.menu(TILES, NARROW, SHORT), needs=NEEDS_PAIRS, tile=Pingpong, groups="mnk",
        sums=("whole",),
    ),
    cost=CostHint(0.99, persistent=True, epilogue_overlap=0.9, pingpong=True),
)  # fmt: skip
