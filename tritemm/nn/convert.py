"""`convert` makes an existing model multiply with tritemm; `restore` undoes it."""

from __future__ import annotations

import collections
import fnmatch
import itertools
import logging
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..dtypes import Precision, check_flag, of_fp32
from . import converted, float8, packing, registered
from .converted import Converted, Options, become
from .layers import Linear, why_not
from .report import Entry, Report

_LOG = logging.getLogger("tritemm.nn")
#: Names of a module's layers that may get the same input.
_SIBLINGS = (
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("wi_0", "wi_1"),
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
)
#: The most names of one module that `skip` is compared with.
_NAMES = 1000
#: What the report says of a converted layer.
_DONE = "by tritemm.linear"
#: What the report says of a module, in the order of its lists; None where it says nothing.
_Notes = tuple[str | None, ...]


def convert(
    model: nn.Module,
    *,
    batch_invariant: bool | None = None,
    precision: Precision | None = None,
    fp32: Precision | None = None,
    fuse: bool = True,
    skip: str | Collection[str] = (),
    dtype: str | None = None,
) -> Report:
    """Make a model multiply with tritemm, in place.

    Args:
        model: any module; it may itself be a layer.
        batch_invariant: a row's result has the same bits whatever other rows the input has. None
            keeps the setting of an earlier call, or False.
        precision: how float32 is multiplied, as in `tritemm.Linear`. None keeps the setting of an
            earlier call, or follows torch's flag.
        fp32: another name of `precision`.
        fuse: put the weights of layers that may share an input (q_proj, k_proj and v_proj of
            attention, gate_proj and up_proj of a gated MLP) into one storage: one compiled product.
        skip: the name of a module to leave unchanged with everything in it, or a pattern, or a list
            of these: ["lm_head", "layers.*.mlp"]. For a module with two names, either matches. A
            name that matches no module gives a warning.
        dtype: "fp8" makes layers, and transformers' experts, multiply like
            `tritemm.nn.Float8Linear`, in blocks; "int8" is for layers only, see below. None keeps
            the setting of an earlier call.

    Returns:
        What was changed, and what was left unchanged and why; it prints as a table.

    Layers whose class is exactly `nn.Linear`, or transformers' Conv1D, get a subclass of it: they
    stay the same objects with the same Parameters, hooks, attributes and state dict. All other
    modules stay as they are; for transformers' experts, the config names `tritemm.moe` as their
    implementation. Subclasses are left unchanged, for they may compute something else. Inputs that
    tritemm doesn't support (nested, sparse, on the CPU) run torch's own layer, and the report
    counts them. A second call is harmless: it sets the options passed to it, and packs again
    weights that were separated. Convert before capturing CUDA graphs: weights move.

    In int8, which is for inference, a layer has buffers instead of the Parameter `weight`, also in
    its state dict: `weight`, int8 [out_features, in_features], times `weight_scale`, float32
    [out_features, 1]. Only a model converted in the same way can load such a state dict, and it can
    load no other. Each row of an input has a scale. The input's gradient ignores the rounding; the
    weight has none.

    Raises:
        TypeError: `model` is no module, `skip` no name, or a flag no bool.
        ValueError: an unknown `precision` or `dtype`.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4, device=device), torch.nn.ReLU())
    >>> print(tritemm.convert(model))
    changed   1 x  *            Linear      [4, 8]  by tritemm.linear
    compiled  1 x  (the model)  Sequential          0 with relu
    """
    modules = _modules("convert", model)
    precision = of_fp32(precision, fp32)
    check_flag("fuse", fuse)
    if dtype not in (None, "fp8", "int8"):
        raise ValueError(f"dtype={dtype!r} is unknown; one of fp8, int8")
    if batch_invariant is not None:
        check_flag("batch_invariant", batch_invariant)
    skipped = _skipped(model, skip)
    options = {"batch_invariant": batch_invariant, "precision": precision}
    given = {name: value for name, value in options.items() if value is not None}
    found: list[tuple[str, nn.Module, _Notes]] = []
    owners = Counter(p for _, module in modules for p in module._parameters.values())
    read = _read_by_torch(modules) if dtype == "int8" else {}
    left = {**read, **dict.fromkeys(skipped, "named in skip")}
    for name, module in modules:
        notes = _convert_layer(module, given, left.get(module), dtype, owners)
        found.append((name, module, notes))
    in_fp8 = {"dtype": "fp8"} if dtype == "fp8" else {}
    found += registered.convert(modules, given | in_fp8, skipped)
    skipped |= {m for _, m in modules if isinstance(m, Converted) and m._tritemm_options.dtype}
    for name, module in modules if fuse else ():
        if isinstance(module, Converted) and module not in skipped:
            packing.unpack_the_rest(module)
        children = dict(module._modules.items())  # a ScriptModule's isn't a dict
        for names in _SIBLINGS:
            layers: list[Any] = [children.get(each) for each in names]
            if all(type(layer) is converted.Linear and layer not in skipped for layer in layers):
                found.append((name, module, _pack(names, layers, owners)))
    new = {module for _, module, (done, *_) in found if done == _DONE}
    for name, module in modules if fuse and not batch_invariant else ():
        found.append((name, module, (None, None, _ended(module, new))))
    report = _report(found)
    _LOG.info("convert:\n%s", report)
    return report


def restore(model: nn.Module) -> Report:
    """Give the layers of a model the classes back that they had before `convert`, in place.

    Returns:
        What was changed, and what was left unchanged and why.

    Packed weights get storages of their own again. A `tritemm.Linear` without an activation
    becomes an `nn.Linear`, even if `convert` didn't make it; one with an activation stays as it is.

    Raises:
        TypeError: `model` is no module.

    >>> import torch, tritemm
    >>> model = torch.nn.Linear(8, 4, device="cuda" if torch.cuda.is_available() else "cpu")
    >>> report = tritemm.convert(model)
    >>> print(tritemm.nn.restore(model))
    changed  1 x  (the model)  Linear  [4, 8]  as it was
    """
    modules = _modules("restore", model)
    return _report((name, module, _restore(module)) for name, module in modules)


def _modules(function: str, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All modules of a model and their names; TypeError if `model` is no module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}(): model must be torch.nn.Module, not {type(model).__name__}")
    return list(model.named_modules())


def _read_by_torch(modules) -> dict[nn.Module, str]:
    """Layers whose weights torch's encoder may read without calling them, and why they are left."""
    kind = nn.TransformerEncoderLayer
    parents = [module for _, module in modules if isinstance(module, kind)]
    return {
        layer: f"{kind.__name__} multiplies by its weight itself"
        for parent in parents for layer in parent.children()
    }  # fmt: skip


def _convert_layer(module: nn.Module, given: dict, left: str | None, dtype, owners) -> _Notes:
    """Convert one module, if it is a layer that `left` doesn't exclude; `owners` as in `_pack`."""
    ours = isinstance(module, Linear | Converted)
    if not ours and not _is_layer(module):
        return None, None
    if reason := left or (None if ours else _why_not(module)):
        return None, reason
    if dtype is not None:
        if ours and not isinstance(module, Converted):
            return None, "of tritemm.Linear; use Float8Linear for fp8"
        weight, given = _weight(module), given | {"dtype": dtype}
        if reason := float8.prepare(module, weight, dtype, owners[weight]):
            return None, reason
    if not ours:
        vars(module)["_tritemm_options"] = Options(**given)
        become(module, converted.class_for(type(module)))
        return f"{_DONE} in {dtype}" if dtype else _DONE, None
    before: Any = module._tritemm_options if isinstance(module, Converted) else module
    new = {name: value for name, value in given.items() if getattr(before, name) != value}
    if isinstance(module, Converted):
        vars(module)["_tritemm_options"] = before._replace(**new)
    else:
        vars(module).update(new)
    return ", ".join(f"{name}={value}" for name, value in new.items()) or None, None


def _is_layer(module: nn.Module) -> bool:
    """Whether the module multiplies by a weight, or its class name says so."""
    name = type(module).__name__
    if isinstance(module, nn.Linear):
        return True
    # Not torch's convolution: transformers' class, or one like it, has `nf`.
    named = name.endswith("Linear") or (name == "Conv1D" and "nf" in vars(module))
    return named and _weight(module) is not None


def _weight(module: nn.Module) -> torch.Tensor | None:
    """The weight of a module, or None; runs no property of the module's class to find it."""
    for place in (module._parameters, module._buffers, vars(module)):
        if "weight" in place and isinstance(place["weight"], torch.Tensor):
            return place["weight"]
    return None


def _why_not(module: nn.Module) -> str | None:
    """Why a layer can't be converted, or None."""
    kind, weight = type(module), _weight(module)
    if converted.class_for(kind) is None:
        name = f"{kind.__module__}.{kind.__name__}"
        return f"{name} is not nn.Linear, and may compute something else"
    if "forward" in vars(module):
        return "its forward was replaced in the instance"
    if not converted.has_own_forward(kind):
        return f"the forward of {kind.__name__} was replaced for all layers"
    return "it has no weight" if weight is None else why_not(weight)


def _pack(names: Sequence[str], layers: Sequence[nn.Module], owners: Counter) -> _Notes:
    """Pack the layers of these names in one module; `owners`: parameter -> number of modules."""
    words = f"{', '.join(names[:-1])} and {names[-1]}"
    known = [getattr(layer, "_tritemm_siblings", (None, 0)) for layer in layers]
    others = {each for each, _ in known if each is not None}
    for layer, (each, place) in zip(layers, known, strict=True):
        if each is not None:  # a copy made by hand has its original's siblings
            each.layers.setdefault(place, layer)
    siblings = known[0][0]
    if siblings is None or siblings.all() != list(layers):
        if any(each.parameters() for each in others):
            return None, f"{words} not packed: one of them is packed with others"
        made = (storage for each in others for storage in each.made)
        siblings = packing.Siblings(len(layers), made=made)
        siblings.layers.update(enumerate(layers))
    if len({layer._parameters.get("bias") is None for layer in layers}) > 1:
        return None, f"{words} not packed: some of them have a bias, others have none"
    reason = siblings.why_not()
    if any(owners[parameter] > 1 for layer in layers for parameter in layer.parameters()):
        reason = reason or "another module has one of its weights"
    if reason is not None:
        siblings.unpack()
        return None, f"{words} not packed: {reason}"
    for place, layer in enumerate(layers):
        vars(layer)["_tritemm_siblings"] = siblings, place
    again = "" if known[0][0] is None else " again"
    moved = siblings.pack() or not again
    return f"{words} packed{again}" if moved else None, None


def _ended(module: nn.Module, new: Collection[nn.Module]) -> str | None:
    """Which of the `new` layers in a Sequential get the activation that follows as an epilogue."""
    if type(module) is not nn.Sequential:
        return None
    pairs = itertools.pairwise(module._modules.items())
    found = [f"{i} with {_ENDS[type(act)]}" for (i, x), (_, act) in pairs
             if x in new and type(act) in _ENDS]  # fmt: skip
    return ", ".join(found) or None


#: Activations that `tritemm.nn.graphs` turns into epilogues.
_ENDS = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "silu"}


def _restore(module: nn.Module) -> _Notes:
    """Restore one module, if it is a layer of ours or experts that were converted."""
    if done := registered.restore(module):
        return done, None
    kind = type(module)
    if isinstance(module, Converted):
        original = module._tritemm_original
        if converted.class_for(original) is not kind:
            return None, f"{kind.__name__} is a subclass of what convert made"
        siblings, place = vars(module).pop("_tritemm_siblings", (None, 0))
        if siblings is not None:
            siblings.unpack()
            siblings.layers.pop(place, None)
        vars(module).pop("_tritemm_options", None)
        rounded = float8.restore(module)
        become(module, original)
        return "as it was, except its weight, rounded by int8" if rounded else "as it was", None
    if not isinstance(module, Linear):
        return None, None
    if module.activation is not None:
        return None, f"nn.Linear has no activation, and this layer has {module.activation}"
    if kind is not Linear:
        return None, f"{kind.__name__} is a subclass of tritemm.Linear"
    for name in ("activation", *Options._fields):
        vars(module).pop(name, None)
    become(module, nn.Linear)
    return "torch.nn.Linear", None


def _skipped(model: nn.Module, skip: str | Collection[str]) -> set[nn.Module]:
    """The modules with one of these names, and all modules inside them."""
    patterns = [skip] if isinstance(skip, str) or not isinstance(skip, Iterable) else list(skip)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"convert(): skip must be a module's name or several names, not {skip!r}")
    paths = list(_paths(model)) if patterns else []
    skipped: set[nn.Module] = set()
    for pattern in patterns:
        named = {module for name, module in paths if fnmatch.fnmatchcase(name, pattern)}
        if not named:
            known = f". Names look like {paths[0][0]!r}" if paths else ""
            warnings.warn(
                f"convert(): skip={pattern!r} excludes nothing: no module has this name{known}",
                stacklevel=3,
            )
        skipped.update(*(module.modules() for module in named))
    return skipped


def _paths(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All names of all modules in a model, but at most `_NAMES` per module.

    A module that is registered twice has two names, and so has everything in it. In a cycle,
    modules have infinitely many.
    """
    seen: Counter[nn.Module] = Counter()
    waiting = collections.deque([("", model)])
    while waiting:
        name, module = waiting.popleft()
        for own, child in module._modules.items():
            if child is not None and seen[child] < _NAMES:
                seen[child] += 1
                yield f"{name}{own}", child
                waiting.append((f"{name}{own}.", child))


def _report(found) -> Report:
    """A report from names, modules, and what to say of each."""
    lists: tuple[list[Entry], ...] = ([], [], [])
    for name, module, notes in found:
        weight: Any = registered.weight_of(module) if _weight(module) is None else _weight(module)
        known = any(notes) and weight is not None and not nn.parameter.is_lazy(weight)
        shape = tuple(weight.shape) if known else None
        for entries, note in zip(lists, notes, strict=False):
            if note:
                entries.append(Entry(name, type(module).__name__, shape, note))
    changed, left, compiled = map(tuple, lists)
    return Report(changed, left, compiled)
