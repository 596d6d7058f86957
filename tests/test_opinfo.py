"""PyTorch's own sample inputs for matmul and __rmatmul__, contiguous and not."""

import pytest
import torch

import tritemm

from .harness import DEVICE
from .test_semantics import assert_twins

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

from torch.testing._internal.common_methods_invocations import op_db

OPS = {op.name: op for op in op_db if op.name in ("matmul", "__rmatmul__")}
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def samples(name, dtype, requires_grad=False):
    for sample in OPS[name].sample_inputs(DEVICE, dtype, requires_grad):
        yield sample
        yield sample.noncontiguous()


def operands(name, sample):
    pair = (sample.input, *sample.args)
    return pair[::-1] if name == "__rmatmul__" else pair


@pytest.mark.parametrize("name", ["matmul", "__rmatmul__"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_samples(name, dtype):
    count = 0
    for sample in samples(name, dtype):
        assert_twins(*operands(name, sample))
        count += 1
    assert count >= 20


@pytest.mark.parametrize("name", ["matmul", "__rmatmul__"])
def test_sample_gradients(name):
    """On whole numbers, which make the gradients exact."""
    for sample in samples(name, torch.float64):
        args = [t.round().requires_grad_() for t in operands(name, sample)]
        got = torch.autograd.grad(tritemm.matmul(*args).sum(), args)
        want = torch.autograd.grad(torch.matmul(*args).sum(), args)
        for x, y in zip(got, want, strict=True):
            assert torch.equal(x, y)
