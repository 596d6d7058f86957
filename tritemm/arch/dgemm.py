"""Tiles of `dgemm`, and the problems that it is for."""

from __future__ import annotations

from typing import ClassVar

import torch

from ..kernels.device.dmma import LINE
from ..problem import Constraint, Problem
from .register_tiles import Clocks, Launch, RegisterTile


class DmmaTile(RegisterTile):
    """Tiles for DMMA, of which an SM does 128 FMA in a clock. Clocks are estimated."""

    tiles: ClassVar = {
        (128, 128, 16, 8, 4): Launch(255, 1, 122.0, False),
        (128, 64, 16, 8, 6): Launch(168, 1, 120.0, True),
        (128, 64, 16, 4, 4): Launch(255, 2, 121.0, False),
        (64, 128, 16, 4, 4): Launch(255, 2, 121.0, False),
        (64, 64, 16, 4, 4): Launch(168, 3, 120.0, False),
        (64, 32, 16, 4, 4): Launch(128, 4, 112.0, True),
        (64, 32, 16, 2, 4): Launch(168, 4, 114.0, False),
        (32, 64, 16, 4, 4): Launch(128, 4, 112.0, True),
        (32, 32, 16, 2, 4): Launch(128, 6, 104.0, True),
    }
    clocks = Clocks(700.0, 1670.0, 1.73, 3790.0, 0.093, 1.3)
    line = LINE.value


NEEDS = DmmaTile.problem_needs(
    Constraint(
        "this rung multiplies fp64, and operands are {p.a.dtype}",
        lambda p: p.a.dtype == torch.float64,
    )
)


def suits(problem: Problem) -> bool:
    """Whether it is no product with a vector."""
    return min(problem.M, problem.N) > 1
