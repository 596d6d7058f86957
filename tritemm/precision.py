"""How fp32 operands are multiplied: torch's flag and the caller's word, in one function."""

from __future__ import annotations

import torch

#: What `precision=` may be, least to most costly after "ieee" (which uses no tensor core).
PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")


def check_precision(precision: str | None, dtype: torch.dtype) -> None:
    """Raise ValueError for an unknown word, or one that `dtype` has no use for."""
    if precision is None:
        return
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is unknown; one of {', '.join(PRECISIONS)}")
    if precision != "ieee" and dtype != torch.float32:
        raise ValueError(
            f"precision={precision!r} says how float32 operands are multiplied; these are {dtype}. "
            "Leave precision out"
        )


def resolve(precision: str | None, dtype: torch.dtype) -> str:
    """The precision to multiply `dtype` operands with, read when the product runs.

    None follows torch: tf32 if `torch.backends.cuda.matmul.fp32_precision` is "tf32", which is
    also what `allow_tf32` and `set_float32_matmul_precision` set, else IEEE.
    """
    if precision is not None:
        return precision
    follows_tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if follows_tf32 and dtype == torch.float32 else "ieee"
