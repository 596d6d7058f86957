"""Converted models in torch's training loop and under its transforms, beside torch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tritemm
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
from tritemm import budget


def same_gradients(theirs, ours):
    found = [[p.grad for p in model.parameters()] for model in (theirs, ours)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_training_steps_are_torchs():
    """Of whole numbers, exactly; a rate of 1 keeps them whole."""
    models = pair(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)))
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.arange(48, device=DEVICE).view(3, 16).remainder(3).sub(1.0)
            model(x).sum().backward()
            optimizer.step()
    same_gradients(*models)
    assert same(*(model.state_dict() for model in models))


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
        verdict = budget.check(got, a, b)
        assert verdict.ok, verdict


@pytest.fixture(scope="module")
def whole():
    torch.manual_seed(0)
    return pair(nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 16), LlamaMLP(16, 8)))


def autocast(model, x):
    with torch.autocast(DEVICE, torch.bfloat16):
        return model(x)


def compiled(model, x):
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager", fullgraph=True)(x)


def functional_call(model, x):
    others = {name: 2 * p for name, p in model.named_parameters()}
    return torch.func.functional_call(model, others, (x,))


WAYS = {
    "checkpointed": lambda model, x: checkpoint(model, x, use_reentrant=False),
    "checkpointed by a function": lambda model, x: checkpoint(model, x, use_reentrant=True),
    "autocast": autocast,
    "compiled": compiled,
    "functional_call": functional_call,
    "vmap": lambda model, x: torch.func.vmap(model)(torch.stack([x, 2 * x])),
    "jvp": lambda model, x: torch.stack(torch.func.jvp(model, (x,), (x,))),
}


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


def test_gradients_by_values(whole):
    x, found = integers(3, 16), []
    for model in whole:
        values = {name: p.detach().clone() for name, p in model.named_parameters()}

        def loss(values, model=model):
            return torch.func.functional_call(model, values, (x,)).sum()

        found.append(torch.func.grad_and_value(loss)(values))
    torch.testing.assert_close(*found, rtol=0, atol=0)


class LoRA(nn.Module):
    """A frozen layer and what is learnt beside it, x A B."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Linear(base.in_features, 2, bias=False)
        self.B = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.B(self.A(x))


def test_adapters_over_frozen_weights():
    mlp = LlamaMLP()
    mlp.gate_proj, mlp.down_proj = LoRA(mlp.gate_proj), LoRA(mlp.down_proj)
    mlp.up_proj.requires_grad_(False)
    ours, theirs = pair(mlp)
    assert type(ours) is LlamaMLP and isinstance(ours.gate_proj.base, tritemm.Linear)
    x = integers(3, 16)
    for model in (theirs, ours):
        for name, parameter in model.named_parameters():  # gates are multiples of STEEP
            if "gate_proj" in name and ".A." in name:
                parameter.data.sign_()
        model(x).sum().backward()
    same_gradients(theirs, ours)
    assert {n for n, p in ours.named_parameters() if p.grad is not None} == {
        f"{name}_proj.{factor}.weight" for name in ("gate", "down") for factor in "AB"
    }


def test_adapters_put_into_a_converted_model():
    ours, theirs = pair(LlamaMLP())
    x = integers(3, 16)
    torch.manual_seed(1)
    adapters = with_integers(LoRA(nn.Linear(16, 24, bias=False)))
    for model in (theirs, ours):
        adapter = copy.deepcopy(adapters)
        adapter.base = model.up_proj.requires_grad_(False)
        model.up_proj = adapter
        model.eval().to(DEVICE)(x).sum().backward()
    assert isinstance(ours.up_proj.base, nn.Linear)
    same_gradients(theirs, ours)


def test_grad_scaler():
    """A step whose gradient is infinite is left out, and halves the scale."""
    results = []
    for model in pair(nn.Linear(16, 8)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=64.0)
        for factor in (1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            x = torch.ones(2, 16, device=DEVICE)
            scaler.scale(model(x).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append((scaler.get_scale(), model.weight.detach(), model.bias.detach()))
    assert results[0][0] == results[1][0] == 32.0
    assert all(torch.equal(x, y) for x, y in zip(results[0][1:], results[1][1:], strict=True))


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


def test_export(whole):
    ours, theirs = (model.eval() for model in whole)
    x = integers(3, 16)
    program = torch.export.export(ours, (x,), strict=False)
    targets = {str(node.target) for node in program.graph.nodes}
    assert any(target.startswith("tritemm.") for target in targets)
    assert not targets & {"aten.linear.default", "aten.mm.default", "aten.addmm.default"}
    y = integers(3, 16)
    assert torch.equal(program.module()(y), theirs(y))


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize(
    "trace", [torch.fx.symbolic_trace, lambda model: torch.jit.trace(model, (integers(3, 16),))]
)
@torch.no_grad()
def test_torchs_tracers(whole, trace):
    ours, theirs = (model.eval() for model in whole)
    x = integers(3, 16)
    traced = trace(ours)
    assert "tritemm" in str(traced.graph) and torch.equal(traced(x), theirs(x))
    if isinstance(traced, torch.fx.GraphModule):
        assert torch.equal(copy.deepcopy(traced)(x), theirs(x))
        report = tritemm.convert(traced := trace(theirs))
        assert len(report.changed) == 6 and torch.equal(traced(x), theirs(x))


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_torchs_compiler_of_scripts(whole):
    """What is scripted is left as it is; what is ours can't be scripted, and says so."""
    ours, _ = whole
    for model in (ours, nn.Sequential(tritemm.Linear(3, 3))):
        with pytest.raises(RuntimeError, match=r"can't compile Linear of tritemm\. Use"):
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
    def saved(model):
        total = 0

        def pack(tensor):
            nonlocal total
            total += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            model(x).sum().backward()
        return total

    ours, theirs = pair(make())
    for model in (theirs, ours):
        model.requires_grad_(not frozen)
    x = integers(2, 3, 16).requires_grad_()
    assert 0 < saved(ours) <= saved(theirs)
