"""Torch's own calls, routed: the same results, gradients and errors, and a true account of them."""

import contextlib
import functools

import pytest
import torch
from torch.nn import functional as F

import tritemm
from tests.harness import DEVICE, assert_right
from tests.sweep import pairwise
from tests.torch.test_semantics import FLOATS
from tests.torch.twins import assert_same, equal, integers, same
from tritemm.problem import Unsupported
from tritemm.takeover import routing

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

from torch.testing._internal.common_methods_invocations import op_db

NAMES = (
    "matmul", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "einsum",
    "nn.functional.linear",
)  # fmt: skip
OPS = {op.name: op for op in op_db if op.name in NAMES and not op.variant_test_name}
#: tritemm's own functions, which are called as torch's are.
DIRECT = {
    "matmul": tritemm.matmul, "__rmatmul__": lambda x, y: tritemm.matmul(y, x), "mv": tritemm.mv,
    "addmm": tritemm.addmm, "baddbmm": tritemm.baddbmm, "nn.functional.linear": tritemm.linear,
}  # fmt: skip
#: Of the samples, which are many.
TWO_TYPES = [torch.bfloat16, torch.float64]
#: Scalars of the samples -> ones that keep whole numbers exact.
EXACT = {0.2: 0.5, 0.6: 2.0}


pytestmark = pytest.mark.filterwarnings("ignore:An output with one or more elements")


# PyTorch's own samples


@functools.cache
def samples(name, dtype):
    return list(OPS[name].sample_inputs(DEVICE, dtype, requires_grad=False))


def whole_sample(sample):
    """The sample with whole numbers, and the tensors in it."""
    sample = sample.transform(
        lambda t: t.div(4).round().requires_grad_() if isinstance(t, torch.Tensor) else t
    )
    sample.kwargs = {name: EXACT.get(value, value) for name, value in sample.kwargs.items()}
    tensors = [sample.input] if isinstance(sample.input, torch.Tensor) else list(sample.input)
    return sample, tensors + [arg for arg in sample.args if isinstance(arg, torch.Tensor)]


def results(op, sample, tensors):
    """The result and the gradients of an uneven sum of it."""
    result = op(sample.input, *sample.args, **sample.kwargs)
    weights = torch.arange(result.numel(), device=DEVICE).remainder(3).view(result.shape)
    loss = (result * weights.to(result.dtype)).sum()
    return result, *torch.autograd.grad(loss, tensors)


@pytest.mark.wide
@pytest.mark.parametrize("name", NAMES)
def test_samples_and_their_gradients(name, quick):
    count = range(len(samples(name, torch.float64)))
    strided = (lambda sample: sample, lambda sample: sample.noncontiguous())
    with tritemm.enabled() as total:
        for dtype, index, stored in pairwise(TWO_TYPES, count, strided):
            sample, tensors = whole_sample(stored(samples(name, dtype)[index]))
            with tritemm.set_batch_invariant_mode(False):
                want = results(OPS[name], sample, tensors)
            same(results(OPS[name], sample, tensors), want)
            if name in DIRECT:
                result, *gradients = results(DIRECT[name], sample, tensors)
                same(result, want[0])
                equal(gradients, want[1:])
    assert total.ran and not total.fell_back, total


# Operators and their forms


def close(got, input, a, b, beta, alpha):
    """Whether `got` is beta * input + alpha * a @ b within the budget of that longer product.

    alpha and beta are powers of two, and their products with tensors exact.
    """
    input = (beta * input).expand(got.shape)
    eye = torch.eye(got.shape[-2], dtype=a.dtype, device=DEVICE).expand(*a.shape[:-1], -1)
    longer = torch.cat([alpha * a, eye], -1), torch.cat([b, input], -2)
    assert_right(got, *longer)


SCALARS = [(1, 1), (1, 2.0), (0.5, True), (-2, 4), (0.0, 0.5)]
INPUTS = [(5, 6), (6,), (5, 1), (1,), ()]


def test_sums_of_random_numbers():
    forms = "new", "out", "batched", "in place"
    for (beta, alpha), shape, form, dtype in pairwise(SCALARS, INPUTS, forms, FLOATS):
        batch = (3,) if form == "batched" else ()
        a, b = (torch.randn(*batch, *size, device=DEVICE).to(dtype) for size in ((5, 7), (7, 6)))
        input = torch.randn((5, 6) if form == "in place" else shape, device=DEVICE).to(dtype)
        kept, options = input.clone(), {"beta": beta, "alpha": alpha}
        with tritemm.enabled() as report:
            if form == "batched":
                got = torch.baddbmm(input, a, b, **options)
            elif form == "in place":
                got = input.addmm_(a, b, **options)
                assert got is input
            else:
                out = torch.full((6, 5), torch.nan, dtype=dtype, device=DEVICE).mT
                options |= {"out": out} if form == "out" else {}
                got = torch.addmm(input, a, b, **options)
                assert form == "new" or got is out
        assert sum(report.ran.values()) == 1 and not report.fell_back
        close(got, kept, a, b, beta, alpha)


def test_beta_of_zero_ignores_what_is_not_a_number():
    nan, a = torch.full((4, 4), torch.nan, device=DEVICE), integers(4, 4)
    for alpha in (1, 2):
        assert_same(lambda alpha=alpha: torch.addmm(nan, a, a, beta=0, alpha=alpha))
    assert_same(lambda: torch.addmv(nan[0], a, a[0], beta=0), routed={"addmv": 1})
    assert_same(lambda: nan.clone().addmm_(a, a, beta=0), routed={"addmm_": 1})


def test_a_sum_is_rounded_once():
    """2048 + 1 + 1 in fp16, where 2048 + 1 is 2048."""
    ones = torch.ones(1, 1, dtype=torch.float16, device=DEVICE)
    with tritemm.enabled() as report:
        assert torch.addmm(ones, torch.cat([ones, ones], 1), torch.cat([2048 * ones, ones])) == 2050
    assert report.ran == {"addmm": 1}


def test_every_form_of_out(quick):
    a, b, c = integers(4, 5), integers(5, 6), integers(4, 6)
    x, y = integers(3, 4, 5), integers(3, 5, 6)
    shapes = (4, 6), (0,), (2, 2), (3, 4, 6), (4,)
    calls = {
        "mm.out": lambda out: torch.mm(a, b, out=out),
        "bmm.out": lambda out: torch.bmm(x, y, out=out),
        "addmm.out": lambda out: torch.addmm(c, a, b, out=out),
        "baddbmm.out": lambda out: torch.baddbmm(c, x, y, alpha=2, out=out),
        "addmv.out": lambda out: torch.addmv(c[:, 0], a, b[:, 0], out=out),
        "_addmm_activation.out": lambda out: torch._addmm_activation(c[0], a, b, out=out),
    }
    for (name, call), shape in pairwise(list(calls.items()), shapes):
        assert_same(lambda c=call, s=shape: c(torch.zeros(s, device=DEVICE)), routed={name: 1})


def test_an_out_of_another_shape_gets_torchs_warning():
    a = integers(4, 4)
    with tritemm.enabled(), pytest.warns(UserWarning, match="output with one or more elements"):
        torch.mm(a, a, out=torch.zeros(3, 3, device=DEVICE))


def test_an_out_that_is_an_operand():
    a, b = integers(4, 4), integers(4, 4)
    want = a @ b
    with tritemm.enabled():
        for position in (0, 1):
            operands = [a.clone(), b.clone()]
            assert torch.equal(torch.mm(*operands, out=operands[position]), want)
            operands = [a.clone(), b.clone()]
            assert torch.equal(torch.addmm(a, *operands, out=operands[position]), a + want)


OVERLAPS = {
    "a row on": lambda m, a: torch.addmm(m[1:5], a, a, out=m[:4]),
    "in stacks": lambda m, a: torch.baddbmm(m[None, 1:5], a[None], a[None], out=m[None, :4]),
    "transposed": lambda m, a: torch.addmm(m[:4], a, a, out=m[:4].mT),
    "a vector": lambda m, a: torch.addmv(m.view(-1)[1:5], a, a[0], out=m.view(-1)[:4]),
}


@pytest.mark.parametrize("call", OVERLAPS.values(), ids=OVERLAPS)
def test_an_out_that_input_overlaps_in_part(call):
    """Torch refuses it, unless `input` counts for nothing, and can't tell of what has gaps."""
    memory, a = integers(9, 4), integers(4, 4)
    for context in (contextlib.nullcontext(), tritemm.enabled()):
        with context as report, pytest.raises(RuntimeError, match="single memory location"):
            call(memory, a)
    assert [list(why) for why in report.fell_back.values()] == [
        ["an out that input overlaps in part"]
    ]
    want = torch.addmm(memory[0:8:2], a, a)
    with tritemm.enabled():
        assert torch.equal(torch.addmm(memory[1:5], a, a, beta=0, out=memory[:4]), a @ a)
        memory[0:8:2] = want - a @ a
        assert torch.equal(torch.addmm(memory[0:8:2], a, a, out=memory[1:5]), want)


def test_activation():
    input, a, b = integers(6), integers(4, 5), integers(5, 6)
    total = torch.addmm(input, a, b)
    gelu = F.gelu(total, approximate="none" if DEVICE == "cpu" else "tanh")
    with tritemm.enabled() as report:
        assert torch.equal(torch._addmm_activation(input, a, b), total.relu())
        got = torch._addmm_activation(input, a, b, use_gelu=True)
        torch.testing.assert_close(got, gelu)  # by its own sum of exponentials
        torch._addmm_activation(integers(4, 6), a, b)
    assert report.ran == {"_addmm_activation": 2}
    assert report.fell_back == {"_addmm_activation": {"an activation of more than a bias": 1}}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wider_result(dtype):
    """Which torch has on CUDA alone."""
    a, b, c = (integers(*size, dtype=dtype) for size in ((4, 5), (5, 6), (4, 6)))
    with tritemm.enabled() as report:
        assert torch.equal(torch.mm(a, b, out_dtype=torch.float32), a.float() @ b.float())
        got = torch.bmm(a[None], b[None], out_dtype=torch.float32)
        assert torch.equal(got[0], a.float() @ b.float())
        got = torch.addmm(c, a, b, out_dtype=torch.float32)
        assert torch.equal(got, c.float() + a.float() @ b.float())
    assert report.ran["mm.dtype"] >= 1 and report.ran["addmm.dtype"] == 1
    with tritemm.enabled() as report, pytest.raises((RuntimeError, NotImplementedError)):
        torch.mm(a, b, out_dtype=torch.float64)
    reason = f"{str(dtype).removeprefix('torch.')} operands, float64 result"
    assert report.fell_back == {"mm.dtype": {reason: 1}}


# What is torch's own to do


def test_what_falls_back_and_why():
    a = integers(4, 4)
    ints, out = a.to(torch.int64), torch.empty(4, 4, device=DEVICE)
    calls = {
        "complex64 operands": lambda: torch.mm(a + 1j, a + 1j),
        "operands of two types": lambda: torch.mm(a, a.double()),
        "shapes left to torch": lambda: torch.bmm(a[None], a.expand(2, 4, 4)),
        "an out of another type or device": lambda: torch.mm(a, a, out=out.double()),
        "an out that overlaps itself": lambda: torch.mm(a, a, out=out[:1].expand(4, 4)),
        "input of another type or device": lambda: torch.addmm(a.double(), a, a),
        "input of another shape": lambda: torch.addmm(a.expand(2, 4, 4), a, a),
        "complex alpha or beta": lambda: torch.addmm(a, a, a, beta=1j),
    }
    if DEVICE == "cpu":
        calls["int64 operands"] = lambda: torch.addmm(ints, ints, ints, beta=2, alpha=3)
        calls["bool operands"] = lambda: torch.mm(a > 0, a > 0)
        calls["int8 operands"] = lambda: torch.mm(a.to(torch.int8), a.to(torch.int8))
    for reason, call in calls.items():
        report = assert_same(call, routed={})
        (reasons,) = report.fell_back.values()
        assert reasons == {reason: 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda a: torch.mm(a, a[0]),
        lambda a: torch.mm(a, a[:3]),
        lambda a: torch.addmm(a, a[0], a),
        lambda a: a.clone().addmm_(a[0], a),
        lambda a: a[0].clone().addmm_(a, a),
        lambda a: a[:, :1].clone().expand(4, 4).addmm_(a, a),
        lambda a: torch.addmv(a[0], a, a),
        lambda a: torch.addmv(a[0], a[0], a[0]),
        lambda a: torch.addmv(a[0], a, a[0], out=a[0].half()),
        lambda a: a[0, :3].clone().addmv_(a, a[0]),
        lambda a: torch.baddbmm(a, a[None], a),
        lambda a: F.linear(a, a, a[0, :3]),
    ],
)
def test_torchs_errors(call):
    """In the same words."""
    with pytest.raises((RuntimeError, IndexError)) as wanted:
        call(integers(4, 4))
    with tritemm.enabled() as report, pytest.raises(wanted.type) as raised:
        call(integers(4, 4))
    assert str(raised.value) == str(wanted.value)
    assert report.fell_back and not report.ran


def test_sparse_and_fake_tensors_do_not_come_here():
    from torch._subclasses import FakeTensorMode

    a = integers(4, 4)
    with tritemm.enabled() as report:
        assert torch.equal(torch.mm(a.to_sparse(), a), torch.sparse.mm(a.to_sparse(), a))
        with FakeTensorMode():
            torch.empty(4, 5, device=DEVICE) @ torch.empty(5, 6, device=DEVICE)
        torch.empty(4, 5, device="meta") @ torch.empty(5, 6, device="meta")
    assert str(report) == "no call was routed"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no kernel has such sums"), "no kernel for it"),
        (Unsupported("a sentence", "an AMD GPU"), "an AMD GPU"),
    ],
)
def test_what_the_choice_refuses_falls_back(error, reason, monkeypatch):
    def refuse(*args):
        raise error

    monkeypatch.setattr(routing, "product", refuse)
    a = integers(3, 3)
    for call, name in ((lambda: a @ a, "mm"), (lambda: torch.addmm(a, a, a), "addmm")):
        report = assert_same(call, routed={})
        assert report.fell_back == {name: {reason: 1}}
