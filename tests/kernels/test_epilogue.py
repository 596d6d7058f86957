"""What follows a product in its kernel: bias, activation, residual, alpha and beta."""

import dataclasses
import itertools

import pytest
import torch

from tests.harness import DEVICE, ids, operand, operands, run, rung_param, rung_sweep, typed
from tests.kernels.test_signs import expect_no_faults
from tests.sweep import drawn
from tritemm.compile import asm
from tritemm.problem import EpilogueInputs, Problem
from tritemm.rungs import RUNGS

BF16, HALF, FP32 = torch.bfloat16, torch.float16, torch.float32
RELU = Problem.of(*[torch.empty(64, 64)] * 3, activation="relu")
#: Rungs that have an epilogue.
FUSING = [kernel for kernel in RUNGS if "has no epilogue" not in (kernel.why_not(RELU) or "")]
ENDINGS = {
    "bias": ("n", None, "", 1.0, 1.0),
    "bias-gelu": ("n", None, "gelu", 1.0, 1.0),
    "alpha-beta-strided": (None, "S", "", -0.75, 2.5),
    "accumulated": (None, "out", "", 1.0, 1.0),
    "silu-broadcast": ("n", "row", "silu", 1.0, 0.5),
    "all-transposed": ("n", "T", "gelu_tanh", 0.5, -1.5),
    "relu-fp32": (None, "wide", "relu", 1.0, 1.0),
}


def ending_of(kind, M, N, dtype, batch=()):
    """The `EpilogueInputs` of one of `ENDINGS`; "out" is for `run` to fill in."""
    bias, residual, *rest = kind
    if bias:
        bias = torch.randn(N, dtype=torch.float64, device=DEVICE).to(dtype)
    if residual == "row":
        residual = operand(1, N, dtype).expand(*batch, M, N)
    elif residual == "wide":
        residual = operand(M, N, FP32, batch=batch)
    elif residual and residual != "out":
        residual = operand(M, N, dtype, residual, batch)
    return EpilogueInputs(bias, residual, *rest)


SHAPES = {
    "ragged": (45, 72, 40, ()),
    "narrow": (5, 136, 72, ()),
    "batched": (40, 24, 40, (2, 3)),
}


@pytest.mark.wide
@rung_sweep(ending=ENDINGS, shape=SHAPES, dtype=ids([BF16, HALF, FP32]), layout=ids(["NN", "NT"]))
def test_every_rung(kernel, ending, shape, dtype, layout):
    M, N, K, batch = shape
    a, b = operands(M, N, K, dtype, layout, batch=batch)
    reason = run(kernel, a, b, ending=ending_of(ending, M, N, dtype, batch))
    if kernel not in FUSING:
        assert "has no epilogue" in reason


def test_which_rungs_fuse():
    """All that "auto" takes."""
    assert {kernel for kernel in RUNGS if kernel.policy.auto} <= set(FUSING)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NT", "TN"])
@pytest.mark.parametrize("kernel", [rung_param(kernel) for kernel in FUSING])
def test_configs(kernel, layout):
    """Several tiles and steps, the last of them incomplete; swapped as well. Configs are drawn."""
    M, N, K = 392, 456, 1096
    dtype = typed(kernel, BF16)
    a, b = operands(M, N, K, dtype, layout)
    # What is activated in fp64 is so apart from its product.
    name = "alpha-beta-strided" if dtype == torch.float64 else "all-transposed"
    ending = ending_of(ENDINGS[name], M, N, dtype)
    problem = Problem.of(a, b, torch.empty(M, N, dtype=dtype, device=DEVICE))
    for config in drawn(kernel.configs(problem), 3):
        assert run(kernel, a, b, config=config, ending=ending) is None
        swapped = dataclasses.replace(config, SWAP=True)
        assert run(kernel, a, b, config=swapped, ending=ending) is None


@pytest.mark.parametrize(
    ("rung", "job"),
    [
        ("persistent", {"residual": True}),
        ("persistent", {"dtype": "fp16", "accumulate": "fp16", "bias": True}),
        ("persistent", {"dtype": "fp32", "precision": "tf32", "layout": "NT", "residual": True}),
        ("tma", {"dtype": "fp16", "accumulate": "fp16", "bias": True, "residual": True}),
    ],
)
def test_what_is_added_finds_room(rung, job):
    """Triton exchanges it between threads, beside the stages and the output, in the largest tile
    that is offered."""
    (code,) = asm.compile_many([asm.Job(rung, N=768, **job)], "usage")
    assert code.fits, f"{code.shared} bytes of shared memory"


def test_rungs_that_need_a_gpu_compile_with_all_of_it():
    """Here as well: with a bias, a residual and an activation, some stored by threads."""
    rungs = [kernel for kernel in FUSING if kernel.interpreted is None]
    ending = {"activation": "silu", "bias": True, "residual": True}
    jobs = [
        asm.Job(kernel.name, M=512, N=n, K=1024, layout="NT", **ending)
        for kernel, n in zip(rungs, itertools.cycle((512, 333)))
    ]
    # The last config is the one with the smallest tile, or nearly.
    jobs = [dataclasses.replace(job, config=asm.configs_of(job)[-1]) for job in drawn(jobs, 5)]
    expect_no_faults(jobs, "usage")
