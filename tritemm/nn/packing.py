"""Several parameters in one storage, one after the other, so that one product reads them all.

They stay Parameters of their own: optimizers, `load_state_dict` and gradients work on each in
place. Whether they lie together is asked of their addresses, each time, so that it can't be out of
date: `assign=True`, FSDP and whoever else gives a Parameter other memory have no need to tell. A
weight that shares its memory with anything else is never moved.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ..graphs import packed as packed
from ..runtime.torch_private import storage_owners


class Siblings:
    """Layers that are given one input, whose weights, and whose biases, have one storage each.

    Layers hold it, and it holds none of them. A copy of all of them, by deepcopy or pickle, gets
    one of its own.
    """

    def __init__(self, count: int, copied: bool = False):
        self._layers: list[weakref.ref | None] = [None] * count
        #: The addresses of the storages that were made for them.
        self.made: set[int] = set()
        #: Whether they are copies of layers that were packed, and not packed yet: each has memory
        #: of its own then, whatever else still holds it until the copy is done.
        self._copied = copied

    def __reduce__(self):
        whole = (not _unlike(some) and _together(some) for some in self.parameters())
        return Siblings, (len(self._layers), all(whole))

    def join(self, layer: nn.Module, place: int) -> None:
        """Count a layer in, at this place in the storage."""
        there = self._layers[place]
        if there is None or there() is None:
            self._layers[place] = weakref.ref(layer)

    def parameters(self) -> list[list[nn.Parameter]]:
        """The weights, and the biases if all have one.

        None if not all are there, or one has not got its parameters yet or has them made.
        """
        layers = [ref and ref() for ref in self._layers]
        if None in layers:
            return []
        kinds = ([vars(x)["_parameters"].get(kind) for x in layers] for kind in _PARAMETERS)
        return [some for some in kinds if all(one is not None for one in some)]

    def pack(self) -> bool:
        """Give them one storage where they can have one; whether a weight moved."""
        moved, there = False, self.parameters()
        for parameters in there:
            if _unlike(parameters) or self._packed(parameters):
                continue
            if self._copied or self._claimed(parameters) is None:
                self.made.add(_pack(parameters))
                moved = True
        self._copied = self._copied and not there
        return moved

    def why_not(self) -> str | None:
        """Why they can't be given one storage, or None. Those that share one already can."""
        for parameters in self.parameters():
            reason = _unlike(parameters)
            if not reason and not _together(parameters):
                reason = self._claimed(parameters)
            if reason:
                return reason
        return None if self.parameters() else "a weight is made anew at each call"

    def unpack(self) -> None:
        """Give each of them that was moved a storage of its own again."""
        with _ordinary():
            for one in itertools.chain(*self.parameters()):
                if type(one) is nn.Parameter and self._is_made(one.untyped_storage()):
                    one.data = one.detach().clone()

    def _is_made(self, storage: torch.UntypedStorage) -> bool:
        known = storage._cdata in self.made and not storage.resizable()
        return known and not _in_shared_memory(storage)

    def _packed(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Whether there is nothing to pack. A storage that was loaded may be one to free a part of.

        One that was loaded from a file or another process isn't, and takes the place of ours.
        """
        if not _together(parameters) or parameters[0].is_meta or not self._copied:
            return _together(parameters)
        storage = parameters[0].untyped_storage()
        if not storage.resizable():
            self.made.add(storage._cdata)
        return not storage.resizable()

    def _claimed(self, parameters: Sequence[nn.Parameter]) -> str | None:
        """Who else has a claim to the memory of these parameters, or None."""
        here = [one.untyped_storage() for one in parameters]
        for storage in here:
            made = self._is_made(storage)
            known = sum(one._cdata == storage._cdata for one in here) if made else 1
            if storage_owners(storage) != known:
                return "another tensor shares a weight's memory"
            if not storage.resizable() and not made:
                return "a weight lies in memory that is not torch's"
            if _in_shared_memory(storage):
                return "a weight lies in memory that is shared with other processes"
        return None


_PARAMETERS = "weight", "bias"


def pack_again(layer: nn.Module) -> None:
    """Pack the weight of a layer with those of its siblings, if it has any."""
    siblings, place = getattr(layer, "_tritemm_siblings", (None, 0))
    if siblings is not None:
        siblings.join(layer, place)
        siblings.pack()


def _together(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether there is nothing to pack."""
    return parameters[0].is_meta or packed(*parameters) is not None


def _unlike(parameters: Sequence[nn.Parameter]) -> str | None:
    """Why one storage would not do for them, or None."""
    if any(type(one) is not nn.Parameter for one in parameters):
        return f"its weights are {_listed(type(one).__name__ for one in parameters)}"
    if len(set(map(id, parameters))) < len(parameters):
        return "two of the layers share one weight"
    for words, of_one in _ALIKE.items():
        if len({of_one(one) for one in parameters}) > 1:
            return f"its weights' {words} are {_listed(str(of_one(one)) for one in parameters)}"
    *starts, _ = itertools.accumulate((one.nbytes for one in parameters), initial=0)
    if any(start % 16 for start in starts):
        return f"a weight would begin at byte {max(starts)}, at no multiple of 16"
    if any(one.is_inference() for one in parameters):
        return "a weight was made in inference mode"
    if not all(one.is_contiguous() for one in parameters):
        return "a weight is not contiguous"
    return None


#: In what they must be alike.
_ALIKE = {
    "shapes": lambda one: tuple(one.shape[1:]),
    "types": lambda one: one.dtype,
    "devices": lambda one: one.device,
}


def _in_shared_memory(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu" and storage.is_shared()  # on a GPU, all say so


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}"


def _pack(parameters: Sequence[nn.Parameter]) -> int:
    """Give them one storage; its address. For the time of the copy, all are there twice.

    It is one that torch won't resize: `untyped_storage().resize_(0)` of one would free the others.
    """
    with _ordinary():
        together = torch.from_dlpack(torch.cat([one.detach() for one in parameters]))
        parts = together.split([one.shape[0] for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.data = part
    return together.untyped_storage()._cdata


def _ordinary():
    """Where tensors are made that autograd can record, whatever mode the caller is in."""
    return torch.inference_mode(False)
