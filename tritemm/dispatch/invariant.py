"""Candidates whose sums have one order, whatever M and the batch are.

Where the tensor core adds products in K's order whatever the tile (`questions.one_order`), all are
candidates that have K whole, or all that cut it at the same places and add the parts in their
order. The least predicted time decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ..arch import questions
from ..arch.gpus import clusters_of_model
from ..arch.limits import COUNTED_K
from ..arch.sm90 import MOST_PARTS
from ..problem import Problem
from ..problem.config import Config
from ..spec import Kernel
from .candidates import SHORT_SIDE, Group, packs
from .cost_model.model import pack_bytes, scene_of

#: Whether sums are the same bits where operands change places: on an H200 those of all 143 configs
#: were. If not, operands are never swapped here.
SWAPPED_ALIKE = True
#: Columns of C that a tile has at least of a swapped product, as its rows.
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
    if not questions.one_order(problem) or problem.accumulate != torch.float32:
        return 1
    if N > MOST_N or K < LEAST_K or COUNTED_K(problem):
        return 1
    tiles = -(-N // TILE)
    most = [n for n in range(1, IN_CLUSTER + 1) if tiles <= clusters_of_model(n, device)]
    few = min(max(most, default=1), K // LEAST_PART)
    many = min(device.sms // tiles, K // DEEP_PART, MOST_PARTS)
    return many if many > few and 2 * few * tiles < device.sms else few


def able(rungs: Sequence[Kernel], named: bool = False) -> list[Kernel]:
    """Those whose sums may be taken, the highest first; of rungs that are not `named`, auto's."""
    return [
        rung
        for rung in reversed(rungs)
        if rung.limits.tile.warpgroups and (rung.policy.auto or named)
    ]


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
        for swap in (False, True)[: 1 + SWAPPED_ALIKE]:
            view = packed.transposed() if swap else packed
            scene = None
            for rung in rungs:
                if swap and not short and not rung.policy.swap(problem):
                    continue
                if rung.why_not(view):
                    refusing[rung] = None
                    continue
                configs = _able(rung, view, parts)
                if configs:
                    scene = scene or scene_of(view, copied)
                    yield Group(rung, configs, scene, pack, swap)
                if rung.policy.supersedes:
                    break
        rungs = tuple(refusing)  # the others need no copy


def _packs(problem: Problem, parts: int) -> Sequence[str]:
    """Where K is in parts, the least copies even if they are large: no other rung can do that."""
    found, refused = packs(problem), questions.unread(problem)
    return found if parts == 1 or refused in found else (*found, refused)


def _able(rung: Kernel, view: Problem, parts: int) -> Sequence[Config]:
    offered = rung.in_one_order(view, parts)
    return [config for config in offered if questions.in_that_order(view, config)]
