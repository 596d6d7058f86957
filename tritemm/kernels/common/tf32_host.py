"""The refusals of rungs whose warps have roles and that take tf32 as well."""

from __future__ import annotations

import torch

from ...problem import Problem, kept
from .gluon_host import halves_why_not, why_not_of_wgmma, why_not_with_pairs
from .host import refusal, tma_why_not
from .limits import steps_why_not


def why_not_with_tf32(problem: Problem) -> str | None:
    """The same of rungs that take tf32 as well.

    WGMMA reads it in shared memory along K alone, and takes an A that is stored otherwise from
    registers (`fragments`).
    """
    if problem.a.dtype != torch.float32 or problem.precision != "tf32":
        return why_not_with_pairs(problem)
    if problem.b.layout not in ("T", "-") and refusal("b", problem.b, "T"):
        return "b is not stored along K, as WGMMA reads tf32"
    reason = halves_why_not(problem) or why_not_of_wgmma(problem, torch.float32)
    return reason or tma_why_not(problem) or steps_why_not(problem)


@kept
def either(problem: Problem) -> bool:
    """Whether exchanged operands can do without the copy that these need, of tf32."""
    if problem.a.dtype != torch.float32 or why_not_with_tf32(problem) is None:
        return False
    return why_not_with_tf32(problem.transposed()) is None
