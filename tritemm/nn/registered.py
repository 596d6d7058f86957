"""transformers' experts on `tritemm.moe`: a function that a model's config names.

`register_experts` adds it, and `convert` names it in the config. Modules keep their classes and get
attributes: `_tritemm_options`, and `_tritemm_before`, what their config named unless "tritemm".
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..api.arguments import under_autocast
from ..api.moe import moe
from ..dtypes import REAL
from ..namespace import NAMESPACE
from ..runtime.torch_private import global_hooks
from . import float8, layers
from .converted import Options, by_torch, why_torch

#: The name by which transformers knows the function.
NAME = NAMESPACE
#: Where a module keeps the hooks that its call runs.
_HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
#: id of a config -> what it named before `convert`; copied modules keep this themselves.
_BEFORE: dict[int, tuple[weakref.ref, Any]] = {}
#: Where transformers keeps the forward that it gives to classes of experts, which reads the config.
_HOME = "transformers.integrations.moe"
#: The attribute that transformers sets on a module whose experts run such a function.
_KNOWN = {"config", "has_gate", "has_bias", "is_transposed"}


class ExpertOptions(Options):
    """Options of experts; unpickling them in another process registers the function there."""

    def __reduce__(self):
        return _unpickled, tuple(self)


def _unpickled(*fields) -> ExpertOptions:
    register_experts()
    return ExpertOptions(*fields)


@functools.cache
def register_experts() -> None:
    """Register `tritemm.moe` with transformers as the experts implementation "tritemm".

    Then `model.set_experts_implementation("tritemm")` works, and so does `from_pretrained(...,
    Then `model.set_experts_implementation("tritemm")` works, and so does `from_pretrained(...,
    experts_implementation="tritemm")`. `tritemm.convert` calls this for models that have experts;
    importing tritemm doesn't. What `tritemm.moe` doesn't support, such as a norm after each expert,
    runs the implementation named before `convert`, or the experts' own forward, and is counted in

    Raises:
        ImportError: transformers is missing, or older than 5.17.
    """
    from transformers import activations
    from transformers.integrations import moe as theirs

    default = getattr(theirs, "_default_apply_gate", None)
    silu, gelu = activations.SiLUActivation, activations.GELUActivation
    kinds: Any = ((nn.SiLU, "silu"), (silu, "silu"), (gelu, "gelu"))
    fused = {kind: (name, kind.forward) for kind, name in kinds}

    def gate_of(self):
        """The gate's activation: its name, unless somebody has changed what it does."""
        gate = self._apply_gate
        act: Any = getattr(self, "act_fn", None)
        name, forward = fused.get(type(act), (None, None))
        plain = (
            name is not None
            and getattr(gate, "__func__", gate) is default
            and getattr(act.forward, "__func__", None) is forward
            and not any(getattr(act, hooks) for hooks in _HOOKS)
            and not global_hooks()
        )
        return name if plain else gate

    def experts_forward(self, hidden_states, top_k_index, top_k_weights) -> torch.Tensor:
        names = "gate_up_proj" if self.has_gate else "up_proj", "down_proj"
        up, down = (getattr(self, name) for name in names)
        options = getattr(self, "_tritemm_options", ExpertOptions())
        reasons = [why_torch(hidden_states, weight, None, options.dtype) for weight in (up, down)]
        if options.dtype and up.dtype not in REAL:
            reasons.append(f"weights of {up.dtype}")
        reason = _why_norm(self) or next(filter(None, reasons), None)
        if reason is not None:
            before = getattr(self, "_tritemm_before", "eager")
            back = theirs.ALL_EXPERTS_FUNCTIONS.get_interface(before, _own_forward(type(self)))
            return by_torch(reason, back, self, hidden_states, top_k_index, top_k_weights)
        biases = [getattr(self, f"{name}_bias") if self.has_bias else None for name in names]
        activation = gate_of(self) if self.has_gate else self.act_fn
        x = hidden_states
        if not under_autocast(x.device):
            x = x.to(up.dtype)  # as transformers' own
        if self.is_transposed:
            up, down = up.mT, down.mT
        result = moe(
            x, up, down, top_k_index, top_k_weights, activation=activation,
            gate_up_bias=biases[0], down_bias=biases[1], batch_invariant=options.batch_invariant,
            precision=None if options.dtype else layers.precision_of(options.precision, up),
            dtype=options.dtype,
        )  # fmt: skip
        return result.to(hidden_states.dtype)

    theirs.ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)


def _own_forward(kind: type[nn.Module]) -> Any:
    """The original forward of a class of experts, which transformers has wrapped."""
    forwards = (vars(each).get("forward") for each in kind.__mro__)
    return next(filter(None, (getattr(each, "__wrapped__", None) for each in forwards)))


def are_experts(module: nn.Module) -> bool:
    """Whether a module holds experts that transformers runs through a function."""
    own = vars(module)
    return own.keys() >= _KNOWN and hasattr(own["config"], "_experts_implementation")


def weight_of(module: nn.Module) -> Any:
    """The first weight of experts; None for other modules, and if it isn't a parameter."""
    if not are_experts(module):
        return None
    own = vars(module)
    return own["_parameters"].get("gate_up_proj" if own["has_gate"] else "up_proj")


def convert(
    modules: Iterable[tuple[str, nn.Module]], given: dict, skipped: Collection[nn.Module]
) -> Iterator[tuple[str, nn.Module, tuple[str | None, str | None]]]:
    """Convert experts among the modules, all or none with the same config; yield their notes."""
    experts: list[tuple[str, Any]] = [each for each in modules if are_experts(each[1])]
    named = {id(each.config): each.config._experts_implementation for _, each in experts}
    before: dict[int, Any] = {}
    reasons: dict[int, str | None] = {}
    for _, each in experts:
        config = id(each.config)
        reasons[config] = reasons.get(config) or _why_not(each, skipped, "dtype" in given)
        if before.get(config, NAME) == NAME:
            before[config] = _before(each)
    for name, module in experts:
        config, own = id(module.config), vars(module)
        if reasons[config] is not None:
            yield name, module, (None, reasons[config])
            continue
        register_experts()
        module.config._experts_implementation = {"": NAME}  # not nested configs
        old = own.get("_tritemm_options", ExpertOptions())
        own["_tritemm_options"] = old._replace(**given)
        said = [f"{key}={value}" for key, value in given.items() if getattr(old, key) != value]
        if before[config] != NAME:
            if named[config] != NAME or "_tritemm_before" not in own:
                said = ["by tritemm.moe" + " in fp8" * ("dtype" in given)]
            own["_tritemm_before"] = before[config]
            _BEFORE[config] = weakref.ref(module.config), before[config]
        yield name, module, (", ".join(said) or None, None)


def restore(module: nn.Module) -> str | None:
    """What became of experts that ran tritemm since `convert`; None for other modules."""
    if not are_experts(module):
        return None
    own, config, before = vars(module), vars(module)["config"], _before(module)
    runs = config._experts_implementation == NAME and before != NAME
    converted = own.pop("_tritemm_options", None) is not None
    if not runs and not converted:
        return None
    own.pop("_tritemm_before", None)
    _BEFORE.pop(id(config), None)
    if runs:
        config._experts_implementation = {"": before}
    return "as it was"


def _before(module: nn.Module) -> Any:
    """What the experts' config named before `convert`; "tritemm" if unknown."""
    own, config = vars(module), vars(module)["config"]
    if config._experts_implementation != NAME:
        return config._experts_implementation
    there, before = _BEFORE.get(id(config), (None, NAME))
    return before if there and there() is config else own.get("_tritemm_before", NAME)


def _why_not(module: nn.Module, skipped: Collection[nn.Module], in_fp8: bool) -> str | None:
    """Why experts, and those that share their config, can't be converted; or None."""
    if module in skipped:
        return "named in skip, or sharing a config with experts that are"
    if (weight := weight_of(module)) is None:
        return "their weights are not parameters of the module"
    if "forward" in vars(module):
        return "their forward was replaced in the instance"
    kind = type(module)
    if getattr(kind.forward, "__globals__", {}).get("__name__") != _HOME:
        return f"the forward of {kind.__name__} was replaced for all layers"
    old = float8.too_old(weight) if in_fp8 else None
    return _why_norm(module) or layers.why_not(weight) or old


def _why_norm(module: nn.Module) -> str | None:
    return "a norm follows each expert" if getattr(module, "has_post_expert_norm", False) else None
