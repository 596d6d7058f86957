"""wgmma_fp8: what it refuses, what a launch is given, and its products, to the bit, on a GPU."""

import dataclasses
import re

import pytest
import torch

import cuda_reference
from cuda_reference import exact, source
from cuda_reference.__main__ import main
from cuda_reference.kernel import Call, Scaled
from cuda_reference.rungs import RUNGS
from tests.cuda.test_reference import fields_of, meta, tile_of
from tests.dispatch.choosing import A100, H200
from tests.harness import DEVICE, Guarded, operand
from tritemm import budget, plan
from tritemm.problem import BLOCK, Problem

pytestmark = pytest.mark.host

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
(KERNEL,) = [kernel for kernel in RUNGS if kernel.limits.sums]
#: Ragged in each direction, one step and many: more than there are stages.
SIZES = [(130, 140, 900), (1, 1, 1), (64, 128, 128), (70, 9, 127), (129, 257, 260), (5, 300, 131)]


def operands(M, N, K, offset=0):
    """A [M, K] and B [K, N] by columns, exact ones; NaN between their lines."""
    a = operand(M, K, E4M3, offset=offset, aligned=True)
    b = operand(K, N, E4M3, "T", offset=offset, aligned=True)
    for lines in (a, b.mT):
        lines.copy_(exact.integers(*lines.shape, DEVICE))
    return a, b


def scales(M, N, K, layout="N"):
    """A's and B's; by rows, by columns, strided, with NaN in between, or all of one element (0)."""
    steps = -(-K // BLOCK)
    for lines in (M, -(-N // BLOCK)):
        if layout == "0":
            yield exact.scales(1, 1, DEVICE).expand(lines, steps)
        else:
            yield operand(lines, steps, FP32, layout).copy_(exact.scales(lines, steps, DEVICE))


def wanted(a, b, scale_a, scale_b, dtype):
    """The product rounded once, as its sums are exact."""
    found = budget.dequantized(a, scale_a) @ budget.dequantized(b.mT, scale_b).mT
    assert torch.equal(found, found.float().double())
    return found.float().to(dtype)


def multiply(M, N, K, layout="N", dtype=BF16, config=None, promoted=True, offset=0, **guard):
    """Runs the rung and checks every element and every guard."""
    (a, b), known = operands(M, N, K, offset), tuple(scales(M, N, K, layout))
    guarded = Guarded.like((M, N), dtype, **guard)
    problem = Problem.of(a, b, guarded.tensor, scales=(*known, promoted), device=H200)
    assert KERNEL.why_not(problem) is None
    plan.run(KERNEL, problem, config or tile_of(KERNEL), a, b, guarded.tensor, *known)
    guarded.assert_untouched_outside()
    assert torch.equal(guarded.tensor, wanted(a, b, *known, dtype))


# Refusals


def problem_of(of_a=(300, 2), of_b=(3, 2), dtype=E4M3, out=BF16, device=H200, **options):
    a, b = meta(300, 208, dtype), meta(208, 270, dtype, "T")
    if of_a:
        options["scales"] = (meta(*of_a, FP32), meta(*of_b, FP32), True)
    return Problem.of(a, b, meta(300, 270, out), device=device, **options)


REFUSED = {
    "WGMMA needs compute capability 9.0; .*A100": {"device": A100},
    "a is fp16; this kernel multiplies fp8_e4m3fn": {"dtype": FP16},
    "a is fp8_e5m2; this kernel multiplies fp8_e4m3fn": {"dtype": E5M2},
    "c is fp32; this kernel writes bf16 or fp16": {"out": FP32},
    "the accumulator is fp16; for fp8_e4m3fn this kernel has fp32": {"accumulate": FP16},
    "it is for operands with scales, and these have none": {"of_a": None},
    "128 rows of a share a scale; this kernel has one for each row": {"of_a": (3, 2)},
    "each column of b has a scale; this kernel has one for 128 columns": {"of_b": (270, 2)},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refusals(sentence):
    reason = KERNEL.why_not(problem_of(**REFUSED[sentence]))
    assert reason and re.match(sentence, reason)


def test_rows_that_tma_cannot_read():
    a, b = meta(300, 200, E4M3), meta(200, 270, E4M3, "T")
    known = meta(300, 2, FP32), meta(3, 2, FP32), True
    asked = Problem.of(a, b, meta(300, 270, BF16), scales=known, device=H200)
    assert KERNEL.why_not(asked).startswith("row stride of a is 200 bytes; ")


def test_what_is_not_refused():
    """Scales of whole lines, or of all elements, are those of blocks whose strides are 0."""
    for sizes in ({}, {"of_a": (300, 1)}, {"of_b": (3, 1)}, {"out": FP16}):
        assert KERNEL.why_not(problem_of(**sizes)) is None


def test_the_other_rungs_refuse_scales():
    for kernel in RUNGS[:-1]:
        assert kernel.why_not(problem_of()) == "operands have scales of blocks"


# A launch


def test_scaled_is_laid_out_as_scales_cuh_says():
    (_, first), *others = Scaled._fields_
    text = (source.INCLUDE / "scales.cuh").read_text()
    assert list(fields_of(text, "Scaled"))[1:] == others and first is Call


def test_what_a_launch_passes(library, monkeypatch):
    passed = []
    monkeypatch.setattr(library, "launch", lambda pointer: passed.append(pointer._obj))
    a, b = torch.zeros(64, 256, dtype=E4M3), torch.zeros(48, 272, dtype=E4M3)[:, :256].mT
    c = torch.zeros(64, 48, dtype=BF16)
    of_a, of_b = torch.zeros(2, 70)[:, :64].mT, torch.zeros(1, 5)[:, ::4]
    for known in ((of_a, of_b), (of_a[:1].expand(64, 2), of_b[:, :1])):
        problem = Problem.of(a, b, c, scales=(*known, True), device=H200)
        KERNEL.launch(problem, tile_of(KERNEL), a, b, c, *known)
    names = ("scale_a", "scale_b", "a_line", "a_step", "b_line", "b_step")
    addresses = of_a.data_ptr(), of_b.data_ptr()
    given = [tuple(getattr(each, name) for name in names) for each in passed]
    assert given == [(*addresses, 1, 70, 0, 4), (*addresses, 0, 70, 0, 0)]
    call = passed[0].call
    assert (call.type, call.lda, call.ldb, call.ldc, call.accumulate) == (1, 256, 272, 48, 0)


# The call

GIVEN = {
    "a": torch.zeros(60, 208, dtype=E4M3), "b": torch.zeros(48, 208, dtype=E4M3).mT,
    "scale_a": torch.ones(60, 2), "scale_b": torch.ones(1, 2),
}  # fmt: skip


def refused(error, message, **options):
    with pytest.raises(error, match=message):
        cuda_reference.scaled_mm(**GIVEN | {"kernel": KERNEL} | options)


def test_what_is_no_scaled_product(as_h200):
    refused(TypeError, "scale_a must be a Tensor, not float", scale_a=1.0)
    refused(RuntimeError, r"scale_a is \[60, 1\] .*it is \[60, 2\]", scale_a=torch.ones(60, 1))
    refused(RuntimeError, r"scale_b is \[1, 2\] of torch.float16", scale_b=GIVEN["scale_b"].half())
    refused(ValueError, "a has 3 dimensions; .*: call it for each$", a=torch.zeros(2, 60, 208))
    refused(RuntimeError, "cannot be multiplied: K is 208 in one and 48", b=GIVEN["b"].mT)
    refused(ValueError, "a is fp16; .*fp8", a=GIVEN["a"].half())
    refused(ValueError, "c is fp32; this kernel writes bf16 or fp16$", out_dtype=FP32)
    sentence = '"wgmma_cluster" cannot run this problem: .*; kernel="wgmma_fp8" can run this'
    refused(ValueError, sentence, kernel="wgmma_cluster")
    with pytest.raises(ValueError, match=r"it is for operands with scales, and these have none$"):
        cuda_reference.matmul(GIVEN["a"], GIVEN["b"], kernel=KERNEL)
    assert as_h200 == []


def test_scaled_products_are_passed_on(as_h200):
    out = torch.zeros(60, 48, dtype=FP16)
    asked = GIVEN | {"kernel": "wgmma_fp8"}
    assert cuda_reference.scaled_mm(**asked, out=out) is out and out._version == 1
    assert cuda_reference.scaled_mm(**asked).dtype == BF16
    assert [(call.M, call.N, call.K, call.type) for call in as_h200] == [
        (60, 48, 208, 0), (60, 48, 208, 1),
    ]  # fmt: skip
    for more in (
        {"a": GIVEN["a"][:0], "scale_a": torch.ones(0, 2)},
        {"a": GIVEN["a"][:, :0], "b": GIVEN["b"][:0], "scale_a": torch.ones(60, 0),
         "scale_b": torch.ones(1, 0)},
    ):  # fmt: skip
        assert not cuda_reference.scaled_mm(**asked | more).any()
    assert len(as_h200) == 2


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("size", [*SIZES, (2000, 3000, 2000), (16, 4096, 7168)], ids=str)
def test_sizes(size):
    """More tiles and more steps than stages; NaN between the lines of A and B."""
    multiply(*size, pitch_gap=1)


@pytest.mark.gpu
@pytest.mark.parametrize("K", [1, 15, 16, 17, 33, 127, 128, 129, 255, 257, 767, 768, 769])
def test_a_tail_of_k_is_zeros_and_not_the_next_row(K):
    multiply(73, 41, K)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("layout", ["N", "T", "S", "0"])
def test_scales_of_any_strides(layout, dtype):
    multiply(300, 270, 900, layout, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("gap", [0, 1, 8])
@pytest.mark.parametrize("columns", [1, 65, 130])
def test_stores_stay_inside_a_row(columns, gap):
    multiply(70, columns, 200, pitch_gap=gap)


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["grouped", "linear", "serpentine"])
def test_orders(order):
    config = dataclasses.replace(tile_of(KERNEL), ORDER=order, GROUP_M=3)
    multiply(1100, 2300, 140, config=config)


@pytest.mark.gpu
def test_storage_offset():
    multiply(45, 61, 150, offset=16)


@pytest.mark.gpu
def test_sums_are_promoted():
    """2**14, and then ones, which a sum of 14 bits would lose."""
    a = torch.full((40, 4096), 2**-4, device=DEVICE)
    a[:, :BLOCK] = 8
    b, ones = torch.full((24, 4096), 16.0, device=DEVICE), torch.ones(40, 32, device=DEVICE)
    c = cuda_reference.scaled_mm(a.to(E4M3), b.to(E4M3).mT, ones, ones[:1], kernel=KERNEL)
    assert torch.equal(c, torch.full_like(c, 2**14 + 4096 - BLOCK))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(300, 270, 900), (1000, 520, 4096)], ids=str)
def test_random_numbers(size):
    """Against fp64, in units of sums of sizes, of which the tensor core keeps 14 bits."""
    M, N, K = size
    a, b = operand(M, K, E4M3, aligned=True), operand(K, N, E4M3, "T", aligned=True)
    steps = -(-K // BLOCK)
    known = [torch.rand(n, steps, device=DEVICE) + 0.5 for n in (M, -(-N // BLOCK))]
    c = cuda_reference.scaled_mm(a, b, *known, kernel=KERNEL)
    left, right = budget.dequantized(a, known[0]), budget.dequantized(b.mT, known[1]).mT
    want, magnitude = left @ right, left.abs() @ right.abs()
    bound = magnitude * 2**-11 + want.abs() * torch.finfo(BF16).eps / 2
    assert ((c.double() - want).abs() <= bound).all()


@pytest.mark.gpu
def test_nan_and_infinite_scales_stay_in_their_lines():
    """A scale of a row reaches that row alone, one of B 128 columns."""
    a, b = operands(300, 270, 300)
    known = [torch.ones(n, 3, device=DEVICE) for n in (300, 3)]
    known[0][7, 1], known[1][1, 2], a[299, 299] = torch.nan, torch.inf, torch.nan
    c = cuda_reference.scaled_mm(a, b, *known, kernel=KERNEL)
    special = torch.zeros(300, 270, dtype=torch.bool, device=DEVICE)
    special[7], special[299], special[:, 128:256] = True, True, True
    assert torch.equal(~c.isfinite(), special)


@pytest.mark.gpu
def test_same_bits_every_time():
    """A race shows in some runs."""
    a, b = operand(700, 1000, E4M3, aligned=True), operand(1000, 648, E4M3, "T", aligned=True)
    known = [torch.rand(n, 8, device=DEVICE) for n in (700, 6)]
    first, *others = (cuda_reference.scaled_mm(a, b, *known, kernel=KERNEL) for _ in range(30))
    assert all(torch.equal(first, c) for c in others)


@pytest.mark.gpu
@pytest.mark.parametrize("of_b", [(1, 1), (3, 1)], ids=str)
def test_scales_of_whole_rows(of_b):
    """Sums are promoted, and scaled by what is the same in each step."""
    (a, b), of_a = operands(300, 270, 900), exact.scales(300, 1, DEVICE)
    of_b = exact.scales(*of_b, DEVICE).expand(3, 1)
    c = torch.empty(300, 270, dtype=BF16, device=DEVICE)
    problem = Problem.of(a, b, c, scales=(of_a, of_b, True))
    plan.run(KERNEL, problem, tile_of(KERNEL), a, b, c, of_a, of_b)
    assert torch.equal(c, wanted(a, b, of_a.expand(300, 8), of_b.expand(3, 8), BF16))


@pytest.mark.gpu
@pytest.mark.parametrize("size", ["300,264,208", "128,128,4096"])
def test_run_command(size, capsys):
    assert main(["run", KERNEL.name, "--size", size]) == 0
    out = capsys.readouterr().out
    assert "fp8_e4m3fn x fp8_e4m3fn -> bf16; scales" in out
    assert "ok: the worst error is" in out and "TFLOP/s" in out


@pytest.mark.gpu
def test_stream_and_graph():
    """Launches wait for their own stream; a graph replays them on new data."""
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        (a, b), known = operands(300, 264, 400), tuple(scales(300, 264, 400))
        c = cuda_reference.scaled_mm(a, b, *known, kernel=KERNEL)
    torch.cuda.synchronize()
    assert torch.equal(c, wanted(a, b, *known, BF16))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuda_reference.scaled_mm(a, b, *known, kernel=KERNEL, out=c)
    a.copy_(exact.integers(*a.shape, DEVICE))
    known[0].mul_(2)
    c.fill_(torch.nan)
    graph.replay()
    assert torch.equal(c, wanted(a, b, *known, BF16))


@pytest.mark.gpu
@pytest.mark.large(5)
def test_rows_far_apart():
    """A, B and C have a pitch of 2**24 bytes and more: the last rows begin past 2**31."""
    pitch, rows, K = 2**24, 270, 300
    storage = torch.empty(rows, pitch, dtype=torch.uint8, device=DEVICE)
    a, b = storage[:, :K].view(E4M3), storage[:260, 1024 : 1024 + K].view(E4M3).mT
    c = storage[:, 2048 : 2048 + 2 * 260].view(BF16)
    for lines in (a, b.mT):
        lines.copy_(exact.integers(*lines.shape, DEVICE))
    known = tuple(scales(rows, 260, K))
    problem = Problem.of(a, b, c, scales=(*known, True))
    plan.run(KERNEL, problem, tile_of(KERNEL), a, b, c, *known)
    assert torch.equal(c, wanted(a, b, *known, BF16))
