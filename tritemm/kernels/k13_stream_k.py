"""stream_k: the tiles that would leave a wave unfilled are cut into equal shares of K-steps.

Adds to       split_k: shares end anywhere, so every SM gets the same number of K-steps
Mirrors       nothing; the CUDA ladder keeps whole tiles
Compiler does the descriptors of shared memory, the instructions of a k-step, named barriers
Signs         sm_90: HGMMA, UTMALDG, UTMASTG, SYNCS, USETMAXREG, no LDGSTS
Needs         sm_90; 16-bit operands, or 8-bit ones in NT; lines 16-byte aligned; Gluon
Note          Gains if a wave of large tiles leaves a small remainder. If the operands exceed L2,
              programs that work in the middle of K share no reads.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arch.limits import COUNTED_K
from ..arch.roles import NEEDS, cut
from ..arch.tiles import StreamK, fitting
from ..runtime.workspace import Room
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.epilogue import make_epilogue
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.mainloop import make_mainloop
from .device.roles import run_roles
from .device.scales import ScaleStrides
from .device.scheduler import SIZES, Scheduler
from .device.split_k import SplitK
from .device.stream_k import stream_k


@gluon.jit
def load(work, loop):
    """The producer: every step of every unit of this program."""
    gdc_wait()
    n = gl.to_tensor(0)
    work = stream_k(work)
    for i in range(work.units()):
        n = loop.load(n, work.unit(i))


@gluon.jit
def compute(args, WHICH: gl.constexpr):
    """The consumer: stores whole tiles; the last program of a shared one adds its partial sums."""
    work, loop, out, workspace = args
    gdc_wait()
    n = gl.to_tensor(0)
    work = stream_k(work)
    for i in range(work.units()):
        unit = work.unit(i)
        acc = loop.multiply(n, unit.steps, WHICH)
        acc, n = loop.multiply_tail(acc, n, unit.steps)
        if unit.steps == work.steps:
            out.store(acc, unit, WHICH, WHICH)
        else:
            work.reduce(workspace, acc, out, unit)
    out.tail()


@gluon.jit(do_not_specialize=SIZES)
def stream_k_kernel(
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


#: BLOCK_M, BLOCK_N, BLOCK_K, warps, stages: large tiles, whose waves are long. The one for large
#: problems first.
TILES = (
    (128, 256, 64, 8, 3), (128, 192, 64, 8, 4), (128, 128, 64, 8, 5),
)  # fmt: skip


def configs(problem):
    """Each tile with at most 4 or 8 programs that share one."""
    return tuple(cut(c, most) for c in fitting(problem, StreamK, TILES) for most in (4, 8))


def suits(problem):
    """Whether there is more than a wave of tiles, long enough for their rest to be shared."""
    tiles = problem.space.elements // (128 * 128)
    return problem.K >= 4096 and tiles >= problem.device.sms


def grid(problem, config):
    steps = -(-problem.K // config.BLOCK_K)
    return min(problem.device.sms, config.tiles(problem) * steps)


def workspace(problem, config):
    programs = grid(problem, config)
    sums = 2 * programs * config.BLOCK_M * config.BLOCK_N
    return Room(sums, problem.accumulate, programs)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=stream_k_kernel, arguments=StreamK.arguments(workspace),
    grid=grid, interpreted=None,
    limits=Limits(
        configs, needs=(COUNTED_K, *NEEDS), tile=StreamK, in_order=False, sums=("whole",)
    ),
    policy=Policy(suits=suits),
    cost=CostHint(0.98, persistent=True, epilogue_overlap=0.3, stream_k=True),
)  # fmt: skip
