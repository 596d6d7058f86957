"""`row_parallel_linear` in one process; `test_distributed` runs it in several."""

import pytest
import torch
from torch.nn import functional as F

import tritemm
from tests.harness import DEVICE, assert_right
from tests.torch.twins import equal, integers
from tritemm.api.row_parallel import added, products


def made(rows, columns, terms, dtype=torch.float16):
    torch.manual_seed(0)
    sizes = (rows, terms), (columns, terms)
    return (torch.randn(*size, device=DEVICE).to(dtype) for size in sizes)


def of_processes(x, w, count, parts=8):
    """The sums of so many processes that have the columns of `x` and `w` in turn."""
    shares = zip(x.chunk(count, -1), w.chunk(count, -1), strict=True)
    return added(torch.stack([added(products(*share, parts // count)) for share in shares]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_tree_is_the_same(dtype):
    x, w = made(7, 9, 80, dtype)
    whole = of_processes(x, w, 1)
    for count in (2, 4, 8):
        assert torch.equal(of_processes(x, w, count), whole)
    assert torch.equal(tritemm.row_parallel_linear(x, w), whole.to(dtype))
    assert whole.dtype == torch.promote_types(dtype, torch.float32)
    assert_right(whole, x, w.mT)


@pytest.mark.gpu
@pytest.mark.parametrize(("N", "K"), [(4096, 14336), (1280, 8192), (2112, 7168)])
def test_bits_on_a_gpu(N, K):
    """Processes that have parts of other strides; few rows and many."""
    x, w = made(700, N, K, torch.bfloat16)
    whole = of_processes(x, w, 1)
    for count in (1, 2, 4, 8):
        for rows in (1, 16, 100, 700):
            shares = [t.contiguous() for t in w.chunk(count, -1)]
            sums = [
                added(products(a[:rows].contiguous(), b, 8 // count))
                for a, b in zip(x.chunk(count, -1), shares, strict=True)
            ]
            assert torch.equal(added(torch.stack(sums)), whole[:rows])


def test_transforms_are_refused():
    x, w = integers(3, 16), integers(5, 16)
    with pytest.raises(NotImplementedError, match="supports autograd alone"):
        torch.func.grad(lambda x: tritemm.row_parallel_linear(x, w).sum())(x)


def test_dimensions_and_gradients():
    x, w, bias = (integers(*size) for size in ((2, 3, 16), (5, 16), (5,)))
    ours, theirs = ([t.clone().requires_grad_() for t in (x, w, bias)] for _ in range(2))
    got, want = tritemm.row_parallel_linear(*ours), F.linear(*theirs)
    assert torch.equal(got, want)
    assert torch.equal(tritemm.row_parallel_linear(x[0, 1], w), F.linear(x[0, 1], w))
    factors = integers(2, 3, 5)
    equal(torch.autograd.grad(got, ours, factors), torch.autograd.grad(want, theirs, factors))


@pytest.mark.parametrize(("rows", "columns", "terms"), [(0, 5, 16), (3, 0, 16), (3, 5, 0)])
def test_empty(rows, columns, terms):
    x, w = (t.requires_grad_() for t in made(rows, columns, terms))
    got = tritemm.row_parallel_linear(x, w)
    assert torch.equal(got, x.new_zeros(rows, columns))
    got.sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x)) or columns
    assert x.grad.shape == x.shape and w.grad.shape == w.shape


def test_what_is_kept_and_autocast():
    x, w = made(4, 5, 16, torch.float32)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        tritemm.row_parallel_linear(x.requires_grad_(), w)
        assert kept == [w.shape]
        tritemm.row_parallel_linear(x.detach(), w.requires_grad_())
        assert kept == [w.shape, x.shape]
    with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        got = tritemm.row_parallel_linear(x, w)
    assert got.dtype == torch.bfloat16
    got.sum().backward()
    assert x.grad.dtype == torch.float32


def test_a_process_that_is_no_member(monkeypatch):
    """Torch gives it -1 as the number of processes."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: -1)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    x = torch.ones(3, 16, device=DEVICE)
    with pytest.raises(RuntimeError, match="process 1 is not in `group`"):
        tritemm.row_parallel_linear(x, x, group=object())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"parts": 4.0}, ValueError, "parts is 4.0; a power of two and"),
        ({"bias": [1.0]}, TypeError, "bias is list; a tensor of floats"),
        ({"input": torch.ones(3, 16).to(torch.int8)}, TypeError, "input is torch.int8"),
        ({"parts": 3}, ValueError, "parts is 3; a power of two"),
        ({"parts": 0}, ValueError, "parts is 0"),
        ({"parts": 32}, ValueError, "doesn't divide its 16 columns of K"),
        ({"bias": torch.ones(4)}, RuntimeError, r"bias has shape \[4\]; \[5\] is needed"),
        ({"weight": torch.ones(5, 8)}, RuntimeError, r"weight \[5, 8\]"),
        ({"weight": torch.ones(16)}, RuntimeError, r"weight \[16\]"),
    ],
)
def test_errors(arguments, error, message):
    usual = {"input": torch.ones(3, 16), "weight": torch.ones(5, 16)}
    there = {
        name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value
        for name, value in (usual | arguments).items()
    }
    with pytest.raises(error, match=message):
        tritemm.row_parallel_linear(**there)
