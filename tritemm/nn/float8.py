"""`Float8Linear`, a linear layer that trains with fp8 products; and layers in int8."""

from __future__ import annotations

import torch
from torch import nn

from ..api.linear_8bit import linear_8bit
from ..api.quantize import quantize
from ..arch.sm80 import FP8_CAPABILITY
from ..dtypes import REAL
from ..op.float8 import E4M3, E5M2, RECIPES
from ..problem import Device
from .layers import refuse_to_be_scripted


class Float8Linear(nn.Linear):
    """`torch.nn.Linear` whose products, also those of gradients, are in fp8 and summed in fp32.

    Same parameters, initial values and state dict. Parameters and inputs, of 16 or 32 bits, are
    quantised at each call. The result has the input's type, and is differentiable once; backward
    keeps the input in 8 bits. Raises ValueError for an unknown recipe or gradient type.

    Args:
        in_features, out_features, bias, device, dtype: see `torch.nn.Linear`.
        recipe: what shares a scale. "block": 128 elements along the summed dimension, and 128 x 128
            of the weight, as in DeepSeek-V3 (arXiv 2412.19437, 3.3), and, unlike there, of the
            input in the weight's gradient. "row": all elements along the summed dimension.
        grad_dtype: the type in which the result's gradient is multiplied: torch.float8_e4m3fn by
            default with "block", float8_e5m2 with "row". All else is float8_e4m3fn.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> layer = tritemm.nn.Float8Linear(16, 4, device=device)
    >>> layer(torch.ones(3, 16, device=device)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        device: torch.device | str | int | None = None, dtype: torch.dtype | None = None, *,
        recipe: str = "block", grad_dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        if recipe not in RECIPES or grad_dtype not in (None, E4M3, E5M2):
            raise ValueError(f"{recipe=}, {grad_dtype=}; use block or row, and a type of fp8")
        super().__init__(in_features, out_features, bias, device, dtype)
        self.recipe, self.grad_dtype = recipe, grad_dtype

    __prepare_scriptable__ = refuse_to_be_scripted

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options) -> Float8Linear:
        """A layer that shares the Parameters of `linear`; `options`: recipe and grad_dtype."""
        layer = cls(linear.in_features, linear.out_features, device="meta", **options)
        layer.weight, layer.bias = linear.weight, linear.bias
        return layer.train(linear.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return linear_8bit(input, self.weight, self.bias, False, None, self.recipe, self.grad_dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe}"


def prepare(layer, weight, dtype: str, owners: int) -> str | None:
    """Why `convert` can't make a layer multiply in 8 bits,or None; in int8, converts it."""
    kind = getattr(weight, "dtype", None)
    if kind not in REAL:
        reason = f"its weight is {kind}; {', '.join(map(str, REAL))} are supported"
        return None if kind == getattr(torch, dtype, "") else reason
    if dtype == "fp8":
        return too_old(weight)
    if owners != 1 or type(weight) is not nn.Parameter or not isinstance(layer, nn.Linear):
        return "int8 is for a Parameter of only one nn.Linear"
    made, learns = quantize(weight, "int8"), weight.requires_grad
    del layer.weight
    vars(layer)["_tritemm_weight"] = kind, learns
    for name, tensor in zip(("weight", "weight_scale"), made, strict=True):
        layer.register_buffer(name, tensor.contiguous())
    return None


def too_old(weight) -> str | None:
    """Why a weight's GPU can't multiply fp8, or None."""
    old = weight.is_cuda and Device.of(weight.device).capability < FP8_CAPABILITY
    return "fp8 needs compute capability {}.{}".format(*FP8_CAPABILITY) if old else None


def keep_scale(layer, scale, fn) -> None:
    """Keep the `scale` of an int8 weight in fp32, whatever `fn` does to a layer's tensors.

    `restore` gives the weight the type that `fn` gives the original one.
    """
    dtype, learns = vars(layer).get("_tritemm_weight", (None, False))
    if scale is None or dtype is None:
        return
    vars(layer)["_tritemm_weight"] = fn(scale.new_empty(0, dtype=dtype)).dtype, learns
    if (made := layer._buffers["weight_scale"]).dtype != torch.float32:
        layer._buffers["weight_scale"] = scale.to(made.device)


def restore(layer) -> bool:
    """Turn an int8 weight back into a Parameter with the rounded values; whether there was one."""
    scale = layer._buffers.pop("weight_scale", None)
    dtype, learns = vars(layer).pop("_tritemm_weight", (None, False))
    if rounded := scale is not None and layer.weight.dtype == torch.int8:
        layer.weight = nn.Parameter((layer.weight * scale).to(dtype), learns)
    return rounded
