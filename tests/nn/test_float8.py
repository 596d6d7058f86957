"""`tritemm.nn.Float8Linear`.

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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import tritemm
from tests.harness import DEVICE, assert_right, ids, sweep
from tests.nn.models import compiled, same
from tests.torch.twins import kept
from tritemm import quantize
from tritemm.nn import Float8Linear
from tritemm.nn import float8 as module
from tritemm.op import float8 as op
from tritemm.op.quantize import QUANTIZE
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
    of_x, turned = quantize(rows, "fp8", lines, transpose=blocks)
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
            turned = func is QUANTIZE and bool(args[3:4] and args[3])
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
    scales = 4 * (of_x > 0) + 4 * (of_weight > 0)  # one of each
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


def test_exported_and_traced(made):
    """With any number of rows, whose transpose backward makes from what they were."""
    model, x, want = made
    rows = {0: torch.export.Dim("rows", min=2, max=1000)}
    exported = torch.export.export(model, (x,), dynamic_shapes=(rows,)).module()
    for traced in (exported, torch.jit.trace(model, (x,)), torch.fx.symbolic_trace(model)):
        assert same(step(model, x, traced), want)
        assert traced(x[:2]).shape == (2, 9)
    with pytest.raises(RuntimeError, match="script can't compile tritemm's Float8Linear"):
        torch.jit.script(model)


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
    a, turned = quantize(x, "fp8", "block", transpose="block2d")
    operands = *a, *turned, *quantize(weight, "fp8", "block2d")
    tests = "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    args = x, weight, bias, *operands, None, "block", E4M3, "auto"
    torch.library.opcheck(op.LINEAR, args, test_utils=tests)
    codes, scale = quantize(weight, "int8")
    args = *quantize(x, "int8"), None, None, codes.clone(), scale, None, "row", E5M2, "auto"
    torch.library.opcheck(op.LINEAR, (x, codes, bias, *args))


# What is refused


def called(*shape, **options):
    return lambda: layer_of(8, 16)(random(*shape).to(**options))


WRONG = {
    "features": (called(3, 15), RuntimeError, r"\[3, 15\] on .* \[8, 16\] on "),
    "devices": (called(3, 16, device="meta"), RuntimeError, "on meta, "),
    "types": (called(3, 16, dtype=torch.float64), NotImplementedError, "float64"),
    "a recipe": (lambda: Float8Linear(8, 16, recipe="tensor"), ValueError, "; use block or row"),
    "a type": (lambda: Float8Linear(8, 16, grad_dtype=HALF), ValueError, "=torch.float16; use"),
}


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG)
def test_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_the_docs_example():
    assert doctest.testmod(module).failed == 0
