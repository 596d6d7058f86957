"""Writing to `out`: any of torch's, what is added to it, what it overlaps, and who must notice."""

import contextlib
import warnings

import pytest
import torch

import tritemm
from tests.harness import DEVICE, assert_right
from tests.torch.twins import integers, leaf, outcome, same

OUTS = {
    "right": lambda: torch.empty(4, 6),
    "transposed": lambda: torch.empty(6, 4).mT,
    "slice": lambda: torch.empty(8, 9)[::2, 1:7],
    "empty": lambda: torch.empty(0),
    "wrong shape": lambda: torch.empty(3, 3),
    "larger": lambda: torch.empty(10, 10),
    "wrong type": lambda: torch.empty(4, 6, dtype=torch.float64),
    "overlapping itself": lambda: torch.empty(1, 6).expand(4, 6),
    "requires grad": lambda: torch.empty(4, 6, requires_grad=True),
}


@pytest.mark.parametrize("name", OUTS)
def test_out(name):
    a, b = torch.randn(4, 5, device=DEVICE), torch.randn(5, 6, device=DEVICE)
    results = []
    for matmul in (torch.matmul, tritemm.matmul):
        with torch.device(DEVICE):
            out = OUTS[name]()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = outcome(lambda matmul=matmul, out=out: matmul(a, b, out=out))
        caught = {w.category for w in caught if "resized" in str(w.message)}
        if isinstance(result, torch.Tensor):
            assert result is out
            assert_right(out, a, b)
            result = (out.shape, out.stride())
        results.append((result, caught))
    assert results[0] == results[1]


def test_out_of_permuted_dimensions():
    a, b = integers(2, 3, 4, 5, 6), integers(2, 3, 4, 6, 7)
    out = torch.full((4, 3, 2, 5, 7), torch.nan, device=DEVICE).permute(2, 1, 0, 3, 4)
    assert tritemm.matmul(a, b, out=out) is out
    assert_right(out, a, b)


def test_out_may_be_an_input():
    """torch is silently wrong here; a temporary costs less than a wrong result."""
    a, b = (torch.randn(40, 40, device=DEVICE) for _ in "ab")
    want = a.clone(), b.clone()
    tritemm.matmul(a, b, out=b)
    assert_right(b, *want)
    b.copy_(want[1])
    shifted = a.flatten()[:-40].view(39, 40)
    want = shifted.clone()
    tritemm.matmul(shifted, b, out=a.flatten()[40:].view(39, 40))
    assert_right(a.flatten()[40:].view(39, 40), want, b)


def test_out_in_empty_products_is_zeroed_and_without_elements_overlaps_nothing():
    a = torch.empty(3, 0, device=DEVICE)
    out = torch.full((3, 3), torch.nan, device=DEVICE)
    tritemm.matmul(a, a.mT, out=out)
    assert torch.equal(out, torch.zeros_like(out))
    out = torch.zeros(1, 1, device=DEVICE).expand(0, 3)
    b = out.new_empty(3, 3)
    assert tritemm.matmul(a.mT, b, out=out) is out
    assert_right(out, a.mT, b)


@pytest.mark.filterwarnings("ignore:out was resized")
@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[:]], ids=["itself", "a view"])
def test_out_that_is_an_operand_of_another_shape(view):
    a, b = integers(4, 8), integers(8, 16)
    want = a @ b
    out = view(a)
    assert tritemm.matmul(a, b, out=out) is out
    assert torch.equal(out, want)


def test_out_that_stands_for_the_negative_of_its_memory():
    a = integers(4, 4)
    out = torch._neg_view(torch.empty(4, 4, device=DEVICE))
    assert torch.equal(tritemm.matmul(a, a, out=out), a @ a)


# What is added to it


@pytest.mark.parametrize("shape", [(6,), (1, 6), (4, 1)], ids=str)
def test_what_is_added_to_has_the_results_shape(shape):
    a, b, c = integers(4, 8), integers(8, 6), integers(*shape)
    want = a @ b + c
    with pytest.raises(RuntimeError, match="must have the result's shape"):
        tritemm.matmul(a, b, out=c.clone(), beta=1)
    with pytest.warns(UserWarning, match="resized"):
        assert torch.equal(tritemm.addmm(c, a, b, out=c), want)


def test_gradients_accumulate_into_out():
    a, b = integers(6, 4, dtype=torch.float16), integers(4, 5, dtype=torch.float16)
    total = torch.zeros(6, 5, device=DEVICE)
    for _ in range(3):
        tritemm.matmul(a, b, out=total, beta=1, out_dtype=torch.float32)
    same(total, 3 * (a.float() @ b.float()))
    assert total._version == 3


def test_what_out_overlaps_is_read_first():
    a, b = integers(4, 4), integers(4, 4)
    memory = torch.arange(20, dtype=torch.float32, device=DEVICE)
    residual, out = memory[:16].view(4, 4), memory[4:].view(4, 4)
    want = residual + a @ b
    assert torch.equal(tritemm.matmul(a, b, residual=residual, out=out), want)
    bias = memory[4:8]
    want = a @ b + bias
    assert torch.equal(tritemm.matmul(a, b, bias=bias, out=out), want)


# Who must notice


def modes():
    """Ways to call that lead around the short path."""
    yield contextlib.nullcontext()
    yield torch.autocast(DEVICE, dtype=torch.bfloat16)
    yield torch.profiler.profile()
    yield torch.device(DEVICE)


def test_writing_to_out_counts():
    """So that a backward pass that needs the old values says so."""
    a, b, w = integers(4, 4), integers(4, 4), leaf(4, 4, dtype=torch.float32)
    for mode in modes():
        out = integers(4, 4)
        y = (out * w).sum()
        with mode:
            tritemm.matmul(a, b, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_an_inference_tensor_is_no_out_outside_of_its_mode():
    a = integers(4, 4)
    with torch.inference_mode():
        out = torch.empty_like(a)
        assert torch.equal(tritemm.matmul(a, a, out=out), a @ a)
    for mode in modes():
        with mode, pytest.raises(RuntimeError, match="inference tensor"):
            tritemm.matmul(a, a, out=out)


def test_out_has_no_tangent():
    a, out = integers(3, 3, dtype=torch.float64), torch.empty(3, 3, device=DEVICE)
    calls = (
        lambda a, out: tritemm.matmul(a, a, out=out),
        lambda a, out: tritemm.addmm(a, a, a, alpha=2, out=out),
    )
    for call in calls:
        with pytest.raises(NotImplementedError, match="because it is an out= function"):
            torch.func.jvp(lambda a: call(a, out.double()), (a,), (a,))  # noqa: B023
