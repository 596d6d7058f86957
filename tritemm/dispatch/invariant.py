"""Candidates whose sums have one order, whatever M and the batch are.

Where the tensor core adds products in K's order whatever the tile (`questions.one_order`), all are
candidates that have K whole, or all that cut it at the same places and add the parts in their
order. The least predicted time decides. Of others the order follows from the tile, which is that of
a product with a canonical M.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch

from ..arch import questions
from ..arch.gpus import clusters_of_model
from ..arch.limits import COUNTED_K
from ..arch.sm90 import MOST_PARTS
from ..problem import INTERPRETER, PLAIN, Problem
from ..problem.config import Config
from ..rungs import RUNGS, find
from ..spec import Kernel
from . import candidates
from .candidates import SHORT_SIDE, least, must_run, packs
from .cost_model.columns import Group
from .request import Request, why_not

#: Whether sums are the same bits where the operands are swapped: on an H200 those of all 143
#: configs were. If not, operands are never swapped here.
SWAPPED_ALIKE = True
#: The M that stands for all others when rows must not depend on it.
_CANONICAL_M = 1024
#: Columns of C that a tile has at least of a swapped product, as its rows.
TILE = 64
#: Where K is cut: N at most, K at least, and elements of a part at least.
MOST_N, LEAST_K, LEAST_PART = 1536, 4096, 768
#: Parts that the programs of a cluster exchange; and elements of each of more, at least.
IN_CLUSTER, DEEP_PART = 8, 2048


def best(problem: Problem, request: Request) -> tuple[Kernel, Config]:
    """The kernel and config whose sums have the same order whatever M and the batch are."""
    rungs = [rung for rung in RUNGS if rung.limits.in_order or rung.limits.ordered]
    named = request.kernel != "auto"
    if named:
        rung = find(request.kernel)
        limits = rung.limits
        if limits.in_order or limits.ordered:
            must_run(rung, problem)
        if not limits.in_order and not (limits.ordered and questions.one_order(problem)):
            raise ValueError(
                f'kernel="{request.kernel}" sums in an order that depends on M; '
                "batch_invariant=True can't have it"
            )
        rungs = [rung]
    some = able(rungs, named)
    if some and questions.one_order(problem):
        return _in_one_order(problem, some, named)
    return _as_anchored(problem, [r for r in rungs if r.limits.in_order], not named)


def _in_one_order(problem: Problem, rungs: Sequence[Kernel], named: bool) -> tuple[Kernel, Config]:
    """The least of those of the `rungs`, or of the one that was `named`, in one order."""
    parts = parts_of(problem) if any(rung.limits.fixed_parts for rung in rungs) else 1
    found = least(groups(problem, rungs, parts, copies=not named))
    if found is None:
        cut = f", with K in {parts} parts" if parts > 1 else ""
        unfit = "none of its tiles sums in that order, or fits"
        reasons = "; ".join(f"{rung.name}: {rung.why_not(problem) or unfit}" for rung in rungs)
        raise ValueError(f"batch_invariant=True can't have {problem}{cut}: {reasons}")
    return found


def _as_anchored(problem: Problem, rungs: Sequence[Kernel], copies: bool) -> tuple[Kernel, Config]:
    """The rung and config of a canonical M: the order of sums follows from the tile.

    With `copies` of operands if the rung needs them.
    """
    rung, config = _anchor(problem, rungs)

    def runs(view: Problem) -> bool:
        return rung.why_not(view) is None and not questions.lacks_registers(rung, view, config)

    pack = ""
    if copies and not runs(problem):
        pack = next((p for p in packs(problem) if runs(problem.packed(p))), "")
    view = problem.packed(pack) if pack else problem
    must_run(rung, view)
    if problem.device != INTERPRETER and why_not(rung, view, config):
        config = _shallower(rung, view, config)
    return rung, dataclasses.replace(config, PACK=pack)


def _shallower(rung: Kernel, view: Problem, anchor: Config) -> Config:
    """`anchor` with fewer stages, which leave room for C as it is stored; sums stay the same."""
    for stages in range(anchor.num_stages - 1, 0, -1):
        config = dataclasses.replace(anchor, num_stages=stages)
        if why_not(rung, view, config) is None:
            return config
    reason = why_not(rung, view, anchor)
    raise ValueError(f"batch_invariant=True can't have {rung.name}, {anchor}, for {view}: {reason}")


def _anchor(problem: Problem, rungs: Sequence[Kernel]) -> tuple[Kernel, Config]:
    """The kernel and config of a product with the canonical M and well-stored operands."""
    M, once = _CANONICAL_M, (1, 1)
    a = dataclasses.replace(problem.a, rows=M).packed("N", once)
    b = problem.b.packed("T" if problem.b.layout == "T" else "N", once)
    c = dataclasses.replace(problem.c, rows=M, strides=(0, 0, problem.N, 1), aligned=True)
    canonical = dataclasses.replace(problem, M=M, batches=once, a=a, b=b, c=c, epilogue=PLAIN)
    found = least(
        group._replace(configs=tuple(c for c in group.configs if c.SPLIT_K == 1))
        for group in candidates.groups(canonical, rungs)
        if not group.pack and not group.swap
    )
    if found is None:
        raise ValueError(f"no kernel has sums that don't depend on M for {problem}")
    return found


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
    some = (rung for rung in reversed(rungs) if rung.limits.tile.warpgroups)
    return [rung for rung in some if rung.policy.auto or named]


def groups(
    problem: Problem, rungs: Sequence[Kernel], parts: int, copies: bool = True
) -> Iterator[Group]:
    """The candidates of the `rungs`, those above first, with K in so many fixed parts.

    With `copies` of what a rung refuses.
    """
    short = min(problem.M, problem.N) <= SHORT_SIDE
    for pack in _packs(problem, parts) if copies else ("",):
        packed = problem.packed(pack) if pack else problem
        copied, refusing = problem.copied(pack), {}
        for swap in (False, True)[: 1 + SWAPPED_ALIKE]:
            view = packed.transposed() if swap else packed
            for rung in rungs:
                if swap and not short and not rung.policy.swap(problem):
                    continue
                if rung.why_not(view):
                    refusing[rung] = None
                    continue
                configs = _able(rung, view, parts)
                if configs:
                    yield Group(rung, configs, view, copied, pack, swap)
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
