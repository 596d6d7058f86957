"""sgemm: fp32 without tensor cores, on FFMA: register tiles read 16 bytes at a time from a ring.

Adds to       gemv: enough rows for tiles, whose operands pass through shared memory
Mirrors       nothing; the CUDA ladder multiplies 16-bit operands
Compiler does registers, their reuse between FFMA, the epilogue
Signs         sm_90: FFMA, UTMALDG, SYNCS, no HGMMA, no LDGSTS
Needs         sm_90; fp32 with 16-byte aligned rows or columns; Gluon
Note          21 FFMA for each LDS.128 in tiles of 256 x 128. TMA and barriers are PTX.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..arch.register_tiles import FfmaTile, suits
from ..spec import CostHint, Policy, TritonKernel
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.ffma import DEPTH, acc_layout, fragments, tiles_view
from .device.mainloop import next_place
from .device.register_ring import finish, make_ring


@gluon.jit(do_not_specialize=["M", "K", "B1", "parts"])
def sgemm_kernel(
    a_desc, b_desc, c_ptr,
    M, N, K, B1, parts,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    partials_ptr, counters_ptr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, A_ALONG_K: gl.constexpr, B_ALONG_K: gl.constexpr,
    TOGETHER: gl.constexpr, VECTOR: gl.constexpr, BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = acc_layout(BLOCK_M, BLOCK_N, gl.num_warps(), A_ALONG_K, B_ALONG_K)
    NAME: gl.constexpr = sgemm_kernel.__name__
    ring = make_ring(
        NAME, a_desc, b_desc, M, N, K, B1, parts, STAGES, BLOCK_M, BLOCK_N, BLOCK_K,
        ORDER, GROUP_M, SPLIT, BATCHED, A_ALONG_K, B_ALONG_K,
    )  # fmt: skip
    a_tiles = tiles_view(ring.whole, BLOCK_M, BLOCK_K, ring.BYTES, A_ALONG_K)
    b_tiles = tiles_view(ring.whole, BLOCK_N, BLOCK_K, ring.BYTES, B_ALONG_K)

    ring.start()
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, LAYOUT)
    stage, odd = gl.to_tensor(0), gl.to_tensor(0)
    last, last_odd = gl.to_tensor(STAGES - 2), gl.to_tensor(0)
    for step in range(ring.unit.steps):
        ring.fill(last, last_odd, step + STAGES - 2)  # its stage was used two steps ago
        last, last_odd = next_place(last, last_odd, STAGES)
        ring.release(last, step)
        ring.wait(stage, odd)
        for k in gl.static_range(0, BLOCK_K, DEPTH):
            a = fragments(a_tiles, stage + ring.A_FIRST, k, BLOCK_K, A_ALONG_K, 0, LAYOUT)
            b = fragments(b_tiles, stage + ring.B_FIRST, k, BLOCK_K, B_ALONG_K, 1, LAYOUT)
            for j in gl.static_range(DEPTH):
                acc = gl.fma(a[j][:, None], b[j][None, :], acc)
        stage, odd = next_place(stage, odd, STAGES)

    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    c_strides = Strides(stride_c0, stride_c1, stride_cm, stride_cn)
    epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    finish(
        acc, ring.unit, parts, partials_ptr, counters_ptr, epilogue, c_ptr, c_strides, M, N,
        SPLIT, TOGETHER, VECTOR, BIAS, ACTIVATION, WIDE,
    )  # fmt: skip


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=sgemm_kernel, interpreted=None,
    arguments=FfmaTile.arguments(), grid=lambda problem, config: config.units(problem),
    limits=FfmaTile.limits(torch.float32),
    policy=Policy(suits=suits, branch="fp32"),
    cost=CostHint(1.1, register_tiles=True),
)  # fmt: skip
