"""Layers in 8 bits: `tritemm.nn.Float8Linear`, and `convert` to fp8 and int8.

What is quantised is taken as it is, so that results and gradients are products of known numbers,
and errors are those of a sum.
"""

import copy
import doctest
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.harness import DEVICE, assert_right, ids, sweep
from tests.nn.models import LlamaMLP, Tied, compiled, conv1d, same, through_a_file
from tests.torch.twins import kept
from tritemm import quantize
from tritemm.nn import Float8Linear
from tritemm.nn import float8 as module
from tritemm.op import float8 as op
from tritemm.problem import EpilogueInputs

E4M3, E5M2 = op.E4M3, op.E5M2
BF16, HALF, FP32 = torch.bfloat16, torch.float16, torch.float32
#: How inputs, gradients and weights are quantised, and the gradients' type.
SCALED = {"block": ("block", "block2d", E4M3), "row": ("row", "row", E5M2)}


def random(*shape, dtype=FP32):
    """Values whose mean is not zero, and whose rows and columns have sizes of their own."""
    x = torch.randn(shape, device=DEVICE) + torch.linspace(-1, 1, shape[-1], device=DEVICE)
    return (x * torch.logspace(-1, 1, shape[0], device=DEVICE).view(-1, *[1] * (x.dim() - 1))).to(
        dtype
    )


def assert_product(got, a, b, bias=None):
    """`got` is a @ b.T of what is quantised, plus the bias."""
    then = None if bias is None else EpilogueInputs(bias)
    scales = a.scale, b.scale, a.values.dtype != torch.int8
    assert_right(got, a.values, b.values.mT, scales=scales, ending=then)


def layer_of(n, k, dtype=FP32, **options):
    layer = Float8Linear(k, n, device=DEVICE, dtype=dtype, **options)
    with torch.no_grad():
        layer.weight.copy_(random(n, k))
    return layer


@pytest.mark.wide
@sweep(
    shape=ids([(40, 70), (2, 3, 200), (130,), (150, 33)]), n=ids([48, 130, 1]),
    recipe=ids(SCALED), dtype=ids([BF16, HALF, FP32]), of_weight=ids([FP32, BF16, HALF]),
    grad_dtype=ids([None, E4M3, E5M2]), bias=ids([True, False]),
)  # fmt: skip
def test_results_and_gradients(shape, n, recipe, dtype, of_weight, grad_dtype, bias):
    layer = layer_of(n, shape[-1], of_weight, recipe=recipe, grad_dtype=grad_dtype, bias=bias)
    x = random(*shape, dtype=dtype).requires_grad_()
    y = layer(x)
    assert y.shape == (*shape[:-1], n) and y.dtype == dtype
    grad = random(*y.shape, dtype=dtype)
    y.backward(grad)
    lines, blocks, usual = SCALED[recipe]
    rows, grads = (t.detach().reshape(-1, t.shape[-1]) for t in (x, grad))
    weight = layer.weight.detach()
    of_x, turned = quantize(rows, "fp8", lines, transpose=True)
    of_grad, grad_turned = quantize(grads, grad_dtype or usual, lines, transpose=True)
    added = layer.bias.detach() if bias else None
    assert_product(y.detach().view(-1, n), of_x, quantize(weight, "fp8", blocks), added)
    assert_product(x.grad.view(rows.shape), of_grad, quantize(weight.mT, "fp8", blocks))
    assert_product(layer.weight.grad, grad_turned, turned)
    assert (x.grad.dtype, layer.weight.grad.dtype) == (dtype, of_weight)
    if bias:
        want = grads.double().sum(0)
        torch.testing.assert_close(layer.bias.grad, want.to(of_weight), rtol=0.01, atol=1e-3)


def test_blocks_of_the_weight_are_the_same_numbers_both_ways():
    weight = random(200, 300)
    one, other = quantize(weight, "fp8", "block2d"), quantize(weight.mT, "fp8", "block2d")
    assert torch.equal(one.values.float(), other.values.mT.float())
    assert torch.equal(one.scale, other.scale.mT)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (3, 0)], ids=str)
def test_nothing_to_multiply(shape):
    layer, x = Float8Linear(shape[-1], 5, device=DEVICE), torch.ones(shape, device=DEVICE)
    y = layer(x.requires_grad_())
    y.sum().backward()
    assert y.shape == (*shape[:-1], 5) and (y == layer.bias).all()
    assert not x.grad.any() and not layer.weight.grad.any()


class Calls(TorchDispatchMode):
    """The operators of tritemm that run: their names, with * if a transpose is made too."""

    def __enter__(self):
        self.made = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "tritemm":
            turned = func is op.QUANTIZE and args[3]
            self.made.append(func.overloadpacket.__name__ + "*" * turned)
        return func(*args, **(kwargs or {}))


#: What has a gradient -> what runs forwards and then backwards, and bytes per element of x, weight.
ASKED = {
    "": (["quantize", "quantize", "linear_8bit"], [], 0, 0),
    "x": (["quantize", "quantize", "linear_8bit"], ["quantize", "quantize", "scaled_mm"], 0, 4),
    "w": (["quantize*", "quantize", "linear_8bit"], ["quantize", "scaled_mm"], 1, 0),
    "b": (["quantize", "quantize", "linear_8bit"], [], 0, 0),
    "xwb": (
        ["quantize*", "quantize", "linear_8bit"],
        ["quantize*", "quantize", "scaled_mm", "scaled_mm"], 1, 4,
    ),
}  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("asked", ASKED)
def test_only_what_is_asked_for_is_made_and_kept(asked):
    forwards, backwards, of_x, of_weight = ASKED[asked]
    layer, x = layer_of(64, 128), random(48, 128)
    everything = [x, layer.weight, layer.bias]
    for t, name in zip(everything, "xwb", strict=True):
        t.requires_grad_(name in asked)
    with Calls() as calls:
        y = layer(x)
    assert calls.made == forwards and y.requires_grad is bool(asked)
    scales = 4 * 128 * (of_x > 0) + 4 * (of_weight > 0)  # of x one per 48 tokens, of the weight one
    assert kept(lambda: layer(x)) == of_x * x.numel() + of_weight * layer.weight.numel() + scales
    if asked:
        with Calls() as calls:
            y.sum().backward()
        assert calls.made == backwards
    assert [t.grad is not None for t in everything] == [name in asked for name in "xwb"]
    x, layer = x.detach(), layer.requires_grad_(True)
    with torch.no_grad(), Calls() as calls:
        assert torch.equal(layer(x), y)
    assert calls.made == ASKED[""][0]


def teacher(recipe):
    """Losses of a small net that learns what another one computes; torch's if there's no recipe."""
    torch.manual_seed(1)
    x = torch.randn(48, 24, device=DEVICE)
    target = torch.tanh(x @ torch.randn(24, 4, device=DEVICE) / 4)
    net = nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 4)).to(DEVICE)
    if recipe:
        for i in (0, 2):
            net[i] = Float8Linear.from_linear(net[i], recipe=recipe)
    optimizer = torch.optim.Adam(net.parameters(), 0.03)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


def test_a_net_learns_as_in_fp32():
    want = teacher(None)
    assert want[-1] < want[0] / 3
    for recipe in SCALED:
        torch.testing.assert_close(teacher(recipe), want, rtol=0.15, atol=0)


# The module


def test_the_module_is_torchs():
    theirs = nn.Linear(16, 8, device=DEVICE, dtype=BF16).eval()
    ours = Float8Linear.from_linear(theirs, recipe="row")
    assert isinstance(ours, nn.Linear) and ours.weight is theirs.weight and not ours.training
    assert repr(ours) == "Float8Linear(in_features=16, out_features=8, bias=True, recipe=row)"
    bare = Float8Linear.from_linear(nn.Linear(16, 8, bias=False, device=DEVICE))
    assert bare.bias is None and list(bare.state_dict()) == ["weight"]
    torch.manual_seed(3)
    one = nn.Linear(5, 7)
    torch.manual_seed(3)
    assert same(one.state_dict(), Float8Linear(5, 7).state_dict())
    ours = layer_of(8, 16)
    x = random(3, 16)
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), Float8Linear(16, 8)):
        twin.to(DEVICE).load_state_dict(ours.state_dict())
        assert torch.equal(twin(x), ours(x)) and twin.recipe == "block"
    assert ours.to("meta")(x.to("meta")).shape == (3, 8)


def step(model, x, run=None):
    """The result and all gradients."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    y = (model if run is None else run)(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def net():
    torch.manual_seed(0)
    return nn.Sequential(layer_of(40, 70), nn.GELU(), layer_of(9, 40, recipe="row"))


@pytest.fixture(scope="module")
def made():
    model, x = net(), random(5, 70)
    return model, x, step(model, x)


def autocast(model, x):
    with torch.autocast(DEVICE, BF16):
        return model(x)


def dynamic(model):
    return torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)


WAYS = {
    "compiled": dynamic,
    "checkpoint": lambda model: lambda x: checkpoint(model, x, use_reentrant=False),
    "reentrant": lambda model: lambda x: checkpoint(model, x, use_reentrant=True),
    "vmap": lambda model: torch.func.vmap(model),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ways_to_call_it(made, way):
    model, x, want = made
    if way is WAYS["vmap"]:  # a batch of one
        x = x.view(1, *x.shape)
    got = step(model, x, way(model))
    if way is not WAYS["vmap"]:
        assert same(got, want)
        return
    for one, other in zip(got, want, strict=True):
        assert_near(one.view(other.shape), other)


def assert_near(got, want):
    """As the same sums in another order are: of stacked operands, rows begin anywhere."""
    assert (got - want).norm() < 0.01 * want.norm()


def test_autocast_quantises_the_weight_as_it_is(made):
    model, x, _ = made
    y, *grads = step(model, x, lambda x: autocast(model, x))
    assert y.dtype == BF16 and {g.dtype for g in grads} == {FP32}
    layer = model[0]
    assert torch.equal(autocast(layer, x), layer(x.bfloat16()))


def test_transforms_of_torch_func(made):
    model, x, want = made
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    got = torch.func.grad(loss)(weights, x)
    assert same(list(got.values()), want[2:])
    several = {name: torch.stack([w, w]) for name, w in weights.items()}

    def losses(several):
        return torch.func.vmap(loss, (0, None))(several, x).sum()

    each = torch.func.grad(losses)(several)
    for name, want_of_it in got.items():
        assert_near(each[name][1], want_of_it)
    y, back = torch.func.vjp(model, x)
    assert torch.equal(y, want[0]) and torch.equal(back(2 * y)[0], want[1])
    assert y.requires_grad


def test_it_is_differentiable_once(made):
    model, x, _ = made
    grads = torch.autograd.grad(model(x).sum(), model[0].weight, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grads[0].sum().backward()
    with pytest.raises(NotImplementedError, match="jvp"):
        torch.func.jvp(model, (x,), (x,))


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x):
        return self.q_proj(x) * self.k_proj(x)


def test_compiled_layers_quantise_their_common_input_once():
    model = Parallel().to(DEVICE)
    assert len(tritemm.convert(model, dtype="fp8").changed) == 2
    run, backend = compiled(model)
    x = random(3, 16)
    assert same(step(model, x, run), step(model, x))
    assert backend.products(0) == ["quantize", "quantize", "linear_8bit", "quantize", "linear_8bit"]
    assert backend.products(1) == 2 * ["quantize", "quantize", "scaled_mm", "scaled_mm"]


def test_flops(made):
    model, x, _ = made
    for times in (1, 3):
        with FlopCounterMode(display=False) as counted, torch.set_grad_enabled(times == 3):
            y = model(x.detach().requires_grad_())
            if times == 3:
                y.sum().backward()
        assert counted.get_total_flops() == times * 2 * 5 * 40 * (70 + 9)


def test_opcheck():
    x, weight = random(3, 40).requires_grad_(), random(8, 40).requires_grad_()
    bias = random(8).requires_grad_()
    a, turned = quantize(x, "fp8", "block", transpose=True)
    operands = *a, *turned, *quantize(weight, "fp8", "block2d")
    tests = "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    args = x, weight, bias, *operands, "block", E4M3, "auto"
    torch.library.opcheck(op.LINEAR, args, test_utils=tests)
    codes, scale = quantize(weight, "int8")
    args = *quantize(x, "int8"), None, None, codes.clone(), scale, "row", E5M2, "auto"
    torch.library.opcheck(op.LINEAR, (x, codes, bias, *args))


# convert


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
    assert notes[0] == "of tritemm.Linear; Float8Linear is for fp8"
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
        "head": "int8 is for a Parameter that one nn.Linear alone has",
        "pruned": "int8 is for a Parameter that one nn.Linear alone has",
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


# What is refused


def called(*shape, **options):
    return lambda: layer_of(8, 16)(random(*shape).to(**options))


WRONG = {
    "features": (called(3, 15), RuntimeError, r"\[3, 15\] on .* \[8, 16\] on "),
    "devices": (called(3, 16, device="meta"), RuntimeError, "on meta, "),
    "types": (called(3, 16, dtype=torch.float64), NotImplementedError, "float64"),
    "a recipe": (lambda: Float8Linear(8, 16, recipe="tensor"), ValueError, "; block and row"),
    "a type": (lambda: Float8Linear(8, 16, grad_dtype=HALF), ValueError, "=torch.float16; block"),
    "convert": (lambda: tritemm.convert(small(), dtype="int4"), ValueError, "fp8 and int8 are"),
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_docs_example():
    assert doctest.testmod(module).failed == 0
