"""Gluon's names as in Triton 3.6 to 3.9: names that moved, and aggregates.

The alternatives after an `or` here, and the constructor of `aggregate`, can go with Triton 3.6.
`ptx` has what no release has a name for.
"""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language import core

cp_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
cp_async_commit, cp_async_wait = async_copy.commit_group, async_copy.wait_group
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
async_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
tma_store_wait = tma.store_wait
barrier = getattr(gl, "barrier", None) or gl.thread_barrier
_memory = gl.shared_memory_descriptor
reinterpret = getattr(_memory, "reinterpret", None) or _memory._reinterpret
#: Any value of a kernel that is no `gl.constexpr`; None for a missing one.
Value = core.base_value
unwrap = core._unwrap_if_constexpr


def builtin(function):
    """Make Python call a function when a kernel that calls it is compiled."""
    function.__triton_builtin__ = True
    return function


def aggregate(cls):
    """Triton's, with a constructor that takes the fields in their order, as 3.9 makes it."""

    def fill(self, *values):
        for name, value in zip(cls.__annotations__, values, strict=True):
            setattr(self, name, value)

    cls.__init__ = builtin(fill)
    return core._aggregate(cls)
