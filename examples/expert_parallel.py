"""Expert parallelism: a mixture of experts whose experts are on several GPUs.

    torchrun --nproc-per-node 2 examples/expert_parallel.py
    torchrun --nproc-per-node 2 examples/expert_parallel.py --device cpu

Each device has some of the experts, and tokens of its own. It sends each token to the devices of
its experts, and receives their results. The program trains twice, in this way and with all experts
and all tokens on one device, and prints both losses. With `--device cpu` the kernels run in
Triton's interpreter, at a toy size; on a machine with a GPU, also set TRITON_INTERPRET=1.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd

import tritemm

TOP = 2
STEPS = 3


class Mixture(nn.Module):
    """A router and its experts, the same number on each of the `devices`."""

    def __init__(self, experts: int, width: int, devices: int = 1):
        super().__init__()
        self.devices = devices
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = tritemm.nn.Experts(experts // devices, width, 2 * width)

    def forward(self, x):
        weight, index = self.router(x).softmax(-1).topk(TOP)
        if self.devices == 1:
            return self.experts(x, index, weight)
        made = self.made_elsewhere(x.repeat_interleave(TOP, 0), index.flatten())
        return (made.view(*index.shape, -1) * weight.unsqueeze(-1)).sum(1)

    def made_elsewhere(self, rows, experts):
        """The result of expert `experts[i]`, on whichever device it is, for row i."""
        each = self.experts.down_proj.shape[0]
        order = (experts // each).argsort(stable=True)
        sent = torch.bincount(experts // each, minlength=self.devices)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        there, here = sent.tolist(), received.tolist()  # torch's all-to-all needs them on the host
        mine = exchanged(rows[order], here, there)
        index = exchanged((experts % each)[order], here, there).unsqueeze(-1)
        made = self.experts(mine, index, torch.ones_like(index, dtype=rows.dtype))
        back = exchanged(made, there, here)
        return torch.empty_like(back).index_copy(0, order, back)


def exchanged(rows, receive: list[int], send: list[int]):
    """Sends and receives the given numbers of rows for each device, in order of the devices."""
    moved = all_to_all_single_autograd(rows.contiguous(), receive, send, dist.group.WORLD)
    return torch.ops._c10d_functional.wait_tensor(moved)


def shared_out(whole: Mixture, devices: int, rank: int) -> Mixture:
    """The share of the device `rank`: the router, and its part of the experts."""
    experts, width = whole.router.weight.shape
    part = Mixture(experts, width, devices).to(whole.router.weight)
    part.router.load_state_dict(whole.router.state_dict())
    for name, weight in part.experts.named_parameters():
        weight.data.copy_(getattr(whole.experts, name).chunk(devices)[rank])
    return part


def train(device: str) -> list[tuple[float, float]]:
    """Losses of a few steps: with experts on several devices, and with all on one."""
    devices, rank = dist.get_world_size(), dist.get_rank()
    experts, width, tokens = (64, 1024, 4096) if device == "cuda" else (8, 16, 12)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)  # the same weights and data on every device
    alone = Mixture(experts, width).to(device, dtype)
    x = torch.randn(tokens * devices, width).to(device, dtype)
    target = torch.randn(tokens * devices, width).to(device)
    part = shared_out(alone, devices, rank)

    def step(model, mine: slice, optimizer) -> float:
        optimizer.zero_grad()
        loss = (model(x[mine]).float() - target[mine]).square().sum() / target.numel()
        loss.backward()
        if model is part:  # each has the gradient of its own tokens; those of experts are whole
            dist.all_reduce(model.router.weight.grad)
            dist.all_reduce(loss.detach())
        optimizer.step()
        return loss.item()

    runs = (part, slice(rank * tokens, (rank + 1) * tokens)), (alone, slice(None))
    steps = [(*run, torch.optim.SGD(run[0].parameters(), lr=10.0)) for run in runs]
    return [tuple(step(*each) for each in steps) for _ in range(STEPS)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    losses = train(device)
    if dist.get_rank() == 0:
        for i, (shared, alone) in enumerate(losses):
            devices = dist.get_world_size()
            print(f"step {i}: loss {shared:.5f} on {devices} devices, {alone:.5f} on one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
