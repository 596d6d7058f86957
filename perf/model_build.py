"""transformers' models, and their twins: the same parameters, in a model that was converted."""

from __future__ import annotations

import copy
import importlib.util

import torch
from torch import nn

import tritemm

from .model import LLAMA, Model


def missing() -> str | None:
    """Why there are no models here."""
    if importlib.util.find_spec("transformers") is None:
        return "python -m perf model needs transformers: pip install '.[model]'"
    return None


def build(model: Model, device: str, seed: int = 0) -> nn.Module:
    """In bf16, as transformers initialises it, with its scaled_dot_product_attention.

    Nothing is dropped out, so that two runs can be compared.
    """
    import transformers

    kind = "Llama" if model.name == LLAMA.name else "GPT2"
    config_of = getattr(transformers, f"{kind}Config")
    make = getattr(transformers, "LlamaForCausalLM" if kind == "Llama" else "GPT2LMHeadModel")
    config = config_of(**_llama(model) if kind == "Llama" else _gpt2(model))
    config._attn_implementation = "sdpa"
    torch.manual_seed(seed)
    with torch.device(device):
        made = make(config)
    for parameter in made.parameters():  # not the buffers: the rotary frequencies stay in fp32
        parameter.data = parameter.data.bfloat16()
    made.loss_type = "ForCausalLM"  # GPT-2 has none by default: it warns, which breaks the graph
    return made


def _llama(model: Model) -> dict:
    return {
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": max(model.prompt[1], model.room),
        "tie_word_embeddings": True,
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def _gpt2(model: Model) -> dict:
    return {
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "vocab_size": model.vocab,
        "n_positions": max(model.prompt[1], model.room),
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def twin(module: nn.Module) -> tuple[nn.Module, tritemm.nn.Report]:
    """A second tree of modules over the same parameters and buffers, as `tritemm.convert` has it.

    A tree of its own, not a switch that both read: what torch.compile makes of one says nothing
    of the other. The Parameters are the same objects, so where `convert` gives gate and up one
    storage, both trees read it: torch's still multiplies by each half, which is contiguous.
    Nothing may have captured their addresses before.
    """
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    made = copy.deepcopy(module, shared)
    return made, tritemm.convert(made)


def exact(module: nn.Module) -> nn.Module:
    """A copy in fp32, multiplied by torch; in training it keeps one layer's activations."""
    made = copy.deepcopy(module).float()
    made.gradient_checkpointing_enable()
    return made
