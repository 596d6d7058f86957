"""dgemm: fp64 on the tensor core: DMMA on fragments that are read 16 bytes at a time from a ring.

Adds to       dgemm: the tensor core, in whose order TMA's tiles are read: lines and k permuted
Mirrors       nothing; the CUDA ladder multiplies 16-bit operands
Compiler does fragments of a tile in registers, their order in time, the epilogue
Signs         sm_90: DMMA, UTMALDG, SYNCS, no HGMMA, no LDGSTS
Needs         sm_90; fp64 with 16-byte aligned rows or columns; Gluon
Note          TMA and barriers are PTX.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from ..arch.dgemm import NEEDS, DmmaTile, suits
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.dmma import acc_layout, in_place, tiles_view
from .device.mainloop import next_place
from .device.register_ring import finish, make_ring, unit_of


@gluon.jit(do_not_specialize=["M", "K", "B1", "parts"])
def dgemm_kernel(
    a_desc, b_desc, c_ptr,
    M, N, K, B1, parts,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    partials_ptr, counters_ptr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    A_ALONG_K: gl.constexpr = A_MAJOR == "N"
    B_ALONG_K: gl.constexpr = B_MAJOR == "T"
    LAYOUT: gl.constexpr = acc_layout(BLOCK_N, gl.num_warps())
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 1)
    B_LAYOUT: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, 1)
    AHEAD: gl.constexpr = STAGES - 1
    unit = unit_of(M, N, K, B1, parts, BLOCK_M, BLOCK_N, BLOCK_K, ORDER, GROUP_M, BATCHED)
    ring = make_ring(
        dgemm_kernel.__name__, a_desc, b_desc, unit, STAGES, BLOCK_M, BLOCK_N, BLOCK_K,
        A_ALONG_K, B_ALONG_K, BATCHED,
    )  # fmt: skip
    a_tiles = tiles_view(ring.whole, BLOCK_M, BLOCK_N, ring.BYTES, 0, A_ALONG_K)
    b_tiles = tiles_view(ring.whole, BLOCK_N, BLOCK_N, ring.BYTES, 1, B_ALONG_K)

    ring.start()
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float64, LAYOUT)
    stage, odd = gl.to_tensor(0), gl.to_tensor(0)
    next_stage, next_odd = gl.to_tensor(AHEAD), gl.to_tensor(0)
    if EARLY:
        ring.wait(stage, odd)
        a = a_tiles.index(stage + ring.A_FIRST).load(A_LAYOUT)
        b = b_tiles.index(stage + ring.B_FIRST).load(B_LAYOUT)
    for step in range(unit.steps):
        if EARLY:
            ring.release(stage)
        else:
            ring.wait(stage, odd)
        ring.fill(next_stage, next_odd, step, AHEAD)
        if not EARLY:
            a = a_tiles.index(stage + ring.A_FIRST).load(A_LAYOUT)
            b = b_tiles.index(stage + ring.B_FIRST).load(B_LAYOUT)
        acc = mma_v2(a, b, acc)
        if not EARLY:
            ring.release(stage)
        stage, odd = next_place(stage, odd, STAGES)
        next_stage, next_odd = next_place(next_stage, next_odd, STAGES)
        if EARLY:
            # While the last DMMA of this step executes; behind the last step nobody uses it.
            if step < unit.steps - 1:
                ring.wait(stage, odd)
            a = a_tiles.index(stage + ring.A_FIRST).load(A_LAYOUT)
            b = b_tiles.index(stage + ring.B_FIRST).load(B_LAYOUT)

    acc = in_place(acc, A_ALONG_K, B_ALONG_K)
    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    c_strides = Strides(stride_c0, stride_c1, stride_cm, stride_cn)
    epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    finish(
        acc, unit, parts, partials_ptr, counters_ptr, epilogue, c_ptr, c_strides, M, N,
        SPLIT, BIAS, ACTIVATION, WIDE,
    )  # fmt: skip


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=dgemm_kernel, interpreted=None,
    arguments=DmmaTile.arguments(), grid=lambda problem, config: config.units(problem),
    limits=Limits(DmmaTile.configs, needs=NEEDS, tile=DmmaTile, dtype=torch.float64, in_order=False),
    policy=Policy(suits=suits, branch="fp64"),
    cost=CostHint(1.2, register_tiles=True),
)  # fmt: skip
