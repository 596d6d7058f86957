"""What is measured: one product's sizes, layouts and types, in words that a JSON file can hold."""

from __future__ import annotations

import dataclasses
import re

from tritemm import problem

#: The floating-point operand types by the names that rows use.
DTYPES = {problem.short_name(t): t for t in problem.ACCUMULATE if t.is_floating_point}
#: Accumulator of each, unless asked otherwise.
ACCUMULATE = {name: problem.short_name(problem.ACCUMULATE[dtype]) for name, dtype in DTYPES.items()}


@dataclasses.dataclass(frozen=True)
class Case:
    """C = A B with A M x K and B K x N; `layout` is N (stored as written) or T for each operand.

    `precision` says how fp32 operands are multiplied, as in `tritemm.problem.Problem`.
    """

    M: int
    N: int
    K: int
    layout: str = "NN"
    dtype: str = "bf16"
    accumulate: str = "fp32"
    precision: str = "ieee"

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.M * self.N * self.K

    def __str__(self) -> str:
        precision = f" ({self.precision})" if self.dtype == "fp32" else ""
        accumulate = (
            "" if self.accumulate == ACCUMULATE[self.dtype] else f", {self.accumulate} accumulator"
        )
        size = f"{self.M} x {self.N} x {self.K}"
        return f"{size} {self.layout}, {self.dtype}{precision}{accumulate}"


def parse_size(text: str) -> tuple[int, int, int]:
    """`4096` (a cube) or `8192x28672x4096` (M x N x K)."""
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*x[1-9]\d*)?", text):
        raise ValueError(f"a size is 4096 or 8192x28672x4096 (M x N x K), not {text!r}")
    sizes = tuple(int(part) for part in text.split("x"))
    return sizes if len(sizes) == 3 else sizes * 3


def parse_layout(text: str) -> str:
    """NN, NT, TN or TT: A's layout, then B's."""
    if not re.fullmatch("[NT][NT]", text):
        raise ValueError(f"a layout is NN, NT, TN or TT (A's, then B's), not {text!r}")
    return text
