"""Torch's own calls, routed: the same results, gradients and errors, and a true account of them."""

import contextlib
import doctest
import functools
import sys
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F

import tritemm
from tests.harness import DEVICE
from tests.sweep import pairwise
from tritemm import budget
from tritemm.runtime import fast_path
from tritemm.takeover import integrate, routing

pytest.importorskip("expecttest", reason="torch.testing._internal needs expecttest")

from torch.testing._internal.common_methods_invocations import op_db

NAMES = (
    "matmul", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "einsum",
    "nn.functional.linear",
)  # fmt: skip
OPS = {op.name: op for op in op_db if op.name in NAMES and not op.variant_test_name}
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
#: Of the samples, which are many.
TWO_TYPES = [torch.bfloat16, torch.float64]
#: Scalars of the samples -> ones that keep whole numbers exact.
EXACT = {0.2: 0.5, 0.6: 2.0}


@pytest.fixture(autouse=True)
def _as_torch_has_it():
    """No test leaves anything routed."""
    yield
    tritemm.disable()


@pytest.fixture
def quick(monkeypatch):
    """Products by numpy where kernels are interpreted: they have tests of their own."""

    def product(a, b, out, options, ending=None):
        found = torch.from_numpy(np.matmul(*(t.detach().double().numpy() for t in (a, b))))
        found = ending.of(found, torch.float64) if ending else found
        return (torch.empty(found.shape, dtype=options[-1]) if out is None else out).copy_(found)

    if DEVICE == "cpu":
        monkeypatch.setattr(routing, "product", product)


def whole(*shape, dtype=torch.float32, requires_grad=False):
    """Whole numbers whose sums are exact in every type."""
    return torch.randint(-2, 3, shape, device=DEVICE).to(dtype).requires_grad_(requires_grad)


def random(*shape, dtype):
    return torch.randn(shape, device=DEVICE).to(dtype)


def outcome(call):
    """What a call returned, or the type of what it raised; without warnings of resized tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except Exception as error:
            return type(error)


def assert_same(call, *, routed=None, **settings):
    """`call()` gives what torch gives, to the bit; `routed` is what it then ran here."""
    want = outcome(call)
    with tritemm.enabled(**settings) as report:
        got = outcome(call)
    if routed is not None:
        assert report.ran == routed, report
    if isinstance(want, type):
        assert got is want
        return report
    assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
    assert torch.equal(got, want), (got, want)
    return report


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


@pytest.mark.parametrize("name", NAMES)
def test_samples_and_their_gradients(name, quick):
    count = range(len(samples(name, torch.float64)))
    strided = (lambda sample: sample, lambda sample: sample.noncontiguous())
    with tritemm.enabled() as total:
        for dtype, index, stored in pairwise(TWO_TYPES, count, strided):
            sample, tensors = whole_sample(stored(samples(name, dtype)[index]))
            got = results(OPS[name], sample, tensors)
            with tritemm.set_batch_invariant_mode(False):
                want = results(OPS[name], sample, tensors)
            for x, y in zip(got, want, strict=True):
                assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
                assert torch.equal(x, y), f"{dtype}, sample {index}: {sample}"
    assert total.ran and not total.fell_back, total


# Operators and their forms


def close(got, input, a, b, beta, alpha):
    """Whether `got` is beta * input + alpha * a @ b within the budget of that longer product.

    alpha and beta are powers of two, and their products with tensors exact.
    """
    input = (beta * input).expand(got.shape)
    eye = torch.eye(got.shape[-2], dtype=a.dtype, device=DEVICE).expand(*a.shape[:-1], -1)
    longer = torch.cat([alpha * a, eye], -1), torch.cat([b, input], -2)
    verdict = budget.check(got, *longer)
    assert verdict.ok, verdict


SCALARS = [(1, 1), (1, 2.0), (0.5, True), (-2, 4), (0.0, 0.5)]
INPUTS = [(5, 6), (6,), (5, 1), (1,), ()]


def test_sums_of_random_numbers():
    forms = "new", "out", "batched", "in place"
    for (beta, alpha), shape, form, dtype in pairwise(SCALARS, INPUTS, forms, TYPES):
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
    nan, a = torch.full((4, 4), torch.nan, device=DEVICE), whole(4, 4)
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
    a, b, c = whole(4, 5), whole(5, 6), whole(4, 6)
    x, y = whole(3, 4, 5), whole(3, 5, 6)
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
    a = whole(4, 4)
    with tritemm.enabled(), pytest.warns(UserWarning, match="output with one or more elements"):
        torch.mm(a, a, out=torch.zeros(3, 3, device=DEVICE))


def test_an_out_that_is_an_operand():
    a, b = whole(4, 4), whole(4, 4)
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
    memory, a = whole(9, 4), whole(4, 4)
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
    input, a, b = whole(6), whole(4, 5), whole(5, 6)
    total = torch.addmm(input, a, b)
    gelu = F.gelu(total, approximate="none" if DEVICE == "cpu" else "tanh")
    with tritemm.enabled() as report:
        assert torch.equal(torch._addmm_activation(input, a, b), total.relu())
        got = torch._addmm_activation(input, a, b, use_gelu=True)
        torch.testing.assert_close(got, gelu)  # by its own sum of exponentials
        torch._addmm_activation(whole(4, 6), a, b)
    assert report.ran == {"_addmm_activation": 2}
    assert report.fell_back == {"_addmm_activation": {"an activation of more than a bias": 1}}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_wider_result(dtype):
    """Which torch has on CUDA alone."""
    a, b, c = (whole(*size, dtype=dtype) for size in ((4, 5), (5, 6), (4, 6)))
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
    a = whole(4, 4)
    ints, out = a.to(torch.int64), torch.empty(4, 4, device=DEVICE)
    calls = {
        "complex64 operands": lambda: torch.mm(a + 1j, a + 1j),
        "operands of two types": lambda: torch.mm(a, a.double()),
        "shapes that are torch's to judge": lambda: torch.bmm(a[None], a.expand(2, 4, 4)),
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
        call(whole(4, 4))
    with tritemm.enabled() as report, pytest.raises(wanted.type) as raised:
        call(whole(4, 4))
    assert str(raised.value) == str(wanted.value)
    assert report.fell_back and not report.ran


def test_sparse_and_fake_tensors_do_not_come_here():
    from torch._subclasses import FakeTensorMode

    a = whole(4, 4)
    with tritemm.enabled() as report:
        assert torch.equal(torch.mm(a.to_sparse(), a), torch.sparse.mm(a.to_sparse(), a))
        with FakeTensorMode():
            torch.empty(4, 5, device=DEVICE) @ torch.empty(5, 6, device=DEVICE)
        torch.empty(4, 5, device="meta") @ torch.empty(5, 6, device="meta")
    assert str(report) == "no call was routed"


def test_what_the_choice_refuses_falls_back(monkeypatch):
    def refuse(*args):
        raise ValueError("no kernel has such sums")

    monkeypatch.setattr(routing, "product", refuse)
    report = assert_same(lambda: whole(3, 3).mul(0) @ torch.eye(3, device=DEVICE), routed={})
    assert report.fell_back == {"mm": {"no kernel for it": 1}}


# The account


def test_report():
    a = whole(4, 4)
    tritemm.enable()
    for _ in range(3):
        a @ a
    torch.addmm(a, a, a)
    torch.mm(a + 1j, a + 1j)
    report = tritemm.disable()
    assert report.ran == {"mm": 3, "addmm": 1}
    assert report.fell_back == {"mm": {"complex64 operands": 1}}
    assert str(report) == (
        "operator  tritemm  torch  why torch\n"
        "mm              3      1  1 x complex64 operands\n"
        "addmm           1      0"
    )
    a @ a
    assert report.ran == {"mm": 3, "addmm": 1}, "it was closed"
    assert str(tritemm.disable()) == "no call was routed"


def test_nesting():
    a = whole(4, 4)
    with tritemm.enabled() as outer:
        a @ a
        with tritemm.enabled(batch_invariant=True) as inner:
            a @ a
            assert integrate.is_batch_invariant_mode_enabled()
            with tritemm.set_batch_invariant_mode(False):
                a @ a
        assert not integrate.is_batch_invariant_mode_enabled()
        a @ a
    a @ a
    assert inner.ran == {"mm": 1} and outer.ran == {"mm": 3}


def test_blocks_that_overlap():
    """As those of two threads may: the last that began counts, and nothing is left in the end."""
    a = whole(4, 4)
    first, second = tritemm.enabled(), tritemm.enabled(batch_invariant=True)
    ran = first.__enter__().ran, second.__enter__().ran
    first.__exit__(None, None, None)
    assert integrate.is_batch_invariant_mode_enabled() and ran == ({}, {})
    with tritemm.enabled() as inner:
        a @ a
    a @ a
    second.__exit__(None, None, None)
    assert not integrate.is_batch_invariant_mode_enabled()
    a @ a
    assert inner.ran == {"mm": 1} and str(tritemm.disable()) == "no call was routed"
    assert integrate._State.blocks[-1].settings is None and len(integrate._State.blocks) == 1


def test_a_block_that_two_threads_enter_at_once():
    """Each of them leaves its own, whichever entered last."""
    a, block = whole(4, 4), tritemm.enabled()
    first = block.__enter__()
    entered, leave, left = threading.Event(), threading.Event(), []

    def other():
        with block as report:
            entered.set()
            leave.wait(60)
            a @ a
        left.append(report.ran)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    block.__exit__(None, None, None)
    leave.set()
    thread.join()
    assert first.ran == {} and left == [{"mm": 1}]
    assert len(integrate._State.blocks) == 1 and integrate._State.blocks[-1].settings is None


def test_a_block_that_raises_or_disables_leaves_what_it_found():
    a = whole(4, 4)
    tritemm.enable(batch_invariant=True)
    with pytest.raises(KeyError), tritemm.enabled():
        raise KeyError
    with tritemm.enabled():
        assert str(tritemm.disable()) == "no call was routed"
        a @ a
    assert integrate.is_batch_invariant_mode_enabled()
    a @ a
    assert tritemm.disable().ran == {"mm": 1}


def test_enabled_twice_and_disabled_twice():
    a = whole(4, 4)
    tritemm.enable()
    a @ a
    tritemm.enable(batch_invariant=True)
    a @ a
    assert tritemm.disable().ran == {"mm": 2}
    tritemm.disable()
    assert torch.equal(a @ a, tritemm.matmul(a, a))


def test_one_block_again_and_inside_itself():
    a = whole(4, 4)
    block = tritemm.enabled()
    with block as outer:
        a @ a
        with block as inner:
            a @ a
    with block as later:
        pass
    assert (outer.ran, inner.ran, later.ran) == ({"mm": 2}, {"mm": 1}, {})
    assert len(integrate._State.blocks) == 1


def test_what_returns_before_it_runs_is_not_decorated():
    def steps():
        yield 1

    async def step():
        return 1

    for function in (steps, step):
        for decorator in (tritemm.enabled(), tritemm.set_batch_invariant_mode()):
            with pytest.raises(TypeError, match="by `with`"):
                decorator(function)


def test_as_a_decorator():
    seen = []

    @tritemm.enabled(batch_invariant=True)
    def product(a):
        seen.append(integrate.is_batch_invariant_mode_enabled())
        return a @ a

    product(whole(2, 2))
    assert seen == [True] and not integrate.is_batch_invariant_mode_enabled()


def test_the_names_of_batch_invariant_ops():
    integrate.enable_batch_invariant_mode()
    assert integrate.is_batch_invariant_mode_enabled()
    integrate.disable_batch_invariant_mode()
    assert not integrate.is_batch_invariant_mode_enabled()
    with tritemm.set_batch_invariant_mode(True):
        assert integrate.is_batch_invariant_mode_enabled()
    with tritemm.set_batch_invariant_mode(enabled=False):
        assert not integrate.is_batch_invariant_mode_enabled()


def test_it_says_what_is_wrong():
    with pytest.raises(ValueError, match="precision='fast' is unknown"):
        tritemm.enable(precision="fast")
    a = whole(4, 4)
    assert torch.equal(a @ a, tritemm.matmul(a, a))


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tritemm.enable()
        tritemm.disable()


def test_a_kernel_that_was_there_before_is_what_calls_fall_back_to():
    library, a = torch.library.Library("aten", "IMPL"), whole(4, 4, dtype=torch.complex64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("mm", lambda a, b: torch.full_like(a, 7), integrate._KEY)
    try:
        with tritemm.enabled():
            assert (a @ a == 7).all()
        assert (a @ a == 7).all()
    finally:
        library._destroy()
    assert not (a @ a == 7).all()


# How torch's calls come here


def test_a_known_kind_is_launched_at_once(monkeypatch):
    """Without checks; but what `matmul` broadcasts and bmm doesn't is no kind of bmm."""
    a, b, known = whole(2, 3, 4), whole(1, 4, 5), []
    tritemm.matmul(a, b)
    with tritemm.enabled():
        wanted = torch.bmm(a, a.mT), torch.mm(a[0], b[0])
    for kind in fast_path.KNOWN.values():
        monkeypatch.setattr(kind, "launches", object())
    monkeypatch.setattr(fast_path, "AVAILABLE", True)
    monkeypatch.setattr(fast_path, "multiply", lambda kind, *where: known.append(kind) or wanted[0])
    with tritemm.enabled() as report:
        assert torch.bmm(a, a.mT) is not None and torch.mm(a[0], b[0]) is not None
        with pytest.raises(RuntimeError):
            torch.bmm(a, b)
    assert [kind.size for kind in known] == [(2, 3, 3), (3, 5)]
    assert report.ran == {"bmm": 1, "mm": 1} and list(report.fell_back) == ["bmm"]


def noted_options(monkeypatch):
    """The options of each product from now on."""
    seen, product = [], routing.product

    def noted(a, b, out, options, *rest):
        seen.append(options)
        return product(a, b, out, options, *rest)

    monkeypatch.setattr(routing, "product", noted)
    return seen


def test_precision(monkeypatch):
    """It is a matter of float32 alone; the rest has none to choose."""
    a, seen = whole(4, 4), noted_options(monkeypatch)
    with tritemm.enabled(precision="bf16x3"):
        for dtype in (torch.float32, torch.float16):
            x = a.to(dtype)
            torch.addmm(x, x, x)
    assert [(options[1], options[3]) for options in seen] == [
        ("bf16x3", torch.float32),
        (None, torch.float16),
    ]


@pytest.mark.parametrize(
    ("call", "routed"),
    [
        (lambda x, w, b: F.linear(x, w, b), {"addmm": 1}),
        (lambda x, w, b: F.linear(x, w), {"mm": 1}),
        (lambda x, w, b: F.linear(x[0], w), {"mm": 1}),
        (lambda x, w, b: F.linear(x.expand(2, 4, 8), w, b), None),
        (lambda x, w, b: x.expand(2, 4, 8).contiguous() @ w.mT, {"mm": 1}),
        (lambda x, w, b: torch.mv(w, x[0]), {"addmv_": 1}),
        (lambda x, w, b: w @ x[0], {"addmv_": 1}),
        (lambda x, w, b: torch.einsum("ij,kj->ki", x, w), {"bmm": 1}),
        (lambda x, w, b: torch.linalg.multi_dot([x, w.mT, w]), {"mm": 2}),
        (lambda x, w, b: torch.func.vmap(F.linear, (0, None, None))(x, w, b), None),
        (lambda x, w, b: torch.func.vmap(torch.mm, (0, None))(x.expand(3, 4, 8), w.mT), None),
        (
            lambda x, w, b: torch.func.grad(lambda w: F.linear(x, w, b).sum())(w),
            {"addmm": 1, "mm": 1},
        ),
    ],
)  # fmt: skip
def test_calls_that_come_down_to_these(call, routed):
    x, w, b = whole(4, 8), whole(5, 8), whole(5)
    report = assert_same(lambda: call(x, w, b), routed=routed)
    assert report.ran and not report.fell_back


def test_modes():
    """Inference, no grad, autocast, deterministic algorithms."""
    x, w, b = whole(4, 8), whole(5, 8, requires_grad=True), whole(5)
    with torch.inference_mode():
        report = assert_same(lambda: F.linear(x, w, b), routed={"addmm": 1})
        made = x + 1
    assert_same(lambda: made @ w.detach().mT, routed={"mm": 1})
    with torch.no_grad():
        assert_same(lambda: F.linear(x, w, b), routed={"addmm": 1})
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        report = assert_same(lambda: F.linear(x, w, b), routed={"addmm": 1})
    assert not report.fell_back
    want = F.linear(x, w, b)
    torch.use_deterministic_algorithms(True)  # also has torch.empty be NaN
    try:
        with tritemm.enabled():
            assert torch.equal(F.linear(x, w, b), want)
    finally:
        torch.use_deterministic_algorithms(False)


def model():
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8, bias=False)
    net = torch.nn.Sequential(*layers).to(DEVICE)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(whole(*parameter.shape))
    return net


def test_a_model_forward_and_backward():
    net, x = model(), whole(10, 16, requires_grad=True)

    def gradients():
        loss = (net(x) * torch.arange(8, device=DEVICE)).sum()
        return [loss, *torch.autograd.grad(loss, [x, *net.parameters()])]

    want = gradients()
    with tritemm.enabled() as report:
        got = gradients()
    assert all(map(torch.equal, got, want))
    assert report.ran == {"addmm": 1, "mm": 5} and not report.fell_back


def test_second_derivatives(quick):
    a, b = (whole(*size, dtype=torch.float64, requires_grad=True) for size in ((2, 3), (3, 2)))
    with tritemm.enabled() as report:
        assert torch.autograd.gradgradcheck(torch.mm, (a, b))
    assert report.ran["mm"] > 4


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_graphs(backend):
    """Compiled before or inside, for any number of rows; each call chooses by its own."""
    torch._dynamo.reset()
    w, b = whole(6, 8), whole(6)
    compiled = torch.compile(lambda x: F.linear(x, w, b), backend=backend, dynamic=True)
    compiled(whole(3, 8))
    with tritemm.enabled() as before:
        for x in (whole(3, 8), whole(4, 8), whole(7, 8)):
            assert torch.equal(compiled(x), F.linear(x, w, b))
    assert sum(before.ran.values()) == 6 and not before.fell_back
    if backend == "inductor":  # which may take the bias out of it
        assert before.ran.get("addmm.out", 0) + before.ran.get("mm.out", 0) == 3
    torch._dynamo.reset()
    with tritemm.enabled() as inside:
        compiled(whole(3, 8))
    assert sum(inside.ran.values()) == 1 and not inside.fell_back


def test_a_compiled_backward_pass():
    torch._dynamo.reset()
    net = model()
    with tritemm.enabled() as report:
        torch.compile(net, backend="aot_eager")(whole(5, 16)).sum().backward()
    assert report.ran == {"addmm": 1, "mm": 4} and not report.fell_back


def test_a_block_inside_a_compiled_function():
    torch._dynamo.reset()

    def step(a):
        with tritemm.enabled() as report:
            b = a @ a
        return b, report.ran

    a = whole(4, 4)
    b, ran = torch.compile(step, backend="eager")(a)
    assert torch.equal(b, a @ a) and ran == {"mm": 1}


def test_calls_after_a_break_of_the_graph():
    """Dynamo must not compile what the dispatcher calls."""
    torch._dynamo.reset()
    counters.clear()

    def step(a):
        torch._dynamo.graph_break()
        return next(t @ t for t in (a,) if torch._dynamo.graph_break() is None)

    a = whole(4, 4)
    with tritemm.enabled() as report:
        assert torch.equal(torch.compile(step, backend="eager")(a), a @ a)
    assert report.ran == {"mm": 2}
    assert not any("routing.py" in reason for reason in counters["graph_break"])


def test_threads():
    a = [whole(4, 5 + i) for i in range(4)]
    want, got = [t @ t.mT for t in a], [None] * 4

    def work(i):
        got[i] = a[i] @ a[i].mT

    with tritemm.enabled() as report:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(map(torch.equal, got, want)) and report.ran == {"mm": 4}


def test_blocks_come_and_go_under_other_threads_calls():
    """Their calls are on their way into what is registered, or wait there for their turn."""
    a, stop, wrong = whole(4, 4, dtype=torch.complex64), threading.Event(), []
    want = a @ a

    def repeat(work):
        try:
            while not stop.is_set():
                work()
        except Exception as error:
            wrong.append(error)

    def enter():
        with tritemm.enabled():
            pass

    def multiply():
        if not torch.equal(a @ a, want):
            wrong.append("product")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        threads = [threading.Thread(target=repeat, args=(w,)) for w in [multiply] * 3 + [enter] * 2]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        stop.set()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    enter()
    assert integrate._State.standing is None


def test_what_stays_registered_for_another_thread_hands_calls_on():
    a, go, done = whole(4, 4), threading.Event(), threading.Event()

    def work():
        a @ a
        done.set()
        go.wait()

    thread = threading.Thread(target=work)
    with tritemm.enabled() as report:
        thread.start()
        done.wait()
    assert integrate._State.blocks[-1].settings is None and integrate._State.standing is not None
    with tritemm.set_batch_invariant_mode(False), tritemm.enabled() as later:
        with tritemm.set_batch_invariant_mode(False):
            a @ a  # nobody's, and counted by nobody
        a @ a
    assert report.ran == later.ran == {"mm": 1} and not later.fell_back
    go.set()
    thread.join()
    want = torch.mm(a, a)
    for _ in range(routing.EVERY):
        assert torch.equal(torch.mm(a, a), want)
    assert integrate._State.standing is None


# The same bits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_do_not_depend_on_how_many_there_are(dtype):
    x, w, b = random(24, 48, dtype=dtype), random(9, 48, dtype=dtype), random(9, dtype=dtype)
    calls = [
        lambda x: F.linear(x, w, b),
        lambda x: F.linear(x, w),
        lambda x: torch.addmm(b, x, w.mT, beta=0.5, alpha=3),
    ]
    with tritemm.enabled(batch_invariant=True) as report:
        for call in calls:
            whole_batch = call(x)
            for rows in (1, 2, 17):
                assert torch.equal(call(x[:rows]), whole_batch[:rows])
        folded = F.linear(x.view(4, 6, 48), w, b)
        assert torch.equal(folded.view(24, 9), F.linear(x, w, b))
    assert not report.fell_back


def test_the_word_of_batch_invariance_reaches_the_choice(monkeypatch):
    a, seen = whole(3, 3, requires_grad=True), noted_options(monkeypatch)
    with tritemm.set_batch_invariant_mode():
        torch.addmm(a, a, a).sum().backward()
    assert [options[0] for options in seen] == ["auto/batch_invariant"] * 3


def test_inductor_is_kept_from_kernels_of_its_own():
    from torch._inductor import config

    before = config.max_autotune_gemm_backends, config.shape_padding
    assert "TRITON" in before[0]
    with tritemm.enabled():
        assert (config.max_autotune_gemm_backends, config.shape_padding) == before
        with tritemm.enabled(batch_invariant=True), tritemm.enabled(batch_invariant=True):
            assert (config.max_autotune_gemm_backends, config.shape_padding) == ("ATEN", False)
    assert (config.max_autotune_gemm_backends, config.shape_padding) == before


def test_what_is_set_meanwhile_stays():
    from torch._inductor import config

    before = config.max_autotune_gemm_backends
    try:
        with tritemm.enabled(batch_invariant=True):
            config.max_autotune_gemm_backends = "CPP"
        assert (config.max_autotune_gemm_backends, config.shape_padding) == ("CPP", True)
    finally:
        config.max_autotune_gemm_backends = before


def test_examples_of_the_docstrings():
    assert doctest.testmod(integrate).failed == 0


# On a GPU


@pytest.mark.gpu
def test_bits_of_rows_on_a_gpu():
    x = random(64, 1024, dtype=torch.bfloat16)
    w, b = random(768, 1024, dtype=torch.bfloat16), random(768, dtype=torch.bfloat16)
    with tritemm.enabled(batch_invariant=True) as report:
        whole_batch = F.linear(x, w, b), F.linear(x, w)
        for rows in range(1, 65):
            assert torch.equal(F.linear(x[:rows], w, b), whole_batch[0][:rows])
            assert torch.equal(F.linear(x[:rows], w), whole_batch[1][:rows])
    assert not report.fell_back


@pytest.mark.gpu
@pytest.mark.parametrize("biased", [False, True])
def test_a_captured_layer(biased):
    x, w = whole(64, 256, dtype=torch.float16), whole(128, 256, dtype=torch.float16)
    b = whole(128, dtype=torch.float16) if biased else None
    with tritemm.enabled() as report:
        F.linear(x, w, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = F.linear(x, w, b)
    assert report.ran == {"addmm" if biased else "mm": 2} and not report.fell_back
    x.copy_(whole(64, 256, dtype=torch.float16))
    graph.replay()
    verdict = budget.check(y if b is None else y - b, x, w.mT)
    assert verdict.ok, verdict


@pytest.mark.gpu
def test_a_kind_that_a_capture_sees_first_is_left_to_torch():
    x = whole(72, 88, dtype=torch.float16)
    x.float().mT @ x.float()  # has cuBLAS make its workspace
    with tritemm.enabled() as report:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.mm(x, x.mT)
    graph.replay()
    assert budget.check(y, x, x.mT).ok
    (reasons,) = report.fell_back.values()
    assert reasons == {"the first call of its kind, in the capture of a CUDA graph": 1}


@pytest.mark.gpu
def test_operands_on_two_devices_get_torchs_error():
    a = whole(4, 4)
    with tritemm.enabled() as report, pytest.raises(RuntimeError, match="same device"):
        torch.mm(a, a.cpu())
    assert report.fell_back == {"mm": {"operands on two devices": 1}}
