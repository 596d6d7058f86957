"""The operator of products with a weight of 4 bits; `kernels.int4` explains its bytes."""

from __future__ import annotations

import torch

from ..kernels.int4 import multiply
from ..problem import EpilogueInputs
from ..runtime import fast_path
from ..runtime.operators import define, implement_whole
from ..runtime.torch_private import Derivatives, onwards
from .gemm import gemm

INT4 = define("int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor? bias) -> Tensor")


def dequantized(packed, scale, dtype) -> torch.Tensor:
    """The weight [N, K], made by torch; each element is rounded to `dtype` once."""
    byte = packed.reshape(*packed.shape[:3], 4, 8, 2)
    q = torch.stack((byte & 15, byte >> 4), 3).permute(0, 2, 1, 3, 5, 4, 6)
    q = q.reshape(packed.shape[0] * 8, len(scale), -1)[: scale.shape[1]].to(dtype)
    return ((q - 8) * scale.to(dtype).mT[..., None]).flatten(1)


def int4_linear(x, packed, scale, bias) -> torch.Tensor:
    """x [..., K] @ W.T + bias, past torch's dispatcher where nobody watches."""
    watched = not fast_path.unwatched(x, packed, (scale, bias))
    return (INT4 if watched else _linear)(x, packed, scale, bias)


def _linear(x, packed, scale, bias) -> torch.Tensor:
    out = _fake(x, packed, scale, bias)
    if out.numel():
        rows, flat = x.reshape(-1, x.shape[-1]).contiguous(), out.view(-1, out.shape[-1])
        bias = None if bias is None else bias.contiguous()
        multiply(rows, packed.contiguous(), scale.contiguous(), bias, flat)
    return out


def _fake(x, packed, scale, bias) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], scale.shape[1])


class _Linear(Derivatives):
    @staticmethod
    def forward(ctx, x, packed, scale, bias, keys):
        ctx.save_for_backward(packed, scale)
        ctx.bias = None if bias is None else bias.dtype
        return onwards(INT4, keys, x, packed, scale, bias)

    @staticmethod
    def backward(ctx, grad):
        rows, of_x, of_bias = grad.reshape(-1, grad.shape[-1]), None, None
        if ctx.needs_input_grad[0]:
            packed, scale = ctx.saved_tensors
            weight = dequantized(packed, scale, grad.dtype)
            then = EpilogueInputs.made(rows, weight, None, None)
            of_x = gemm(rows, weight, then, ("auto", None, None, grad.dtype), None)
            of_x = of_x.view(*grad.shape[:-1], weight.shape[1])
        if ctx.needs_input_grad[3]:
            of_bias = rows.sum(0, dtype=torch.float32).to(ctx.bias)
        return of_x, None, None, of_bias, None


implement_whole(INT4, _linear, _fake, lambda keys, _, *args: _Linear.record(*args, keys))
