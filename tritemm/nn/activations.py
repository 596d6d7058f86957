"""Which of tritemm's activations a module or a function is: by its name, and by its values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from ..problem import GATED

_FUNCTIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
#: Name of an activation's class, or of the function -> what it may be.
_NAMES = {
    "relu": ("relu",),
    "ReLU": ("relu",),
    "silu": ("silu",),
    "SiLU": ("silu",),
    "SiLUActivation": ("silu",),
    "gelu": ("gelu",),
    "GELU": ("gelu", "gelu_tanh"),
    "GELUActivation": ("gelu",),
}
#: transformers' names of gelu_tanh, some of them formulas of their own, which round otherwise.
_TANH_FORMULAS = "GELUTanh", "PytorchGELUTanh", "NewGELUActivation", "FastGELUActivation"
_SOME = [-1e4, -30.0, -3.0, -1.0, -0.1, 0.0, 0.1, 0.7, 1.0, 2.5, 40.0, 1e4]


class Known(NamedTuple):
    """An activation as it was when `convert` looked at it."""

    activation: object
    #: Of a GELU.
    approximate: str | None

    @classmethod
    def of(cls, activation: object) -> Known:
        return cls(activation, getattr(activation, "approximate", None))

    def is_still(self, activation: object) -> bool:
        if activation is not self.activation:
            return False
        return self.approximate is None or self.approximate == activation.approximate


def word_of(activation: Callable) -> str | None:
    """ "relu", "gelu", "gelu_tanh" or "silu", if it is one by its name and by its values."""
    name = name_of(activation)
    if isinstance(activation, nn.Module) and list(activation.children()):
        return None
    if name in _TANH_FORMULAS:
        return "gelu_tanh" if _same(activation, "gelu_tanh", rtol=1e-5, atol=1e-6) else None
    words = _NAMES.get(name, ())
    return next((word for word in words if _same(activation, word)), None)


def gating(activation: Callable) -> str | None:
    """ "swiglu" or "geglu", if the activation is SiLU or GELU."""
    word = word_of(activation)
    return next((gated for gated, plain in GATED.items() if plain == word), None)


def looks_like_one(child: object) -> bool:
    """Whether it is called an activation: by its name, or that of the file that its class is in."""
    name = name_of(child)
    if not isinstance(child, nn.Module):
        return callable(child) and not isinstance(child, type)
    file = type(child).__module__.rpartition(".")[2]
    named = name.endswith(("LU", "Activation")) or file in ("activation", "activations")
    return (named or name in _TANH_FORMULAS) and next(child.parameters(), None) is None


def name_of(activation: object) -> str:
    """Of a function its name, of a module its class's."""
    return getattr(activation, "__name__", type(activation).__name__)


def _same(activation: Callable, word: str, **tolerance: float) -> bool:
    x = torch.tensor(_SOME, dtype=torch.float32, device="cpu")
    try:
        with torch.no_grad():
            got, want = activation(x.clone()), _FUNCTIONS[word](x)
            return torch.allclose(got, want, **tolerance) if tolerance else torch.equal(got, want)
    except Exception:  # whatever it is, it isn't the function
        return False
