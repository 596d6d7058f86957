"""Layers that a module calls with one input, as queries, keys and values are made.

In code that torch compiles, and where no gradient is recorded, they are one product,
`tritemm::merged`: the first of them that is called makes it, and the others take their parts.
Outside of compiled code they are products of their own, since what happens to a weight between two
calls can't be seen there.

A module is asked for what it does (`why_not_one_input`): its forward may contain nothing that
writes, and run once, with tensors that have no data, it must give its layers one input. Where it
doesn't in a call with other arguments, as of attention across two sequences, that is seen while the
code is traced, and from then on they are products of their own there too.
"""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Sequence

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling

from ..runtime.fast_path import PLAIN
from .derived import Derived, hooked
from .forms import first_line, is_wrapped
from .layers import Linear
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
        super()._apply(fn) if recurse else super()._apply(fn, recurse)
        self.pack()
        return self

    def __setstate__(self, state):
        super().__setstate__(state)
        self.pack()


class Projections(Packed):
    """The forward of a class that gives some of its layers the same input."""

    #: Their names. Of the class, as the next one, for an instance that `convert` didn't make.
    _tritemm_projections: tuple[str, ...] = ()
    _tritemm_merging: Merging | None = None

    def together(self) -> tuple[nn.Module, ...]:
        return tuple(getattr(self, name, None) for name in self._tritemm_projections)

    def forward(self, *args, **kwargs):
        if not traced():
            return super().forward(*args, **kwargs)
        layers, merging = self.together(), self._tritemm_merging
        if merging is None or merging.useless or not alike(layers):
            return super().forward(*args, **kwargs)
        if torch.is_grad_enabled() and layers[0].weight.requires_grad:
            return super().forward(*args, **kwargs)
        merging.open(layers)
        try:
            return super().forward(*args, **kwargs)
        finally:
            merging.close()


class Merging:
    """While `Projections.forward` is traced: its layers, and what they were given and made.

    At any other time there are no layers. Each of them has it as an attribute.
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
        if torch.is_grad_enabled() and (input.requires_grad or layer.weight.requires_grad):
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
    meta device, and None for what it asks for beside its first argument. One that contains what
    may write to a tensor, or to the module, is not run.
    """
    forward = type(module).forward
    if is_wrapped(forward):
        return "its forward is wrapped"
    if written := _writes(forward):
        return f"its forward may write to what it reads: {written}"
    given: list = []
    layers = {name: getattr(module, name) for name in names}
    stubs = {name: _Stub(x.out_features, given, len(names)) for name, x in layers.items()}
    first = layers[names[0]]
    x = torch.empty(1, 2, first.in_features, dtype=first.weight.dtype, device="meta")
    try:
        stand_in = _stand_in(module, stubs)
        _, _, *rest = inspect.signature(forward).parameters.values()
        nothing = {p.name: None for p in rest if p.default is p.empty and p.kind in _NAMED}
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            forward(stand_in, x, **nothing)
    except _Enough:
        same = all(one is given[0][0] and version == given[0][1] for one, version in given)
        return None if same else "its layers are given different inputs"
    except Exception as error:
        return f"its forward can't be followed: {first_line(error)}"
    return "its forward doesn't call all of its layers"


def _stand_in(module: nn.Module, children: dict[str, nn.Module]) -> nn.Module:
    """One of the module's class with these children, whose parameters and buffers have no data."""
    stand_in = object.__new__(type(module))
    for name, value in vars(module).items():
        vars(stand_in)[name] = copy.copy(value) if type(value) in (dict, list, set) else value
    for kind in ("_parameters", "_buffers"):
        there = getattr(module, kind).items()
        vars(stand_in)[kind] = {n: None if t is None else t.detach().to("meta") for n, t in there}
    others = {name: _Other() for name in module._modules}
    vars(stand_in)["_modules"] = {**others, **children}
    return stand_in


def _writes(forward) -> str | None:
    """What of a function's code may write to a tensor or an attribute, or None.

    Where no gradient is recorded, the gradient's modes are none of its business.
    """
    for instruction in dis.get_instructions(forward):
        name = str(instruction.argval)
        if instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR", "DELETE_ATTR"):
            return f"line {_line(instruction, forward)}"
        if instruction.opname.startswith("INPLACE_") or (
            instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("=")
        ):
            return f"line {_line(instruction, forward)}"
        if name.endswith("_") and not name.startswith("__") and instruction.opname in _LOADS:
            return name
    return None


def _line(instruction: dis.Instruction, function) -> int:
    position = getattr(instruction, "positions", None)
    return position.lineno if position else function.__code__.co_firstlineno


_LOADS = "LOAD_ATTR", "LOAD_METHOD"
_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def traced() -> bool:
    """Whether torch.compile reads this code, and not to export it.

    Of `torch.compiler.is_exporting()` the flag: up to torch 2.12 the function itself is true in all
    code that is traced.
    """
    if not is_dynamo_compiling():
        return False
    return not getattr(torch.compiler, "_is_exporting_flag", False)


def alike(layers: Sequence[nn.Module]) -> bool:
    """Whether the layers can be one product, whatever they are given.

    With `batch_invariant` they are not: the order of a product's sums follows from all its columns.
    """
    return all(
        type(layer) is Linear
        and layer.activation is None
        and not layer.batch_invariant
        and not hooked(layer)
        and type(layer.weight) is nn.Parameter
        and layer.weight.requires_grad == layers[0].weight.requires_grad
        and layer.weight.dtype == layers[0].weight.dtype
        and layer.weight.shape[1] == layers[0].weight.shape[1]
        and layer.precision == layers[0].precision
        and (layer.bias is None) == (layers[0].bias is None)
        and (layer.bias is None or type(layer.bias) is nn.Parameter)
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
    """The weights, and the biases if all have one.

    None if an adapter stands in a layer's place, or a layer has not got its parameters yet.
    """
    if not layers or not all(type(layer) is Linear for layer in layers):
        return []
    each = [[vars(x).get("_parameters", {}).get(kind) for x in layers] for kind in _PARAMETERS]
    return [some for some in each if all(one is not None for one in some)]


_PARAMETERS = "weight", "bias"
