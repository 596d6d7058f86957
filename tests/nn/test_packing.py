"""Weights of layers that may be given one input: one storage for them, and nothing else moved."""

import copy
import gc
import pickle

import numpy
import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import prune

import tritemm
from tests.nn.models import (
    DEVICE,
    Attention,
    LlamaMLP,
    gradients,
    integers,
    pair,
    same,
    through_a_file,
    together,
    with_integers,
)
from tritemm.nn.packing import packed

QKV = "q_proj, k_proj and v_proj packed"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        ("gate_proj", "up_proj"),
        ("w1", "w3"),
        ("wi_0", "wi_1"),
        ("q_proj", "k_proj", "v_proj"),
        ("query", "key", "value"),
        ("q", "k", "v"),
        ("to_q", "to_k", "to_v"),
        ("wq", "wk", "wv"),
    ],
    ids=" ".join,
)
def test_known_siblings_are_packed(names, bias):
    rows = dict(zip(names, (8, 4, 4), strict=False))
    layers = {name: nn.Linear(8, rows[name], bias=bias) for name in reversed(names)}
    model = nn.ModuleDict(layers).to(DEVICE)
    report = tritemm.convert(model)
    assert report.changed[-1].note == f"{', '.join(names[:-1])} and {names[-1]} packed"
    assert together(*(model[name] for name in names)) and report.left == ()


@torch.no_grad()
def test_values_stay_and_optimizers_and_loading_work_in_place():
    model, twin = pair(Attention(True))
    assert same(model.state_dict(), twin.state_dict())
    x = integers(2, 3, 16)
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=1.0)
        with torch.enable_grad():
            gradients(each, each(x))
        optimizer.step()
    assert together(*model.projections) and same(model.state_dict(), twin.state_dict())
    source = with_integers(Attention(True))
    model.load_state_dict(source.state_dict())
    assert together(*model.projections) and torch.equal(model(x), source(x))


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))


def to_another_device(model):
    """To a storage that torch could resize, unlike what it reads from a file for the CPU."""
    return through_a_file(
        model, lambda storage, place: storage.clone() if DEVICE == "cpu" else storage.cuda()
    )


def made_on_meta():
    with torch.device("meta"):
        model = Attention(True)
    assert tritemm.convert(model).changed[-1].note == QKV
    return model


#: How torch.load makes a storage that torch resizes; one that it reads from a file, it doesn't.
RESIZABLE = {"device", "old file"} if DEVICE == "cpu" else {"device", "old file", "file"}


MOVES = {
    "itself": lambda m: m,
    "double": lambda m: m.double(),
    "bfloat16": lambda m: m.to(torch.bfloat16),
    "meta": lambda m: m.to("meta").to_empty(device=DEVICE),
    "made on meta": lambda m: made_on_meta().to_empty(device=DEVICE),
    "deepcopy": copy.deepcopy,
    "pickle": through_pickle,
    "file": through_a_file,
    "device": to_another_device,
    "old file": lambda m: through_a_file(m, _use_new_zipfile_serialization=False),
    "pickled copy": lambda m: through_pickle(copy.deepcopy(m)),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_the_weights_through_torch_packs_them_again(name):
    model, twin = pair(Attention(True))
    moved = MOVES[name](model)
    assert together(*moved.projections)
    assert moved.k_proj.weight is dict(moved.named_parameters())["k_proj.weight"]
    before = {tensor.data_ptr() for tensor in model.parameters()}
    assert moved is model or not before & {tensor.data_ptr() for tensor in moved.parameters()}
    assert tritemm.convert(moved) == tritemm.nn.Report()
    if "meta" in name:
        moved.load_state_dict(twin.state_dict())
        assert together(*moved.projections)
    for layer, other in zip(moved.projections, twin.projections, strict=True):
        x = integers(3, 16, dtype=layer.weight.dtype)
        assert torch.equal(layer(x), other(x.float()).to(x.dtype))
    for parameter in moved.k_proj.parameters() if name not in RESIZABLE else ():
        with pytest.raises(RuntimeError, match="not resizable"):
            parameter.untyped_storage().resize_(0)
    tritemm.nn.restore(moved)
    assert not together(*moved.projections)
    assert [vars(m).keys() for m in moved.modules()] == [vars(m).keys() for m in twin.modules()]
    for parameter in moved.parameters():
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
        if name != "file":
            parameter.untyped_storage().resize_(parameter.nbytes)


def test_the_siblings_of_one_that_is_gone_are_packed_anew():
    first, second = Attention(True).to(DEVICE), nn.Module()
    tritemm.convert(first)
    second.gate_proj, second.up_proj = first.q_proj, first.k_proj
    del first
    gc.collect()
    assert tritemm.convert(second).left == ()
    assert together(second.gate_proj, second.up_proj)


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle, through_a_file])
def test_a_copy_of_one_layer_alone(way):
    model, twin = pair(Attention(True))
    alone = way(model.k_proj)
    x = integers(3, 16)
    assert torch.equal(alone(x), twin.k_proj(x)) and together(*model.projections)
    with torch.no_grad():
        alone.weight.zero_()
    assert same(model.state_dict(), twin.state_dict())
    model.q_proj = alone  # no sibling of the others, whatever it is a copy of
    model.double()
    assert torch.equal(model.k_proj(x.double()), twin.k_proj(x).double())


def new_data(model):
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def assign(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def new_parameter(model):
    """The other two still share the storage that was made for the three."""
    model.k_proj.weight = nn.Parameter(model.k_proj.weight.detach().clone())


def copied_by_hand(model):
    model.k_proj = copy.copy(model.k_proj)
    model.k_proj.weight = nn.Parameter(integers(8, 16))


def one_is_replaced(model):
    model.q_proj = with_integers(nn.Linear(16, 16))


def copied_one_by_one(model):
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(model, name, copy.deepcopy(getattr(model, name)))


def parametrized_when_copied(model):
    nn.utils.parametrizations.weight_norm(model.q_proj)
    model = copy.deepcopy(model)
    nn.utils.parametrize.remove_parametrizations(model.q_proj, "weight")
    model.q_proj.weight.data.round_()  # sums are exact again
    return model


@pytest.mark.parametrize(
    ("part", "again"),
    [
        (new_data, True),
        (assign, True),
        (new_parameter, True),
        (copied_by_hand, True),
        (parametrized_when_copied, True),
        (lambda model: tritemm.nn.restore(model.q_proj) and None, False),
        (one_is_replaced, False),
        (copied_one_by_one, False),
    ],
)
def test_what_came_apart_is_right_and_is_packed_again(part, again):
    """`again`: none of the layers is new to the others."""
    model, _ = pair(Attention(True))
    model = part(model) or model
    want = copy.deepcopy(model)
    tritemm.nn.restore(want)
    x = integers(2, 3, 16)
    assert not together(*model.projections) and torch.equal(model(x), want(x))
    report = tritemm.convert(model)
    assert not report.left
    assert not again or [entry.note for entry in report.changed][-1] == f"{QKV} again"
    assert together(*model.projections) and torch.equal(model(x), want(x))
    assert same(model.state_dict(), want.state_dict())
    if part in (new_data, assign, new_parameter):
        part(model)
        tritemm.nn.restore(model)
        assert all(p.untyped_storage().nbytes() == p.nbytes for p in model.parameters())


def test_weights_without_elements_are_packed_once():
    model = nn.ModuleDict({name: nn.Linear(0, 8) for name in ("q", "k", "v")}).to(DEVICE)
    assert tritemm.convert(model).changed[-1].note == "q, k and v packed"
    assert tritemm.convert(model) == tritemm.nn.Report()


@pytest.mark.parametrize("options", [{"fuse": False}, {"skip": "k_proj"}])
def test_fuse_and_skip_leave_weights_where_they_are(options):
    """By the first call, and what is skipped by a second one too."""
    model = with_integers(Attention())
    before = [p.data_ptr() for p in model.parameters()]
    report = tritemm.convert(model, **options)
    assert not any("packed" in entry.note for entry in (*report.changed, *report.left))
    report = tritemm.convert(model, skip=["q_proj", "k_proj", "v_proj"])
    assert not report.changed
    assert [p.data_ptr() for p in model.parameters()] == before


def test_inference_mode():
    """Converted in it, a model trains later; one that was made in it stays as it is."""
    model = with_integers(Attention(True))
    twin = copy.deepcopy(model)
    with torch.inference_mode():
        assert tritemm.convert(model).changed[-1].note == QKV
    assert not any(p.is_inference() for p in model.parameters())
    x = integers(2, 3, 16)
    assert same(gradients(model, model(x)), gradients(twin, twin(x)))
    with torch.inference_mode():
        made = with_integers(Attention())
        report = tritemm.convert(made)
        made(x)
        tritemm.nn.restore(model.requires_grad_(False))
    assert report.left[0].note.endswith("not packed: a weight was made in inference mode")
    assert same(gradients(model.requires_grad_(), model(x)), gradients(twin, twin(x)))


def to_slices(model):
    whole = integers(48, 16)
    for layer, part in zip(model.projections, whole.split(16), strict=True):
        layer.weight = nn.Parameter(part[: layer.out_features])


def to_numpy(model):
    model.array = numpy.ones((8, 16), dtype=numpy.float32)
    set_k(model, torch.from_numpy(model.array))


def set_k(model, weight):
    model.k_proj.weight = nn.Parameter(weight)


def elsewhere(model):
    model.table = nn.Embedding(8, 16, device=DEVICE)
    model.table.weight = model.k_proj.weight


def biased(model, numbers=()):
    """Layers that have a bias each, of which some are numbers."""
    for i, layer in enumerate(model.projections):
        shape = () if i in numbers else (layer.out_features,)
        layer.bias = nn.Parameter(integers(*shape))
    return model


def anothers(model):
    other, _ = pair(Attention())
    model.k_proj, model.others = other.k_proj, [other]


def odd(model):
    for layer, rows in zip(model.projections, (3, 8, 8), strict=True):
        layer.weight = nn.Parameter(integers(rows, 5))


SHARED = "another tensor shares a weight's memory"
NOT_TORCHS = "a weight is in memory that torch doesn't own"
NO_PARAMETER = "a weight is not a Parameter of its layer"
NOT_CONTIGUOUS = "a weight is not contiguous"
LEFT = {
    "tied to another layer": (
        lambda m: setattr(m.k_proj.weight, "data", m.o_proj.weight.data[:8]),
        SHARED,
    ),
    "tied within": (lambda m: setattr(m.k_proj.weight, "data", m.v_proj.weight.data), SHARED),
    "slices": (to_slices, SHARED),
    "a view is kept": (lambda m: setattr(m, "view", m.v_proj.weight.detach()[:2]), SHARED),
    "numpy": (to_numpy, NOT_TORCHS),
    "dlpack": (lambda m: set_k(m, torch.from_dlpack(integers(8, 16))), NOT_TORCHS),
    "expanded": (lambda m: set_k(m, integers(1, 16).expand(8, 16)), NOT_CONTIGUOUS),
    "transposed": (lambda m: set_k(m, integers(16, 8).mT), NOT_CONTIGUOUS),
    "one weight": (
        lambda m: setattr(m.v_proj, "weight", m.k_proj.weight),
        "two of the layers share one weight",
    ),
    "some biases, as Whisper's keys": (
        lambda m: setattr(biased(m).k_proj, "bias", None),
        "some of them have a bias, others have none",
    ),
    "types": (
        lambda m: m.k_proj.to(torch.float16),
        "types are torch.float32, torch.float16 and torch.float32",
    ),
    "shapes": (
        lambda m: setattr(m, "k_proj", nn.Linear(12, 8, bias=False, device=DEVICE)),
        "shapes are (16,), (12,) and (16,)",
    ),
    "odd": (odd, "not a multiple of 16"),
    "parametrized": (lambda m: prune.identity(m.k_proj, "weight"), NO_PARAMETER),
    "parametrized, with biases": (
        lambda m: prune.identity(biased(m).k_proj, "weight"),
        NO_PARAMETER,
    ),
    "biases are numbers": (lambda m: biased(m, (0, 1, 2)), "its biases are scalars"),
    "one bias is a number": (lambda m: biased(m, (1,)), "shapes are (), a number and ()"),
    "in another module": (elsewhere, "another module has one of its weights"),
    "packed with others": (anothers, "one of them is packed with others"),
}


@pytest.mark.parametrize(("change", "reason"), LEFT.values(), ids=LEFT)
@torch.no_grad()
def test_what_is_not_packed_is_not_moved_and_has_a_reason(change, reason):
    if change is to_numpy and DEVICE == "cuda":
        pytest.skip("NumPy's memory is the CPU's")
    model = with_integers(Attention())
    change(model)
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    report = tritemm.convert(model)
    assert [entry.name for entry in report.left] == [""]
    assert report.left[0].note.startswith("q_proj, k_proj and v_proj not packed: ")
    assert report.left[0].note.endswith(reason)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before
    assert tritemm.convert(model).left == report.left


def test_a_model_is_copied_and_converted_inside_of_transforms():
    """Where tensors may have no memory that packing could look at."""
    model, twin = pair(Attention())
    x = integers(2, 3, 16)

    def loss(x, model, convert):
        fast = copy.deepcopy(model)
        if convert:
            report = tritemm.convert(fast)
            assert report.left[0].note.endswith(
                "a transform of torch.func or a dispatch mode is active"
            )
        return fast(x).sum()

    want = torch.func.grad(loss)(x, twin, False)
    assert torch.equal(torch.func.grad(loss)(x, model, False), want)
    assert torch.equal(torch.func.grad(loss)(x, twin, True), want)
    assert together(*model.projections) and together(*copy.deepcopy(model).projections)


@torch.no_grad()
def test_nothing_is_packed_for_a_mode_that_makes_other_tensors():
    model, twin = with_integers(Attention()), with_integers(Attention())
    twin.load_state_dict(model.state_dict())
    with FakeTensorMode(allow_non_fake_inputs=True):
        report = tritemm.convert(model)
    assert "mode is active" in report.left[0].note
    x = integers(2, 3, 16)
    assert torch.equal(model(x), twin(x))
    assert tritemm.convert(model).changed[-1].note == QKV


@torch.no_grad()
def test_weights_that_lie_together_already_are_not_moved_by_restore_either():
    model, whole = with_integers(Attention()), integers(32, 16)
    for layer, part in zip(model.projections, whole.split([16, 8, 8]), strict=True):
        layer.weight = nn.Parameter(part)
    report = tritemm.convert(model)
    assert report.changed[-1].note == QKV and together(*model.projections)
    tritemm.nn.restore(model)
    whole.fill_(3)
    assert all((layer.weight == 3).all() for layer in model.projections)


def test_only_memory_of_one_storage_in_this_order_is_packed():
    both = torch.zeros(48, 16, device=DEVICE)
    assert packed(both[:24], both[24:]).data_ptr() == both.data_ptr()
    assert packed(both[:24], both[24:]).shape == both.shape
    assert packed(both[24:], both[:24]) is None
    assert packed(both[:16], both[24:40]) is None
    assert packed(both[:24], both[24:].clone()) is None
    assert packed(both[:24, :8], both[24:, :8]) is None
    assert packed(both[:0], both[:0]) is None
    if DEVICE == "cpu":  # addresses that follow each other, in storages that end
        memory, half = bytearray(both.nbytes), both.numel() // 2
        edge = torch.frombuffer(memory, dtype=torch.float32, count=half)
        behind = torch.frombuffer(memory, dtype=torch.float32, offset=both.nbytes // 2)
        assert edge.data_ptr() + edge.nbytes == behind.data_ptr()
        assert packed(edge.view(24, 16), behind.view(24, 16)) is None
    parts = both[:24], both[24:]
    both.untyped_storage().resize_(0)  # as FSDP frees it
    assert packed(*parts) is None


@pytest.mark.gpu
@torch.no_grad()
def test_a_cuda_graph_reads_the_packed_weights():
    mlp, twin = pair(LlamaMLP())
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
