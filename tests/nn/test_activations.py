"""What Inductor makes of what follows converted layers, and the code that it then writes."""

import contextlib
import math

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F

import tritemm
from tests.harness import assert_right
from tests.nn.models import (
    DEVICE,
    MLP,
    Attention,
    LlamaMLP,
    Parts,
    assert_products,
    compiled,
    gradients,
    integers,
    pair,
    same,
)
from tritemm.problem import EpilogueInputs
from tritemm.runtime import inductor


def new_gelu(x):
    """As transformers has it."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu in place": nn.ReLU(inplace=True),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "gelu_tanh of transformers": new_gelu,
    "silu": nn.SiLU(),
    "silu by its formula": lambda x: x * torch.sigmoid(x),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_an_epilogue_without_a_gradient(name):
    x = integers(2, 3, 16)
    with torch.no_grad():
        model, twin = assert_products(
            MLP(ACTIVATIONS[name]), x, [name.split()[0], "gemm"], exact=False
        )
    run, backend = compiled(model)
    got, want = run(x), twin(x)
    torch.testing.assert_close(got, want)
    assert backend.products() == ["gemm", "gemm"]
    torch.testing.assert_close(gradients(model, got), gradients(twin, want))


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("word", ["relu", "gelu", "gelu_tanh", "silu"])
@torch.no_grad()
def test_it_is_of_the_sums_and_rounded_once(word, dtype):
    model = nn.Sequential(nn.Linear(32, 16), ACTIVATIONS[word]).to(DEVICE, dtype).eval()
    tritemm.convert(model)
    x = torch.randn(8, 32, device=DEVICE, dtype=dtype)
    run, backend = compiled(model)
    weight, bias = model[0].weight.mT, model[0].bias
    assert_right(run(x), x, weight, ending=EpilogueInputs.made(x, weight, bias, None, word))
    assert backend.products() == [word]


class Gated(LlamaMLP):
    """A gated MLP but for what `inner` makes of gate and up."""

    def __init__(self, inner, bias=False):
        super().__init__(bias=bias)
        self.inner = inner

    def forward(self, x):
        return self.inner(self.gate_proj(x), self.up_proj(x))


#: What is made of gate and up, and the name of the product.
INNER = {
    "SiLU": (lambda gate, up: F.silu(gate) * up, "swiglu"),
    "GELU": (lambda gate, up: F.gelu(gate) * up, "geglu"),
    "up first": (lambda gate, up: up * F.silu(gate), "swiglu"),
    "the other": (lambda gate, up: gate * F.silu(up), "merged"),
    "the gate is used": (lambda gate, up: (F.silu(gate) * up, gate), "merged"),
    "up is used": (lambda gate, up: (F.silu(gate) * up, up), "merged"),
    "the activation is used": (lambda gate, up: (a := F.silu(gate), a * up), "merged"),
    "relu": (lambda gate, up: F.relu(gate) * up, "merged"),
    "tanh": (lambda gate, up: F.gelu(gate, approximate="tanh") * up, "merged"),
    "added": (lambda gate, up: F.silu(gate) + up, "merged"),
    "both": (lambda gate, up: F.silu(gate) * F.silu(up), "merged"),
    "limited": (lambda gate, up: F.silu(gate).clamp(max=1) * up, "merged"),
    "scaled": (lambda gate, up: 1.702 * F.silu(gate) * up, "merged"),
    "its square": (lambda gate, up: (a := F.silu(gate)) * a, "silu"),
    "another type": (lambda gate, up: F.silu(gate).half() * up.half(), "merged"),
}


@pytest.mark.parametrize("widths", [(1, 15), (1, 16), (16, 1), (3, 1), (16, 8)], ids=str)
@torch.no_grad()
def test_a_gate_of_another_width_is_broadcast_or_refused_as_by_torch(widths):
    model = Gated(lambda gate, up: F.silu(gate) * up)
    model.gate_proj, model.up_proj = (nn.Linear(16, n, bias=False) for n in widths)
    model, twin = pair(model)
    x = integers(3, 16)
    run, _ = compiled(model)
    if 1 in widths:
        torch.testing.assert_close(run(x), twin(x))
        return
    with pytest.raises(Exception, match=r"16.*8"):
        run(x)


@pytest.mark.parametrize("word", ["swiglu", "geglu"])
def test_a_gate_apart_from_up_has_the_bits_of_two_products(word):
    torch.manual_seed(0)
    x, gate, up = (torch.randn(n, 8, device=DEVICE) for n in (64, 7, 7))
    got = torch.ops.tritemm.merged(x, gate, up, None, None, None, None, word, None)
    activation = F.silu if word == "swiglu" else F.gelu
    assert torch.equal(got, activation(tritemm.linear(x, gate)) * tritemm.linear(x, up))


class Followed(nn.Module):
    """A layer, and what follows it."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(16, 16), function

    def forward(self, x):
        return self.function(self.layer(x))


#: What follows, and the name of the product: of an activation that is only the first part of it.
OTHERS = {
    "QuickGELU": (lambda y: y * torch.sigmoid(1.702 * y), "gemm"),
    "a factor before": (lambda y: F.gelu(1.0001 * y), "gemm"),
    "a factor after": (lambda y: 1.0001 * F.gelu(y), "gelu"),
    "shifted": (lambda y: F.relu(y - 1e-3), "gemm"),
    "leaky": (lambda y: F.leaky_relu(y, 1e-3), "gemm"),
    "limited": (F.relu6, "relu"),
    "tanh": (torch.tanh, "gemm"),
    "nothing": (lambda y: y, "gemm"),
    "the argument, too": (lambda y: (F.relu(y), y), "gemm"),
    "twice": (lambda y: (F.relu(y), F.gelu(y)), "gemm"),
    "a residual": (lambda y: F.gelu(y) + y, "gemm"),
    "another type": (lambda y: F.relu(y).half(), "relu"),
    "through another type": (lambda y: F.relu(y.half()).float(), "gemm"),
    "through integers": (lambda y: F.relu(y.int().float()), "gemm"),
    "through truth": (lambda y: F.relu(y.bool().float()), "gemm"),
    "wider": (lambda y: F.relu(y.double()).float(), "relu"),
    "rows": (lambda y: y.softmax(-1), "gemm"),
    "other elements": (lambda y: F.relu(y.mT), "gemm"),
    "a threshold": (lambda y: y * (y > 0.05), "gemm"),
    "not where it is infinite": (lambda y: y * (y > 0), "gemm"),
    "rounded before": (lambda y: F.relu(torch.round(y / 0.1) * 0.1), "gemm"),
    "rounded down": (lambda y: F.relu(torch.div(y, 0.1, rounding_mode="floor")), "gemm"),
    "limited before": (lambda y: F.gelu(y.clamp(-65504, 65504)), "gemm"),
    "limited below": (lambda y: F.relu(y.clamp(min=-1e-3)), "gemm"),
    "without small ones": (lambda y: F.gelu(y * (y.abs() > 0.09)), "gemm"),
    "with waves": (lambda y: F.relu(y + torch.sin(10 * math.pi * y)), "gemm"),
    "a tiny shift": (lambda y: torch.log(F.relu(y + 1e-30)), "gemm"),
    "a tiny shift before a curve": (lambda y: F.gelu(y + 1e-20), "gemm"),
    "by less digits": (lambda y: y * 0.5 * (1 + torch.erf(y / 1.41421)), "gemm"),
}


@pytest.mark.wide
@pytest.mark.parametrize(("inner", "product"), INNER.values(), ids=INNER)
@torch.no_grad()
def test_what_else_is_made_of_gate_and_up(inner, product):
    assert_products(Gated(inner), integers(2, 3, 16), [product], exact=product == "swiglu")


@pytest.mark.wide
@pytest.mark.parametrize(("function", "product"), OTHERS.values(), ids=OTHERS)
@torch.no_grad()
def test_what_else_follows_a_layer(function, product):
    assert_products(Followed(function), integers(16, 16) / 4, [product], exact=False)


def near(got, want):
    """As sums of the same terms in another order, which may cancel: by the largest of the sums."""
    torch.testing.assert_close(got, want, rtol=0, atol=4e-7 * want.abs().max().item())


@torch.no_grad()
def test_an_activation_may_be_changed_in_compiled_code():
    model, twin = pair(MLP(nn.GELU()))
    run, _ = compiled(model)
    x = integers(3, 16) / 64
    for change in (
        lambda mlp: None,
        lambda mlp: setattr(mlp.act, "approximate", "tanh"),
        lambda mlp: setattr(mlp, "act", nn.ReLU()),
    ):
        change(model), change(twin)
        near(run(x), twin(x))


@torch.no_grad()
def test_the_layers_options_reach_the_product():
    options = {"batch_invariant": True, "precision": "tf32"}
    model, _ = pair(Followed(F.relu), **options)
    nn.init.normal_(model.layer.weight)
    x = torch.randn(5, 16, device=DEVICE)
    run, _ = compiled(model, dynamic=True)
    want = tritemm.linear(x, model.layer.weight, model.layer.bias, activation="relu", **options)
    assert torch.equal(run(x), want) and torch.equal(run(x[:2]), want[:2])


@pytest.mark.parametrize("act", ["gelu_new", "gelu_fast", "relu"])
@torch.no_grad()
def test_gpt2_of_transformers(act):
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    config = transformers.GPT2Config(n_embd=16, activation_function=act)
    model, twin = pair(GPT2MLP(24, config))
    x = integers(2, 3, 16) / 64
    run, backend = compiled(model)
    near(run(x), twin(x))
    assert backend.products() == ["relu" if act == "relu" else "gelu_tanh", "gemm"]


# The code, and where nothing is fused


@torch.no_grad()
def test_nothing_is_fused_elsewhere():
    from torch.utils.flop_counter import FlopCounterMode

    for model in (Attention(), LlamaMLP()):
        model, twin = pair(model)
        x = integers(2, 3, 16)
        with FlopCounterMode(display=False) as counter:
            assert torch.equal(model(x), twin(x))
        names = str(counter.flop_counts["Global"])
        assert "tritemm" in names and not {"merged", "gated"} & set(names.split("."))
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, backend="aot_eager")(x), twin(x))
        graph = torch.export.export(model, (x,), strict=False).graph
        assert not any(word in str(graph) for word in ("merged", "gated"))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts, self.mlp = Parts(True), LlamaMLP()

    def forward(self, x):
        return *self.parts(x), self.mlp(x)


@contextlib.contextmanager
def made_anew():
    """No graph comes from a cache, which never runs a pass."""
    torch._dynamo.reset()
    from torch._functorch import config as functorch
    from torch._inductor import config

    with config.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        yield


@torch.no_grad()
def test_inductor_calls_them_without_a_detour():
    model, twin = pair(Both())
    x = integers(2, 3, 16)
    with made_anew():
        run = torch.compile(model, fullgraph=True, dynamic=False)
        got, sources = run_and_get_code(run, x)
    code = "".join(sources)
    assert same(got, twin(x)) and "tritemm.merged.default(" not in code and "cat" not in code
    for name, count in (("merged_into", 2), ("gemm_into", 1)):
        assert code.count(f"torch.ops.tritemm.{name}(") == count
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    assert same(run(x), twin(x))


@pytest.mark.parametrize(
    "part", ["pattern_matcher.register_graph_pattern", "lowering.register_lowering"]
)
def test_an_inductor_that_is_not_known_is_told_of(monkeypatch, part):
    def moved(*args, **named):
        raise TypeError("it takes other arguments")

    monkeypatch.setattr(f"torch._inductor.{part}", moved)
    monkeypatch.setattr(inductor, "_passes", [(("an operator",), print)])
    with pytest.warns(UserWarning, match="doesn't support the Inductor of torch .*takes other"):
        inductor.lower("an operator", "torch.add")


def test_inductor_merges_what_it_differentiates():
    model, twin = pair(LlamaMLP())
    x = integers(3, 16)
    with made_anew():
        run = torch.compile(model, fullgraph=True, dynamic=False)
        got, sources = run_and_get_code(lambda: gradients(model, run(x)))
    assert same(got, gradients(twin, twin(x)))
    assert "".join(sources).count("torch.ops.tritemm.merged_into(") == 1


@torch.no_grad()
def test_inductors_code_in_cpp_calls_the_operators():
    from torch._inductor import config

    model, twin = pair(LlamaMLP())
    x = integers(3, 16)
    with made_anew(), config.patch(cpp_wrapper=True):
        assert torch.equal(torch.compile(model, fullgraph=True, dynamic=False)(x), twin(x))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu_as_large_as_a_layer(mode, dtype):
    class Layer(Attention):
        def __init__(self):
            nn.Module.__init__(self)
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(256, n, dtype=dtype) for n in (256, 64, 64)
            )

        def forward(self, x):
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    model, twin = pair(Layer())
    run = torch.compile(model, mode=mode, fullgraph=True)
    for rows in (1, 16, 300):
        x = integers(2, rows, 256, dtype=dtype)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.no_grad():
                got = [t.clone() for t in run(x)]
            assert same(got, twin(x))
        torch.compiler.cudagraph_mark_step_begin()
        total = sum((t.float() * 2).sum() for t in run(x))
        want = sum((t.float() * 2).sum() for t in twin(x))
        ours = torch.autograd.grad(total, list(model.parameters()))
        theirs = torch.autograd.grad(want, list(twin.parameters()))
        assert same(ours, theirs)
