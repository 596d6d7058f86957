"""Layers that a module calls with one input, as queries, keys and values are made.

In code that torch compiles they are one product, `tritemm::merged`: the first of them that is
called makes it, and the others take their parts. Outside of compiled code they are products of
their own, since what happens to a weight between two calls can't be seen there.

Whether a module gives its layers one input, and leaves it as it is between them, is asked of its
own forward, once, with tensors that have no data (`why_not_one_input`). Where it doesn't in a call
with other arguments, as of attention across two sequences, that is seen while the code is traced,
and from then on they are products of their own there too.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import nn

from .derived import Derived
from .forms import first_line
from .layers import PLAIN, Linear
from .merged import merged
from .packing import pack, unpack


class Packed(Derived):
    """A module some of whose layers have their weights in one storage."""

    def together(self) -> tuple[nn.Module, ...]:
        """These layers, in their order in the storage."""
        raise NotImplementedError

    def pack(self) -> None:
        """Give the layers' weights one storage, and their biases, if they can have one."""
        for parameters in _parameters(self.together()):
            pack(*parameters)

    def unpack(self) -> None:
        """Give each of them a storage of its own."""
        for parameters in _parameters(self.together()):
            unpack(*parameters)

    def _apply(self, fn, recurse=True):
        """What `.to()` and the like do to the weights, after which they are packed again."""
        super()._apply(fn, recurse)
        self.pack()
        return self

    def __setstate__(self, state):
        super().__setstate__(state)
        self.pack()


class Projections(Packed):
    """The forward of a class that gives some of its layers the same input."""

    #: Their names.
    projections: tuple[str, ...]
    merging: Merging

    def together(self) -> tuple[nn.Module, ...]:
        return tuple(getattr(self, name) for name in self.projections)

    def forward(self, *args, **kwargs):
        layers = self.together()
        if not traced() or self.merging.useless or not alike(layers):
            return super().forward(*args, **kwargs)
        self.merging.open(layers)
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.merging.close()


class Merging:
    """While `Projections.forward` is traced: its layers, and what they were given and made.

    At any other time there are no layers. Each of them has it as its attribute `merging`.
    """

    def __init__(self):
        self.layers: tuple[nn.Module, ...] = ()
        self.made: tuple | None = None
        self.taken = 0
        #: Whether a layer was not called with what the first one was called with.
        self.useless = False

    def open(self, layers: tuple[nn.Module, ...]) -> None:
        self.layers, self.made, self.taken = layers, None, 0

    def close(self) -> None:
        if self.made is not None and self.taken != len(self.layers):
            self.useless = True
        self.layers, self.made, self.taken = (), None, 0

    def part(self, layer: nn.Module, input: torch.Tensor) -> torch.Tensor | None:
        """What `layer` makes of `input`, if it is a part of the one product; else None."""
        layers, index = self.layers, None
        for place, one in enumerate(layers):
            if one is layer:
                index = place
        if index is None or not fits(layers, input):
            return None
        if self.made is None:
            self.made = input, apart(layers, input)
        given, parts = self.made
        if given is not input:
            return None
        self.taken += 1
        # With memory of its own, as a layer's result has it; Inductor copies only where it must.
        return parts[index].clone(memory_format=torch.contiguous_format)


class _Enough(Exception):
    """All layers were called."""


class _Stub(nn.Module):
    """Stands for a layer: remembers what it is given, and how often that was written to by then."""

    def __init__(self, columns: int, given: list, enough: int):
        super().__init__()
        self.columns, self.given, self.enough = columns, given, enough

    def forward(self, input):
        self.given.append((input, input._version))
        if len(self.given) == self.enough:
            raise _Enough
        return input.new_empty((*input.shape[:-1], self.columns))


class _Other(nn.Module):
    """Stands for a norm of what a layer makes, and the like."""

    def forward(self, input, *args, **kwargs):
        return input


def why_not_one_input(module: nn.Module, names: Sequence[str]) -> str | None:
    """Why it isn't known that the module calls these layers with one input, or None.

    Its forward is run until they were called, on a stand-in for the module, with tensors on the
    meta device, and None for what it asks for beside its first argument.
    """
    forward = inspect.unwrap(type(module).forward)
    if forward is not type(module).forward or not inspect.isfunction(forward):
        return "its forward is wrapped"
    given: list = []
    layers = {name: getattr(module, name) for name in names}
    stubs = {name: _Stub(x.out_features, given, len(names)) for name, x in layers.items()}
    others = {name: _Other() for name in module._modules}
    stand_in = object.__new__(type(module))
    vars(stand_in).update(vars(module), _modules={**others, **stubs})
    first = layers[names[0]]
    x = torch.empty(1, 2, first.in_features, dtype=first.weight.dtype, device="meta")
    _, _, *rest = inspect.signature(forward).parameters.values()
    nothing = {p.name: None for p in rest if p.default is p.empty and p.kind in _NAMED}
    try:
        with torch.no_grad():
            forward(stand_in, x, **nothing)
    except _Enough:
        same = all(one is given[0][0] and version == given[0][1] for one, version in given)
        return None if same else "its layers are given different inputs"
    except Exception as error:
        return f"its forward can't be followed: {first_line(error)}"
    return "its forward doesn't call all of its layers"


_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def traced() -> bool:
    """Whether torch.compile reads this code, and not to export it.

    Of `torch.compiler.is_exporting()` the flag: up to torch 2.12 the function itself is true in all
    code that is traced.
    """
    exporting = getattr(torch.compiler, "_is_exporting_flag", False)
    return torch.compiler.is_dynamo_compiling() and not exporting


def alike(layers: Sequence[nn.Module]) -> bool:
    """Whether the layers can be one product, whatever they are given.

    With `batch_invariant` they are not: the order of a product's sums follows from all its columns.
    """
    return all(
        type(layer) is Linear
        and layer.activation is None
        and not layer.batch_invariant
        and "forward" not in layer.__dict__
        and type(layer.weight) in PLAIN
        and layer.weight.requires_grad == layers[0].weight.requires_grad
        and layer.weight.dtype == layers[0].weight.dtype
        and layer.weight.shape[1] == layers[0].weight.shape[1]
        and layer.precision == layers[0].precision
        and (layer.bias is None) == (layers[0].bias is None)
        and (layer.bias is None or type(layer.bias) in PLAIN)
        for layer in layers
    )


def fits(layers: Sequence[nn.Module], input: torch.Tensor) -> bool:
    """Whether the product of `input` and layers that are `alike` is nothing but that."""
    return (
        type(input) in PLAIN
        and input.dim() > 1
        and input.dtype == layers[0].weight.dtype
        and not torch.is_autocast_enabled(input.device.type)
    )


def apart(layers: Sequence[nn.Module], input: torch.Tensor) -> Sequence[torch.Tensor]:
    """What each layer makes of `input`: views of one product's result."""
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    return merged(input, weights, biases, layers[0].precision)


def _parameters(layers: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """The weights, and the biases if all have one; none if an adapter stands in a layer's place."""
    if not all(type(layer) is Linear for layer in layers):
        return []
    each = [[layer.weight for layer in layers], [layer.bias for layer in layers]]
    return [some for some in each if all(one is not None for one in some)]
