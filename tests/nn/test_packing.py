"""Weights of layers that may be given one input: one storage for them, and nothing else moved."""

import copy
import io
import pickle
from multiprocessing.reduction import ForkingPickler

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
    same,
    together,
    with_integers,
)
from tritemm.nn import packing
from tritemm.nn.packing import packed

QKV = "q_proj, k_proj and v_proj packed"


def converted(model=None, **options):
    model = with_integers(model or Attention(bias=True))
    twin = copy.deepcopy(model)
    return model, twin, tritemm.convert(model, **options)


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
    model, _, report = converted(nn.ModuleDict(layers))
    assert report.changed[-1].note == f"{', '.join(names[:-1])} and {names[-1]} packed"
    assert together(*(model[name] for name in names)) and report.left == ()


@torch.no_grad()
def test_values_stay_and_optimizers_and_loading_work_in_place():
    model, twin, _ = converted()
    assert same(model.state_dict(), twin.state_dict())
    x = integers(2, 3, 16)
    for each in (model, twin):
        optimizer = torch.optim.SGD(each.parameters(), lr=1.0)
        with torch.enable_grad():
            gradients(each, each(x))
        optimizer.step()
    assert together(*model.projections) and same(model.state_dict(), twin.state_dict())
    source = with_integers(Attention(bias=True))
    model.load_state_dict(source.state_dict())
    assert together(*model.projections) and torch.equal(model(x), source(x))


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))


def through_a_file(model, **options):
    torch.save(model, file := io.BytesIO(), **options)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def to_another_device(model):
    """To a storage that torch could resize, unlike what it reads from a file for the CPU."""
    torch.save(model, file := io.BytesIO())
    return torch.load(
        io.BytesIO(file.getvalue()),
        weights_only=False,
        map_location=lambda storage, place: storage.clone() if DEVICE == "cpu" else storage.cuda(),
    )


#: How torch.load makes a storage that torch resizes; one that it reads from a file, it doesn't.
RESIZABLE = {"device", "old file"} if DEVICE == "cpu" else {"device", "old file", "file"}


@pytest.mark.parametrize(
    "move",
    [
        lambda m: m.double(),
        lambda m: m.to(torch.bfloat16),
        lambda m: m.to("meta").to_empty(device=DEVICE),
        copy.deepcopy,
        through_pickle,
        through_a_file,
        to_another_device,
        lambda m: through_a_file(m, _use_new_zipfile_serialization=False),
        lambda m: through_pickle(copy.deepcopy(m)),
    ],
    ids=[
        *("double", "bfloat16", "meta", "deepcopy", "pickle", "file", "device", "old file"),
        "pickled copy",
    ],
)
def test_what_moves_the_weights_through_torch_packs_them_again(move, request):
    model, twin, _ = converted()
    moved = move(model)
    assert together(*moved.projections)
    assert moved.k_proj.weight is dict(moved.named_parameters())["k_proj.weight"]
    before = {tensor.data_ptr() for tensor in model.parameters()}
    assert moved is model or not before & {tensor.data_ptr() for tensor in moved.parameters()}
    assert tritemm.convert(moved) == tritemm.nn.Report()
    for layer, other in zip(moved.projections, twin.projections, strict=True):
        x = integers(3, 16, dtype=layer.weight.dtype)
        assert "meta" in request.node.name or torch.equal(layer(x), other(x.float()).to(x.dtype))
    for parameter in moved.k_proj.parameters():
        if request.node.callspec.id in RESIZABLE:
            continue
        with pytest.raises(RuntimeError, match="not resizable"):
            parameter.untyped_storage().resize_(0)
    tritemm.nn.restore(moved)
    assert not together(*moved.projections)


@pytest.mark.parametrize("way", [copy.deepcopy, through_pickle, through_a_file])
def test_a_copy_of_one_layer_alone(way):
    model, twin, _ = converted()
    alone = way(model.k_proj)
    x = integers(3, 16)
    assert torch.equal(alone(x), twin.k_proj(x)) and together(*model.projections)
    with torch.no_grad():
        alone.weight.zero_()
    assert same(model.state_dict(), twin.state_dict())
    model.q_proj = alone  # no sibling of the others, whatever it is a copy of
    model.double()
    assert torch.equal(model.k_proj(x.double()), twin.k_proj(x).double())


def test_meta_models_are_converted_and_filled_later():
    with torch.device("meta"):
        model = Attention(bias=True)
    assert tritemm.convert(model).changed[-1].note == QKV
    model.to_empty(device=DEVICE)
    assert together(*model.projections)
    source = with_integers(Attention(bias=True))
    model.load_state_dict(source.state_dict())
    x = integers(2, 3, 16)
    assert together(*model.projections) and torch.equal(model(x), source(x))


def new_data(model):
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def assign(model):
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def new_parameter(model):
    """The other two still share the storage that was made for the three."""
    model.k_proj.weight = nn.Parameter(model.k_proj.weight.detach().clone())


@pytest.mark.parametrize("part", [new_data, assign, new_parameter])
def test_what_came_apart_is_right_and_is_packed_again(part):
    model, twin, _ = converted()
    part(model)
    x = integers(2, 3, 16)
    assert not together(*model.projections) and torch.equal(model(x), twin(x))
    report = tritemm.convert(model)
    assert [entry.note for entry in report.changed] == [f"{QKV} again"] and report.left == ()
    assert together(*model.projections) and same(model.state_dict(), twin.state_dict())
    part(model)
    tritemm.nn.restore(model)
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in model.parameters())


def test_fuse_and_skip_leave_weights_where_they_are():
    for options in ({"fuse": False}, {"skip": "k_proj"}):
        model = with_integers(Attention())
        before = [p.data_ptr() for p in model.parameters()]
        report = tritemm.convert(model, **options)
        assert [p.data_ptr() for p in model.parameters()] == before
        assert not any("packed" in entry.note for entry in (*report.changed, *report.left))


def test_restore_gives_each_its_own_storage():
    model, twin, _ = converted()
    tritemm.nn.restore(model)
    assert [vars(a).keys() for a in model.modules()] == [vars(a).keys() for a in twin.modules()]
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs) and ours.untyped_storage().nbytes() == ours.nbytes
        ours.untyped_storage().resize_(ours.nbytes)


def test_inference_mode():
    """Converted in it, a model trains later; one that was made in it stays as it is."""
    model = with_integers(Attention(bias=True))
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


def tie(part, other):
    """Two parameters of one memory, which no Parameter tells."""
    part.data = other.data


def slices(model):
    whole = integers(48, 16)
    for layer, part in zip(model.projections, whole.split(16), strict=True):
        layer.weight = nn.Parameter(part[: layer.out_features])


def from_numpy(model):
    array = numpy.ones((8, 16), dtype=numpy.float32)
    model.k_proj.weight = nn.Parameter(torch.from_numpy(array))
    model.array = array


def from_dlpack(model):
    model.k_proj.weight = nn.Parameter(torch.from_dlpack(integers(8, 16)))


def expanded(model):
    model.k_proj.weight = nn.Parameter(integers(1, 16).expand(8, 16))


def transposed(model):
    model.k_proj.weight = nn.Parameter(integers(16, 8).mT)


def kept(model):
    model.view = model.v_proj.weight.detach()[:2]


def one_weight(model):
    model.v_proj.weight = model.k_proj.weight


def all_biased(model):
    for layer in model.projections:
        layer.bias = nn.Parameter(integers(layer.out_features))
    return model


def numbers(model, which=slice(None)):
    for layer in all_biased(model).projections[which]:
        layer.bias = nn.Parameter(integers())


def elsewhere(model):
    model.table = nn.Embedding(8, 16, device=DEVICE)
    model.table.weight = model.k_proj.weight


def without_bias(model):
    """As Whisper's keys."""
    all_biased(model).k_proj.bias = None


def another_type(model):
    model.k_proj.to(torch.float16)


def another_width(model):
    model.k_proj = nn.Linear(12, 8, bias=False, device=DEVICE)


def odd(model):
    model.q_proj.weight = nn.Parameter(integers(3, 5))
    model.k_proj.weight = nn.Parameter(integers(8, 5))
    model.v_proj.weight = nn.Parameter(integers(8, 5))


LEFT = {
    "tied to another layer": (
        lambda m: tie(m.k_proj.weight, m.o_proj.weight[:8]),
        "another tensor shares a weight's memory",
    ),
    "tied within": (
        lambda m: tie(m.k_proj.weight, m.v_proj.weight),
        "another tensor shares a weight's memory",
    ),
    "slices": (slices, "another tensor shares a weight's memory"),
    "a view is kept": (kept, "another tensor shares a weight's memory"),
    "numpy": (from_numpy, "a weight lies in memory that is not torch's"),
    "dlpack": (from_dlpack, "a weight lies in memory that is not torch's"),
    "expanded": (expanded, "a weight is not contiguous"),
    "transposed": (transposed, "a weight is not contiguous"),
    "one weight": (one_weight, "two of the layers share one weight"),
    "some biases": (without_bias, "some of them have a bias, others have none"),
    "types": (another_type, "types are torch.float32, torch.float16 and torch.float32"),
    "shapes": (another_width, "shapes are (16,), (12,) and (16,)"),
    "odd": (odd, "at no multiple of 16"),
    "parametrized": (
        lambda m: prune.identity(m.k_proj, "weight"),
        "a weight is not a Parameter of its layer",
    ),
    "biases are numbers": (numbers, "its biases are numbers"),
    "one bias is a number": (
        lambda m: numbers(m, slice(1, 2)),
        "shapes are (), a number and ()",
    ),
    "in another module": (elsewhere, "another module has one of its weights"),
    "parametrized, with biases": (
        lambda m: prune.identity(all_biased(m).k_proj, "weight"),
        "a weight is not a Parameter of its layer",
    ),
}


@pytest.mark.parametrize(("change", "reason"), LEFT.values(), ids=LEFT)
@torch.no_grad()
def test_what_is_not_packed_is_not_moved_and_has_a_reason(change, reason):
    if change is from_numpy and DEVICE == "cuda":
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


def places(tensors):
    """What those who write checkpoints know a tie by: where storages begin, and their length."""
    storages = [t.untyped_storage() for t in tensors]
    return [(storage.data_ptr(), storage.nbytes()) for storage in storages]


@pytest.mark.parametrize("way", [lambda m: m, copy.deepcopy, lambda m: m.to(torch.float64)])
def test_in_a_state_dict_each_weight_has_a_storage_of_its_own(way):
    model, twin, _ = converted()
    model = way(model)
    state = model.state_dict()
    assert list(state) == list(twin.state_dict()) and together(*model.projections)
    assert places(state.values()) == [(t.data_ptr(), t.nbytes) for t in state.values()]
    assert len(set(places(state.values()))) == len(state)
    for name, tensor in state.items():  # and it is the weight's memory
        tensor.add_(1)
        assert torch.equal(tensor.detach(), model.get_parameter(name).detach())
    kept = model.state_dict(keep_vars=True)
    assert all(kept[name] is parameter for name, parameter in model.named_parameters())
    wanted = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    del model, kept
    filled = [torch.full((4096,), 0.5, device=DEVICE) for _ in range(50)]  # where freed memory was
    assert same(state, wanted) and filled


def test_a_state_dict_counts_what_is_written_and_keeps_ties():
    model, _, _ = converted(LlamaMLP())
    state, again = model.state_dict(), model.state_dict()
    assert places(state.values()) == places(again.values())
    result = model(integers(2, 16).requires_grad_()).sum()
    state["gate_proj.weight"].lerp_(torch.zeros_like(state["gate_proj.weight"]), 0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    blocks = nn.ModuleList([model] * 3)
    buffer = io.BytesIO()
    torch.save(blocks.state_dict(), buffer)
    buffer.seek(0)
    assert len({place for place, _ in places(torch.load(buffer).values())}) == len(state)
    with torch.inference_mode():
        assert not model.state_dict()["up_proj.weight"].is_inference()


def test_weights_on_the_cpu_are_not_packed(monkeypatch):
    """It gains nothing there, and what shares memory with other processes moves weights."""
    monkeypatch.setattr(packing, "DEVICES", {"cuda", "meta"})
    model, twin, report = converted()
    if DEVICE == "cpu":
        assert report.left[0].note.endswith("weights are on the cpu, where that gains nothing")
    model.cpu()
    assert not together(*model.projections)
    state, theirs = model.state_dict(), twin.cpu().state_dict()
    for tensors in (state, theirs):
        for tensor in tensors.values():
            tensor.share_memory_()
    assert all(parameter.is_shared() for parameter in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("device", [DEVICE, "cpu"])
def test_a_state_dict_of_memory_that_may_move_is_torchs(device, monkeypatch):
    """Of a model that was packed when it was saved, and of an owner's buffer: by torch's views."""
    model, _, _ = converted()
    buffer = io.BytesIO()
    torch.save(model, buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    monkeypatch.setattr(packing, "DEVICES", {"cuda", "meta"})
    loaded = torch.load(buffer, map_location=device, weights_only=False)
    whole = integers(32 * 16).to(device)
    owners = with_integers(Attention()).to(device)
    tritemm.convert(owners)
    for layer, part in zip(owners.projections, whole.view(32, 16).split([16, 8, 8]), strict=True):
        layer.weight.data = part
    for each in (loaded, owners):
        state = each.state_dict()
        shared = {name: t for name, t in each.named_parameters() if "q_proj" in name}
        for name, parameter in shared.items():
            assert places([state[name]]) == places([parameter])
        each.share_memory().float().to(device)
        assert same(state, dict(each.named_parameters()))
    whole.zero_()
    assert all((layer.weight == 0).all() for layer in owners.projections)
    whole.untyped_storage().resize_(0)
    assert owners.to(device).state_dict()["q_proj.weight"].untyped_storage().nbytes() == 0


def test_a_weight_that_is_tied_later_is_packed_no_more():
    model, _, _ = converted()
    model.table = nn.Embedding(8, 16, device=DEVICE)
    model.table.weight = model.k_proj.weight
    report = tritemm.convert(model)
    assert report.left[0].note.endswith("another module has one of its weights")
    state = model.state_dict()
    assert not together(*model.projections)
    assert len(set(places(state.values()))) == len(state) - 1


def test_a_state_dict_is_loaded_by_another_model_that_takes_its_tensors():
    model, twin, _ = converted()
    twin.load_state_dict(model.state_dict(), assign=True)
    assert same(dict(twin.named_parameters()), dict(model.named_parameters()))
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert same(loaded, model.state_dict()) and len(set(places(loaded.values()))) == len(loaded)


def test_layers_that_a_copy_by_hand_has_replaced_are_packed_again():
    model, _, _ = converted()
    model.k_proj = copy.copy(model.k_proj)
    model.k_proj.weight = nn.Parameter(integers(8, 16))
    assert not together(*model.projections)
    report = tritemm.convert(model)
    assert [entry.note for entry in report.changed] == [f"{QKV} again"] and not report.left
    assert together(*model.projections)


def test_layers_whose_parametrization_a_copy_had_are_packed_again():
    model, _, _ = converted(Attention())
    nn.utils.parametrizations.weight_norm(model.q_proj)
    model = copy.deepcopy(model)
    nn.utils.parametrize.remove_parametrizations(model.q_proj, "weight")
    report = tritemm.convert(model)
    assert report.changed[-1].note == f"{QKV} again" and together(*model.projections)


@torch.no_grad()
def test_what_is_skipped_is_not_packed_by_a_second_call_either():
    model, _, _ = converted(fuse=False)
    before = [p.data_ptr() for p in model.parameters()]
    report = tritemm.convert(model, skip=["q_proj", "k_proj", "v_proj"])
    assert not report.changed and [p.data_ptr() for p in model.parameters()] == before


def test_a_model_is_copied_and_converted_inside_of_transforms():
    """Where tensors may have no memory that packing could look at."""
    model, twin, _ = converted(Attention())
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


@torch.no_grad()
def test_weights_tied_through_data_stay_tied():
    model = with_integers(Attention())
    tie(model.k_proj.weight, model.v_proj.weight)
    tritemm.convert(model)
    model.k_proj.weight.fill_(3)
    assert (model.v_proj.weight == 3).all()


@pytest.mark.skipif(DEVICE != "cpu", reason="memory on the CPU")
@torch.no_grad()
def test_memory_shared_with_other_processes():
    """Isn't moved by convert; what is packed may be shared, and what a process is given is."""
    model = with_integers(Attention()).share_memory()
    assert "shared with other processes" in tritemm.convert(model).left[0].note
    model, twin, _ = converted()
    model.share_memory()
    other = pickle.loads(ForkingPickler.dumps(model))
    assert same(other.state_dict(), twin.state_dict()) and together(*other.projections)
    for each in (model, other):
        tritemm.convert(each)
        tritemm.nn.restore(each)
    other.k_proj.weight.fill_(5)
    assert (model.k_proj.weight == 5).all() and torch.equal(model.q_proj.weight, twin.q_proj.weight)


@torch.no_grad()
def test_one_of_them_cannot_free_the_others():
    model, twin, _ = converted()
    with pytest.raises(RuntimeError, match="not resizable"):
        model.k_proj.weight.untyped_storage().resize_(0)
    assert same(model.state_dict(), twin.state_dict())


def test_layers_that_are_packed_with_others_stay_so():
    model, _, _ = converted(Attention())
    other = with_integers(Attention())
    other.k_proj = model.k_proj
    report = tritemm.convert(other)
    assert report.left[0].note.endswith("one of them is packed with others")
    assert together(*model.projections)


def one_is_restored(model):
    tritemm.nn.restore(model.q_proj)


def one_is_replaced(model):
    model.q_proj = with_integers(nn.Linear(16, 16))


def copied_one_by_one(model):
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(model, name, copy.deepcopy(getattr(model, name)))


@pytest.mark.parametrize("change", [one_is_restored, one_is_replaced, copied_one_by_one])
@torch.no_grad()
def test_a_set_that_lost_a_layer_is_packed_anew(change):
    model, _, _ = converted()
    x = integers(2, 3, 16)
    change(model)
    want = copy.deepcopy(model)
    tritemm.nn.restore(want)
    report = tritemm.convert(model)
    assert together(*model.projections) and not report.left
    assert torch.equal(model(x), want(x)) and same(model.state_dict(), want.state_dict())


@pytest.mark.parametrize("zipped", [True, False])
@torch.no_grad()
def test_weights_tied_to_packed_ones_stay_so(zipped):
    """By restore, and in files."""
    model, _, _ = converted()
    model.other = nn.Parameter(model.q_proj.weight.data)
    loaded = through_a_file(model, _use_new_zipfile_serialization=zipped)
    for each in (model, loaded):
        tritemm.nn.restore(each)
        each.q_proj.weight.fill_(7)
        assert (each.other == 7).all()


@pytest.mark.parametrize("way", [torch.save, None])
def test_a_saved_state_dict_has_the_weights_once(way, tmp_path):
    model, twin, _ = converted(LlamaMLP(64, 64))
    if way is None:
        way = pytest.importorskip("safetensors.torch").save_file
    sizes = []
    for each in (model, twin):
        way(each.state_dict(), file := tmp_path / "it")
        sizes.append(file.stat().st_size)
    assert sizes[0] < 1.1 * sizes[1]


def test_safetensors_takes_a_module_whose_weights_lie_together(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, twin, _ = converted()
    file = str(tmp_path / "it")
    safetensors.save_file(model.state_dict(), file)
    with_integers(model).load_state_dict(safetensors.load_file(file, DEVICE))
    assert same(model.state_dict(), twin.state_dict())
    safetensors.save_model(with_integers(model), file)
    safetensors.load_model(twin, file)
    assert same(model.state_dict(), twin.state_dict())
    safetensors.load_model(with_integers(model), file)
    assert same(model.state_dict(), twin.state_dict()) and together(*model.projections)


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


@pytest.mark.gpu
@torch.no_grad()
def test_a_cuda_graph_reads_the_packed_weights():
    mlp, twin, _ = converted(LlamaMLP())
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
