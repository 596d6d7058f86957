"""Layers of one input after `convert`: one product in compiled code, their own elsewhere."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from tritemm.nn.projections import Projections

import tritemm
from tritemm.nn.packing import packed

from .nn_models import DEVICE, LlamaMLP, integers, with_integers

NAMES = "q_proj", "k_proj", "v_proj"


class Attention(nn.Module):
    """As transformers has it, with sums in place of the softmax: exact for integers."""

    def __init__(self, bias=False):
        super().__init__()
        self.q_proj = nn.Linear(16, 16, bias=bias)
        self.k_proj = nn.Linear(16, 8, bias=bias)
        self.v_proj = nn.Linear(16, 8, bias=bias)
        self.o_proj = nn.Linear(16, 16, bias=bias)

    def forward(self, hidden_states, others=None):
        others = hidden_states if others is None else others
        heads = [*hidden_states.shape[:-1], -1, 8]
        q = self.q_proj(hidden_states).view(heads).transpose(1, 2)
        k = self.k_proj(others).view(-1, 1, others.shape[1], 8)
        v = self.v_proj(others).view(-1).view(-1, 1, others.shape[1], 8)
        mixed = (q @ k.mT) @ v
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Graphs:
    """A backend that runs what it is given, and keeps the names of what is called there."""

    def __init__(self):
        self.targets = []

    def __call__(self, graph, example):
        calls = [n for n in graph.graph.nodes if n.op == "call_function"]
        self.targets.append([str(n.target) for n in calls])
        return graph.forward

    @property
    def merged(self):
        """Calls of the operator, of each graph."""
        return [sum("tritemm.merged" in t for t in targets) for targets in self.targets]


def converted(kind=Attention, **options):
    model = with_integers(kind(**options)).eval()
    twin = copy.deepcopy(model)
    report = tritemm.convert(model)
    return model, twin, report


def compiled(model, backend=None):
    torch._dynamo.reset()
    backend = backend or Graphs()
    return torch.compile(model, backend=backend, fullgraph=True, dynamic=False), backend


def together(model):
    return packed(*(getattr(model, name).weight for name in NAMES)) is not None


def gradients(model, result):
    model.zero_grad()
    result.sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_one_product_in_compiled_code(bias, grad, backend):
    model, twin, report = converted(bias=bias)
    assert report.changed[-1].note == "q_proj, k_proj and v_proj packed" and together(model)
    run, backend = compiled(model, backend)
    x = integers(2, 3, 16)
    with torch.set_grad_enabled(grad):
        got, want = run(x), twin(x)
    assert torch.equal(got, want)
    if isinstance(backend, Graphs):
        assert backend.merged == [not grad]
    if grad:
        ours, theirs = gradients(model, got), gradients(twin, want)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert model._tritemm_merging.layers == () and model._tritemm_merging.made is None


def test_products_of_their_own_elsewhere():
    model, twin, _ = converted()
    x = integers(2, 3, 16)
    with FlopCounterMode(display=False) as counter:
        assert torch.equal(model(x), twin(x))
    assert not [name for name in counter.flop_counts["Global"] if "merged" in str(name)]
    program = torch.export.export(model, (x,), strict=False)
    assert "merged" not in str(program.graph)


@torch.no_grad()
def test_inductor_calls_it_without_a_detour():
    torch._dynamo.reset()
    model, twin, _ = converted(bias=True)
    x = integers(2, 3, 16)
    got, sources = run_and_get_code(torch.compile(model, fullgraph=True), x)
    assert torch.equal(got, twin(x))
    assert "".join(sources).count("torch.ops.tritemm.merged_into(") == 1


def test_inductor_merges_gate_and_up_that_it_differentiates():
    torch._dynamo.reset()
    model, twin, _ = converted(LlamaMLP)
    x = integers(3, 16).requires_grad_()
    compile_it = torch.compile(model, fullgraph=True)
    grads, sources = run_and_get_code(lambda: gradients(model, compile_it(x)))
    code = "".join(sources)
    assert code.count("torch.ops.tritemm.merged_into(") == 1
    assert "merged_parts.default(" not in code and "aten.cat" not in code
    mine = x.grad.clone()
    x.grad = None
    theirs = gradients(twin, twin(x))
    assert all(torch.equal(a, b) for a, b in zip(grads, theirs, strict=True))
    assert torch.equal(mine, x.grad)


@torch.no_grad()
def test_other_inputs_are_seen_and_the_layers_are_left_alone_then():
    model, twin, _ = converted()
    x, y = integers(2, 3, 16), integers(2, 5, 16)
    run, backend = compiled(model)
    for _ in range(3):
        assert torch.equal(run(x, y), twin(x, y))
    assert model._tritemm_merging.useless and backend.merged[-1] == 0
    assert torch.equal(run(x), twin(x))


class Changing(Attention):
    def forward(self, x, more=True):
        first = self.q_proj(x)
        if more:
            x.add_(1)
        return torch.cat([first, self.k_proj(x), self.v_proj(x)], -1)


class Masking(Attention):
    def forward(self, x):
        first = self.q_proj(x)
        x[:, 0] = 0
        return torch.cat([first, self.k_proj(x), self.v_proj(x)], -1)


class Adding(Attention):
    def forward(self, x):
        first = self.q_proj(x)
        x += 1
        return torch.cat([first, self.k_proj(x), self.v_proj(x)], -1)


class Counting(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen = self.seen + 1
        return super().forward(x)


class Without(Attention):
    def forward(self):
        return self.q_proj.weight.sum()


class Across(Attention):
    def forward(self, x, others):
        return super().forward(x, 2 * x if others is None else others)


class Unpacking(Attention):
    def forward(self, x, tables):
        cos, sin = tables
        return super().forward(x * cos + sin)


class Partial(Attention):
    def forward(self, x):
        return self.o_proj(self.q_proj(x))


@pytest.mark.parametrize(
    ("kind", "words", "more"),
    [
        (Changing, "may write to what it reads: add_", ()),
        (Masking, "may write to what it reads: line ", ()),
        (Adding, "may write to what it reads: line ", ()),
        (Counting, "may write to what it reads: line ", ()),
        (Across, "given different inputs", (None,)),
        (Unpacking, "can't be followed: cannot unpack", ((1, 0),)),
        (Partial, "doesn't call all", ()),
    ],
)
@torch.no_grad()
def test_a_forward_of_another_form_is_left_with_a_reason(kind, words, more):
    model, twin, report = converted(kind)
    assert "not merged: " in report.left[0].note and words in report.left[0].note
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    assert torch.equal(run(x.clone(), *more), twin(x.clone(), *more)) and backend.merged == [0]


def test_to_be_asked_changes_nothing():
    class Lazy(Attention):
        def __init__(self):
            super().__init__()
            self.seen = []
            self.register_buffer("scale", torch.ones(16))

        def forward(self, x):
            self.seen.append(torch.rand(()))
            return super().forward(x * self.scale)

    model = with_integers(Lazy())
    state = torch.random.get_rng_state()
    assert tritemm.convert(model).changed[-1].note == "q_proj, k_proj and v_proj packed"
    assert model.seen == [] and torch.equal(torch.random.get_rng_state(), state)
    assert model.scale.device.type == DEVICE
    assert "can't be followed" in tritemm.convert(with_integers(Without())).left[0].note


def apart(model, how):
    """Circumstances in which one product would miss something."""
    k = model.k_proj
    if how == "hook of the input":
        k.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    if how == "another layer":
        model.k_proj = nn.Sequential(k, nn.ReLU())
    if how == "forward":
        k.forward = lambda x: 2 * F.linear(x, k.weight)
    if how == "frozen":
        k.weight.requires_grad_(False)
    if how == "pruned":
        prune.random_unstructured(k, "weight", 0.0)
    if how == "another type":
        model.to(torch.float16)
        k.to(torch.float32)
        k.register_forward_pre_hook(lambda module, args: (args[0].float(),))
        k.register_forward_hook(lambda module, args, out: out.half())
    return model


@pytest.mark.parametrize(
    "how", ["hook of the input", "another layer", "forward", "frozen", "pruned", "another type"]
)
@torch.no_grad()
def test_products_of_their_own_where_one_would_miss_something(how):
    model, twin, _ = converted()
    model, twin = apart(model, how), apart(twin, how)
    x = integers(2, 3, 16, dtype=twin.q_proj.weight.dtype)
    run, backend = compiled(model)
    for _ in range(2):
        got, want = run(x), twin(x)
        assert torch.equal(got, want)
    assert backend.merged[-1] == 0


@torch.no_grad()
def test_what_a_hook_makes_of_a_weight_is_what_is_multiplied():
    model, twin, _ = converted()
    for each in (model, twin):
        for name in NAMES:
            prune.random_unstructured(getattr(each, name), "weight", 0.0)
    run, _ = compiled(model)
    x = integers(2, 3, 16)
    for _ in range(2):
        assert torch.equal(run(x), twin(x))
        for each in (model, twin):
            each.k_proj.weight_orig.mul_(2)


def test_a_gradient_that_some_layers_have():
    class Partly(Attention):
        def forward(self, x):
            with torch.no_grad():
                first = self.q_proj(x)
            return torch.cat([first, self.k_proj(x), self.v_proj(x)], -1)

    model, twin, _ = converted(Partly)
    run, _ = compiled(model)
    x = integers(2, 3, 16)
    ours, theirs = gradients(model, run(x)), gradients(twin, twin(x))
    assert len(ours) == 2 and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", [Attention, LlamaMLP])
def test_checkpointing_in_compiled_code(kind):
    model, twin, _ = converted(kind)
    x = integers(2, 3, 16)

    def step(module, x):
        return checkpoint(module, x, use_reentrant=False)

    torch._dynamo.reset()
    run = torch.compile(step, backend="aot_eager", fullgraph=True)
    ours, theirs = gradients(model, run(model, x)), gradients(twin, twin(x))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_attributes_of_the_users_own_are_left_alone():
    class Named(Attention):
        def __init__(self):
            super().__init__()
            self.merging, self.projections, self.precision, self.activation = 2, 3, 4, 5

    model, twin, _ = converted(Named)
    other = type(model)().to(DEVICE).double()
    assert other(integers(2, 3, 16, dtype=torch.float64)).shape == (2, 3, 16)
    assert (model.merging, model.projections, model.precision, model.activation) == (2, 3, 4, 5)
    tritemm.nn.restore(model)
    assert vars(model).keys() == vars(twin).keys()


def test_a_class_that_lists_its_subclasses():
    listed = []

    class Base(Attention):
        def __init_subclass__(cls):
            listed.append(cls)

    class One(Base):
        pass

    model, _, _ = converted(One)
    assert listed == [One]

    class Two(type(model)):
        pass

    assert listed == [One, Two]


def test_unusual_modules():
    class Short(Attention):
        def _apply(self, fn):
            return super()._apply(fn)

    model, twin, _ = converted(Short)
    x = integers(2, 3, 16)
    assert torch.equal(model.double()(x.double()), twin.double()(x.double())) and together(model)
    vars(model.q_proj)["owner"] = model
    assert torch.equal(copy.deepcopy(model.q_proj).weight, model.q_proj.weight)


@torch.no_grad()
def test_autocast():
    model, twin, _ = converted()
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = run(x), twin(x)
    assert got.dtype == want.dtype == torch.bfloat16 and backend.merged == [0]
    torch.testing.assert_close(got, want)


@torch.no_grad()
def test_rows_that_must_not_depend_on_others_are_products_of_their_own():
    model = with_integers(Attention()).eval()
    tritemm.convert(model, batch_invariant=True)
    x = integers(2, 3, 16)
    run, backend = compiled(model)
    assert torch.equal(run(x), model(x)) and backend.merged == [0]


@torch.no_grad()
def test_weights_that_came_apart():
    model, twin, _ = converted(bias=True)
    run, _ = compiled(model, "aot_eager")
    x = integers(2, 3, 16)
    assert torch.equal(run(x), twin(x))
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    assert not together(model) and torch.equal(run(x), twin(x))
    report = tritemm.convert(model)
    assert [e.note for e in report.changed] == ["q_proj, k_proj and v_proj packed again"]
    assert together(model) and torch.equal(run(x), twin(x))


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))


def through_a_file(model):
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle, through_a_file])
@torch.no_grad()
def test_copies(way):
    model, twin, _ = converted()
    other = way(model)
    assert isinstance(other, Projections) and isinstance(other, Attention) and together(other)
    assert other._tritemm_merging is other.k_proj._tritemm_merging is not model._tritemm_merging
    x = integers(2, 3, 16)
    run, backend = compiled(other)
    assert torch.equal(run(x), twin(x)) and backend.merged == [1]


def test_restore():
    model, twin, _ = converted(bias=True)
    tritemm.nn.restore(model)
    assert type(model) is Attention and vars(model).keys() == vars(twin).keys()
    assert all(
        vars(a).keys() == vars(b).keys()
        for a, b in zip(model.children(), twin.children(), strict=True)
    )
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.untyped_storage().nbytes() == ours.nbytes
    assert model.state_dict().keys() == twin.state_dict().keys()


class Mixed(Attention):
    """Whisper's keys have no bias."""

    def __init__(self):
        super().__init__(bias=True)
        self.k_proj.bias = None


class Shared(Attention):
    def __init__(self):
        super().__init__()
        self.v_proj.weight = self.k_proj.weight


@pytest.mark.parametrize(
    ("kind", "words"), [(Mixed, "some of the layers have a bias"), (Shared, "share one weight")]
)
@torch.no_grad()
def test_what_is_left_is_left_with_a_reason(kind, words):
    model, twin, report = converted(kind)
    assert words in report.left[0].note and type(model) is kind
    x = integers(2, 3, 16)
    assert torch.equal(compiled(model)[0](x), twin(x))
    model = with_integers(Attention())
    assert "q_proj" not in str(tritemm.convert(model, fuse=False).changed[-1].note)
    assert type(model) is Attention


@pytest.mark.parametrize("training", [True, False])
def test_gate_and_up_are_one_product_in_compiled_code_with_a_gradient(training):
    model, twin, _ = converted(LlamaMLP)
    model.train(training)
    x = integers(3, 16)
    run, backend = compiled(model)
    got, want = run(x), twin(x)
    assert torch.equal(got, want) and backend.merged == [1]
    ours, theirs = gradients(model, got), gradients(twin, want)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def operands(dtype=torch.float32, three=True):
    x = integers(2, 3, 16, dtype=dtype)
    weights = [integers(n, 16, dtype=dtype) for n in (16, 8, 8)]
    biases = [integers(n, dtype=dtype) for n in (16, 8, 8)]
    if not three:
        weights[2] = biases[2] = None
    return x, *weights, *biases, None


def meaning(x, *given):
    weights, biases = given[:3], given[3:6]
    each = [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True) if w is not None]
    return torch.cat(each, -1)


@pytest.mark.parametrize("three", [True, False])
@pytest.mark.parametrize("name", ["merged", "merged_parts"])
def test_the_operators_are_good_citizens(name, three):
    op = getattr(torch.ops.tritemm, name).default
    args = operands(three=three)
    torch.library.opcheck(op, args, test_utils=["test_schema", "test_faketensor"])

    def made(*args):
        got = op(*args)
        return got if name == "merged" else torch.cat(got, -1)

    assert torch.equal(made(*args), meaning(*args))
    leaves = [t if t is None else t.clone().requires_grad_() for t in args[:-1]]
    real = [t for t in leaves if t is not None]
    got = torch.autograd.grad(made(*leaves, None).square().sum(), real)
    want = torch.autograd.grad(meaning(*leaves).square().sum(), real)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    x, *rest = args
    batch = torch.stack([x, x + 1])
    assert torch.equal(torch.func.vmap(lambda x: made(x, *rest))(batch), meaning(batch, *rest))
    got = torch.func.jvp(lambda x: made(x, *rest), (x,), (x,))[1]
    assert torch.equal(got, meaning(x, *rest) - meaning(0 * x, *rest))
    with torch.inference_mode():
        assert torch.equal(made(*args), meaning(*args))
    if name == "merged":
        with FlopCounterMode(display=False) as counter:
            op(*args)
        assert counter.get_total_flops() == 2 * 6 * 16 * (32 if three else 24)


def test_derivatives_of_all_orders():
    shapes = (2, 2), (2, 2), (1, 2), (1, 2)
    x, *weights = (integers(*s, dtype=torch.float64).requires_grad_() for s in shapes)
    op = torch.ops.tritemm.merged_parts.default
    function = lambda x, *weights: tuple(op(x, *weights, None, None, None, None))  # noqa: E731
    assert torch.autograd.gradcheck(function, (x, *weights))
    assert torch.autograd.gradgradcheck(function, (x, *weights))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu_as_large_as_a_layer(mode, dtype):
    class Layer(Attention):
        def __init__(self):
            nn.Module.__init__(self)
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(256, n, dtype=dtype) for n in (256, 64, 64)
            )

        def forward(self, x):
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    model, twin, _ = converted(Layer)
    torch._dynamo.reset()
    run = torch.compile(model, mode=mode, fullgraph=True)
    for rows in (1, 16, 300):
        x = integers(2, rows, 256, dtype=dtype)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.no_grad():
                got = [t.clone() for t in run(x)]
            assert all(torch.equal(a, b) for a, b in zip(got, twin(x), strict=True))
        torch.compiler.cudagraph_mark_step_begin()
        total = sum((t.float() * 2).sum() for t in run(x))
        want = sum((t.float() * 2).sum() for t in twin(x))
        ours = torch.autograd.grad(total, list(model.parameters()))
        theirs = torch.autograd.grad(want, list(twin.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
