"""vLLM's unquantised linear layers by tritemm: a general plugin, found by its entry point.

vLLM loads every plugin that it finds, so `register` changes nothing unless the user asks for it:
TRITEMM_VLLM=1, or VLLM_PLUGINS names tritemm. It then replaces two functions of vLLM, as release
0.33 has them: `default_unquantized_gemm`, which `dispatch_unquantized_gemm` gives to linear layers
and to the head where no other backend was chosen, and `linear_batch_invariant`, which both call
under VLLM_BATCH_INVARIANT=1. Where tritemm has no kernel, vLLM's own function runs.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import torch

from .api.blas import linear
from .nn.converted import why_torch
from .problem import INTERPRETED
from .version import __version__

#: A logger below vLLM's, whose handlers it so has.
_LOG = logging.getLogger("vllm.tritemm")
_DEVICE = "cpu" if INTERPRETED else "cuda"
#: Of each function, the parameters that vLLM 0.33 calls it by.
_GEMM = "default_unquantized_gemm", ["layer", "x", "weight", "bias"]
_INVARIANT = "linear_batch_invariant", ["input", "weight", "bias"]


def register() -> None:
    """Route vLLM's unquantised linear layers here, if the user asks for it; more calls do no more.

    Where vLLM's functions aren't those of release 0.33, nothing is changed and a warning is logged.
    """
    if not asked(os.environ):
        return
    from vllm import envs
    from vllm.model_executor.layers import linear as layers
    from vllm.model_executor.layers import utils, vocab_parallel_embedding
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        _LOG.warning("vLLM's platform is not CUDA: its linear layers stay as they are")
        return
    places = [(utils, _GEMM), (layers, _INVARIANT), (vocab_parallel_embedding, _INVARIANT)]
    originals = [getattr(module, name, None) for module, (name, _) in places]
    if all(hasattr(original, "_tritemm") for original in originals):
        return
    for original, (module, (name, parameters)) in zip(originals, places, strict=True):
        if original is None or list(inspect.signature(original).parameters) != parameters:
            _LOG.warning(
                "vLLM's linear layers stay as they are: %s.%s is not as in vLLM 0.33",
                module.__name__, name,
            )  # fmt: skip
            return
    _replace(utils, _GEMM[0], _gemm)
    for module in (layers, vocab_parallel_embedding):
        _replace(module, _INVARIANT[0], _invariant)
    # vLLM keeps compiled code by the values of these: it must find none that was made without us.
    envs.environment_variables["TRITEMM_VLLM"] = lambda: __version__
    _LOG.info("vLLM's unquantised linear layers multiply by tritemm %s", __version__)


def asked(environ: Mapping[str, str]) -> bool:
    """Whether the user wants this plugin; TRITEMM_VLLM takes precedence over VLLM_PLUGINS."""
    if own := environ.get("TRITEMM_VLLM"):
        return own != "0"
    return "tritemm" in environ.get("VLLM_PLUGINS", "").split(",")


def _replace(module: ModuleType, name: str, make: Callable[[Any], Any]) -> None:
    made = make(getattr(module, name))
    made._tritemm = True
    setattr(module, name, made)


def _gemm(original: Any) -> Any:
    @functools.wraps(original)
    def gemm(layer, x, weight, bias=None):
        if _takes(x, weight, bias):
            return linear(x, weight.data, bias)
        return original(layer, x, weight, bias)

    return gemm


def _invariant(original: Any) -> Any:
    @functools.wraps(original)
    def invariant(input, weight, bias=None):
        if _takes(input, weight, bias):
            return linear(input, weight.data, bias, batch_invariant=True)
        return original(input, weight, bias)

    return invariant


def _takes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether tritemm has a kernel for this. vLLM's class of weights adds only how to load them."""
    if x.device.type != _DEVICE or weight.dim() != 2:
        return False
    return why_torch(x, weight.data, None if bias is None else bias.data) is None
