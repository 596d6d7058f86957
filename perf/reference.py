"""The reference: cuBLAS through the torch call that a user would write for a case."""

from __future__ import annotations

import torch

from .case import DTYPES, Case

#: Names of the calls, for tables and captions.
CALLS = {"fp8": "torch._scaled_mm", "int8": "torch._int_mm"}


def call_of(case: Case) -> str:
    """The torch function: `torch.matmul`, `torch._scaled_mm`, `torch.mm(out_dtype=)` ..."""
    if case.out_dtype and case.dtype not in CALLS:
        return "torch.mm(out_dtype=)" if case.batch == 1 else "torch.bmm(out_dtype=)"
    return CALLS.get(case.dtype, "torch.matmul")


def reference(case: Case, accumulate: str | None = None):
    """`run(a, b, c)` of cuBLAS with the case's accumulator or, for fp16 operands, another one.

    fp32 operands are multiplied as the case's precision says where torch can (ieee, tf32), else in
    IEEE. fp8 operands have one scale of 1 each, and torch's default, `use_fast_accum=False`.
    """
    torch.backends.cuda.matmul.fp32_precision = "tf32" if case.precision == "tf32" else "ieee"
    if case.dtype == "int8":
        return lambda a, b, c: torch._int_mm(a, b, out=c)
    if case.dtype == "fp8":
        return _scaled(DTYPES[case.output])
    if case.out_dtype:
        multiply, out_dtype = (torch.mm if case.batch == 1 else torch.bmm), DTYPES[case.out_dtype]
        return lambda a, b, c: multiply(a, b, out_dtype=out_dtype, out=c)
    return _matmul(accumulate or case.accumulate)


def _matmul(accumulate: str):
    flags = torch.backends.cuda.matmul

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        before = flags.allow_fp16_accumulation
        flags.allow_fp16_accumulation = accumulate == "fp16"
        try:
            torch.matmul(a, b, out=c)
        finally:
            flags.allow_fp16_accumulation = before

    return run


def _scaled(out_dtype: torch.dtype):
    scales: dict[torch.device, torch.Tensor] = {}  # made before a graph is captured, not inside

    def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        if a.device not in scales:
            scales[a.device] = torch.ones((), device=a.device)
        one = scales[a.device]
        torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out_dtype, out=c)

    return run
