"""`Int4Weight`, a 4-bit weight for 16-bit inputs."""

from __future__ import annotations

import torch
from torch import nn

from ..api.arguments import pair
from ..api.epilogue import activation_of, check_added, check_kind
from ..op.int4 import DEQUANTIZE, int4_linear
from ..problem import GATED, Activation, after
from ..runtime.sizes import fits, holds
from .layers import refuse_to_be_scripted

#: Types of scales, and of the inputs they multiply.
_TYPES = torch.float16, torch.bfloat16


class Int4Weight(nn.Module):
    """A 4-bit weight [N, K]: the `weight` of `tritemm.linear`, or a layer without bias.

    Its elements are integers, -8 .. 7, times a scale for each row and group of columns. For up to
    64 rows of inputs on Hopper, 384 elsewhere, the sum over each group is multiplied by its scale
    in float32, so elements aren't rounded. For more rows, and for gradients, each element is
    rounded once to the inputs' type: on Hopper in registers for up to 2048 rows, else in a
    temporary tensor [N, K]. The weight has no gradient.

    Args:
        packed: uint8 [ceil(N / 8), K / 128, 8, 64], made by `pack`.
        scale: [K / group, N], float16 or bfloat16 like the inputs. A group is 32, 64 or a multiple
            of 128 columns, and K a multiple of it and of 128. Both are buffers.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> weight = tritemm.nn.Int4Weight.of(torch.eye(128, dtype=torch.float16, device=device))
    >>> tritemm.linear(torch.ones(2, 128, dtype=torch.float16, device=device), weight).sum().item()
    256.0
    """

    packed: torch.Tensor
    scale: torch.Tensor
    #: How `tritemm.linear` recognises it.
    multiplies_by_itself = True

    def __init__(self, packed: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        given = [f"{t.dtype} {list(t.shape)}" for t in (packed, scale)]
        fit = packed.dtype == torch.uint8 and scale.dtype in _TYPES
        fit = fit and packed.dim() == 4 and scale.dim() == 2 and 0 not in scale.shape
        if not fit or packed.shape != (-(-scale.shape[1] // 8), self.shape[1] // 128, 8, 64):
            able = "uint8 [ceil(N / 8), K / 128, 8, 64] and float16 or bfloat16 [K / group, N]"
            raise ValueError(f"packed and scale are {' and '.join(given)}; they must be {able}")
        _check(self.shape, self.shape[1] / len(scale))

    __prepare_scriptable__ = refuse_to_be_scripted

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.scale.shape[1], self.packed.shape[1] * 128

    @staticmethod
    def pack(numbers: torch.Tensor) -> torch.Tensor:
        """Integers -8 .. 7, [N, K], packed; `kernels.int4` describes the layout."""
        _check(numbers.shape, 128)
        if not numbers.is_meta and not -8 <= numbers.min() <= numbers.max() <= 7:
            raise ValueError(f"numbers range from {numbers.min()} to {numbers.max()}; -8 to 7 fit")
        return _packed(numbers)

    @classmethod
    def of(cls, weight: torch.Tensor, group: int = 128) -> Int4Weight:
        """`weight` [N, K], rounded; scales are float16 for a float16 weight, else bfloat16.

        The element of largest magnitude in a group becomes -8, whatever its sign. For normally
        distributed weights, the mean squared error is 0.78 of that with scales amax / 7.
        """
        _check(weight.shape, group)
        if not weight.is_floating_point():
            raise ValueError(f"weight is {weight.dtype}; it must be real and floating-point")
        n, k = weight.shape
        w = weight.detach().float().reshape(n, -1, group)
        scale = w.gather(-1, w.abs().argmax(-1, keepdim=True)) / -8
        scale = scale.to(torch.float16 if weight.dtype == torch.float16 else torch.bfloat16)
        numbers = (w / scale.float()).nan_to_num(0).round().clamp(-8, 7)
        return cls(_packed(numbers.view(n, k)), scale.squeeze(-1).mT.contiguous())

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The weight as a tensor [N, K], by default in the scales' type; exact in float32.

        ValueError: `dtype` is no real floating-point type.
        """
        dtype = dtype or self.scale.dtype
        if not dtype.is_floating_point:
            raise ValueError(f"dtype is {dtype}; it must be real and floating-point")
        return DEQUANTIZE(self.packed, self.scale.detach(), dtype)

    def forward(
        self, input: torch.Tensor, bias: torch.Tensor | None = None, *,
        activation: Activation | None = None, residual: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """What `tritemm.linear` returns for this weight."""
        if self.scale.dtype not in _TYPES:
            raise RuntimeError(f"the weight's scale has become {self.scale.dtype}, not 16-bit")
        x, scale = pair("linear", ("input", "weight"), input, self.scale, axis=None)
        n, k = self.shape
        if x.dim() == 0 or not holds(x.shape[-1] == k):
            raise RuntimeError(f"input has shape {list(x.shape)}; the weight has [{n}, {k}]")
        word = activation_of(activation, scale)
        if bias is not None:
            check_kind("bias", bias, x)
            if not fits(bias.shape, (n,)):
                raise RuntimeError(f"bias has shape {list(bias.shape)}; it must be [{n}]")
        if residual is not None:
            columns = n // 2 if word in GATED else n
            check_added("residual", residual, x, (*x.shape[:-1], columns))
        return after(int4_linear(x, self.packed, scale, bias), word, residual, 1.0)


def _check(shape, group: float) -> None:
    n, k = shape if len(shape) == 2 else (0, 0)
    if not n or not k:
        raise ValueError(f"the weight has shape {list(shape)}, not [N, K] with N > 0")
    if k % 128 or group <= 0 or k % group or (group not in (32, 64) and group % 128):
        raise ValueError(
            f"the weight has {k} columns in groups of {group:g}; K must be a multiple of 128 and "
            "of the group, which is 32, 64 or a multiple of 128. Pad weight and input with zeros"
        )


def _packed(numbers: torch.Tensor) -> torch.Tensor:
    """Integers that fit, in the layout that the kernel reads."""
    n, k = numbers.shape
    q = nn.functional.pad(numbers + 8, (0, 0, 0, -n % 8)).to(torch.uint8)
    q = q.view(-1, 8, k // 128, 2, 8, 4, 2).permute(0, 2, 1, 3, 5, 4, 6)
    low, high = q.reshape(-1, k // 128, 8, 2, 64).unbind(3)
    return low | high << 4
