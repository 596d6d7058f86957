"""Several parameters in one storage, one after the other, so that one product reads them all.

They remain separate Parameters: optimizers, `load_state_dict` and gradients work on each in place.
Whether they are still adjacent is checked by their addresses each time, so the answer is never out
of date: `assign=True`, FSDP and others may give a Parameter other memory without notice. A weight
that shares its memory with anything else is never moved.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ..runtime.torch_private import in_others_hands, storage_of, storage_owners
from .graphs import packed as packed


class Siblings:
    """Layers with one input, whose weights, and whose biases, each share a storage.

    Layers refer to it, but it keeps none of them alive. If all of them are copied, by deepcopy or
    pickle, the copies get a `Siblings` of their own.
    """

    def __init__(self, count: int, copied: bool = False, made: Iterable[StorageWeakRef] = ()):
        self._count = count
        #: The layers, by their places in the storage.
        self.layers: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        #: The storages that were created for them.
        self.made = set(made)
        #: (storage, first byte, bytes) -> a storage of that part alone, while anyone uses it.
        self._parts: dict[tuple, StorageWeakRef] = {}
        #: Whether they are copies of packed layers, some of which are still to come. Until then,
        #: nobody else has a claim to their memory, whatever refers to it.
        self._copied = copied

    def __reduce__(self):
        if in_others_hands():
            return Siblings, (self._count,)
        whole = (not _unlike(some) and _together(some) for some in self.parameters())
        return Siblings, (self._count, all(whole))

    def all(self) -> list[nn.Module | None]:
        """The layers in order, None for one that no longer exists."""
        return [self.layers.get(place) for place in range(self._count)]

    def parameters(self) -> list[list[nn.Parameter]]:
        """The weights, and the biases if all layers have one.

        Empty if a layer or its weight is missing, or a weight is no Parameter.
        """
        layers = self.all()
        if None in layers:
            return []
        there = []
        for kind in PARAMETERS:
            some = [vars(layer)["_parameters"].get(kind) for layer in layers]
            if any(one is None for one in some):
                break
            there.append(some)
        return there

    def pack(self, copying: bool = False) -> bool:
        """Give the parameters one storage if possible; returns whether a weight moved.

        `copying`: a copy is in progress and brings one of them. Copies that share a storage stay
        there: torch.load may fill it later.
        """
        if in_others_hands():
            return False
        moved, copied = False, self._copied and copying
        for parameters in self.parameters():
            if self._why_not(parameters, copied) is None and not _together(parameters):
                _pack(parameters)
                moved = True
                self._keep(parameters)
        if copied:
            self._keep(self._everything())
        self._copied = copied and None in self.all()
        return moved

    def _keep(self, parameters: Iterable[nn.Parameter]) -> None:
        """Record the storages of these parameters as created for the layers."""
        alive = {storage for storage in self.made if not storage.expired()}
        self.made = alive.union(StorageWeakRef(one.untyped_storage()) for one in parameters)

    def _everything(self) -> list[nn.Parameter]:
        """All parameters of the existing layers, under any name, that have a storage."""
        every = dict.fromkeys(one for layer in self.layers.values() for one in layer.parameters())
        return [one for one in every if type(one) is nn.Parameter and one.layout is torch.strided]

    def why_not(self) -> str | None:
        """Why they can't get one storage, or None. Those that share one already can."""
        if in_others_hands():
            return "a transform of torch.func or a dispatch mode is active"
        there = self.parameters()
        if not there:
            return "a weight is not a Parameter of its layer"
        return next(filter(None, map(self._why_not, there)), None)

    def unpack(self) -> None:
        """Move parameters out of the storages created for them, each into one of its own.

        Unless somebody else has a claim to the storage.
        """
        if in_others_hands():
            return
        inside: dict[StorageWeakRef, list[nn.Parameter]] = {}
        for one in self._everything():
            storage = StorageWeakRef(one.untyped_storage())
            if storage in self.made:
                inside.setdefault(storage, []).append(one)
        with _ordinary():
            for parameters in inside.values():
                if self._claim(parameters) is None:
                    for one in parameters:
                        one.data = one.detach().clone()

    def alone(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same memory in a storage of its own size, if it is in one created for the layers."""
        if type(tensor) is not torch.Tensor or tensor.is_meta or not tensor.is_contiguous():
            return tensor
        if in_others_hands():
            return tensor
        storage = tensor.untyped_storage()
        if StorageWeakRef(storage) not in self.made or storage.resizable():
            return tensor  # its memory may be reused for another
        own = tensor.detach()  # shares the weight's version counter
        with _ordinary():
            part = self._part(storage, tensor.storage_offset() * tensor.element_size(), own.nbytes)
            own.data = tensor.new_empty(0).set_(part, 0, tensor.shape, tensor.stride())
        return own

    def _part(self, storage: torch.UntypedStorage, begin, size: int) -> torch.UntypedStorage:
        """One storage per part for all callers, while any of them uses it; so ties are kept."""
        key = storage._cdata, begin, size
        there = storage_of(self._parts[key]) if key in self._parts else None
        if there is None:
            there = storage[begin : begin + size]
            alive = {key: ref for key, ref in self._parts.items() if not ref.expired()}
            self._parts = {**alive, key: StorageWeakRef(there)}
        return there

    def _why_not(self, parameters: Sequence[nn.Parameter], copied: bool = False) -> str | None:
        if reason := _unlike(parameters):
            return reason
        if copied or _together(parameters):
            return None
        return self._claim(parameters)

    def _claim(self, parameters: Sequence[nn.Parameter]) -> str | None:
        """Who else has a claim to the memory of these parameters, or None."""
        places = sorted((one.data_ptr(), one.data_ptr() + one.nbytes) for one in parameters)
        if any(begin < end for (_, end), (begin, _) in itertools.pairwise(places)):
            return "another tensor shares a weight's memory"
        storages = [one.untyped_storage() for one in parameters]
        for storage in storages:
            ours = StorageWeakRef(storage) in self.made
            uses = sum(one._cdata == storage._cdata for one in storages) if ours else 1
            if storage_owners(storage) != uses:
                return "another tensor shares a weight's memory"
            if not storage.resizable() and not ours:
                return "a weight is in memory that torch doesn't own"
            if storage.device.type == "cpu" and storage.is_shared():  # on a GPU, always true
                return "a weight is in memory shared with other processes"
        return None


PARAMETERS = "weight", "bias"
#: Devices where packing makes compiled code faster. On the CPU it doesn't, and `share_memory_()`
#: would move a storage whose parts `alone` has handed out.
DEVICES = {"cuda", "meta"}


def pack_again(layer: nn.Module, copying: bool = False) -> None:
    """Pack the weight of a layer with those of its siblings again, if it has any."""
    siblings, place = getattr(layer, "_tritemm_siblings", (None, 0))
    if siblings is not None:
        siblings.layers.setdefault(place, layer)
        siblings.pack(copying)


def unpack_the_rest(layer: nn.Module) -> None:
    """Unpack a layer's weight and its siblings if one no longer exists or has moved away."""
    siblings, _ = getattr(layer, "_tritemm_siblings", (None, 0))
    if siblings is not None and not siblings.parameters():
        siblings.unpack()


def _together(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether they are packed already."""
    if parameters[0].is_meta or any(one.numel() == 0 for one in parameters):
        return True
    return packed(*parameters) is not None


def _unlike(parameters: Sequence[nn.Parameter]) -> str | None:
    """Why these parameters can't share one storage, or None."""
    if any(type(one) is not nn.Parameter for one in parameters):
        return f"its weights are {_listed(type(one).__name__ for one in parameters)}"
    if len(set(map(id, parameters))) < len(parameters):
        return "two of the layers share one weight"
    for words, of_one in _ALIKE.items():
        if len({of_one(one) for one in parameters}) > 1:
            return f"its weights' {words} are {_listed(str(of_one(one)) for one in parameters)}"
    if parameters[0].device.type not in DEVICES:
        return f"its weights are on the {parameters[0].device.type}, where packing gains nothing"
    if parameters[0].dim() == 0:
        return "its biases are scalars"
    *starts, _ = itertools.accumulate((one.nbytes for one in parameters), initial=0)
    if any(start % 16 for start in starts):
        return f"a weight would begin at byte {max(starts)}, not a multiple of 16"
    if any(one.is_inference() for one in parameters):
        return "a weight was made in inference mode"
    if not all(one.is_contiguous() for one in parameters):
        return "a weight is not contiguous"
    return None


#: In what these parameters must agree.
_ALIKE = {
    "shapes": lambda one: tuple(one.shape[1:]) if one.dim() else "a number",
    "types": lambda one: one.dtype,
    "devices": lambda one: one.device,
}


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}"


def _pack(parameters: Sequence[nn.Parameter]) -> None:
    """Move the parameters into one storage. During the copy, all exist twice.

    torch can't resize that storage: `untyped_storage().resize_(0)` on one would free the others.
    """
    with _ordinary():
        together = torch.from_dlpack(torch.cat([one.detach() for one in parameters]))
        parts = together.split([one.shape[0] for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.data = part


def _ordinary():
    """Creates tensors that autograd can record, whatever mode the caller is in."""
    return torch.inference_mode(False)
