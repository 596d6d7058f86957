"""`scaled_mm`: products of 8-bit operands that have scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ..dispatch.request import word_of
from ..dtypes import REAL
from ..op.scaled import FP8, Recipe, of_lines, scaled
from ..problem import INTERPRETED, Activation
from ..problem.config import Config
from ..rungs import Rung
from ..runtime.sizes import fits, holds, known
from ..spec import Kernel
from .arguments import check_dense
from .epilogue import checked
from .result import check_out, needs_copy, resized


def scaled_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: torch.Tensor | Sequence[torch.Tensor],
    scale_recipe_a: Recipe,
    scale_b: torch.Tensor | Sequence[torch.Tensor],
    scale_recipe_b: Recipe,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    out: torch.Tensor | None = None,
    activation: Activation | None = None,
    residual: torch.Tensor | None = None,
    alpha: float = 1,
    beta: float | None = None,
    kernel: Rung | Kernel = "auto",
    config: Config | Mapping | None = None,
) -> torch.Tensor:
    """The product of 8-bit matrices with scales, as `torch.nn.functional.scaled_mm` has it.

    That is activation(alpha * (mat_a * scale_a) @ (mat_b * scale_b) + bias) + beta * residual.

    | recipe    | shares a scale                | scale_a                  | scale_b           |
    |-----------|-------------------------------|--------------------------|-------------------|
    | "tensor"  | all elements                  | one number               | one number        |
    | "row"     | a row of a, a column of b     | [M, 1]                   | [1, N]            |
    | "block"   | 128 elements of K of a line   | [M, K / 128]             | [N, K / 128]      |
    | "block2d" | 128 x 128 elements            | [K / 128, M / 128]       | [K / 128, N / 128]|

    Quotients are rounded up. A scale of "block2d" may have the two dimensions in the other order,
    as DeepGEMM has them; where both would do, K's is the one whose stride is 1. torch's
    `ScalingType`s are recipes too. int8 goes with "tensor" and "row".

    Args:
        mat_a, mat_b: [M, K] and [K, N], of float8_e4m3fn or float8_e5m2, which may be mixed, or
            both of int8; any sizes and strides. What does not have K contiguous is copied first.
        scale_a, scale_b: float32, any strides.
        swizzle_a, swizzle_b, contraction_dim: as torch's; nothing but its defaults is possible.
        bias: [N], added to each row.
        output_dtype: float16, bfloat16 or float32.
        use_fast_accum: leave sums of fp8 to the tensor core, which keeps 13 bits behind the
            leading one (Hopper). By default each 128 elements of K are added in float32. Not with
            scales of blocks.
        out: tensor to write the result to; resized, with torch's warning, if its shape differs.
        activation, residual, alpha, beta, kernel, config: as of `matmul`. beta=1 and `out` add to
            what `out` holds.

    Returns:
        A contiguous tensor [M, N]. It has no derivatives.

    Raises:
        RuntimeError, TypeError, ValueError, NotImplementedError: what is not possible, and what is.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 3, device=device).to(torch.float8_e4m3fn)
    >>> two = torch.full([], 2.0, device=device)
    >>> tritemm.scaled_mm(a, a.mT, two, "tensor", two, "tensor").tolist()
    [[12.0, 12.0], [12.0, 12.0]]
    """
    scale_a, scale_recipe_a = _one("scale_a", scale_a), _one("scale_recipe_a", scale_recipe_a)
    scale_b, scale_recipe_b = _one("scale_b", scale_b), _one("scale_recipe_b", scale_recipe_b)
    given = (mat_a, mat_b, scale_a, scale_b, bias, residual, out)
    tensors = tuple(t for t in given if t is not None)
    if has_torch_function(tensors):
        return handle_torch_function(
            scaled_mm, tensors, mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b,
            swizzle_a, swizzle_b, bias, output_dtype, contraction_dim, use_fast_accum, out=out,
            activation=activation, residual=residual, alpha=alpha, beta=beta, kernel=kernel,
            config=config,
        )  # fmt: skip
    for name, value in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        if getattr(value, "name", value) not in (None, "NO_SWIZZLE"):
            raise ValueError(f"{name} is {value}; scales are read as they are stored: leave it out")
    if tuple(contraction_dim) not in ((), (1, 0), (-1, -2)):
        raise ValueError(f"contraction_dim is {contraction_dim}; K is mat_a's last: leave it out")
    _check_operands(mat_a, mat_b)
    K = mat_a.shape[1]
    of_a = of_lines("scale_a", scale_a, scale_recipe_a, mat_a, mat_a.shape[0], K)
    of_b = of_lines("scale_b", scale_b, scale_recipe_b, mat_b, mat_b.shape[1], K)
    blocks = not (known(of_a.shape[1] == 1) and known(of_b.shape[1] == 1))
    if mat_a.dtype == torch.int8 and blocks:
        raise ValueError("scales of int8 operands are of all of K: recipes are tensor and row")
    dtype = torch.bfloat16 if output_dtype is None else output_dtype
    if dtype not in REAL:
        raise ValueError(f"output_dtype is {dtype}; {', '.join(map(str, REAL))} are possible")
    after = bias, activation, residual, alpha, beta, False
    a, b = (t.view(FP8[0]) for t in (mat_a, mat_b))  # of whatever type, what follows is in fp32
    shape, then = checked(after, a, b, a, b, out)
    promoted = mat_a.dtype != torch.int8 and (blocks or not use_fast_accum)
    word = word_of(kernel, config)
    args = mat_a, mat_b, of_a, of_b, None, promoted, *then[:-1], word
    if out is None:
        return scaled(*args, dtype)
    inputs = tensors[:-1]
    check_out(out, inputs, dtype)
    fitting = fits(out.shape, shape)
    if needs_copy(out, fitting, inputs):
        made = scaled(*args, dtype)
        return resized(out, shape, fitting).copy_(made)
    return scaled(*args, out=resized(out, shape, fitting))


def _one(name: str, value):
    """What torch's callers may give in a list of one."""
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise ValueError(f"{name} has {len(value)} elements; one level of scales is possible")
        return value[0]
    return value


def _check_operands(a, b) -> None:
    """Refuse what no kernel multiplies."""
    for name, t in (("mat_a", a), ("mat_b", b)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name} must be Tensor, not {type(t).__name__}")
        check_dense(name, t)
        if t.dim() != 2:
            raise RuntimeError(f"{name} is {t.dim()}D; scaled_mm multiplies matrices")
    mixed = a.dtype in FP8 and b.dtype in FP8
    if not mixed and not a.dtype == b.dtype == torch.int8:
        raise NotImplementedError(
            f"mat_a is {a.dtype} and mat_b {b.dtype}; scaled_mm multiplies float8_e4m3fn and "
            "float8_e5m2, or int8 by int8. tritemm.quantize makes them"
        )
    if a.device != b.device or (a.device.type == "cpu" and not INTERPRETED):
        raise RuntimeError(
            f"mat_a is on {a.device} and mat_b on {b.device}; scaled_mm multiplies CUDA tensors of "
            "one device"
        )
    if not holds(a.shape[1] == b.shape[0]):
        raise RuntimeError(
            f"mat_a {tuple(a.shape)} and mat_b {tuple(b.shape)} cannot be multiplied: K is "
            f"{a.shape[1]} in mat_a and {b.shape[0]} in mat_b"
        )
