"""Checks of layers and models on DTensor, by each process of a group: see `distributed_ranks`."""

import copy
import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import tritemm
from tests.nn.models import LlamaMLP, integers, with_integers
from tests.torch.distributed_operators import R, on, place, same, whole

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class MLP(nn.Module):
    """Two layers, in whole numbers."""

    def __init__(self, linear):
        super().__init__()
        self.up, self.down = linear(8, 16), linear(16, 8)
        for parameter in self.parameters():
            parameter.data = 4 * whole(*parameter.shape, bound=1)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def models(mesh, sequence=False):
    """Three that compute the same: torch's on one device, torch's sharded, and ours sharded.

    `sequence`: what comes in and goes out is sharded along its first dimension, else whole.
    """
    outside = Shard(0) if sequence else R
    plan = {
        "up": ColwiseParallel(input_layouts=outside),
        "down": RowwiseParallel(output_layouts=outside),
    }
    alone = MLP(nn.Linear)
    theirs, ours = copy.deepcopy(alone), MLP(tritemm.Linear)
    ours.load_state_dict(alone.state_dict())
    sharded = [parallelize_module(on(mesh, model), mesh, plan) for model in (theirs, ours)]
    return on(mesh, alone), *sharded


def trained(model, x):
    """Output, gradient of `x` and counts of collectives, of one step."""
    x = x.detach().requires_grad_()
    with CommDebugMode() as communication:
        y = model(x)
        y.backward(torch.ones_like(y))
    counts = {str(k): v for k, v in communication.get_comm_counts().items() if v}
    return y.detach(), x.grad, counts


def same_gradients(sharded, alone):
    """And so are the parameters after a step of an optimizer, where they were."""
    before = {name: parameter.placements for name, parameter in sharded.named_parameters()}
    for model in (sharded, alone):
        torch.optim.SGD(model.parameters(), lr=0.25).step()
    parameters = dict(alone.named_parameters())
    for name, parameter in sharded.named_parameters():
        same(parameter.grad, parameters[name].grad.cpu())
        same(parameter.detach(), parameters[name].detach().cpu(), *before[name])
        if parameter.placements != (R,):
            assert parameter.grad.placements == parameter.placements


def check_parallelize_module(mesh):
    """Forwards and backwards as on one device, with as much communication as nn.Linear has."""
    for sequence, x in [(False, whole(4, 8)), (False, whole(2, 3, 8)), (True, whole(4, 2, 8))]:
        alone, theirs, ours = models(mesh, sequence)
        expected = trained(alone, on(mesh, x))[:2]
        outside = Shard(0) if sequence else R
        x = place(x, mesh, outside).to_local()
        *_, usual = trained(theirs, x)
        *found, communication = trained(ours, x)
        assert communication == usual and usual
        for piece, value in zip(found, expected, strict=True):
            assert torch.equal(piece, place(value, mesh, outside).to_local())
        same_gradients(ours, alone)


def check_compiled(mesh):
    """With one graph for the whole model, forwards and backwards."""
    alone, _, ours = models(mesh)
    x = on(mesh, whole(4, 8))
    expected = trained(alone, x)[0]
    result = torch.compile(ours, backend="aot_eager", fullgraph=True)(x)
    result.backward(torch.ones_like(result))
    assert torch.equal(result, expected)
    same_gradients(ours, alone)


def check_fsdp_of_tensor_parallel(mesh):
    """On a mesh of two dimensions: batches along one, weights along both."""
    both = init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("data", "tensor"))
    alone, _, ours = models(both["tensor"])
    fully_shard(ours, mesh=both["data"])
    x = on(mesh, whole(4, 8))
    expected = trained(alone, x)[0]
    index = both.get_local_rank("data")
    result = trained(ours, x.chunk(2)[index])[0]
    assert torch.equal(result, expected.chunk(2)[index])
    parameters = dict(alone.named_parameters())
    for name, parameter in ours.named_parameters():
        # FSDP takes the mean over its dimension.
        assert torch.equal(2 * parameter.grad.full_tensor(), parameters[name].grad), name


def check_converted_models(mesh):
    """Under DDP and FSDP2, each device with a half of the batch, beside one with all of it."""
    model = with_integers(nn.Sequential(nn.Linear(16, 16), LlamaMLP()))
    rank, batch = mesh.get_rank(), integers(2, 4, 16)
    twin = copy.deepcopy(model)
    twin(batch).sum().backward()
    want = {name: p.grad for name, p in twin.named_parameters()}

    def sharded(model):
        for layer in model:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    late = sharded(copy.deepcopy(model))
    report = tritemm.convert(late)
    assert isinstance(late[1].gate_proj, tritemm.Linear), str(report)
    tritemm.convert(model)
    ddp = DistributedDataParallel(copy.deepcopy(model))
    fsdp = sharded(model)
    for each in (fsdp, late):
        with torch.no_grad():
            assert torch.equal(each.eval()(batch[rank]), twin(batch[rank]))
    for each in (ddp, fsdp):
        each(batch[rank]).sum().mul(mesh.size()).backward()  # both take the mean over the devices
        got = {name.removeprefix("module."): p.grad for name, p in each.named_parameters()}
        assert got.keys() == want.keys()
        for name, grad in got.items():
            whole = grad.full_tensor() if isinstance(grad, DTensor) else grad
            assert torch.equal(whole, want[name]), (type(each), name)


def check_tensor_parallel_trains(mesh):
    assert_example_trains("tensor_parallel", mesh, mesh)


def check_expert_parallel_trains(mesh):
    assert_example_trains("expert_parallel", mesh.device_type, mesh)


def assert_example_trains(name, given, mesh):
    """The same losses as on one device, which go down."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    losses = module.train(given)
    assert len(losses) == module.STEPS and losses[-1] < losses[0]
    exact = mesh.device_type == "cpu"  # bfloat16 elsewhere
    for sharded, alone in losses:
        assert sharded == pytest.approx(alone, rel=1e-5 if exact else 2e-2)
