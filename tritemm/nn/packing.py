"""Two weights of one shape in one storage, so that one product reads both.

The pair stay two Parameters, whose data lie one after the other: optimizers, `load_state_dict` and
gradients work on each in place. Nothing remembers that they were packed. Whether they are is asked
of their addresses, each time, so that it can't be out of date: `.to()`, `assign=True`, FSDP and
whoever else gives a Parameter other memory have no need to tell.
"""

from __future__ import annotations

import torch
from torch import nn


def packed(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor | None:
    """[2 I, K] over both weights [I, K], where the second one's memory follows the first one's.

    None where it doesn't. The storage of the first must reach over the second: memory of another
    storage may begin at that address by chance.
    """
    if first.shape != second.shape or first.dtype != second.dtype or not first.numel():
        return None
    if not (first.is_contiguous() and second.is_contiguous()):
        return None
    size = first.numel() * first.element_size()
    end = first.storage_offset() * first.element_size() + 2 * size
    if second.data_ptr() - first.data_ptr() != size or first.untyped_storage().nbytes() < end:
        return None
    rows, cols = first.shape
    return first.detach().as_strided((2 * rows, cols), (cols, 1))


def pack_why_not(first: nn.Parameter, second: nn.Parameter) -> str | None:
    """Why the two can't be given one storage, or None. Those that share one already can."""
    if any(type(weight) is not nn.Parameter for weight in (first, second)):
        return f"its weights are {type(first).__name__} and {type(second).__name__}"
    if first is second:
        return "gate and up share one weight"
    for name in ("shape", "dtype", "device"):
        one, other = getattr(first, name), getattr(second, name)
        if one != other:
            return f"gate's {name} is {one}, up's is {other}"
    if first.numel() * first.element_size() % 16:
        return f"up would begin {first.numel()} elements behind gate, at no multiple of 16 bytes"
    if first.is_meta or packed(first, second) is not None:
        return None
    if not all(_has_its_storage(weight, half) for half, weight in enumerate((first, second))):
        return "a weight is a part of a larger storage, which may belong to something else"
    if first.device.type == "cpu" and (first.is_shared() or second.is_shared()):
        return "a weight lies in memory that is shared with other processes"
    return None


def _has_its_storage(weight: torch.Tensor, half: int) -> bool:
    """Whether the weight is all of its storage, or that `half` of it which packing gave to it.

    The other half was left when the two came apart; and pickle stores for each all that it reaches.
    """
    size = weight.untyped_storage().nbytes()
    was_packed = size == 2 * weight.nbytes and weight.storage_offset() == half * weight.numel()
    return was_packed or size == weight.nbytes


def pack(first: nn.Parameter, second: nn.Parameter) -> None:
    """Give the two one storage, if they can have one and are not on the meta device.

    For the time of the copy, both are there twice.
    """
    if pack_why_not(first, second) or first.is_meta or packed(first, second) is not None:
        return
    first.data, second.data = torch.cat([first.detach(), second.detach()]).chunk(2)


def unpack(first: nn.Parameter, second: nn.Parameter) -> None:
    """Give each of the two a storage of its own again."""
    plain = type(first) is type(second) is nn.Parameter and not first.is_meta
    if plain and packed(first, second) is not None:
        first.data, second.data = first.detach().clone(), second.detach().clone()
