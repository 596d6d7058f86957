"""`linear`, `addmm`, `baddbmm`, `mv` and matmul's epilogue beside torch's own, as torch uses them.

Of whole numbers, which every type holds exactly, results are compared for equality.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad as fw
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.harness import DEVICE
from tests.torch.test_torch import integers, leaf
from tritemm import budget
from tritemm.problem import ACTIVATIONS, EpilogueInputs, activated

HALF = torch.float16
TORCHS = {
    None: lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def same(got, want):
    assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
    assert torch.equal(got, want)


@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (8,)], ids=str)
@pytest.mark.parametrize("activation", [None, "relu"])
def test_linear(shape, activation):
    x, w, b = integers(*shape, dtype=HALF), integers(6, 8, dtype=HALF), integers(6, dtype=HALF)
    want = TORCHS[activation](F.linear(x, w, b))
    same(tritemm.linear(x, w, b, activation=activation), want)
    r = integers(*want.shape, dtype=HALF)
    same(tritemm.linear(x, w, b, activation=activation, residual=r), want + r)
    same(tritemm.linear(x, w), F.linear(x, w))
    same(tritemm.linear(x, w[0]), F.linear(x, w[0]))
    out = torch.empty_like(want)
    assert tritemm.linear(x, w, b, activation=activation, out=out) is out
    same(out, want)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("activation", TORCHS)
def test_activations(activation, dtype):
    x, w = (torch.randn(7, 24, device=DEVICE).to(dtype) * 2 for _ in range(2))
    b = torch.randn(7, device=DEVICE).to(dtype)
    got = tritemm.linear(x, w, b, activation=activation)
    ending = EpilogueInputs(b, activation=activation or "")
    verdict = budget.check(got, x, w.mT, ending=ending)
    assert verdict.ok, verdict
    exact = TORCHS[activation](F.linear(*(t.double() for t in (x, w, b))))
    torch.testing.assert_close(ending.of(x.double() @ w.double().mT, torch.float64), exact)


def test_every_activation_is_compared():
    assert {name or "" for name in TORCHS} == set(ACTIVATIONS)


def test_activations_far_out_and_of_what_is_no_number():
    """Where their exponentials over- and underflow."""
    x = torch.tensor([[-1e4, -40, -9, -1e-3, 0, 1e-3, 9, 40, 1e4, torch.inf, torch.nan]]).mT
    one = torch.ones(1, 1, device=DEVICE)
    for name, function in TORCHS.items():
        got = tritemm.linear(x.to(DEVICE), one, activation=name, precision="ieee").cpu()
        # One at a time: of a vector, torch's gelu on some processors makes NaN of infinity.
        want = torch.stack([function(value) for value in x.flatten()])[:, None]
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_gated(activation):
    x, w, b = (torch.randn(s, device=DEVICE).double().requires_grad_() for s in ((3, 4), (6, 4), 6))
    r = torch.randn(3, 3, device=DEVICE).double().requires_grad_()
    gate, up = F.linear(x, w, b).chunk(2, -1)
    want = {"swiglu": F.silu, "geglu": F.gelu}[activation](gate) * up + r

    def ours(x, w, b, r):
        return tritemm.linear(x, w, b, activation=activation, residual=r)

    torch.testing.assert_close(ours(x, w, b, r), want)
    assert torch.autograd.gradcheck(ours, (x, w, b, r), fast_mode=True)


@pytest.mark.parametrize("activation", TORCHS)
def test_gradients(activation):
    sizes = (2, 3, 4), (5, 4), (5,), (3, 5)
    args = [torch.randn(s, device=DEVICE).double().requires_grad_() for s in sizes]

    def ours(x, w, b, r):
        return tritemm.matmul(
            x, w.mT, bias=b, residual=r, activation=activation, alpha=0.5, beta=-2
        )

    assert torch.autograd.gradcheck(ours, args, fast_mode=True)
    if activation != "relu":  # whose second derivative is a spike
        assert torch.autograd.gradgradcheck(ours, args, fast_mode=True)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16], ids=str)
def test_half_gradients_are_exact(dtype):
    ours = [leaf(*s, dtype=dtype) for s in ((2, 3, 4), (5, 4), (5,), (5,))]
    exact = [t.detach().double().requires_grad_() for t in ours]
    x, w, b, r = ours
    got = tritemm.linear(x, w, b, activation="relu", residual=r)
    x, w, b, r = exact
    want = F.relu(F.linear(x, w, b)) + r
    grad = integers(*want.shape)
    got.backward(grad.to(dtype))
    want.backward(grad.double())
    assert torch.equal(got.double(), want)
    for mine, torchs in zip(ours, exact, strict=True):
        assert mine.grad.dtype == dtype and torch.equal(mine.grad.double(), torchs.grad)


def test_backward_keeps_no_more_than_torch():
    def kept(function):
        x, w, b = (torch.randn(s, device=DEVICE).requires_grad_() for s in ((6, 8), (12, 8), 12))
        found = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: found.setdefault(t.data_ptr(), t), lambda t: t
        ):
            result = function(x, w, b)
        return sum(t.numel() for t in found.values()), result

    ours, _ = kept(lambda x, w, b: tritemm.linear(x, w, b, activation="gelu"))
    torchs, _ = kept(lambda x, w, b: F.gelu(F.linear(x, w, b)))
    assert ours <= torchs


@pytest.mark.parametrize("beta", [0, 1, 2.5])
@pytest.mark.parametrize("input", [(3, 5), (5,), (3, 1), ()], ids=str)
def test_addmm(input, beta):
    x, a, b = integers(*input), integers(3, 4), integers(4, 5)
    if beta == 0:
        x = x + torch.nan
    same(tritemm.addmm(x, a, b, beta=beta, alpha=2), torch.addmm(x, a, b, beta=beta, alpha=2))
    out = torch.empty(3, 5, device=DEVICE)
    assert tritemm.addmm(x, a, b, beta=beta, alpha=2, out=out) is out
    same(out, torch.addmm(x, a, b, beta=beta, alpha=2))


def test_baddbmm_and_mv():
    x, a, b = integers(5), integers(2, 3, 4), integers(2, 4, 5)
    same(tritemm.baddbmm(x, a, b, beta=2), torch.baddbmm(x, a, b, beta=2))
    same(tritemm.mv(a[0], b[0, :, 0]), torch.mv(a[0], b[0, :, 0]))


WRONG = {
    "inner sizes": lambda lib: lib.addmm(integers(3, 5), integers(3, 4), integers(5, 5)),
    "input's shape": lambda lib: lib.addmm(integers(2, 5), integers(3, 4), integers(4, 5)),
    "a stack": lambda lib: lib.addmm(integers(3, 5), integers(1, 3, 4), integers(4, 5)),
    "other stacks": lambda lib: lib.baddbmm(integers(5), integers(2, 3, 4), integers(1, 4, 5)),
    "a type": lambda lib: lib.addmm(integers(3, 5), integers(3, 4), integers(4, 5).double()),
    "no tensor": lambda lib: lib.mv(integers(3, 4), 3),
    "no vector": lambda lib: lib.mv(integers(3, 4), integers(4, 1)),
    "a word": lambda lib: lib.addmm(integers(5), integers(3, 4), integers(4, 5), alpha="2"),
    "another": lambda lib: lib.addmm(integers(5), integers(3, 4), integers(4, 5), beta="2"),
    "a factor with a gradient": lambda lib: lib.addmm(
        integers(5), integers(3, 4), integers(4, 5), alpha=leaf().sum()
    ),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG.keys())
def test_errors_are_of_torchs_type(call):
    with pytest.raises((RuntimeError, TypeError)) as torchs:
        call(torch)
    with pytest.raises(torchs.type):
        call(tritemm)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [("addmm", ((2, 5), (3, 4), (4, 5))), ("baddbmm", ((3, 3, 5), (2, 3, 4), (2, 4, 5)))],
)
def test_what_counts_for_nothing_has_a_shape_where_torch_says_so(name, shapes):
    # torch 2.11 lets it pass on some devices.
    input, x, y = (integers(*shape) for shape in shapes)
    try:
        getattr(torch, name)(input, x, y, beta=0)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            getattr(tritemm, name)(input, x, y, beta=0)
    else:
        assert torch.equal(getattr(tritemm, name)(input, x, y, beta=0), x @ y)
    with pytest.raises(TypeError, match=r"'input' \(position 1\) must be Tensor"):
        getattr(tritemm, name)(None, x, y, beta=0)
    with pytest.raises(RuntimeError, match="can't be broadcast"):
        tritemm.matmul(x, y, residual=input, beta=0)


def test_a_factor_may_be_a_tensor_of_one_number():
    x, a, b = integers(3, 5), integers(3, 4), integers(4, 5)
    for two in (torch.tensor(2.0), np.float32(2)):
        same(tritemm.addmm(x, a, b, beta=two, alpha=two), 2 * x + 2 * a @ b)
    one = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(TypeError, match=r"alpha must be a real number.*requires grad"):
        tritemm.matmul(a, b, alpha=one)


def test_refusals():
    x, w = integers(3, 4), integers(5, 4)
    for wrong, words in (
        ({"activation": "tanh"}, "one of relu"),
        ({"bias": integers(3)}, "5 columns"),
        ({"residual": integers(4, 5)}, r"\[3, 5\]"),
        ({"bias": integers(5).to("meta")}, "bias is on meta"),
        ({"bias": integers(5).bool()}, "bias is torch.bool"),
        ({"residual": integers(5).to(torch.complex64)}, "residual is torch.complex64"),
        ({"residual": integers(3, 5).to_sparse()}, "dense"),
        ({"kernel": "tiled", "bias": integers(5)}, "sums as they are"),
    ):
        with pytest.raises((ValueError, RuntimeError, NotImplementedError), match=words):
            tritemm.linear(x, w, **wrong)
    with pytest.raises(RuntimeError, match="takes pairs"):
        tritemm.matmul(x, w.mT, activation="swiglu")
    with pytest.raises(RuntimeError, match="gated"):
        tritemm.linear(x, w, activation="swiglu")
    with pytest.raises(ValueError, match="give one of them"):
        tritemm.matmul(x, w.mT, beta=2)
    with pytest.raises(ValueError, match="whole numbers"):
        tritemm.matmul(x.to(torch.int8), w.to(torch.int8).mT, activation="relu")


def test_int8_with_a_bias():
    x, w = integers(3, 4, dtype=torch.int8), integers(5, 4, dtype=torch.int8)
    b = integers(5, dtype=torch.int32)
    wanted = x.cpu().int() @ w.cpu().int().mT  # which torch has on the CPU alone
    same(tritemm.linear(x, w, b), wanted.to(DEVICE) + b)


def test_int8_sums_stay_whole():
    a, b = (torch.full(s, 127, dtype=torch.int8, device=DEVICE) for s in ((1, 1101), (1101, 1)))
    added = torch.tensor([[16777217]], dtype=torch.int32, device=DEVICE)
    got = tritemm.matmul(a, b, alpha=3, residual=added, beta=2)
    assert got.item() == 3 * 1101 * 127 * 127 + 2 * 16777217
    for odd in (0.5, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="whole numbers"):
            tritemm.matmul(a, b, alpha=odd)


@pytest.mark.parametrize("shape", [(6,), (1, 6), (4, 1)], ids=str)
def test_what_is_added_to_has_the_results_shape(shape):
    a, b, c = integers(4, 8), integers(8, 6), integers(*shape)
    want = a @ b + c
    with pytest.raises(RuntimeError, match="must have the result's shape"):
        tritemm.matmul(a, b, out=c.clone(), beta=1)
    with pytest.warns(UserWarning, match="resized"):
        assert torch.equal(tritemm.addmm(c, a, b, out=c), want)


@pytest.mark.parametrize(
    ("x", "y"), [((8,), (8, 6)), ((4, 8), (8,)), ((8,), (8,)), ((3, 8), (2, 8, 6))], ids=str
)
def test_vectors_with_a_residual(x, y):
    x, y = integers(*x), integers(*y)
    product = x @ y
    for residual in (integers(*product.shape), integers(1)[0]):
        for _ in range(2):
            got = tritemm.matmul(x, y, residual=residual, beta=2)
            assert torch.equal(got, product + 2 * residual)


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_factors_of_zero_leave_their_tensors_unread(dtype):
    a, b, c = (integers(*shape, dtype=dtype) for shape in ((3, 4), (4, 5), (3, 5)))
    bad = torch.full((3, 5), torch.nan, dtype=dtype, device=DEVICE)
    for _ in range(2):
        assert torch.equal(tritemm.matmul(a, b, residual=bad, beta=0), a @ b)
        assert torch.equal(tritemm.addmm(bad, a, b, beta=0), a @ b)
        for given in ({}, {"out": torch.empty_like(c)}):
            got = tritemm.addmm(c, bad[:, :4], b, alpha=0, beta=2, **given)
            assert torch.equal(got, 2 * c)
        stacked = tritemm.baddbmm(c[None], bad[None, :, :4], b[None], alpha=0)
        assert torch.equal(stacked[0], c)
        with tritemm.enabled() as report:
            routed = torch.addmm(c, bad[:, :4], b, alpha=0, beta=2)
        assert torch.equal(routed, 2 * c) and report.ran == {"addmm": 1}
    each = torch.func.vmap(lambda x: tritemm.matmul(x, b, residual=c, alpha=0))
    assert torch.equal(each(bad[None, :, :4])[0], c)


@pytest.mark.parametrize("activation", [None, "relu", "swiglu"])
@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_unread_has_a_gradient_of_zeros(activation, compiled):
    """As torch has it, whether or not another tensor needs one."""
    torch._dynamo.reset()
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


class Subclass(torch.Tensor):
    """Torch's functions return it where one of their arguments is one."""


@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.float64], ids=str)
def test_factors_that_fp32_cannot_hold(dtype):
    a, b, c = (integers(*shape, dtype=dtype) for shape in ((3, 4), (4, 5), (3, 5)))
    for given in ({"alpha": 1e39}, {"beta": -1e39}):
        for _ in range(2):  # the second time, calls of this kind are known
            tritemm.addmm(c, a, b, alpha=3, beta=3)
            if dtype == torch.float64:
                torch.testing.assert_close(
                    tritemm.addmm(c, a, b, **given), torch.addmm(c, a, b, **given)
                )
                continue
            with pytest.raises(RuntimeError, match="converted to float32 without overflow"):
                tritemm.addmm(c, a, b, **given)
            with tritemm.enabled() as report, pytest.raises(RuntimeError, match="converted"):
                torch.addmm(c, a, b, **given)
            assert not report.ran
    assert tritemm.addmm(c, a.abs() + 1, b.abs() + 1, alpha=float("inf")).isinf().all()


@pytest.mark.parametrize("value", [2**31, 2**32 + 5, 2**53 + 1, 2**60 + 3, -(2**63), 7.0])
def test_factors_of_int8_are_whole_numbers_of_64_bits(value):
    """Of which the sums, as torch's, keep 32."""
    one, wrapped = torch.ones(1, 1, dtype=torch.int8, device=DEVICE), torch.tensor(int(value)).int()
    for _ in range(2):
        assert tritemm.matmul(one, one, alpha=value).item() == wrapped.item()
        got = tritemm.addmm(one.int(), one, one, beta=value)
        assert got.item() == (wrapped + 1).item()
    for far in (2**63, -(2**80), 1e30):
        with pytest.raises(RuntimeError, match="cannot be converted to int64 without overflow"):
            tritemm.matmul(one, one, alpha=far)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "value",
    [np.float16(2), np.float32(2), np.int8(2), Fraction(2), torch.tensor(2)],
    ids=lambda value: type(value).__name__,
)
def test_factors_of_any_real_type(value):
    a = integers(2, 2)
    for _ in range(2):
        same(tritemm.addmm(a, a, a, alpha=value, beta=value), 2 * (a @ a) + 2 * a)
    same(tritemm.matmul(a, a, alpha=np.bool_(True)), a @ a)
    with pytest.raises(RuntimeError, match="overflow"):
        tritemm.matmul(a, a, alpha=Fraction(10**40))
    with pytest.raises(ValueError, match="beyond the largest float"):
        tritemm.matmul(a.double(), a.double(), alpha=Fraction(10**400, 3))


def test_of_what_counts_for_nothing_torch_asks_the_shape_alone():
    a, b = integers(2, 4, dtype=torch.int8), integers(4, 5, dtype=torch.int8)
    want = (a.double() @ b.double()).int()
    for unread in (
        torch.empty(2, 5, dtype=torch.int8, device=DEVICE),
        torch.empty(5, device="meta"),
    ):
        assert torch.equal(tritemm.addmm(unread, a, b, beta=0), want)
        assert torch.equal(tritemm.matmul(a, b, residual=unread, beta=0), want)


@pytest.mark.parametrize("terms", [0, 4])
def test_sums_of_no_terms_are_finished_in_fp32(terms):
    a, b = (integers(*shape, dtype=HALF) for shape in ((3, terms), (terms, 5)))
    residual = torch.full((3, 5), 1e5, device=DEVICE)
    got = tritemm.matmul(
        a, b, alpha=0, residual=residual, accumulate=HALF, out_dtype=torch.float32
    )  # fmt: skip
    assert torch.equal(got, residual)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8), (8,)], ids=str)
def test_a_bias_of_one_number(shape):
    x, w = integers(*shape).requires_grad_(), integers(6, 8)
    ours, theirs = (torch.tensor(3.0, device=DEVICE, requires_grad=True) for _ in range(2))
    got, want = tritemm.linear(x, w, ours), F.linear(x, w, theirs)
    same(got, want)
    (got.sum() + want.sum()).backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_gradients_are_scaled_and_summed_as_torch_does():
    x = torch.full((1, 2), 1e-3, dtype=HALF, device=DEVICE)
    w = torch.full((2, 1), 1e-3, dtype=HALF, device=DEVICE)
    for lib in (torch, tritemm):
        x.grad, _ = None, x.requires_grad_()
        zero = torch.zeros(1, 1, dtype=HALF, device=DEVICE)
        lib.addmm(zero, x, w, alpha=6e4).backward(torch.full_like(zero, 2))
        assert abs(x.grad[0, 0].item() - 120) < 1
    bias = torch.zeros(1, device=DEVICE, requires_grad=True)
    rows = torch.ones(2049, 1, dtype=HALF, device=DEVICE)
    tritemm.matmul(rows, rows[:1], bias=bias).sum().backward()
    assert bias.grad.item() == 2049


def test_a_gated_residual_is_checked():
    x, w = integers(4, 8), integers(12, 8)
    with pytest.raises(RuntimeError, match=r"\[4, 6\]"):
        tritemm.linear(x, w, activation="swiglu", residual=integers(3, 4, 6))


def test_gradients_accumulate_into_out():
    a, b = integers(6, 4, dtype=HALF), integers(4, 5, dtype=HALF)
    total = torch.zeros(6, 5, device=DEVICE)
    for _ in range(3):
        tritemm.matmul(a, b, out=total, beta=1, out_dtype=torch.float32)
    same(total, 3 * (a.float() @ b.float()))
    assert total._version == 3


def test_what_out_overlaps_is_read_first():
    a, b = integers(4, 4), integers(4, 4)
    for lib in (torch, tritemm):
        memory = torch.arange(20, dtype=torch.float32, device=DEVICE)
        residual, out = memory[:16].view(4, 4), memory[4:].view(4, 4)
        want = residual + a @ b
        if lib is tritemm:
            tritemm.matmul(a, b, residual=residual, out=out)
            assert torch.equal(out, want)
    bias = memory[4:8]
    want = a @ b + bias
    assert torch.equal(tritemm.matmul(a, b, bias=bias, out=out), want)


@pytest.mark.parametrize("dtype", [HALF, torch.float64], ids=str)
def test_sums_of_no_terms(dtype):
    x, w = (
        torch.empty(3, 0, dtype=dtype, device=DEVICE),
        torch.empty(5, 0, dtype=dtype, device=DEVICE),
    )
    b, r = integers(5, dtype=dtype), integers(3, 5, dtype=dtype)
    same(tritemm.linear(x, w, b, activation="relu", residual=r), F.relu(b.expand(3, 5)) + r)
    assert tritemm.linear(x[:0], w, b).shape == (0, 5)


def test_a_bias_and_a_residual_at_any_address():
    memory = integers(64, dtype=HALF)
    x, w = integers(3, 4, dtype=HALF), integers(5, 4, dtype=HALF)
    bias, residual = memory[1:11:2], memory[3:18].view(5, 3).mT
    same(tritemm.linear(x, w, bias, residual=residual), F.linear(x, w, bias) + residual)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_compile_fullgraph(dynamic, training):
    x, w, b = (leaf(*s, dtype=torch.float32) for s in ((3, 4), (5, 4), (5,)))
    if not training:
        x, w, b = (t.detach() for t in (x, w, b))

    def ours(x, w, b):
        return tritemm.linear(x, w, b, activation="relu", residual=b)

    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    got, want = compiled(x, w, b), F.relu(F.linear(x, w, b)) + b
    assert torch.equal(got, want)
    if training:
        for mine, torchs in zip(
            torch.autograd.grad(got.sum(), (x, w, b)),
            torch.autograd.grad(want.sum(), (x, w, b)), strict=True,
        ):  # fmt: skip
            assert torch.equal(mine, torchs)


def test_opcheck():
    x, w, b, r = leaf(3, 4), leaf(5, 4), leaf(5), leaf(3, 5)
    for activation in ("", "silu"):
        given = b, r, activation, 2.0, 0.5, False
        options = "auto", None, torch.float64, torch.float64
        torch.library.opcheck(torch.ops.tritemm.gemm, (x, w.mT, *given, *options))


def test_vmap():
    x, w, b = integers(2, 3, 4), integers(5, 4), integers(2, 5)
    got = torch.vmap(lambda x, b: tritemm.linear(x, w, b, activation="relu"))(x, b)
    assert torch.equal(got, F.relu(x @ w.mT + b[:, None]))


def test_per_sample_gradients():
    x, w, b = integers(2, 3, 4).double(), integers(5, 4).double(), integers(5).double()

    def loss(lib):
        return lambda w, b, x: (lib(x, w, b) ** 2).sum()

    over = {"in_dims": (None, None, 0)}
    got = torch.vmap(torch.func.grad(loss(tritemm.linear), (0, 1)), **over)(w, b, x)
    want = torch.vmap(torch.func.grad(loss(F.linear), (0, 1)), **over)(w, b, x)
    for mine, torchs in zip(got, want, strict=True):
        assert torch.equal(mine, torchs)


TRANSFORMS = {
    "hessian": lambda loss, x, *rest: torch.func.hessian(loss)(x, *rest),
    "jvp of grad": lambda loss, x, *rest: torch.func.jvp(
        lambda t: torch.func.grad(loss)(t, *rest), (x,), (x,)
    ),
    "vmap of jacrev": lambda loss, x, *rest: torch.vmap(
        torch.func.jacrev(loss, (0, 1, 2, 3)), in_dims=(0, None, None, None)
    )(torch.stack((x, x + 1)), *rest),
    "grad of functional_call": lambda loss, x, w, b, r: torch.func.grad(
        lambda p: torch.func.functional_call(Called(loss), p, (x, r)).sum()
    )({"weight": w, "bias": b}),
}


class Called(torch.nn.Linear):
    def __init__(self, function):
        super().__init__(1, 1)
        self.function = function

    def forward(self, x, residual):
        return self.function(x, self.weight, self.bias, residual)


@pytest.mark.parametrize("activation", [None, "silu", "swiglu"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name, activation):
    x, w, b, r = (torch.randn(s, device=DEVICE).double() for s in ((2, 3), (4, 3), 4, (2, 4)))
    if activation == "swiglu":
        r = r[:, :2]

    def ours(x, w, b, r):
        return tritemm.linear(x, w, b, activation=activation, residual=r).sin().sum()

    def torchs(x, w, b, r):
        return (activated(F.linear(x, w, b), activation or "") + r).sin().sum()

    got, want = (TRANSFORMS[name](loss, x, w, b, r) for loss in (ours, torchs))
    torch.testing.assert_close(got, want)


def test_forward_mode():
    x, w, b = integers(3, 4).double(), integers(5, 4).double(), integers(5).double()
    with fw.dual_level():
        duals = [fw.make_dual(t, t + 1) for t in (x, w, b)]
        got = fw.unpack_dual(tritemm.linear(*duals, activation="silu"))
        want = fw.unpack_dual(F.silu(F.linear(*duals)))
    torch.testing.assert_close(got.tangent, want.tangent)


def test_autocast():
    x, w, b = integers(3, 4), integers(5, 4), integers(5)
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = tritemm.linear(x, w, b), F.linear(x, w, b)
    same(got, want)


def test_flops_are_counted():
    with FlopCounterMode(display=False) as counter:
        tritemm.linear(integers(3, 4), integers(5, 4), integers(5))
    assert counter.get_total_flops() == 2 * 3 * 4 * 5


def test_a_function_mode_sees_the_call():
    class Doubled(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            seen.append((function.__name__, sorted(k for k, v in kwargs.items() if v is not None)))
            return "seen"

    seen = []
    x = integers(3, 4).as_subclass(Doubled)
    assert tritemm.linear(x, integers(5, 4), integers(5)) == "seen"
    assert seen[0][0] == "matmul" and "bias" in seen[0][1]
