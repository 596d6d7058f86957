"""Gradients and tangents, however a product is reached, and what the graph keeps for them."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tritemm
from tests.harness import DEVICE
from tests.torch.test_semantics import SHAPES
from tests.torch.twins import ACTIVATIONS, PLAIN, TORCH, equal, integers, kept, leaf

HALF = torch.float16


#: Of more dimensions two small pairs, one of which is broadcast: the interpreter takes long.
FEW = [s for s in SHAPES if all(map(all, s)) and sum(map(len, s)) < 5]
FEW += [((2, 1, 3), (3, 2)), ((2, 1, 2), (1, 2, 2))]


@pytest.mark.wide
@pytest.mark.parametrize("shapes", FEW, ids=str)
def test_second_derivatives(shapes):
    """Against finite differences; torch's own check and tolerance."""
    args = tuple(torch.randn(s, device=DEVICE).double().requires_grad_() for s in shapes)
    assert torch.autograd.gradgradcheck(tritemm.matmul, args, fast_mode=True)


@pytest.mark.wide
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_what_follows(activation):
    sizes = (2, 3, 4), (6, 4), (6,), (3, 6 if activation in PLAIN else 3)
    args = [torch.randn(s, device=DEVICE).double().requires_grad_() for s in sizes]

    def ours(x, w, b, r):
        return tritemm.matmul(
            x, w.mT, bias=b, residual=r, activation=activation, alpha=0.5, beta=-2
        )

    assert torch.autograd.gradcheck(ours, args, fast_mode=True)
    if activation in PLAIN and activation != "relu":  # whose second derivative is a spike
        assert torch.autograd.gradgradcheck(ours, args, fast_mode=True)


# Of fp16


@pytest.mark.wide
@pytest.mark.parametrize(("scale", "size"), [(1e5, 2**-14), (1e-9, 2**12)])
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_fp16_whose_own_gradient_fp16_cannot_hold(scale, size, batch, ended, compiled):
    """It is divided by powers of two meanwhile: one of rows of `a`, or of columns of `b`."""
    a, b = (size * integers(*shape, dtype=HALF) for shape in ((*batch, 4, 16), (16, 6)))
    grad = scale * integers(*batch, 4, 6, dtype=torch.float32)
    grad[..., 0, :] *= 100
    more = {"alpha": 2, "bias": torch.zeros_like(b[0])} if ended else {}

    def call(a, b):
        return tritemm.matmul(a, b, out_dtype=torch.float32, **more)

    def exact(x, y, z):
        return z @ y.mT, (x.mT @ z).reshape(-1, 16, 6).sum(0)

    run = torch.compile(call, backend="aot_eager") if compiled else call
    x, y, z = a.double(), b.double(), (2 if ended else 1) * grad.double()
    wants, bounds = exact(x, y, z), exact(x.abs(), y.abs(), z.abs())
    a.requires_grad_(), b.requires_grad_()
    for _ in range(2):
        found = torch.autograd.grad(run(a, b), (a, b), grad)
        for got, want, bound in zip(found, wants, bounds, strict=True):
            assert got.dtype == HALF and want.abs().max() > 1e-5
            assert ((got.double() - want).abs() <= 2**-10 * bound + 2**-24).all()


@pytest.mark.parametrize("accumulate", [None, torch.float16])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("large", [1e20, float("inf")])
def test_gradients_of_fp16_do_not_depend_on_other_products_of_the_batch(
    large, out_dtype, accumulate
):
    """Nor on another type's precision, nor do sums of fp16 overflow that needn't."""
    a, b = (
        integers(2, *shape, dtype=torch.float16).requires_grad_() for shape in ((4, 16), (16, 6))
    )
    grad = (integers(2, 4, 6, dtype=torch.float32) / 8 + 1).to(out_dtype)
    x, y, z = (t.detach()[0].double() for t in (a, b, grad))
    grad[1] = large
    product = tritemm.matmul(a, b, out_dtype=out_dtype, accumulate=accumulate)
    found = torch.autograd.grad(product, (a, b), grad)
    for got, want in zip(found, (z @ y.mT, x.mT @ z), strict=True):
        assert torch.equal(got[0].double(), want)
        assert not got[1].isfinite().all()


@pytest.mark.parametrize(("alpha", "scale"), [(1e4, 1e-9), (1e-4, 1e5), (0.125, 3e4), (1, 1e34)])
@pytest.mark.parametrize("accumulate", [None, torch.float16])
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_of_fp16_are_rounded_once(alpha, scale, accumulate, batched):
    """After `alpha`; and their sums have the range of fp32, however large the other operand is."""
    a = (integers(8, 8, dtype=torch.float16) / 2**14).requires_grad_()
    b = 4096 * integers(8, 8, dtype=torch.float16)
    b[:, 0] = 0
    grad = scale * integers(8, 8, dtype=torch.float32)
    grad[:, 0] *= 1e3
    want = alpha * grad.double() @ b.double().mT
    for _ in range(2):
        product = tritemm.matmul(a, b, alpha=alpha, accumulate=accumulate, out_dtype=torch.float32)
        given = grad[None] if batched else grad
        (got,) = torch.autograd.grad(product, a, given, is_grads_batched=batched)
        bound = alpha * grad.double().abs() @ b.double().abs().mT
        near = (got.squeeze(0).double() - want).abs() <= 2**-10 * bound + 2**-24
        assert (near | (want.abs() > 65504) & (got.squeeze(0) == want.half())).all()


@pytest.mark.wide
@pytest.mark.parametrize("scale", [1, 1e-4, 1e-7, 0])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_second_derivatives_of_fp16_with_another_result_type(scale, out_dtype):
    """How large the gradient itself is says nothing of its derivative."""
    a, b, v = (integers(4, 4, dtype=torch.float16) for _ in range(3))
    a[1] = 0

    def loss(multiply, a, b):
        return (scale * multiply(a, b).double().square()).sum()

    def second(multiply, a, b, v):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        (first,) = torch.autograd.grad(loss(multiply, a, b), a, create_graph=True)
        backward = torch.autograd.grad(first, (a, b), v)
        grad = torch.func.grad(lambda a: loss(multiply, a, b.detach()))
        return *backward, torch.func.jvp(grad, (a.detach(),), (v,))[1]

    got = second(lambda a, b: tritemm.matmul(a, b, out_dtype=out_dtype), a, b, v)
    want = second(torch.matmul, *(t.double() for t in (a, b, v)))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=2e-7 + scale / 4)


def test_gradients_are_scaled_and_summed_as_torch_does():
    x = torch.full((1, 2), 1e-3, dtype=HALF, device=DEVICE).requires_grad_()
    w = torch.full((2, 1), 1e-3, dtype=HALF, device=DEVICE)
    zero = torch.zeros(1, 1, dtype=HALF, device=DEVICE)
    for lib in (torch, tritemm):
        total = lib.addmm(zero, x, w, alpha=6e4)
        (got,) = torch.autograd.grad(total, x, torch.full_like(zero, 2))
        assert abs(got[0, 0].item() - 120) < 1
    bias = torch.zeros(1, device=DEVICE, requires_grad=True)
    rows = torch.ones(2049, 1, dtype=HALF, device=DEVICE)
    tritemm.matmul(rows, rows[:1], bias=bias).sum().backward()
    assert bias.grad.item() == 2049


# By transforms


@pytest.mark.parametrize("stack", [(), (2,), (2, 3)], ids=str)
def test_gradients_that_come_in_batches(stack):
    """The weight's is one product however many dimensions the input has."""
    tensors = leaf(*stack, 4, 8), leaf(5, 8), leaf(5)
    grads = integers(6, *stack, 4, 5).double()
    found = [
        torch.autograd.grad(lib.linear(*tensors), tensors, grads, is_grads_batched=True)
        for lib in (tritemm, TORCH)
    ]
    equal(*found)


TRANSFORMS = {
    "grad_and_value": lambda f, x: torch.func.grad_and_value(lambda t: f(t).sum())(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacrev of jacrev": lambda f, x: torch.func.jacrev(torch.func.jacrev(f))(x),
    "vmap of grad": lambda f, x: torch.vmap(torch.func.grad(lambda t: f(t).sum()))(
        torch.stack((x, 2 * x))
    ),
    "grad of vmap": lambda f, x: torch.func.grad(
        lambda t: torch.vmap(f)(torch.stack((t, 2 * t))).sum()
    )(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (2 * x,)),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda t: f(t).sum())(x),
    "jacrev of jacfwd": lambda f, x: torch.func.jacrev(torch.func.jacfwd(f))(x),
    "jacfwd of jacfwd": lambda f, x: torch.func.jacfwd(torch.func.jacfwd(f))(x),
    "jvp of jvp": lambda f, x: torch.func.jvp(
        lambda s: torch.func.jvp(lambda t: f(s + t * s), (x,), (x,))[1], (x,), (x + 1,)
    ),
}


@pytest.mark.wide
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, compiled):
    """Values, gradients and tangents of torch.func, eager and in a compiled graph."""
    x, w = integers(2, 1, dtype=torch.float64), integers(1, 2, dtype=torch.float64)

    def transformed(lib):
        return lambda t: TRANSFORMS[name](lambda u: lib.matmul(w, lib.matmul(u, w) ** 3), t)

    ours = transformed(tritemm)
    if compiled:
        ours = torch.compile(ours, backend="aot_eager", fullgraph=True)
    equal(ours(x), transformed(TORCH)(x))


OF_ALL = {
    "hessian": lambda loss, x, *rest: torch.func.hessian(loss)(x, *rest),
    "jvp of jvp": lambda loss, *given: torch.func.jvp(
        lambda *first: torch.func.jvp(loss, first, given), given, tuple(t + 1 for t in given)
    ),
    "vmap": lambda loss, x, w, b, r: torch.vmap(loss, (0, None, 0, None))(
        torch.stack((x, x + 1)), w, torch.stack((b, -b)), r
    ),
    "vmap of jacrev": lambda loss, x, *rest: torch.vmap(
        torch.func.jacrev(loss, (0, 1, 2, 3)), in_dims=(0, None, None, None)
    )(torch.stack((x, x + 1)), *rest),
}


@pytest.mark.parametrize("activation", [None, "silu", "swiglu"])
@pytest.mark.parametrize("name", OF_ALL)
def test_transforms_of_what_follows(name, activation):
    x, w, b, r = (torch.randn(s, device=DEVICE).double() for s in ((2, 3), (4, 3), 4, (2, 4)))
    r = r[:, :2] if activation == "swiglu" else r

    def loss_by(lib):
        def loss(x, w, b, r):
            return lib.linear(x, w, b, activation=activation, residual=r).sin().sum()

        return loss

    got, want = (OF_ALL[name](loss_by(lib), x, w, b, r) for lib in (tritemm, TORCH))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("sizes", "in_dims"),
    [
        (((6, 3, 4), (6, 4, 5)), (0, 0)),
        (((6, 3, 4), (4, 5)), (0, None)),
        (((3, 4), (6, 4, 5)), (None, 0)),
        (((3, 6, 4), (4, 5, 6)), (1, 2)),
        (((6, 2, 3, 4), (6, 4, 5)), (0, 0)),
    ],
)
def test_vmap(sizes, in_dims):
    a, b = (integers(*size) for size in sizes)
    got, want = (torch.func.vmap(lib.matmul, in_dims)(a, b) for lib in (tritemm, TORCH))
    equal(got, want)
    if a.ndim == 4:
        inner = torch.func.vmap(tritemm.matmul, (0, None))
        equal(torch.func.vmap(inner)(a, b), want)


# What the graph keeps, and how gradients are multiplied and lie


class Noted(TorchDispatchMode):
    """What the operator is called with."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.tritemm.gemm.default:
            self.calls.append(args)
        return func(*args, **(kwargs or {}))


def test_gradient_of_a_linear_layer_is_one_product():
    """The weight gradient of a batch is one GEMM with a long K, not a sum over a stack."""
    x, w = leaf(6, 7, 8, dtype=HALF), leaf(8, 9, dtype=HALF)
    with Noted() as noted:
        tritemm.matmul(x, w).sum().backward()
    assert ((8, 42), (42, 9)) in [(tuple(a.shape), tuple(b.shape)) for a, b, *_ in noted.calls]


def test_gradients_are_multiplied_as_asked():
    """precision= holds for the backward products, whatever torch's flag says."""
    x, w = (torch.randn(8, 8, device=DEVICE, requires_grad=True) for _ in "xw")
    y = tritemm.matmul(x, w, precision="bf16x3", kernel="naive")
    with Noted() as noted:
        y.sum().backward()
    assert [args[8:11] for args in noted.calls] == [("auto", "bf16x3", torch.float32)] * 2


@pytest.mark.parametrize("needy", ["", "a", "b", "ab"])
def test_only_what_a_gradient_needs_is_kept(needy):
    a, b = integers(4, 5).requires_grad_("a" in needy), integers(5, 6).requires_grad_("b" in needy)
    product = tritemm.matmul(a, b)
    assert (product.grad_fn is not None) is bool(needy)
    with torch.no_grad():
        assert tritemm.matmul(a, b).grad_fn is None
    if needy:
        kept = [t.data_ptr() for t in product.grad_fn.saved_tensors if t is not None]
        assert sorted(kept) == sorted({"a": b, "b": a}[name].data_ptr() for name in needy)
        product.sum().backward()
        assert [t.grad is not None for t in (a, b)] == [name in needy for name in "ab"]


def test_backward_keeps_no_more_than_torch():
    tensors = [torch.randn(s, device=DEVICE).requires_grad_() for s in ((6, 8), (12, 8), 12)]
    ours, theirs = (
        kept(lambda lib=lib: lib.linear(*tensors, activation="gelu")) for lib in (tritemm, TORCH)
    )
    assert ours <= theirs


def test_an_operand_that_no_gradient_needs_may_change():
    x, w = leaf(4, 5), leaf(5, 6).detach()
    h = x * 1
    y = tritemm.matmul(h, w)
    h.add_(1)
    y.sum().backward()
    y = tritemm.matmul(x * 1, w.requires_grad_())
    w.data.add_(0)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("batch", [(), (3,)])
def test_gradients_are_laid_out_as_their_operands(batch):
    """As torch does it, so that a parameter's gradient isn't copied."""
    x, w = leaf(*batch, 6, 4, dtype=torch.float32), leaf(5, 4, dtype=torch.float32)
    seen = []
    view = w.mT
    view.register_hook(lambda grad: seen.append(grad.stride()))
    tritemm.matmul(x, view).sum().backward()
    assert seen == [view.stride()]
    column_major = integers(6, 4).mT.contiguous().mT.requires_grad_()
    tritemm.matmul(column_major, w.detach().mT).sum().backward()
    assert column_major.grad.stride() == column_major.stride()


@pytest.mark.wide
@pytest.mark.parametrize("activation", [None, "relu", "swiglu"])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_unread_has_a_gradient_of_zeros(activation, compiled):
    """As torch has it, whether or not another tensor needs one."""
    a, b = integers(3, 4, dtype=torch.float32), integers(4, 6, dtype=torch.float32)
    columns = 3 if activation == "swiglu" else 6
    unread = torch.full((columns,), torch.nan, device=DEVICE, requires_grad=True)

    def call(x):
        return tritemm.matmul(x, b, residual=unread, beta=0, activation=activation)

    run = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    want = tritemm.matmul(a, b, activation=activation)
    for x in (a, a.clone().requires_grad_()):
        for _ in range(2):
            got = run(x)
            assert torch.equal(got, want) and got.requires_grad
            found = torch.autograd.grad(got.sum(), [t for t in (unread, x) if t.requires_grad])
            assert torch.equal(found[0], torch.zeros_like(unread))
    with torch.no_grad():
        assert not run(a).requires_grad


class Subclass(torch.Tensor):
    """Torch's functions return it where one of their arguments is one."""


@pytest.mark.parametrize("lib", [torch, tritemm])
def test_what_is_unread_of_a_sum(lib):
    a, b, c = integers(3, 4), integers(4, 5), integers(3, 5)
    unread = torch.nn.Parameter(c)
    for name, dims in (("addmm", ()), ("baddbmm", (None,))):
        input, x, y = (t[dims] if dims else t for t in (unread, a, b))
        got = getattr(lib, name)(input, x, y, beta=0)
        assert torch.equal(torch.autograd.grad(got.sum(), unread)[0], torch.zeros_like(c))
        with pytest.raises(RuntimeError, match="support automatic differentiation"):
            getattr(lib, name)(input, x, y, beta=0, out=torch.empty_like(got))
    seen = lib.addmm(c.as_subclass(Subclass), a, b, beta=0)
    assert type(seen) is Subclass and torch.equal(seen.as_subclass(torch.Tensor), a @ b)
