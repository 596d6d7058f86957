"""What a choice asks of an architecture, for which it need not know an instruction."""

from __future__ import annotations

import torch

from ..problem import INTERPRETER, Config, Problem
from ..spec import Kernel
from . import sm80, sm90
from .lines import unreadable
from .pointers import is_wgmma
from .tiles import FRAGMENTS, Cooperative

#: A tensor core takes so many rows at least: a side of C that is shorter is better its columns.
LEAST_ROWS = sm90.ROWS


def too_old(problem: Problem) -> str | None:
    """Why there is no kernel for the problem's device."""
    if sm80.supports(problem.device):
        return None
    return (
        "tritemm needs an NVIDIA GPU of compute capability 8.0 or newer; "
        f"{problem.device.name} has {problem.device.version}. Multiply by torch there"
    )


def packs(problem: Problem) -> bool:
    """Whether copied operands are read faster, or by more rungs."""
    return sm90.has_tma(problem.device)


def unread(problem: Problem) -> str:
    """The operands that TMA can read neither by rows nor by columns."""
    return "".join(name for name in "ab" if unreadable(name, getattr(problem, name)))


def turned(problem: Problem) -> str:
    """The operands that WGMMA reads only with K contiguous, and that are stored otherwise."""
    dtype = problem.a.dtype
    if dtype != torch.int8 and (dtype != torch.float32 or problem.precision == "ieee"):
        return ""
    return "a" * (problem.a.layout != "N") + "b" * (problem.b.layout != "T")


def one_from_registers(problem: Problem) -> bool:
    """Whether a rung takes one of those from registers: of tf32."""
    return problem.precision == "tf32" and sm90.has_wgmma(problem.device)


def lacks_registers(rung: Kernel, problem: Problem, config: Config) -> bool:
    """Whether it does that of A in this rung, and accumulators leave too few."""
    return rung.cost.a_registers and not FRAGMENTS.holds(Cooperative(problem, config))


def one_order(problem: Problem) -> bool:
    """Whether accumulators of tiles that `warpgroups` multiply have one order, for any M and batch.

    WGMMA adds the products of 16 elements of K to each at a time, in K's order, whatever the tile,
    the depth of a step, the stages and the rung; of 16-bit operands.
    """
    real = problem.device != INTERPRETER and sm90.has_wgmma(problem.device)
    return real and problem.itemsize == 2


def in_that_order(problem: Problem, config: Config) -> bool:
    """Whether a tile's are."""
    return is_wgmma(problem, config)
