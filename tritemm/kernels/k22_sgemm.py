"""sgemm: fp32 as it is, on FFMA: register tiles, read 16 bytes at a time from a ring of stages.

Adds to       gemv: rows enough for tiles, whose operands pass through shared memory
Mirrors       nothing; the CUDA ladder multiplies 16-bit operands
Compiler does registers, their reuse between FFMA, the epilogue
Signs         sm_90: FFMA, UTMALDG, SYNCS, no HGMMA, no LDGSTS
Needs         sm_90; fp32 with 16-byte aligned rows or columns; Gluon
Note          21 FFMA for each LDS.128 in tiles of 256 x 128. TMA and barriers are PTX.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..arch.sgemm import NEEDS, FfmaTile, configs, suits
from ..spec import CostHint, Limits, Policy, TritonKernel
from .device.epilogue_ops import EpilogueArgs, Strides
from .device.ffma import DEPTH, acc_layout, arrive, fragments, load_text, tiles_view
from .device.language import barrier
from .device.mainloop import next_place
from .device.ptx import asm, barrier_init, barrier_wait
from .device.raster import raster, split_batch
from .device.split_k import arrive_last
from .device.tile import apply_epilogue, batch_offset, store, widen
from .device.triton_contract import allocate, shared_memory


@gluon.jit(do_not_specialize=["M", "K", "B1", "parts"])
def sgemm_kernel(
    a_desc, b_desc, c_ptr,
    M, N, K, B1, parts,
    stride_c0, stride_c1, stride_cm, stride_cn,
    bias_ptr, residual_ptr, alpha, beta, stride_r0, stride_r1, stride_rm, stride_rn,
    partials_ptr, counters_ptr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr, ORDER: gl.constexpr, GROUP_M: gl.constexpr, SPLIT: gl.constexpr,
    BATCHED: gl.constexpr, WIDE: gl.constexpr, A_MAJOR: gl.constexpr, B_MAJOR: gl.constexpr,
    BIAS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    A_ALONG_K: gl.constexpr = A_MAJOR == "N"
    B_ALONG_K: gl.constexpr = B_MAJOR == "T"
    A_BYTES: gl.constexpr = BLOCK_M * BLOCK_K * 4
    B_BYTES: gl.constexpr = BLOCK_N * BLOCK_K * 4
    BYTES: gl.constexpr = STAGES * (A_BYTES + B_BYTES)
    # The larger tiles come first, so that the others begin at a multiple of their size.
    A_FIRST: gl.constexpr = STAGES * B_BYTES if BLOCK_M < BLOCK_N else 0
    B_FIRST: gl.constexpr = 0 if BLOCK_M < BLOCK_N else STAGES * A_BYTES
    EMPTY: gl.constexpr = STAGES * 8
    LAYOUT: gl.constexpr = acc_layout(BLOCK_M, BLOCK_N, gl.num_warps(), A_ALONG_K, B_ALONG_K)
    tiles = gl.num_programs(0) // parts
    tile, split = gl.program_id(0) % tiles, gl.program_id(0) // tiles
    pid, b0, b1 = split_batch(tile, M, N, B1, BLOCK_M, BLOCK_N, BATCHED)
    pid_m, pid_n = raster(pid, M, N, BLOCK_M, BLOCK_N, ORDER, GROUP_M)
    row, col = pid_m * BLOCK_M, pid_n * BLOCK_N
    steps = gl.cdiv(K, BLOCK_K)
    begin = steps * split // parts
    steps = steps * (split + 1) // parts - begin

    # The barriers lie behind the ring, in room for a tile: views consist of whole tiles.
    ROOM: gl.constexpr = BYTES + max(A_BYTES, B_BYTES)
    whole = allocate(ROOM)
    memory = shared_memory()
    bars = memory + BYTES
    barrier_init(bars, STAGES, gl.num_warps(), 0)
    barrier()
    a_tiles = tiles_view(whole, BLOCK_M, BLOCK_K, ROOM, A_ALONG_K)
    b_tiles = tiles_view(whole, BLOCK_N, BLOCK_K, ROOM, B_ALONG_K)
    KERNEL_NAME: gl.constexpr = sgemm_kernel.__name__
    LOAD: gl.constexpr = load_text(
        KERNEL_NAME, BATCHED, EMPTY, A_BYTES, B_BYTES, A_FIRST, B_FIRST, A_ALONG_K, B_ALONG_K
    )
    batch = ()
    if BATCHED:  # a broadcast batch has extent 1
        for desc in gl.static_range(2):
            sizes = b_desc.shape if desc else a_desc.shape
            batch += (gl.minimum(b0, sizes[0] - 1), gl.minimum(b1, sizes[1] - 1))

    AHEAD: gl.constexpr = STAGES - 1
    for i in gl.static_range(AHEAD):
        more = (i < steps).to(gl.int32)
        k = (begin + i) * BLOCK_K
        asm(LOAD, (gl.to_tensor(i), gl.to_tensor(1), row, col, k, more, bars, memory) + batch)
    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, LAYOUT)
    stage, odd = gl.to_tensor(0), gl.to_tensor(0)
    next_stage, next_odd = gl.to_tensor(AHEAD), gl.to_tensor(0)
    for step in range(steps):
        barrier_wait(bars + 8 * stage, odd)
        more = (step < steps - AHEAD).to(gl.int32)
        k = (begin + step + AHEAD) * BLOCK_K
        asm(LOAD, (next_stage, next_odd ^ 1, row, col, k, more, bars, memory) + batch)
        for i in gl.static_range(BLOCK_K // DEPTH):
            a = fragments(
                a_tiles, stage + A_FIRST // A_BYTES, i * DEPTH, BLOCK_K, A_ALONG_K, 0, LAYOUT
            )
            b = fragments(
                b_tiles, stage + B_FIRST // B_BYTES, i * DEPTH, BLOCK_K, B_ALONG_K, 1, LAYOUT
            )
            for j in gl.static_range(DEPTH):
                acc = gl.fma(a[j][:, None], b[j][None, :], acc)
        arrive(bars + EMPTY + 8 * stage)
        stage, odd = next_place(stage, odd, STAGES)
        next_stage, next_odd = next_place(next_stage, next_odd, STAGES)

    last = True
    if SPLIT:
        inside = gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT))[:, None] * BLOCK_N
        inside += gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))[None, :]
        partials_ptr += gl.cast(tile, gl.int64) * parts * (BLOCK_M * BLOCK_N) + inside
        gl.store(partials_ptr + split * (BLOCK_M * BLOCK_N), acc)
        last = arrive_last(counters_ptr + tile, parts)
    if last:
        if SPLIT:
            acc = gl.load(partials_ptr, cache_modifier=".cg")
            # Loads of small tiles are asked for together; what is behind the last adds nothing.
            AT_ONCE: gl.constexpr = max(1, 1024 * gl.num_warps() // (BLOCK_M * BLOCK_N))
            for first in range(1, parts, AT_ONCE):
                for j in gl.static_range(AT_ONCE):
                    part = partials_ptr + (first + j) * (BLOCK_M * BLOCK_N)
                    acc += gl.load(part, first + j < parts, 0.0, cache_modifier=".cg")
        offs_m = widen(row + gl.arange(0, BLOCK_M, gl.SliceLayout(1, LAYOUT)), WIDE)
        offs_n = widen(col + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT)), WIDE)
        r_strides = Strides(stride_r0, stride_r1, stride_rm, stride_rn)
        epilogue = EpilogueArgs(bias_ptr, residual_ptr, alpha, beta, r_strides)
        acc = apply_epilogue(acc, epilogue, b0, b1, offs_m, offs_n, M, N, BIAS, ACTIVATION)
        c_ptr += batch_offset(b0, b1, stride_c0, stride_c1)
        store(c_ptr, acc, offs_m, offs_n, M, N, stride_cm, stride_cn)


KERNEL = TritonKernel(
    module=__name__, doc=__doc__, fn=sgemm_kernel, interpreted=None,
    arguments=FfmaTile.arguments(), grid=lambda problem, config: config.units(problem),
    limits=Limits(configs, needs=NEEDS, tile=FfmaTile, dtype=torch.float32, in_order=False),
    policy=Policy(suits=suits, branch="fp32"),
    cost=CostHint(1.2, register_tiles=True),
)  # fmt: skip
