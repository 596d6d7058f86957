"""Candidates whose sums have one order, whatever M and the batch are.

WGMMA adds the products of 16 elements of K to each sum at a time, in K's order, whatever the tile,
the depth of a step, the stages and the rung: of 16-bit operands, all are candidates that have K
whole, or all that cut it at the same places and add the parts in their order. The least predicted
time decides.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from ..arch import parts_host
from ..arch.gpus import clusters_of_model
from ..arch.host import is_wgmma
from ..problem import INTERPRETER, Problem
from ..problem.config import Config
from ..spec import Kernel
from .candidates import SHORT_SIDE, packs, refused_by_tma
from .cost_model.columns import Group
from .cost_model.model import pack_bytes

#: Whether WGMMA's sums are the same bits where its operands change places: on an H200 those of all
#: 143 configs were. If not, operands are never exchanged here.
EXCHANGED_ALIKE = True
#: Columns of C that a tile has at least of an exchanged product, as its rows.
TILE = 64
#: Where K is cut: N at most, K at least, and elements of a part at least.
MOST_N, LEAST_K, LEAST_PART = 1536, 4096, 768
#: Parts that the programs of a cluster exchange; and elements of each of more, at least.
IN_CLUSTER, DEEP_PART = 8, 2048


def parts_of(problem: Problem) -> int:
    """Parts that K is cut into for any M and batch: `Config.PARTS`.

    They follow from N, K, the operands' type and the GPU. A wide C has tiles for all SMs with few
    rows, too, if these are narrow; and to have K in parts takes a program of many rows a second
    sum of each element, and so a smaller tile, which is 3 to 8 % slower. So only a narrow C with a
    long K is cut, into as many parts as clusters of so many programs find room for each 64 columns
    of it, because they exchange sums fastest; or, where those leave more than half of the SMs idle
    and K is very long, as many as fill them.
    """
    N, K, device = problem.N, problem.K, problem.device
    if not by_wgmma(problem) or problem.accumulate != torch.float32:
        return 1
    if N > MOST_N or K < LEAST_K or parts_host.too_long(problem):
        return 1
    tiles = -(-N // TILE)
    most = [n for n in range(1, IN_CLUSTER + 1) if tiles <= clusters_of_model(n, device)]
    few = min(max(most, default=1), K // LEAST_PART)
    many = min(device.sms // tiles, K // DEEP_PART, parts_host.MOST_PARTS)
    return many if many > few and 2 * few * tiles < device.sms else few


def by_wgmma(problem: Problem) -> bool:
    """Whether sums of this kind are WGMMA's, of 16-bit operands; of any M and batch."""
    hopper = problem.device != INTERPRETER and problem.device.capability[0] == 9
    return hopper and problem.itemsize == 2


@functools.cache
def takes_wgmma(rung: Kernel) -> bool:
    """Whether all its products of 64 rows and more are: of its signs, which its code is held to."""
    return "HGMMA" in rung.signs.get(90, ((), ()))[0]


def able(rungs: Sequence[Kernel], named: bool = False) -> list[Kernel]:
    """Those whose sums may be taken, the highest first; of rungs that are not `named`, auto's."""
    return [rung for rung in reversed(rungs) if takes_wgmma(rung) and (rung.auto or named)]


def groups(
    problem: Problem, rungs: Sequence[Kernel], parts: int, copies: bool = True
) -> Iterator[Group]:
    """The candidates of the `rungs`, those above first, with K in so many fixed parts.

    With `copies` of what a rung refuses.
    """
    short = min(problem.M, problem.N) <= SHORT_SIDE
    for pack in _packs(problem, parts) if copies else ("",):
        packed = problem.packed(pack) if pack else problem
        copied, refusing = pack_bytes(problem, pack), {}
        for swap in (False, True)[: 1 + EXCHANGED_ALIKE]:
            view = packed.transposed() if swap else packed
            for rung in rungs:
                if swap and not short and not rung.either(problem):
                    continue
                if rung.why_not(view):
                    refusing[rung] = None
                    continue
                configs = _able(rung, view, parts)
                if configs:
                    yield Group(rung, configs, view, copied, pack, swap)
                if rung.supersedes:
                    break
        rungs = tuple(refusing)  # the others need no copy


def _packs(problem: Problem, parts: int) -> Sequence[str]:
    """Where K is in parts, the least copies even if they are large: no other rung can do that."""
    found = packs(problem)
    refused = "".join(name for name in "ab" if refused_by_tma(name, getattr(problem, name)))
    return found if parts == 1 or refused in found else (*found, refused)


def _able(rung: Kernel, view: Problem, parts: int) -> Sequence[Config]:
    return [config for config in rung.in_one_order(view, parts) if is_wgmma(view, config)]
