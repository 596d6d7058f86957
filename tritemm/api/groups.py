"""`grouped_mm`: products of groups, as in a mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from ..dispatch.request import word_of
from ..dtypes import Precision, checked_epilogue, wide
from ..op.groups import grouped
from ..problem import ACCUMULATE, FORMS, GATED, Activation, EpilogueInputs, result_shape
from ..problem.config import Config
from ..rungs import Rung
from ..runtime.sizes import fits, holds
from ..spec import Kernel
from .arguments import OPTIONS, autocast, check_dense, checked_options, pair
from .epilogue import activation_of, check_kind, factor
from .matmul import matmul
from .result import check_out, resized, written


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    activation: Activation | None = None,
    alpha: float = 1,
    out: torch.Tensor | None = None,
    batch_invariant: bool = False,
    kernel: Rung | Kernel = "auto",
    config: Config | Mapping | None = None,
    precision: Precision | None = None,
    accumulate: torch.dtype | None = None,
) -> torch.Tensor:
    """The products of groups, as in `torch.nn.functional.grouped_mm`, in one launch.

    That is activation(alpha * a @ b + bias) for each group g, which covers offs[g - 1] to offs[g]
    of the rows, the columns or K; the operands' dimensions decide which. Groups may have any size,
    also 0, may begin anywhere, and there may be any number of them. The host doesn't read `offs`,
    so a CUDA graph can be replayed with other offsets.

    | a         | b         | cut     | result    | group g                        |
    |-----------|-----------|---------|-----------|--------------------------------|
    | [M, K]    | [G, K, N] | rows    | [M, N]    | its rows of a, times b[g]      |
    | [G, M, K] | [K, N]    | columns | [M, N]    | a[g] times its columns of b    |
    | [M, K]    | [K, N]    | K       | [G, M, N] | its part of each sum           |
    | [G, M, K] | [G, K, N] | nothing | [G, M, N] | a[g] @ b[g], without `offs`    |

    Args:
        a, b: of the same type and device, float16, bfloat16, float32, float64 or int8, any strides.
        offs: [G], int32, where each group ends; must not decrease. Rows and columns past the last
            offset give zeros, without arithmetic; terms of K past it are not added.
        bias: [G, N], a row for each group; not if columns are cut.
        out_dtype, activation, alpha, kernel, config, precision, accumulate: see `matmul`. swiglu
            and geglu are refused if columns are cut.
        out: tensor to write the result to; resized, with torch's warning, if its shape differs.
        batch_invariant: a row of the result, and of the gradient of `a`, has the same bits whatever
            groups there are; in tf32, different ones if there are more than 512.

    Returns:
        A contiguous tensor.

    Raises:
        RuntimeError, TypeError, NotImplementedError: where torch raises them.
        ValueError: an option that this type or problem doesn't allow, and what it allows.

    It is differentiable, forwards and backwards, to any order.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> tokens, experts = torch.ones(3, 2, device=device), torch.ones(2, 2, 1, device=device)
    >>> offs = torch.tensor([1, 3], dtype=torch.int32, device=device)
    >>> tritemm.grouped_mm(tokens, experts, offs=offs).tolist()
    [[2.0], [2.0], [2.0]]
    """
    tensors = tuple(t for t in (a, b, offs, bias, out) if t is not None)
    asked: tuple[Any, ...] = kernel, config, batch_invariant, precision, accumulate, out_dtype
    if has_torch_function(tensors):
        return handle_torch_function(
            grouped_mm, tensors, a, b, offs=offs, bias=bias, activation=activation, alpha=alpha,
            out=out, **dict(zip(OPTIONS, asked, strict=True)),
        )  # fmt: skip
    for name, t in (("a", a), ("b", b)):
        if isinstance(t, torch.Tensor) and t.dim() not in (2, 3):
            raise RuntimeError(f"grouped_mm(): {name} is {t.dim()}D; 2 or 3 dimensions are needed")
    x, y = pair("grouped_mm", ("a", "b"), a, b, cast=out is None)
    count = check_groups(x, y, offs)
    then = epilogue_of_groups(bias, activation, alpha, x, y, count, out)
    options = checked_options((word_of(*asked[:3]), *asked[3:]), x.dtype)
    if offs is None:
        return _batched(x, y, then, out, options[-1], dict(zip(OPTIONS, asked, strict=True)))
    *how, dtype = options
    shape = result_shape(x, y, then[1], count)
    return written(grouped, (x, y, offs, *then, *how), dtype, out, shape, tensors[:-1])


def _batched(a, b, then: tuple, out, dtype: torch.dtype, asked: dict) -> torch.Tensor:
    """The form without groups: a product of batches in type `dtype`; torch adds their biases."""
    bias, activation, alpha = then
    if bias is None:
        return matmul(a, b, activation=activation or None, alpha=alpha, out=out, **asked)
    options = asked | {"out_dtype": wide(ACCUMULATE[a.dtype])}

    def multiply():
        return matmul(a, b, alpha=alpha, **options)

    return with_biases(multiply, bias, activation, dtype, out, (a, b, bias))


def with_biases(multiply: Callable, bias, activation: str, dtype, out, inputs) -> torch.Tensor:
    """`multiply()`'s batches with biases and activation applied by torch; in `out` if given."""
    if out is not None:
        check_out(out, inputs, dtype)
    result = EpilogueInputs(bias.unsqueeze(-2), None, activation).of(multiply(), dtype)
    if out is None:
        return result
    return resized(out, result.shape, fits(out.shape, result.shape)).copy_(result)


def check_groups(a, b, offs, names: tuple[str, str] = ("a", "b")) -> int:
    """The number of groups; an error, using these names, if operands and offsets don't fit."""
    x, y = names
    if a.dim() == b.dim() == 3:
        if offs is not None:
            raise RuntimeError(
                f"offs says where 2D operands are cut; {x} and {y} are 3D: leave it out"
            )
        if not holds(a.shape[0] == b.shape[0]):
            raise RuntimeError(f"{x} has {a.shape[0]} groups and {y} {b.shape[0]}")
        return a.shape[0]
    cut = {"m": f"rows of {x}", "n": f"columns of {y}", "k": "K"}[FORMS[a.dim(), b.dim()]]
    if not isinstance(offs, torch.Tensor):
        kind = "missing" if offs is None else f"of type {type(offs).__name__}"
        error = RuntimeError if offs is None else TypeError
        raise error(f"offs is {kind}; it must be a tensor with the end of each group of {cut}")
    check_dense("offs", offs)
    if offs.dim() != 1 or offs.dtype != torch.int32 or offs.device != a.device:
        raise RuntimeError(
            f"offs is {list(offs.shape)} of {offs.dtype} on {offs.device}; it must have one "
            f"dimension, be int32 and be where {x} is, on {a.device}"
        )
    for name, t in ((x, a), (y, b)):
        if t.dim() == 3 and not holds(t.shape[0] == offs.shape[0]):
            raise RuntimeError(f"offs has {offs.shape[0]} groups and {name} has {t.shape[0]}")
    return offs.shape[0]


def epilogue_of_groups(bias, activation, alpha, a, b, count: int, out) -> tuple:
    """Bias, activation and alpha as the operator takes them; or an error."""
    word = activation_of(activation, b)
    alpha, _ = checked_epilogue(a.dtype, word, factor("alpha", alpha))
    if not -math.inf < alpha < math.inf:
        raise ValueError(f"alpha is {alpha}; it must be finite, since empty groups give zeros")
    alpha = float(alpha)
    columns_cut = FORMS.get((a.dim(), b.dim())) == "n"
    if columns_cut and word in GATED:
        raise ValueError(f"activation={word!r} takes pairs of columns, but the columns are cut")
    if bias is None:
        return None, word, alpha
    if columns_cut:
        raise ValueError(
            "bias= has a number for each column of each group, but the columns are cut: multiply "
            "b.mT by a.mT, which cuts rows"
        )
    check_bias("bias", bias, a, count, b.shape[-1])
    return autocast(bias) if out is None else bias, word, alpha


def check_bias(name: str, bias, a, count: int, columns: int) -> None:
    """Refuse a bias that can't be added to the rows of `count` groups with operands like `a`."""
    check_kind(name, bias, a)
    if not fits(bias.shape, (count, columns)):
        raise RuntimeError(
            f"{name} has shape {list(bias.shape)}; for {count} groups and {columns} columns it "
            f"must be {[count, columns]}"
        )
