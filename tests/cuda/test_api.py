"""`cuda_reference.matmul` and `ladder`: refusals anywhere, products on a GPU."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import cuda_reference
import tritemm
from cuda_reference.rungs import RUNGS
from tests.cuda.test_reference import FP16, FP32, operands, rungs
from tests.harness import DEVICE, Guarded, operand
from tritemm import Config, budget

pytestmark = pytest.mark.host

ROOT = Path(__file__).resolve().parents[2]


def test_the_import_looks_for_no_compiler():
    code = (
        "import sys, cuda_reference\n"
        "from cuda_reference import toolkit\n"
        "assert toolkit._find_nvcc.cache_info().currsize == 0\n"
        "assert 'torch.utils.cpp_extension' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def zeros(*shape, dtype=FP16):
    return torch.zeros(shape, dtype=dtype)


A, W = zeros(64, 32), zeros(48, 32)


def refused(error, message, a=A, b=W.mT, kernel="mma_base", **options):
    with pytest.raises(error, match=message):
        cuda_reference.matmul(a, b, kernel=kernel, **options)


def test_what_is_no_product(as_h200):
    refused(TypeError, "a must be a Tensor, not list", a=[[1.0]])
    refused(
        ValueError, "a has 3 dimensions; .*: call it for each, or use tritemm", a=zeros(2, 64, 32)
    )
    refused(ValueError, "b has 1 dimensions", b=zeros(32))
    refused(RuntimeError, r"a \(64, 32\) and b \(48, 32\) cannot be multiplied: K is 32 ", b=W)
    meta = W.to("meta").mT
    refused(RuntimeError, "on the same device, but a is on cpu and b on meta", b=meta)
    refused(RuntimeError, "b requires a gradient, .*tritemm.matmul", b=W.mT.requires_grad_())
    refused(ValueError, "torch.sparse_coo", a=A.to_sparse())
    assert as_h200 == []


def test_what_no_result_can_be_written_to(as_h200):
    refused(ValueError, r"out is \[64, 47\]; it should be \[64, 48\]", out=zeros(64, 47))
    refused(
        ValueError, "c is fp32; this kernel writes the type of a", out=zeros(64, 48, dtype=FP32)
    )
    refused(ValueError, "elements of a row of c are 64 elements apart", out=zeros(48, 64).mT)
    refused(ValueError, "rows of out overlap, 0 elements apart", out=zeros(48).expand(64, 48))
    square, w = zeros(64, 64), zeros(64, 64)
    refused(ValueError, "out shares memory with a or b", a=square, b=w.mT, out=w)
    assert as_h200 == []


def test_what_the_rung_refuses_and_who_does_not(as_h200):
    fp32 = {"a": A.float(), "b": W.mT.float()}
    refused(
        ValueError,
        '^kernel="mma_base" cannot run this problem: a is fp32; .* fp16 or bf16$',
        **fp32,
    )
    refused(ValueError, "a is uint8; this kernel multiplies", a=A.byte(), b=W.mT.byte())
    wide = zeros(64, 35)[:, :32]
    refused(ValueError, 'row stride of a is 70 bytes; .*; kernel="wgmma_m64n8k16" can', a=wide)
    options = {"kernel": "wgmma_tma", "accumulate": FP16}
    refused(ValueError, 'accumulator is fp16; .*; kernel="mma_async_stage4" can', **options)
    assert as_h200 == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_on_the_cpu_the_reason_is_said():
    for a in (A, A[:0], A[:, :0]):
        b = W.mT[: a.shape[1]]
        refused(
            ValueError, "the tensors are on the CPU; a CUDA kernel needs them on a GPU", a=a, b=b
        )


def test_which_kernel(as_h200):
    refused(ValueError, "no rung is called 'tma'; there are simt_naive, ", kernel="tma")
    refused(TypeError, "not int", kernel=3)
    triton = tritemm.ladder()[0]
    refused(ValueError, "is not of cuda_reference.ladder.*; tritemm.matmul runs it", kernel=triton)
    for kernel in (RUNGS[10], RUNGS[10].name):
        cuda_reference.matmul(A, W.mT, kernel=kernel)
    with pytest.raises(TypeError, match="kernel"):
        cuda_reference.matmul(A, W.mT)
    assert len(as_h200) == 2


def test_which_config(as_h200):
    first, second = RUNGS[10].configs(None)
    fields = {"BLOCK_M": 256, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 8, "GROUP_M": 3}
    for config in (None, first, second, fields | {"ORDER": "linear"}):
        cuda_reference.matmul(A, W.mT, kernel="mma_base", config=config)
    asked = [(call.order, call.group) for call in as_h200]
    assert asked == [(1, 16), (1, 16), (0, 16), (0, 3)]
    refused(ValueError, r'"mma_base" cannot run this config: Config\(BLOCK_M=128.*; it has Config',
            config=Config(128, 128, 32))  # fmt: skip
    refused(ValueError, "config has no field 'BLOCK'", config={"BLOCK": 1})


def test_what_is_passed_on(as_h200):
    out = zeros(64, 48)
    before = out._version
    assert cuda_reference.matmul(A, W.mT, kernel="mma_base", out=out, accumulate=FP16) is out
    (call,) = as_h200
    assert (call.M, call.N, call.K, call.accumulate, call.stream) == (64, 48, 32, 1, 7)
    assert call.c == out.data_ptr() and out._version == before + 1
    c = cuda_reference.matmul(A, W.mT, kernel="mma_base")
    assert (c.shape, c.dtype) == ((64, 48), FP16) and as_h200[1].accumulate == 0


def test_an_empty_product_launches_nothing(as_h200):
    for M, N, K in ((0, 48, 32), (64, 0, 32), (64, 48, 0), (0, 0, 0)):
        out = zeros(M, N) + 1
        c = cuda_reference.matmul(zeros(M, K), zeros(N, K).mT, kernel="mma_base", out=out)
        assert c.shape == (M, N) and not c.any()
    refused(ValueError, "a is fp32", a=zeros(64, 0, dtype=FP32), b=zeros(0, 48, dtype=FP32))
    assert as_h200 == []


GROUPS = {"a": zeros(60, 32), "b": zeros(3, 48, 32).mT, "offs": torch.zeros(3, dtype=torch.int32)}


def grouped_refused(error, message, kernel="mma_async_grouped", **options):
    with pytest.raises(error, match=message):
        cuda_reference.grouped_mm(**GROUPS | options, kernel=kernel)


def test_what_are_no_groups(as_h200):
    grouped_refused(ValueError, "b has 2 dimensions; .*use tritemm.grouped_mm", b=W.mT)
    grouped_refused(RuntimeError, r"a \(60, 32\) and b \(48, 32\) cannot", b=zeros(3, 48, 32))
    grouped_refused(TypeError, "offs must be a Tensor, not list", offs=[3])
    for offs in (GROUPS["offs"].long(), GROUPS["offs"][1:], GROUPS["offs"].to("meta")):
        grouped_refused(
            RuntimeError, r"offs is .*; .* it is \[3\] of torch.int32 on cpu", offs=offs
        )
    grouped_refused(ValueError, r"out is \[60, 47\]; it should be", out=zeros(60, 47))
    sentence = '"mma_base" cannot run this problem: M is cut .*; kernel="mma_async_grouped" can run'
    grouped_refused(ValueError, sentence, kernel="mma_base")
    grouped_refused(ValueError, "a is fp32", a=GROUPS["a"].float(), b=GROUPS["b"].float())
    assert as_h200 == []


def test_groups_are_passed_on(as_h200):
    out = zeros(60, 48)
    asked = GROUPS | {"kernel": "mma_async_grouped"}
    assert cuda_reference.grouped_mm(**asked, out=out) is out and out._version == 1
    assert cuda_reference.grouped_mm(**asked, accumulate=FP16).shape == (60, 48)
    sizes = [(call.M, call.N, call.K, call.accumulate) for call in as_h200]
    assert sizes == [(60, 48, 32, 0), (60, 48, 32, 1)]
    none = {"b": zeros(0, 48, 32).mT, "offs": GROUPS["offs"][:0]}
    for more in (none, {"a": zeros(60, 0), "b": zeros(3, 48, 0).mT}, {"a": zeros(0, 32)}):
        assert not cuda_reference.grouped_mm(**asked | more).any()
    assert len(as_h200) == 2


# On a GPU


@pytest.mark.gpu
@rungs
def test_products(kernel):
    a, b = operands(300, 264, 200)
    c = cuda_reference.matmul(a, b, kernel=kernel.name)
    assert budget.check(c, a, b).ok
    guarded = Guarded.like((300, 264), FP16, pitch_gap=3)
    assert cuda_reference.matmul(a, b, kernel=kernel, out=guarded.tensor) is guarded.tensor
    assert torch.equal(guarded.tensor, c)
    guarded.assert_untouched_outside()


@pytest.mark.gpu
def test_the_current_stream_and_another_device():
    a, b = operands(300, 264, 200)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = a.clone()
        c = cuda_reference.matmul(late, b, kernel="mma_async_stage3")
    stream.synchronize()
    assert budget.check(c, a, b).ok


@pytest.mark.gpu
@pytest.mark.devices(2)
def test_any_device():
    a, b = operands(300, 264, 200)
    with torch.cuda.device(1):
        assert budget.check(cuda_reference.matmul(a, b, kernel="mma_base"), a, b).ok
    x, y = a.to("cuda:1"), b.to("cuda:1")
    assert cuda_reference.matmul(x, y, kernel="mma_base").device == x.device
    with pytest.raises(RuntimeError, match="on the same device, but a is on cuda:0 and b on cu"):
        cuda_reference.matmul(a, y, kernel="mma_base")


@pytest.mark.gpu
def test_the_accumulator_and_an_empty_product():
    a = torch.zeros(40, 64, dtype=FP16, device=DEVICE)
    a[:, 0], a[:, 32:] = 2048, 1
    b = torch.ones(24, 64, dtype=FP16, device=DEVICE).mT
    for accumulate, expected in ((None, 2080), (FP32, 2080)):
        c = cuda_reference.matmul(a, b, kernel="mma_base", accumulate=accumulate)
        assert torch.equal(c, torch.full_like(c, expected))
    nothing = cuda_reference.matmul(a[:, :0], b[:0], kernel="mma_base")
    assert nothing.shape == (40, 24) and not nothing.any()


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["NT", "NN"])
def test_products_of_groups(layout):
    sizes = (5, 0, 300, 33, 0, 130)
    ends = torch.tensor(sizes).cumsum(0)
    a = operand(int(ends[-1]) + 40, 200, FP16, aligned=True)
    b = operand(200, 264, FP16, layout[1], (len(sizes),), aligned=True)
    offs = ends.to(DEVICE, torch.int32)
    c = cuda_reference.grouped_mm(a, b, offs, kernel="mma_async_grouped")
    for group, (end, size) in enumerate(zip(ends.tolist(), sizes, strict=True)):
        assert budget.check(c[end - size : end], a[end - size : end], b[group]).ok
    assert not c[ends[-1] :].any()
