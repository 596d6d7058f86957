"""What the choice of a kernel asks of an architecture, without knowing its instructions."""

from __future__ import annotations

import torch

from ..problem import INTERPRETER, PLAIN, Config, Problem
from ..spec import Kernel
from . import sm80, sm90
from .gpus import clusters_of_model
from .limits import COUNTED_K
from .lines import crossed, unreadable
from .pointers import is_wgmma
from .tiles import FRAGMENTS, Cooperative

#: If K is cut into fixed parts: the least columns of C in a tile of a swapped product, which become
#: its rows; the largest N, the smallest K, and the least elements of a part.
TILE, MOST_N, LEAST_K, LEAST_PART = 64, 1536, 4096, 768
#: The most parts that a cluster's programs exchange; and the least elements per part above that.
IN_CLUSTER, DEEP_PART = 8, 2048
#: The least rows of a tensor core's tile: a shorter side of C should be its columns.
LEAST_ROWS = sm90.ROWS


def too_old(problem: Problem) -> str | None:
    """Why no kernel supports the problem's device, or None."""
    if problem.device.capability >= sm80.CAPABILITY:
        return None
    return (
        "tritemm needs an NVIDIA GPU of compute capability 8.0 or newer; "
        f"{problem.device.name} has {problem.device.version}. Use torch there"
    )


def copies(problem: Problem) -> list[str]:
    """Operands that may be copied first: none, those that TMA can't read, and the `turned` ones.

    Of two `turned` tf32 operands the smaller is enough if a rung takes the other from registers.
    """
    if not sm90.has_tma(problem.device):
        return [""]
    if problem.splits:
        return ["ab" if planes(problem) else ""]
    slow, one = turned(problem), ""
    if slow == "ab" and problem.precision == "tf32" and sm90.has_wgmma(problem.device):
        one = min("ab", key=problem.copied)
    cut = crossed(problem)
    refused = "".join(n for n in "ab" if n in cut or unreadable(n, getattr(problem, n)))
    more = ("".join(n for n in "ab" if n in refused + others) for others in (one, slow))
    return list(dict.fromkeys(("", refused, *more)))


def planes(problem: Problem) -> bool:
    """Whether operands may be split into planes, or residues, that WGMMA multiplies."""
    able = problem.device != INTERPRETER and sm90.has_wgmma(problem.device)
    if problem.by_residues:  # torch computes the epilogue
        able = able and problem.epilogue == PLAIN and problem.why_no_residues() is None
    return problem.splits and able


def turned(problem: Problem) -> str:
    """The operands that WGMMA reads only with K contiguous, but that are stored otherwise.

    For FFMA, the smaller one if both are stored along K: registers would be short.
    """
    dtype = problem.a.dtype
    if problem.by_ffma:
        return min("ba", key=problem.copied) if problem.layout == "NT" else ""
    if dtype.itemsize > 1 and dtype != torch.float32:
        return ""
    return "a" * (problem.a.layout != "N") + "b" * (problem.b.layout != "T")


def better_swapped(problem: Problem) -> bool:
    """Whether only the swapped product has scales for each row of A alone."""
    return problem.sums == "block" and problem.lines_per_scale[0] != 1 == problem.lines_per_scale[1]


def lacks_registers(rung: Kernel, problem: Problem, config: Config) -> bool:
    """Whether the rung takes A from registers, and accumulators leave too few."""
    return rung.cost.a_registers and not FRAGMENTS.holds(Cooperative(problem, config))


def in_that_order(problem: Problem, config: Config) -> bool:
    """Whether the tile's accumulators have the one order of sums, if `parts_of` says there is one.

    Products are added to each in K's order, for every tile, step depth, number of stages and rung:
    for 16-bit operands 16 elements of K at a time, by WGMMA; for fp32 and fp64 without splitting,
    by FFMA and DMMA, whose bits were equal on an H200 for all tiles of all such rungs. A tile whose
    steps have slices has a sum for each slice, and no rung offers it in this case.
    """
    return problem.itemsize > 2 or is_wgmma(problem, config)


def parts_of(problem: Problem) -> int:
    """Parts that K is cut into for any M and batch: `Config.PARTS`; 0 if sums have no one order.

    They depend on N, K, the operands' type and the GPU; no rung cuts a K of fp32 or fp64 this way.
    If C is wide, even a few rows make tiles for all SMs, if tiles are narrow. K in parts costs a
    program with many rows a second sum per element, hence a smaller tile, which is 3 to 8 % slower.
    So only a narrow C with a long K is cut: into as many parts as there is room for clusters of so
    many programs, one per 64 columns of C, because clusters exchange sums fastest; or, if these
    leave more than half of the SMs idle and K is very long, into as many as fill them.
    """
    N, K, device = problem.N, problem.K, problem.device
    real = device != INTERPRETER and sm90.has_wgmma(device)
    if not real or problem.itemsize == 1 or problem.precision != "ieee":
        return 0
    if (
        problem.itemsize > 2
        or problem.groups
        or problem.accumulate != torch.float32
        or N > MOST_N
        or K < LEAST_K
        or COUNTED_K(problem)
    ):
        return 1
    tiles = -(-N // TILE)
    most = [n for n in range(1, IN_CLUSTER + 1) if tiles <= clusters_of_model(n, device)]
    few = min(max(most, default=1), K // LEAST_PART)
    many = min(device.sms // tiles, K // DEEP_PART, sm90.MOST_PARTS)
    return many if many > few and 2 * few * tiles < device.sms else few
