"""Symmetric products: `syrk`, and Muon's `newton_schulz`, most of whose products are symmetric."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function
from typing_extensions import Unpack

from .arguments import Options, check_dense, check_options, under_autocast, without_tensors
from .matmul import matmul

#: Muon's, for X' = a X + (b R + c R R) X, R = X X.T (https://kellerjordan.github.io/posts/muon).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
#: The Gram form stores R times this factor: R's elements, at most about 1.5, are tiny off the
#: diagonal; fp16 ends at 65504.
_SCALE = 2.0**11


def syrk(
    input: torch.Tensor,
    residual: torch.Tensor | None = None,
    *,
    alpha: float = 1,
    beta: float | None = None,
    out: torch.Tensor | None = None,
    **options: Unpack[Options],
) -> torch.Tensor:
    """alpha * input @ input.mT + beta * residual, symmetric to the bit, at half the arithmetic.

    `input` is [..., N, K]; the result is [..., N, N], as is `residual`, which must be symmetric.
    With `out` and no residual, `beta` is the factor of what `out` holds. Types, `options` and
    errors are those of `matmul(..., symmetric=True)`, which this calls.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    >>> tritemm.syrk(a).tolist()
    [[5.0, 11.0], [11.0, 25.0]]
    """
    if not isinstance(input, torch.Tensor):
        named = {"residual": residual, "alpha": alpha, "beta": beta, "out": out}
        return without_tensors(syrk, input, **named, **options)
    if options:
        check_options(syrk, options)
    if input.dim() < 2:
        shape = list(input.shape)
        raise ValueError(f"syrk(): input has shape {shape}; [..., N, K] is needed")
    return matmul(
        input, input.mT, residual=residual, alpha=alpha, beta=beta, symmetric=True, out=out,
        **options,
    )  # fmt: skip


def newton_schulz(
    x: torch.Tensor,
    steps: int = 5,
    *,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: float = 1e-7,
    gram: bool = False,
) -> torch.Tensor:
    """An approximately orthogonal matrix near `x`: U V.T of its singular value decomposition.

    Each of the `steps` maps the singular values s of x / |x| to a s + b s^3 + c s^5, which drives
    them to about 0.7 to 1.2. Two of the three products of a step are symmetric.

    Args:
        x: [..., M, N], float16, bfloat16 or float32. If its norm overflows float32, as with
            elements of 1e19, the result is zeros, as in torch.
        steps: number of iterations; 1 or more.
        coefficients: a, b, c; Muon's by default.
        eps: the smallest norm that `x` is divided by.
        gram: iterate the M x M matrix x @ x.mT (N x N for a tall x) instead of x, in float16, and
            multiply by x once after half of the steps and once at the end. The more M and N
            differ, the more this saves. It is also more accurate: the error against fp64 is some
            0.2 % of the result, and 1 % otherwise, in bfloat16 as in `torch.optim.Muon`.

    Returns:
        [..., M, N] in bfloat16. Not differentiable: it is meant for an optimizer's gradients.

    Raises:
        ValueError: `x` has fewer than two dimensions, or steps, coefficients or eps are invalid.
        TypeError: `x` has another type, or the coefficients are no numbers.
        NotImplementedError: `x` is sparse or nested.

    >>> import torch, tritemm
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> x = tritemm.newton_schulz(torch.randn(32, 64, device=device))
    >>> x.shape, x.dtype
    (torch.Size([32, 64]), torch.bfloat16)
    """
    if has_torch_function((x,)):
        named: dict[str, Any] = {"coefficients": coefficients, "eps": eps, "gram": gram}
        return handle_torch_function(newton_schulz, (x,), x, steps, **named)
    _check(x, steps, coefficients, eps)
    device = x.device
    narrowing = under_autocast(device)
    exact = torch.autocast(device.type, enabled=False) if narrowing else contextlib.nullcontext()
    with torch.no_grad(), exact:
        tall = x.shape[-2] > x.shape[-1]
        norm = torch.linalg.matrix_norm(x, keepdim=True, dtype=torch.float32).clamp_(min=eps)
        dtype = torch.float16 if gram else torch.bfloat16
        of_unit = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        torch.div(x, norm, out=of_unit)
        found = of_unit.mT if tall else of_unit
        if gram:
            half = (steps + 1) // 2
            found = _gram(found, half, *coefficients)
            found = _gram(found, steps - half, *coefficients) if steps > half else found
        else:
            for _ in range(steps):
                found = _step(found, *coefficients)
        found = found.to(torch.bfloat16)
        return found.mT if tall else found


def _step(x: torch.Tensor, a: float, b: float, c: float) -> torch.Tensor:
    """a x + (b R + c R R) x, where R = x x.T."""
    r = syrk(x)
    z = matmul(r, r, symmetric=True, residual=r, alpha=c, beta=b)
    return matmul(z, x, residual=x, beta=a)


def _gram(x: torch.Tensor, steps: int, a: float, b: float, c: float) -> torch.Tensor:
    """`steps` steps on x, by iterating R = x x.T and the matrix that x is multiplied by.

    A step multiplies by y = a + z, where z = b R + c R R, and replaces R by y R y. All of these
    commute. R is stored times `_SCALE`.
    """
    r = syrk(x, alpha=_SCALE)
    q = None
    for step in range(steps):
        last = step == steps - 1
        z = matmul(r, r, symmetric=True, residual=r, alpha=c / _SCALE**2, beta=b / _SCALE)
        if not last:
            r = matmul(z, r, symmetric=True, residual=r, beta=a)
            r = matmul(z, r, symmetric=True, residual=r, beta=a)
        if q is not None:
            q = matmul(z, q, symmetric=True, residual=q, beta=a)
        elif not last:
            z.diagonal(dim1=-2, dim2=-1).add_(a)
            q = z
    if q is None:
        return matmul(z, x, residual=x, beta=a)
    return matmul(q, x)


def _check(x: torch.Tensor, steps: int, coefficients: Sequence, eps: float) -> None:
    kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
    if kind not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"x must be a tensor of float16, bfloat16 or float32, not {kind}")
    check_dense("x", x)
    if x.dim() < 2:
        raise ValueError(f"x has shape {list(x.shape)}; it must have two dimensions or more")
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number, 1 or more, not {steps!r}")
    if not isinstance(coefficients, Sequence):
        kind = type(coefficients).__name__
        raise TypeError(f"coefficients must be three numbers, a, b and c, not {kind}")
    if len(coefficients) != 3:
        raise ValueError(f"coefficients must be three numbers, a, b and c, not {len(coefficients)}")
    if not isinstance(eps, numbers.Real) or not eps > 0:
        raise ValueError(f"eps must be a number above 0, not {eps!r}")
