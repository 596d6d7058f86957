"""What Inductor makes of converted layers: the products of one input are one."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import tritemm
from tests.nn.models import (
    DEVICE,
    STEEP,
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


@pytest.mark.wide
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("make", [Attention, LlamaMLP])
def test_with_a_gradient_and_without(make, bias, grad):
    model, twin = pair(make(bias=bias))
    x = integers(2, 3, 16)
    ours, theirs = (x.clone().requires_grad_(grad) for _ in range(2))
    run, backend = compiled(model.train(grad))
    got, want = run(ours), twin(theirs)
    assert torch.equal(got, want) and got.stride() == want.stride()
    assert backend.products() == ["merged", "gemm"]
    assert same(gradients(model, got), gradients(twin, want))
    assert not grad or torch.equal(ours.grad, theirs.grad)


@torch.no_grad()
def test_each_part_is_as_a_layers_result():
    """By itself in memory, whatever the order of the calls, and free to be written to."""
    model, twin = pair(Parts(True))
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    got = run(x)
    assert same(got, twin(x)) and backend.products() == ["merged"]
    assert all(part.is_contiguous() and part._base is None for part in got)
    got[0].zero_()
    assert same(got[1:], twin(x)[1:])


@torch.no_grad()
def test_many_rows_and_none_and_sizes_that_change():
    model, twin = pair(Attention(True))
    run, backend = compiled(model, dynamic=True)
    for shape in ((2, 3, 16), (3, 7, 16), (4, 2, 16)):
        x = integers(*shape)
        assert torch.equal(run(x), twin(x))
    assert len(backend.graphs) == 1 and backend.products()[0] == "merged"
    assert_products(Parts(), integers(0, 16), ["merged"])


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
    def forward(self, x):
        return [layer(each) for each in (x, -x) for layer in self.projections]


class Cross(Attention):
    def forward(self, x):
        return super().forward(x, -x)


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


def write_to_the_input(model):
    def write(module, args, result):
        args[0].add_(1)

    model.v_proj.register_forward_hook(write)


def change_the_input(model):
    model.k_proj.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def replace_the_forward(model):
    weight = model.k_proj.weight
    model.k_proj.forward = lambda x: 2 * F.linear(x, weight)


def make_the_weight(model):
    prune.random_unstructured(model.k_proj, "weight", 0.0)


#: A model, how it is changed after it was converted, and its products.
MODELS = {
    "two inputs": (Two, None, ["merged"] * 2),
    "k and v of one": (Cross, None, ["gemm", "merged", "gemm"]),
    "written in place": (lambda: Writing(lambda x: x.add_(1)), None, ["gemm"] * 3),
    "an index": (lambda: Writing(lambda x: x[..., 0].fill_(5)), None, ["gemm"] * 3),
    "a view": (lambda: Writing(lambda x: x.flatten()[3:].neg_()), None, ["gemm"] * 3),
    "a child": (lambda: Writing(nn.ReLU(inplace=True)), None, ["gemm"] * 3),
    "a hook that writes": (Parts, write_to_the_input, ["gemm", "merged"]),
    "a hook of the input": (Attention, change_the_input, ["gemm"] * 4),
    "another forward": (Attention, replace_the_forward, ["gemm"] * 3),
    "a weight that is made": (Attention, make_the_weight, ["gemm"] * 4),
}


@pytest.mark.wide
@pytest.mark.parametrize(("make", "change", "products"), MODELS.values(), ids=MODELS)
@torch.no_grad()
def test_products(make, change, products):
    assert_products(make(), integers(2, 3, 16), products, change)


class Written(Attention):
    """Writes a weight, or a result, between its layers."""

    def forward(self, x, weight=True):
        q = self.q_proj(x)
        (self.k_proj.weight if weight else q).mul_(2)
        return q, self.k_proj(x), self.v_proj(x)


@pytest.mark.parametrize("weight", [True, False])
@torch.no_grad()
def test_weights_and_results_that_are_written_to_between_the_layers(weight):
    model, twin = pair(Written())
    run, _ = compiled(model)
    x = integers(2, 3, 16)
    for _ in range(2):
        assert same(run(x, weight), twin(x, weight))
    assert same(model.state_dict(), twin.state_dict())


def add_hooks(model):
    """Hooks of each kind, on layers that are merged; each changes a result or a gradient."""
    q, k, v = model.projections
    q.register_full_backward_hook(lambda m, inputs, outputs: tuple(3 * each for each in inputs))
    q.weight.register_hook(lambda grad: 5 * grad)
    k.register_full_backward_pre_hook(lambda m, outputs: tuple(3 * each for each in outputs))
    k.register_forward_pre_hook(lambda m, args: (2 * args[0],))
    v.register_forward_hook(lambda m, args, out: 2 * out)
    v.register_forward_hook(lambda m, args, out: out.register_hook(lambda grad: 3 * grad) and out)


@pytest.mark.parametrize("compile_it", [False, True])
def test_hooks_on_layers_that_are_merged(compile_it):
    model, twin = pair(Attention())
    add_hooks(model), add_hooks(twin)
    run = compiled(model, fullgraph=False)[0] if compile_it else model
    x, y = (integers(2, 3, 16).requires_grad_() for _ in range(2))
    y.data.copy_(x)
    got, want = run(x), twin(y)
    assert torch.equal(got, want) and same(gradients(model, got), gradients(twin, want))
    assert torch.equal(x.grad, y.grad)


class Partly(Attention):
    def forward(self, x):
        with torch.no_grad():
            first = self.q_proj(x)
        return torch.cat([first, self.k_proj(x), self.v_proj(x)], -1)


def test_a_gradient_that_some_layers_have():
    model, twin = pair(Partly())
    x = integers(2, 3, 16)
    for count in (2, 1):
        ours, theirs = gradients(model, compiled(model)[0](x)), gradients(twin, twin(x))
        assert len(ours) == count and same(ours, theirs)
        model.v_proj.requires_grad_(False), twin.v_proj.requires_grad_(False)


@pytest.mark.parametrize("make", [Attention, LlamaMLP])
def test_checkpointing_in_compiled_code(make):
    model, twin = pair(make())
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
    model, twin = pair(Branching(), fuse=False)
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
    assert_products(Attention(), integers(2, 3, 16), ["gemm"] * 4, **options)


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
    model, _ = pair(Parts(), precision="tf32")
    x = integers(3, 16)
    run, backend = compiled(model)
    assert same(run(x), model(x)) and backend.products() == ["merged"]
    (node,) = (n for n in backend.graphs[0].graph.nodes if "merged" in str(n.target))
    assert node.args[-1] == "tf32"
    for first in ("tf32", None):
        model, _ = pair(Parts(), precision=first)
        tritemm.convert(model.k_proj, precision="ieee")
        run, backend = compiled(model)
        assert same(run(x), model(x)) and "merged" not in backend.products()


@torch.no_grad()
def test_autocast():
    model, twin = pair(Attention(True))
    x = integers(2, 3, 16)
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = compiled(model)[0](x), twin(x)
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("make", [lambda: Attention(True), LlamaMLP, Attention])
@torch.no_grad()
def test_weights_that_come_apart_after_compiling(make):
    model, twin = pair(make())
    run, backend = compiled(model)
    x = integers(2, 3, 16)
    assert torch.equal(run(x), twin(x))
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        parameter.data = -parameter.data
        other.copy_(parameter)
    assert torch.equal(run(x), twin(x)) and len(backend.graphs) == 1
    tritemm.convert(model)
    assert torch.equal(run(x), twin(x))
