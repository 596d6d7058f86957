"""`convert` has tritemm multiply in a model that is there; `restore` takes it back."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import nn

from ..problem import ACCUMULATE, INTERPRETED
from .activated import ActivatedMLP, callables, may_be_activated, steps_of
from .activations import Known, gating
from .derived import Derived, become, derived
from .forms import CHILDREN, chain, gated_form_why_not, looks_gated
from .gated import GatedMLP
from .layers import Conv1D, Linear
from .packing import pack_why_not, packed
from .projections import Merging, Packed, Projections, why_not_one_input
from .report import Entry, Report

_DEVICE = "cpu" if INTERPRETED else "cuda"
_OPTIONS = "batch_invariant", "precision"
#: Of the names of what `convert` leaves in a module beside the options of layers.
_PREFIX = "_tritemm_"
#: Names of a module's layers that may be given the same input, in attention.
_PROJECTIONS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("to_q", "to_k", "to_v"),
)


def convert(
    model: nn.Module,
    *,
    batch_invariant: bool = False,
    precision: str | None = None,
    fuse: bool = True,
    skip: Collection[str] = (),
) -> Report:
    """Have tritemm multiply in a model, in place.

    Args:
        model: any module; it may itself be a layer.
        batch_invariant: a row's result has the same bits whatever rows stand beside it.
        precision: how float32 is multiplied, as `tritemm.matmul` takes it.
        fuse: give gate_proj and up_proj of gated MLPs one storage, for one product in evaluation
            and in compiled code, and q_proj, k_proj and v_proj of attention, for one in compiled
            evaluation; and have the products of other MLPs, and of Sequentials, apply the
            activations that follow them, in evaluation.
        skip: names of modules to leave, with all that is in them, and patterns of such names:
            ["lm_head", "layers.*.mlp"].

    Returns:
        What was changed, and what was left and why; it prints as a table.

    `nn.Linear` becomes `tritemm.Linear`, transformers' Conv1D and MLPs become subclasses of their
    own class: the modules stay the same objects with the same Parameters, hooks and state
    dict. Subclasses of `nn.Linear` are left, for they may compute something else. A second call is
    harmless: it sets the options that it is given, and packs weights again that have come apart.
    Convert before CUDA graphs are captured: packed weights move.

    Raises:
        TypeError: `model` is no module.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4, device=device), torch.nn.ReLU())
    >>> print(tritemm.convert(model))
    changed  1 x  *            Linear      [4, 8]  tritemm.Linear
    changed  1 x  (the model)  Sequential          0 with relu
    """
    modules = _modules("convert", model)
    options = {"batch_invariant": batch_invariant, "precision": precision}
    given = {name: value for name, value in options.items() if value not in (False, None)}
    changed, left = [], []
    for step in _STEPS if fuse else _STEPS[:1]:
        for name, module in modules:
            done, why_not = step(module, given, _skipped(name, skip))
            for found, note in ((changed, done), (left, why_not)):
                if note:
                    found.append(_entry(name, module, note))
    return Report(tuple(changed), tuple(left))


def restore(model: nn.Module) -> Report:
    """Give the modules of a model the classes back that `convert` found, in place.

    Returns:
        What was changed, and what was left and why.

    Packed weights get storages of their own again. A `tritemm.Linear` without an activation
    becomes an `nn.Linear`, whoever made it; one with an activation is left: `nn.Linear` has none.

    Raises:
        TypeError: `model` is no module.

    >>> import torch, tritemm
    >>> model = torch.nn.Linear(8, 4, device="cuda" if torch.cuda.is_available() else "cpu")
    >>> report = tritemm.convert(model)
    >>> print(tritemm.nn.restore(model))
    changed  1 x  (the model)  Linear  [4, 8]  torch.nn.Linear
    """
    changed, left = [], []
    for name, module in _modules("restore", model):
        done, why_not = _restore_one(module)
        for found, note in ((changed, done), (left, why_not)):
            if note:
                found.append(_entry(name, module, note))
    return Report(tuple(changed), tuple(left))


def _modules(function: str, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All of a model and their names, for a function that may have been given something else."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{function}(): model must be torch.nn.Module, not {type(model).__name__}")
    return list(model.named_modules())


_REPLACED = "its forward was replaced in the instance"
#: What was done to a module, and why something wasn't; both None where there is nothing to say.
_Notes = tuple[str | None, str | None]


def _convert_layer(module: nn.Module, given: dict, skipped: bool) -> _Notes:
    """To one module, if it is a layer."""
    ours = isinstance(module, Linear | Conv1D)
    if not ours and not _is_layer(module):
        return None, None
    reason = "named in skip" if skipped else None if ours else _why_not(module)
    if reason:
        return None, reason
    new = {name: value for name, value in given.items() if getattr(module, name, None) != value}
    vars(module).update(new)
    if ours:
        return ", ".join(f"{k}={v}" for k, v in new.items()) or None, None
    if type(module) is nn.Linear:
        become(module, Linear)
        return "tritemm.Linear", None
    become(module, derived(Conv1D, type(module)))
    return "by tritemm.linear", None


def _is_layer(module: nn.Module) -> bool:
    """Whether the module multiplies by a weight, or its class says that it does."""
    return isinstance(module, nn.Linear) or _name_says(module, "Linear", "Conv1D")


def _name_says(module: nn.Module, *words: str) -> bool:
    """Not torch's convolution: transformers' class, or one like it, has `nf`."""
    name = type(module).__name__
    return isinstance(getattr(module, "weight", None), torch.Tensor) and (
        name.endswith(words[0]) or (name == words[1] and hasattr(module, "nf"))
    )


def _why_not(module: nn.Module) -> str | None:
    """Why a layer can't be converted, or None."""
    kind, weight = type(module), module.weight
    if kind is not nn.Linear and not _is_conv1d(module):
        return f"{kind.__module__}.{kind.__name__} is not nn.Linear, and may compute something else"
    if "forward" in vars(module):
        return _REPLACED
    if type(weight) not in (nn.Parameter, torch.Tensor) and not _is_dtensor(weight):
        return f"its weight is a {type(weight).__name__}"
    if weight.layout != torch.strided:
        return f"its weight is {weight.layout}"
    if weight.dtype not in ACCUMULATE or not weight.is_floating_point():
        return f"its weight is {weight.dtype}; tritemm.linear takes none"
    if weight.device.type not in (_DEVICE, "meta"):
        return f"its weight is on {weight.device}; move the model to {_DEVICE} first"
    return None


def _is_conv1d(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D, or its like, by name and attributes."""
    weight, bias = module.weight, getattr(module, "bias", None)
    return (
        type(module).__name__ == "Conv1D"
        and not isinstance(module, nn.modules.conv._ConvNd)
        and weight.dim() == 2
        and getattr(module, "nf", None) == weight.shape[1]
        and isinstance(bias, torch.Tensor)
        and bias.shape == weight.shape[1:]
    )


def _is_dtensor(weight: torch.Tensor) -> bool:
    """A sharded weight; FSDP2 puts a plain one in its place while the forward runs."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(weight, DTensor)


def _fuse_gated(module: nn.Module, given: dict, skipped: bool) -> _Notes:
    """To one module, if it is a gated MLP whose layers are converted."""
    if not looks_gated(module):
        return None, None
    ours = isinstance(module, GatedMLP)
    reason = "named in skip" if skipped else None if ours else gated_form_why_not(module)
    if reason := reason or _gated_why_not(module):
        return None, f"not fused: {reason}"
    gate, up = module.gate_proj.weight, module.up_proj.weight
    together = gate.is_meta or packed(gate, up) is not None
    word, act_fn = gating(module.act_fn), Known.of(module.act_fn)
    vars(module).update(_tritemm_gating=word, _tritemm_act_fn=act_fn)
    if not ours:
        become(module, derived(GatedMLP, type(module)))
    module.pack()
    if ours:
        return None if together else "gate and up packed again", None
    return f"gate and up packed, {word}", None


def _gated_why_not(module: nn.Module) -> str | None:
    """Why gate and up of a gated MLP can't be one product, or None."""
    if "forward" in vars(module):
        return _REPLACED
    for name in CHILDREN[:2]:
        layer = getattr(module, name)
        if type(layer) is not Linear or layer.activation is not None:
            return f"{name} is no tritemm.Linear without an activation"
        if layer.bias is not None:
            return f"{name} has a bias"
    if gating(module.act_fn) is None:
        return f"tritemm.linear has no gated form of {_act_name(module.act_fn)}"
    gate, up = module.gate_proj.weight, module.up_proj.weight
    if gate.shape != up.shape:
        return f"gate's shape is {list(gate.shape)}, up's is {list(up.shape)}"
    return pack_why_not(gate, up)


def _merge(module: nn.Module, given: dict, skipped: bool) -> _Notes:
    """To one module, if it has layers that may be given the same input."""
    ours = isinstance(module, Projections)
    names = module._tritemm_projections if ours else _projections_of(module)
    if not names:
        return None, None
    layers = [getattr(module, name) for name in names]
    reason = "named in skip" if skipped else _merge_why_not(module, layers)
    if reason := reason or (None if ours else why_not_one_input(module, names)):
        return None, f"not merged: {reason}"
    together = layers[0].weight.is_meta or packed(*(x.weight for x in layers)) is not None
    if not ours:
        merging = Merging()
        vars(module).update(_tritemm_projections=names, _tritemm_merging=merging)
        become(module, derived(Projections, type(module)))
        for layer in layers:
            vars(layer)["_tritemm_merging"] = merging
    module.pack()
    said = f"{', '.join(names[:-1])} and {names[-1]} packed"
    if ours:
        return None if together else f"{said} again", None
    return said, None


def _projections_of(module: nn.Module) -> tuple[str, ...] | None:
    """Those names of `_PROJECTIONS` under which the module has layers of ours, or None."""
    if isinstance(module, Derived):
        return None
    for names in _PROJECTIONS:
        if all(type(getattr(module, name, None)) is Linear for name in names):
            return names
    return None


def _merge_why_not(module: nn.Module, layers: Sequence[nn.Module]) -> str | None:
    """Why layers of one input can't be one product, or None."""
    if "forward" in vars(module):
        return _REPLACED
    if any(type(x) is not Linear or x.activation is not None for x in layers):
        return "a layer is no tritemm.Linear without an activation"
    biases = [x.bias for x in layers if x.bias is not None]
    if len(biases) not in (0, len(layers)):
        return "some of the layers have a bias, others have none"
    reason = pack_why_not(*(x.weight for x in layers))
    return reason or (pack_why_not(*biases) if biases else None)


def _fuse_activations(module: nn.Module, given: dict, skipped: bool) -> _Notes:
    """To one module, if it calls its children in turn, and activations follow converted layers."""
    ours = isinstance(module, ActivatedMLP)
    if (isinstance(module, Derived) and not ours) or not may_be_activated(module):
        return None, None
    steps, unknown = steps_of(module, chain(module, callables(module)) or ())
    pairs = [f"{step.child} with {step.word}" for step in steps if step.word]
    if not pairs and not unknown:
        return None, None
    if skipped:
        return None, "not fused: named in skip"
    if "forward" in vars(module):
        return None, f"not fused: {_REPLACED}"
    if not pairs:
        return None, f"not fused: tritemm.linear has no activation {_act_name(unknown[0])}"
    if ours and module._tritemm_steps == steps:
        return None, None
    vars(module)["_tritemm_steps"] = steps
    if not ours:
        become(module, derived(ActivatedMLP, type(module)))
    return ", ".join(pairs), None


#: What is done to each module, one after the other; the first is for layers.
_STEPS = _convert_layer, _fuse_gated, _fuse_activations, _merge


def _act_name(act_fn) -> str:
    return getattr(act_fn, "__name__", str(act_fn))


def _restore_one(module: nn.Module) -> _Notes:
    if not isinstance(module, Linear | Derived):
        return None, None
    kind = type(module)
    if isinstance(module, Linear) and module.activation is not None:
        return None, f"nn.Linear has no activation, this one {module.activation}"
    if kind is not Linear and kind is not derived(kind.mixin, kind.original):
        return None, f"{kind.__name__} is a subclass of what convert made"
    if isinstance(module, Packed):
        module.unpack()
    options = ("activation", *_OPTIONS) if isinstance(module, Linear | Conv1D) else ()
    for name in [name for name in vars(module) if name in options or name.startswith(_PREFIX)]:
        del vars(module)[name]
    become(module, nn.Linear if kind is Linear else kind.original)
    if kind is Linear:
        return "torch.nn.Linear", None
    return f"{kind.original.__module__}.{kind.original.__name__}", None


def _skipped(name: str, skip: Collection[str]) -> bool:
    """Whether the name, or that of a module around it, matches."""
    return any(fnmatch.fnmatchcase(each, p) for each in _enclosing(name) for p in skip)


def _enclosing(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _entry(name: str, module: nn.Module, note: str) -> Entry:
    weight = getattr(module, "weight", None)
    known = isinstance(weight, torch.Tensor) and not nn.parameter.is_lazy(weight)
    return Entry(name, type(module).__name__, tuple(weight.shape) if known else None, note)
