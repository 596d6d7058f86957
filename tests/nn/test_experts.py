"""Mixtures of experts: `tritemm.moe`, `tritemm.nn.Experts`, and transformers' models by them."""

import copy
import functools
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import tritemm
from tests.nn.models import DEVICE, integers

E, H, I = 4, 12, 8  # noqa: E741 experts, and what is hidden and between


def loop(
    hidden, gate_up, down, index, weight, *, gate=torch.relu, gate_up_bias=None, down_bias=None
):
    """What `tritemm.moe` means, in fp64: token by token, expert by expert."""
    tensors = hidden, gate_up, down, weight, gate_up_bias, down_bias
    hidden, gate_up, down, weight, first, second = (t if t is None else t.double() for t in tensors)
    out = []
    for x, chosen, factors in zip(hidden.flatten(0, -2), index.tolist(), weight, strict=True):
        results = [x.new_zeros(down.shape[1])]
        for e, factor in zip(chosen, factors, strict=True):
            if 0 <= e < len(down):
                pair = F.linear(x, gate_up[e], None if first is None else first[e])
                left, right = pair.chunk(2)
                y = F.linear(gate(left) * right, down[e], None if second is None else second[e])
                results.append(factor * y)
        out.append(torch.stack(results).sum(0))
    return torch.stack(out).view(hidden.shape)


def case(tokens, index, dtype=torch.float32, biases=False):
    """Small integers, whose sums are exact, and which expert is whose."""
    index = torch.tensor(index, device=DEVICE).view(tokens, -1)
    shapes = [(tokens, H), (E, 2 * I, H), (E, H, I), tuple(index.shape)]
    shapes += [(E, 2 * I), (E, H)] if biases else []
    drawn = [integers(*shape).to(dtype).requires_grad_() for shape in shapes]
    named = dict(zip(("gate_up_bias", "down_bias"), drawn[4:], strict=False))
    return [*drawn[:3], index, drawn[3]], named


CASES = {
    "some without tokens": (5, [0, 3, 3, 0, 0, 1, 1, 3, 3, 1]),
    "no expert": (4, [0, E, -1, 3, E, -7, 2**31, 2]),
    "one token": (1, [2, 0, 1]),
    "one expert each": (6, [1, 0, 1, 3, 2, 1]),
    "twice the same": (3, [1, 1, 2, 2, 0, 0]),
    "all of one": (5, [2, 2, 2, 2, 2]),
}


@pytest.mark.parametrize(("tokens", "index"), CASES.values(), ids=CASES)
def test_moe_and_its_gradients_are_those_of_a_loop(tokens, index):
    dtype = torch.bfloat16 if tokens > 4 else torch.float32
    args, biases = case(tokens, index, dtype, biases=True)
    inputs = [*args[:3], args[4], *biases.values()]
    got, want = tritemm.moe(*args, activation="relu", **biases), loop(*args, **biases)
    grad = integers(*got.shape)
    found = [torch.autograd.grad(y, inputs, grad.to(y.dtype)) for y in (got, want)]
    assert got.dtype == dtype
    for ours, theirs in zip((got, *found[0]), (want, *found[1]), strict=True):
        assert torch.equal(ours, theirs.to(dtype))


def test_weights_of_no_expert_are_not_read():
    args, _ = case(*CASES["no expert"])
    index, weight = args[3], args[4]
    none = (index < 0) | (index >= E)
    args[4] = weight.detach().masked_fill(none, torch.nan).requires_grad_()
    got = tritemm.moe(*args, activation="relu")
    assert torch.equal(got.double(), loop(*args))
    grad = torch.autograd.grad(got.sum(), args[4])[0]
    assert grad[none].count_nonzero() == 0 and grad[~none].count_nonzero()


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int8])
def test_shapes_types_and_strides(kind):
    """Leading dimensions, weights stored the other way round, weights of another type."""
    (hidden, gate_up, down, index, weight), _ = case(6, [0, 3, 1, 1, 2, 0, 3, 1, 2, 2, 0, 1])
    want = tritemm.moe(hidden, gate_up, down, index, weight, activation="relu")
    turned = [w.mT.contiguous().mT for w in (gate_up, down)]
    for shape in ((6,), (2, 3)):
        chosen = [t.view(*shape, 2) for t in (index.to(kind), weight.double())]
        got = tritemm.moe(hidden.view(*shape, H), *turned, *chosen, activation="relu")
        assert torch.equal(got, want.view(*shape, H))
    empty = tritemm.moe(hidden[:0], gate_up, down, index[:0], weight[:0])
    nobody = tritemm.moe(hidden, gate_up, down, index[:, :0], weight[:, :0])
    assert empty.shape == (0, H) and nobody.shape == (6, H) and nobody.count_nonzero() == 0


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_activations(activation, interleaved):
    """As good as torch in the same type: fused, followed by torch, and as a function."""
    functional = {"silu": F.silu, "gelu": F.gelu}
    gate = functional.get(activation, lambda x: F.gelu(x, approximate="tanh"))
    (hidden, gate_up, down, index, weight), _ = case(4, [0, 3, 1, 1, 2, 0, 3, 1])
    stored = gate_up.view(E, 2, I, H).transpose(1, 2).reshape(gate_up.shape)
    want = loop(hidden, gate_up, down, index, weight, gate=gate)
    bound = 16 * torch.finfo(torch.float32).eps * want.abs().max() * I
    options = {"activation": activation, "interleaved": interleaved}
    args = hidden, stored if interleaved else gate_up, down, index, weight
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert (tritemm.moe(*args, **options) - want).abs().max() <= bound
    given = tritemm.moe(
        hidden, gate_up, down, index, weight,
        activation=lambda x: gate(x[:, :I]) * x[:, I:],
    )  # fmt: skip
    assert (given - want).abs().max() <= bound


ERRORS = {
    "size": ({"hidden": torch.ones(3, H + 1)}, RuntimeError, "K is 13 in hidden and 12 in gate_up"),
    "no gate": ({"gate_up": torch.ones(E, I, H)}, RuntimeError, "twice as many rows as down has"),
    "experts": ({"down": torch.ones(E + 1, H, I)}, RuntimeError, "the same number of experts"),
    "2D": ({"down": torch.ones(H, I)}, RuntimeError, "experts, H, I"),
    "type": ({"down": torch.ones(E, H, I).double()}, RuntimeError, "hidden and down to have the"),
    "int8": ({n: torch.ones(s).char() for n, s in {"hidden": (3, H), "gate_up": (E, 2 * I, H),
             "down": (E, H, I)}.items()}, NotImplementedError, "not implemented for torch.int8"),
    "index": ({"topk_index": torch.ones(3, 2)}, TypeError, "topk_index is torch.float32"),
    "weight": ({"topk_weight": torch.ones(3, 2).int()}, TypeError, "and topk_weight torch.int32"),
    "k": ({"topk_weight": torch.ones(3, 3)}, RuntimeError, "a row of k for each of the 3 tokens"),
    "tokens": ({"hidden": torch.ones(4, H)}, RuntimeError, "each of the 4 tokens of hidden"),
    "complex": ({"topk_index": torch.ones(3, 2).cfloat()}, TypeError, "topk_index is torch.compl"),
    "lead": ({"hidden": torch.ones(3, 1, H), "topk_index": torch.zeros(1, 3, 2).long(),
              "topk_weight": torch.ones(1, 3, 2)}, RuntimeError, r"\[3, k\] or \[3, 1, k\]"),
    "bias": ({"down_bias": torch.ones(E, H + 1)}, RuntimeError, r"down_bias has shape \[4, 13\]"),
    "whole": ({"gate_up_bias": torch.ones(E, 2 * I).int()}, RuntimeError, "gate_up_bias is t"),
    "list": ({"topk_index": [0]}, TypeError, "topk_index must be Tensor, not list"),
    "word": ({"activation": "swish"}, ValueError, "one of relu, gelu, gelu_tanh, silu, or a func"),
    "flag": ({"interleaved": "no"}, TypeError, "interleaved must be True or False, not 'no'"),
    "rows": ({"activation": lambda x: x[:1, :I]}, RuntimeError, r"returned shape \[1, 8\] for a"),
    "more": ({"activation": lambda x: x[:, :I].repeat(2, 1)}, RuntimeError, r"return \[6, 8\]"),
    "half": ({"activation": torch.relu}, RuntimeError, r"returned shape \[6, 16\]"),
    "double": ({"activation": lambda x: x[:, :I].double()}, RuntimeError, " torch.float64 on"),
    "none": ({"activation": lambda x: None}, RuntimeError, "activation returned NoneType"),
    "pairs": ({"activation": torch.relu, "interleaved": True}, ValueError, "a function pairs"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "words"), ERRORS.values(), ids=ERRORS)
def test_what_moe_refuses(change, kind, words):
    shapes = {"hidden": (3, H), "gate_up": (E, 2 * I, H), "down": (E, H, I), "topk_weight": (3, 2)}
    given = {name: torch.ones(shape, device=DEVICE) for name, shape in shapes.items()}
    given["topk_index"] = torch.zeros(3, 2, dtype=torch.long, device=DEVICE)
    given |= {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in change.items()}
    with pytest.raises(kind, match=words):
        tritemm.moe(**given)


def test_moe_is_differentiable_twice_and_forwards():
    index = torch.tensor([[1, E], [3, 1]], device=DEVICE)
    shapes = (2, H), (E, 2 * I, H), (E, H, I), (2, 2)
    inputs, tangents = (
        [torch.randn(s, dtype=torch.float64, device=DEVICE, requires_grad=True) for s in shapes]
        for _ in range(2)
    )
    found = []
    for function in (tritemm.moe, functools.partial(loop, gate=F.silu)):

        def of(*tensors, function=function):
            return function(*tensors[:3], index, tensors[3])

        first = torch.autograd.grad(of(*inputs).sum(), inputs, create_graph=True)
        along = sum((x * y).sum() for x, y in zip(first, tangents, strict=True))
        second = torch.autograd.grad(along, inputs)
        forward = torch.func.jvp(of, tuple(inputs), tuple(tangents))
        found.append([*first, *second, *forward])
    torch.testing.assert_close(*found)


def steps(function, args, leaves):
    """A result, and its gradients."""
    y = function(*args)
    return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]


def test_same_bits_eager_compiled_and_exported():
    args, _ = case(5, [0, 3, 1, 1, 2, 0, 3, 4, 2, 2], torch.bfloat16)
    with torch.no_grad():
        for t in (*args[:3], args[4]):
            t.normal_()
    leaves = [*args[:3], args[4]]
    want = steps(tritemm.moe, args, leaves)
    compiled = torch.compile(tritemm.moe, fullgraph=True, backend="aot_eager")
    for function in (tritemm.moe, compiled):
        found = steps(function, args, leaves)
        assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))
    layer = tritemm.nn.Experts(E, H, I, device=DEVICE, dtype=torch.bfloat16)
    args = [args[0].detach(), args[3], args[4].detach()]
    tokens = torch.export.Dim("tokens", min=2)
    program = torch.export.export(layer, tuple(args), dynamic_shapes=[{0: tokens}] * 3)
    more = [torch.cat([t, t.flip(0)]) for t in args]
    assert torch.equal(program.module()(*more), layer(*more))


def test_the_host_reads_nothing():
    """Where there is no data, there is nothing to read; sizes of all that is made are known."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        args, biases = case(5, list(range(10)), biases=True)
        args = [t.detach().requires_grad_(t.is_floating_point()) for t in args]
        y = tritemm.moe(*args, interleaved=True, **biases)
        grads = torch.autograd.grad(y.sum(), [*args[:3], args[4], *biases.values()])
    assert y.shape == (5, H) and grads[1].shape == (E, 2 * I, H)


def test_under_autocast():
    args, _ = case(5, CASES["some without tokens"][1])
    with torch.autocast(DEVICE, torch.bfloat16):
        got = tritemm.moe(*args, activation="relu")
    assert got.dtype == torch.float32 and torch.equal(got.double(), loop(*args))


def test_experts_are_a_module():
    layer = tritemm.nn.Experts(E, H, I, bias=True, interleaved=True, device=DEVICE)
    shapes = {name: tuple(t.shape) for name, t in layer.state_dict().items()}
    assert shapes == {
        "gate_up_proj": (E, 2 * I, H), "gate_up_proj_bias": (E, 2 * I),
        "down_proj": (E, H, I), "down_proj_bias": (E, H),
    }  # fmt: skip
    for name, terms in (("gate_up_proj", H), ("down_proj", I)):
        largest = layer.state_dict()[name].abs().max()
        assert 0.8 / terms**0.5 < largest <= 1 / terms**0.5
    hidden, index = torch.randn(3, H, device=DEVICE), torch.tensor([[0], [2], [2]], device=DEVICE)
    weight = torch.rand(3, 1, device=DEVICE)
    want = tritemm.moe(
        hidden, layer.gate_up_proj, layer.down_proj, index, weight, interleaved=True,
        gate_up_bias=layer.gate_up_proj_bias, down_bias=layer.down_proj_bias,
    )  # fmt: skip
    assert torch.equal(copy.deepcopy(layer)(hidden, index, weight), want)
    assert repr(layer) == "Experts(4, 12, 8, activation='silu')"
    assert tritemm.nn.Experts(E, H, I).down_proj_bias is None


# transformers

_SMALL = {
    "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "intermediate_size": 24,
    "num_experts_per_tok": 2,
}  # fmt: skip
_MORE = {
    "MixtralConfig": {"num_local_experts": 4, "hidden_act": "gelu"},
    "Qwen3MoeConfig": {"num_experts": 6, "moe_intermediate_size": 12, "head_dim": 8},
    "GptOssConfig": {
        "num_local_experts": 4, "head_dim": 8, "swiglu_limit": 0.5, "rope_parameters": None,
        "layer_types": ["full_attention"],
    },
    "DeepseekV3Config": {
        "n_routed_experts": 8, "moe_intermediate_size": 12, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 0, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4, "v_head_dim": 8,
    },
    "NemotronHConfig": {
        "layers_block_type": ["moe", "attention"], "num_hidden_layers": None, "head_dim": 8,
        "n_routed_experts": 4, "moe_intermediate_size": 12, "n_group": 1, "topk_group": 1,
        "moe_shared_expert_intermediate_size": 8, "mlp_hidden_act": "relu2",
    },
}  # fmt: skip


def tiny(name, **more):
    """A model of transformers by the name of its config, with random weights."""
    transformers = pytest.importorskip("transformers")
    options = {**_SMALL, **_MORE[name], **more}
    kept = {key: value for key, value in options.items() if value is not None}
    config = getattr(transformers, name)(**kept)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.to(DEVICE)


def outcome(model, ids):
    """Logits of the ids, and the gradients of their loss."""
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    grads = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": out.logits.detach().double(), **grads}


@pytest.mark.parametrize("name", _MORE)
def test_models_of_transformers(name):
    """Against fp64, no element is much further off than the worst of torch's own in fp32."""
    model = tiny(name)
    ids = torch.randint(32, (1, 4), device=DEVICE)
    model.set_experts_implementation("eager")
    torchs, want = outcome(model, ids), outcome(copy.deepcopy(model).double(), ids)
    report = tritemm.convert(model, skip=["*proj", "*head"])
    assert model.config._experts_implementation == "tritemm"
    assert {e.note for e in report.changed if e.kind.endswith("Experts")} == {"by tritemm.moe"}
    got = outcome(model, ids)
    assert report.fell_back == {} and got.keys() == want.keys()
    for key, exact in want.items():
        allowed = 4 * (torchs[key] - exact).abs().max() + 4 * 2**-24 * exact.abs().max()
        assert (got[key] - exact).abs().max() <= allowed, key


def test_converted_and_restored():
    model = tiny("Qwen3MoeConfig", num_hidden_layers=2)
    before = model.config._experts_implementation
    names = {name: vars(m).keys() for name, m in model.named_modules()}
    report = tritemm.convert(model, skip="model.layers.1.mlp")
    assert "named in skip" in str(report) and model.config._experts_implementation == before
    report = tritemm.convert(model, batch_invariant=True)
    shapes = [e.shape for e in report.changed if e.note == "by tritemm.moe"]
    assert shapes == [(6, 24, 16)] * 2 and "Qwen3MoeExperts" in str(report)
    experts = model.model.layers[0].mlp.experts
    assert experts._tritemm_options.batch_invariant
    report = tritemm.convert(model, batch_invariant=False)
    assert {e.note for e in report.changed} == {"batch_invariant=False"}
    twin = copy.deepcopy(model)
    report = tritemm.nn.restore(model)
    assert [e.note for e in report.changed if e.kind == "Qwen3MoeExperts"] == ["as it was"] * 2
    assert model.config._experts_implementation == before
    assert {name: vars(m).keys() for name, m in model.named_modules()} == names
    assert twin.config._experts_implementation == "tritemm"
    twin.set_experts_implementation("batched_mm")  # by its owner, which restore lets stand
    tritemm.nn.restore(twin)
    assert twin.config._experts_implementation == "batched_mm"


@pytest.mark.parametrize(("parts", "last"), [("01", 1), ("0 1", 0), ("0 01", 1), ("1", 0)])
def test_experts_of_one_config_know_what_it_named_whichever_were_given(parts, last):
    """Whichever layers `convert` is given, one after another, any of them is restored."""
    model = tiny("Qwen3MoeConfig", num_hidden_layers=2)
    model.set_experts_implementation("batched_mm")
    layers = model.model.layers
    for some in parts.split():
        tritemm.convert(layers if len(some) == 2 else layers[int(some)])
        assert model.config._experts_implementation == "tritemm"
        given = [layers[int(place)].mlp.experts for place in some]
        assert {vars(experts)["_tritemm_before"] for experts in given} == {"batched_mm"}
    report = tritemm.nn.restore(layers[last])
    assert "as it was" in {entry.note for entry in report.changed}
    assert model.config._experts_implementation == "batched_mm"


def test_experts_whose_forward_was_replaced_are_left(monkeypatch):
    model = tiny("Qwen3MoeConfig")
    experts = model.model.layers[0].mlp.experts
    own = type(experts).forward
    experts.forward = functools.partial(own, experts)
    [entry] = tritemm.convert(experts).left
    assert entry.note == "their forward was replaced in the instance"
    del experts.forward
    monkeypatch.setattr(type(experts), "forward", lambda self, *args: own(self, *args))
    [entry] = tritemm.convert(experts).left
    assert entry.note == "the forward of Qwen3MoeExperts was replaced for all layers"
    assert model.config._experts_implementation != "tritemm"


def test_a_converted_model_is_unpickled_by_another_process(tmp_path):
    model = tiny("Qwen3MoeConfig").eval()
    tritemm.convert(model)
    ids = torch.randint(32, (1, 4), device=DEVICE)
    torch.save((model, ids, model(ids).logits), tmp_path / "model.pt")
    code = (
        "import sys, torch; model, ids, want = torch.load(sys.argv[1], weights_only=False); "
        "sys.exit(not torch.equal(model(ids).logits, want))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_weights_of_another_type_than_the_tokens():
    """As transformers' own does it: multiplied in the weights' type, returned in the tokens'."""
    model = tiny("Qwen3MoeConfig")
    tritemm.convert(model)
    experts = model.model.layers[0].mlp.experts
    hidden = torch.randn(5, 16, device=DEVICE).bfloat16()
    weight, index = torch.rand(5, 6, device=DEVICE).topk(2)
    found = experts(hidden, index, weight)
    want = experts(hidden.float(), index, weight)
    assert found.dtype == torch.bfloat16 and torch.equal(found, want.bfloat16())


def test_named_by_its_owner_and_compiled():
    model = tiny("GptOssConfig").eval()
    ids = torch.randint(32, (1, 4), device=DEVICE)
    tritemm.nn.register_experts()
    model.set_experts_implementation("tritemm")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits)
    experts = model.model.layers[0].mlp.experts
    report = tritemm.convert(experts)
    assert report.changed == ()
    experts.has_post_expert_norm, experts.post_expert_norm = True, torch.nn.Identity()
    assert "a norm follows each expert" in tritemm.convert(model).left[0].note
    with torch.no_grad():
        model(ids)
    assert report.fell_back == {"a norm follows each expert": 1}


CHANGES = {
    "hook": lambda act: act.register_forward_hook(lambda module, args, out: 2 * out),
    "pre-hook": lambda act: act.register_forward_pre_hook(lambda module, args: (2 * args[0],)),
    "instance": lambda act: setattr(act, "forward", lambda x: 3 * x),
    "global": lambda act: torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: 2 * out if module is act else out
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_activation_is_obeyed(change):
    model = tiny("Qwen3MoeConfig").eval()
    tritemm.convert(model)
    ids = torch.randint(32, (1, 4), device=DEVICE)
    undo = change(model.model.layers[0].mlp.experts.act_fn)
    try:
        with torch.no_grad():
            got = model(ids).logits
            model.set_experts_implementation("eager")
            torch.testing.assert_close(got, model(ids).logits)
    finally:
        if undo is not None:
            undo.remove()


@pytest.mark.parametrize("before", ["eager", "batched_mm", None])
def test_what_tritemm_does_not_take_is_left_to_what_was_named_before(before, monkeypatch):
    transformers = pytest.importorskip("transformers")
    known = transformers.integrations.moe.ALL_EXPERTS_FUNCTIONS
    model = tiny("MixtralConfig", intermediate_size=12).eval()
    if before:
        model.set_experts_implementation(before)
        report = tritemm.convert(model)
    else:
        tritemm.nn.register_experts()
        model.set_experts_implementation("tritemm")
        report = tritemm.convert(torch.nn.Identity())
    ran = []
    if before == "batched_mm":
        theirs = known[before]
        monkeypatch.setitem(known._local_mapping, before, lambda *a: ran.append(1) or theirs(*a))
    monkeypatch.setattr("tritemm.nn.registered.why_torch", lambda *args: "it is not taken")
    ids = torch.randint(32, (1, 4), device=DEVICE)
    with torch.no_grad():
        got = model.double()(ids).logits
    model.set_experts_implementation("eager")
    with torch.no_grad():
        torch.testing.assert_close(got, model(ids).logits)
    assert report.fell_back == {"it is not taken": 1} and len(ran) == (before == "batched_mm")


def test_parametrized_experts():
    model = tiny("Qwen3MoeConfig")
    before = model.config._experts_implementation
    tritemm.convert(model)
    experts = model.model.layers[0].mlp.experts
    parametrize = torch.nn.utils.parametrize
    parametrize.register_parametrization(experts, "gate_up_proj", torch.nn.Identity())
    report = tritemm.nn.restore(model)
    assert "as it was" in {e.note for e in report.changed if e.name.endswith("experts")}
    assert model.config._experts_implementation == before
    left = {e.name: e.note for e in tritemm.convert(model).left}
    assert left["model.layers.0.mlp.experts"] == "their weights are not parameters of the module"


def test_experts_refuse_to_be_scripted():
    with pytest.raises(RuntimeError, match="script can't compile tritemm's Experts"):
        torch.jit.script(tritemm.nn.Experts(E, H, I, device=DEVICE))


@pytest.mark.gpu
def test_a_graph_is_replayed_with_other_experts():
    args, _ = case(8, [0, 1] * 8, torch.bfloat16)
    args = [t.detach() for t in args]
    tritemm.moe(*args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tritemm.moe(*args)
    for index in ([2, 3] * 8, [E, 0] * 8, [3, -1, 1, 1] * 4):
        args[3].copy_(torch.tensor(index).view(8, 2))
        graph.replay()
        assert torch.equal(out, tritemm.moe(*args))


@pytest.mark.gpu
def test_generate_with_a_static_cache():
    model = tiny("Qwen3MoeConfig").eval()
    ids = torch.randint(32, (2, 6), device=DEVICE)
    options = {"max_new_tokens": 8, "do_sample": False, "min_new_tokens": 8, "pad_token_id": 0}
    want = model.generate(ids, **options)
    tritemm.convert(model)
    assert torch.equal(model.generate(ids, cache_implementation="static", **options), want)
