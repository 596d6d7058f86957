"""PyTorch's own sample inputs for matmul and __rmatmul__, contiguous and not."""

import pytest
import torch

import tritemm
from tests.harness import DEVICE
from tests.sweep import pairwise
from tests.torch.test_semantics import assert_twins

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

from torch.testing._internal.common_methods_invocations import op_db

OPS = {op.name: op for op in op_db if op.name in ("matmul", "__rmatmul__")}
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
#: As torch makes a sample, and with its tensors strided.
STORED = (lambda sample: sample, lambda sample: sample.noncontiguous())


def samples(name, dtype):
    return list(OPS[name].sample_inputs(DEVICE, dtype, requires_grad=False))


def rows(types):
    """(dtype, index of a sample, name of the operator, how it is stored) in the rows of a sweep."""
    count = len(samples("matmul", torch.float64))
    assert count == len(samples("__rmatmul__", torch.float64)) >= 10
    return pairwise(types, range(count), sorted(OPS), STORED)


def operands(name, sample):
    pair = (sample.input, *sample.args)
    return pair[::-1] if name == "__rmatmul__" else pair


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_samples(dtype):
    made = {name: samples(name, dtype) for name in OPS}
    for kind, index, name, stored in rows(TYPES):
        if kind is dtype:
            assert_twins(*operands(name, stored(made[name][index])))


def test_sample_gradients():
    """On whole numbers, which make the gradients exact."""
    made = {name: samples(name, torch.float64) for name in OPS}
    for _, index, name, stored in rows([torch.float64]):
        args = [t.round().requires_grad_() for t in operands(name, stored(made[name][index]))]
        got = torch.autograd.grad(tritemm.matmul(*args).sum(), args)
        want = torch.autograd.grad(torch.matmul(*args).sum(), args)
        for x, y in zip(got, want, strict=True):
            assert torch.equal(x, y)
