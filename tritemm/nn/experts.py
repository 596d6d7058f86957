"""`Experts`, a module for `tritemm.moe`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from ..api.moe import moe
from .layers import refuse_to_be_scripted


class Experts(nn.Module):
    """The experts of a mixture, multiplied by `tritemm.moe`; the router is a separate module.

    Args:
        num_experts, hidden_size, intermediate_size: E, H and I.
        activation, interleaved: see `tritemm.moe`.
        bias: whether both products of each expert have one.
        device, dtype: of the parameters.

    Parameters have the names and shapes of transformers' experts: `gate_up_proj` [E, 2 I, H],
    `down_proj` [E, H, I], and with `bias` `gate_up_proj_bias` [E, 2 I] and `down_proj_bias` [E, H].
    They are initialised like `torch.nn.Linear`'s, expert by expert.

    Shapes: hidden [..., H] with T tokens, topk_index and topk_weight [T, k] -> [..., H].

    Raises:
        What `tritemm.moe` raises, in the forward pass.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> experts = tritemm.nn.Experts(4, 16, 8, device=device)
    >>> weight, index = torch.rand(3, 4, device=device).topk(2)
    >>> experts(torch.ones(3, 16, device=device), index, weight).shape
    torch.Size([3, 16])
    """

    gate_up_proj: nn.Parameter
    down_proj: nn.Parameter
    gate_up_proj_bias: nn.Parameter | None
    down_proj_bias: nn.Parameter | None

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str | Callable[[torch.Tensor], torch.Tensor] = "silu",
        bias: bool = False,
        interleaved: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.interleaved = interleaved
        shapes = {
            "gate_up_proj": (num_experts, 2 * intermediate_size, hidden_size),
            "down_proj": (num_experts, hidden_size, intermediate_size),
        }
        for name, shape in shapes.items():
            weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, weight)
            added = nn.Parameter(weight.new_empty(shape[:2])) if bias else None
            self.register_parameter(f"{name}_bias", added)
        self.reset_parameters()

    __prepare_scriptable__ = refuse_to_be_scripted

    def reset_parameters(self) -> None:
        """Uniform in +-1 / sqrt(K), where K is the weight's number of columns."""
        for name in ("gate_up_proj", "down_proj"):
            weight, bias = getattr(self, name), getattr(self, f"{name}_bias")
            bound = 1 / math.sqrt(max(weight.shape[-1], 1))
            nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                nn.init.uniform_(bias, -bound, bound)

    def forward(
        self, hidden: torch.Tensor, topk_index: torch.Tensor, topk_weight: torch.Tensor
    ) -> torch.Tensor:
        return moe(
            hidden, self.gate_up_proj, self.down_proj, topk_index, topk_weight,
            activation=self.activation, interleaved=self.interleaved,
            gate_up_bias=self.gate_up_proj_bias, down_bias=self.down_proj_bias,
        )  # fmt: skip

    def extra_repr(self) -> str:
        experts, hidden, intermediate = self.down_proj.shape
        return f"{experts}, {hidden}, {intermediate}, activation={self.activation!r}"
