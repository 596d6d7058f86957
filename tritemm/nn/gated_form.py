"""Whether a module computes down_proj(act_fn(gate_proj(x)) * up_proj(x)), and nothing else.

Its own forward is asked, with symbols in place of tensors: a class is known by what it does, not
by its name. A symbol can be given to the four children and be multiplied by another symbol; a
forward that does anything else with one, or reads anything else of the module, fails at that, as
those do that drop out, clamp, cast or scale. So what comes back is the whole of what it computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

CHILDREN = "gate_proj", "up_proj", "down_proj"
#: Name of an activation's class, or of the function -> tritemm's gated form, and torch's function.
_GATED = {
    "silu": ("swiglu", F.silu),
    "SiLU": ("swiglu", F.silu),
    "SiLUActivation": ("swiglu", F.silu),
    "gelu": ("geglu", F.gelu),
    "GELU": ("geglu", F.gelu),
    "GELUActivation": ("geglu", F.gelu),
}


class _OtherForm(Exception):
    """What a forward of the known form would not do. No AttributeError: getattr would hide it."""


class _Symbol(torch.Tensor):
    """A tensor of which nothing is known but how it was made: a name and its arguments."""

    @staticmethod
    def __new__(cls, *made):
        symbol = torch.Tensor._make_subclass(cls, torch.empty(0, device="meta"))
        symbol.made = made
        return symbol

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        if name != "mul" or kwargs or [type(arg) for arg in args] != [cls, cls]:
            raise _OtherForm(f"it calls {name} of a tensor")
        return cls("mul", *args)


class _Children:
    """Stands for the module: it has the four children, which make symbols, and nothing else."""

    def __init__(self):
        for name in (*CHILDREN, "act_fn"):
            setattr(self, name, lambda x, name=name: _Symbol(name, x))

    def __getattr__(self, name):
        raise _OtherForm(f"it reads self.{name}")


def looks_gated(module: nn.Module) -> bool:
    """Whether the module has the children of a gated MLP."""
    return all(isinstance(getattr(module, name, None), nn.Module) for name in CHILDREN)


def form_why_not(module: nn.Module) -> str | None:
    """Why the class's forward is not of the known form, or None."""
    forward = inspect.unwrap(type(module).forward)
    if forward is not type(module).forward or not inspect.isfunction(forward):
        return "its forward is wrapped"
    x = _Symbol("x")
    try:
        made = forward(_Children(), x)
    except Exception as error:
        return f"its forward is of another form: {first_line(error)}"
    if not _is_gated(made, x):
        return "its forward is of another form: not down_proj(act_fn(gate_proj(x)) * up_proj(x))"
    return None


def gating(act_fn: Callable) -> str | None:
    """ "swiglu" or "geglu", if the activation is SiLU or GELU by its name and by its values."""
    name = getattr(act_fn, "__name__", type(act_fn).__name__)
    word, function = _GATED.get(name, (None, None))
    if word is None or (isinstance(act_fn, nn.Module) and list(act_fn.children())):
        return None
    some = [-1e4, -30.0, -3.0, -1.0, -0.1, 0.0, 0.1, 0.7, 1.0, 2.5, 40.0, 1e4]
    x = torch.tensor(some, dtype=torch.float32, device="cpu")
    try:
        with torch.no_grad():
            same = torch.equal(act_fn(x.clone()), function(x))
    except Exception:  # whatever it is, it isn't the function
        return None
    return word if same else None


def _is_gated(made: object, x: _Symbol) -> bool:
    """Whether a symbol is down_proj(act_fn(gate_proj(x)) * up_proj(x)), in either order."""
    product = _argument(made, "down_proj")
    if type(product) is not _Symbol or product.made[0] != "mul":
        return False
    factors = product.made[1:]
    return any(
        _argument(_argument(one, "act_fn"), "gate_proj") is x and _argument(other, "up_proj") is x
        for one, other in (factors, factors[::-1])
    )


def _argument(made: object, name: str) -> object:
    """What the child `name` was given to make this symbol; None if it didn't make it."""
    return made.made[1] if type(made) is _Symbol and made.made[0] == name else None


def first_line(error: Exception) -> str:
    """Of its message, or its class's name."""
    return (str(error).splitlines() or [type(error).__name__])[0]
