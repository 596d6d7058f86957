"""What a module computes of its children: whether it is a form that `convert` knows.

Its own forward is asked, with symbols in place of tensors: a class is known by what it does, not
by its name. A symbol can be given to the module's children and be multiplied by another symbol; a
forward that does anything else with one, or reads anything else of the module, fails at that, as
those do that drop out, clamp, cast or scale. So what comes back is the whole of what it computes.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import torch
from torch import nn

from .derived import Derived

#: Of a gated MLP, the layers.
CHILDREN = "gate_proj", "up_proj", "down_proj"


class _OtherForm(Exception):
    """What a forward of a known form would not do. No AttributeError: getattr would hide it."""


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


class _Child:
    """Stands for a child of the module: called, it makes a symbol; it has nothing else."""

    def __init__(self, name, calls):
        vars(self).update(_name=name, _calls=calls)

    def __call__(self, x):
        self._calls.append(self._name)
        return _Symbol(self._name, x)

    def __getattr__(self, name):
        raise _OtherForm(f"it reads self.{self._name}.{name}")

    @property
    def __class__(self):
        raise _OtherForm(f"it asks for the class of self.{self._name}")


class _Children:
    """Stands for the module: it has these children, and nothing else."""

    def __init__(self, names, calls):
        vars(self).update({name: _Child(name, calls) for name in names})

    def __getattr__(self, name):
        raise _OtherForm(f"it reads self.{name}")

    def __setattr__(self, name, value):
        raise _OtherForm(f"it sets self.{name}")


def looks_gated(module: nn.Module) -> bool:
    """Whether the module has the children of a gated MLP."""
    return all(isinstance(getattr(module, name, None), nn.Module) for name in CHILDREN)


def gated_form_why_not(module: nn.Module) -> str | None:
    """Why a forward isn't down_proj(act_fn(gate_proj(x)) * up_proj(x)), and nothing else, or None.

    The factors may stand in either order.
    """
    x = _Symbol("x")
    try:
        made = _made(module, (*CHILDREN, "act_fn"), x, [])
    except Exception as error:
        return f"its forward is of another form: {first_line(error)}"
    if not _is_gated(made, x):
        return "its forward is of another form: not down_proj(act_fn(gate_proj(x)) * up_proj(x))"
    return None


def chain(module: nn.Module, names: Iterable[str]) -> tuple[str, ...] | None:
    """The children that the module's forward calls one after the other, if it does nothing else.

    `names` are those that it may call.
    """
    if _forward(module) is nn.Sequential.forward:
        return tuple(module._modules) if type(module).__iter__ is nn.Sequential.__iter__ else None
    calls, x = [], _Symbol("x")
    try:
        made = _made(module, names, x, calls)
    except Exception:  # another form, then
        return None
    called = []
    while made is not x:
        if type(made) is not _Symbol or len(made.made) != 2:
            return None
        name, made = made.made
        called.insert(0, name)
    return tuple(called) if called == calls else None


def _forward(module: nn.Module):
    """That of the class which the module had before `convert`."""
    kind = type(module)
    return (kind.original if issubclass(kind, Derived) else kind).forward


def is_wrapped(forward) -> bool:
    """Whether a class's forward is more than the function that it shows."""
    return inspect.unwrap(forward) is not forward or not inspect.isfunction(forward)


def _made(module: nn.Module, names: Iterable[str], x: _Symbol, calls: list[str]) -> object:
    """What the forward gives for `x`; `calls` gets the names of the children that it calls."""
    forward = _forward(module)
    if is_wrapped(forward):
        raise _OtherForm("it is wrapped")
    if isinstance(module, torch.fx.GraphModule):  # writes its class anew when it is copied
        raise _OtherForm("it is a graph's")
    return forward(_Children(names, calls), x)


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
