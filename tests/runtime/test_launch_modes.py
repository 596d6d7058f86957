"""The short launch path: when it is not taken, what it does for gradients, and what it keeps.

`standing_in` is in the place of the compiled kernels.
"""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.runtime.standing_in import StandIn, expect, integers, short_calls
from tritemm import plan, spec
from tritemm.api import matmul as api
from tritemm.op import derivatives
from tritemm.runtime import fast_path, triton_private
from tritemm.runtime.bounded import Bounded

pytestmark = [pytest.mark.latest, pytest.mark.usefixtures("stand_in")]


class Subclass(torch.Tensor):
    """A tensor that torch asks about every function."""


def under(context):
    def call(a, b):
        with context:
            return tritemm.matmul(a, b)

    return call


def profiled(a, b):
    """The profiler shows the operator."""
    with torch.profiler.profile() as profile:
        product = tritemm.matmul(a, b)
    assert "tritemm::gemm" in {event.key for event in profile.key_averages()}
    return product


def through_grad(a, b):
    """The product inside of a transform that differentiates."""
    kept = []

    def loss(x):
        kept.append(tritemm.matmul(a, x))
        return kept[0].sum()

    torch.func.grad(loss)(b)
    return a @ b


def traced(a, b):
    """By what `torch.jit.trace` recorded; the product must be part of it."""
    recorded = torch.jit.trace(tritemm.matmul, (a, b), check_trace=False)
    assert "tritemm::gemm" in str(recorded.graph)
    return recorded(a, b)


def hooked(a, b):
    """Under a launch hook, as Triton's profiler sets one."""
    hook = triton_private.knobs.runtime.launch_enter_hook
    hook.add(print)
    try:
        assert not triton_private.plain(), "who launches would not call it"
        return tritemm.matmul(a, b)
    finally:
        hook.remove(print)


UNUSUAL = {
    "autocast": lambda a, b: under(torch.autocast("cpu", torch.bfloat16))(a, b).float(),
    "flop counter": under(FlopCounterMode(display=False)),
    "profiler": profiled,
    "subclass": lambda a, b: tritemm.matmul(a.as_subclass(Subclass), b).as_subclass(torch.Tensor),
    "vmap": lambda a, b: torch.func.vmap(tritemm.matmul, (None, 0))(a, b[None])[0],
    "transform": through_grad,
    "functionalize": lambda a, b: torch.func.functionalize(tritemm.matmul)(a, b),
    "jit trace": traced,
    "negative bit": lambda a, b: -tritemm.matmul(torch._neg_view(a), b),
    "compile": lambda a, b: torch.compile(tritemm.matmul, fullgraph=True, backend="eager")(a, b),
    "hook": hooked,
}


@pytest.mark.parametrize("how", UNUSUAL)
def test_what_torch_must_see_goes_the_long_way(how, monkeypatch):
    if how == "autocast":  # of the CPU here, where tensors are
        monkeypatch.setattr(fast_path, "_autocast", torch.is_autocast_cpu_enabled)
    a, b = integers(24, 32), integers(32, 24)
    for _ in range(2):
        tritemm.matmul(a, b)
    made, known = [], api._known
    monkeypatch.setattr(
        "tritemm.api.matmul._known", lambda *args: made.append(known(*args)) or made[-1]
    )
    assert torch.equal(UNUSUAL[how](a.clone(), b.clone()), a @ b)
    assert not any(result is not None for result in made)
    tritemm.matmul(a, b)
    assert made[-1] is not None


def test_function_modes_see_every_call():
    seen = []

    class Record(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    a = integers(24, 24)
    with Record():
        for _ in range(3):
            assert torch.equal(tritemm.matmul(a, a), a @ a)
    assert seen.count(tritemm.matmul) == 3


def test_fake_tensors_touch_nothing():
    a = integers(24, 24)
    for _ in range(2):
        tritemm.matmul(a, a)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        got, short = short_calls(tritemm.matmul, mode.from_tensor(a), mode.from_tensor(a))
    assert short == 0 and got.shape == (24, 24) and type(got).__name__ == "FakeTensor"


def test_parameters_without_grad_are_plain():
    w = torch.nn.Parameter(integers(16, 16))
    for mode, x in ((torch.no_grad, w), (torch.inference_mode, integers(8, 16))):
        with mode():
            for call in range(2):
                got = expect(x @ w, call, x, w)
                assert not got.requires_grad and got.is_inference() == torch.is_inference(x @ w)


GRADIENTS = {
    "rows": lambda matmul, a, w: matmul(a, w),
    "a frozen weight": lambda matmul, a, w: matmul(a, w.detach()),
    "a frozen input": lambda matmul, a, w: matmul(a.detach(), w),
    "both by columns": lambda matmul, a, w: matmul(a.mT.contiguous().mT, w.mT.contiguous().mT),
    "a batch of rows": lambda matmul, a, w: matmul(torch.stack((a, 2 * a)), w),
    "a batch of both": lambda matmul, a, w: matmul(a[None], torch.stack((w, 2 * w))),
    "another type": lambda matmul, a, w: matmul(a.half(), w.half(), out_dtype=torch.float32),
    "strided": lambda matmul, a, w: matmul(a[:, ::2], w[::2]),
}


@pytest.mark.parametrize("function", GRADIENTS.values(), ids=GRADIENTS)
def test_gradients_use_the_prepared_launch(function):
    """From the third time on for all; whatever the gradient that comes in looks like."""

    def torchs(a, b, out_dtype=None):
        return torch.matmul(a.float(), b.float())

    a, w = integers(8, 16).requires_grad_(), integers(16, 24).requires_grad_()
    for call in range(5):
        y, short = short_calls(function, tritemm.matmul, a, w)
        assert short == (call > 0)
        grad = integers(*y.shape, dtype=y.dtype)
        grad = grad.mT.contiguous().mT if call == 4 else grad
        got, short = short_calls(torch.autograd.grad, y, (a, w), grad, allow_unused=True)
        assert short == sum(x is not None for x in got) or call in (0, 1, 4)
        want = torch.autograd.grad(function(torchs, a, w), (a, w), grad, allow_unused=True)
        for x, z in zip(got, want, strict=True):
            assert x is z is None or torch.equal(x, z)


#: What may come in as the gradient, of a product of squares whose first operand is `a`.
INCOMING = {
    "an operand's memory": lambda a: a.detach(),
    "zeros that have no memory": lambda a: torch._efficientzerotensor(a.shape),
    "a batch, by vmap that no transform announces": lambda a: integers(5, *a.shape),
}


@pytest.mark.parametrize("incoming", INCOMING.values(), ids=INCOMING)
def test_gradients_of_what_comes_in(incoming):
    """In turns with an usual one."""
    a, w = integers(16, 16).requires_grad_(), integers(16, 16).requires_grad_()
    for unusual in (True, True, False, False, True, True):
        grad = incoming(a) if unusual else integers(16, 16)
        batched = grad.dim() > 2
        y = tritemm.matmul(a, w)
        grad_a, grad_w = torch.autograd.grad(y, (a, w), grad, is_grads_batched=batched)
        assert torch.equal(grad_a, grad @ w.mT) and torch.equal(grad_w, a.mT @ grad)


class Through(torch.autograd.Function):
    """Whose gradient is a product of what comes in."""

    @staticmethod
    def forward(ctx, x, multiply):
        ctx.multiply = multiply
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.multiply(grad), None


@pytest.mark.wide
@pytest.mark.parametrize("incoming", INCOMING.values(), ids=INCOMING)
@pytest.mark.parametrize("known", [False, True])
def test_operands_without_memory_of_their_own(incoming, known):
    """Whether the kind is known already or not."""
    x, w, bias = integers(16, 16).requires_grad_(), integers(16, 16), integers(16)
    for multiply in (
        lambda t: tritemm.matmul(t, w),
        lambda t: tritemm.matmul(w, t, residual=t),
        lambda t: tritemm.linear(t, w),
        lambda t: tritemm.linear(w, t[0] * w, bias),
        lambda t: tritemm.linear(w, w, t[0]),
    ):
        grad = incoming(x)
        for _ in range(3 if known else 1):
            y = Through.apply(x, multiply)
            (got,) = torch.autograd.grad(y, x, grad, is_grads_batched=grad.dim() > 2)
        each = grad if grad.dim() > 2 else [grad + 0]
        assert torch.equal(got, torch.stack([multiply(t) for t in each]).view(got.shape))


def test_one_gradient_is_prepared_without_the_other(monkeypatch):
    """That of an operand which was broadcast is a sum besides."""
    worked_out, gradient = [], derivatives._gradient
    monkeypatch.setattr(
        derivatives, "_gradient", lambda i, *rest: worked_out.append(i) or gradient(i, *rest)
    )
    a, w = integers(8, 16).requires_grad_(), integers(3, 16, 24).requires_grad_()
    for _ in range(5):
        worked_out.clear()
        y = tritemm.matmul(a, w)
        grad = integers(*y.shape)
        grad_a, grad_w = torch.autograd.grad(y, (a, w), grad)
        assert torch.equal(grad_a, (grad @ w.mT).sum(0)) and torch.equal(grad_w, a.mT @ grad)
    assert worked_out == [0]


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("change", [torch.Tensor.double, lambda t: t[:, :5]])
def test_an_operand_that_is_another_by_the_time_of_its_gradient(calls, change):
    """As torch raises; by the operators at first, and where the launches are prepared."""
    a, w = integers(8, 16).requires_grad_(), torch.nn.Parameter(integers(16, 24))
    for _ in range(calls):
        y = tritemm.matmul(a, w)
        torch.autograd.grad(y, a, torch.ones_like(y), retain_graph=True)
    w.data = change(w.data)
    with pytest.raises(RuntimeError, match=r"first operand needs the second as .* \[16, 24\]"):
        torch.autograd.grad(y, a, torch.ones_like(y))


def test_tracing_before_dispatch_sees_the_product(monkeypatch):
    """A launch is in none of torch's modes, which are a thread's own."""
    launched = StandIn.__call__

    def elsewhere(*args):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(launched, *args).result()

    monkeypatch.setattr(StandIn, "__call__", elsewhere)
    a, w, x = integers(8, 16), integers(16, 24), integers(8, 16)
    for _ in range(2):
        tritemm.matmul(a, w)
    tracer = make_fx(lambda a, w: tritemm.matmul(a, w), pre_dispatch=True, tracing_mode="real")
    graph = tracer(a, w)
    assert torch.equal(graph(x, w), x @ w)


def test_without_torchs_names_the_operators_do_it(monkeypatch):
    monkeypatch.setattr(fast_path, "AVAILABLE", False)
    a = integers(16, 16)
    for _ in range(2):
        assert torch.equal(tritemm.matmul(a, a), a @ a)


# What is kept


def test_nothing_holds_tensors():
    a, b = integers(16, 24), integers(24, 16)
    results = [tritemm.matmul(a, b) for _ in range(3)]
    out = torch.empty(16, 16)
    for _ in range(2):
        tritemm.matmul(a, b, out=out)
    alive = [weakref.ref(t) for t in (a, b, out, *results)]
    del a, b, out, results
    gc.collect()
    assert not any(ref() is not None for ref in alive)


def test_kinds_are_bounded_and_forgotten(monkeypatch):
    monkeypatch.setattr(fast_path, "KNOWN", Bounded(3))
    for rows in range(1, 8):
        a = integers(rows, 8)
        assert torch.equal(tritemm.matmul(a, a.mT), a @ a.mT)
    assert 0 < len(fast_path.KNOWN) <= 3
    plan.forget()
    assert not fast_path.KNOWN


def test_threads(monkeypatch):
    """Kinds are made and used by several threads at once."""

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for step in range(12):
            a = torch.randint(-3, 4, (8 * (1 + step % 3), 16), generator=generator).float()
            assert torch.equal(tritemm.matmul(a, a.mT), a @ a.mT), step

    original, lock = spec.TritonKernel.launch, threading.RLock()

    def one_at_a_time(*args):  # Triton's interpreter isn't made for threads
        with lock:
            return original(*args)

    monkeypatch.setattr(spec.TritonKernel, "launch", one_at_a_time)
    monkeypatch.setattr(StandIn, "lock", lock)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_what_a_transform_has_left_behind():
    a, b, left = integers(8, 16), integers(16, 4), []
    torch.func.grad(lambda x: left.append(x * 2) or x.sum())(a)
    for _ in range(3):
        assert torch.equal(tritemm.matmul(left[0], b), 2 * a @ b)


def test_nothing_is_recorded_in_inference_mode_or_below_autograd():
    """Whatever grad mode says."""
    a, w = integers(16, 16), integers(16, 16).requires_grad_()
    for _ in range(3):
        with torch.inference_mode(), torch.enable_grad():
            assert not tritemm.matmul(a * 1, w).requires_grad
        with torch._C._AutoDispatchBelowAutograd():
            assert not tritemm.matmul(a, w).requires_grad
        assert tritemm.matmul(a, w).requires_grad


def test_operands_that_a_hook_on_saved_tensors_changes():
    """One that comes back as a negative view is not read as its memory."""
    a, b = integers(8, 16).requires_grad_(), integers(16, 4).requires_grad_()
    b_memory = b.data_ptr()

    def unpack(t):
        return torch._neg_view(-t) if t.data_ptr() == b_memory else t

    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            y = tritemm.matmul(a, b)
        grad = integers(8, 4)
        got = torch.autograd.grad(y, (a, b), grad)
        assert torch.equal(got[0], grad @ b.mT) and torch.equal(got[1], a.mT @ grad)


def test_under_compiled_autograd_torch_sees_the_gradients():
    """The short way's addresses are no numbers of a graph."""
    a, b = integers(8, 16).requires_grad_(), integers(16, 4).requires_grad_()
    for _ in range(3):
        tritemm.matmul(a, b).sum().backward()
    a.grad = b.grad = None
    seen = []

    def compiler(graph):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return torch.compile(graph, backend="eager")

    y = tritemm.matmul(a, b)
    with torch._dynamo.compiled_autograd._enable(compiler):
        y.backward(torch.ones_like(y))
    assert seen and torch.equal(a.grad, torch.ones(8, 4) @ b.mT)
