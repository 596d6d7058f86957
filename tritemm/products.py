"""What is worked out once for all products of a kind: the plan, the choice, the prepared launch.

A kind is everything about a call but the data: sizes, strides, types, alignment, options, device.
Nothing here holds a tensor or depends on an address.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from . import dispatch, launch, shortcut
from .kernels.pack import pack
from .precision import resolve
from .problem import Problem
from .torch_private import current_device as _current_device
from .workspace import Room

#: Kinds that are remembered; when there are more, all are forgotten.
KINDS = 4096
KNOWN: dict[tuple, Product] = {}


def result_shape(a, b) -> tuple[int, ...]:
    """Shape of the product of `a` [..., M, K] and `b` [..., K, N]."""
    batch = ()
    if a.dim() > 2 or b.dim() > 2:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, a.shape[-2], b.shape[-1])


def plan(a, b, out, precision: str | None, accumulate: torch.dtype | None):
    """The problem that computes `out` = a @ b, and the views of a, b, out that it describes.

    Batch dimensions that only `a` has become rows where memory allows it, so that a stack of
    matrices times one matrix is one large product. Operands are copied only where more than two
    batch dimensions would remain.
    """
    precision = resolve(precision, a.dtype)
    if out.dim() > 2:
        batch = out.shape[:-2]
        a = a.expand(*batch, *a.shape[-2:])
        b = b.expand(*batch, *b.shape[-2:])
        a, b, out = _fold(a, b, out)
    for copies in ((), (0,), (1,), (0, 1), (0, 1, 2)):
        operands = [t.contiguous() if i in copies else t for i, t in enumerate((a, b, out))]
        try:
            problem = Problem.of(*operands, precision=precision, accumulate=accumulate)
        except ValueError:
            continue
        return problem, *operands
    raise AssertionError("contiguous operands always merge")


def _fold(a, b, out):
    """Turn trailing batch dimensions into rows where `b` doesn't have them."""
    while out.dim() > 2 and (b.stride(-3) == 0 or out.shape[-3] == 1):
        rows = out.shape[-2]
        if any(t.stride(-3) != t.stride(-2) * rows for t in (a, out)) and out.shape[-3] != 1:
            break
        a = a.flatten(-3, -2)
        out = out.flatten(-3, -2)
        b = b.select(-3, 0)
    return a, b, out


class Product:
    """One kind of product. Made of tensors of that kind; multiplies any others of it."""

    def __init__(self, a, b, c, kernel: str, precision: str | None, accumulate):
        self.problem, *views = plan(a, b, c, precision, accumulate)
        choice = dispatch.choose(self.problem, kernel)
        self.kernel, self.config = choice.kernel, choice.config
        self.view = self.config.view(self.problem)
        self.device = c.get_device()
        self.options = (precision, accumulate)
        given = [(t.shape, t.stride(), t.element_size()) for t in (a, b, c)]
        self._given = given
        #: Whether the kernel takes a, b, c as they are.
        self.unchanged = views[0] is a and views[1] is b and views[2] is c
        #: Shape and strides of a, b, c as the kernel takes them; None if it takes copies.
        self.views = None
        if self.unchanged:
            self.views = tuple((shape, stride) for shape, stride, _ in given)
        elif all(v.data_ptr() == t.data_ptr() for v, t in zip(views, (a, b, c), strict=True)):
            self.views = tuple((v.shape, v.stride()) for v in views)
        self.size, self.stride, self.dtype = tuple(c.shape), c.stride(), c.dtype
        self.pack, self.swap = self.config.PACK, self.config.SWAP
        self.call: shortcut.Call | None = None

    @functools.cached_property
    def spans(self) -> tuple[int, ...]:
        """Bytes from the first element to the end of the last, of a, b, c."""
        return tuple(_span(*one) for one in self._given)

    @functools.cached_property
    def room(self) -> Room | None:
        """What each launch needs beside its operands."""
        make = self.kernel.workspace
        return make and Room.of(make(self.view, self.config, torch.device("meta")))

    def __call__(self, a, b, c) -> None:
        """Write a @ b into `c`, on its device."""
        if self.call is not None and _current_device() == self.device and shortcut.plain():
            self.launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), a, b)
            return
        if self.unchanged:
            views = (a, b, c)
        elif self.views is None:
            _, *views = plan(a, b, c, *self.options)
        else:
            views = [t.as_strided(*v) for t, v in zip((a, b, c), self.views, strict=True)]
        call = launch.run(self.kernel, self.problem, self.config, *views)
        if self.views is not None:
            self.call = call
        elif views[2].data_ptr() != c.data_ptr():  # batch strides that no kernel takes
            c.copy_(views[2].view(c.shape))

    def launch(self, a_address: int, b_address: int, c_address: int, a, b) -> None:
        """The same by the prepared call, on the current device, which is the product's."""
        if self.pack:
            operands = (t.as_strided(*v) for t, v in zip((a, b), self.views, strict=False))
            a, b = pack(self.problem, self.pack, *operands)
            a_address, b_address = a.data_ptr(), b.data_ptr()
        if self.swap:
            a_address, b_address = b_address, a_address
        stream = shortcut.current_stream(self.device)
        addresses: Sequence[int] = (a_address, b_address, c_address)
        if self.room is not None:
            sums, counters = self.room.take(self.device, stream)
            addresses = (*addresses, sums.data_ptr(), counters.data_ptr())
        self.call(stream, addresses)


def find(a, b, c, kernel: str, precision: str | None, accumulate) -> Product:
    """The product that computes `c` = a @ b, made now if its kind is new.

    Raises what `dispatch.choose` raises.
    """
    precision = resolve(precision, a.dtype)
    kinds = tuple(
        (t.shape, t.stride(), t.dtype, t.data_ptr() % 16 == 0, t.device) for t in (a, b, c)
    )
    key = (kinds, kernel, precision, accumulate)
    product = KNOWN.get(key)
    if product is None:
        product = Product(a, b, c, kernel, precision, accumulate)
        remember(key, product)
    return product


def remember(key: tuple, product: Product) -> None:
    """Have `product` under `key`."""
    if len(KNOWN) >= KINDS:
        KNOWN.clear()
    KNOWN[key] = product


def forget() -> None:
    """Plan and choose anew from now on: what was tuned has changed."""
    dispatch.forget()
    KNOWN.clear()


def span(t: torch.Tensor) -> int:
    """Bytes from the first element of `t` to the end of its last; 0 if it has none."""
    return _span(t.shape, t.stride(), t.element_size())


def _span(shape: Sequence[int], strides: Sequence[int], element: int) -> int:
    if 0 in shape:
        return 0
    return element * (1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)))
