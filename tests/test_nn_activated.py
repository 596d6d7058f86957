"""Plain MLPs and Sequentials after `convert`: an activation is an epilogue where that is safe."""

import copy
import inspect
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from tritemm.nn.activations import word_of

import tritemm
from tritemm import budget
from tritemm.plan import Ending

from .nn_models import (
    DEVICE,
    GPT2MLP,
    STEEP,
    Conv1D,
    LlamaMLP,
    Operators,
    Quantized,
    by_name_alone,
    integers,
    with_integers,
)


def fused(model, *args, **kwargs):
    """The activations that were epilogues in the call; and what it gave."""
    with Operators() as seen:
        result = model(*args, **kwargs)
    return seen.activations, result


def converted(model, **options):
    model = with_integers(model).eval()
    twin = copy.deepcopy(model)
    return model, twin, tritemm.convert(model, **options)


def beside_its_layers(model):
    """A converted model, and one whose layers alone are converted: but for epilogues, the same."""
    model, twin, _ = converted(model)
    tritemm.convert(twin, fuse=False)
    return model, twin


class NewGELUActivation(nn.Module):
    """As transformers has it."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


class QuickGELUActivation(nn.Module):
    """As transformers has it."""

    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS = [
    (nn.ReLU(), "relu"),
    (nn.ReLU(inplace=True), "relu"),
    (nn.GELU(), "gelu"),
    (nn.GELU("tanh"), "gelu_tanh"),
    (nn.SiLU(), "silu"),
    (NewGELUActivation(), "gelu_tanh"),
    (F.relu, "relu"),
    (torch.relu, "relu"),
    (F.gelu, "gelu"),
    (F.silu, "silu"),
]


@pytest.mark.parametrize("layer", [Conv1D, nn.Linear])
@pytest.mark.parametrize(("act", "word"), ACTIVATIONS, ids=lambda each: str(each)[:20])
def test_an_activation_is_an_epilogue_without_a_gradient(act, word, layer):
    mlp, twin, report = converted(GPT2MLP(act=act, layer=layer))
    assert report.changed[-1].note == f"c_fc with {word}" and report.left == ()
    assert isinstance(mlp, GPT2MLP) and type(mlp).__name__ == "GPT2MLP"
    x = integers(2, 3, 16)
    with torch.no_grad(), Operators() as seen:
        got = mlp(x)
    assert seen.activations == [word] and len(seen.names) == 2
    torch.testing.assert_close(got, twin(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("word", ["relu", "gelu", "gelu_tanh", "silu"])
@torch.no_grad()
def test_it_is_of_the_sums_and_rounded_once(word, dtype):
    act = {"relu": nn.ReLU(), "gelu": nn.GELU(), "silu": nn.SiLU()}.get(word, NewGELUActivation())
    model = nn.Sequential(nn.Linear(32, 16), act).to(DEVICE, dtype).eval()
    tritemm.convert(model)
    x = torch.randn(8, 32, device=DEVICE, dtype=dtype)
    weight, bias = model[0].weight.mT, model[0].bias
    words, got = fused(model, x)
    verdict = budget.check(got, x, weight, ending=Ending.made(x, weight, bias, None, word))
    assert words == [word] and verdict.ok, verdict


def test_the_layers_options_reach_the_product():
    options = {"batch_invariant": True, "precision": "tf32"}
    mlp, _, _ = converted(GPT2MLP(32, 64), **options)
    torch.nn.init.normal_(mlp.c_fc.weight)
    mlp.c_proj = nn.Identity()
    x = torch.randn(5, 32, device=DEVICE)
    with torch.no_grad():
        got, alone = mlp(x), mlp(x[:1])
        want = tritemm.linear(
            x, mlp.c_fc.weight.mT, mlp.c_fc.bias, activation="gelu_tanh", **options
        )
    assert torch.equal(got, want) and torch.equal(got[:1], alone)


@pytest.mark.parametrize("layer", [Conv1D, nn.Linear])
def test_the_activation_is_on_its_own_with_a_gradient(layer):
    mlp, twin, _ = converted(GPT2MLP(layer=layer))
    x = integers(3, 16)
    assert fused(mlp, x)[0] == []
    for model in (mlp, twin):
        model(x).sum().backward()
    for ours, theirs in zip(mlp.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    for model in (mlp, twin):
        model.requires_grad_(False)
    assert fused(mlp, x)[0] == ["gelu_tanh"]
    leaf = x.clone().requires_grad_()
    assert fused(mlp, leaf)[0] == []
    mlp.c_fc.bias.requires_grad_()
    assert fused(mlp, x)[0] == []


def replace_forward(mlp):
    """Before `convert` it is a reason to leave the module; after it, it is what is called."""
    mlp.forward = lambda x: mlp.c_proj(mlp.c_fc(x))


UNFUSED = {
    "training": lambda mlp: mlp.train(),
    "hook": lambda mlp: mlp.c_fc.register_forward_hook(lambda module, args, out: out + 1),
    "hook before": lambda mlp: mlp.c_fc.register_forward_pre_hook(lambda m, args: (2 * args[0],)),
    "hook of the activation": lambda mlp: mlp.act.register_forward_pre_hook(
        lambda module, args: (2 * args[0],)
    ),
    "forward": replace_forward,
    "forward of the layer": lambda mlp: setattr(mlp.c_fc, "forward", lambda x: x[..., :1] + ONES),
    "forward of the activation": lambda mlp: setattr(mlp.act, "forward", lambda x: x + 1),
    "another layer": lambda mlp: setattr(mlp, "c_fc", nn.Sequential(mlp.c_fc, nn.ReLU())),
    "another activation": lambda mlp: setattr(mlp, "act", nn.Tanh()),
    "another of its class": lambda mlp: setattr(mlp, "act", nn.GELU("none")),
    "an activation of its own": lambda mlp: setattr(mlp.c_fc, "activation", "relu"),
}
ONES = torch.ones(24, device=DEVICE)


@pytest.mark.parametrize("change", UNFUSED.values(), ids=UNFUSED)
@torch.no_grad()
def test_what_an_epilogue_would_miss_is_not_missed(change):
    mlp, twin = beside_its_layers(GPT2MLP(layer=nn.Linear))
    for model in (mlp, twin):
        model.dropout.p = 0.0
        change(model)
    x = integers(3, 16) / STEEP
    words, got = fused(mlp, x)
    assert words == fused(twin, x)[0] and "gelu_tanh" not in words
    assert torch.equal(got, twin(x))


@torch.no_grad()
def test_calls_in_other_words_and_under_autocast():
    mlp, twin = beside_its_layers(GPT2MLP())
    x = integers(3, 16)
    words, got = fused(mlp, hidden_states=x)
    assert words == [] and torch.equal(got, twin(x))
    with pytest.raises(TypeError):
        mlp(x, x)
    with torch.autocast(DEVICE, torch.bfloat16):
        words, got = fused(mlp, x)
        want = twin(x)
    assert words == [] and got.dtype == torch.bfloat16 and torch.equal(got, want)


@torch.no_grad()
def test_tensors_that_are_not_plain_are_given_to_the_children():
    mlp, twin = beside_its_layers(GPT2MLP(layer=nn.Linear))
    x = integers(3, 16)
    weight = mlp.c_fc.weight.detach().as_subclass(Quantized)
    for model in (mlp, twin):
        model.c_fc.weight = nn.Parameter(weight, requires_grad=False)
    words, got = fused(mlp, x)
    assert words == [] and torch.equal(got, twin(x))


@pytest.mark.parametrize(
    "make",
    [GPT2MLP, lambda: nn.Sequential(nn.Linear(16, 8), nn.GELU(), Conv1D(4, 8), nn.ReLU())],
    ids=["MLP", "Sequential"],
)
@pytest.mark.parametrize("grad", [True, False])
def test_compile_takes_the_whole_mlp(make, grad):
    torch._dynamo.reset()
    mlp, twin, _ = converted(make())
    x = integers(3, 16)
    targets = []

    def backend(graph, example):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    run = torch.compile(mlp, backend=backend, fullgraph=True)
    with torch.set_grad_enabled(grad):
        got = run(x)
        assert torch.equal(got, mlp(x))
        assert any("gelu" in target for target in targets) == grad
        torch.testing.assert_close(got, twin(x))
        run = torch.compile(mlp, backend="aot_eager", fullgraph=True)
        assert torch.equal(run(x), mlp(x))


@torch.no_grad()
def test_inductor_calls_one_kernel_for_both():
    torch._dynamo.reset()
    mlp, _, _ = converted(GPT2MLP())
    x = integers(3, 16)
    assert torch.equal(torch.compile(mlp, fullgraph=True)(x), mlp(x))


@torch.no_grad()
def test_compiled_code_notices_another_activation():
    torch._dynamo.reset()
    mlp, twin, _ = converted(GPT2MLP())
    run = torch.compile(mlp, backend="aot_eager", fullgraph=True)
    x = integers(3, 16) / STEEP
    for act in (mlp.act, nn.GELU(), nn.ReLU()):
        mlp.act = twin.act = act
        torch.testing.assert_close(run(x), twin(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "way",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))],
    ids=["deepcopy", "pickle"],
)
@pytest.mark.parametrize("act", [nn.SiLU(), F.silu], ids=["class", "function"])
@torch.no_grad()
def test_copies_are_fused_too(way, act):
    mlp, _, _ = converted(GPT2MLP(act=act))
    twin = way(mlp)
    assert type(twin) is type(mlp)
    x = integers(3, 16)
    words, got = fused(twin, x)
    assert words == ["silu"] and torch.equal(got, mlp(x))
    assert tritemm.convert(twin) == tritemm.nn.Report()


def test_restore_takes_it_back():
    mlp, twin, _ = converted(GPT2MLP())
    report = tritemm.nn.restore(mlp)
    assert [type(m) for m in mlp.modules()] == [type(m) for m in twin.modules()]
    assert [vars(m).keys() for m in mlp.modules()] == [vars(m).keys() for m in twin.modules()]
    assert len(report.changed) == 3
    x = integers(3, 16)
    assert torch.equal(mlp(x), twin(x))


@torch.no_grad()
def test_a_second_convert_takes_another_activation_up():
    mlp, _, _ = converted(GPT2MLP())
    assert tritemm.convert(mlp) == tritemm.nn.Report()
    mlp.act = nn.SiLU()
    report = tritemm.convert(mlp)
    assert [entry.note for entry in report.changed] == ["c_fc with silu"]
    assert fused(mlp, integers(3, 16))[0] == ["silu"]


def test_fuse_and_skip():
    model = nn.ModuleDict({"mlp": GPT2MLP()}).to(DEVICE)
    report = tritemm.convert(model, fuse=False)
    assert len(report.changed) == 2 and type(model["mlp"]) is GPT2MLP
    report = tritemm.convert(model, skip=["mlp"])
    assert report.left[-1].note == "not fused: named in skip" and type(model["mlp"]) is GPT2MLP
    tritemm.nn.restore(model)
    report = tritemm.convert(model, skip=["mlp.c_fc"])
    assert [entry.name for entry in report.changed] == ["mlp.c_proj"]
    assert [entry.name for entry in report.left] == ["mlp.c_fc"]


class Intermediate(nn.Module):
    """As BERT's is in transformers: the second layer is elsewhere."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(16, 24)
        self.intermediate_act_fn = nn.GELU()

    def forward(self, hidden_states):
        hidden_states = self.dense(hidden_states)
        return self.intermediate_act_fn(hidden_states)


class Normed(nn.Module):
    """Two activations, after a child that is no layer."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.first, self.act, self.second = nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)

    def forward(self, x):
        return self.act(self.second(self.act(self.first(self.norm(x)))))


@torch.no_grad()
def test_other_chains():
    x = integers(3, 16)
    mlp, twin, report = converted(Intermediate())
    assert report.changed[-1].note == "dense with gelu"
    words, got = fused(mlp, x)
    assert words == ["gelu"]
    torch.testing.assert_close(got, twin(x), rtol=1e-5, atol=1e-5)
    mlp, twin, report = converted(Normed())
    assert report.changed[-1].note == "first with relu, second with relu"
    words, got = fused(mlp, x)
    assert words == ["relu", "relu"]
    torch.testing.assert_close(got, twin(x), rtol=1e-5, atol=1e-5)


def sequential():
    return nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 8), nn.Dropout(), nn.ReLU())


@torch.no_grad()
def test_a_sequential_steps_over_its_activations():
    model, twin, report = converted(sequential())
    assert report.changed[-1].note == "0 with relu"
    x = integers(3, 16)
    words, got = fused(model, x)
    assert words == ["relu"] and torch.equal(got, twin(x))
    assert torch.equal(model[:2](x), twin[:2](x)) and len(model) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.append(nn.Tanh()),
        lambda model: model.insert(1, nn.Tanh()),
        lambda model: model.pop(4),
        lambda model: setattr(model, "other", nn.Tanh()),
    ],
    ids=["append", "insert", "pop", "name"],
)
@torch.no_grad()
def test_a_sequential_with_other_children_since(change):
    model, twin = beside_its_layers(sequential())
    for each in (model, twin):
        change(each)
    x = integers(3, 16)
    words, got = fused(model, x)
    assert words == [] and torch.equal(got, twin(x))


class DroppedOut(GPT2MLP):
    def forward(self, x):
        return self.c_proj(F.dropout(self.act(self.c_fc(x)), 0.1, self.training))


class Residual(GPT2MLP):
    def forward(self, x):
        return x + super().forward(x)


class Cast(GPT2MLP):
    def forward(self, x):
        if getattr(self.c_proj, "quantized", False):
            x = x.half()
        return self.c_proj(self.act(self.c_fc(x)))


class Chosen(GPT2MLP):
    def forward(self, x):
        inner = self.c_fc(x)
        if isinstance(self.act, nn.Module):
            inner = self.act(inner)
        return self.c_proj(inner)


class Watched(GPT2MLP):
    """Calls a child for what it does, not for what it gives."""

    def forward(self, x):
        self.dropout(x)
        return self.c_proj(self.act(self.c_fc(x)))


class Keeping(GPT2MLP):
    def forward(self, x):
        self.inner = self.act(self.c_fc(x))
        return self.c_proj(self.inner)


class Tuple(GPT2MLP):
    def forward(self, x):
        return (self.c_proj(self.act(self.c_fc(x))),)


class Squared(GPT2MLP):
    def forward(self, x):
        inner = self.act(self.c_fc(x))
        return self.c_proj(inner * inner)


class Late(GPT2MLP):
    """Its activation follows another child."""

    def forward(self, x):
        return self.c_proj(self.act(self.dropout(self.c_fc(x))))


@pytest.mark.parametrize(
    "kind", [DroppedOut, Residual, Cast, Chosen, Watched, Keeping, Tuple, Squared, Late]
)
def test_other_forms_are_left_silently(kind):
    mlp = kind().to(DEVICE)
    report = tritemm.convert(mlp)
    assert type(mlp) is kind
    assert len(report.changed) == 2 and report.left == ()


def test_a_graph_of_an_mlp_is_left():
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(16, 8), nn.ReLU()).to(DEVICE))
    report = tritemm.convert(graph)
    assert [entry.name for entry in report.changed] == ["0"]
    x = integers(3, 16)
    assert torch.equal(copy.deepcopy(graph)(x), graph(x))


@pytest.mark.parametrize(
    "act",
    [nn.Tanh(), nn.LeakyReLU(), QuickGELUActivation(), by_name_alone("ReLU", F.relu), F.mish],
    ids=["Tanh", "LeakyReLU", "QuickGELU", "Softened", "mish"],
)
def test_other_activations_are_left_with_a_reason(act):
    assert word_of(act) is None
    mlp, _, report = converted(GPT2MLP(act=act))
    assert type(mlp) is GPT2MLP and len(report.left) == 1
    name = "mish" if act is F.mish else str(act)
    assert report.left[0].note == f"not fused: tritemm.linear has no activation {name}"


def test_a_replaced_forward_is_left_with_a_reason():
    mlp = GPT2MLP().to(DEVICE)
    replace_forward(mlp)
    report = tritemm.convert(mlp)
    assert type(mlp) is GPT2MLP
    assert report.left[0].note == "not fused: its forward was replaced in the instance"


class Untouched(nn.Module):
    """Its forward needs no look: it has no layer, or no activation."""

    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


@pytest.mark.parametrize(
    "children",
    [
        {"act": nn.ReLU(), "mlp": GPT2MLP()},
        {"layer": nn.Linear(4, 4), "dropout": nn.Dropout(), "norm": nn.LayerNorm(4)},
        {"layer": tritemm.Linear(4, 4, activation="relu"), "act": nn.ReLU()},
        {"layers": nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])},
    ],
    ids=["no layer", "no activation", "its own activation", "in a list"],
)
def test_modules_without_a_layer_and_an_activation_are_not_asked(children, monkeypatch):
    asked = []
    real = tritemm.nn.convert.__globals__["chain"]
    monkeypatch.setitem(
        tritemm.nn.convert.__globals__,
        "chain",
        lambda module, names: asked.append(type(module)) or real(module, names),
    )
    model = Untouched(**children).to(DEVICE)
    report = tritemm.convert(model)
    assert report.left == () and Untouched not in asked


@torch.no_grad()
def test_an_activation_that_is_changed_in_place_is_noticed():
    for model in (nn.Sequential(nn.Linear(8, 8), nn.GELU()), LlamaMLP(act_fn=nn.GELU())):
        model, twin, _ = converted(model)
        act = model[1] if isinstance(model, nn.Sequential) else model.act_fn
        act.approximate = "tanh"
        other = twin[1] if isinstance(model, nn.Sequential) else twin.act_fn
        other.approximate = "tanh"
        x = integers(4, 8 if isinstance(model, nn.Sequential) else 16) / 4
        names, got = fused(model, x)
        assert names == [] and torch.equal(got, twin(x))


@torch.no_grad()
def test_an_exported_program_has_the_inputs_of_the_class():
    for model in (nn.Sequential(nn.Linear(8, 8), nn.ReLU()), GPT2MLP(8, 8, layer=nn.Linear)):
        model, twin, _ = converted(model)
        (name,) = inspect.signature(twin.forward).parameters
        shapes = {name: {0: torch.export.Dim("rows", min=2, max=64)}}
        program = torch.export.export(model, (integers(3, 8),), dynamic_shapes=shapes)
        assert program.graph_signature.user_inputs == (name,)
        x = integers(5, 8)
        torch.testing.assert_close(program.module()(x), twin(x))


@torch.no_grad()
def test_a_sequential_that_iterates_its_own_way_is_left():
    class Backwards(nn.Sequential):
        def __iter__(self):
            return iter(list(self._modules.values())[::-1])

    model, twin, _ = converted(Backwards(nn.Linear(8, 8), nn.ReLU()))
    x = integers(2, 8)
    assert type(model) is Backwards and torch.equal(model(x), twin(x))


@torch.no_grad()
def test_functional_call_and_transforms_see_their_own_weights():
    mlp, twin, _ = converted(GPT2MLP(act=nn.ReLU()))
    x = integers(3, 16)
    others = {name: 2 * p.detach() for name, p in mlp.named_parameters()}
    got = torch.func.functional_call(mlp, others, (x,))
    assert torch.equal(got, torch.func.functional_call(twin, others, (x,)))
    batch = torch.stack([x, 2 * x])
    assert torch.equal(torch.func.vmap(mlp)(batch), twin(batch))
    ours, theirs = (torch.func.jvp(model, (x,), (x,)) for model in (mlp, twin))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    with torch.enable_grad():
        ours, theirs = (torch.func.grad(lambda x, m=m: m(x).sum())(x) for m in (mlp, twin))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("act", ["gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu", "relu"])
@torch.no_grad()
def test_gpt2_of_transformers(act):
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP as Theirs

    config = transformers.GPT2Config(n_embd=16, activation_function=act)
    mlp, twin, report = converted(Theirs(24, config))
    word = act if act in ("gelu", "relu") else "gelu_tanh"
    assert report.changed[-1].note == f"c_fc with {word}" and report.left == ()
    x = integers(2, 3, 16)
    words, got = fused(mlp, x)
    assert words == [word]
    torch.testing.assert_close(got, twin(x))
