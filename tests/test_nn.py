"""`tritemm.Linear`, and what `convert` and `restore` leave of a model as it was."""

import copy
import doctest
import importlib
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import tritemm
from tritemm import budget

from .nn_models import DEVICE, GPT2MLP, Conv1D, LlamaMLP, Quantized, Tied, integers, with_integers


def twins(*args, **options):
    """nn.Linear and tritemm.Linear with the same integers."""
    theirs, ours = nn.Linear(*args, **options), tritemm.Linear(*args, **options)
    with_integers(theirs)
    ours.to(DEVICE).load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize(
    ("shape", "bias"), [((16,), True), ((3, 16), False), ((2, 3, 16), True), ((0, 16), True)]
)
def test_linear_is_torchs(shape, bias):
    theirs, ours = twins(16, 8, bias)
    x = integers(*shape).requires_grad_()
    want, got = theirs(x), ours(x)
    assert torch.equal(got, want) and got.dtype == want.dtype
    grad = integers(*want.shape)
    wanted = torch.autograd.grad(want, [x, *theirs.parameters()], grad)
    gotten = torch.autograd.grad(got, [x, *ours.parameters()], grad)
    for mine, other in zip(gotten, wanted, strict=True):
        assert torch.equal(mine, other) and mine.stride() == other.stride()


def test_linear_starts_and_prints_as_torchs():
    torch.manual_seed(3)
    theirs = nn.Linear(5, 7, dtype=torch.float64)
    torch.manual_seed(3)
    ours = tritemm.Linear(5, 7, dtype=torch.float64)
    assert isinstance(ours, nn.Linear) and repr(ours) == repr(theirs)
    assert all(
        torch.equal(x, y) for x, y in zip(ours.parameters(), theirs.parameters(), strict=True)
    )
    other = tritemm.Linear(5, 6, False, activation="swiglu", batch_invariant=True, precision="tf32")
    assert repr(other) == (
        "Linear(in_features=5, out_features=6, bias=False, activation=swiglu, "
        "batch_invariant=True, precision=tf32)"
    )


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("relu", F.relu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("swiglu", lambda x: F.silu(x[..., :4]) * x[..., 4:]),
        ("geglu", lambda x: F.gelu(x[..., :4]) * x[..., 4:]),
    ],
)
def test_linear_with_an_activation(activation, function):
    layer = with_integers(tritemm.Linear(16, 8, activation=activation))
    x = integers(3, 16)
    want = function(F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x), want)
    with pytest.raises(ValueError, match="activation"):
        tritemm.Linear(16, 8, activation="sine", device=DEVICE)(x)


def test_options_reach_the_product():
    layer = tritemm.Linear(32, 8, device=DEVICE, precision="tf32")
    x = torch.randn(4, 32, device=DEVICE)
    want = tritemm.linear(x, layer.weight, layer.bias, precision="tf32")
    assert torch.equal(layer(x), want)
    layer.batch_invariant = True
    assert torch.equal(layer(x)[:1], layer(x[:1]))


def test_state_dicts_load_both_ways():
    theirs, ours = nn.Linear(4, 3), tritemm.Linear(4, 3)
    assert list(theirs.state_dict()) == list(ours.state_dict()) == ["weight", "bias"]
    ours.load_state_dict(theirs.state_dict(), strict=True)
    assert torch.equal(ours.weight, theirs.weight)
    theirs.load_state_dict(tritemm.Linear(4, 3).state_dict(), strict=True)


def test_a_weight_that_knows_torchs_linear_is_given_to_it():
    theirs, ours = twins(16, 8)
    x = integers(3, 16)
    want = F.linear(x, 2 * theirs.weight, theirs.bias)
    quantized = theirs.weight.detach().as_subclass(Quantized)
    ours.weight = nn.Parameter(quantized, requires_grad=False)
    assert torch.equal(ours(x), want)
    theirs.weight = nn.Parameter(quantized, requires_grad=False)
    report = tritemm.convert(theirs)
    assert type(theirs) is nn.Linear and "Quantized" in report.left[0].note


def layers():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), Conv1D(12, 8), LlamaMLP(12, 16))


def test_convert_changes_classes_and_nothing_else():
    model = with_integers(layers()).eval()
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules, classes = list(model.modules()), [type(m) for m in model.modules()]
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    x = integers(3, 16)
    want = model(x)

    report = tritemm.convert(model)
    assert [entry.name for entry in report.changed] == [
        "0", "2", "3.gate_proj", "3.up_proj", "3.down_proj", "3", "",
    ]  # fmt: skip
    assert report.left == ()
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(isinstance(m, c) for m, c in zip(modules, classes, strict=True))
    assert [type(m).__name__ for m in modules] == [c.__name__ for c in classes]
    now = dict([*model.named_parameters(), *model.named_buffers()])
    assert now.keys() == tensors.keys() and all(now[name] is tensors[name] for name in now)
    assert list(model.state_dict()) == list(values)
    assert all(torch.equal(values[n], t) for n, t in model.state_dict().items())
    owned = optimizer.param_groups[0]["params"]
    assert all(a is b for a, b in zip(owned, model.parameters(), strict=True))
    assert torch.equal(model(x), want)

    again = tritemm.convert(model)
    assert again == tritemm.nn.Report()
    assert str(again) == "no module that multiplies by a weight"
    tritemm.nn.restore(model)
    assert [type(m) for m in model.modules()] == classes
    assert not any(
        {"_tritemm_gating", "_tritemm_steps", "batch_invariant"} & vars(m).keys()
        for m in model.modules()
    )
    assert torch.equal(model(x), want)


def test_a_converted_model_loads_what_torchs_saved_and_the_other_way():
    theirs, ours = with_integers(layers()), with_integers(layers())
    tritemm.convert(ours)
    x = integers(3, 16)
    for source, target in ((theirs, ours), (ours, theirs)):
        with_integers(source)
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        target.load_state_dict(torch.load(file, weights_only=True), strict=True)
        assert torch.equal(theirs.eval()(x), ours.train()(x))


def test_options_that_are_given_are_set_later_too():
    model = layers().to(DEVICE)
    tritemm.convert(model)
    report = tritemm.convert(model, batch_invariant=True)
    assert len(report.changed) == 5
    assert {entry.note for entry in report.changed} == {"batch_invariant=True"}
    assert tritemm.convert(model).changed == () and model[0].batch_invariant
    x = torch.randn(9, 16, device=DEVICE)
    model.eval()
    assert torch.equal(model(x)[3:4], model(x[3:4]))


def test_tied_weights_and_shared_modules_stay_so():
    model = with_integers(Tied())
    ids = torch.arange(6, device=DEVICE)
    want = model(ids)
    report = tritemm.convert(model)
    assert [entry.name for entry in report.changed] == ["first", "head"]
    assert model.first is model.second and model.head.weight is model.embedding.weight
    assert torch.equal(model(ids), want)
    model(ids).sum().backward()
    assert model.embedding.weight.grad is model.head.weight.grad


def test_hooks_and_flags_are_kept():
    model = with_integers(layers())
    model[0].eval().weight.requires_grad_(False)
    calls = []
    for module in (model[0], model[2], model[3], model[3].gate_proj):
        module.register_forward_pre_hook(lambda *args: calls.append("before"))
        module.register_forward_hook(lambda *args: calls.append("after"))
        module.register_full_backward_hook(lambda *args: calls.append("back"))
    tritemm.convert(model)
    model(integers(3, 16).requires_grad_()).sum().backward()
    assert {word: calls.count(word) for word in calls} == {"before": 4, "after": 4, "back": 4}
    assert not model[0].training and model[2].training
    assert model[0].weight.grad is None and model[0].bias.grad is not None
    calls.clear()
    with torch.no_grad():  # one product for gate and up would pass the gate's hooks by
        model.eval()(integers(3, 16))
    assert calls.count("before") == calls.count("after") == 4


@torch.no_grad()
def test_hooks_of_all_modules_see_each_call():
    model = with_integers(nn.Sequential(LlamaMLP(), GPT2MLP(), nn.Linear(16, 8), nn.ReLU())).eval()
    tritemm.convert(model)
    x = integers(3, 16)
    want = model(x)
    seen = []
    hook = torch.nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))
    try:
        got = model(x)
    finally:
        hook.remove()
    assert set(model.modules()) - set(seen) == set()
    torch.testing.assert_close(got, want, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("function", [tritemm.convert, tritemm.nn.restore])
def test_what_is_no_module_is_refused(function):
    with pytest.raises(TypeError, match=r"model must be torch.nn.Module, not dict"):
        function({})


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(way):
    model = nn.ModuleDict({"tied": Tied(), "layers": layers()})
    with_integers(model).eval()
    tritemm.convert(model, batch_invariant=True)
    twin = way(model)
    assert [type(m) for m in twin.modules()] == [type(m) for m in model.modules()]
    x, ids = integers(3, 16), torch.arange(6, device=DEVICE)
    with torch.no_grad():
        assert torch.equal(twin["layers"](x), model["layers"](x))
        assert torch.equal(twin["tied"](ids), model["tied"](ids))
    assert twin["tied"].head.weight is twin["tied"].embedding.weight
    assert twin["tied"].head.weight is not model["tied"].head.weight
    assert tritemm.convert(twin) == tritemm.nn.Report()
    with torch.no_grad():
        twin["layers"][0].weight.zero_()
    assert model["layers"][0].weight.any()


def test_a_model_that_is_a_layer_itself():
    layer = nn.Linear(4, 3, device=DEVICE)
    report = tritemm.convert(layer)
    assert type(layer) is tritemm.Linear
    assert str(report) == "changed  1 x  (the model)  Linear  [3, 4]  tritemm.Linear"


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def replaced():
    layer = nn.Linear(4, 4, device=DEVICE)
    layer.forward = lambda x: x
    return layer


def off_the_device():
    layer = nn.Linear(4, 4, device=DEVICE)
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse(), requires_grad=False)
    return layer


LEFT = {
    "subclass": (lambda: Doubled(4, 4), "may compute something else"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "Parametrized"),
    "attention": (lambda: nn.MultiheadAttention(4, 2).out_proj, "NonDynamically"),
    "replaced": (replaced, "its forward was replaced"),
    "lazy": (lambda: nn.LazyLinear(4), "LazyLinear"),
    "sparse": (off_the_device, "torch.sparse_coo"),
    "type": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "torch.complex64"),
    "named": (lambda: nn.Sequential(nn.Linear(4, 4)), "named in skip"),
}


@pytest.mark.parametrize(("make", "word"), LEFT.values(), ids=LEFT)
def test_what_is_left_is_left_with_a_reason(make, word):
    module = make().to(DEVICE)
    classes = [type(m) for m in module.modules()]
    model = nn.ModuleDict({"it": module})
    report = tritemm.convert(model, skip=["it"] if word == "named in skip" else [])
    assert report.changed == () and len(report.left) == 1
    assert word in report.left[0].note and report.left[0].name.startswith("it")
    assert [type(m) for m in module.modules()] == classes


def test_a_weight_elsewhere():
    """On the CPU where there is a GPU; the interpreter multiplies there."""
    layer = nn.Linear(4, 4)
    report = tritemm.convert(layer)
    if DEVICE == "cuda":
        assert report.left[0].note == "its weight is on cpu; move the model to cuda first"
    else:
        assert report.left == ()


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv1d(4, 4, 1),
        nn.Embedding(4, 4),
        nn.Bilinear(4, 4, 4),
        type("Conv1D", (nn.Module,), {"weight": torch.ones(2, 3)})(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_what_is_no_layer_is_not_mentioned(module):
    assert tritemm.convert(module.to(DEVICE)) == tritemm.nn.Report()


def test_meta_models_are_converted_and_filled_later():
    with torch.device("meta"):
        model = layers()
    assert tritemm.convert(model).left == ()
    model.to_empty(device=DEVICE)
    source = with_integers(layers()).eval()
    model.load_state_dict(source.state_dict())
    x = integers(3, 16)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), source(x))


def test_parametrized_after_and_weight_normed_before():
    """A weight that is computed: by a parametrization over a `Linear`, or by a hook's attribute."""
    theirs, ours = twins(16, 8)

    class Negative(nn.Module):
        def forward(self, weight):
            return -weight

    for layer in (theirs, ours):
        parametrize.register_parametrization(layer, "weight", Negative())
    x = integers(3, 16)
    assert torch.equal(ours(x), theirs(x)) and isinstance(ours, tritemm.Linear)
    with pytest.warns(FutureWarning):
        normed = nn.utils.weight_norm(nn.Linear(16, 8, device=DEVICE))
    normed(x)
    twin = copy.deepcopy({k: v.detach().clone() for k, v in normed.named_parameters()})
    tritemm.convert(normed)
    assert type(normed) is tritemm.Linear
    verdict = budget.check(normed(x) - normed.bias, x, normed.weight.detach().mT)
    assert verdict.worst < 4 and twin.keys() == dict(normed.named_parameters()).keys()


def test_a_parametrized_weight_is_worked_out_once():
    class Doubled(nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return 2 * weight

    model = with_integers(nn.Linear(8, 4, bias=False))
    tritemm.convert(model)
    weight = model.weight.detach().clone()
    nn.utils.parametrize.register_parametrization(model, "weight", doubled := Doubled())
    doubled.calls = 0
    x = integers(3, 8)
    assert torch.equal(model(x), 2 * x @ weight.mT) and doubled.calls == 1


def test_the_report_is_a_table_with_a_line_for_what_differs_by_numbers_alone():
    model = nn.ModuleDict({"layers": nn.ModuleList(LlamaMLP() for _ in range(3))}).to(DEVICE)
    model["head"] = Doubled(16, 5)
    assert str(tritemm.convert(model, skip=["layers.1"])).splitlines() == [
        "changed  2 x  layers.*.gate_proj  Linear    [24, 16]  tritemm.Linear",
        "changed  2 x  layers.*.up_proj    Linear    [24, 16]  tritemm.Linear",
        "changed  2 x  layers.*.down_proj  Linear    [16, 24]  tritemm.Linear",
        "changed  2 x  layers.*            LlamaMLP            gate and up packed, swiglu",
        "left     1 x  layers.*.gate_proj  Linear    [24, 16]  named in skip",
        "left     1 x  layers.*.up_proj    Linear    [24, 16]  named in skip",
        "left     1 x  layers.*.down_proj  Linear    [16, 24]  named in skip",
        "left     1 x  head                Doubled   [5, 16]   tests.test_nn.Doubled is not "
        "nn.Linear, and may compute something else",
        "left     1 x  layers.*            LlamaMLP            not fused: named in skip",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "tritemm.nn.layers",
        "tritemm.nn.convert",
        "tritemm.blas",
        "tritemm.einsum",
        "tritemm.row_parallel",
    ],
)
def test_the_examples_of_the_docstrings(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed


def test_restore_leaves_an_activation():
    model = nn.Sequential(tritemm.Linear(4, 4), tritemm.Linear(4, 4, activation="relu"))
    report = tritemm.nn.restore(model)
    assert [type(m) for m in model] == [nn.Linear, tritemm.Linear]
    assert report.left[0].note == "nn.Linear has no activation, this one relu"
