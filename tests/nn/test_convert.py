"""`tritemm.Linear`, and what `convert` and `restore` leave of a model as it was."""

import copy
import functools
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tritemm
from tests.nn.models import (
    DEVICE,
    Attention,
    Dispatching,
    LlamaMLP,
    Quantized,
    Tied,
    conv1d,
    gradients,
    integers,
    pair,
    same,
    with_integers,
)
from tests.torch.twins import ACTIVATIONS
from tritemm.nn import converted


def twins(*args, **options):
    """nn.Linear and tritemm.Linear with the same integers."""
    theirs, ours = nn.Linear(*args, **options), tritemm.Linear(*args, **options)
    with_integers(theirs)
    ours.to(DEVICE).load_state_dict(theirs.state_dict())
    return theirs, ours


# tritemm.Linear


@pytest.mark.parametrize(
    ("shape", "bias"), [((16,), True), ((3, 16), False), ((2, 3, 16), True), ((0, 16), True)]
)
def test_linear_is_torchs(shape, bias):
    theirs, ours = twins(16, 8, bias)
    x = integers(*shape).requires_grad_()
    grad, found = integers(*shape[:-1], 8), []
    for layer in (ours, theirs):
        y = layer(x)
        found.append((y, *torch.autograd.grad(y, [x, *layer.parameters()], grad)))
    torch.testing.assert_close(*found, rtol=0, atol=0, check_stride=True)


def test_linear_starts_and_prints_as_torchs():
    torch.manual_seed(3)
    theirs = nn.Linear(5, 7, dtype=torch.float64)
    torch.manual_seed(3)
    ours = tritemm.Linear(5, 7, dtype=torch.float64)
    assert isinstance(ours, nn.Linear) and repr(ours) == repr(theirs)
    assert same(theirs.state_dict(), ours.state_dict())
    other = tritemm.Linear(5, 6, False, activation="swiglu", batch_invariant=True, precision="tf32")
    assert repr(other) == (
        "Linear(in_features=5, out_features=6, bias=False, activation=swiglu, "
        "batch_invariant=True, precision=tf32)"
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_linear_with_an_activation(activation):
    layer = with_integers(tritemm.Linear(16, 8, activation=activation))
    x = integers(3, 16)
    want = ACTIVATIONS[activation](F.linear(x, layer.weight, layer.bias))
    torch.testing.assert_close(layer(x), want)
    with pytest.raises(ValueError, match="activation"):
        tritemm.Linear(16, 8, activation="sine", device=DEVICE)(x)


def test_options_reach_the_product():
    layer = tritemm.Linear(32, 8, device=DEVICE, precision="tf32")
    converted = nn.Linear(32, 8, device=DEVICE)
    converted.load_state_dict(layer.state_dict())
    tritemm.convert(converted, precision="tf32")
    x = torch.randn(4, 32, device=DEVICE)
    want = tritemm.linear(x, layer.weight, layer.bias, precision="tf32")
    assert torch.equal(layer(x), want) and torch.equal(converted(x), want)
    for each in (layer, converted):
        tritemm.convert(each, batch_invariant=True)
        assert torch.equal(each(x)[:1], each(x[:1])) and each.batch_invariant


@pytest.mark.parametrize("kind", [Quantized, Dispatching])
def test_a_weight_that_knows_torchs_linear_is_given_to_it(kind):
    theirs, ours = twins(16, 8)
    x = integers(3, 16)
    want = F.linear(x, 2 * theirs.weight, theirs.bias)
    weight = theirs.weight.detach()
    quantized = Dispatching(weight) if kind is Dispatching else weight.as_subclass(kind)
    late = nn.Linear(16, 8, device=DEVICE)
    late.load_state_dict(theirs.state_dict())
    report = tritemm.convert(late)
    for layer in (ours, late, theirs):
        layer.weight = nn.Parameter(quantized, requires_grad=False)
        assert torch.equal(layer(x), want)
    assert report.fell_back == {f"its weight is a {kind.__name__}": 1}
    report = tritemm.convert(theirs)
    assert type(theirs) is nn.Linear and kind.__name__ in report.left[0].note


# What convert changes, and what it doesn't


def layers():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 12), LlamaMLP(12, 16))


def test_convert_changes_the_classes_of_layers_and_nothing_else():
    model = with_integers(layers()).eval()
    model[0].train().weight.requires_grad_(False)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules, classes = list(model.modules()), [type(m) for m in model.modules()]
    attributes = [set(vars(m)) for m in modules]
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    x = integers(3, 16)
    with torch.no_grad():
        want = model(x)

    report = tritemm.convert(model)
    assert [entry.name for entry in report.changed] == [
        "0", "2", "3.gate_proj", "3.up_proj", "3.down_proj", "3",
    ]  # fmt: skip
    assert report.compiled == (tritemm.nn.Entry("", "Sequential", None, "0 with relu"),)
    assert str(report).splitlines()[-1].startswith("compiled  1 x  (the model)  Sequential")
    assert report.left == () and report.fell_back == {}
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    for module, kind, names in zip(modules, classes, attributes, strict=True):
        if kind is nn.Linear:
            assert isinstance(module, converted.Linear) and isinstance(module, tritemm.Linear)
            assert type(module).__name__ == "Linear" and repr(module) == repr(module).strip()
            assert set(vars(module)) - names <= {"_tritemm_options", "_tritemm_siblings"}
        else:
            assert type(module) is kind and set(vars(module)) == names
    now = dict([*model.named_parameters(), *model.named_buffers()])
    assert now.keys() == tensors.keys() and all(now[name] is tensors[name] for name in now)
    assert same(model.state_dict(), values)
    owned = optimizer.param_groups[0]["params"]
    assert all(a is b for a, b in zip(owned, model.parameters(), strict=True))
    assert torch.equal(model(x), want)

    again = tritemm.convert(model)
    assert again == tritemm.nn.Report()
    assert str(again) == "no module that multiplies by a weight"
    tritemm.nn.restore(model)
    assert [type(m) for m in modules] == classes
    assert [set(vars(m)) for m in modules] == attributes
    assert torch.equal(model(x), want) and same(model.state_dict(), values)
    assert [m for m in modules if m.training] == [model[0]]
    assert [p for p in model.parameters() if not p.requires_grad] == [model[0].weight]


NAMES = "activation", "precision", "batch_invariant", "pack", "unpack", "original", "mixin"


class Owner(nn.Module):
    """All that is in it is called as something of ours is, or might be."""

    def __init__(self):
        super().__init__()
        for name in NAMES:
            setattr(self, name, nn.Linear(8, 8))
            for number, attribute in enumerate(NAMES):
                setattr(getattr(self, name), attribute, ("relu", "bf16", "x")[number % 3])

    def convert(self):
        return "the owner's"

    layers = restore = forward_by = convert

    def forward(self, x):
        for name in NAMES:
            x = getattr(self, name)(x)
        return x


def test_names_that_an_owner_has_given_mean_nothing_to_us():
    theirs, ours = with_integers(Owner()), with_integers(Owner())
    ours.load_state_dict(theirs.state_dict())
    before = [vars(layer).copy() for layer in ours.children()]
    methods = [getattr(ours, name)() for name in ("convert", "layers", "restore", "forward_by")]
    x = integers(3, 8)
    for change in (tritemm.convert, functools.partial(tritemm.convert, batch_invariant=True)):
        assert len(change(ours).changed) == len(NAMES)
        assert torch.equal(ours(x), theirs(x)) and type(ours) is Owner
        for layer, attributes in zip(ours.children(), before, strict=True):
            assert {name: vars(layer)[name] for name in attributes} == attributes
    assert methods == ["the owner's"] * 4
    tritemm.nn.restore(ours)
    assert [vars(layer) for layer in ours.children()] == before
    assert torch.equal(ours(x), theirs(x))


class Cache:
    """Angles by length, as some models keep them: an object that no module knows of."""

    def __init__(self):
        self.asked, self.table = 0, None

    def __call__(self, x):
        self.asked += 1
        if self.table is None or self.table.shape[0] < x.shape[-2]:
            self.table = torch.ones(x.shape[-2], 1, device=x.device)
        return self.table[: x.shape[-2]]


class Counting(Attention):
    def __init__(self):
        super().__init__()
        self.cache, self.calls = Cache(), 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x * self.cache(x))


@pytest.mark.parametrize("compile_it", [False, True])
@torch.no_grad()
def test_what_an_owner_does_besides_happens_as_often_as_before(compile_it):
    ours, theirs = pair(Counting())
    assert (ours.calls, ours.cache.asked, ours.cache.table) == (0, 0, None)
    x = integers(2, 3, 16)
    for model in (theirs, ours):
        torch._dynamo.reset()
        run = torch.compile(model, backend="eager", dynamic=False) if compile_it else model
        results = [run(x), run(x)]
        assert model.calls == model.cache.asked == 2 and model.cache.table.device.type == DEVICE
    assert torch.equal(results[0], theirs(x)) and torch.equal(*results)


def test_options_that_are_given_are_set_later_too():
    model = layers().to(DEVICE)
    with pytest.raises(ValueError, match="precision"):
        tritemm.convert(model, precision="fp8")
    assert type(model[0]) is nn.Linear
    tritemm.convert(model)
    report = tritemm.convert(model, batch_invariant=True)
    assert len(report.changed) == 5
    assert {entry.note for entry in report.changed} == {"batch_invariant=True"}
    assert tritemm.convert(model).changed == () and model[0].batch_invariant
    report = tritemm.convert(model, batch_invariant=False)
    assert {entry.note for entry in report.changed} == {"batch_invariant=False"}
    assert tritemm.convert(model, batch_invariant=True).changed
    assert repr(model[0]).endswith("bias=True, batch_invariant=True)")
    x = torch.randn(9, 16, device=DEVICE)
    assert torch.equal(model[:3](x)[3:4], model[:3](x[3:4]))


@pytest.mark.parametrize("function", [tritemm.convert, tritemm.nn.restore])
def test_what_is_no_module_is_refused(function):
    with pytest.raises(TypeError, match=r"model must be torch.nn.Module, not dict"):
        function({})


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


@pytest.mark.parametrize("way", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(way):
    model = with_integers(Tied()).eval()
    tritemm.convert(model, batch_invariant=True)
    twin = way(model)
    assert [type(m) for m in twin.modules()] == [type(m) for m in model.modules()]
    ids = torch.arange(6, device=DEVICE)
    assert torch.equal(twin(ids), model(ids)) and twin.head.batch_invariant
    assert twin.head.weight is twin.embedding.weight is not model.head.weight
    assert tritemm.convert(twin) == tritemm.nn.Report()


@pytest.mark.parametrize("make", [nn.Linear, conv1d])
def test_a_layer_that_is_made_by_the_class_of_another(make):
    ours, theirs = pair(make(8, 8))
    new = type(ours)(8, 8).to(DEVICE)
    new.load_state_dict(theirs.state_dict())
    x = integers(3, 8)
    assert torch.equal(new(x), theirs(x)) and repr(new) == repr(ours)
    assert vars(new).keys() == vars(theirs).keys()
    twin = copy.deepcopy(new)
    assert tritemm.convert(new, batch_invariant=True).changed and new.batch_invariant
    for each in (new, twin):
        tritemm.nn.restore(each)
        assert type(each) is type(theirs) and vars(each).keys() == vars(theirs).keys()


def test_conv1d_of_transformers():
    ours, theirs = pair(nn.Sequential(conv1d(8, 16), nn.ReLU(), conv1d(4, 8)))
    kind = type(ours[0])
    assert issubclass(kind, type(theirs[0])) and kind.__name__ == "Conv1D"
    x = integers(2, 3, 16).requires_grad_()
    want, got = theirs(x), ours(x)
    assert torch.equal(got, want) and same(gradients(ours, got), gradients(theirs, want))
    twin = pickle.loads(pickle.dumps(ours))
    assert type(twin[0]) is kind and torch.equal(twin(x), want)
    report = tritemm.convert(ours, batch_invariant=True)
    assert {entry.kind for entry in report.changed} == {"Conv1D"} and ours[0].batch_invariant
    tritemm.nn.restore(ours)
    assert vars(ours[0]).keys() == vars(theirs[0]).keys() and type(ours[0]) is type(theirs[0])
    assert torch.equal(ours(x), want)


def test_restore_leaves_an_activation():
    model = nn.Sequential(tritemm.Linear(4, 4), tritemm.Linear(4, 4, activation="relu"))
    report = tritemm.nn.restore(model)
    assert [type(m) for m in model] == [nn.Linear, tritemm.Linear]
    assert report.left[0].note == "nn.Linear has no activation, and this layer has relu"
