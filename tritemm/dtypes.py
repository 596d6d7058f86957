"""Accumulator and result types of a product, and the words for how fp32 is multiplied."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch

from .problem import ACCUMULATE, DEFAULT_MODULI

#: Operand types that allow each other as the result's type, and whose kernels have an epilogue;
#: for others torch computes it.
REAL = (torch.float16, torch.bfloat16, torch.float32)
#: The largest fp32 number; 16-bit and fp32 products are scaled in fp32.
_MOST = torch.finfo(torch.float32).max
#: Values of `precision=`, least to most costly after "ieee" (which uses no tensor core).
Residues = Literal[
    "int8", "int8x5", "int8x6", "int8x7", "int8x8", "int8x9", "int8x10", "int8x11", "int8x12",
    "int8x13", "int8x14", "int8x15", "int8x16",
]  # fmt: skip
Precision = Literal["ieee", "tf32", "bf16x3", "tf32x3", "bf16x6", "bf16x9", Residues]
PRECISIONS: tuple[str, ...] = get_args(Precision)
_BY_INT8 = frozenset(get_args(Residues))
#: torch's words for precisions that it has too.
_OF_TORCH = {"tf32": "tf32", "bfx9": "bf16x9"}


def check_precision(precision: str | None, dtype: torch.dtype, name: str = "precision") -> None:
    """Raise ValueError, with the option's `name`, for an unknown word or one not for `dtype`."""
    if precision is None:
        return
    if precision not in PRECISIONS:
        raise ValueError(f"{name}={precision!r} is unknown; one of {', '.join(PRECISIONS)}")
    able = (torch.float32, torch.float64) if precision in _BY_INT8 else (torch.float32,)
    if precision != "ieee" and dtype not in able:
        names = " or ".join(str(t).removeprefix("torch.") for t in able)
        raise ValueError(
            f"{name}={precision!r} says how {names} operands are multiplied; these are {dtype}. "
            f"Leave {name} out"
        )


def of_fp32(precision: Precision | None, fp32: Precision | None) -> Precision | None:
    """The value passed under either name; ValueError if it is unknown, or if the two differ."""
    if None not in (precision, fp32) and precision != fp32:
        raise ValueError(f"precision={precision!r} and fp32={fp32!r} are one option: pass one")
    name, asked = ("fp32", fp32) if precision is None else ("precision", precision)
    check_precision(asked, torch.float32, name)
    return asked


def check_flag(name: str, value) -> None:
    """TypeError if it is neither True nor False: "no" would count as True."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def resolve(precision: str | None, dtype: torch.dtype) -> str:
    """The precision to multiply `dtype` operands with, read when the product runs.

    None follows `torch.backends.cuda.matmul.fp32_precision`: tf32 if it is "tf32", which is also
    what `allow_tf32` and `set_float32_matmul_precision` set, bf16x9 if it is "bfx9", else IEEE.
    "int8" becomes "int8xN", with as many moduli as the type needs.
    """
    if precision == "int8":
        return f"int8x{DEFAULT_MODULI[dtype]}"
    if precision is not None or dtype != torch.float32:
        return precision or "ieee"
    return _OF_TORCH.get(torch.backends.cuda.matmul.fp32_precision, "ieee")


def has_epilogue(dtype: torch.dtype, precision: str | None) -> bool:
    """Whether kernels compute what follows a product; of others torch does."""
    return dtype in REAL and precision not in _BY_INT8


def accumulator_type(accumulate, dtype):
    """What `dtype` operands accumulate in, given the caller's word; or ValueError."""
    default = ACCUMULATE[dtype]
    if accumulate in (None, default):
        return default
    if accumulate == torch.float16 and dtype == torch.float16:
        return accumulate
    raise ValueError(
        f"accumulate={accumulate} is not possible for {dtype} operands; leave it out for {default}"
        + (" or take torch.float16" if dtype == torch.float16 else "")
    )


def result_type(out_dtype, dtype):
    """The type of the result of `dtype` operands, given the caller's word; or ValueError."""
    default = torch.int32 if dtype == torch.int8 else dtype
    if out_dtype in (None, default):
        return default
    if dtype in REAL and out_dtype in REAL:
        return out_dtype
    able = ", ".join(str(t) for t in (REAL if dtype in REAL else (default,)))
    raise ValueError(f"out_dtype={out_dtype} is not possible for {dtype} operands; take {able}")


def wide(accumulate: torch.dtype) -> torch.dtype:
    """The type in which an accumulator's epilogue is computed: its own, but at least fp32."""
    if not accumulate.is_floating_point:
        return accumulate
    return torch.promote_types(accumulate, torch.float32)


def beyond_float(value: float) -> bool:
    """Whether fp32, in which factors are applied, can't hold a finite number."""
    return _MOST < abs(value) != math.inf


def _whole(name: str, value: float) -> int:
    """`value` modulo 2**32, as an int32: of int32 sums no other bits are kept."""
    if not -(2**63) <= value < 2**63:
        raise RuntimeError(f"{name} = {value} cannot be converted to int64 without overflow")
    return (int(value) + 2**31) % 2**32 - 2**31


def checked_epilogue(
    dtype: torch.dtype, activation: str, alpha: float = 1, beta: float = 1
) -> tuple[float, float]:
    """alpha and beta as they follow a product of operands of this type; or an error."""
    factors = {"alpha": alpha, "beta": beta}
    if dtype == torch.int8:
        broken = [f"{name}={v}" for name, v in factors.items() if not float(v).is_integer()]
        if broken := [f"activation={activation!r}"] * bool(activation) + broken:
            raise ValueError(
                f"not possible for int8 operands, whose sums are whole numbers: "
                f"{', '.join(broken)}; convert the result"
            )
    for name, value in factors.items():
        if dtype.is_floating_point and dtype != torch.float64 and beyond_float(value):
            raise RuntimeError(
                f"{name} = {value} cannot be converted to float32 without overflow: of {dtype} "
                f"operands, factors are applied in float32, up to {_MOST:g}"
            )
    if dtype == torch.int8:
        return _whole("alpha", alpha), _whole("beta", beta)
    return alpha, beta
