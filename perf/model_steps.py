"""One step of a model's work, to be repeated and timed, and what it computed, to be compared.

prefill  the logits of every token of the prompt, without a gradient, no cache kept
decode   the logits of one more token of each sequence, over a static cache of keys and values
train    the loss (labels are the input's own tokens), its gradients; no optimiser: gradients are
         dropped with `zero_grad(set_to_none=True)`, which is timed too
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping

import torch
from torch import nn

from .model import DECODE, MODES, TRAIN, Model

Outputs = Mapping[str, torch.Tensor]


class Step:
    """`call` does it once. Before more than `limit` calls in a row, `begin` must be called."""

    limit: int | None = None

    def __init__(self, module: nn.Module, model: Model, mode: str, ids: torch.Tensor):
        self.module, self.model, self.ids = module, model, ids
        self.graph = mode == "graph"
        module.train(isinstance(self, Train))
        self.forward = compiled(self.work, mode)

    @staticmethod
    def work(module: nn.Module, ids: torch.Tensor, cache) -> torch.Tensor:
        """What is compiled."""
        return module(input_ids=ids, use_cache=False).logits

    def _forward(self, cache=None) -> torch.Tensor:
        if self.graph:  # what the last step returned may be overwritten from here on
            torch.compiler.cudagraph_mark_step_begin()
        return self.forward(self.module, self.ids, cache)

    def begin(self) -> None:
        """Make room for `limit` calls."""

    def call(self) -> torch.Tensor:
        with torch.no_grad():
            return self._forward()

    def outputs(self) -> Outputs:
        """One step's results by name, valid until the next step; call `drop` after use."""
        self.begin()
        return {"logits": self.call()}

    def drop(self) -> None:
        """Let go of what `outputs` left in the parameters."""


class Decode(Step):
    """`filled` and `room` of the model bound the calls in a row."""

    def __init__(self, module, model, mode, ids, cache):
        super().__init__(module, model, mode, ids)
        self.cache, self.limit = cache, model.room - model.filled

    @staticmethod
    def work(module, ids, cache):
        return module(input_ids=ids, past_key_values=cache, use_cache=True).logits

    def begin(self) -> None:
        rewind(self.cache, self.model.filled)

    def call(self) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(self.cache)


class Train(Step):
    @staticmethod
    def work(module, ids, cache):
        return module(input_ids=ids, labels=ids, use_cache=False).loss

    def call(self) -> torch.Tensor:
        loss = self._gradients()
        self.drop()
        return loss

    def _gradients(self) -> torch.Tensor:
        loss = self._forward()
        loss.backward()
        return loss

    def outputs(self) -> Outputs:
        loss = self._gradients().detach()
        named = self.module.named_parameters()
        there = {f"gradient of {n}": p.grad for n, p in named if p.grad is not None}
        return {"loss": loss, **there}

    def drop(self) -> None:
        self.module.zero_grad(set_to_none=True)


def compiled(function: Callable, mode: str) -> Callable:
    """As the mode says."""
    return function if MODES[mode] is None else compiled_apart(function, **MODES[mode])


def compiled_apart(function: Callable, **options) -> Callable:
    """By torch.compile, for the sizes that it is called with. Its code is its own: torch.compile
    looks what it made up by code object, and torch's variant must not wait for the guards of
    tritemm's."""
    code, closure = function.__code__.replace(), function.__closure__
    own = types.FunctionType(code, function.__globals__, function.__name__, closure=closure)
    return torch.compile(own, fullgraph=True, dynamic=False, **options)


def rewind(cache, filled: int) -> None:
    """Let the next token be the one after `filled`."""
    for layer in cache.layers:
        layer.cumulative_length.fill_(filled)


class Steps:
    """Makes the steps of one model's case: all start from the same tokens and the same cache."""

    def __init__(self, module: nn.Module, model: Model, case: str, seed: int = 0):
        self.module, self.model, self.case = module, model, case
        device = next(module.parameters()).device
        random = torch.Generator(device).manual_seed(seed)
        shape = (model.sequences, model.filled + 1) if case == DECODE else model.prompt
        self.ids = torch.randint(model.vocab, shape, device=device, generator=random)
        self.filled = self._fill(module) if case == DECODE else None

    def of(self, module: nn.Module, mode: str) -> Step:
        """By `module`: the model, its twin, or its exact copy."""
        if self.case == TRAIN:
            return Train(module, self.model, mode, self.ids)
        if self.case != DECODE:
            return Step(module, self.model, mode, self.ids)
        cache = self._fill(module)
        for own, given in zip(cache.layers, self.filled.layers, strict=True):
            own.keys.copy_(given.keys)
            own.values.copy_(given.values)
        return Decode(module, self.model, mode, self.ids[:, -1:], cache)

    @torch.no_grad()
    def _fill(self, module: nn.Module):
        """A static cache that has seen all tokens but the last of each sequence."""
        from transformers import StaticCache

        module.eval()
        cache = StaticCache(config=module.config, max_cache_len=self.model.room)
        module(self.ids[:, :-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        return cache
