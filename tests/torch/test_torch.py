"""A good citizen of PyTorch: autograd, compile, vmap, autocast, modes, opcheck.

Values are small integers, whose products and sums every type holds exactly: results are compared
for equality, and no test has a tolerance of its own.
"""

import contextlib
import functools
import pickle
from typing import ClassVar

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import run_and_get_code
from torch.autograd import forward_ad as fw
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.harness import DEVICE
from tritemm import budget
from tritemm.problem import NOTHING
from tritemm.runtime import inductor


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
            if func is torch.ops.tritemm.gemm.default:
                shapes.append((tuple(args[0].shape), tuple(args[1].shape)))
            return func(*args, **(kwargs or {}))

    with Record():
        tritemm.matmul(x, w).sum().backward()
    assert ((8, 42), (42, 9)) in shapes


def test_gradients_with_another_result_type():
    a, b = leaf(4, 5, dtype=torch.float16), leaf(5, 6, dtype=torch.float16)
    tritemm.matmul(a, b, out_dtype=torch.float32).sum().backward()
    assert a.grad.dtype == torch.float16


@pytest.mark.parametrize(("scale", "size"), [(1e5, 2**-14), (1e-9, 2**12)])
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_fp16_whose_own_gradient_fp16_cannot_hold(scale, size, batch, ended, compiled):
    """It is divided by powers of two meanwhile: one of rows of `a`, or of columns of `b`."""
    torch._dynamo.reset()
    a, b = (size * integers(*shape, dtype=torch.float16) for shape in ((*batch, 4, 16), (16, 6)))
    for t in (a, b):
        t.requires_grad_()
    grad = scale * integers(*batch, 4, 6, dtype=torch.float32)
    grad[..., 0, :] *= 100
    more = {"alpha": 2, "bias": torch.zeros_like(b[0])} if ended else {}

    def call(a, b):
        return tritemm.matmul(a, b, out_dtype=torch.float32, **more)

    run = torch.compile(call, backend="aot_eager") if compiled else call
    factor = 2 if ended else 1
    x, y, z = (t.detach().double() for t in (a, b, grad))
    wants = factor * z @ y.mT, factor * (x.mT @ z).reshape(-1, 16, 6).sum(0)
    bounds = (
        factor * z.abs() @ y.abs().mT,
        factor * (x.mT.abs() @ z.abs()).reshape(-1, 16, 6).sum(0),
    )
    for _ in range(2):
        found = torch.autograd.grad(run(a, b), (a, b), grad)
        for got, want, bound in zip(found, wants, bounds, strict=True):
            assert want.abs().max() > 1e-5
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


def test_only_the_gradients_that_are_needed():
    a, b = leaf(4, 5), leaf(5, 6).detach()
    tritemm.matmul(a, b).sum().backward()
    assert a.grad is not None and b.grad is None


def test_no_graph_without_grad():
    with torch.no_grad():
        assert tritemm.matmul(leaf(3, 3), leaf(3, 3)).grad_fn is None
    assert tritemm.matmul(leaf(3, 3).detach(), leaf(3, 3).detach()).grad_fn is None


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


@pytest.mark.parametrize("kind", [dict, tritemm.Config])
def test_a_config_that_changes_between_calls_of_a_graph(kind):
    torch._dynamo.reset()
    a, b = leaf(20, 16).detach(), leaf(16, 20).detach()
    compiled = torch.compile(
        lambda a, b, config: tritemm.matmul(a, b, kernel="naive", config=config),
        fullgraph=True, backend="eager",
    )  # fmt: skip
    for rows in (16, 32, 64):
        config = kind(BLOCK_M=rows, BLOCK_N=16, BLOCK_K=16)
        assert torch.equal(compiled(a, b, config), a @ b)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_with_out(backend):
    torch._dynamo.reset()
    a, b = (leaf(4, 4, dtype=torch.float32).detach() for _ in range(2))

    def call(a, b, out):
        own = tritemm.linear(a, b.mT, b[0], out=torch.empty_like(out))
        return tritemm.matmul(a, b, out=out) + 1, own

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    out = torch.full_like(a, torch.nan)
    assert torch.equal(compiled(a, b, out)[0], tritemm.matmul(a, b) + 1)
    assert budget.check(out, a, b).ok
    torch.testing.assert_close(compiled(a, b, out)[1], a @ b + b[0])


OUTS = {
    "columns": lambda: torch.zeros(4, 9, device=DEVICE)[:, 2:7],
    "rows apart": lambda: torch.zeros(8, 5, device=DEVICE)[::2],
    "transposed": lambda: torch.zeros(5, 4, device=DEVICE).mT,
    "resized": lambda: torch.zeros(0, device=DEVICE),
    "of another type": lambda: torch.zeros(4, 5, device=DEVICE, dtype=torch.float64),
    "expanded": lambda: torch.zeros(1, 5, device=DEVICE).expand(4, 5),
}
INTO = {
    "matmul": lambda a, b, out: tritemm.matmul(a, b, out=out),
    "linear": lambda a, b, out: tritemm.linear(a, b.mT, b[0], activation="relu", out=out),
    "addmm": lambda a, b, out: tritemm.addmm(b[0], a, b, beta=2, out=out),
}


@pytest.mark.parametrize("call", INTO)
@pytest.mark.parametrize("kind", OUTS)
def test_compile_with_an_out_that_is_a_view(kind, call):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    a, b = integers(4, 4), integers(4, 5)
    view = kind in ("columns", "rows apart", "transposed")
    compiled = torch.compile(INTO[call], backend="eager", fullgraph=view)
    mine, ours = OUTS[kind](), OUTS[kind]()
    if kind in ("of another type", "expanded"):
        for function in (INTO[call], compiled):
            with pytest.raises(RuntimeError, match="dtype" if kind != "expanded" else "clone"):
                function(a, b, mine)
    else:
        want, got = INTO[call](a, b, ours), compiled(a, b, mine)
        assert torch.equal(got, want) and got is mine
        assert torch.equal(mine, ours) and mine.stride() == ours.stride()
    # None of these is a plan, a choice or a launch.
    assert torch._dynamo.utils.counters["frames"]["total"] <= 8


@pytest.mark.parametrize("call", INTO)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inductor_with_an_out_that_begins_where_a_size_says(mode, call):
    """As in a cache of keys, from the second position on, which is a number of the graph's."""
    torch._dynamo.reset()
    b, cache, want = integers(4, 4), *torch.zeros(2, 5, 3, 4, device=DEVICE)

    def write(x, cache, i):
        INTO[call](x, b, cache[i])

    compiled = torch.compile(write)
    with mode():
        for i in range(5):
            compiled(x := integers(3, 4), cache, i)
            write(x, want, i)
            assert torch.equal(cache, want)


def test_nothing_that_the_dispatcher_calls_is_compiled_after_a_break():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    a, b = leaf(4, 5), leaf(5, 4)
    loss = tritemm.linear(tritemm.matmul(a, b), b, activation="silu").sum()
    (want,) = torch.autograd.grad(loss, a, retain_graph=True)

    @torch.compile(backend="eager")
    def step(a, b, loss, out):
        # In none of these graphs is what writes to an `out` that isn't contiguous, or goes back.
        torch.ops.tritemm.gemm_out(a, b, *NOTHING, "auto", None, None, out=out)
        torch.ops.tritemm.gemm_out(
            a, b, None, out, "", 1.0, 1.0, False, "auto", None, None, out=out
        )
        loss.backward()
        return out + 1

    out = torch.zeros(4, 4, device=DEVICE, dtype=torch.float64).mT
    assert torch.equal(step(a.detach(), b.detach(), loss, out), 2 * (a @ b) + 1)
    assert torch.equal(a.grad, want)
    # Up to torch 2.11 some 20 of torch's own are counted.
    assert torch._dynamo.utils.counters["frames"]["total"] <= 30


class Layers(torch.nn.Sequential):
    """A converted layer and one of ours."""

    def __init__(self):
        super().__init__(torch.nn.Linear(5, 5), tritemm.Linear(5, 5))
        tritemm.convert(self.to(DEVICE))


PAST_THE_LIMIT = {
    "functions": lambda: lambda x, w: tritemm.addmm(w[0], x, tritemm.linear(x, w).mT @ x),
    "layers": lambda: functools.partial(lambda layers, x, w: layers(x), Layers()),
    "out": lambda: lambda x, w: tritemm.matmul(x.detach(), w, out=torch.empty_like(x)),
}


@pytest.mark.parametrize("kind", PAST_THE_LIMIT)
def test_nothing_is_compiled_apart_where_dynamo_has_given_up(kind):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    function = PAST_THE_LIMIT[kind]()
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled = torch.compile(function, backend="aot_eager", dynamic=False)
        for rows in range(2, 7):
            x, w = leaf(rows, 5, dtype=torch.float32), integers(5, 5)
            want, got = function(x, w), compiled(x, w)
            torch.testing.assert_close(got, want)
            if want.requires_grad:
                mine, ours = (torch.autograd.grad(y.sum(), x) for y in (got, want))
                torch.testing.assert_close(mine, ours)
    # Two that are compiled, and one that is one too many.
    assert torch._dynamo.utils.counters["frames"]["total"] == 3


def test_packages_are_refused_where_torch_mixes_up_types(monkeypatch):
    monkeypatch.setattr(inductor, "_MIXES_TYPES", True)
    x = integers(2, 5)
    program = torch.export.export(Layer(integers(3, 5)), (x,))
    with pytest.raises(Exception, match="other types than it is given"):
        torch._inductor.aoti_compile_and_package(program)


MASKED = {
    "K": lambda lib, x, w, m, n: lib.matmul(x[m].mT, x[n]),
    "K of vectors": lambda lib, x, w, m, n: lib.matmul(x[m][:, 0], x[n][:, 1]),
    "a batch": lambda lib, x, w, m, n: lib.matmul(x[m].unsqueeze(1), w[None]),
    "addmm": lambda lib, x, w, m, n: lib.addmm(w[0], x[m], w, beta=2),
    "a row is added": lambda lib, x, w, m, n: lib.addmm(w[:1], x[m], w),
    "a sum is added": lambda lib, x, w, m, n: lib.addmm(x[n] @ w, x[m], w),
    "mv": lambda lib, x, w, m, n: lib.mv(x[m].mT, x[n][:, 0]),
    "einsum": lambda lib, x, w, m, n: lib.einsum("ij,jk->ik", x[m], w),
    "einsum over it": lambda lib, x, w, m, n: lib.einsum("ij,ik->jk", x[m], x[n]),
    "einsum in a batch": lambda lib, x, w, m, n: lib.einsum("ij,ik->ijk", x[m], x[n]),
    "einsum of heads": lambda lib, x, w, m, n: lib.einsum(
        "bqhd,bkhd->bhqk", x[m].reshape(-1, 2, 2, 1), x[n].reshape(-1, 2, 2, 1)
    ),
}


@pytest.mark.parametrize("name", MASKED)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_only_data_tell(name):
    torch._dynamo.reset()
    function = MASKED[name]
    compiled = torch.compile(
        functools.partial(function, tritemm), backend="aot_eager", fullgraph=True
    )
    x, w = leaf(6, 4), leaf(4, 4)
    for first, second in ((0b110101, 0b101110), (0b011000, 0b000110)):
        m, n = (
            torch.tensor([bits >> i & 1 for i in range(6)], device=DEVICE) == 1
            for bits in (first, second)
        )
        got, want = compiled(x, w, m, n), function(torch, x, w, m, n)
        assert torch.equal(got, want)
        mine, torchs = (
            torch.autograd.grad(t.sum(), (x, w), allow_unused=True) for t in (got, want)
        )
        for p, q in zip(mine, torchs, strict=True):
            assert (p is q is None) or torch.equal(p, q)


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_sizes_that_data_tell_apart_are_refused():
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, m, n: tritemm.matmul(x[m].mT, x[n]), backend="aot_eager", fullgraph=True
    )
    few, many = (torch.arange(6, device=DEVICE) < count for count in (2, 3))
    with pytest.raises(RuntimeError):
        compiled(integers(6, 4), few, many)


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


@pytest.mark.parametrize("stack", [(), (2,), (2, 3)], ids=str)
def test_gradients_that_come_in_batches(stack):
    """The weight's is one product however many dimensions the input has."""
    x, w, b = leaf(*stack, 4, 8), leaf(5, 8), leaf(5)
    grads = integers(6, *stack, 4, 5).double()
    found = [
        torch.autograd.grad(linear(x, w, b), (x, w, b), grads, is_grads_batched=True)
        for linear in (tritemm.linear, torch.nn.functional.linear)
    ]
    assert all(map(torch.equal, *found))


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
    options = (*NOTHING, "auto", "ieee", None)
    torch.library.opcheck(torch.ops.tritemm.gemm.default, (*args, *options, torch.float32))
    out = torch.empty_like(torch.matmul(*args))
    torch.library.opcheck(torch.ops.tritemm.gemm_out.default, (*args, *options), {"out": out})


TRACED = {
    "matmul": lambda a, b, c, v: tritemm.matmul(a, b, activation="relu", alpha=2),
    "linear": lambda a, b, c, v: tritemm.linear(a, b.mT, c[0], residual=c),
    "linear of a constant": lambda a, b, c, v: tritemm.linear(a, torch.ones(5, 4, device=DEVICE)),
    "addmm": lambda a, b, c, v: tritemm.addmm(c, a, b, beta=2, alpha=3),
    "addmm without its input": lambda a, b, c, v: tritemm.addmm(c, a, b, beta=0),
    "baddbmm": lambda a, b, c, v: tritemm.baddbmm(c[None], a[None], b[None]),
    "mv": lambda a, b, c, v: tritemm.mv(a, v),
    "einsum": lambda a, b, c, v: tritemm.einsum("ij,jk->ki", a, b),
    "syrk": lambda a, b, c, v: tritemm.syrk(a),
    "Linear": torch.nn.Sequential(tritemm.Linear(4, 5, activation="relu", device=DEVICE)),
}


@pytest.mark.parametrize("name", TRACED)
def test_symbolic_trace(name):
    function, module = TRACED[name], isinstance(TRACED[name], torch.nn.Module)
    args = (integers(3, 4), integers(4, 5), integers(3, 5), integers(4))[: 1 if module else 4]
    graph = torch.fx.symbolic_trace(function)
    called = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    assert any(getattr(t, "__module__", "").startswith("tritemm.") for t in called)
    assert torch.equal(pickle.loads(pickle.dumps(graph))(*args), function(*args))


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
@pytest.mark.parametrize("name", TRACED)
def test_jit_trace(name):
    function, module = TRACED[name], isinstance(TRACED[name], torch.nn.Module)
    args = (integers(3, 4), integers(4, 5), integers(3, 5), integers(4))[: 1 if module else 4]
    graph = torch.jit.trace(function, args)
    assert "tritemm::" in str(graph.inlined_graph)
    again = tuple(t + 1 for t in args)
    assert torch.equal(graph(*again), function(*again))
    x = args[0].clone().requires_grad_()
    (got,), (want,) = (torch.autograd.grad(f(x, *args[1:]).sum(), x) for f in (graph, function))
    assert torch.equal(got, want)


# Derivatives, however the product is reached

TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda t: f(t).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(f(x)))[0],
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


def equal(x, y):
    if isinstance(x, tuple):
        return len(x) == len(y) and all(equal(p, q) for p, q in zip(x, y, strict=True))
    return torch.equal(x, y)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, compiled):
    """Values, gradients and tangents of torch.func, eager and in a compiled graph."""
    x, w = integers(2, 3, dtype=torch.float64), integers(3, 2, dtype=torch.float64)

    def transformed(matmul):
        return lambda t: TRANSFORMS[name](lambda u: matmul(u, w) ** 3, t)

    ours = transformed(tritemm.matmul)
    if compiled:
        torch._dynamo.reset()
        ours = torch.compile(ours, backend="aot_eager", fullgraph=True)
    assert equal(ours(x), transformed(torch.matmul)(x))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_gradients_through_a_traced_graph(mode):
    x, w = integers(4, 5), integers(5, 3)
    graph = make_fx(lambda a, b: tritemm.matmul(a, b), tracing_mode=mode)(x, w)
    w.requires_grad_()
    graph(x, w).sum().backward()
    assert torch.equal(w.grad, x.mT @ torch.ones(4, 3, device=DEVICE))


class Layer(torch.nn.Module):
    """y = x @ weight.mT by tritemm, as a linear layer keeps its weight."""

    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x):
        return tritemm.matmul(x, self.weight.mT)


@pytest.mark.parametrize("decomposed", [False, True])
def test_gradients_through_an_exported_program(decomposed):
    x = integers(4, 5)
    program = torch.export.export(Layer(integers(3, 5)), (x,))
    module = (program.run_decompositions() if decomposed else program).module()
    module(x).sum().backward()
    (weight,) = module.parameters()
    assert torch.equal(weight.grad, torch.ones(3, 4, device=DEVICE) @ x)


def test_inductor_calls_the_product_without_a_detour():
    """Forward and backward, in memory that Inductor has planned; strides as it finds them."""
    torch._dynamo.reset()
    layer, x = Layer(integers(6, 5)), integers(4, 5).requires_grad_()
    compiled = torch.compile(lambda t: layer(t.relu()) + 1, fullgraph=True)

    def step():
        compiled(x).sum().backward()

    _, sources = run_and_get_code(step)
    called = [source.count("torch.ops.tritemm.gemm_into(") for source in sources]
    assert called == [1, 2] and "tritemm.gemm.default(" not in "".join(sources)
    got = x.grad, layer.weight.grad
    x.grad = layer.weight.grad = None
    (x.relu() @ layer.weight.mT + 1).sum().backward()
    assert torch.equal(got[0], x.grad) and torch.equal(got[1], layer.weight.grad)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_inductor_calls_what_follows_without_a_detour(biased, added):
    torch._dynamo.reset()
    x, w = integers(4, 5), integers(6, 5)
    bias, residual = integers(6) if biased else None, integers(4, 6) if added else None

    def layer(x, w, bias, residual):
        # The residual is a view, the bias is computed.
        bias = bias if bias is None else bias + 1
        residual = residual if residual is None else residual[:, :]
        return tritemm.linear(x.relu(), w, bias, activation="relu", residual=residual) + 1

    operands = x, w, bias, residual
    for each in (operands, tuple(t if t is None else t + 1 for t in operands)):
        got, sources = run_and_get_code(torch.compile(layer, fullgraph=True), *each)
        assert torch.equal(got, layer(*each))
        assert "torch.ops.tritemm.gemm_into(" in "".join(sources)
        assert "tritemm.gemm.default(" not in "".join(sources)
        torch._dynamo.reset()


def test_inductor_with_other_shapes_and_views():
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: tritemm.matmul(a[:, ::2].mT, b), dynamic=True)
    for rows in (5, 6, 9):
        a, b = integers(2, rows, 8), integers(2, 4, 3)
        b = torch.cat([b] * 3, 1)[:, : -(-rows // 2)]
        a = a[:, : 2 * b.shape[1]]
        assert torch.equal(compiled(a, b), a[:, ::2].mT @ b)


def test_forward_mode():
    a, b, da, db = (integers(3, 3, dtype=torch.float64) for _ in range(4))
    with fw.dual_level():
        both = tritemm.matmul(fw.make_dual(a, da), fw.make_dual(b, db))
        one = tritemm.matmul(a, fw.make_dual(b, db))
        assert torch.equal(fw.unpack_dual(both).tangent, da @ b + a @ db)
        assert torch.equal(fw.unpack_dual(one).tangent, a @ db)
        assert fw.unpack_dual(tritemm.matmul(a, b)).tangent is None


def test_forward_mode_within_forward_mode():
    a, b, u, v = (integers(3, 3, dtype=torch.float64) for _ in range(4))

    def mixed(multiply):
        def inner(b):
            return torch.func.jvp(lambda a: multiply(a, b), (a,), (u,))[1]

        return torch.func.jvp(inner, (b,), (v,))[1]

    assert torch.equal(mixed(tritemm.matmul), u @ v)
    assert torch.equal(mixed(lambda a, b: tritemm.linear(a, b.mT, b[0], residual=a * a)), u @ v)


def test_out_has_no_tangent():
    a, out = integers(3, 3, dtype=torch.float64), torch.empty(3, 3, device=DEVICE)
    calls = (
        lambda a, out: tritemm.matmul(a, a, out=out),
        lambda a, out: tritemm.addmm(a, a, a, alpha=2, out=out),
    )
    for call in calls:
        with pytest.raises(NotImplementedError, match="because it is an out= function"):
            torch.func.jvp(lambda a: call(a, out.double()), (a,), (a,))  # noqa: B023


# What the graph keeps, and how gradients lie


def kept(output):
    """Data pointers of what the graph holds for the backward pass."""
    node = output.grad_fn
    return [t.data_ptr() for t in node.saved_tensors if t is not None]


@pytest.mark.parametrize("needy", ["a", "b", "ab"])
def test_only_what_a_gradient_needs_is_kept(needy):
    a, b = leaf(4, 5), leaf(5, 6)
    a.requires_grad_("a" in needy)
    b.requires_grad_("b" in needy)
    other = {"a": b, "b": a}
    assert sorted(kept(tritemm.matmul(a, b))) == sorted(other[n].data_ptr() for n in needy)


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


def test_gradients_are_multiplied_as_asked():
    """precision= holds for the backward products, whatever torch's flag says."""
    x, w = (torch.randn(8, 8, device=DEVICE, requires_grad=True) for _ in "xw")
    asked = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.tritemm.gemm.default:
                asked.append(args[8:11])
            return func(*args, **(kwargs or {}))

    y = tritemm.matmul(x, w, precision="bf16x3", kernel="naive")
    with Record():
        y.sum().backward()
    assert asked == [("auto", "bf16x3", torch.float32)] * 2


# Writing to out


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


# What a graph and a subclass see


def test_vmap_in_a_compiled_graph_is_one_product():
    torch._dynamo.reset()
    counts, b = [], integers(4, 3)

    def count(graph, _):
        counts.append(
            sum(node.target is torch.ops.tritemm.gemm.default for node in graph.graph.nodes)
        )
        return graph

    compiled = torch.compile(
        torch.func.vmap(lambda x: tritemm.matmul(x, b)), backend=aot_autograd(fw_compiler=count)
    )
    a = integers(6, 2, 4)
    assert torch.equal(compiled(a), a @ b) and counts == [1]


class Watching(torch.Tensor):
    """Notes which functions it is asked about."""

    seen: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_is_asked_about_its_own_out():
    a = integers(4, 4)
    out = torch.empty_like(a).as_subclass(Watching)
    Watching.seen.clear()
    tritemm.matmul(a, a, out=out)
    assert Watching.seen[0] is tritemm.matmul
    assert torch.equal(out.as_subclass(torch.Tensor), a @ a)
