"""What Inductor makes of converted layers: fewer products, with what follows in the kernel."""

import contextlib
import copy
import functools
import math

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import tritemm
from tests.nn.models import (
    DEVICE,
    MLP,
    STEEP,
    Attention,
    LlamaMLP,
    compiled,
    gradients,
    integers,
    same,
    with_integers,
)
from tritemm import budget
from tritemm.problem import EpilogueInputs
from tritemm.runtime import inductor


def converted(model, **options):
    """A converted model in evaluation, and torch's with the same integers."""
    model = with_integers(model).eval()
    twin = copy.deepcopy(model)
    tritemm.convert(model, **options)
    return model, twin


# Products of one input


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_queries_keys_and_values_are_one_product(bias, grad):
    model, twin = converted(Attention(bias))
    x = integers(2, 3, 16).requires_grad_(grad)
    run, backend = compiled(model)
    got, want = run(x), twin(x)
    assert torch.equal(got, want) and got.stride() == want.stride()
    assert backend.products() == ["merged", "gemm"]
    if grad:
        ours = gradients(model, got), x.grad.clone()
        x.grad = None
        assert same(ours[0], gradients(twin, want)) and torch.equal(ours[1], x.grad)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("bias", [False, True])
def test_gate_and_up_are_one_product_with_a_gradient(training, bias):
    model, twin = converted(LlamaMLP(bias=bias))
    model.train(training)
    x = integers(3, 16)
    run, backend = compiled(model)
    got, want = run(x), twin(x)
    assert torch.equal(got, want) and backend.products() == ["merged", "gemm"]
    assert same(gradients(model, got), gradients(twin, want))


class Parts(Attention):
    """What its three layers give, called in an order that is not that of their weights."""

    def forward(self, x):
        v, k, q = (layer(x) for layer in reversed(self.projections))
        return q, k, v


@torch.no_grad()
def test_each_part_is_as_a_layers_result():
    """By itself in memory, whatever the order of the calls, and free to be written to."""
    model, twin = converted(Parts(True))
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    got = run(x)
    assert same(got, twin(x)) and backend.products() == ["merged"]
    assert all(part.is_contiguous() and part._base is None for part in got)
    got[0].zero_()
    assert same(got[1:], twin(x)[1:])


@torch.no_grad()
def test_many_rows_and_none_and_sizes_that_change():
    model, twin = converted(Attention(True))
    run, backend = compiled(model, dynamic=True)
    for shape in ((2, 3, 16), (3, 7, 16), (4, 2, 16)):
        x = integers(*shape)
        assert torch.equal(run(x), twin(x))
    assert len(backend.graphs) == 1 and backend.products()[0] == "merged"
    model, twin = converted(Parts())
    assert same(compiled(model)[0](x := integers(0, 16)), twin(x))


def test_products_of_int8_are_left_to_themselves():
    """Their results have another type than what they are merged by."""

    def both(x, w):
        return tritemm.linear(x, w[:4]), tritemm.linear(x, w[4:])

    x, w = (torch.randint(-9, 9, (n, 16), dtype=torch.int8, device=DEVICE) for n in (3, 8))
    run, backend = compiled(both)
    assert same(run(x, w), both(x, w)) and backend.products() == ["gemm", "gemm"]


@torch.no_grad()
@pytest.mark.parametrize("part", ["weights", "biases", "gated"])
def test_one_row_whose_memory_the_next_ones_follow(part):
    """It counts as contiguous whatever its stride is; the others are not that far away."""
    x, weights, biases = STEEP * integers(8, 16), integers(12, 16), integers(12)
    first, rest = slice(0, 1), slice(1, 2 if part == "gated" else 9)
    a, b = weights[::4][:1] if part != "biases" else weights[first], weights[rest]
    c, d = (biases[::4][:1], biases[rest]) if part == "biases" else (None, None)

    def call(linear, x, a, b, c, d):
        one, other = linear(x, a, c), linear(x, b, d)
        return (F.silu(one) * other,) if part == "gated" else (one, other)

    run, backend = compiled(functools.partial(call, tritemm.linear))
    assert same(run(x, a, b, c, d), call(F.linear, x, a, b, c, d))
    assert backend.products() == ["swiglu" if part == "gated" else "merged"]


class Two(Attention):
    def forward(self, x, y):
        return [layer(each) for each in (x, y) for layer in self.projections]


class Doubling(nn.Module):
    """Writes to what it is given, and gives nothing."""

    def forward(self, x):
        x.mul_(2)


class Writing(Attention):
    """Its input is another one, by the same name, for each of its layers."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def forward(self, x):
        x = x.clone()
        results = []
        for layer in self.projections:
            results.append(layer(x))
            self.write(x)
        return results


@torch.no_grad()
def test_products_of_two_inputs():
    model, twin = converted(Two())
    x, y = integers(2, 3, 16), integers(2, 5, 16)
    run, backend = compiled(model)
    assert same(run(x, y), twin(x, y)) and backend.products() == ["merged"] * 2
    model, twin = converted(Attention())
    run, backend = compiled(model)
    assert torch.equal(run(x, y), twin(x, y))  # k and v are of one
    assert backend.products() == ["gemm", "merged", "gemm"]


WRITES = {
    "in place": lambda x: x.add_(1),
    "an index": lambda x: x[..., 0].fill_(5),
    "a view": lambda x: x.flatten()[3:].neg_(),
    "a child": Doubling(),
    "an activation": nn.ReLU(inplace=True),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@torch.no_grad()
def test_inputs_that_are_written_to_between_the_layers(write):
    model, twin = converted(Writing(write))
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    assert same(run(x), twin(x)) and backend.products() == ["gemm"] * 3


def add_to_the_input(module, args, result):
    args[0].add_(1)


@torch.no_grad()
def test_a_hook_that_writes_to_the_input():
    model, twin = converted(Parts())
    for each in (model, twin):
        each.v_proj.register_forward_hook(add_to_the_input)
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    assert same(run(x.clone()), twin(x.clone())) and backend.products() == ["gemm", "merged"]


class Written(Attention):
    """Writes a weight, or a result, between its layers."""

    def forward(self, x, weight=True):
        q = self.q_proj(x)
        (self.k_proj.weight if weight else q).mul_(2)
        return q, self.k_proj(x), self.v_proj(x)


@pytest.mark.parametrize("weight", [True, False])
@torch.no_grad()
def test_weights_and_results_that_are_written_to_between_the_layers(weight):
    model, twin = converted(Written())
    run, _ = compiled(model)
    x = integers(2, 3, 16)
    for _ in range(2):
        assert same(run(x, weight), twin(x, weight))
    assert same(model.state_dict(), twin.state_dict())


def add_hooks(model):
    """Of each kind, on layers that are merged; each changes a result or a gradient."""
    q, k, v = model.projections
    q.register_full_backward_hook(lambda m, inputs, outputs: tuple(3 * each for each in inputs))
    q.weight.register_hook(lambda grad: 5 * grad)
    k.register_full_backward_pre_hook(lambda m, outputs: tuple(3 * each for each in outputs))
    k.register_forward_pre_hook(lambda m, args: (2 * args[0],))
    v.register_forward_hook(lambda m, args, out: 2 * out)
    v.register_forward_hook(lambda m, args, out: out.register_hook(lambda grad: 3 * grad) and out)


@pytest.mark.parametrize("compile_it", [False, True])
def test_hooks_on_layers_that_are_merged(compile_it):
    model, twin = converted(Attention())
    add_hooks(model), add_hooks(twin)
    run = compiled(model, fullgraph=False)[0] if compile_it else model
    x, y = (integers(2, 3, 16).requires_grad_() for _ in range(2))
    y.data.copy_(x)
    got, want = run(x), twin(y)
    assert torch.equal(got, want) and same(gradients(model, got), gradients(twin, want))
    assert torch.equal(x.grad, y.grad)


APART = {
    "a hook of the input": lambda k: k.register_forward_pre_hook(lambda m, args: (2 * args[0],)),
    "another forward": lambda k: setattr(k, "forward", lambda x: 2 * F.linear(x, k.weight)),
    "a weight that is made": lambda k: prune.random_unstructured(k, "weight", 0.0),
}


@pytest.mark.parametrize("change", APART.values(), ids=APART)
@torch.no_grad()
def test_products_of_their_own_where_one_would_miss_something(change):
    model, twin = converted(Attention())
    change(model.k_proj), change(twin.k_proj)
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    for _ in range(2):
        assert torch.equal(run(x), twin(x))
    assert "merged" not in backend.products()


class Partly(Attention):
    def forward(self, x):
        with torch.no_grad():
            first = self.q_proj(x)
        return torch.cat([first, self.k_proj(x), self.v_proj(x)], -1)


def test_a_gradient_that_some_layers_have():
    model, twin = converted(Partly())
    x = integers(2, 3, 16)
    ours, theirs = gradients(model, compiled(model)[0](x)), gradients(twin, twin(x))
    assert len(ours) == 2 and same(ours, theirs)
    for each in (model, twin):
        each.v_proj.requires_grad_(False)
    ours, theirs = gradients(model, compiled(model)[0](x)), gradients(twin, twin(x))
    assert len(ours) == 1 and same(ours, theirs)


@pytest.mark.parametrize("make", [Attention, LlamaMLP])
def test_checkpointing_in_compiled_code(make):
    model, twin = converted(make())
    x = integers(2, 3, 16)
    run, backend = compiled(lambda x: checkpoint(model, x, use_reentrant=False))
    assert same(gradients(model, run(x)), gradients(twin, twin(x)))
    assert "merged" in backend.products(0)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Parts()

    def forward(self, x):
        def both(x):
            return [part.sum(-1) for part in self.attention(x)]

        return torch.cond(x.sum() > 0, both, lambda x: both(-x), (x,))


@torch.no_grad()
def test_branches_of_a_graph():
    """Torch gives a branch no weights that share a storage, so they must not be packed."""
    model, twin = converted(Branching(), fuse=False)
    x = integers(3, 16)
    run, backend = compiled(model)
    for each in (x, -x):
        assert same(run(each), twin(each))
    assert backend.products() == ["gemm"] * 6
    tritemm.convert(model)
    with pytest.raises(RuntimeError, match="alias"):
        compiled(model)[0](x)


@pytest.mark.parametrize("options", [{"batch_invariant": True}, {"fuse": False}])
@torch.no_grad()
def test_options_that_forbid_it(options):
    model, twin = converted(Attention(), **options)
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    assert torch.equal(run(x), twin(x)) and "merged" not in backend.products()


@pytest.mark.parametrize(
    "named",
    [{"kernel": "naive"}, {"accumulate": torch.float16}, {"out_dtype": torch.float32}],
    ids=str,
)
@torch.no_grad()
def test_products_in_other_words_are_left(named):
    weights = integers(16, 16, dtype=torch.float16)
    parts = [part.mT for part in weights.split(8)]
    x = integers(3, 16, dtype=torch.float16)

    def function(x):
        return [tritemm.matmul(x, part, **named).relu() for part in parts]

    run, backend = compiled(function)
    assert same(run(x), function(x)) and set(backend.products()) == {"gemm"}


@torch.no_grad()
def test_the_precision_is_kept():
    model, _ = converted(Parts(), precision="tf32")
    x = integers(3, 16)
    run, backend = compiled(model)
    assert same(run(x), model(x)) and backend.products() == ["merged"]
    (node,) = (n for n in backend.graphs[0].graph.nodes if "merged" in str(n.target))
    assert node.args[-1] == "tf32"
    for first in ("tf32", None):
        model, _ = converted(Parts(), precision=first)
        tritemm.convert(model.k_proj, precision="ieee")
        run, backend = compiled(model)
        assert same(run(x), model(x)) and "merged" not in backend.products()


@torch.no_grad()
def test_autocast():
    model, twin = converted(Attention(True))
    x = integers(2, 3, 16)
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = compiled(model)[0](x), twin(x)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("make", [lambda: Attention(True), LlamaMLP, Attention])
@torch.no_grad()
def test_weights_that_come_apart_after_compiling(make):
    model, twin = converted(make())
    run, backend = compiled(model)
    x = integers(2, 3, 16)
    assert torch.equal(run(x), twin(x))
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        parameter.data = -parameter.data
        other.copy_(parameter)
    assert torch.equal(run(x), twin(x)) and len(backend.graphs) == 1
    tritemm.convert(model)
    assert torch.equal(run(x), twin(x))


# Activations


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


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("grad", [False, True])
def test_an_activation_is_an_epilogue_without_a_gradient(name, grad):
    model, twin = converted(MLP(ACTIVATIONS[name]))
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    with torch.set_grad_enabled(grad):
        got, want = run(x), twin(x)
        torch.testing.assert_close(got, want)
    word = name.split()[0]
    assert backend.products() == ["gemm" if grad else word, "gemm"]
    if grad:
        ours, theirs = gradients(model, got), gradients(twin, want)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("word", ["relu", "gelu", "gelu_tanh", "silu"])
@torch.no_grad()
def test_it_is_of_the_sums_and_rounded_once(word, dtype):
    model = nn.Sequential(nn.Linear(32, 16), ACTIVATIONS[word]).to(DEVICE, dtype).eval()
    tritemm.convert(model)
    x = torch.randn(8, 32, device=DEVICE, dtype=dtype)
    run, backend = compiled(model)
    weight, bias = model[0].weight.mT, model[0].bias
    verdict = budget.check(
        run(x), x, weight, ending=EpilogueInputs.made(x, weight, bias, None, word)
    )
    assert backend.products() == [word] and verdict.ok, verdict


@pytest.mark.parametrize(
    ("act_fn", "word"),
    [(nn.SiLU(), "swiglu"), (nn.GELU(), "geglu"), (F.silu, "swiglu")],
    ids=["SiLU", "GELU", "silu"],
)
@torch.no_grad()
def test_a_gated_activation_of_two_products_is_one_kernel(act_fn, word):
    model, twin = converted(LlamaMLP(act_fn=act_fn))
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    torch.testing.assert_close(run(x), twin(x), rtol=0, atol=0 if word == "swiglu" else 1e-3)
    assert backend.products() == [word, "gemm"]


class Gated(LlamaMLP):
    """A gated MLP but for what `inner` makes of gate and up."""

    def __init__(self, inner, bias=False):
        super().__init__(bias=bias)
        self.inner = inner

    def forward(self, x):
        return self.inner(self.gate_proj(x), self.up_proj(x))


INNER = {
    "up first": (lambda gate, up: up * F.silu(gate), ["swiglu"]),
    "the other": (lambda gate, up: gate * F.silu(up), ["merged"]),
    "the gate is used": (lambda gate, up: (F.silu(gate) * up, gate), ["merged"]),
    "up is used": (lambda gate, up: (F.silu(gate) * up, up), ["merged"]),
    "the activation is used": (lambda gate, up: (a := F.silu(gate), a * up), ["merged"]),
    "relu": (lambda gate, up: F.relu(gate) * up, ["merged"]),
    "tanh": (lambda gate, up: F.gelu(gate, approximate="tanh") * up, ["merged"]),
    "added": (lambda gate, up: F.silu(gate) + up, ["merged"]),
    "both": (lambda gate, up: F.silu(gate) * F.silu(up), ["merged"]),
    "limited": (lambda gate, up: F.silu(gate).clamp(max=1) * up, ["merged"]),
    "scaled": (lambda gate, up: 1.702 * F.silu(gate) * up, ["merged"]),
    "its square": (lambda gate, up: (a := F.silu(gate)) * a, ["silu"]),
    "another type": (lambda gate, up: F.silu(gate).half() * up.half(), ["merged"]),
}


@pytest.mark.parametrize(("inner", "products"), INNER.values(), ids=INNER)
@torch.no_grad()
def test_what_else_is_made_of_gate_and_up(inner, products):
    model, twin = converted(Gated(inner))
    x = integers(3, 16)
    run, backend = compiled(model)
    torch.testing.assert_close(run(x), twin(x))
    assert backend.products() == products


@pytest.mark.parametrize("widths", [(1, 15), (1, 16), (16, 1), (3, 1), (16, 8)], ids=str)
@torch.no_grad()
def test_a_gate_of_another_width_is_broadcast_or_refused_as_by_torch(widths):
    model = Gated(lambda gate, up: F.silu(gate) * up)
    model.gate_proj, model.up_proj = (nn.Linear(16, n, bias=False) for n in widths)
    model, twin = converted(model)
    x = integers(3, 16)
    run, _ = compiled(model)
    if 1 in widths:
        torch.testing.assert_close(run(x), twin(x))
        return
    with pytest.raises(Exception, match=r"16.*8"):
        run(x)


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


@pytest.mark.parametrize(("function", "name"), OTHERS.values(), ids=OTHERS)
@torch.no_grad()
def test_what_else_follows_a_layer(function, name):
    model, twin = converted(Followed(function))
    x = integers(16, 16) / 3
    run, backend = compiled(model)
    torch.testing.assert_close(run(x), twin(x))
    assert backend.products() == [name]


def near(got, want):
    """As sums of the same terms in another order, which may cancel: by the largest of the sums."""
    torch.testing.assert_close(got, want, rtol=0, atol=4e-7 * want.abs().max().item())


@torch.no_grad()
def test_an_activation_may_be_changed_in_compiled_code():
    model, twin = converted(MLP(nn.GELU()))
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
    model, _ = converted(Followed(F.relu), **options)
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
    model, twin = converted(GPT2MLP(24, config))
    x = integers(2, 3, 16) / 64
    run, backend = compiled(model)
    near(run(x), twin(x))
    assert backend.products() == ["relu" if act == "relu" else "gelu_tanh", "gemm"]


# Where it doesn't happen


@torch.no_grad()
def test_nothing_is_fused_elsewhere():
    from torch.utils.flop_counter import FlopCounterMode

    for model in (Attention(), LlamaMLP()):
        model, twin = converted(model)
        x = integers(2, 3, 16)
        with FlopCounterMode(display=False) as counter:
            assert torch.equal(model(x), twin(x))
        names = str(counter.flop_counts["Global"])
        assert "tritemm" in names and not {"merged", "gated"} & set(names.split("."))
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, backend="aot_eager")(x), twin(x))
        graph = torch.export.export(model, (x,), strict=False).graph
        assert not any(word in str(graph) for word in ("merged", "gated"))


# The code


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
    model, twin = converted(Both())
    x = integers(2, 3, 16)
    with made_anew():
        run = torch.compile(model, fullgraph=True, dynamic=False)
        got, sources = run_and_get_code(run, x)
    code = "".join(sources)
    assert same(got, twin(x)) and "tritemm.merged.default(" not in code and "cat" not in code
    for name in ("merged_into", "gated_into", "gemm_into"):
        assert code.count(f"torch.ops.tritemm.{name}(") == 1
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
    with pytest.warns(UserWarning, match="doesn't know the Inductor of torch .*takes other"):
        inductor.lower("an operator", "torch.add")


def test_inductor_merges_what_it_differentiates():
    model, twin = converted(LlamaMLP())
    x = integers(3, 16)
    with made_anew():
        run = torch.compile(model, fullgraph=True, dynamic=False)
        got, sources = run_and_get_code(lambda: gradients(model, run(x)))
    assert same(got, gradients(twin, twin(x)))
    assert "".join(sources).count("torch.ops.tritemm.merged_into(") == 1


@torch.no_grad()
def test_inductors_code_in_cpp_calls_the_operators():
    from torch._inductor import config

    model, twin = converted(LlamaMLP())
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

    model, twin = converted(Layer())
    torch._dynamo.reset()
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
