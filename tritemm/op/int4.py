"""The operators of products with 4-bit weights; `kernels.int4` explains their bytes."""

from __future__ import annotations

import torch

from ..kernels import int4, int4_roles
from ..problem import INTERPRETED, EpilogueInputs
from ..runtime import fast_path
from ..runtime.operators import define, implement_whole
from ..runtime.torch_private import Derivatives, onwards
from .gemm import gemm

INT4 = define("int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor? bias) -> Tensor")
DEQUANTIZE = define("int4_dequantize(Tensor packed, Tensor scale, ScalarType dtype) -> Tensor")
#: With WGMMA, `int4` multiplies up to `FEW` rows and `int4_roles` up to `MANY`; without, `int4`
#: multiplies up to `MANY_ELSEWHERE`. For more, the weight is unpacked first. With one of 14336 x
#: 4096, an H200 takes 363 us for 2048 rows in `int4_roles`, 380 with unpacking, and 335 in 16
#: bits.
FEW, MANY, MANY_ELSEWHERE = 64, 2048, 384


def _dequantize(packed, scale, dtype) -> torch.Tensor:
    """The weight [N, K], each element rounded to `dtype` once."""
    made = dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32  # exact
    out = _dequantize_fake(packed, scale, made)
    if not (out.is_cuda or INTERPRETED):  # for example a checkpoint's
        byte = packed.reshape(*packed.shape[:3], 4, 8, 2)
        q = torch.stack((byte & 15, byte >> 4), 3).permute(0, 2, 1, 3, 5, 4, 6)
        q = q.reshape(len(packed) * 8, len(scale), -1)[: scale.shape[1]].float() - 8
        out.copy_((q * scale.float().mT[..., None]).flatten(1))
    elif out.numel():
        int4.dequantize(packed.contiguous(), scale.contiguous(), out)
    return out.to(dtype)


def _dequantize_fake(packed, scale, dtype) -> torch.Tensor:
    return packed.new_empty(scale.shape[1], packed.shape[1] * 128, dtype=dtype)


def int4_linear(x, packed, scale, bias) -> torch.Tensor:
    """x [..., K] @ W.T + bias, without torch's dispatcher if nobody watches."""
    watched = not fast_path.unwatched(x, packed, (scale, bias))
    return (INT4 if watched else _linear)(x, packed, scale, bias)


def _linear(x, packed, scale, bias) -> torch.Tensor:
    out = _fake(x, packed, scale, bias)
    if not out.numel():
        return out
    rows, flat = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
    roles = int4_roles.supports(x.device) and scale.dtype == x.dtype
    if len(rows) > (MANY if roles else MANY_ELSEWHERE):
        _product(rows, _dequantize(packed, scale, x.dtype).mT, bias, flat)
    else:
        bias = None if bias is None else bias.contiguous()
        kernel = int4_roles if roles and len(rows) > FEW else int4
        kernel.multiply(rows.contiguous(), packed.contiguous(), scale.contiguous(), bias, flat)
    return out


def _product(rows, b, bias=None, out=None) -> torch.Tensor:
    options = ("auto", None, None, rows.dtype)
    return gemm(rows, b, EpilogueInputs.made(rows, b, bias, None), options, out)


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
            weight = DEQUANTIZE(packed, scale, grad.dtype)
            of_x = _product(rows, weight).view(*grad.shape[:-1], weight.shape[1])
        if ctx.needs_input_grad[3]:
            of_bias = rows.sum(0, dtype=torch.float32).to(ctx.bias)
        return of_x, None, None, of_bias, None


implement_whole(INT4, _linear, _fake, lambda keys, _, *args: _Linear.record(*args, keys))
implement_whole(DEQUANTIZE, _dequantize, _dequantize_fake)
