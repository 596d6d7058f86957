"""Torch's calls that come down to the routed ones: layers, models, compiled graphs, CUDA graphs."""

import doctest
import importlib

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn import functional as F

import tritemm
from tests.harness import DEVICE, assert_right
from tests.nn.models import with_integers
from tests.torch.twins import assert_same, integers
from tritemm.runtime import fast_path
from tritemm.takeover import routing


def random(*shape, dtype):
    return torch.randn(shape, device=DEVICE).to(dtype)


# How torch's calls come here


def test_a_known_kind_is_launched_at_once(monkeypatch):
    """Without checks; but what `matmul` broadcasts and bmm doesn't is no kind of bmm."""
    a, b, known = integers(2, 3, 4), integers(1, 4, 5), []
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


def test_settings_reach_the_choice(monkeypatch):
    """Precision is a matter of float32 alone; the rest has none to choose."""
    a, seen, product = integers(4, 4), [], routing.product

    def noted(a, b, out, options, *rest):
        seen.append((options[0], options[1], options[3]))
        return product(a, b, out, options, *rest)

    monkeypatch.setattr(routing, "product", noted)
    with tritemm.enabled(precision="bf16x3"):
        for dtype in (torch.float32, torch.float16):
            x = a.to(dtype)
            torch.addmm(x, x, x)
    assert seen == [("auto", "bf16x3", torch.float32), ("auto", None, torch.float16)]
    seen.clear()
    a.requires_grad_()
    with tritemm.set_batch_invariant_mode():
        torch.addmm(a, a, a).sum().backward()
    assert [word for word, *_ in seen] == ["auto/batch_invariant"] * 3


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
    x, w, b = integers(4, 8), integers(5, 8), integers(5)
    report = assert_same(lambda: call(x, w, b), routed=routed)
    assert report.ran and not report.fell_back


def test_modes():
    """Inference, no grad, autocast, deterministic algorithms."""
    x, w, b = integers(4, 8), integers(5, 8).requires_grad_(), integers(5)
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


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_forward_and_backward(compiled):
    layers = torch.nn.Linear(16, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8, bias=False)
    net, x = with_integers(torch.nn.Sequential(*layers)), integers(10, 16).requires_grad_()
    run = torch.compile(net, backend="aot_eager") if compiled else net

    def gradients(net):
        loss = (net(x) * torch.arange(8, device=DEVICE)).sum()
        return [loss, *torch.autograd.grad(loss, [x, *net.parameters()])]

    want = gradients(net)
    with tritemm.enabled() as report:
        got = gradients(run)
    assert all(map(torch.equal, got, want))
    assert report.ran == {"addmm": 1, "mm": 5} and not report.fell_back


def test_second_derivatives(quick):
    a, b = (integers(*size, dtype=torch.float64).requires_grad_() for size in ((2, 3), (3, 2)))
    with tritemm.enabled() as report:
        assert torch.autograd.gradgradcheck(torch.mm, (a, b))
    assert report.ran["mm"] > 4


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_graphs(backend):
    """Compiled before or inside, for any number of rows; each call chooses by its own."""
    w, b = integers(6, 8), integers(6)
    compiled = torch.compile(lambda x: F.linear(x, w, b), backend=backend, dynamic=True)
    compiled(integers(3, 8))
    with tritemm.enabled() as before:
        for x in (integers(3, 8), integers(4, 8), integers(7, 8)):
            assert torch.equal(compiled(x), F.linear(x, w, b))
    assert sum(before.ran.values()) == 6 and not before.fell_back
    if backend == "inductor":  # which may take the bias out of it
        assert before.ran.get("addmm.out", 0) + before.ran.get("mm.out", 0) == 3
    torch._dynamo.reset()
    with tritemm.enabled() as inside:
        compiled(integers(3, 8))
    assert sum(inside.ran.values()) == 1 and not inside.fell_back


def test_a_block_inside_a_compiled_function():
    def step(a):
        with tritemm.enabled() as report:
            b = a @ a
        return b, report.ran

    a = integers(4, 4)
    b, ran = torch.compile(step, backend="eager")(a)
    assert torch.equal(b, a @ a) and ran == {"mm": 1}


def test_calls_after_a_break_of_the_graph():
    """Dynamo must not compile what the dispatcher calls."""
    counters.clear()

    def step(a):
        torch._dynamo.graph_break()
        return next(t @ t for t in (a,) if torch._dynamo.graph_break() is None)

    a = integers(4, 4)
    with tritemm.enabled() as report:
        assert torch.equal(torch.compile(step, backend="eager")(a), a @ a)
    assert report.ran == {"mm": 2}
    assert not any("routing.py" in reason for reason in counters["graph_break"])


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


@pytest.mark.parametrize(
    "name",
    [
        "tritemm.nn.layers",
        "tritemm.nn.convert",
        "tritemm.api.blas",
        "tritemm.api.einsum",
        "tritemm.api.row_parallel",
        "tritemm.takeover.integrate",
    ],
)
def test_the_examples_of_the_docstrings(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


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
    x, w = integers(64, 256, dtype=torch.float16), integers(128, 256, dtype=torch.float16)
    b = integers(128, dtype=torch.float16) if biased else None
    with tritemm.enabled() as report:
        F.linear(x, w, b)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = F.linear(x, w, b)
    assert report.ran == {"addmm" if biased else "mm": 2} and not report.fell_back
    x.copy_(integers(64, 256, dtype=torch.float16))
    graph.replay()
    assert_right(y if b is None else y - b, x, w.mT)


@pytest.mark.gpu
def test_a_kind_that_a_capture_sees_first_is_left_to_torch():
    x = integers(72, 88, dtype=torch.float16)
    x.float().mT @ x.float()  # has cuBLAS make its workspace
    with tritemm.enabled() as report:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = torch.mm(x, x.mT)
    graph.replay()
    assert_right(y, x, x.mT)
    (reasons,) = report.fell_back.values()
    assert reasons == {"the first call of its kind, in the capture of a CUDA graph": 1}


@pytest.mark.gpu
def test_operands_on_two_devices_get_torchs_error():
    a = integers(4, 4)
    with tritemm.enabled() as report, pytest.raises(RuntimeError, match="same device"):
        torch.mm(a, a.cpu())
    assert report.fell_back == {"mm": {"operands on two devices": 1}}
