"""Classes made as they are needed: a subclass of a model's own class, with another forward.

They bear the name of the class that they derive from, because FSDP's wrapping policies, device
maps and printed models go by names. Pickle can't find such a class, so an instance is pickled as
its two bases, from which the class is made again.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import types
from typing import ClassVar

from torch import nn


class Derived:
    """The first base of such a class; the second is `original`."""

    mixin: ClassVar[type[Derived]]
    original: ClassVar[type[nn.Module]]

    def __init_subclass__(cls, **given):
        """A class that keeps a list of its subclasses isn't told of those that are made here."""
        if "original" not in vars(cls):
            super().__init_subclass__(**given)

    def __reduce_ex__(self, protocol):
        make, args, *rest = super().__reduce_ex__(max(int(protocol), 2))
        if make is not copyreg.__newobj__:  # a class that pickles itself its own way
            return make, args, *rest
        return _new, (self.mixin, self.original), *rest


@functools.cache
def derived(mixin: type[Derived], original: type[nn.Module]) -> type[nn.Module]:
    """The class of both: `mixin` comes first, and its forward is called as the original's is."""
    own = mixin.forward
    forward = types.FunctionType(
        own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__
    )
    # Exported programs name their inputs by it.
    forward.__signature__ = inspect.signature(original.forward)
    names = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    made = {**names, "mixin": mixin, "original": original, "forward": forward}
    return type(original.__name__, (mixin, original), made)


def become(module: nn.Module, kind: type[nn.Module]) -> None:
    """Give `module` the class `kind`, such that what was compiled before is looked at again.

    To save time, compiled code of some torch releases asks of a module only whether its attributes
    were written to since, which a new class is not: so one is, and is taken away again.
    """
    module.__class__ = kind
    vars(module)["_class_is_new"] = True
    del vars(module)["_class_is_new"]


def hooked(module: object) -> bool:
    """Whether a call of the module is more than its class's forward."""
    if not isinstance(module, nn.Module):
        return False
    if len(module._forward_hooks) > 0 or len(module._forward_pre_hooks) > 0:
        return True
    return "forward" in module.__dict__


def _new(mixin, original):
    made = derived(mixin, original)
    return made.__new__(made)
