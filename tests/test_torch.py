"""A good citizen of PyTorch: autograd, compile, vmap, autocast, modes, opcheck.

Values are small integers, whose products and sums every type holds exactly: results are compared
for equality, and no test has a tolerance of its own.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tritemm import budget

from .harness import DEVICE


def integers(*shape, dtype=torch.float32):
    return torch.randint(-3, 4, shape, device=DEVICE).to(dtype)


def leaf(*shape, dtype=torch.float64):
    return integers(*shape, dtype=dtype).requires_grad_()


SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (3, 4, 5)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradients(shapes):
    """Against finite differences; torch's own check and tolerance.

    To second order up to three dimensions: with more the interpreter takes long, and the same code.
    """
    args = tuple(torch.randn(s, device=DEVICE).double().requires_grad_() for s in shapes)
    assert torch.autograd.gradcheck(tritemm.matmul, args, fast_mode=True)
    if args[0].ndim <= 3:
        assert torch.autograd.gradgradcheck(tritemm.matmul, args, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_half_gradients_are_exact(shapes, dtype):
    ours = [leaf(*shape, dtype=dtype) for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in ours]
    grad = integers(*torch.matmul(*exact).shape, dtype=dtype)
    tritemm.matmul(*ours).backward(grad)
    torch.matmul(*exact).backward(grad.double())
    for x, y in zip(ours, exact, strict=True):
        assert x.grad.dtype == dtype
        assert torch.equal(x.grad.double(), y.grad)


def test_gradient_of_a_linear_layer_is_one_product():
    """The weight gradient of a batch is one GEMM with a long K, not a sum over a stack."""
    x, w = leaf(6, 7, 8, dtype=torch.float16), leaf(8, 9, dtype=torch.float16)
    shapes = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.tritemm.mm.default:
                shapes.append((tuple(args[0].shape), tuple(args[1].shape)))
            return func(*args, **(kwargs or {}))

    with Record():
        tritemm.matmul(x, w).sum().backward()
    assert ((8, 42), (42, 9)) in shapes


def test_gradients_with_another_result_type():
    a, b = leaf(4, 5, dtype=torch.float16), leaf(5, 6, dtype=torch.float16)
    tritemm.matmul(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad.dtype == torch.float16


def test_only_the_gradients_that_are_needed():
    a, b = leaf(4, 5), leaf(5, 6).detach()
    tritemm.matmul(a, b).sum().backward()
    assert a.grad is not None and b.grad is None


def test_no_graph_without_grad():
    with torch.no_grad():
        assert tritemm.matmul(leaf(3, 3), leaf(3, 3)).grad_fn is None
    assert tritemm.matmul(leaf(3, 3).detach(), leaf(3, 3).detach()).grad_fn is None


def test_forward_mode_is_refused_not_dropped():
    import torch.autograd.forward_ad as fw

    with fw.dual_level():
        a = fw.make_dual(leaf(3, 3).detach(), torch.ones(3, 3, device=DEVICE).double())
        with pytest.raises((RuntimeError, NotImplementedError), match=r"jvp|forward"):
            tritemm.matmul(a, leaf(3, 3).detach())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph(dynamic):
    torch._dynamo.reset()

    def layer(x, w):
        return tritemm.matmul(x.relu(), w).sin()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (5, 6, 7):
        x, w = leaf(2, rows, 8, dtype=torch.float32), leaf(8, 9, dtype=torch.float32)
        assert torch.equal(compiled(x, w), layer(x, w))
        (got,) = torch.autograd.grad(compiled(x, w).sum(), w)
        (want,) = torch.autograd.grad(layer(x, w).sum(), w)
        assert torch.equal(got, want)


def test_compile_with_out():
    torch._dynamo.reset()
    a, b = (leaf(4, 4, dtype=torch.float32).detach() for _ in range(2))
    compiled = torch.compile(
        lambda a, b, out: tritemm.matmul(a, b, out=out) + 1, fullgraph=True, backend="aot_eager"
    )
    out = torch.full_like(a, torch.nan)
    assert torch.equal(compiled(a, b, out), tritemm.matmul(a, b) + 1)
    assert budget.check(out, a, b).ok


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 2)])
def test_vmap(in_dims):
    sizes = [[3, 4], [4, 5]]
    for size, dim in zip(sizes, in_dims, strict=True):
        if dim is not None:
            size.insert(dim, 6)
    a, b = (integers(*size) for size in sizes)
    got = torch.func.vmap(tritemm.matmul, in_dims)(a, b)
    assert torch.equal(got, torch.func.vmap(torch.matmul, in_dims)(a, b))


def test_vmap_of_a_stack_and_nested():
    a, b = integers(6, 2, 3, 4), integers(6, 4, 5)
    got = torch.func.vmap(tritemm.matmul)(a, b)
    assert torch.equal(got, torch.func.vmap(torch.matmul)(a, b))
    inner = torch.func.vmap(torch.func.vmap(tritemm.matmul, (0, None)))(a, b)
    assert torch.equal(inner, got)


def test_per_sample_gradients():
    """grad inside vmap: both transforms go through the operator."""
    w, x = integers(4, 5), integers(6, 3, 4)

    def loss(matmul):
        return torch.func.vmap(torch.func.grad(lambda w, x: matmul(x, w).pow(2).sum()), (None, 0))

    assert torch.equal(loss(tritemm.matmul)(w, x), loss(torch.matmul)(w, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    a, b = leaf(4, 5, dtype=torch.float32), leaf(5, 6, dtype=torch.float32)
    with torch.autocast(DEVICE, dtype=dtype):
        got, want = tritemm.matmul(a, b), torch.matmul(a, b)
        mixed = tritemm.matmul(a, b.to(dtype))
        double = tritemm.matmul(a.double(), b.double())
    assert got.dtype == want.dtype == mixed.dtype == dtype
    assert double.dtype == torch.float64
    got.sum().backward()
    assert a.grad.dtype == torch.float32


def test_flop_counter():
    a, b = leaf(2, 3, 4), leaf(4, 5)
    with FlopCounterMode(display=False) as ours:
        tritemm.matmul(a, b).sum().backward()
    assert ours.get_total_flops() == 3 * 2 * 2 * 3 * 4 * 5


def test_torch_function_mode_sees_the_call():
    seen = []

    class Logging(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    a = torch.ones(3, 3, device=DEVICE).as_subclass(Logging)
    assert isinstance(tritemm.matmul(a, a), Logging)
    assert seen[0] is tritemm.matmul


def test_meta_tensors_have_shapes():
    a = torch.empty(2, 3, 4, device="meta")
    out = tritemm.matmul(a, torch.empty(4, 5, device="meta"))
    assert out.device.type == "meta" and out.shape == (2, 3, 5)


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 1, 3, 4), (3, 4, 5)), ((0, 4), (4, 5))])
@pytest.mark.parametrize("strided", [False, True])
def test_opcheck(shapes, strided):
    args = [leaf(*shape, dtype=torch.float32).detach() for shape in shapes]
    if strided:
        args = [t.mT.contiguous().mT for t in args]
    options = ("auto", "ieee", None)
    torch.library.opcheck(torch.ops.tritemm.mm.default, (*args, *options, torch.float32))
    out = torch.empty_like(torch.matmul(*args))
    torch.library.opcheck(torch.ops.tritemm.mm_out.default, (*args, *options), {"out": out})
