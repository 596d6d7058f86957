"""Triton's launch without the work that it repeats at every call.

`fn[grid](...)` binds arguments, inspects each for what the compiler specialises on, encodes a
tensor map per descriptor and calls a C function. If a product is repeated, only the addresses and
the stream are new. A `Call` keeps the rest: the C function's arguments with holes for addresses,
and the tensor maps encoded before.

If that function can't be called (`triton_private`), `bind` returns None and `fn[grid](...)`
launches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from triton.runtime.jit import JITFunction

from . import triton_private
from .bounded import Bounded
from .maps import Maps
from .torch_private import current_stream
from .triton_private import Loaded, Moved, in_boxes, in_clusters

_LOG = logging.getLogger("tritemm.compile")
#: The most compiled kernels to remember; there are far fewer of them than shapes.
KERNELS = 1 << 14


class Call:
    """One launch that only lacks its stream and addresses; safe to share between threads."""

    __slots__ = ("_args", "_head", "_holes", "_loaded", "_run", "_stream")
    _head: list | None

    def __init__(self, loaded: Loaded, grid: Sequence[int], args: list, holes: list):
        head = [*(*grid, 1, 1)[:3], *loaded.head[3:]]
        self._loaded, self._run, self._stream = loaded, loaded.run, loaded.stream
        if loaded.nested:
            self._head, self._args = head, args
        else:
            self._head, self._args = None, head + args
            holes = [(place + len(head), *hole) for place, *hole in holes]
        self._holes = tuple(holes)

    def placed(self, places: Sequence[int]) -> Call:
        """The same launch, which takes the address of its operand i from `places[i]`."""
        other = object.__new__(Call)
        other._args, other._head, other._loaded = self._args, self._head, self._loaded
        other._run, other._stream = self._run, self._stream
        other._holes = tuple([(place, places[at], maps) for place, at, maps in self._holes])
        return other

    def __call__(self, stream: int, addresses: Sequence[float]) -> None:
        """Launch on `stream`, a CUDA stream's handle of the current device.

        `addresses` are those of the operands passed to `bind`, in order, and the values of the
        arguments for which it got names.
        """
        args = self._args.copy()
        for place, operand, maps in self._holes:
            address = addresses[operand]
            args[place] = address if maps is None else maps[address]
        if self._head is None:
            args[self._stream] = stream
            self._run(*args)
        else:
            head = self._head.copy()
            head[self._stream] = stream
            self._run(*head, args)


_LOADED: dict[tuple, Loaded | None] = Bounded(KERNELS)
_LOADING = threading.Lock()


def bind(
    fn, grid: Sequence[int], values: dict[str, Any], options: dict[str, Any],
    operands: Sequence[torch.Tensor | str], device: int, cluster: int = 1,
) -> Call | None:  # fmt: skip
    """The call `fn[grid](**values, **options)` on any addresses of `operands`; None if it can't be.

    `values` names each parameter of `fn`. Those that are addresses of `operands` (different
    objects), or their descriptors, are recognised by identity. A name among the operands is that
    of a float, which each launch passes like an address. Compiles and loads the kernel if
    necessary, and launches nothing. `device` is the current CUDA device.
    """
    if not isinstance(fn, JITFunction) or not triton_private.plain():
        return None
    try:
        values = {name: values[name] for name in fn.arg_names}
        key = _kernel_key(fn, values, options, device)
        loaded: Any = _LOADED.get(key, _LOADED)
    except (Moved, AttributeError, KeyError, TypeError):
        return None
    if loaded is _LOADED:  # missing; None is a possible value
        loaded = _load(key, fn, grid, values, options, cluster)
    try:
        return loaded and Call(loaded, grid, *_layout(loaded, values, operands))
    except (Moved, KeyError):  # or an argument is a tensor created at every call
        return None


def _load(key: tuple, fn, grid, values, options, cluster: int) -> Loaded | None:
    """Compile and load the kernel that `key` names; None if Triton has to launch it.

    Only one thread at a time: to others, Triton's kernel looks loaded before it is.
    """
    with _LOADING:
        if key not in _LOADED:
            # The caller sees a compiler's error, as from Triton's own launch.
            compiled = compile_kernel(fn, grid, values, options, cluster)
            try:
                loaded = Loaded.of(compiled, len(values))
            except Exception:  # something has moved; Triton's own launch tells better
                loaded = None
            _LOADED[key] = loaded
        return _LOADED[key]


def compile_kernel(fn, grid, values, options, cluster: int = 1):
    """The kernel that `fn[grid](**values, **options)` runs, in clusters of `cluster` programs.

    A descriptor may have a `box` of which its block is only a divisor.
    """
    triton_private.settle(fn)
    begin = time.perf_counter()
    compiled = fn.warmup(grid=tuple(grid), **values, **options)
    seconds = time.perf_counter() - begin
    _LOG.info("%s: compiled, or read from Triton's cache, in %.2f s", fn.__name__, seconds)
    ordered = (values[name] for name in fn.arg_names if hasattr(values.get(name), "block_shape"))
    boxes = [getattr(descriptor, "box", None) for descriptor in ordered]
    if any(boxes):
        in_boxes(compiled, boxes)
    if cluster > 1:
        in_clusters(compiled, cluster)
    return compiled


#: The most calls that `call_of` keeps.
CALLS = 4096
_CALLS: dict[Hashable, Call | None] = Bounded(CALLS)


def call_of(key: Hashable, make: Callable[[], Call | None]) -> Call | None:
    """What `make()` returned for `key` the first time."""
    call: Any = _CALLS.get(key, _CALLS)
    if call is _CALLS:  # missing; None is a possible value
        call = make()
        _CALLS[key] = call
    return call


def launch(
    key: Hashable, fn, grid: Sequence[int], values: dict[str, Any], options: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    arguments: Callable[[dict[str, torch.Tensor]], dict[str, Any]] = dict,
) -> Call | None:  # fmt: skip
    """`fn[grid](**values, **arguments(tensors), **options)`, fast from the second call on.

    `arguments` turns the tensors into the kernel's parameters: the tensors themselves, or their
    descriptors. `key` must determine everything but the tensors' addresses, also their alignment to
    16 bytes. They are on the current device. Returns what repeats the launch, or None.
    """
    device = next(iter(tensors.values())).get_device()
    if device >= 0 and triton_private.plain():

        def make() -> Call | None:
            apart = {name: tensor.detach() for name, tensor in tensors.items()}
            given = values | arguments(apart)
            return bind(fn, grid, given, options, tuple(apart.values()), device)

        call = call_of((fn, key, device), make)
        if call is not None:
            call(current_stream(device), [t.data_ptr() for t in tensors.values()])
            return call
    fn[tuple(grid)](**values, **arguments(tensors), **options)
    return None


def launch_alike(
    fn, grid: Sequence[int], values: dict[str, Any], tensors: dict[str, torch.Tensor], warps: int
) -> Call | None:
    """`launch` on the first tensor's device, if nothing else determines the launch but these
    arguments, and the types and alignment of the tensors."""
    key = (*grid, *values.values(), *((t.dtype, t.data_ptr() & 15) for t in tensors.values()))
    with torch.cuda.device_of(next(iter(tensors.values()))):
        return launch(key, fn, grid, values, {"num_warps": warps}, tensors)


def _kernel_key(fn, values: dict[str, Any], options: dict[str, Any], device: int) -> tuple:
    """All that Triton compiles a kernel for, at least as finely divided as Triton does.

    For an integer its type, whether it is 1, and whether 16 divides it; for a pointer its type and
    alignment; for a descriptor the type, the block and the layout; a constexpr itself.
    """
    kinds: list[Any] = []
    for parameter, value in zip(fn.params, values.values(), strict=True):
        if parameter.is_constexpr:
            kinds.append(value)
        elif type(value) is int:
            narrow = -(2**31) <= value < 2**31
            unspecialised = parameter.do_not_specialize
            kinds.append(narrow if unspecialised else (narrow, value == 1, value % 16 == 0))
        elif value is None or type(value) is float:
            kinds.append(type(value))
        elif isinstance(value, torch.Tensor):
            kinds.append((value.dtype, value.data_ptr() % 16 == 0))
        elif hasattr(value, "block_shape"):
            names = "layout", "padding", "round_f32_to_tf32"
            more = (getattr(value, name, None) for name in names)
            base = value.base.dtype, len(value.shape), tuple(value.block_shape)
            kinds.append((type(value), *base, *more))
        else:
            raise Moved(f"an argument is a {type(value).__name__}")
    return (fn, device, *kinds, *options.items())


def _layout(loaded: Loaded, values: dict, operands: Sequence) -> tuple[list, list]:
    """The kernel's arguments for the C function, and the holes: (place, operand, its maps).

    A descriptor is passed as its map, its shape and its strides.
    """
    args: list[Any] = []
    holes: list[tuple[int, int, Maps | None]] = []
    encoders = iter(loaded.encoders)
    names = (each if isinstance(each, str) else id(each) for each in operands)
    places = {name: index for index, name in enumerate(names)}
    for name, value in values.items():
        if name in places or isinstance(value, torch.Tensor):
            holes.append((len(args), places[name if name in places else id(value)], None))
            args.append(None)
        elif hasattr(value, "block_shape"):
            encode = next(encoders, None)
            if encode is None:
                raise Moved("descriptors are not passed as tensor maps")
            holes.append((len(args), places[id(value.base)], Maps(encode, value)))
            args += [None, *value.shape, *value.strides]
        else:
            args.append(value)
    if next(encoders, None) is not None:
        raise Moved("there are more descriptors than arguments")
    return args, holes
