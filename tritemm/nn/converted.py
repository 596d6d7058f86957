"""The classes that `convert` gives an `nn.Linear`, and transformers' Conv1D.

The module, its parameters and whatever its owner has attached to it stay as they are. It gets one
of the classes below, a subclass of its former class with the same name, and two attributes:
`_tritemm_options` and, if its weight shares a storage, `_tritemm_siblings`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn import functional as F

from ..api.blas import again, linear
from ..api.linear_8bit import linear_8bit
from ..api.matmul import matmul
from ..dtypes import REAL, Precision
from ..problem import ACCUMULATE, INTERPRETED
from ..runtime.fast_path import PLAIN
from ..runtime.torch_private import untraced
from . import float8, layers, packing

#: Why torch's own function ran in a converted layer -> calls since the start of the process, over
#: all such layers; compiled code isn't counted.
fell_back: Counter[str] = Counter()
_REPLACED = "the forward of its class was replaced"


class Options(NamedTuple):
    """How a converted layer multiplies: arguments of `matmul`, and the 8-bit type, if any."""

    batch_invariant: bool = False
    precision: Precision | None = None
    dtype: str | None = None


_USUAL = Options()


class _BatchInvariant:
    """The option of that name, for code that asks a layer without an attribute of its own."""

    def __get__(self, layer, owner=None):
        return self if layer is None else layer._tritemm_options.batch_invariant


if TYPE_CHECKING:  # the second base of the classes is a module
    _Module = nn.Module
else:
    _Module = object


class Converted(_Module):
    """The first base of the classes: what a converted layer does besides multiplying."""

    #: The class that the module had.
    _tritemm_original: ClassVar[type[nn.Module]]
    #: Options of a layer that somebody creates from another layer's class: `convert`'s defaults.
    _tritemm_options = Options()
    batch_invariant = _BatchInvariant()
    __prepare_scriptable__ = layers.refuse_to_be_scripted

    def _apply(self, fn, recurse=True):
        """What `.to()` and the like do to the weight; packs its siblings again afterwards."""
        scale = self._buffers.get("weight_scale")
        super()._apply(fn, recurse)
        float8.keep_scale(self, scale, fn)
        packing.pack_again(self)
        return self

    def _load_from_state_dict(self, state_dict, prefix, *args):
        """Refuses a weight that isn't int8 if this layer's is; otherwise torch's."""
        both = self._buffers.get("weight"), state_dict.get(f"{prefix}weight")
        own, given = (getattr(t, "dtype", None) for t in both)
        if own != torch.int8 or given in (None, torch.int8):
            super()._load_from_state_dict(state_dict, prefix, *args)
            return
        args[-1].append(
            f"{prefix}weight is {given}, and this layer's weight is int8, with its scales in "
            f"{prefix}weight_scale: load it before convert, or after tritemm.nn.restore"
        )

    @untraced
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        """Gives `state_dict()` tensors in storages of their own size.

        Checkpoint writers treat weights that share a storage as tied, and keep only the first.
        """
        super()._save_to_state_dict(destination, prefix, keep_vars)
        siblings, _ = getattr(self, "_tritemm_siblings", (None, 0))
        if siblings is None or keep_vars:
            return
        for name in (*self._parameters, *self._buffers):  # pruning renames the weight
            if (tensor := destination.get(prefix + name)) is not None:
                destination[prefix + name] = siblings.alone(tensor)

    def __setstate__(self, state):
        """Take the state of a copy or a pickle, and pack it if all its siblings are there."""
        super().__setstate__(state)
        packing.pack_again(self, copying=True)


_linear_forward = nn.Linear.forward


class Linear(Converted, layers.Linear):
    """An `nn.Linear` that runs `tritemm.linear`, or torch for what tritemm doesn't support."""

    _tritemm_original = nn.Linear
    __init__ = nn.Linear.__init__  # for code that creates another layer from this one's class

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        options = getattr(self, "_tritemm_options", None)
        if options is None:  # restored, but a caller kept this method
            return nn.Linear.forward(self, input)
        if nn.Linear.forward is not _linear_forward:
            return by_torch(_REPLACED, nn.Linear.forward, self, input)
        if options == _USUAL and not is_dynamo_compiling():
            own = self._parameters  # torch also looks here, but last
            if own.get("weight") is not None and "bias" in own:
                result = again(input, own["weight"], own["bias"])
                if result is not None:
                    return result
        weight, bias = self.weight, self.bias  # may be created at each call
        reason = why_torch(input, weight, bias, options.dtype)
        scale = getattr(self, "weight_scale", None) if weight.dtype is torch.int8 else None
        if reason is not None:
            dense = weight if scale is None else (weight * scale).to(input.dtype)
            return by_torch(reason, F.linear, input, dense, bias)
        if options.dtype and (options.dtype == "int8") is (scale is not None):
            return linear_8bit(input, weight, bias, options.batch_invariant, scale)
        if options == _USUAL:
            return linear(input, weight, bias)
        precision = layers.precision_of(options.precision, weight)
        return linear(
            input, weight, bias,
            batch_invariant=options.batch_invariant, precision=precision,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return nn.Linear.extra_repr(self) + layers.options_text(self._tritemm_options._asdict())


def __getattr__(name: str):
    """`Conv1D`, which needs transformers: pickle looks it up by this name."""
    if name == "Conv1D":
        return conv1d()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def conv1d() -> type[nn.Module]:
    """transformers' Conv1D on `tritemm.matmul`: input @ weight + bias, weight [in, out]."""
    from transformers import pytorch_utils  # slow to import, and may be missing

    original: Any = pytorch_utils.Conv1D
    original_forward = original.forward

    class Conv1D(Converted, original):
        __qualname__ = "Conv1D"
        _tritemm_original = original

        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            options = getattr(self, "_tritemm_options", None)
            if options is None:
                return original.forward(self, x)
            weight, bias = self.weight, self.bias
            reason = _REPLACED if original.forward is not original_forward else None
            reason = reason or why_torch(x, weight, bias, options.dtype)
            if reason is not None:
                return by_torch(reason, original.forward, self, x)
            if options.dtype is not None:
                return linear_8bit(x, weight.mT, bias, options.batch_invariant)
            precision = layers.precision_of(options.precision, weight)
            return matmul(
                x, weight, bias=bias,
                batch_invariant=options.batch_invariant, precision=precision,
            )  # fmt: skip

    return Conv1D


def class_for(kind: type[nn.Module]) -> type[nn.Module] | Any:
    """The class above for a module whose class is exactly torch's, or transformers'; else None."""
    if kind is nn.Linear:
        return Linear
    utils = sys.modules.get("transformers.pytorch_utils")
    return conv1d() if utils is not None and kind is getattr(utils, "Conv1D", None) else None


def has_own_forward(kind: type[nn.Module]) -> bool:
    """Whether the forward of torch's or transformers' class `kind` is the original one.

    Other packages replace it for all layers, to add adapters or to cast.
    """
    forward = kind.__dict__.get("forward")
    if not inspect.isfunction(forward) or hasattr(forward, "__wrapped__"):
        return False
    home = vars(sys.modules[kind.__module__])
    return forward.__globals__ is home and forward.__code__.co_name == "forward"


def why_torch(input, weight, bias, dtype: str | None = None) -> str | None:
    """Why torch must compute a layer's product, in 8 bits if `dtype` is given; or None.

    A call that neither supports may go to either: both refuse it.
    """
    if not isinstance(input, torch.Tensor):  # a Proxy of torch.fx, which has no type
        return None
    if input.layout is not torch.strided or input.is_nested:
        return "a nested input" if input.is_nested else f"an input of layout {input.layout}"
    plain = type(input) in PLAIN and type(weight) in PLAIN
    if not (plain and (bias is None or type(bias) in PLAIN)):
        if layers.knows_torch_alone(weight):
            return f"its weight is a {type(weight).__name__}"
        for name, tensor in (("input", input), ("bias", bias)):
            if tensor is not None and layers.asks_its_class(tensor):
                return f"its {name} is a {type(tensor).__name__}"
    if bias is not None and bias.dim() > 1:
        return f"a bias of shape {list(bias.shape)}"
    if input.dtype not in (REAL if dtype else ACCUMULATE):
        return f"an input of {input.dtype}"
    if input.is_cuda or input.is_meta or (INTERPRETED and input.is_cpu):
        return None
    return f"an input on {input.device.type}"


def by_torch(reason: str, function, *args) -> torch.Tensor:
    """The result of torch's `function`; counts the call under this reason."""
    result = function(*args)
    if not is_dynamo_compiling():
        fell_back[reason] += 1
    return result


def become(module: nn.Module, kind: type[nn.Module]) -> None:
    """Give `module` the class `kind`, so that compiled code checks it again.

    To save time, code compiled by some torch releases only checks whether a module's attributes
    were written to, and a new class isn't such a write: so we write one and delete it again.
    """
    module.__class__ = kind
    vars(module)["_class_is_new"] = True
    del vars(module)["_class_is_new"]
