"""Tensor parallelism: a stack of transformer MLPs with its weights sharded over several GPUs.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py
    torchrun --nproc-per-node 2 examples/tensor_parallel.py --device cpu

It trains twice, sharded and on one device, and prints both losses. With `--device cpu` the kernels
run in Triton's interpreter, at a toy size; on a machine with a GPU, also set TRITON_INTERPRET=1.
"""

import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tritemm

BLOCKS = 2
STEPS = 3


class Block(nn.Module):
    """x + down(silu(gate(norm(x))) * up(norm(x))), the MLP of Llama."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.RMSNorm(width, elementwise_affine=False)
        self.gate = tritemm.Linear(width, 2 * width, bias=False)
        self.up = tritemm.Linear(width, 2 * width, bias=False)
        self.down = tritemm.Linear(2 * width, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def shard(model: nn.Sequential, mesh) -> nn.Sequential:
    """Each device gets some columns of `gate` and `up`, and the matching rows of `down`."""
    plan = {"*.gate": ColwiseParallel(), "*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def trainer(model: nn.Module, x, target):
    """A function that takes one training step and returns its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x).float(), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def train(mesh) -> list[tuple[float, float]]:
    """Losses of a few steps, of the sharded stack and of the same on one device."""
    device = mesh.device_type
    width, tokens, dtype = (1024, 4096, torch.bfloat16) if device == "cuda" else (16, 8, None)
    torch.manual_seed(0)  # the same weights and data on every device
    alone = nn.Sequential(*(Block(width) for _ in range(BLOCKS))).to(device, dtype)
    x = torch.randn(tokens, width).to(device, dtype)
    target = torch.randn(tokens, width).to(device)
    sharded = shard(copy.deepcopy(alone), mesh)
    steps = trainer(sharded, x, target), trainer(alone, x, target)
    return [tuple(step() for step in steps) for _ in range(STEPS)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = parser.parse_args().device
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
    losses = train(mesh)
    if dist.get_rank() == 0:
        for i, (sharded, alone) in enumerate(losses):
            print(f"step {i}: loss {sharded:.5f} on {mesh.size()} devices, {alone:.5f} on one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
