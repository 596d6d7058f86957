"""Tiles of `sgemm`, and the problems that it is for."""

from __future__ import annotations

from typing import ClassVar

from ..problem import Constraint, Problem
from .register_tiles import Clocks, Launch, RegisterTile


class FfmaTile(RegisterTile):
    """Tiles for FFMA. Clocks are fitted to 1000 times of an H200, to 5 %."""

    tiles: ClassVar = {
        (256, 128, 32, 8, 4): Launch(255, 1, 95.1),
        (128, 128, 16, 4, 4): Launch(255, 2, 82.7),
        (128, 64, 16, 4, 4): Launch(168, 3, 87.5),
        (64, 128, 16, 4, 4): Launch(168, 3, 87.5),
        (64, 64, 16, 4, 4): Launch(128, 4, 84.7),
        (64, 64, 16, 2, 4): Launch(192, 5, 84.3),
        (32, 64, 32, 4, 4): Launch(128, 4, 79.3),
        (32, 32, 32, 2, 4): Launch(128, 6, 63.3),
    }
    clocks = Clocks(700.0, 1670.0, 1.73, 3790.0, 0.093, 2.04)


NEEDS = FfmaTile.problem_needs(
    Constraint(
        "this rung multiplies fp32 as ieee, and operands are {p.a.dtype}, precision {p.precision}",
        lambda p: p.by_ffma,
    )
)


def suits(problem: Problem) -> bool:
    """Whether it is no product with a vector."""
    return problem.by_ffma and min(problem.M, problem.N) > 1
