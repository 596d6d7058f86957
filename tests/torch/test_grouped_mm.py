"""`tritemm.grouped_mm` as PyTorch users call it: forms, `out`, derivatives, graphs, refusals."""

import math

import pytest
import torch

import tritemm
from tests.groups import bounds, check, cut, offsets
from tests.harness import DEVICE, Guarded, assert_right, operand
from tritemm.problem import activated

BF16, HALF, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize("form", "mnk")
@pytest.mark.parametrize("dtype", [torch.float16, FP32], ids=str)
def test_out(form, dtype):
    sizes = (9, 0, 12)
    offs = offsets(sizes)
    a, b = cut(form, 16, 24, 3, 25, dtype)
    plain = tritemm.grouped_mm(a, b, offs=offs)
    out = torch.empty_like(plain.mT.contiguous()).mT
    assert tritemm.grouped_mm(a, b, offs=offs, out=out) is out
    assert torch.equal(out, plain)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        tritemm.grouped_mm(a, b, offs=offs, out=out.double())
    if form == "m":  # of its own memory, also where the shape changes
        own = a.clone()
        with pytest.warns(UserWarning, match="out was resized"):
            assert torch.equal(tritemm.grouped_mm(own, b, offs=offs, out=own), plain)
        square = torch.randn(3, 24, 24, device=DEVICE).to(dtype)
        want = tritemm.grouped_mm(a, square, offs=offs)
        assert torch.equal(tritemm.grouped_mm(a, square, offs=offs, out=a), want)


def test_nothing_to_add_up():
    """alpha = 0, K = 0, no groups and no rows: zeros, or the bias alone."""
    offs, bias = offsets((4, 6)), operand(2, 16, FP32)
    nan = torch.full((12, 8), math.nan, device=DEVICE)
    weights = torch.full((2, 8, 16), math.nan, device=DEVICE)
    want = torch.cat([bias[0].expand(4, -1), bias[1].expand(6, -1), bias.new_zeros(2, 16)])
    for a, b, alpha in ((nan, weights, 0), (nan[:, :0], weights[:, :0], 1)):
        assert torch.equal(tritemm.grouped_mm(a, b, offs=offs, bias=bias, alpha=alpha), want)
    columns = nan[:, :1].expand(-1, 16)
    for rows, alpha in ((12, 0), (0, 1)):
        found = tritemm.grouped_mm(
            nan.mT[:, :rows], columns[:rows], offs=offs, bias=bias, alpha=alpha
        )
        assert torch.equal(found, bias[:, None].expand(-1, 8, -1))
    assert not tritemm.grouped_mm(nan.mT, nan, offs=offs, alpha=0).count_nonzero()
    whole = tritemm.grouped_mm(weights.mT, weights, bias=bias, alpha=0)
    assert torch.equal(whole, bias[:, None].expand(-1, 16, -1))
    none = offs[:0]
    assert not tritemm.grouped_mm(nan, weights[:0], offs=none).count_nonzero()
    assert tritemm.grouped_mm(nan.mT, nan, offs=none).shape == (0, 8, 8)
    assert tritemm.grouped_mm(nan[:0], weights, offs=offs * 0).shape == (0, 16)


@pytest.mark.parametrize("ends", [(9, 3, 12), (-5, 4, 12), (5, 50, 60), (2**31 - 1,) * 3])
def test_offsets_that_decrease_or_reach_out_write_nothing_outside(ends):
    offs = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    for form in "mnk":
        a, b = cut(form, 16, 24, 3, 20, FP32)
        guarded = Guarded.like({"m": (20, 16), "n": (16, 20), "k": (3, 16, 16)}[form], FP32)
        tritemm.grouped_mm(a, b, offs=offs, out=guarded.tensor)
        guarded.assert_untouched_outside()


def test_three_dimensions_are_a_batch():
    a, b = operand(8, 24, FP32, batch=(3,)), operand(24, 16, FP32, batch=(3,))
    bias = operand(3, 16, FP32)
    assert_right(tritemm.grouped_mm(a, b), a, b)
    found = tritemm.grouped_mm(a, b, bias=bias, activation="relu")
    torch.testing.assert_close(found, torch.relu(torch.baddbmm(bias[:, None], a, b)))
    out = torch.empty(0, device=DEVICE)
    assert torch.equal(tritemm.grouped_mm(a, b, bias=bias, activation="relu", out=out), found)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        tritemm.grouped_mm(a, b, bias=bias, out=out.int())
    with torch.inference_mode():
        out = torch.empty(0, device=DEVICE)
    for more in ({}, {"bias": bias}):
        with pytest.raises(RuntimeError, match=r"[Ii]nference"):
            tritemm.grouped_mm(a, b, out=out, **more)


@pytest.mark.parametrize("form", "mnk")
def test_the_same_as_torch(form):
    """Where torch has it for this device; it leaves what is behind the last group as it was."""
    functional = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    offs = offsets((16, 0, 24, 8))
    a, b = cut(form, 32, 64, 4, 48, BF16, "NT" if form != "k" else "TN")
    try:
        theirs = functional(a, b, offs=offs)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(str(error))
    mine = tritemm.grouped_mm(a, b, offs=offs)
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype
    torch.testing.assert_close(mine, theirs, rtol=2**-6, atol=0.1)


@pytest.mark.parametrize("form", "mnk")
def test_derivatives(form):
    """Forwards and backwards, and to second order; of what is behind the last group, zeros."""
    offs = offsets((3, 2))
    a, b = (t.contiguous().requires_grad_() for t in cut(form, 3, 2, 2, 6, FP64))
    bias = (operand(2, 3, FP64).requires_grad_(),) if form != "n" else ()

    def product(a, b, *bias):
        return tritemm.grouped_mm(a, b, offs=offs, bias=bias[0] if bias else None, alpha=0.5)

    first, second = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    (second if form == "m" else first)(product, (a, b, *bias), fast_mode=True)
    if form != "n":
        options = {"check_forward_ad": True, "check_backward_ad": False}
        first(product, (a, b, *bias), fast_mode=True, **options)


def test_gradients_of_a_layer():
    """With a gated activation, a bias and a wider result, in the operands' types."""
    offs = offsets((17, 0, 30))
    a, b = (t.contiguous().requires_grad_() for t in cut("m", 24, 16, 3, 50, HALF))
    bias = operand(3, 24, FP32).requires_grad_()
    c = tritemm.grouped_mm(a, b, offs=offs, bias=bias, activation="swiglu", out_dtype=FP32)
    found = torch.autograd.grad(c.square().sum(), (a, b, bias))
    x, y, z = (t.detach().double().requires_grad_() for t in (a, b, bias))
    rows = [x[i:j] @ y[g] + z[g] for g, (i, j) in enumerate(bounds(offs))]
    gate, up = torch.cat(rows).chunk(2, -1)
    total = (torch.nn.functional.silu(gate) * up).square().sum()
    for mine, want in zip(found, torch.autograd.grad(total, (x, y, z)), strict=True):
        scale = want.abs().max().item()
        torch.testing.assert_close(mine.double(), want, rtol=2**-8, atol=2**-9 * scale)
    assert not found[0][47:].count_nonzero()


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_the_gate_of_a_product_that_is_differentiated(activation):
    """Its kernel and that of its gradient, against torch in fp64, and to second order."""

    def by_kernel(x):
        return torch.ops.tritemm.gate(x, activation)

    x = operand(5, 14, FP64).requires_grad_()
    first, second = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    assert first(by_kernel, (x,), check_forward_ad=True)
    assert second(by_kernel, (x,))
    for dtype in (BF16, HALF, FP32):
        x = operand(33, 2062, dtype, "S").requires_grad_()
        grad = operand(33, 1031, dtype)
        mine = by_kernel(x)
        double = x.detach().double().requires_grad_()
        want = activated(double, activation)
        (found,) = torch.autograd.grad(mine, x, grad)
        (wanted,) = torch.autograd.grad(want, double, grad.double())
        eps = max(torch.finfo(dtype).eps, 2**-18)
        torch.testing.assert_close(mine.double(), want, rtol=eps, atol=eps)
        torch.testing.assert_close(found.double(), wanted, rtol=eps, atol=eps)


def test_transforms_and_graphs():
    offs = offsets((3, 0, 4))
    a, b = cut("m", 16, 24, 3, 8, FP32)

    def product(a, b, offs):
        return tritemm.grouped_mm(a, b, offs=offs, activation="relu")

    plain = product(a, b, offs)
    compiled = torch.compile(product, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, offs), plain)

    class Layer(torch.nn.Module):
        def forward(self, a, b, offs):
            return product(a, b, offs)

    exported = torch.export.export(Layer(), (a, b, offs)).module()
    assert torch.equal(exported(a, b, offs), plain)
    others = offsets((1, 6, 0))
    assert torch.equal(exported(a, b, others), product(a, b, others))
    both = torch.stack([offs, others])
    many = torch.func.vmap(product, in_dims=(None, None, 0))(a, b, both)
    assert torch.equal(many, torch.stack([plain, product(a, b, others)]))
    none = torch.func.vmap(product, in_dims=(None, None, 0))(a, b, both[:0])
    assert none.shape == (0, *plain.shape)
    empty = torch.func.jacrev(lambda a: product(a, b[..., :0], offs))(a)
    assert empty.shape == (len(a), 0, *a.shape)
    torch.library.opcheck(
        torch.ops.tritemm.grouped_mm.default,
        (a, b, offs, None, "", 1.0, "auto", None, None, FP32),
    )


@pytest.mark.gpu
def test_a_cuda_graph_is_replayed_with_other_sizes():
    a, b = cut("m", 256, 128, 5, 1000, BF16, "NT")
    offs = offsets((1000, 0, 0, 0, 0))
    tritemm.grouped_mm(a, b, offs=offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = tritemm.grouped_mm(a, b, offs=offs)
    for sizes in ((0, 0, 0, 0, 900), (200,) * 5, (1, 0, 7, 500, 0)):
        offs.copy_(offsets(sizes))
        graph.replay()
        check("m", c, a, b, offs)


def refusals():
    x, w, offs = torch.randn(8, 4), torch.randn(2, 4, 6), torch.tensor([3, 8], dtype=torch.int32)
    yield TypeError, "argument 'b'", (x, None), {}
    yield RuntimeError, "a is 1D; 2 or 3", (x[0], w), {"offs": offs}
    yield RuntimeError, "K is 4 in a and 6", (x, w.mT), {"offs": offs}
    yield RuntimeError, "offs is missing", (x, w), {}
    yield RuntimeError, "int32", (x, w), {"offs": offs.long()}
    yield RuntimeError, "offs has 1 groups and b has 2", (x, w), {"offs": offs[:1]}
    yield RuntimeError, "leave it out", (w, w.mT), {"offs": offs}
    yield RuntimeError, "bias has shape", (x, w), {"offs": offs, "bias": x[0]}
    yield ValueError, "columns are cut", (w, torch.randn(6, 8)), {"offs": offs, "bias": w[:, 0]}
    yield ValueError, "pairs of columns", (w, torch.randn(6, 8)), {
        "offs": offs, "activation": "swiglu",
    }  # fmt: skip
    yield ValueError, "no rung is called", (x, w), {"offs": offs, "kernel": "none"}
    yield ValueError, "all have one size", (x, w), {"offs": offs, "kernel": "tiled"}
    yield ValueError, "alpha is -inf; it must", (x, w), {"offs": offs, "alpha": -math.inf}
    yield ValueError, "alpha is nan", (w, w.mT), {"alpha": math.nan}
    yield RuntimeError, "int64 without", (x.char(), w.char()), {"offs": offs, "alpha": 2**70}
    yield ValueError, "int8", (x.char(), w.char()), {"offs": offs, "alpha": 0.5}


@pytest.mark.parametrize("case", list(refusals()), ids=lambda case: case[1])
def test_refusals(case):
    error, words, tensors, named = case
    move = [t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in tensors]
    named = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in named.items()}
    with pytest.raises(error, match=words):
        tritemm.grouped_mm(*move, **named)
