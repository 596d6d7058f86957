"""The CUDA ladder: one line per rung, in reading order."""

from __future__ import annotations

import torch

from tritemm.spec import Config, Limits

from .kernel import CudaKernel, Readable
from .source import ROOT, opening_comment

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
E4M3 = torch.float8_e4m3fn
#: All of `Problem.sums`: a rung that promotes may do so even if the tensor core could sum all of K.
SUMS = ("whole", "promoted", "block")

# What the rungs of a family can run. The classic ladder has its own accumulators, fp32 and fp16.
_SIMT = Readable(types=(FP16, BF16))
_MMA_NAIVE = Readable(types=(FP16, BF16), layouts=("NT", "NN"))
_WMMA_NAIVE = Readable()
_WMMA = Readable(aligned="ab")
_MMA = Readable(types=(FP16, BF16), layouts=("NT", "NN"), aligned="ab")
_HOPPER = Readable(types=(FP16, BF16), accumulators=(FP32,), aligned="ab", hopper=True)
_FP8 = Readable(
    types=(E4M3,), outputs=(BF16, FP16), accumulators=(FP32,), aligned="ab", hopper=True,
    scaled=True,
)  # fmt: skip
_WGMMA = Readable(types=(FP16, BF16), accumulators=(FP32,), layouts=("NT", "NN"), hopper=True)


def _classic(stages: int = 1) -> tuple[Config, ...]:
    """The classic block tile, in stripes of tiles for L2 and row by row."""
    return tuple(Config(256, 128, 32, 8, stages, order) for order in ("serpentine", "linear"))


def _hopper(block_n: int, warps: int, stages: int, block_k: int = 64) -> tuple[Config, ...]:
    orders = ("grouped", "linear")
    return tuple(Config(128, block_n, block_k, warps, stages, order) for order in orders)


# Name, limits, configs, and the `Problem.groups` that it computes. Tile sizes are facts of the .cu;
# only ORDER and GROUP_M reach it.
_LINES = (
    ("simt_naive", _SIMT, (Config(16, 16, 1, 8),)),
    ("wmma_naive", _WMMA_NAIVE, (Config(64, 32, 16, 8),)),
    ("wmma_base", _WMMA, _classic()),
    ("wmma_padding", _WMMA, _classic()),
    ("wmma_async", _WMMA, _classic()),
    ("wmma_async_pg2s", _WMMA, _classic(2)),
    ("wmma_async_pg2s_ps2r", _WMMA, _classic(2)),
    ("wmma_async_stage2", _WMMA, _classic(2)),
    ("wmma_async_stage3", _WMMA, _classic(3)),
    ("mma_naive", _MMA_NAIVE, (Config(32, 32, 16, 8),)),
    ("mma_base", _MMA, _classic()),
    ("mma_permuted", _MMA, _classic()),
    ("mma_async", _MMA, _classic()),
    ("mma_async_pg2s", _MMA, _classic(2)),
    ("mma_async_pg2s_ps2r", _MMA, _classic(2)),
    ("mma_async_stage2", _MMA, _classic(2)),
    ("mma_async_stage3", _MMA, _classic(3)),
    ("mma_async_stage4", _MMA, _classic(4)),
    ("mma_async_grouped", _MMA, _classic(3), "m"),
    ("wgmma_m64n8k16", _WGMMA, (Config(64, 8, 16, 4),)),
    ("wgmma_tma", _HOPPER, _hopper(128, warps=4, stages=1)),
    ("wgmma_pipelined", _HOPPER, _hopper(128, warps=4, stages=3)),
    ("wgmma_warp_specialized", _HOPPER, _hopper(256, warps=12, stages=4)),
    ("wgmma_persistent", _HOPPER, _hopper(256, warps=12, stages=3)),
    ("wgmma_cluster", _HOPPER, _hopper(256, warps=12, stages=4)),
    ("wgmma_fp8", _FP8, _hopper(128, warps=9, stages=6, block_k=128)),
)


def _kernel(
    place: int, name: str, needs: Readable, configs: tuple[Config, ...], groups: str = ""
) -> CudaKernel:
    file = ROOT / f"{name}.cu"
    sums = SUMS if needs.scaled else ()
    return CudaKernel(
        file=file,
        place=place,
        doc=opening_comment(file),
        limits=Limits(lambda problem: configs, needs=(needs,), groups=groups, sums=sums),
    )


RUNGS: tuple[CudaKernel, ...] = tuple(_kernel(i, *line) for i, line in enumerate(_LINES, 1))
