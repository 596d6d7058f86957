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
from torch.multiprocessing.reductions import StorageWeakRef

from ..graphs import packed as packed
from ..runtime.torch_private import storage_owners


class Siblings:
    """Layers that are given one input, whose weights, and whose biases, have one storage each.

    Layers hold it, and it holds none of them. A copy of all of them, by deepcopy or pickle, gets
    one of its own.
    """

    def __init__(self, count: int, copied: bool = False, made: Iterable[StorageWeakRef] = ()):
        self._layers: list[weakref.ref | None] = [None] * count
        #: The storages that were made for them.
        self.made = set(made)
        #: Whether they are a copy of layers that were packed, and not packed yet. Then nobody else
        #: has a claim to their memory, whatever holds it until the copy is done.
        self._copied = copied

    def __reduce__(self):
        whole = (not _unlike(some) and _together(some) for some in self.parameters())
        return Siblings, (len(self._layers), all(whole))

    def join(self, layer: nn.Module, place: int) -> None:
        """Count a layer in, at this place in the storage."""
        there = self._layers[place]
        if there is None or there() is None:
            self._layers[place] = weakref.ref(layer)

    def leave(self, place: int) -> None:
        """Count the layer at this place no more."""
        self._layers[place] = None

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
        """Give them one storage where they can have one; whether a weight moved.

        Those of a copy that share one stay there: torch.load may fill it later.
        """
        moved, there = False, self.parameters()
        for parameters in there:
            if self._why_not(parameters) is not None:
                continue
            apart = not _together(parameters)
            if apart:
                _pack(parameters)
                moved = True
            if apart or self._copied:
                alive = {storage for storage in self.made if not storage.expired()}
                self.made = {*alive, StorageWeakRef(parameters[0].untyped_storage())}
        self._copied = self._copied and not there
        return moved

    def why_not(self) -> str | None:
        """Why they can't be given one storage, or None. Those that share one already can."""
        there = self.parameters()
        if not there:
            return "a weight is made anew at each call"
        return next(filter(None, map(self._why_not, there)), None)

    def unpack(self) -> None:
        """Give each that was moved a storage of its own again, unless somebody else has a claim."""
        with _ordinary():
            for parameters in self.parameters():
                if any(type(one) is not nn.Parameter for one in parameters):
                    continue
                if self._claim(parameters) is None:
                    for one in parameters:
                        if StorageWeakRef(one.untyped_storage()) in self.made:
                            one.data = one.detach().clone()

    def _why_not(self, parameters: Sequence[nn.Parameter]) -> str | None:
        if reason := _unlike(parameters):
            return reason
        if self._copied or _together(parameters):
            return None
        return self._claim(parameters)

    def _claim(self, parameters: Sequence[nn.Parameter]) -> str | None:
        """Who else has a claim to the memory of these parameters, or None."""
        storages = [one.untyped_storage() for one in parameters]
        for storage in storages:
            ours = StorageWeakRef(storage) in self.made
            uses = sum(one._cdata == storage._cdata for one in storages) if ours else 1
            if storage_owners(storage) != uses:
                return "another tensor shares a weight's memory"
            if not storage.resizable() and not ours:
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


def _pack(parameters: Sequence[nn.Parameter]) -> None:
    """Give them one storage. For the time of the copy, all are there twice.

    It is one that torch won't resize: `untyped_storage().resize_(0)` of one would free the others.
    """
    with _ordinary():
        together = torch.from_dlpack(torch.cat([one.detach() for one in parameters]))
        parts = together.split([one.shape[0] for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.data = part


def _ordinary():
    """Where tensors are made that autograd can record, whatever mode the caller is in."""
    return torch.inference_mode(False)
