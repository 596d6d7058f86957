"""`scaled_mm` and `scaled_grouped_mm`: products of 8-bit operands with scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ..dispatch.request import word_of
from ..dtypes import REAL, check_flag
from ..op.scaled import Recipe, of_lines, scaled
from ..problem import FP8, INTERPRETED, Activation, result_shape
from ..problem.config import Config
from ..rungs import Rung
from ..runtime.sizes import holds, known
from ..spec import Kernel
from .arguments import check_dense, operands
from .epilogue import checked
from .groups import check_groups, epilogue_of_groups, with_biases
from .result import written


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
    """The product of 8-bit matrices with scales, as in `torch.nn.functional.scaled_mm`.

    Returns activation(alpha * (mat_a * scale_a) @ (mat_b * scale_b) + bias) + beta * residual.

    | recipe    | shares a scale                | scale_a                  | scale_b           |
    |-----------|-------------------------------|--------------------------|-------------------|
    | "tensor"  | all elements                  | one number               | one number        |
    | "row"     | a row of a, a column of b     | [M, 1]                   | [1, N]            |
    | "block"   | 128 elements of K of a line   | [M, K / 128]             | [N, K / 128]      |
    | "block2d" | 128 x 128 elements            | [K / 128, M / 128]       | [K / 128, N / 128]|

    Quotients are rounded up. The dimensions of a "block2d" scale may be swapped, as in DeepGEMM; if
    both orders fit, K's is the dimension whose stride is 1. torch's `ScalingType`s are accepted
    as recipes. int8 takes "tensor" and "row".

    Args:
        mat_a, mat_b: [M, K] and [K, N], both float8_e4m3fn or float8_e5m2, which may be mixed, or
            both int8; any sizes and strides. An operand whose K isn't contiguous is copied first.
        scale_a, scale_b: float32, any strides.
        swizzle_a, swizzle_b, contraction_dim: as in torch; only the defaults are supported.
        bias: [N], added to each row.
        output_dtype: float16, bfloat16 or float32.
        use_fast_accum: let the tensor core sum fp8, which keeps 13 bits after the leading one
            (Hopper). By default every 128 elements of K are added in float32. Not with block
            scales.
        out: tensor for the result; resized, with torch's warning, if its shape differs.
        activation, residual, alpha, beta, kernel, config: see `matmul`. beta=1 with `out` adds to
            what `out` holds.

    Returns:
        A contiguous tensor [M, N]. It has no derivatives.

    Raises:
        RuntimeError, TypeError, ValueError, NotImplementedError: what isn't supported, and what is.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.ones(2, 3, device=device).to(torch.float8_e4m3fn)
    >>> two = torch.full([], 2.0, device=device)
    >>> tritemm.scaled_mm(a, a.mT, two, "tensor", two, "tensor").tolist()
    [[12.0, 12.0], [12.0, 12.0]]
    """
    scales = _unwrapped(scale_a, scale_recipe_a, scale_b, scale_recipe_b)
    scale_a, scale_recipe_a, scale_b, scale_recipe_b = scales
    given = (mat_a, mat_b, scale_a, scale_b, bias, residual, out)
    tensors = tuple(t for t in given if t is not None)
    if has_torch_function(tensors):
        return handle_torch_function(
            scaled_mm, tensors, mat_a, mat_b, scale_a, scale_recipe_a, scale_b, scale_recipe_b,
            swizzle_a, swizzle_b, bias, output_dtype, contraction_dim, use_fast_accum, out=out,
            activation=activation, residual=residual, alpha=alpha, beta=beta, kernel=kernel,
            config=config,
        )  # fmt: skip
    _check_as_stored(swizzle_a, swizzle_b, contraction_dim)
    _check_operands("scaled_mm", mat_a, mat_b)
    of_a, of_b, promoted = _found(mat_a, mat_b, scales, use_fast_accum)
    dtype = output_type(output_dtype)
    after = bias, activation, residual, alpha, beta, False
    a, b = (t.view(FP8[0]) for t in (mat_a, mat_b))  # for any type, the epilogue is in fp32
    shape, then = checked(after, a, b, a, b, out)
    args = mat_a, mat_b, of_a, of_b, None, False, promoted, *then[:-1], word_of(kernel, config)
    return written(scaled, args, dtype, out, shape, tensors[:-1])


def scaled_grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: torch.Tensor | Sequence[torch.Tensor],
    scale_recipe_a: Recipe,
    scale_b: torch.Tensor | Sequence[torch.Tensor],
    scale_recipe_b: Recipe,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: torch.Tensor | None = None,
    offs: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
    *,
    out: torch.Tensor | None = None,
    activation: Activation | None = None,
    alpha: float = 1,
    in_blocks: bool = False,
    kernel: Rung | Kernel = "auto",
    config: Config | Mapping | None = None,
) -> torch.Tensor:
    """The products of groups of 8-bit operands, as in `torch.nn.functional.scaled_grouped_mm`.

    Forms and groups are those of `grouped_mm`, and recipes those of `scaled_mm`:

    | recipe    | scale of a 2D operand             | of a 3D one: the same for each group      |
    |-----------|-----------------------------------|-------------------------------------------|
    | "tensor"  | one number                        | one number, or [G]                        |
    | "row"     | [M] or [N]; [G, M] if K is cut    | [G, M] or [G, N]                          |
    | "block"   | [M, K / 128] or [N, K / 128]      | [G, M, K / 128] or [G, N, K / 128]        |
    | "block2d" | [K / 128, M / 128], or with N     | [G, K / 128, M / 128], or with N          |

    Blocks of a 2D operand begin at multiples of 128, wherever its groups begin: they are the blocks
    that `quantize` makes of the whole operand. So groups may have any size, in every form.

    Args:
        mat_a, mat_b: both float8_e4m3fn or float8_e5m2, which may be mixed, or both int8; any
            strides. An operand whose K isn't contiguous is copied first.
        scale_a, scale_b: float32, any strides. [G, M] may be flat, [G * M], as in torch.
        offs: [G], int32, see `grouped_mm`; None if both operands have 3 dimensions.
        bias: [G, N], a row for each group; not if columns are cut.
        swizzle_a, swizzle_b, output_dtype, contraction_dim, use_fast_accum: see `scaled_mm`.
        in_blocks: if K is cut, promises that each group begins and ends at a multiple of 128, as
            `quantize` makes them, so that Hopper's TMA can load fp8. A group that doesn't is NaN.
        out, activation, alpha, kernel, config: see `grouped_mm`.

    Returns:
        The products, in the forms of `grouped_mm`. They have no derivatives.

    Raises:
        RuntimeError, TypeError, ValueError, NotImplementedError: what isn't supported, and what is.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> tokens = tritemm.quantize(torch.ones(3, 2, device=device))
    >>> experts = tritemm.quantize(torch.ones(2, 2, device=device))
    >>> offs = torch.tensor([1, 3], dtype=torch.int32, device=device)
    >>> weights, scale = experts.values[:, :, None], experts.scale
    >>> tritemm.scaled_grouped_mm(
    ...     tokens.values, weights, tokens.scale, "row", scale, "row", offs=offs
    ... ).tolist()
    [[2.0], [2.0], [2.0]]
    """
    scales = _unwrapped(scale_a, scale_recipe_a, scale_b, scale_recipe_b)
    scale_a, scale_recipe_a, scale_b, scale_recipe_b = scales
    given = (mat_a, mat_b, scale_a, scale_b, bias, offs, out)
    tensors = tuple(t for t in given if t is not None)
    if has_torch_function(tensors):
        return handle_torch_function(
            scaled_grouped_mm, tensors, mat_a, mat_b, scale_a, scale_recipe_a, scale_b,
            scale_recipe_b, swizzle_a, swizzle_b, bias, offs, output_dtype, contraction_dim,
            use_fast_accum, out=out, activation=activation, alpha=alpha, in_blocks=in_blocks,
            kernel=kernel, config=config,
        )  # fmt: skip
    check_flag("in_blocks", in_blocks)
    _check_as_stored(swizzle_a, swizzle_b, contraction_dim)
    _check_operands("scaled_grouped_mm", mat_a, mat_b)
    count = check_groups(mat_a, mat_b, offs, ("mat_a", "mat_b"))
    of_k = mat_a.dim() == mat_b.dim() == 2
    groups = [(count,) if of_k or t.dim() == 3 else () for t in (mat_a, mat_b)]
    of_a, of_b, promoted = _found(mat_a, mat_b, scales, use_fast_accum, *groups)
    dtype = output_type(output_dtype)
    a, b = (t.view(FP8[0]) for t in (mat_a, mat_b))  # for any type, the epilogue is in fp32
    bias, word, alpha = epilogue_of_groups(bias, activation, alpha, a, b, count, out)
    operands = mat_a, mat_b, of_a, of_b, offs, in_blocks, promoted
    how = 1.0, word_of(kernel, config)
    if offs is None and bias is not None:

        def multiply():
            return scaled(*operands, None, None, "", alpha, *how, torch.float32)

        return with_biases(multiply, bias, word, dtype, out, tensors[:-1])
    shape = result_shape(a, b, word, *([] if offs is None else [count]))
    args = *operands, bias, None, word, alpha, *how
    return written(scaled, args, dtype, out, shape, tensors[:-1])


#: Allowed values of `contraction_dim`.
_CONTRACTED = (), (1, 0), (-1, -2)


def _check_as_stored(swizzle_a, swizzle_b, contraction_dim) -> None:
    """Refuse swizzled scales, or another contraction dimension."""
    for name, value in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        value = _one(name, value)
        if value is not None and getattr(value, "name", None) != "NO_SWIZZLE":
            raise ValueError(f"{name} is {value}; scales are read as stored: leave it out")
    dims = contraction_dim
    if dims is not None and (not isinstance(dims, Sequence) or tuple(dims) not in _CONTRACTED):
        raise ValueError(f"contraction_dim is {contraction_dim}; K is mat_a's last: leave it out")


def operands_of(
    function: str, input, other, asked: tuple, scales: Sequence | None, fast: bool, **others
) -> tuple:
    """`operands`, and `scales` as `Problem.of` takes them: a scale and a recipe each, or None.

    `others`: options by name that `scaled_mm` lacks; all must keep their defaults.
    """
    if scales is None:
        return *operands(input, other, None, asked, function), None
    if not isinstance(scales, (list, tuple)) or len(scales) != 4:
        raise TypeError("scales are scale_a, its recipe, scale_b and its recipe, as for scaled_mm")
    for name, value in others.items():
        if value:
            raise ValueError(f"{name}={value!r} is not for products with scales; leave it out")
    _check_operands("scaled_mm", input, other)
    found = _found(input, other, _unwrapped(*scales), fast)
    return input, other, (*asked[:-1], output_type(asked[-1])), found


def _found(
    a, b, scales: tuple, fast: bool, groups_a=(), groups_b=()
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """`of_lines` for both `_unwrapped` scales, and whether sums are promoted; or an error."""
    scale_a, recipe_a, scale_b, recipe_b = scales
    K = a.shape[-1]
    of_a = of_lines("scale_a", scale_a, recipe_a, a, a.shape[-2], K, groups_a)
    of_b = of_lines("scale_b", scale_b, recipe_b, b, b.shape[-1], K, groups_b)
    blocks = not (known(of_a.shape[-1] == 1) and known(of_b.shape[-1] == 1))
    if a.dtype == torch.int8 and blocks:
        raise ValueError("scales of int8 operands cover all of K: use the recipes tensor or row")
    return of_a, of_b, a.dtype != torch.int8 and (blocks or not fast)


def output_type(asked: torch.dtype | None) -> torch.dtype:
    dtype = torch.bfloat16 if asked is None else asked
    if dtype not in REAL:
        raise ValueError(f"output_dtype is {dtype}; it must be one of {', '.join(map(str, REAL))}")
    return dtype


def _unwrapped(scale_a, recipe_a, scale_b, recipe_b) -> tuple:
    """Scales and recipes, each of which may have come in a list."""
    return (
        _one("scale_a", scale_a), _one("scale_recipe_a", recipe_a),
        _one("scale_b", scale_b), _one("scale_recipe_b", recipe_b),
    )  # fmt: skip


def _one(name: str, value):
    """The one element, if torch's callers passed a list."""
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise ValueError(f"{name} has {len(value)} elements; one level of scales is supported")
        return value[0]
    return value


def _check_operands(caller: str, a, b) -> None:
    """Refuse operands that no kernel multiplies."""
    for name, t in (("mat_a", a), ("mat_b", b)):
        if not isinstance(t, torch.Tensor):
            raise TypeError(f"{name} must be Tensor, not {type(t).__name__}")
        check_dense(name, t)
        most = 2 if caller == "scaled_mm" else 3
        if not 2 <= t.dim() <= most:
            can = "matrices" if most == 2 else "tensors of 2 or 3 dimensions"
            raise RuntimeError(f"{name} is {t.dim()}D; {caller} multiplies {can}")
    mixed = a.dtype in FP8 and b.dtype in FP8
    if not mixed and not a.dtype == b.dtype == torch.int8:
        raise NotImplementedError(
            f"mat_a is {a.dtype} and mat_b {b.dtype}; {caller} multiplies float8_e4m3fn and "
            "float8_e5m2, or int8 by int8. tritemm.quantize makes them"
        )
    if a.device != b.device or (a.device.type == "cpu" and not INTERPRETED):
        raise RuntimeError(
            f"mat_a is on {a.device} and mat_b on {b.device}; {caller} multiplies CUDA tensors of "
            "one device"
        )
    if not holds(a.shape[-1] == b.shape[-2]):
        raise RuntimeError(
            f"mat_a {tuple(a.shape)} and mat_b {tuple(b.shape)} cannot be multiplied: K is "
            f"{a.shape[-1]} in mat_a and {b.shape[-2]} in mat_b"
        )
