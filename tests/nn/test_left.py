"""What `convert` leaves to torch: layers, forwards that others replaced, inputs; and its report."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import tritemm
from tests.nn.models import (
    DEVICE,
    LlamaMLP,
    Quantized,
    gradients,
    integers,
    pair,
    same,
    with_integers,
)
from tritemm import budget, dispatch, plan
from tritemm.nn import converted

# What is left, and who replaces a forward


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def with_weight(change):
    """A layer whose weight is what `change` makes of it."""
    layer = nn.Linear(4, 4, device=DEVICE)
    layer.weight = change(layer.weight.detach())
    return layer


def replaced():
    layer = nn.Linear(4, 4, device=DEVICE)
    layer.forward = lambda x: x
    return layer


class Conv1D(nn.Module):
    """By the name of transformers' class, and with its attribute, but not that."""

    def __init__(self):
        super().__init__()
        self.nf, self.weight = 4, nn.Parameter(torch.ones(4, 4))


LEFT = {
    "subclass": (lambda: Doubled(4, 4), "test_left.Doubled is not nn.Linear, and may compute"),
    "conv1d": (Conv1D, "test_left.Conv1D is not nn.Linear, and may compute"),
    "parametrized": (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "Parametrized"),
    "attention": (lambda: nn.MultiheadAttention(4, 2).out_proj, "NonDynamically"),
    "replaced": (replaced, "its forward was replaced in the instance"),
    "lazy": (lambda: nn.LazyLinear(4), "LazyLinear"),
    "special": (lambda: with_weight(type("Own", (nn.Parameter,), {})), "its weight is a Own"),
    "sparse": (
        lambda: with_weight(lambda t: nn.Parameter(t.to_sparse(), requires_grad=False)),
        "torch.sparse_coo",
    ),
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
        with pytest.raises(TypeError, match="skip must be a module's name or several names, not"):
            tritemm.convert(model, skip=skip)
    for wrong in ({"batch_invariant": "no"}, {"fuse": 1}):
        with pytest.raises(TypeError, match="must be True or False"):
            tritemm.convert(model, **wrong)
    assert type(model[0]) is nn.Linear
    for _ in range(40):  # each has twice as many names as the one before
        model = nn.Sequential(*[model] * 2)
    assert tritemm.convert(model, skip="1.0").changed == ()
    with pytest.warns(UserWarning, match="skip='lm_head' excludes nothing: .* like '0'"):
        tritemm.convert(model, skip="lm_head")
    with pytest.warns(UserWarning, match="like '_orig_mod'"):
        tritemm.convert(torch.compile(nn.Sequential(nn.Linear(4, 4, device=DEVICE))), skip="0")


class GatheredLinear(nn.Module):
    """Its weight is worked out when it is asked for, and isn't there yet."""

    @property
    def weight(self):
        raise RuntimeError("gather() first")


class Gathered(nn.Linear):
    weight = GatheredLinear.weight


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
    if function is tritemm.nn.restore:
        assert report == tritemm.nn.Report()
    else:
        assert [entry.name for entry in report.changed] == ["4"]
        assert report.left[-1].note == "it has no weight" and len(report.left) == 3


def patched(self, x):
    return 3 * F.linear(x, self.weight, self.bias)


def test_a_forward_that_was_replaced_for_all_layers_before_is_left(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", patched)
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 12), LlamaMLP(12, 16)).to(DEVICE)
    report = tritemm.convert(model)
    assert report.changed == () and len(report.left) == 5 and type(model[0]) is nn.Linear
    assert {e.note for e in report.left} == {"the forward of Linear was replaced for all layers"}
    monkeypatch.setattr(nn.Linear, "forward", functools.wraps(converted._linear_forward)(patched))
    assert tritemm.convert(model).changed == ()


@pytest.mark.parametrize("compile_it", [False, True])
def test_a_forward_that_is_replaced_for_all_layers_later_is_called(monkeypatch, compile_it):
    model = with_integers(nn.Linear(16, 8))
    report = tritemm.convert(model)
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
    "class": (lambda: integers(3, 16).as_subclass(Quantized), "its input is a Quantized"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(("make", "reason"), FALLS_BACK.values(), ids=FALLS_BACK)
@torch.no_grad()
def test_what_torchs_layer_takes_and_tritemm_does_not_is_torchs(make, reason):
    ours, theirs = pair(nn.Linear(16, 8, bias="layout" not in reason))
    report, x = tritemm.convert(ours), make()
    got, want = ours(x), theirs(x)
    if want.is_nested:
        got, want = got.values(), want.values()
    assert got.layout == want.layout and torch.equal(got, want)
    assert report.fell_back == {reason: 1}
    assert str(report).splitlines()[-1].startswith("by torch  1 x") and reason in str(report)


@pytest.mark.parametrize("shape", [(), (1,), (1, 8), (6, 8), (6, 1)], ids=str)
def test_a_bias_of_any_shape_that_torchs_layer_takes(shape):
    ours, theirs = pair(nn.Linear(16, 8))
    x = integers(6, 16)
    for layer in (theirs, ours):
        layer.bias = nn.Parameter(torch.full(shape, 2.0, device=DEVICE))
    got, want = ours(x), theirs(x)
    assert torch.equal(got, want)
    assert same(gradients(ours, got), gradients(theirs, want))


def test_a_bias_whose_class_knows_torchs_linear():
    ours, theirs = pair(nn.Linear(16, 8))
    report, x = tritemm.convert(ours), integers(3, 16)
    bias = theirs.bias.detach().as_subclass(Quantized)
    for layer in (theirs, ours):
        layer.bias = nn.Parameter(bias, requires_grad=False)
    assert torch.equal(ours(x), theirs(x))
    assert report.fell_back == {"its bias is a Quantized": 1}


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
    problems, choose = [], dispatch.choose_whole

    def watched(problem, *args):
        problems.append(problem)
        return choose(problem, *args)

    monkeypatch.setattr(dispatch, "choose_whole", watched)
    plan.forget()
    yield problems
    plan.forget()


def test_layers_whose_type_tritemm_lacks_are_torchs():
    ours, theirs = pair(nn.Linear(16, 8))
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
    ours, theirs = pair(nn.Linear(16, 8))
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
    ours, theirs = pair(nn.Linear(16, 8))

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
        "left     1 x  head                Doubled   [5, 16]   tests.nn.test_left.Doubled is "
        "not nn.Linear, and may compute something else",
    ]
