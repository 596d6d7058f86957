"""`Linear`, a module for `tritemm.linear`."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional as F

from ..api.arguments import under_autocast
from ..api.blas import linear
from ..dtypes import Precision, check_precision
from ..problem import ACCUMULATE, INTERPRETED, Activation
from ..runtime.fast_path import PLAIN
from ..runtime.torch_private import TRACED

_NO_TORCH_FUNCTION = torch._C._disabled_torch_function_impl
_DEVICE = "cpu" if INTERPRETED else "cuda"


def refuse_to_be_scripted(layer: nn.Module):
    """What torch.jit.script calls to get a module to compile instead of a layer: refuses."""
    raise RuntimeError(
        f"torch.jit.script can't compile tritemm's {type(layer).__name__}. Use torch.export or "
        "torch.jit.trace, or script the model before convert, or after tritemm.nn.restore"
    )


class Linear(nn.Linear):
    """`torch.nn.Linear` on `tritemm.linear`: activation(input @ weight.mT + bias).

    Same parameters, initial values, state dict and repr; isinstance says it is an `nn.Linear`.

    Args:
        in_features: K, the last dimension of the input.
        out_features: rows of the weight. With a gated activation the result has half as many
            columns; the first half of the rows is the gate's.
        bias, device, dtype: see `torch.nn.Linear`.
        activation: None, "relu", "gelu", "gelu_tanh", "silu", or gated: "swiglu", "geglu".
        batch_invariant: a row's result has the same bits whatever other rows the input has.
        precision: how float32 is multiplied, as in `tritemm.matmul`, also "int8". It doesn't apply
            to operands of other types, among them float64 and those that autocast makes.

    Shapes: [..., in_features] -> [..., out_features].

    Raises:
        ValueError: an unknown `precision`; in the forward pass, what `tritemm.linear` raises.

    A weight of a tensor subclass, as quantizers create, may know only torch's functions: without an
    activation, `torch.nn.functional.linear` multiplies it.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> layer = tritemm.Linear(16, 4, activation="silu", device=device)
    >>> layer(torch.ones(3, 16, device=device)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: Activation | None = None,
        batch_invariant: bool = False,
        precision: Precision | None = None,
    ) -> None:
        check_precision(precision, torch.float32)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation
        self.batch_invariant = batch_invariant
        self.precision = precision

    __prepare_scriptable__ = refuse_to_be_scripted

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        weight = self.weight  # which may be computed at each access
        if self.activation is None and knows_torch_alone(weight):
            return F.linear(input, weight, self.bias)
        return linear(
            input, weight, self.bias, activation=self.activation,
            batch_invariant=self.batch_invariant, precision=precision_of(self.precision, weight),
        )  # fmt: skip

    def extra_repr(self) -> str:
        names = "activation", "batch_invariant", "precision"
        return super().extra_repr() + options_text({name: getattr(self, name) for name in names})


def knows_torch_alone(weight: torch.Tensor) -> bool:
    """Whether the class of `weight` may override what torch's operators do."""
    kind = type(weight)
    return kind not in PLAIN and kind not in TRACED and not is_dtensor(weight)


def why_not(weight: torch.Tensor) -> str | None:
    """Why tritemm can't multiply by a weight instead of torch, or None."""
    if type(weight) not in PLAIN and not is_dtensor(weight):
        return f"its weight is a {type(weight).__name__}"
    if weight.layout != torch.strided:
        return f"its weight is {weight.layout}"
    if weight.dtype not in ACCUMULATE or not weight.is_floating_point():
        return f"its weight is {weight.dtype}, which tritemm.linear doesn't support"
    if weight.device.type not in (_DEVICE, "meta"):
        return f"its weight is on {weight.device}; move the model to {_DEVICE} first"
    return None


def asks_its_class(tensor: torch.Tensor) -> bool:
    """Whether the class of `tensor` overrides torch's functions."""
    return type(tensor) not in PLAIN and type(tensor).__torch_function__ is not _NO_TORCH_FUNCTION


def is_dtensor(weight: torch.Tensor) -> bool:
    """Whether a weight is sharded; FSDP2 replaces it by a plain one while the forward runs."""
    sharding = sys.modules.get("torch.distributed.tensor")  # if not imported, nothing is sharded
    return sharding is not None and isinstance(weight, sharding.DTensor)


def precision_of(asked: Precision | None, weight: torch.Tensor) -> Precision | None:
    """The precision `asked` for if the operands are float32; else None."""
    if asked is None or not isinstance(weight, torch.Tensor):
        return asked
    alone = weight.dtype is torch.float32 and not under_autocast(weight.device)
    return asked if alone else None


def options_text(options: dict) -> str:
    """What `repr` shows of the options that were set."""
    return "".join(f", {name}={value}" for name, value in options.items() if value)
