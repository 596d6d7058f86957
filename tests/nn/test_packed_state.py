"""Packed weights in state dicts, files, shared memory, and when a set comes apart: each its own."""

import copy
import gc
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from torch import nn
from torch.nn.utils import parametrize, prune

import tritemm
from tests.nn.models import (
    DEVICE,
    Attention,
    LlamaMLP,
    integers,
    pair,
    same,
    through_a_file,
    together,
    with_integers,
)
from tritemm.nn import packing


def places(tensors):
    """What those who write checkpoints know a tie by: where storages begin, and their length."""
    storages = [t.untyped_storage() for t in tensors]
    return [(storage.data_ptr(), storage.nbytes()) for storage in storages]


@pytest.mark.parametrize("way", [lambda m: m, copy.deepcopy, lambda m: m.to(torch.float64)])
def test_in_a_state_dict_each_weight_has_a_storage_of_its_own(way):
    model, twin = pair(Attention(True))
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


def test_a_state_dict_of_packed_weights_by_other_names():
    model, twin = pair(Attention(True))
    for layer in (*model.projections, *twin.projections):
        prune.identity(layer, "weight")
    state = model.state_dict()
    assert "q_proj.weight_orig" in state and same(state, twin.state_dict())
    assert places(state.values()) == [(t.data_ptr(), t.nbytes) for t in state.values()]


def test_a_state_dict_counts_what_is_written_and_keeps_ties():
    model, _ = pair(LlamaMLP())
    state, again = model.state_dict(), model.state_dict()
    assert places(state.values()) == places(again.values())
    result = model(integers(2, 16).requires_grad_()).sum()
    state["gate_proj.weight"].lerp_(torch.zeros_like(state["gate_proj.weight"]), 0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    blocks = nn.ModuleList([model] * 3)
    loaded = through_a_file(blocks.state_dict())
    assert len({place for place, _ in places(loaded.values())}) == len(state)
    with torch.inference_mode():
        assert not model.state_dict()["up_proj.weight"].is_inference()


def test_weights_on_the_cpu_are_not_packed(monkeypatch):
    """It gains nothing there, and what shares memory with other processes moves weights."""
    monkeypatch.setattr(packing, "DEVICES", {"cuda", "meta"})
    model, twin = with_integers(Attention(True)), with_integers(Attention(True))
    twin.load_state_dict(model.state_dict())
    report = tritemm.convert(model)
    if DEVICE == "cpu":
        assert report.left[0].note.endswith("weights are on the cpu, where packing gains nothing")
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
    """A model that was packed when it was saved, and an owner's buffer: by torch's views."""
    model, _ = pair(Attention(True))
    torch.save(model, file := io.BytesIO(), _use_new_zipfile_serialization=False)
    file.seek(0)
    monkeypatch.setattr(packing, "DEVICES", {"cuda", "meta"})
    loaded = torch.load(file, map_location=device, weights_only=False)
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
    model, _ = pair(Attention(True))
    model.table = nn.Embedding(8, 16, device=DEVICE)
    model.table.weight = model.k_proj.weight
    report = tritemm.convert(model)
    assert report.left[0].note.endswith("another module has one of its weights")
    state = model.state_dict()
    assert not together(*model.projections)
    assert len(set(places(state.values()))) == len(state) - 1


def test_a_state_dict_is_loaded_by_another_model_that_takes_its_tensors():
    model, twin = pair(Attention(True))
    twin.load_state_dict(model.state_dict(), assign=True)
    assert same(dict(twin.named_parameters()), dict(model.named_parameters()))
    loaded = through_a_file(model.state_dict())
    assert same(loaded, model.state_dict()) and len(set(places(loaded.values()))) == len(loaded)


@pytest.mark.skipif(DEVICE != "cpu", reason="memory on the CPU")
@torch.no_grad()
def test_memory_shared_with_other_processes():
    """Isn't moved by convert; what is packed may be shared, and what a process is given is."""
    model = with_integers(Attention()).share_memory()
    assert "shared with other processes" in tritemm.convert(model).left[0].note
    model, twin = pair(Attention(True))
    model.share_memory()
    other = pickle.loads(ForkingPickler.dumps(model))
    assert same(other.state_dict(), twin.state_dict()) and together(*other.projections)
    for each in (model, other):
        tritemm.convert(each)
        tritemm.nn.restore(each)
    other.k_proj.weight.fill_(5)
    assert (model.k_proj.weight == 5).all() and torch.equal(model.q_proj.weight, twin.q_proj.weight)


@pytest.mark.parametrize("zipped", [True, False])
@torch.no_grad()
def test_weights_tied_to_packed_ones_stay_so(zipped):
    """By restore, and in files."""
    model, _ = pair(Attention(True))
    model.other = nn.Parameter(model.q_proj.weight.data)
    loaded = through_a_file(model, _use_new_zipfile_serialization=zipped)
    for each in (model, loaded):
        tritemm.nn.restore(each)
        each.q_proj.weight.fill_(7)
        assert (each.other == 7).all()


def test_safetensors_takes_a_module_whose_weights_lie_together(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, twin = pair(Attention(True))
    file = str(tmp_path / "it")
    safetensors.save_file(model.state_dict(), file)
    with_integers(model).load_state_dict(safetensors.load_file(file, DEVICE))
    assert same(model.state_dict(), twin.state_dict())
    safetensors.save_model(with_integers(model), file)
    safetensors.load_model(twin, file)
    assert same(model.state_dict(), twin.state_dict())
    safetensors.load_model(with_integers(model), file)
    assert same(model.state_dict(), twin.state_dict()) and together(*model.projections)


def pruned(model):
    for name in ("weight", "bias"):
        prune.identity(model.k_proj, name)


def parametrized(model):
    parametrize.register_parametrization(model.k_proj, "weight", nn.Identity())


@pytest.mark.wide
@pytest.mark.parametrize("function", [tritemm.convert, tritemm.nn.restore])
@pytest.mark.parametrize(
    "part",
    [
        lambda model: delattr(model, "k_proj"),
        lambda model: setattr(model, "q_proj", nn.Identity()),
        pruned,
        parametrized,
        lambda model: through_a_file(pruned(model) or model),
        lambda model: through_a_file(nn.ModuleList([model.q_proj, model.k_proj])),
    ],
    ids=["gone", "replaced", "pruned", "parametrized", "pruned copy", "part of a copy"],
)
def test_what_is_left_of_a_set_gets_storages_of_its_own(part, function):
    model, _ = pair(Attention(True))
    model = part(model) or model
    gc.collect()
    want = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = integers(3, 16)
    results = [layer(x) for layer in model.children()]
    function(model)
    storages = [parameter.untyped_storage() for parameter in model.parameters()]
    assert [s.nbytes() for s in storages] == [p.nbytes for p in model.parameters()]
    assert same(model.state_dict(), want)
    assert same([layer(x) for layer in model.children()], results)


@pytest.mark.parametrize("name", ["weight", "bias"])
@torch.no_grad()
def test_what_is_tied_to_a_weight_of_a_copy_stays_so(name):
    """Also if the copy had a weight, or a bias, that packing found at no time."""
    model, _ = pair(Attention(True))
    parametrize.register_parametrization(model.k_proj, name, nn.Identity())
    model = copy.deepcopy(model)
    parametrize.remove_parametrizations(model.k_proj, name)
    model.other = nn.Parameter(model.v_proj.weight.data)
    model.k_proj.float()
    assert "shares a weight's memory" in tritemm.convert(model).left[0].note
    model.other.fill_(7)
    assert (model.v_proj.weight == 7).all()


@pytest.mark.parametrize("function", [tritemm.convert, tritemm.nn.restore])
@torch.no_grad()
def test_packed_weights_that_are_tied_to_each_other_stay_so(function):
    model, _ = pair(Attention(True))
    model.k_proj.weight.data = model.v_proj.weight.data
    function(model)
    model.k_proj.weight.fill_(7)
    assert (model.v_proj.weight == 7).all()
