"""`tritemm.Linear`, and what `convert` and `restore` leave of a model as it was."""

import copy
import doctest
import functools
import importlib
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import tritemm
from tests.nn.models import (
    DEVICE,
    Attention,
    LlamaMLP,
    Quantized,
    Tied,
    conv1d,
    gradients,
    integers,
    same,
    with_integers,
)
from tritemm import budget, dispatch, plan
from tritemm.nn import converted


def twins(*args, **options):
    """nn.Linear and tritemm.Linear with the same integers."""
    theirs, ours = nn.Linear(*args, **options), tritemm.Linear(*args, **options)
    with_integers(theirs)
    ours.to(DEVICE).load_state_dict(theirs.state_dict())
    return theirs, ours


def pair(model):
    """A model with integers, and its converted copy."""
    theirs = with_integers(model)
    ours = copy.deepcopy(theirs)
    tritemm.convert(ours)
    return theirs, ours


# tritemm.Linear


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
    assert same(theirs.state_dict(), ours.state_dict())
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
    converted = nn.Linear(32, 8, device=DEVICE)
    converted.load_state_dict(layer.state_dict())
    tritemm.convert(converted, precision="tf32")
    x = torch.randn(4, 32, device=DEVICE)
    want = tritemm.linear(x, layer.weight, layer.bias, precision="tf32")
    assert torch.equal(layer(x), want) and torch.equal(converted(x), want)
    for each in (layer, converted):
        tritemm.convert(each, batch_invariant=True)
        assert torch.equal(each(x)[:1], each(x[:1])) and each.batch_invariant


def test_a_weight_that_knows_torchs_linear_is_given_to_it():
    theirs, ours = twins(16, 8)
    x = integers(3, 16)
    want = F.linear(x, 2 * theirs.weight, theirs.bias)
    quantized = theirs.weight.detach().as_subclass(Quantized)
    late = nn.Linear(16, 8, device=DEVICE)
    late.load_state_dict(theirs.state_dict())
    report = tritemm.convert(late)
    for layer in (ours, late, theirs):
        layer.weight = nn.Parameter(quantized, requires_grad=False)
        assert torch.equal(layer(x), want)
    assert report.fell_back == {"its weight is a Quantized": 1}
    report = tritemm.convert(theirs)
    assert type(theirs) is nn.Linear and "Quantized" in report.left[0].note


# What convert changes, and what it doesn't


def layers():
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 12), LlamaMLP(12, 16))


def test_convert_changes_the_classes_of_layers_and_nothing_else():
    model = with_integers(layers()).eval()
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
        "0", "2", "3.gate_proj", "3.up_proj", "3.down_proj", "3", "",
    ]  # fmt: skip
    assert report.changed[-1].note == "in compiled code: 0 with relu"
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


class Second(Owner):
    def forward(self, x):
        return super(type(self), self).forward(x) + self.mixin(x)


def test_names_that_an_owner_has_given_mean_nothing_to_us():
    theirs, ours = with_integers(Second()), with_integers(Second())
    ours.load_state_dict(theirs.state_dict())
    before = [vars(layer).copy() for layer in ours.children()]
    methods = [getattr(ours, name)() for name in ("convert", "layers", "restore", "forward_by")]
    x = integers(3, 8)
    for change in (tritemm.convert, functools.partial(tritemm.convert, batch_invariant=True)):
        assert len(change(ours).changed) == len(NAMES)
        assert torch.equal(ours(x), theirs(x)) and type(ours) is Second
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
    theirs, ours = pair(Counting())
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


def test_hooks_and_flags_are_kept():
    model = with_integers(layers())
    model[0].eval().weight.requires_grad_(False)
    calls = []
    for module in (model[0], model[2], model[3], model[3].gate_proj, model[3].up_proj):
        module.register_forward_pre_hook(lambda *args: calls.append("before"))
        module.register_forward_hook(lambda *args: calls.append("after"))
        module.register_full_backward_pre_hook(lambda *args: calls.append("back before"))
        module.register_full_backward_hook(lambda *args: calls.append("back"))
    tritemm.convert(model)
    for _ in range(2):
        calls.clear()
        model(integers(3, 16).requires_grad_()).sum().backward()
        counts = {word: calls.count(word) for word in calls}
        assert counts == dict.fromkeys(("before", "after", "back before", "back"), 5)
        tritemm.nn.restore(model)
    assert not model[0].training and model[2].training
    assert model[0].weight.grad is None and model[0].bias.grad is not None


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


def test_conv1d_of_transformers():
    theirs, ours = pair(nn.Sequential(conv1d(8, 16), nn.ReLU(), conv1d(4, 8)))
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


# What is left, and who replaces a forward


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def replaced():
    layer = nn.Linear(4, 4, device=DEVICE)
    layer.forward = lambda x: x
    return layer


def sparse():
    layer = nn.Linear(4, 4, device=DEVICE)
    layer.weight = nn.Parameter(layer.weight.detach().to_sparse(), requires_grad=False)
    return layer


def special():
    layer = nn.Linear(4, 4, device=DEVICE)
    layer.weight = type("Own", (nn.Parameter,), {})(layer.weight.detach())
    return layer


class Conv1D(nn.Module):
    """By the name of transformers' class, and with its attribute, but not that."""

    def __init__(self):
        super().__init__()
        self.nf, self.weight = 4, nn.Parameter(torch.ones(4, 4))


LEFT = {
    "subclass": (lambda: Doubled(4, 4), "test_convert.Doubled is not nn.Linear, and may compute"),
    "conv1d": (Conv1D, "test_convert.Conv1D is not nn.Linear, and may compute"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "Parametrized"),
    "attention": (lambda: nn.MultiheadAttention(4, 2).out_proj, "NonDynamically"),
    "replaced": (replaced, "its forward was replaced in the instance"),
    "lazy": (lambda: nn.LazyLinear(4), "LazyLinear"),
    "special": (special, "its weight is a Own"),
    "sparse": (sparse, "torch.sparse_coo"),
    "type": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "torch.complex64"),
}


@pytest.mark.parametrize(("make", "word"), LEFT.values(), ids=LEFT)
def test_what_is_left_is_left_with_a_reason(make, word):
    module = make().to(DEVICE)
    classes = [type(m) for m in module.modules()]
    report = tritemm.convert(nn.ModuleDict({"it": module}))
    assert report.changed == () and len(report.left) == 1
    assert word in report.left[0].note and report.left[0].name.startswith("it")
    assert [type(m) for m in module.modules()] == classes


@pytest.mark.parametrize(
    ("skip", "left"),
    [
        ("head", {"head"}),
        (["head", "layers.1"], {"head", "layers.1.q_proj", "layers.1.k_proj"}),
        ("layers.*.q_proj", {"layers.0.q_proj", "layers.1.q_proj"}),
        ("*", {"head", *(f"layers.{i}.{name}_proj" for i in (0, 1) for name in "qk")}),
        (["hea", "ead", "layers.q_proj", "q_proj"], set()),
    ],
)
def test_skip_takes_a_name_or_a_pattern_or_several(skip, left):
    part = {"q_proj": nn.Linear(4, 4), "k_proj": nn.Linear(4, 4)}
    blocks = nn.ModuleList(nn.ModuleDict(copy.deepcopy(part)) for _ in range(2))
    model = nn.ModuleDict({"layers": blocks, "head": nn.Linear(4, 4)}).to(DEVICE)
    report = tritemm.convert(model, skip=skip)
    assert {entry.name for entry in report.left} == left
    assert {entry.note for entry in report.left} <= {"named in skip"}
    assert {name for name, m in model.named_modules() if type(m) is nn.Linear} == left


def test_a_module_of_two_names_is_skipped_by_either():
    model = nn.ModuleDict({"body": nn.ModuleDict({"decoder": nn.Linear(4, 4)})}).to(DEVICE)
    model["head"] = model["body"]["decoder"]
    model["body"]["itself"] = model["body"]  # names have no end
    for skip in ("head", "body.decoder", "body"):
        report = tritemm.convert(model, skip=skip)
        assert not report.changed and report.left[0].note == "named in skip"


def test_what_skip_cannot_mean_is_told():
    model = nn.Sequential(nn.Linear(4, 4)).to(DEVICE)
    for skip in (None, 5, b"0", ["0", 3]):
        with pytest.raises(TypeError, match="skip must be a module's name, or several, not"):
            tritemm.convert(model, skip=skip)
    for wrong in ({"batch_invariant": "no"}, {"fuse": 1}):
        with pytest.raises(TypeError, match="must be True or False"):
            tritemm.convert(model, **wrong)
    assert type(model[0]) is nn.Linear
    for _ in range(40):  # each has twice as many names as the one before
        model = nn.Sequential(*[model] * 2)
    assert tritemm.convert(model, skip="1.0").changed == ()
    with pytest.warns(UserWarning, match="skip='lm_head' leaves nothing: .* as '0'"):
        tritemm.convert(model, skip="lm_head")
    with pytest.warns(UserWarning, match="as '_orig_mod'"):
        tritemm.convert(torch.compile(nn.Sequential(nn.Linear(4, 4, device=DEVICE))), skip="0")


class Gathered(nn.Linear):
    """Its weight is worked out when it is asked for, and isn't there yet."""

    @property
    def weight(self):
        raise RuntimeError("gather() first")


class GatheredLinear(nn.Module):
    weight = Gathered.weight


@pytest.mark.parametrize("function", [tritemm.convert, tritemm.nn.restore])
def test_nothing_of_an_owners_runs(function):
    """No parametrization, which may have a state or draw random numbers, and no property."""
    normed = [
        parametrizations.spectral_norm(layer) for layer in (nn.Conv2d(3, 4, 3), nn.Linear(4, 4))
    ]
    model = nn.Sequential(*normed, GatheredLinear(), nn.Linear(4, 4), nn.Linear(4, 4)).to(DEVICE)
    model[3].__class__ = Gathered
    without = nn.Linear(4, 4, device=DEVICE)
    del without.weight
    model.append(without)
    before = copy.deepcopy(model[:2].state_dict())
    report = function(model)
    assert same(model[:2].state_dict(), before)
    assert function is tritemm.convert or report == tritemm.nn.Report()
    if function is tritemm.convert:
        assert [entry.name for entry in report.changed] == ["4"]
        assert report.left[-1].note == "it has no weight" and len(report.left) == 3


def patched(self, x):
    return 3 * F.linear(x, self.weight, self.bias)


def test_a_forward_that_was_replaced_for_all_layers_before_is_left(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", patched)
    report = tritemm.convert(model := with_integers(layers()))
    assert report.changed == () and len(report.left) == 5 and type(model[0]) is nn.Linear
    assert {e.note for e in report.left} == {"the forward of Linear was replaced for all layers"}
    monkeypatch.setattr(nn.Linear, "forward", functools.wraps(converted._linear_forward)(patched))
    assert tritemm.convert(model).changed == ()


@pytest.mark.parametrize("compile_it", [False, True])
def test_a_forward_that_is_replaced_for_all_layers_later_is_called(monkeypatch, compile_it):
    model = with_integers(nn.Linear(16, 8))
    report = tritemm.convert(model)
    torch._dynamo.reset()
    run = torch.compile(model, backend="eager", fullgraph=True) if compile_it else model
    x = integers(3, 16)
    want = run(x)
    monkeypatch.setattr(nn.Linear, "forward", patched)
    assert torch.equal(run(x), 3 * want)
    counted = {} if compile_it else {"the forward of its class was replaced": 1}
    assert report.fell_back == counted
    monkeypatch.undo()
    assert torch.equal(run(x), want) and report.fell_back == counted


def test_a_forward_that_is_replaced_in_a_layer_is_called_before_and_after_restore():
    """As accelerate's hooks do it: they keep the method that was there, and call it."""
    model = with_integers(nn.Linear(16, 8))
    x = integers(3, 16)
    want = model(x)
    tritemm.convert(model)
    model._old_forward = model.forward
    model.forward = lambda x: model._old_forward(x) + 1
    assert torch.equal(model(x), want + 1)
    tritemm.nn.restore(model)
    assert torch.equal(model(x), want + 1)
    assert "replaced" in tritemm.convert(model).left[0].note
    model.forward = model._old_forward
    assert torch.equal(model(x), want)


def test_a_subclass_of_what_convert_made_is_not_restored():
    model = with_integers(nn.Linear(4, 4))
    tritemm.convert(model)
    model.__class__ = type("Mine", (type(model),), {})
    assert "subclass" in tritemm.nn.restore(model).left[0].note
    assert model(integers(2, 4)).shape == (2, 4)


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


# What torch computes


def nested(*sizes):
    return torch.nested.nested_tensor([integers(n, 16) for n in sizes], layout=torch.jagged)


FALLS_BACK = {
    "nested": (lambda: nested(2, 3), "a nested input"),
    "sparse": (lambda: integers(3, 16).to_sparse(), "an input of layout torch.sparse_coo"),
    "csr": (lambda: integers(3, 16).to_sparse_csr(), "an input of layout torch.sparse_csr"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(("make", "reason"), FALLS_BACK.values(), ids=FALLS_BACK)
@torch.no_grad()
def test_what_torchs_layer_takes_and_tritemm_does_not_is_torchs(make, reason):
    theirs = with_integers(nn.Linear(16, 8, bias=reason == "a nested input"))
    ours = copy.deepcopy(theirs)
    report, x = tritemm.convert(ours), make()
    got, want = ours(x), theirs(x)
    if want.is_nested:
        got, want = got.values(), want.values()
    assert got.layout == want.layout and torch.equal(got, want)
    assert report.fell_back == {reason: 1}
    assert str(report).splitlines()[-1].startswith("by torch  1 x") and reason in str(report)


@pytest.mark.parametrize("shape", [(), (1,), (1, 8), (6, 8), (6, 1)], ids=str)
def test_a_bias_of_any_shape_that_torchs_layer_takes(shape):
    theirs, ours = pair(nn.Linear(16, 8))
    x = integers(6, 16)
    for layer in (theirs, ours):
        layer.bias = nn.Parameter(torch.full(shape, 2.0, device=DEVICE))
    got, want = ours(x), theirs(x)
    assert torch.equal(got, want)
    assert same(gradients(ours, got), gradients(theirs, want))


@pytest.mark.parametrize("make", [lambda: nn.Linear(16, 8), lambda: tritemm.Linear(16, 8)])
def test_a_precision_is_for_what_is_multiplied_in_float32(make, seen):
    layer = make().to(DEVICE)
    tritemm.convert(layer, precision="tf32x3")
    x = integers(3, 16)
    layer(x)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    layer.to(torch.float16)(x.half())
    layer.to(torch.float64)(x.double())
    assert [problem.precision for problem in seen] == ["tf32x3", "ieee", "ieee", "ieee"]
    with pytest.raises(ValueError, match="'tf33' is unknown"):
        tritemm.Linear(4, 4, precision="tf33")


@pytest.fixture
def seen(monkeypatch):
    """The problems that are chosen for."""
    problems, choose = [], dispatch.choose

    def watched(problem, *args):
        problems.append(problem)
        return choose(problem, *args)

    monkeypatch.setattr(dispatch, "choose", watched)
    plan.forget()
    yield problems
    plan.forget()


def test_layers_whose_type_tritemm_lacks_are_torchs():
    theirs, ours = pair(nn.Linear(16, 8))
    report = tritemm.convert(ours)
    x = integers(3, 16, dtype=torch.complex64)
    with pytest.raises(RuntimeError):  # torch's words
        ours(x)
    assert report.fell_back == {}
    with pytest.warns(UserWarning, match="[Cc]omplex"):
        theirs.to(torch.complex64), ours.to(torch.complex64)
    assert torch.equal(ours(x), theirs(x))
    assert report.fell_back == {"an input of torch.complex64": 1}


def test_a_model_that_goes_to_the_cpu_goes_on(monkeypatch):
    theirs, ours = pair(nn.Linear(16, 8))
    report = tritemm.convert(ours)
    monkeypatch.setattr(converted, "INTERPRETED", False)
    x = integers(3, 16).cpu()
    assert torch.equal(ours.cpu()(x), theirs.cpu()(x))
    assert report.fell_back == {"an input on cpu": 1}


@pytest.mark.gpu
def test_a_model_on_the_cpu_is_left():
    mlp = LlamaMLP()
    report = tritemm.convert(mlp)
    assert report.changed == () and type(mlp.gate_proj) is nn.Linear
    assert "move the model to cuda first" in report.left[0].note


def test_parametrized_after_and_weight_normed_before():
    """A weight that is computed: by a parametrization over a layer, or by a hook's attribute."""
    theirs, ours = pair(nn.Linear(16, 8))

    class Negative(nn.Module):
        calls = 0

        def forward(self, weight):
            self.calls += 1
            return -weight

    for layer in (theirs, ours):
        parametrize.register_parametrization(layer, "weight", negative := Negative())
    negative.calls = 0
    x = integers(3, 16)
    assert torch.equal(ours(x), theirs(x)) and isinstance(ours, tritemm.Linear)
    assert negative.calls == 1
    with pytest.warns(FutureWarning):
        normed = nn.utils.weight_norm(nn.Linear(16, 8, device=DEVICE))
    normed(x)
    names = dict(normed.named_parameters()).keys()
    tritemm.convert(normed)
    assert isinstance(normed, tritemm.Linear)
    verdict = budget.check(normed(x) - normed.bias, x, normed.weight.detach().mT)
    assert verdict.worst < 4 and names == dict(normed.named_parameters()).keys()


# The report


def test_the_report_is_a_table_with_a_line_for_what_differs_by_numbers_alone():
    model = nn.ModuleDict({"layers": nn.ModuleList(LlamaMLP() for _ in range(3))}).to(DEVICE)
    model["head"] = Doubled(16, 5)
    assert str(tritemm.convert(model, skip=["layers.1"])).splitlines() == [
        "changed  2 x  layers.*.gate_proj  Linear    [24, 16]  by tritemm.linear",
        "changed  2 x  layers.*.up_proj    Linear    [24, 16]  by tritemm.linear",
        "changed  2 x  layers.*.down_proj  Linear    [16, 24]  by tritemm.linear",
        "changed  2 x  layers.*            LlamaMLP            gate_proj and up_proj packed",
        "left     1 x  layers.*.gate_proj  Linear    [24, 16]  named in skip",
        "left     1 x  layers.*.up_proj    Linear    [24, 16]  named in skip",
        "left     1 x  layers.*.down_proj  Linear    [16, 24]  named in skip",
        "left     1 x  head                Doubled   [5, 16]   tests.nn.test_convert.Doubled is "
        "not nn.Linear, and may compute something else",
    ]


def test_restore_leaves_an_activation():
    model = nn.Sequential(tritemm.Linear(4, 4), tritemm.Linear(4, 4, activation="relu"))
    report = tritemm.nn.restore(model)
    assert [type(m) for m in model] == [nn.Linear, tritemm.Linear]
    assert report.left[0].note == "nn.Linear has no activation, this one relu"


@pytest.mark.parametrize(
    "name",
    [
        "tritemm.nn.layers",
        "tritemm.nn.convert",
        "tritemm.api.blas",
        "tritemm.api.einsum",
        "tritemm.api.row_parallel",
    ],
)
def test_the_examples_of_the_docstrings(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
