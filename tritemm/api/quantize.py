"""`quantize`: 8-bit matrices with scales, as scaled products take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..dtypes import REAL, check_flag
from ..op.quantize import TYPES, quantized
from ..problem import RECIPES, spread
from .arguments import pair, without_tensors
from .groups import check_groups

NAMES: dict[Any, torch.dtype] = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


class Quantized(NamedTuple):
    """8-bit values, [..., M, K], and their fp32 scale, whose shape depends on `scaling`."""

    values: torch.Tensor
    scale: torch.Tensor

    def dequantize(self) -> torch.Tensor:
        """values * scale, in float32."""
        scale = self.scale
        if scale.dim():
            scale = spread(scale, *self.values.shape[-2:])
        return self.values.float() * scale


def quantize(
    x: torch.Tensor, dtype: str | torch.dtype = "fp8", scaling: str = "row", *,
    transpose: bool | str = False, stochastic: bool = False, offs: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """x, [..., M, K] in float16, bfloat16 or float32, as 8-bit values times fp32 scales.

    Args:
        dtype: "fp8" (torch.float8_e4m3fn), "int8", or torch.float8_e4m3fn, float8_e5m2 or int8.
        scaling: which elements share a scale, and the scale's shape. "tensor": all of x, []; "row":
            a row, [..., M, 1]; "block": 128 along K, [..., M, ceil(K / 128)] with M contiguous;
            "block2d": 128 x 128 of each matrix, [..., ceil(M / 128), ceil(K / 128)].
        transpose: also quantise x.mT and return it second; x must then be 2-D. A string names
            the scaling of x.mT: the same as for x or, with "block", "block2d".
        stochastic: round up or down at random so that the mean is x / scale; else to nearest.
        offs: [G], int32, where groups of rows end, as in `grouped_mm`; needs "block" and
            transpose=. In x.mT each group then begins at a multiple of 128 columns, padded with
            zeros. The padded groups' ends are returned third, as the `offs` of
            `scaled_grouped_mm` with `in_blocks`.

    Returns:
        A `Quantized`, or a tuple if `transpose` or `offs` is given.

    A scale is max |x|, at least 1e-12, divided by the type's largest number: 448, 57344 or 127.
    Values equal torch's `(x.float() / scale).to(dtype)` bit for bit, with `.round()` before for
    int8; their rows begin at multiples of 16 bytes. In fp8, NaN makes all values that share its
    scale NaN; infinity becomes NaN, and the other values 0. In int8 all these values are 0, and the
    scale is NaN or infinite. x gets no gradient. Raises RuntimeError if the GPU has no fp8 or x is
    elsewhere, and TypeError, NotImplementedError or ValueError for invalid arguments.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> tritemm.quantize(torch.tensor([[127.0, -2.5]], device=device), "int8").values.tolist()
    [[127, -2]]
    """
    check_flag("stochastic", stochastic)
    if not isinstance(x, torch.Tensor):
        how = {"transpose": transpose, "stochastic": stochastic, "offs": offs}
        return without_tensors(quantize, x, dtype, scaling, **how)
    if x.dtype not in REAL:
        raise NotImplementedError(f"x is {x.dtype}; it must be one of {', '.join(map(str, REAL))}")
    pair("quantize", ("x", "x"), x, x, cast=False, axis=None)
    target = NAMES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(target, torch.dtype) or target not in TYPES:
        able = ", ".join(map(repr, (*NAMES, *TYPES)))
        raise ValueError(f"dtype is {dtype!r}; it must be one of {able}")
    if not isinstance(scaling, str) or scaling not in RECIPES:
        raise ValueError(f"scaling is {scaling!r}; it must be one of {', '.join(RECIPES)}")
    turned: str | None
    if isinstance(transpose, str):
        words = ["block", "block2d"] if scaling == "block" else [scaling]
        if transpose not in words:
            told = " or ".join(map(repr, words))
            raise ValueError(f"transpose is {transpose!r}; with scaling={scaling!r} pass {told}")
        turned = transpose
    else:
        check_flag("transpose", transpose)
        turned = scaling if transpose else None
    if offs is not None and (not transpose or scaling != "block"):
        raise ValueError('offs= needs scaling="block" and transpose=')
    if x.dim() < 2 or (x.dim() > 2 and transpose):
        need = "[..., M, K]" if x.dim() < 2 else "[M, K] with transpose="
        raise ValueError(f"x has shape {list(x.shape)}; it must be {need}")
    seed = torch.randint(2**62, (), device=x.device) if stochastic else None
    *batch, M, _ = x.shape
    apart = scaling == "block2d" and x.dim() > 2
    lines = x.detach().flatten(0, -3 if apart else -2)
    if offs is not None:
        check_groups(x, x.mT, offs, ("x", "x"))
    made = quantized(lines, target, scaling, turned, seed, offs)
    if transpose:
        return Quantized(*made[:2]), Quantized(*made[2:4]), *made[4:]
    if apart:
        made = [t.unflatten(0, batch) for t in made]
    elif batch:
        made = [t.view(*batch, M, t.shape[-1]) if t.dim() else t for t in made]
    return Quantized(*made)
