"""`Linear`, the module over `tritemm.linear`."""

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
    """What torch.jit.script asks for to compile in place of a layer."""
    raise RuntimeError(
        f"torch.jit.script can't compile {type(layer).__name__} of tritemm. Use torch.export or "
        "torch.jit.trace, or script the model before convert, or after tritemm.nn.restore"
    )


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
        precision: how float32 is multiplied, as `tritemm.matmul` takes it: "int8" too. Operands of
            another type, float64 among them and also by autocast, are multiplied without it.

    Shapes: [..., in_features] -> [..., out_features].

    Raises:
        ValueError: an unknown `precision`; and what `tritemm.linear` raises, when it is called.

    A weight of a class of its own, as quantizers put in place, knows torch's functions alone:
    without an activation it is multiplied by `torch.nn.functional.linear`.

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
        weight = self.weight  # which may be worked out each time that it is asked for
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
    """Whether the class of `weight` may give torch's operators a meaning of its own."""
    kind = type(weight)
    return kind not in PLAIN and kind not in TRACED and not is_dtensor(weight)


def why_not(weight: torch.Tensor) -> str | None:
    """Why a weight can't be multiplied by in place of torch, or None."""
    if type(weight) not in PLAIN and not is_dtensor(weight):
        return f"its weight is a {type(weight).__name__}"
    if weight.layout != torch.strided:
        return f"its weight is {weight.layout}"
    if weight.dtype not in ACCUMULATE or not weight.is_floating_point():
        return f"its weight is {weight.dtype}; tritemm.linear takes none"
    if weight.device.type not in (_DEVICE, "meta"):
        return f"its weight is on {weight.device}; move the model to {_DEVICE} first"
    return None


def asks_its_class(tensor: torch.Tensor) -> bool:
    """Whether torch's functions ask the class of `tensor` what they are to do."""
    return type(tensor) not in PLAIN and type(tensor).__torch_function__ is not _NO_TORCH_FUNCTION


def is_dtensor(weight: torch.Tensor) -> bool:
    """A sharded weight; FSDP2 puts a plain one in its place while the forward runs."""
    sharding = sys.modules.get("torch.distributed.tensor")  # else nothing is sharded
    return sharding is not None and isinstance(weight, sharding.DTensor)


def precision_of(asked: Precision | None, weight: torch.Tensor) -> Precision | None:
    """The precision that was `asked` for, if it is float32 that is multiplied; else None."""
    if asked is None or not isinstance(weight, torch.Tensor):
        return asked
    alone = weight.dtype is torch.float32 and not under_autocast(weight.device)
    return asked if alone else None


def options_text(options: dict) -> str:
    """What `repr` says of the options that were given."""
    return "".join(f", {name}={value}" for name, value in options.items() if value)
