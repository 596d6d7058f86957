"""The layers that multiply: `Linear`, and the forward of transformers' `Conv1D`."""

from __future__ import annotations

import torch
from torch import nn

from ..api import matmul
from ..blas import linear
from ..runtime.fast_path import PLAIN
from .derived import Derived

_NO_TORCH_FUNCTION = torch._C._disabled_torch_function_impl


class Linear(nn.Linear):
    """`torch.nn.Linear` by `tritemm.linear`: activation(input @ weight.mT + bias).

    Same parameters, initial values, state dict and repr, and an `nn.Linear` to whoever asks.

    Args:
        in_features: K, the last dimension of the input.
        out_features: rows of the weight. A gated activation has half as many columns in its
            result: the first half of the rows are the gate's.
        bias, device, dtype: as `torch.nn.Linear` has them.
        activation: None, "relu", "gelu", "gelu_tanh", "silu", or gated: "swiglu", "geglu".
        batch_invariant: a row's result has the same bits whatever rows stand beside it.
        precision: how float32 is multiplied, as `tritemm.matmul` takes it.

    Shapes: [..., in_features] -> [..., out_features].

    Raises:
        what `tritemm.linear` raises, when it is called.

    A weight that has its own `__torch_function__`, as quantizers put in place, knows torch's
    functions alone: without an activation it is multiplied by `torch.nn.functional.linear`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> layer = tritemm.Linear(16, 4, activation="silu", device=device)
    >>> layer(torch.ones(3, 16, device=device)).shape
    torch.Size([3, 4])
    """

    # Of the class, so that an `nn.Linear` that becomes one of these has them.
    activation: str | None = None
    batch_invariant: bool = False
    precision: str | None = None
    #: Of a layer that `convert` merges with others; see `projections`.
    _tritemm_merging = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        batch_invariant: bool = False,
        precision: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.batch_invariant = batch_invariant
        self.precision = precision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        merging = self._tritemm_merging
        if merging is not None and merging.layers:
            part = merging.part(self, input)
            if part is not None:
                return part
        weight = self.weight
        if type(weight) not in PLAIN and self.activation is None and _answers(weight):
            return super().forward(input)
        return self._product(input, weight, self.activation)

    def activated(self, input: torch.Tensor, activation: str | None) -> torch.Tensor:
        """What `forward` gives of a layer with this activation."""
        return self._product(input, self.weight, activation)

    def _product(self, input, weight, activation):
        """`weight` is the layer's, which may be worked out each time that it is asked for."""
        return linear(
            input, weight, self.bias, activation=activation,
            batch_invariant=self.batch_invariant, precision=self.precision,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return super().extra_repr() + _said(self, "activation", "batch_invariant", "precision")


class Conv1D(Derived):
    """The forward of a class like transformers' Conv1D: input @ weight + bias, weight [in, out].

    Shapes: [..., in] -> [..., out].
    """

    batch_invariant: bool = False
    precision: str | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activated(x, None)

    def activated(self, x: torch.Tensor, activation: str | None) -> torch.Tensor:
        """activation(x @ weight + bias)."""
        return matmul(
            x, self.weight, bias=self.bias, activation=activation,
            batch_invariant=self.batch_invariant, precision=self.precision,
        )  # fmt: skip


def _answers(weight: torch.Tensor) -> bool:
    """Whether torch's functions ask the weight's class what they are to do."""
    return type(weight).__torch_function__ is not _NO_TORCH_FUNCTION


def _said(module: nn.Module, *names: str) -> str:
    """Of these options, those that are not the class's default."""
    given = ((name, getattr(module, name)) for name in names)
    return "".join(f", {n}={value}" for n, value in given if value != getattr(type(module), n))
