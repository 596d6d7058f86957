"""`linear`, `addmm`, `baddbmm`, `mv` and matmul's epilogue beside torch's own, as torch uses them.

Of whole numbers, which every type holds exactly, results are compared for equality.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import tritemm
from tests.harness import DEVICE, assert_right
from tests.torch.test_semantics import FLOATS, SHAPES
from tests.torch.twins import ACTIVATIONS, PLAIN, TORCH, equal, integers, leaf, same
from tritemm.problem import ACTIVATIONS as FUSED
from tritemm.problem import GATED, EpilogueInputs

HALF = torch.float16


def by(name, **options):
    """A call of the function that `lib` has by this name."""
    return lambda lib, *given, **out: getattr(lib, name)(*given, **options, **out)


def ended(lib, x, w, b, r, **out):
    return lib.linear(x, w, b, activation="relu", residual=r, **out)


#: Calls of tritemm, or of TORCH, and the shapes of what they take.
CALLS = {
    **{f"matmul {shapes}": (by("matmul"), *shapes) for shapes in SHAPES},
    "linear": (ended, (5, 8), (6, 8), (6,), (5, 6)),
    "linear of a stack": (ended, (2, 3, 8), (6, 8), (6,), (6,)),
    "linear of a vector": (ended, (8,), (6, 8), (6,), (6,)),
    "linear of no terms": (ended, (3, 0), (5, 0), (5,), (3, 5)),
    "linear of no rows": (ended, (0, 4), (5, 4), (5,), (0, 5)),
    "a bias": (by("linear"), (2, 3, 8), (6, 8), (6,)),
    "no bias": (by("linear"), (2, 3, 8), (6, 8)),
    "a weight of one dimension": (by("linear"), (2, 3, 8), (8,)),
    "a bias of one number": (by("linear"), (3, 8), (6, 8), ()),
    "one number and a stack": (by("linear"), (2, 3, 8), (6, 8), ()),
    "one number and a vector": (by("linear"), (8,), (6, 8), ()),
    "addmm": (by("addmm", beta=2.5, alpha=2), (3, 5), (3, 4), (4, 5)),
    "addmm of a row": (by("addmm", alpha=2), (5,), (3, 4), (4, 5)),
    "addmm of a column": (by("addmm", beta=2.5, alpha=2), (3, 1), (3, 4), (4, 5)),
    "addmm of one number": (by("addmm", beta=2.5, alpha=2), (), (3, 4), (4, 5)),
    "baddbmm": (by("baddbmm", beta=2), (5,), (2, 3, 4), (2, 4, 5)),
    "mv": (by("mv"), (3, 4), (4,)),
}


@pytest.mark.wide
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("call", "shapes"), [(c, s) for c, *s in CALLS.values()], ids=CALLS)
def test_results_and_gradients(call, shapes, dtype):
    tensors = [leaf(*shape, dtype=dtype) for shape in shapes]
    exact = [t.detach().double().requires_grad_() for t in tensors]
    got, want = call(tritemm, *tensors), call(TORCH, *exact)
    same(got, want.to(dtype))
    grad = integers(*want.shape, dtype=dtype)
    wanted = torch.autograd.grad(want, exact, grad.double())
    equal(torch.autograd.grad(got, tensors, grad), [t.to(dtype) for t in wanted])
    out = torch.full_like(got, torch.nan)
    with torch.no_grad():
        assert call(tritemm, *tensors, out=out) is out
    same(out, want.to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("activation", PLAIN)
def test_activations(activation, dtype):
    x, w = (torch.randn(7, 24, device=DEVICE).to(dtype) * 2 for _ in range(2))
    b = torch.randn(7, device=DEVICE).to(dtype)
    got = tritemm.linear(x, w, b, activation=activation)
    ending = EpilogueInputs(b, activation=activation or "")
    assert_right(got, x, w.mT, ending=ending)
    exact = TORCH.linear(*(t.double() for t in (x, w, b)), activation=activation)
    torch.testing.assert_close(ending.of(x.double() @ w.double().mT, torch.float64), exact)


def test_every_activation_is_compared():
    assert {name or "" for name in ACTIVATIONS} == {*FUSED, *GATED}


def test_activations_far_out_and_of_what_is_no_number():
    """Where their exponentials over- and underflow."""
    x = torch.tensor([[-1e4, -40, -9, -1e-3, 0, 1e-3, 9, 40, 1e4, torch.inf, torch.nan]]).mT
    one = torch.ones(1, 1, device=DEVICE)
    for name in PLAIN:
        got = tritemm.linear(x.to(DEVICE), one, activation=name, precision="ieee").cpu()
        # One at a time: of a vector, torch's gelu on some processors makes NaN of infinity.
        want = torch.stack([ACTIVATIONS[name](value) for value in x.flatten()])[:, None]
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-5)


# What is refused


WRONG = {
    "two types": lambda lib: lib.matmul(integers(3, 3), integers(3, 3).half()),
    "terms": lambda lib: lib.einsum("ij,jk->ik", integers(3, 4), integers(5, 4)),
    "a letter of the result": lambda lib: lib.einsum("ij,jk->il", integers(3, 4), integers(4, 5)),
    "twice in the result": lambda lib: lib.einsum("ij,jk->ikk", integers(3, 4), integers(4, 5)),
    "a dimension": lambda lib: lib.einsum("ijk,jk->i", integers(3, 4), integers(4, 5)),
    "no letter": lambda lib: lib.einsum("i$,j->ij", integers(3, 4), integers(4)),
    "one operand": lambda lib: lib.einsum("ij->i", integers(3, 4), integers(4)),
    "a letter of two sizes": lambda lib: lib.einsum("ii,ij->j", integers(1, 3), integers(3, 4)),
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
    with pytest.raises((RuntimeError, TypeError, ValueError)) as torchs:
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


def test_refusals():
    x, w = integers(3, 4), integers(5, 4)
    gated = {"activation": "swiglu"}
    for wrong, words in (
        ({"activation": "tanh"}, "one of relu"),
        ({"bias": integers(3)}, "5 columns"),
        ({"residual": integers(4, 5)}, r"\[3, 5\]"),
        ({"bias": integers(5).to("meta")}, "bias is on meta"),
        ({"bias": integers(5).bool()}, "bias is torch.bool"),
        ({"residual": integers(5).to(torch.complex64)}, "residual is torch.complex64"),
        ({"residual": integers(3, 5).to_sparse()}, "dense"),
        ({"kernel": "tiled", "bias": integers(5)}, "has no epilogue"),
        (gated, "a gated activation needs"),
        ({**gated, "weight": integers(12, 4), "residual": integers(3, 4, 6)}, r"\[3, 6\]"),
    ):
        with pytest.raises((ValueError, RuntimeError, NotImplementedError), match=words):
            tritemm.linear(x, **{"weight": w, **wrong})
    with pytest.raises(RuntimeError, match="needs an even number"):
        tritemm.matmul(x, w.mT, activation="swiglu")
    with pytest.raises(ValueError, match="pass one of these"):
        tritemm.matmul(x, w.mT, beta=2)
    with pytest.raises(TypeError, match=r"alpha must be a real number.*requires grad"):
        tritemm.matmul(x, w.mT, alpha=torch.tensor(1.0, requires_grad=True))
    with pytest.raises(ValueError, match="whole numbers"):
        tritemm.matmul(x.to(torch.int8), w.to(torch.int8).mT, activation="relu")


# Factors


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "value",
    [np.float16(2), np.float32(2), np.int8(2), Fraction(2), torch.tensor(2), torch.tensor(2.0)],
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


def test_a_factor_that_varies_in_a_graph_is_told_of_too():
    a = integers(3, 3, dtype=torch.float32)
    run = torch.compile(lambda alpha: tritemm.matmul(a, a, alpha=alpha), backend="eager")
    for alpha in (0.5, 0.25):
        equal(run(alpha), alpha * a @ a)
    with pytest.raises(Exception, match="converted to float32 without overflow"):
        run(1e39)


@pytest.mark.parametrize("alpha", [float("inf"), float("nan"), 0.0])
@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.float64], ids=str)
def test_no_terms_are_zeros_whatever_their_factor(dtype, alpha):
    c, a, b = (torch.ones(*shape, dtype=dtype, device=DEVICE) for shape in ((2, 3), (2, 0), (0, 3)))
    assert torch.equal(tritemm.addmm(c, a, b, alpha=alpha), torch.addmm(c, a, b, alpha=alpha))
    assert torch.equal(tritemm.matmul(a, b, alpha=alpha), torch.zeros_like(c))
    each = torch.vmap(lambda a: tritemm.addmm(c, a, b, alpha=alpha))(a[None])
    assert torch.equal(each, c[None])


@pytest.mark.parametrize("dtype", [HALF, torch.float32, torch.float64], ids=str)
def test_factors_that_fp32_cannot_hold(dtype):
    # Of positive numbers alone, so that no two libraries' roundings are all that is left of a sum.
    a, b, c = (integers(*shape, dtype=dtype).abs() + 1 for shape in ((3, 4), (4, 5), (3, 5)))
    for given in ({"alpha": 1e39}, {"beta": -1e39}):
        for _ in range(2):  # the second time, calls of this kind are known
            tritemm.addmm(c, a, b, alpha=3, beta=3)
            if dtype == torch.float64:
                got, want = (lib.addmm(c, a, b, **given) for lib in (tritemm, torch))
                torch.testing.assert_close(got, want)
                continue
            with pytest.raises(RuntimeError, match="converted to float32 without overflow"):
                tritemm.addmm(c, a, b, **given)
            with tritemm.enabled() as report, pytest.raises(RuntimeError, match="converted"):
                torch.addmm(c, a, b, **given)
            assert not report.ran
    assert tritemm.addmm(c, a, b, alpha=float("inf")).isinf().all()


@pytest.mark.parametrize("value", [2**31, 2**32 + 5, 2**53 + 1, 2**60 + 3, -(2**63), 7.0])
def test_factors_of_int8_are_whole_numbers_of_64_bits(value):
    """The sums, as torch's, keep 32 of them."""
    one, wrapped = torch.ones(1, 1, dtype=torch.int8, device=DEVICE), torch.tensor(int(value)).int()
    for _ in range(2):
        assert tritemm.matmul(one, one, alpha=value).item() == wrapped.item()
        got = tritemm.addmm(one.int(), one, one, beta=value)
        assert got.item() == (wrapped + 1).item()
    for far in (2**63, -(2**80), 1e30):
        with pytest.raises(RuntimeError, match="cannot be converted to int64 without overflow"):
            tritemm.matmul(one, one, alpha=far)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_factors_of_zero_leave_their_tensors_unread(dtype):
    a, b, c = (integers(*shape, dtype=dtype) for shape in ((3, 4), (4, 5), (3, 5)))
    bad = torch.full((3, 5), torch.nan, dtype=dtype, device=DEVICE)
    for _ in range(2):
        assert torch.equal(tritemm.matmul(a, b, residual=bad, beta=0), a @ b)
        for unread in (bad, bad[0], bad[:, :1], bad[0, 0]):
            assert torch.equal(tritemm.addmm(unread, a, b, beta=0), a @ b)
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


def test_of_what_counts_for_nothing_torch_asks_the_shape_alone():
    a, b = integers(2, 4, dtype=torch.int8), integers(4, 5, dtype=torch.int8)
    want = (a.double() @ b.double()).int()
    for unread in (
        torch.empty(2, 5, dtype=torch.int8, device=DEVICE),
        torch.empty(5, device="meta"),
    ):
        assert torch.equal(tritemm.addmm(unread, a, b, beta=0), want)
        assert torch.equal(tritemm.matmul(a, b, residual=unread, beta=0), want)


# Sums of other types, forms and places


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


@pytest.mark.parametrize("terms", [0, 4])
def test_sums_of_no_terms_are_finished_in_fp32(terms):
    a, b = (integers(*shape, dtype=HALF) for shape in ((3, terms), (terms, 5)))
    residual = torch.full((3, 5), 1e5, device=DEVICE)
    got = tritemm.matmul(
        a, b, alpha=0, residual=residual, accumulate=HALF, out_dtype=torch.float32
    )  # fmt: skip
    assert torch.equal(got, residual)


def test_a_bias_and_a_residual_at_any_address():
    memory = integers(64, dtype=HALF)
    x, w = integers(3, 4, dtype=HALF), integers(5, 4, dtype=HALF)
    bias, residual = memory[1:11:2], memory[3:18].view(5, 3).mT
    same(tritemm.linear(x, w, bias, residual=residual), F.linear(x, w, bias) + residual)
