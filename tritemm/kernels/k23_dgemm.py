"""dgemm: fp64 on tensor cores: DMMA on fragments read from a ring ahead of their use.

Adds to       sgemm: tensor cores; lines stored in an order that is read without bank conflicts
Mirrors       nothing; the CUDA ladder multiplies 16-bit operands
Compiler does fragments in registers, their loads interleaved with DMMA, the epilogue
Signs         sm_90: DMMA, UTMALDG, SYNCS, no HGMMA, no LDGSTS
Needs         sm_90; fp64 with 16-byte aligned rows or columns; Gluon
Note          Fragments of one half of a tile's rows are loaded while the other half is multiplied.
              In the smallest tiles, two groups of warps each multiply half of every step (slices).
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..arch.register_tiles import DmmaTile, suits
from ..spec import CostHint, Policy, TritonKernel
from .device.dmma import LINE, acc_layout, dmma, in_order, slices_of, tiles_view
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.mainloop import next_place
from .device.register_ring import finish, make_ring


@gluon.jit
def multiply(a, b, upper, acc, a_tiles, b_tiles, at_a, at_b, PIECES: gl.constexpr):
    """Multiply the fragments in hand, and load those of the panel at `at_a` and `at_b`.

    With two pieces, `a` and `acc` are the lower rows'; the new panel's upper rows are multiplied,
    too.
    """
    a_next = a_tiles.index(at_a * PIECES).load(a.type.layout)
    b_next = b_tiles.index(at_b).load(b.type.layout)
    acc = dmma(a, b, acc)
    if PIECES == 2:  # the upper rows, whose fragments were loaded meanwhile
        upper = dmma(a_next, b_next, upper)
        a_next = a_tiles.index(at_a * PIECES + 1).load(a.type.layout)
    return a_next, b_next, upper, acc


@gluon.jit(do_not_specialize=["M", "K", "B1", "parts"])
def dgemm_kernel(
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
    SLICES: gl.constexpr = slices_of(BLOCK_M, BLOCK_N, BLOCK_K)
    PANELS: gl.constexpr = BLOCK_K // (LINE * SLICES)  # of a stage, one after another
    PIECES: gl.constexpr = 2 if SLICES == 1 else 1  # of a tile's rows
    ROWS: gl.constexpr = BLOCK_M // PIECES
    LAYOUT: gl.constexpr = acc_layout(BLOCK_M, BLOCK_N, gl.num_warps(), SLICES)
    OF_A: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 1)
    OF_B: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, 1)
    NAME: gl.constexpr = dgemm_kernel.__name__
    ring = make_ring(
        NAME, a_desc, b_desc, M, N, K, B1, parts, STAGES, BLOCK_M, BLOCK_N, BLOCK_K,
        ORDER, GROUP_M, SPLIT, BATCHED, A_ALONG_K, B_ALONG_K,
    )  # fmt: skip
    a_tiles = tiles_view(ring.whole, ROWS, BLOCK_N, SLICES, ring.BYTES, 0, A_ALONG_K)
    b_tiles = tiles_view(ring.whole, BLOCK_M, BLOCK_N, SLICES, ring.BYTES, 1, B_ALONG_K)

    ring.start()
    acc = gl.zeros([SLICES, ROWS, BLOCK_N], gl.float64, LAYOUT)
    stage, odd = gl.to_tensor(0), gl.to_tensor(0)
    last, last_odd = gl.to_tensor(STAGES - 2), gl.to_tensor(0)
    ring.wait(stage, odd)
    at_a, at_b = (stage + ring.A_FIRST) * PANELS, (stage + ring.B_FIRST) * PANELS
    a = a_tiles.index(at_a * PIECES).load(OF_A)
    b = b_tiles.index(at_b).load(OF_B)
    upper = acc  # of one piece, unused
    if PIECES == 2:
        upper = dmma(a, b, acc)
        a = a_tiles.index(at_a * PIECES + 1).load(OF_A)
    for step in range(ring.unit.steps - 1):
        for i in gl.static_range(1, PANELS):
            a, b, upper, acc = multiply(
                a, b, upper, acc, a_tiles, b_tiles, at_a + i, at_b + i, PIECES
            )
        ring.fill(last, last_odd, step + STAGES - 2)  # its stage was used two steps ago
        last, last_odd = next_place(last, last_odd, STAGES)
        ring.release(last, step)
        stage, odd = next_place(stage, odd, STAGES)
        ring.wait(stage, odd)
        at_a, at_b = (stage + ring.A_FIRST) * PANELS, (stage + ring.B_FIRST) * PANELS
        a, b, upper, acc = multiply(a, b, upper, acc, a_tiles, b_tiles, at_a, at_b, PIECES)
    for i in gl.static_range(1, PANELS):
        a, b, upper, acc = multiply(a, b, upper, acc, a_tiles, b_tiles, at_a + i, at_b + i, PIECES)
    acc = dmma(a, b, acc)
    if PIECES == 2:
        acc = gl.reshape(gl.permute(gl.join(upper, acc), [0, 3, 1, 2]), [1, BLOCK_M, BLOCK_N])
    acc = in_order(acc, A_ALONG_K, B_ALONG_K)
    r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
    c_strides = Strides(stride_c0, stride_c1, stride_cm, stride_cn)
    epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
    finish(
        acc, ring.unit, parts, partials_ptr, counters_ptr, epilogue, c_ptr, c_strides, M, N,
        SPLIT, TOGETHER, VECTOR, BIAS, ACTIVATION, WIDE,
    )  # fmt: skip


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=dgemm_kernel, interpreted=None,
    arguments=DmmaTile.arguments(), grid=lambda problem, config: config.units(problem),
    limits=DmmaTile.limits(torch.float64),
    policy=Policy(suits=suits, branch="fp64"),
    cost=CostHint(1.6, register_tiles=True),
)  # fmt: skip
