"""The rungs that read tiles from a ring into registers, sgemm and dgemm, on a GPU."""

import dataclasses

import pytest
import torch

import tritemm
from tests.dispatch.choosing import problem
from tests.harness import operand, operands, run
from tests.kernels import test_dmma, test_ffma
from tritemm.compile import asm
from tritemm.dispatch.request import why_not

pytestmark = pytest.mark.gpu
#: Rung, type, every tile with K whole and in parts, and M, N, K of a product and of one of a batch.
SGEMM = (test_ffma.SGEMM, test_ffma.FP32, test_ffma.configs(), (333, 268, 812), (100, 140, 204))
DGEMM = (test_dmma.DGEMM, test_dmma.FP64, test_dmma.CONFIGS, (334, 270, 210), (100, 150, 204))
RUNGS = pytest.mark.parametrize("rung", [SGEMM, DGEMM], ids=["sgemm", "dgemm"])
TILES = [pytest.param(rung, config, id=f"{rung[0].name}-{config}")
         for rung in (SGEMM, DGEMM) for config in rung[2]]  # fmt: skip


@pytest.mark.parametrize(("rung", "config"), TILES)
@pytest.mark.parametrize("layout", asm.LAYOUTS)
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_every_tile(rung, config, layout, batch):
    kernel, dtype, _, single, of_batch = rung
    M, N, K = of_batch if batch else single
    a = operand(M, K, dtype, layout[0], batch, aligned=True)
    b = operand(K, N, dtype, layout[1], (1, 3) if batch else (), aligned=True)
    b = b.expand(*batch, K, N)
    for swap in (False, True):
        swapped = dataclasses.replace(config, SWAP=swap)
        assert run(kernel, a, b, config=swapped, pitch_gap=3 * swap) is None


@RUNGS
@pytest.mark.parametrize("K", [1, 3, 16, 33, 64, 130])
def test_short_sums(rung, K):
    kernel, dtype, configs, *_ = rung
    a, b = operands(300, 260, K, dtype, "TN", aligned=True)
    for config in configs:
        if why_not(kernel, problem(300, 260, K, "TN", dtype), config) is None:
            assert run(kernel, a, b, config=config) is None


@RUNGS
@pytest.mark.parametrize("pack", ["a", "b", "ab"])
@pytest.mark.parametrize("layout", asm.LAYOUTS)
def test_copies_are_right(rung, pack, layout):
    kernel, dtype, configs, *_ = rung
    a, b = operands(101, 73, 43, dtype, layout, aligned=True)
    index = {"sgemm": 6, "dgemm": -2}[kernel.name]
    for swap in (False, True):
        config = dataclasses.replace(configs[index], PACK=pack, SWAP=swap)
        assert run(kernel, a, b, config=config) is None


@RUNGS
@pytest.mark.parametrize("parts", [5, 12])
def test_parts_on_streams(rung, parts):
    """Programs of several launches are on the GPU at once; sums have the same bits every time."""
    kernel, dtype, configs, *_ = rung
    tile = next(config for config in configs if config.BLOCK_M == config.BLOCK_N == 64)
    a, b = operands(200, 260, 4096, dtype, "NN", aligned=True)
    config = dataclasses.replace(tile, SPLIT_K=parts)
    assert kernel.arguments.fixed(problem(200, 260, 4096, "NN", dtype), config)["TOGETHER"]
    assert run(kernel, a, b, config=config) is None
    wanted = tritemm.matmul(a, b, kernel=kernel.name, config=config)
    streams, found = [torch.cuda.Stream() for _ in range(4)], []
    torch.cuda.synchronize()
    for stream in streams * 25:
        with torch.cuda.stream(stream):
            found.append(tritemm.matmul(a, b, kernel=kernel.name, config=config))
    torch.cuda.synchronize()
    assert all(torch.equal(c, wanted) for c in found)
