"""Several parameters in one storage, one after the other, so that one product reads them all.

They stay Parameters of their own: optimizers, `load_state_dict` and gradients work on each in
place. Nothing remembers that they were packed. Whether they are is asked of their addresses, each
time, so that it can't be out of date: `.to()`, `assign=True`, FSDP and whoever else gives a
Parameter other memory have no need to tell.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import nn


def packed(*tensors: torch.Tensor) -> torch.Tensor | None:
    """[sum of rows, ...] over all of them, [rows, ...] each, if one's memory follows another's.

    None where it doesn't. The storage of the first must reach over the last: memory of another
    storage may begin at that address by chance.
    """
    first = tensors[0]
    rest, address = first.shape[1:], first.data_ptr()
    for tensor in tensors:
        if tensor.shape[1:] != rest or tensor.dtype != first.dtype or not tensor.numel():
            return None
        if tensor.data_ptr() != address or not tensor.is_contiguous():
            return None
        address += tensor.nbytes
    begin = first.storage_offset() * first.element_size()
    if first.untyped_storage().nbytes() < begin + address - first.data_ptr():
        return None
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.detach().as_strided((rows, *rest), first.stride())


def pack_why_not(*parameters: nn.Parameter) -> str | None:
    """Why they can't be given one storage, or None. Those that share one already can."""
    if any(type(one) is not nn.Parameter for one in parameters):
        return f"its weights are {_listed(type(one).__name__ for one in parameters)}"
    if len(set(map(id, parameters))) < len(parameters):
        return "two of the layers share one weight"
    for words, of_one in _ALIKE.items():
        if len({of_one(one) for one in parameters}) > 1:
            return f"its weights' {words} are {_listed(str(of_one(one)) for one in parameters)}"
    first = parameters[0]
    *starts, whole = itertools.accumulate((one.numel() for one in parameters), initial=0)
    for start in starts:
        if start * first.element_size() % 16:
            return f"a weight would begin at element {start}, at no multiple of 16 bytes"
    if first.is_meta or packed(*parameters) is not None:
        return None
    if not all(map(_has_its_storage, parameters, starts, itertools.repeat(whole))):
        return "a weight is a part of a larger storage, which may belong to something else"
    if first.device.type == "cpu" and any(one.is_shared() for one in parameters):
        return "a weight lies in memory that is shared with other processes"
    return None


#: In what they must be alike.
_ALIKE = {
    "shapes": lambda one: tuple(one.shape[1:]),
    "types": lambda one: one.dtype,
    "devices": lambda one: one.device,
}


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}"


def _has_its_storage(one: torch.Tensor, start: int, whole: int) -> bool:
    """Whether the parameter is all of its storage, or that part of `whole` which packing gave it.

    It begins at element `start`. The other parts were left when they came apart; and pickle stores
    for each all that it reaches.
    """
    elements = one.untyped_storage().nbytes() // one.element_size()
    return elements == one.numel() or (elements == whole and one.storage_offset() == start)


def pack(*parameters: nn.Parameter) -> None:
    """Give them one storage, if they can have one and are not on the meta device.

    For the time of the copy, all are there twice.
    """
    if pack_why_not(*parameters) or parameters[0].is_meta or packed(*parameters) is not None:
        return
    together = torch.cat([one.detach() for one in parameters])
    parts = together.split([one.shape[0] for one in parameters])
    for one, part in zip(parameters, parts, strict=True):
        one.data = part


def unpack(*parameters: nn.Parameter) -> None:
    """Give each of them a storage of its own again."""
    plain = all(type(one) is nn.Parameter for one in parameters) and not parameters[0].is_meta
    if plain and packed(*parameters) is not None:
        for one in parameters:
            one.data = one.detach().clone()
