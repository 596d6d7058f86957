"""Layers for Hugging Face's `kernels`, which puts their `forward` into layers of a model.

`kernels` takes a class whose only members are `forward`, `can_torch_compile` and `has_backward`:
`self` is the model's own layer. In other code use `tritemm.Linear` or `tritemm.convert`.
"""

from typing import Any

import torch

from .api.blas import linear
from .nn.converted import by_torch, why_torch


class Linear(torch.nn.Module):
    """`torch.nn.Linear` by `tritemm.linear`, or by torch where that takes what tritemm doesn't."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        layer: Any = self  # an nn.Linear
        weight, bias = layer.weight, layer.bias
        reason = why_torch(input, weight, bias)
        if reason is not None:
            return by_torch(reason, torch.nn.functional.linear, input, weight, bias)
        return linear(input, weight, bias)
