"""An MLP whose activations are the epilogues of the products before them, where nothing forbids it.

The activation is then of the fp32 sums, where the class's own forward rounds them first. So it is
done in evaluation alone: in training, a pass without a gradient (as of reentrant checkpointing) has
the same bits as the one with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..runtime.fast_path import PLAIN
from ..runtime.torch_private import compute_requires_grad, watched
from .activations import Known, looks_like_one, word_of
from .derived import Derived, hooked
from .layers import Conv1D, Linear


class Step(NamedTuple):
    """A child that is called, and the activation that is called next, if it can be an epilogue."""

    child: str
    act_fn: str | None = None
    #: What `tritemm.linear` calls it.
    word: str | None = None
    #: The activation that `word` stands for.
    known: Known | None = None


class ActivatedMLP(Derived):
    """The forward of a class that calls its children one after the other, and does nothing else.

    Shapes: as the class's own forward, which runs in training and for a call with other arguments.
    A layer and its activation are called as it calls them while a gradient is recorded, under
    autocast, and where either has hooks or was exchanged.
    """

    #: Of the class, for one that a Sequential makes of a part of itself.
    _tritemm_steps: tuple[Step, ...] = ()

    def forward(self, *args, **kwargs):
        if len(args) != 1 or kwargs or self.training or watched():
            return super().forward(*args, **kwargs)
        if not self._calls_what_is_known():
            return super().forward(*args, **kwargs)
        x = args[0]
        for child, act_fn, word, known in self._tritemm_steps:
            layer = getattr(self, child)
            if act_fn is None:
                x = layer(x)
            elif known.is_still(getattr(self, act_fn)) and _is_one_product(
                layer, known.activation, x
            ):
                x = layer.activated(x, word)
            else:
                x = getattr(self, act_fn)(layer(x))
        return x

    def _calls_what_is_known(self) -> bool:
        """A Sequential may have got other children since."""
        if not isinstance(self, nn.Sequential):
            return len(self._tritemm_steps) > 0
        return list(self._modules) == list(called(self._tritemm_steps))


def may_be_activated(module: nn.Module) -> bool:
    """Whether the module has a layer that can be activated, and what may be an activation."""
    return any(map(_is_layer, module._modules.values())) and any(
        looks_like_one(getattr(module, name)) for name in callables(module)
    )


def callables(module: nn.Module) -> list[str]:
    """The names of the module's children, and of the functions among its attributes."""
    children = [name for name, child in module._modules.items() if child is not None]
    return children + [
        name
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type) and name != "forward"
    ]


def steps_of(module: nn.Module, chain: tuple[str, ...]) -> tuple[tuple[Step, ...], list]:
    """The steps of a chain of children; and the activations that can't be an epilogue."""
    steps, unknown, names = [], [], list(chain)
    while names:
        child, *names = names
        act_fn = getattr(module, names[0]) if names else None
        if not _is_layer(getattr(module, child)) or not looks_like_one(act_fn):
            steps.append(Step(child))
        elif (word := word_of(act_fn)) is None:
            steps.append(Step(child))
            unknown.append(act_fn)
        else:
            steps.append(Step(child, names.pop(0), word, Known.of(act_fn)))
    return tuple(steps), unknown


def called(steps: tuple[Step, ...]) -> Iterator[str]:
    """The names of the children that the steps call, in this order."""
    for step in steps:
        yield step.child
        if step.act_fn is not None:
            yield step.act_fn


def _is_layer(layer: object) -> bool:
    """Whether it is a layer of ours, and only that."""
    if type(layer) is Linear:
        return layer.activation is None
    return type(layer).__bases__[0] is Conv1D


def _is_one_product(layer: nn.Module, act_fn: object, x: torch.Tensor) -> bool:
    if not _is_layer(layer) or hooked(layer) or hooked(act_fn):
        return False
    tensors = [t for t in (x, layer.weight, layer.bias) if t is not None]
    if any(type(t) not in PLAIN for t in tensors) or torch.is_autocast_enabled(x.device.type):
        return False
    return not compute_requires_grad(*tensors)
