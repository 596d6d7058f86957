"""One of two processes that train a converted model under DDP and FSDP2: `test_training.py`'s.

    python -m tests.nn.ranks RANK FILE

Each rank has a half of the batch. Prints "same" where loss and gradients are torch's of all of it.
"""

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tritemm
from tests.nn.models import LlamaMLP, integers, with_integers


def gradients(model, x):
    """By name. Both wrappers take the mean over the ranks, so the sum is multiplied by them."""
    model(x).sum().mul(dist.get_world_size()).backward()
    return {name.removeprefix("module."): p.grad for name, p in model.named_parameters()}


def sharded(model, mesh):
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(rank: int, file: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)  # the same model and data on both
    model = with_integers(torch.nn.Sequential(torch.nn.Linear(16, 16), LlamaMLP()))
    batch = integers(2, 4, 16)
    twin = copy.deepcopy(model)
    twin(batch).sum().backward()
    want = {name: p.grad for name, p in twin.named_parameters()}
    mesh = init_device_mesh("cpu", (2,))

    before, after = copy.deepcopy(model), copy.deepcopy(model)
    tritemm.convert(before)
    ddp = DistributedDataParallel(copy.deepcopy(before))
    fsdp = sharded(before, mesh)
    late = sharded(after, mesh)
    report = tritemm.convert(late)
    assert isinstance(late[1].gate_proj, tritemm.Linear), str(report)
    for each in (fsdp, late):
        with torch.no_grad():
            assert torch.equal(each.eval()(batch[rank]), twin(batch[rank]))
    for each in (ddp, fsdp):
        got = gradients(each, batch[rank])
        assert got.keys() == want.keys()
        for name, grad in got.items():
            whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
            assert torch.equal(whole, want[name]), (type(each), name)
    dist.barrier()
    print("same", flush=True)
    os._exit(0)  # torch aborts now and then while it ends gloo's threads


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
