"""Converted models in torch's training loop and under its transforms, beside torch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tritemm
from tests.harness import assert_right
from tests.nn.models import (
    DEVICE,
    Attention,
    LlamaMLP,
    conv1d,
    integers,
    pair,
    same,
    with_integers,
)
from tests.torch.twins import kept


def same_gradients(theirs, ours):
    found = [[p.grad for p in model.parameters()] for model in (theirs, ours)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_one_step_of_a_layer_is_in_the_budget(dtype):
    """Product and both gradients, each by the bound of a product."""
    layer = tritemm.Linear(32, 16, bias=False, device=DEVICE, dtype=dtype)
    x = torch.randn(8, 32, device=DEVICE, dtype=dtype, requires_grad=True)
    grad = torch.randn(8, 16, device=DEVICE, dtype=dtype)
    out = layer(x)
    out.backward(grad)
    weight, inputs = layer.weight.detach(), x.detach()
    for got, a, b in (
        (out.detach(), inputs, weight.mT),
        (x.grad, grad, weight),
        (layer.weight.grad, grad.mT, inputs),
    ):
        assert_right(got, a, b)


@pytest.fixture(scope="module")
def whole():
    torch.manual_seed(0)
    return pair(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 16), LlamaMLP(16, 8)))


def autocast(model, x):
    with torch.autocast(DEVICE, torch.bfloat16):
        return model(x)


def functional_call(model, x):
    """And its derivatives by other parameters."""

    def called(parameters):
        return torch.func.functional_call(model, parameters, (x,))

    result, back = torch.func.vjp(called, {name: 2 * p for name, p in model.named_parameters()})
    return torch.cat(
        [result.flatten(), *map(torch.flatten, back(torch.ones_like(result))[0].values())]
    )


WAYS = {
    "checkpointed": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "checkpointed by a function": lambda model, x: checkpoint(model, x, use_reentrant=True),
    "autocast": autocast,
    "functional_call": functional_call,
    "vmap": lambda model, x: torch.func.vmap(model)(torch.stack([x, 2 * x])),
    "jvp": lambda model, x: torch.stack(torch.func.jvp(model, (x,), (x,))),
}


@pytest.mark.wide
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_results_and_gradients(whole, way):
    x, found = integers(3, 16), []
    for model in whole:
        model.zero_grad()
        leaf = x.clone().requires_grad_()
        out = way(model.train(), leaf)
        assert (out.dtype == torch.bfloat16) is (way is autocast)
        out.float().sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())
        with torch.no_grad():
            found.append((out.detach(), leaf.grad, way(model.eval(), x)))
    assert same(*found)
    same_gradients(*whole)


class LoRA(nn.Module):
    """A frozen layer and what is learnt beside it, x A B."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Linear(base.in_features, 2, bias=False)
        self.B = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.B(self.A(x))


@pytest.mark.parametrize("late", [False, True])
def test_adapters_over_frozen_weights(late):
    """Put into a model before it is converted, or after."""

    def adapted(model):
        for name in ("up_proj", "down_proj"):
            torch.manual_seed(1)
            setattr(model, name, with_integers(LoRA(getattr(model, name))))
        return model

    ours, theirs = pair(LlamaMLP() if late else adapted(LlamaMLP()))
    x = integers(3, 16)
    for model in (theirs, ours):
        (adapted(model) if late else model)(x).sum().backward()
    assert type(ours) is LlamaMLP and isinstance(ours.up_proj.base, tritemm.Linear)
    same_gradients(theirs, ours)
    learnt = {name for name, p in ours.named_parameters() if p.grad is not None}
    adapters = {f"{name}_proj.{factor}.weight" for name in ("up", "down") for factor in "AB"}
    assert learnt == {"gate_proj.weight"} | adapters


def test_convert_and_restore_after_compile():
    ours, theirs = pair(nn.Linear(16, 8))
    tritemm.nn.restore(ours)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example):
        graphs.append([str(n.target) for n in graph.graph.nodes if n.op == "call_function"])
        return graph.forward

    compiled = torch.compile(ours, backend=backend, fullgraph=True)
    x = integers(3, 16)
    for change in (lambda m: None, tritemm.convert, tritemm.nn.restore, tritemm.convert):
        change(ours)
        assert torch.equal(compiled(x), theirs(x))
    assert ["tritemm" in " ".join(each) for each in graphs] == [False, True]


def exported(model):
    return torch.export.export(model, (integers(3, 16),), strict=False).module()


def scripted(model):
    return torch.jit.trace(model, (integers(3, 16),))


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("trace", [torch.fx.symbolic_trace, scripted, exported])
@torch.no_grad()
def test_torchs_tracers(whole, trace):
    ours, theirs = (model.eval() for model in whole)
    x = integers(3, 16)
    traced = trace(ours)
    graph = str(traced.graph)
    assert "tritemm" in graph and torch.equal(traced(x), theirs(x))
    assert not any(f"aten.{word}.default" in graph for word in ("linear", "mm", "addmm"))
    if trace is torch.fx.symbolic_trace:
        assert torch.equal(copy.deepcopy(traced)(x), theirs(x))
        report = tritemm.convert(traced := trace(theirs))
        assert len(report.changed) == 6 and torch.equal(traced(x), theirs(x))


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_torchs_compiler_of_scripts(whole):
    """What is scripted is left as it is; what is ours can't be scripted, and says so."""
    ours, _ = whole
    for model in (ours, nn.Sequential(tritemm.Linear(3, 3))):
        with pytest.raises(RuntimeError, match=r"can't compile tritemm's Linear\. Use"):
            torch.jit.script(model)
    model = with_integers(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)))
    x = integers(3, 16)
    want = model(x)
    model[1] = torch.jit.script(model[1])
    report = tritemm.convert(model)
    assert [entry.name for entry in report.changed] == ["0"] and torch.equal(model(x), want)


PARTS = {
    "linear": lambda: nn.Linear(16, 8),
    "no bias": lambda: nn.Linear(16, 8, bias=False),
    "conv1d": lambda: conv1d(8, 16),
    "mlp": lambda: LlamaMLP(16, 24),
    "attention": Attention,
}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
def test_no_more_is_saved_for_backward_than_by_torch(make, frozen):
    ours, theirs = pair(make())
    for model in (theirs, ours):
        model.requires_grad_(not frozen)
    x = integers(2, 3, 16).requires_grad_()
    assert 0 < kept(lambda: ours(x)) <= kept(lambda: theirs(x))
