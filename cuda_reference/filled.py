"""The example that WGMMA is explained by: A and B filled with 0, 1, 2, ..., and D printed.

A is 64 x 16 and B is 16 x 8, both counted by rows, in bf16: so from 256 on A holds 0, 2, 4, ... and
from 512 on multiples of 4. All sums are integers that fp32 holds, so D is exact.
"""

from __future__ import annotations

import torch

from . import types
from .api import matmul

RUNG = "wgmma_m64n8k16"
M, N, K = 64, 8, 16
#: B by columns, along K, and by rows, along N, which the last number of the instruction says.
ENTRIES = {
    layout: types.find(f"wgmma.m64n8k16.row.{layout}.f32.bf16.bf16") for layout in ("col", "row")
}


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    """A [64, 16] and B [16, 8] in bf16, on the CPU."""
    return (
        torch.arange(M * K).view(M, K).bfloat16(),
        torch.arange(K * N).view(K, N).bfloat16(),
    )


def expected() -> torch.Tensor:
    """D [64, 8] in fp32."""
    a, b = operands()
    return (a.double() @ b.double()).float()


def run() -> tuple[torch.Tensor, list[str]]:
    """D as one instruction computes it, and what of all that computes it is wrong.

    That is the instruction, and the rung with D rounded to bf16, with B in both majors.
    """
    a, b = (x.cuda() for x in operands())
    c = torch.zeros(M, N, device=a.device)
    want = expected().to(a.device)
    stored = {"col": b.mT.contiguous().mT, "row": b}
    wrong, results = [], {}
    for layout, entry in ENTRIES.items():
        results[layout] = types.multiply(entry, a, b, c)
        if not torch.equal(results[layout], want):
            wrong.append(entry.name)
        if not torch.equal(matmul(a, stored[layout], kernel=RUNG), want.bfloat16()):
            wrong.append(f"{RUNG}, B by {layout}s")
    return results["col"], wrong


def table(d: torch.Tensor) -> str:
    """A line for each row of D."""
    return "\n".join("".join(f"{x:>10.0f}" for x in row) for row in d.tolist())
