"""Gated MLPs after `convert`: one product for gate and up where it is safe, two elsewhere."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from tritemm.nn.activations import gating
from tritemm.nn.forms import gated_form_why_not

import tritemm
from tritemm.nn.packing import pack, pack_why_not, packed

from .nn_models import DEVICE, STEEP, LlamaMLP, Operators, by_name_alone, integers, with_integers


def fused(mlp, *args, **kwargs):
    """Whether the call took the way of one product; and what it gave."""
    with Operators() as seen:
        result = mlp(*args, **kwargs)
    return "gated" in seen.names, result


def converted(**options):
    mlp = with_integers(LlamaMLP(**options)).eval()
    twin = copy.deepcopy(mlp)
    report = tritemm.convert(mlp)
    return mlp, twin, report


def together(mlp):
    return packed(mlp.gate_proj.weight, mlp.up_proj.weight) is not None


@pytest.mark.parametrize(
    ("act_fn", "word"),
    [(nn.SiLU(), "swiglu"), (nn.GELU(), "geglu"), (F.silu, "swiglu"), (F.gelu, "geglu")],
    ids=["SiLU", "GELU", "silu", "gelu"],
)
def test_one_product_without_a_gradient(act_fn, word):
    mlp, twin, report = converted(act_fn=act_fn)
    assert report.changed[-1].note == f"gate and up packed, {word}" and together(mlp)
    x = integers(2, 3, 16)
    with torch.no_grad():
        was_fused, got = fused(mlp, x)
        want = twin(x)
    assert was_fused
    torch.testing.assert_close(got, want)
    if word == "swiglu":
        assert torch.equal(got, want)


def test_two_products_with_a_gradient():
    mlp, twin, _ = converted()
    x = integers(3, 16)
    for model in (mlp, twin):
        model(x).sum().backward()
    assert not fused(mlp, x)[0]
    for ours, theirs in zip(mlp.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad) and ours.grad.is_contiguous()
    for model in (mlp, twin):
        model.requires_grad_(False)
    assert fused(mlp, x)[0]
    grads = []
    for model in (mlp, twin):
        leaf = x.clone().requires_grad_()
        grads += torch.autograd.grad(model(leaf).sum(), leaf)
    assert torch.equal(*grads)


def unfuse(mlp, x, how):
    """The call in circumstances that forbid one product."""
    if how == "training":
        mlp.train()
    if how == "autocast":
        with torch.autocast(DEVICE, torch.bfloat16):
            return fused(mlp, x)
    if how == "keyword":
        return fused(mlp, x=x)
    if how == "hook":
        mlp.up_proj.register_forward_hook(lambda module, args, out: out + 1)
    if how == "hook of the activation":
        mlp.act_fn.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    if how == "forward":
        mlp.gate_proj.forward = lambda x: STEEP * F.linear(x, mlp.up_proj.weight)
    if how == "another layer":
        mlp.up_proj = nn.Sequential(mlp.up_proj, nn.ReLU())
    if how == "another activation":
        mlp.act_fn = nn.ReLU()
    return fused(mlp, x)


@pytest.mark.parametrize(
    "how",
    [
        "training",
        "autocast",
        "keyword",
        "hook",
        "hook of the activation",
        "forward",
        "another layer",
        "another activation",
    ],
)
@torch.no_grad()
def test_two_products_where_one_would_miss_something(how):
    mlp, twin, _ = converted()
    x = integers(3, 16)
    was_fused, got = unfuse(mlp, x, how)
    _, want = unfuse(twin, x, how)
    assert not was_fused
    torch.testing.assert_close(got, want, rtol=0.02 if how == "autocast" else 0, atol=0)


@pytest.mark.parametrize(
    ("before", "after"), [(nn.GELU(), nn.GELU("tanh")), (F.silu, F.relu)], ids=["class", "function"]
)
@torch.no_grad()
def test_an_activation_exchanged_for_another_of_its_type_is_noticed(before, after):
    mlp, twin, _ = converted(act_fn=before)
    x = integers(3, 16) / 128
    assert fused(mlp, x)[0]
    for model in (mlp, twin):
        model.act_fn = after
    was_fused, got = fused(mlp, x)
    assert not was_fused
    torch.testing.assert_close(got, twin(x))
    for model in (mlp, twin):
        model.act_fn = copy.copy(before)
    tritemm.convert(mlp)
    was_fused, got = fused(mlp, x)
    assert was_fused
    torch.testing.assert_close(got, twin(x))


@torch.no_grad()
def test_optimizers_and_loading_work_on_the_packed_weights_in_place():
    mlp, twin, _ = converted()
    optimizer = torch.optim.SGD(mlp.parameters(), lr=1.0)
    x = integers(3, 16)
    for model in (mlp, twin):
        with torch.enable_grad():
            model(x).sum().backward()
    optimizer.step()
    torch.optim.SGD(twin.parameters(), lr=1.0).step()
    assert together(mlp)
    for ours, theirs in zip(mlp.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(mlp(x), twin(x))
    source = with_integers(LlamaMLP()).eval()
    mlp.load_state_dict(source.state_dict())
    assert together(mlp) and torch.equal(mlp(x), source(x))


def swap_data(mlp):
    for parameter in mlp.parameters():
        parameter.data = parameter.data.clone()


def assign(mlp):
    mlp.load_state_dict({k: v.clone() for k, v in mlp.state_dict().items()}, assign=True)


def new_parameter(mlp):
    mlp.up_proj.weight = nn.Parameter(mlp.up_proj.weight.detach().clone())


@pytest.mark.parametrize("in_one", [True, False])
@torch.no_grad()
def test_inductor_calls_it_without_a_detour(in_one):
    torch._dynamo.reset()
    mlp, twin, _ = converted()
    if not in_one:
        mlp.unpack()
    x = integers(3, 16)
    got, sources = run_and_get_code(torch.compile(mlp, fullgraph=True), x)
    assert torch.equal(got, twin(x)) and together(mlp) == in_one
    assert "torch.ops.tritemm.gated_into(" in "".join(sources)


@pytest.mark.parametrize(
    ("part", "compiled"),
    [(swap_data, False), (swap_data, True), (assign, False), (new_parameter, False)],
)
@torch.no_grad()
def test_weights_that_came_apart_are_noticed_and_packed_again(part, compiled):
    torch._dynamo.reset()
    mlp, twin, _ = converted()
    run = torch.compile(mlp, backend="aot_eager", fullgraph=True) if compiled else mlp
    x = integers(3, 16)
    assert torch.equal(run(x), twin(x))
    part(mlp)
    for parameter, other in zip(mlp.parameters(), twin.parameters(), strict=True):
        other.copy_(parameter.neg_())
    assert not together(mlp)
    assert torch.equal(run(x), twin(x))
    report = tritemm.convert(mlp)
    assert [entry.note for entry in report.changed] == ["gate and up packed again"]
    assert together(mlp) and torch.equal(run(x), twin(x))


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.double(),
        lambda m: m.to("meta").to_empty(device=DEVICE),
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
    ],
    ids=["double", "meta", "deepcopy", "pickle"],
)
def test_what_moves_the_weights_through_torch_packs_them_again(move):
    mlp, _, _ = converted()
    moved = move(mlp)
    assert together(moved)
    assert moved.gate_proj.weight is dict(moved.named_parameters())["gate_proj.weight"]


def test_a_saved_state_dict_has_both_weights_once():
    mlp, twin, _ = converted(hidden=64, intermediate=64)
    sizes = []
    for model in (mlp, twin):
        torch.save(model.state_dict(), file := io.BytesIO())
        sizes.append(len(file.getvalue()))
    assert sizes[0] < 1.1 * sizes[1]


def test_restore_gives_each_weight_its_own_storage():
    mlp, twin, _ = converted()
    tritemm.nn.restore(mlp)
    assert type(mlp) is LlamaMLP and not together(mlp)
    for ours, theirs in zip(mlp.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.untyped_storage().nbytes() == ours.nbytes


class Renamed(LlamaMLP):
    """The known form in other words."""

    def forward(self, hidden_states):
        up = self.up_proj(hidden_states)
        inner = up * self.act_fn(self.gate_proj(hidden_states))
        return self.down_proj(inner)


class DroppedOut(LlamaMLP):
    def forward(self, x):
        inner = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(F.dropout(inner, 0.0, self.training))


class Functional(LlamaMLP):
    def forward(self, x):
        return self.down_proj(F.dropout(self.act_fn(self.gate_proj(x)) * self.up_proj(x), 0.5))


class Limited(LlamaMLP):
    limit = 1.0

    def forward(self, x):
        gate, up = self.act_fn(self.gate_proj(x)), self.up_proj(x)
        if (limit := getattr(self, "limit", None)) is not None:
            gate = gate.clamp(max=limit)
        return self.down_proj(gate * up)


class Scaled(LlamaMLP):
    def forward(self, x):
        return 2 * super().forward(x)


class Residual(LlamaMLP):
    def forward(self, x):
        return x + self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Ungated(LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.act_fn(self.up_proj(x)))


class Crossed(LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


class TwoInputs(LlamaMLP):
    def forward(self, x, scale):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Branching(LlamaMLP):
    def forward(self, x):
        if x.shape[0] > 1:
            return x
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


def test_a_known_form_is_known_by_what_it_does():
    assert gated_form_why_not(LlamaMLP()) is None
    assert gated_form_why_not(Renamed()) is None


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (DroppedOut, "it reads self.training"),
        (Functional, "another form"),
        (Limited, "it reads self.limit"),
        (Scaled, "super"),
        (Residual, "it calls add of a tensor"),
        (Ungated, "not down_proj(act_fn(gate_proj(x)) * up_proj(x))"),
        (Crossed, "not down_proj(act_fn(gate_proj(x)) * up_proj(x))"),
        (TwoInputs, "missing 1 required positional argument: 'scale'"),
        (Branching, "it calls __get__ of a tensor"),
    ],
)
def test_other_forms_are_left_with_a_reason(kind, word):
    mlp = kind().to(DEVICE)
    report = tritemm.convert(mlp)
    assert type(mlp) is kind and len(report.changed) == 3
    assert report.left[0].note.startswith("not fused: its forward is of another form")
    assert word in report.left[0].note


@pytest.mark.parametrize(
    "act_fn",
    [nn.ReLU(), nn.GELU("tanh"), nn.Sequential(nn.SiLU()), by_name_alone("SiLU", F.silu)],
    ids=repr,
)
def test_other_activations_are_left_with_a_reason(act_fn):
    assert gating(act_fn) is None
    mlp, _, report = converted(act_fn=act_fn)
    assert type(mlp) is LlamaMLP
    assert report.left[0].note == f"not fused: tritemm.linear has no gated form of {act_fn}"


def test_weights_that_cannot_be_packed_are_left_with_a_reason():
    with_bias = LlamaMLP(bias=True).to(DEVICE)
    assert tritemm.convert(with_bias).left[0].note == "not fused: gate_proj has a bias"
    part, whole = torch.zeros(48, 16, device=DEVICE), torch.zeros(24, 16, device=DEVICE)
    first, second = nn.Parameter(part[24:]), nn.Parameter(part[:24])
    whole = nn.Parameter(whole)
    assert "larger storage" in pack_why_not(first, second)
    assert "share one weight" in pack_why_not(whole, whole)
    assert "shapes" in pack_why_not(whole, nn.Parameter(torch.zeros(24, 8, device=DEVICE)))
    odd = [nn.Parameter(torch.zeros(3, 3, device=DEVICE)) for _ in range(2)]
    assert "no multiple of 16 bytes" in pack_why_not(*odd)
    assert pack_why_not(whole, nn.Parameter(whole.detach().clone())) is None
    before = first.data_ptr(), second.data_ptr()
    pack(first, second)
    assert before == (first.data_ptr(), second.data_ptr())


def test_only_weights_of_one_storage_in_this_order_are_packed():
    both = torch.zeros(48, 16, device=DEVICE)
    assert packed(both[:24], both[24:]).data_ptr() == both.data_ptr()
    assert packed(both[:24], both[24:]).shape == both.shape
    assert packed(both[24:], both[:24]) is None
    assert packed(both[:16], both[24:40]) is None
    assert packed(both[:24], both[24:].clone()) is None
    assert packed(both[:24, :8], both[24:, :8]) is None
    assert packed(both[:0], both[:0]) is None
    if DEVICE == "cpu":  # addresses that follow each other, in storages that end
        edge = torch.frombuffer(
            memory := bytearray(both.nbytes), dtype=torch.float32, count=24 * 16
        )
        behind = torch.frombuffer(memory, dtype=torch.float32, offset=both.nbytes // 2)
        assert edge.data_ptr() + edge.nbytes == behind.data_ptr()
        assert packed(edge.view(24, 16), behind.view(24, 16)) is None


@pytest.mark.gpu
@torch.no_grad()
def test_a_cuda_graph_reads_the_packed_weights():
    mlp, twin, _ = converted()
    x = integers(16, 16)
    mlp(x)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = mlp(x)
    for ours, theirs in zip(mlp.parameters(), twin.parameters(), strict=True):
        theirs.copy_(ours.neg_())
    graph.replay()
    assert torch.equal(out, twin(x))


@pytest.mark.gpu
def test_a_model_on_the_cpu_is_left():
    mlp = LlamaMLP()
    report = tritemm.convert(mlp)
    assert report.changed == () and type(mlp.gate_proj) is nn.Linear
    assert "move the model to cuda first" in report.left[0].note


def operands():
    weights = STEEP * integers(24, 16), integers(24, 16)
    return integers(3, 16), *weights, "swiglu", False, None


def meaning(x, gate, up, *_):
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def test_the_operator_is_a_good_citizen():
    op = torch.ops.tritemm.gated.default
    args = operands()
    torch.library.opcheck(op, args, test_utils=["test_schema", "test_faketensor"])
    assert torch.equal(op(*args), meaning(*args))
    leaves = [t.clone().requires_grad_() for t in args[:3]]
    got = torch.autograd.grad(op(*leaves, *args[3:]).sum(), leaves)
    want = torch.autograd.grad(meaning(*leaves).sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    x, gate, up, *rest = args
    batch = torch.stack([x, x + 1])
    got = torch.func.vmap(lambda x: op(x, gate, up, *rest))(batch)
    assert torch.equal(got, meaning(batch, gate, up))
    got = torch.func.jvp(lambda x: op(x, gate, up, *rest), (x,), (x,))[1]
    assert torch.equal(got, torch.func.jvp(lambda x: meaning(x, gate, up), (x,), (x,))[1])
    with FlopCounterMode(display=False) as counter:
        op(*args)
    assert counter.get_total_flops() == 2 * 3 * 16 * 48


@torch.no_grad()
def test_functional_call_and_transforms_see_their_own_weights():
    mlp, twin, _ = converted()
    x = integers(3, 16)
    others = {name: 2 * p.detach() for name, p in mlp.named_parameters()}
    got = torch.func.functional_call(mlp, others, (x,))
    assert torch.equal(got, torch.func.functional_call(twin, others, (x,)))
    batch = torch.stack([x, 2 * x])
    assert torch.equal(torch.func.vmap(mlp)(batch), twin(batch))
