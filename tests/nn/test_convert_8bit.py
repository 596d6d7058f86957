"""`convert` to layers in fp8 and int8."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import tritemm
from tests.harness import DEVICE
from tests.nn.models import LlamaMLP, Tied, conv1d, same, through_a_file
from tests.nn.test_float8 import BF16, FP32, HALF, WAYS, assert_product, autocast, random, step
from tritemm import quantize
from tritemm.nn import Float8Linear


def test_convert_to_fp8():
    model = nn.Sequential(nn.Linear(70, 40), nn.GELU(), LlamaMLP(40, 24), nn.Linear(40, 4))
    model.to(DEVICE)
    parameters, before = list(model.parameters()), copy.deepcopy(model.state_dict())
    classes = [type(m) for m in model.modules()]
    report = tritemm.convert(model, dtype="fp8", skip="3")
    assert [(e.name, e.note) for e in report.changed] == [
        (name, "by tritemm.linear in fp8")
        for name in ("0", "2.gate_proj", "2.up_proj", "2.down_proj")
    ]
    assert [(e.name, e.note) for e in report.left] == [("3", "named in skip")]
    assert report.compiled == () and repr(model[0]).endswith("bias=True, dtype=fp8)")
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert same(model.state_dict(), before)
    x = random(5, 70)
    twin = copy.deepcopy(model)
    tritemm.nn.restore(twin)
    assert [type(m) for m in twin.modules()] == classes
    for mlp in twin[2], twin:
        for name, each in list(mlp.named_children()):
            if type(each) is nn.Linear and name != "3":
                setattr(mlp, name, Float8Linear.from_linear(each))
    assert same(step(model, x), step(twin, x)) and report.fell_back == {}
    assert tritemm.convert(model, skip="3").changed == ()
    assert tritemm.convert(model, dtype="fp8", skip="3").changed == ()
    tritemm.convert(model[0], batch_invariant=True)
    assert torch.equal(model[0](x[2:3]), model[0](x)[2:3])


def test_convert_a_transposed_weight_to_fp8():
    theirs = conv1d(8, 16).to(DEVICE)
    ours = copy.deepcopy(theirs)
    assert "int8 is for" in tritemm.convert(ours, dtype="int8").left[0].note
    tritemm.convert(ours, dtype="fp8")
    twin = nn.Linear(16, 8, device=DEVICE)
    twin.weight, twin.bias = nn.Parameter(theirs.weight.mT), theirs.bias
    got, want = (
        step(m, random_x)
        for random_x in [random(3, 16)]
        for m in (ours, Float8Linear.from_linear(twin))
    )
    got[2] = got[2].mT
    assert same(got, want)


@torch.no_grad()
def test_a_layer_that_was_converted_before():
    layer, x = nn.Linear(16, 8, device=DEVICE), random(3, 16)
    tritemm.convert(layer)
    report = tritemm.convert(layer, dtype="fp8")
    assert [e.note for e in report.changed] == ["dtype=fp8"]
    assert torch.equal(layer(x), Float8Linear.from_linear(layer)(x))
    assert [e.note for e in tritemm.convert(layer, dtype="int8").changed] == ["dtype=int8"]
    (left,) = tritemm.convert(layer, dtype="fp8").left
    assert left.note.startswith("its weight is torch.int8; ") and layer.weight.dtype == torch.int8
    model = nn.Sequential(tritemm.Linear(4, 4, device=DEVICE), Float8Linear(4, 4, device=DEVICE))
    notes = [e.note for e in tritemm.convert(model, dtype="fp8").left]
    assert notes[0] == "of tritemm.Linear; use Float8Linear for fp8"
    assert "Float8Linear is not nn.Linear" in notes[1]


def small(dtype=FP32):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(70, 40), nn.GELU(), nn.Linear(40, 30)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [FP32, BF16, HALF], ids=str)
def test_convert_to_int8(dtype):
    model, x = small(dtype), torch.randn(2, 9, 70, device=DEVICE).to(dtype)
    theirs = copy.deepcopy(model)
    report = tritemm.convert(model, dtype="int8")
    assert [e.note for e in report.changed] == 2 * ["by tritemm.linear in int8"]
    assert report.changed[0].shape == (40, 70)
    want, got = theirs(x).double(), model(x)
    assert (got - want).norm() < 0.02 * want.norm() and got.dtype == dtype
    layer, weight = model[0], theirs[0].weight.detach()
    codes, scale = quantize(weight, "int8")
    assert torch.equal(layer.weight, codes) and torch.equal(layer.weight_scale, scale)
    rows = quantize(x.view(18, 70), "int8")
    assert_product(
        layer(x).detach().view(18, 40), rows, quantize(weight, "int8"), layer.bias.detach()
    )
    assert [name for name, _ in model.named_parameters()] == ["0.bias", "2.bias"]
    twin = copy.deepcopy(model)
    tritemm.nn.restore(model)
    assert type(layer) is nn.Linear and layer.weight.dtype == dtype and layer.weight.requires_grad
    step = (scale / 2 + 2.0**-8 * weight.abs().amax()).expand(40, 70)
    assert ((layer.weight - weight).abs() <= step).all()
    assert vars(layer).keys() == vars(theirs[0]).keys()
    assert layer.state_dict().keys() == theirs[0].state_dict().keys()
    assert torch.equal(twin(x), got)


def test_gradients_through_int8():
    """Those of inputs and biases, as if the input weren't rounded; weights have none."""
    model, x = small(), random(5, 70)
    tritemm.convert(model, dtype="int8")
    got = step(model, x)
    dense = nn.Linear(70, 40, device=DEVICE)
    with torch.no_grad():
        dense.weight.copy_(model[0].weight * model[0].weight_scale)
    layer, grad = model[0], random(5, 40)
    for each in (layer, dense):
        leaf = x.detach().requires_grad_()
        each.zero_grad()
        each(leaf).backward(grad)
        got.append((leaf.grad, each.bias.grad))
    torch.testing.assert_close(*got[-2:])
    assert not layer.weight.requires_grad
    with pytest.raises(RuntimeError, match="only Tensors of floating point"):
        layer.weight.requires_grad_()


def test_state_of_int8_layers():
    model, x = small(), random(5, 70)
    tritemm.convert(model, dtype="int8")
    saved = through_a_file(model.state_dict())
    kinds = {name: t.dtype for name, t in saved.items() if name.startswith("0.")}
    assert kinds == {"0.weight": torch.int8, "0.weight_scale": FP32, "0.bias": FP32}
    other = small()
    with pytest.raises(RuntimeError, match="weight_scale"):
        other.load_state_dict(saved)
    tritemm.convert(other, dtype="int8")
    with pytest.raises(RuntimeError, match="weight_scale"):
        other.load_state_dict(small().state_dict())
    other.load_state_dict(saved)
    late = small().to("meta")
    tritemm.convert(late, dtype="int8")
    late.load_state_dict(saved, assign=True)
    for each in (other, late, pickle.loads(pickle.dumps(other))):
        assert torch.equal(each(x), model(x))
    model.bfloat16()
    assert model[0].weight.dtype == torch.int8 and model(x.bfloat16()).dtype == BF16


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_int8_in_other_circumstances():
    model, x = small(), random(5, 70)
    report = tritemm.convert(model, dtype="int8")
    want = step(model, x)
    assert tritemm.convert(model, dtype="int8") == tritemm.nn.Report()
    for way in ("compiled", "checkpoint"):
        assert same(step(model, x, WAYS[way](model)), want)
    assert autocast(model, x).dtype == BF16 and report.fell_back == {}
    if DEVICE == "cuda":
        back = model.cpu()(x.cpu()).to(DEVICE)
        assert (back - want[0]).norm() < 0.02 * want[0].norm()
        assert report.fell_back == {"an input on cpu": 2}
        model.to(DEVICE)
    nested = torch.nested.nested_tensor([x, x[:2]])
    assert (model(nested)[0] - want[0]).norm() < 0.02 * want[0].norm()
    assert report.fell_back["a nested input"] == 2
    weight = nn.Parameter(random(30, 40))
    model[2].weight = weight  # as those do who tie weights late
    hidden = random(5, 40)
    want = tritemm.linear(hidden, weight, model[2].bias)
    assert torch.equal(model[2](hidden), want)
    tritemm.nn.restore(model)
    assert model[2].weight is weight and type(model[2]) is nn.Linear


def test_what_int8_leaves():
    model = Tied().to(DEVICE)
    model.pruned = prune.identity(nn.Linear(8, 8, device=DEVICE), "weight")
    model.wide = nn.Linear(8, 8, dtype=torch.float64, device=DEVICE)
    report = tritemm.convert(model, dtype="int8")
    assert {e.name: e.note.split(",")[0] for e in report.left} == {
        "head": "int8 is for a Parameter of only one nn.Linear",
        "pruned": "int8 is for a Parameter of only one nn.Linear",
        "wide": "its weight is torch.float64; torch.float16",
    }
    assert [e.name for e in report.changed] == ["first"] and model.first is model.second
    assert model.head.weight is model.embedding.weight and type(model.head) is nn.Linear
    packed = LlamaMLP().to(DEVICE)
    x, report = random(3, 16), tritemm.convert(packed)
    want = packed(x)
    assert "packed" in report.changed[-1].note
    tritemm.convert(packed, dtype="int8")
    assert (packed(x) - want).norm() < 0.05 * want.norm()
    assert tritemm.convert(packed).changed == ()


@torch.no_grad()
def test_torchs_encoder_multiplies_by_its_weights_itself():
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, device=DEVICE).eval()
    x = random(2, 5, 32)
    want = layer(x)
    left = tritemm.convert(layer, dtype="int8").left
    assert {e.name for e in left} == {"self_attn.out_proj", "linear1", "linear2"}
    torch.testing.assert_close(layer(x), want)
    assert [e.name for e in tritemm.convert(layer, dtype="fp8").changed] == ["linear1", "linear2"]


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_types_that_are_not_quantised_are_torchs(dtype):
    layer, x = nn.Linear(70, 24, device=DEVICE), random(5, 70)
    want = layer(x).double()
    report = tritemm.convert(layer, dtype=dtype)
    got = layer.double()(x.double())
    assert got.dtype == torch.float64 and (got - want).norm() < 0.02 * want.norm()
    assert report.fell_back == {"an input of torch.float64": 1}


def test_int8_in_another_type():
    """The scales stay in fp32, however small the weight; restore knows what it is now."""
    model, x = small(), random(5, 70)
    with torch.no_grad():
        model[0].weight.mul_(1e-5)
        model[0].bias.zero_()
    want = model[0](x)
    tritemm.convert(model, dtype="int8")
    model.half()
    assert (model[0](x.half()) - want).norm() < 0.02 * want.norm()
    assert model[0].weight_scale.dtype == FP32
    tritemm.nn.restore(model)
    assert {p.dtype for p in model.parameters()} == {HALF}


def test_int8_takes_no_other_numbers():
    model = small()
    state = model.state_dict()
    tritemm.convert(model, dtype="int8")
    before = model[0].weight.clone()
    with pytest.raises(RuntimeError, match=r"0\.weight is torch.float32, and this layer's weight"):
        model.load_state_dict(state, strict=False)
    assert torch.equal(model[0].weight, before)


def test_another_type_is_refused():
    with pytest.raises(ValueError, match="one of fp8, int8"):
        tritemm.convert(small(), dtype="int4")
