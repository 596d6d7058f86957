"""What a problem may be run with: rungs, their configs, swapped operands, copied operands.

Copies are of what TMA refuses, or of what the tensor cores can read only after a transposition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from ..arch import questions
from ..arch.gpus import clusters_of_model
from ..arch.limits import COUNTED_K
from ..arch.sm90 import MOST_PARTS
from ..kernels.pack import Copy
from ..kernels.pack import why_not as pack_why_not
from ..problem import INTERPRETER, Problem
from ..problem.config import Config
from ..rungs import RUNGS, find
from ..spec import Kernel
from .cost_model.columns import Group
from .cost_model.model import seconds

#: Swapped operands are considered where the shorter side of C has at most so many elements.
SHORT_SIDE = 256
#: Bytes of copies that are made whatever they gain; of those that are not made unasked; and of a
#: line of a copy, which a single element may take.
SMALL_COPY, LARGE_COPY, LINE_BYTES = 2**30, 2**34, 128
#: Where K is cut into fixed parts: columns of C that a tile has at least of a swapped product, as
#: its rows; N at most, K at least, and elements of a part at least.
TILE, MOST_N, LEAST_K, LEAST_PART = 64, 1536, 4096, 768
#: Parts that the programs of a cluster exchange; and elements of each of more, at least.
IN_CLUSTER, DEEP_PART = 8, 2048


def ranked(problem: Problem, kernel: str = "auto") -> list[tuple[float, Kernel, Config]]:
    """All that `choose` compares, with the predicted seconds, the least first."""
    some = list(groups(problem, RUNGS if kernel == "auto" else (find(kernel),)))
    predicted = seconds(some).tolist() if some else []
    rows = [(group.kernel, group.whole(config)) for group in some for config in group.configs]
    return sorted(((s, *row) for s, row in zip(predicted, rows, strict=True)), key=lambda r: r[0])


def least(some: Iterable[Group]) -> tuple[Kernel, Config] | None:
    """The kernel and config with the least predicted time; the earlier one where they tie."""
    some = [group for group in some if group.configs]
    if not some:
        return None
    place = int(seconds(some).argmin())
    for group in some:
        if place < len(group.configs):
            return group.kernel, group.whole(group.configs[place])
        place -= len(group.configs)
    raise AssertionError("more times than configs")


def best_config(kernel: Kernel, problem: Problem) -> Config:
    """The kernel's config with the least predicted time; the earlier one where they tie."""
    return least(groups(problem, (kernel,)))[1]


def groups(problem: Problem, rungs: Sequence[Kernel]) -> Iterator[Group]:
    """Candidates of one rung as it is, with swapped operands too; of several, with copied ones."""
    if len(rungs) == 1:
        yield from _groups(problem, rungs, ("",), every=True)
        return
    some = None
    for some in _groups(problem, [r for r in reversed(rungs) if r.policy.auto], packs(problem)):
        yield some
    if some is None:  # the last resort
        others = (rung for rung in reversed(rungs) if not rung.policy.auto)
        for rung in [rung for rung in others if rung.why_not(problem) is None][:1]:
            yield from groups(problem, (rung,))


def in_one_order(
    problem: Problem, rungs: Sequence[Kernel], parts: int, copies: bool = True
) -> Iterator[Group]:
    """Those whose sums have K's order, whatever M and the batch are, with K in so many fixed parts.

    With `copies` of what a rung refuses: where K is in parts, the least copies even if they are
    large, for no other rung can do that. Operands may be swapped: on an H200, sums were the same
    bits then in all 143 configs.
    """
    some = list(packs(problem)) if copies else [""]
    if copies and parts > 1:
        some = list(dict.fromkeys((*some, questions.unread(problem))))
    return _groups(problem, rungs, some, parts=parts)


def _groups(
    problem: Problem,
    rungs: Sequence[Kernel],
    packs: Sequence[str],
    every: bool = False,
    parts: int = 0,
) -> Iterator[Group]:
    """`every`: also what doesn't suit the rung. `parts`: of `in_one_order`."""
    if problem.device == INTERPRETER:  # where a copy or a swap gains nothing
        for rung in rungs:
            if rung.why_not(problem) is None and (every or _suits(rung, problem)):
                yield Group(rung, (rung.interpreted,), problem)
        return
    short = min(problem.M, problem.N) <= SHORT_SIDE and (parts or not _is_mirrored(problem))
    for pack in packs:
        packed, copied = problem.packed(pack), problem.copied(pack)
        refusing = {}  # in their order, each once
        for swap in (False, True):
            view = packed.transposed() if swap else packed
            for rung in rungs:
                if swap and not short and not rung.policy.swap(packed):
                    continue
                suits = every or parts or (_suits(rung, view) and _is_upright(rung, view))
                if not suits and pack == packs[-1]:
                    continue  # nobody asks whether it refuses
                if rung.why_not(view) is not None:
                    refusing[rung] = None
                    continue
                if suits:
                    own = rung.in_one_order(view, parts) if parts else rung.configs(view)
                    if parts:
                        own = [config for config in own if questions.in_that_order(view, config)]
                    yield Group(rung, own, view, copied, pack, swap)
                if rung.policy.supersedes and not every:
                    break
        if not questions.turned(problem):
            rungs = tuple(refusing)  # the others need no copy


def _is_mirrored(problem: Problem) -> bool:
    """Whether swapped operands are stored as they are now, C's sides differ by less than a factor
    of 2, and its rows are enough: to leave them out loses nothing, and saves a third of the choice.
    """
    M, N = problem.M, problem.N
    alike = problem.a.layout != problem.b.layout and M < 2 * N and N < 2 * M
    return alike and (M > questions.LEAST_ROWS or M >= N)


def _suits(rung: Kernel, view: Problem) -> bool:
    """Whether the rung is made for such problems."""
    few = rung.policy.few_rows
    return (few is None or few(view) >= view.M) and rung.policy.suits(view)


def _is_upright(rung: Kernel, view: Problem) -> bool:
    """Whether this one of the two orders of the operands is the one to consider for the rung."""
    if rung.policy.few_rows is not None or view.epilogue.per_column > 1:
        return True  # the operands stay as they are
    return view.M > questions.LEAST_ROWS or view.M >= view.N


def packs(problem: Problem) -> Sequence[str]:
    """What may be copied first: nothing, what TMA refuses, and what can't be read as it is.

    Of two that it can't read, the smaller is enough where a rung takes the other from registers.
    """
    if not questions.packs(problem):
        return ("",)
    refused, slow = questions.unread(problem), questions.turned(problem)
    one = ""
    if slow == "ab" and questions.one_from_registers(problem):
        one = min("ab", key=problem.copied)
    found = dict.fromkeys(
        ("", refused, *("".join(n for n in "ab" if n in refused + more) for more in (one, slow)))
    )
    return [pack for pack in found if not pack or _is_modest(problem, pack)]


def _is_modest(problem: Problem, pack: str) -> bool:
    """Whether the copies can be made, in memory that a caller may be expected to have."""
    sources = [getattr(problem, name) for name in pack]
    dense = problem.batch * problem.itemsize * sum(m.rows * m.cols for m in sources)
    if dense * LINE_BYTES <= SMALL_COPY:
        return True  # at once: no element takes more than a line
    packed = problem.packed(pack)
    copies = [Copy.of(getattr(problem, n), getattr(packed, n), problem.batches) for n in pack]
    taken = problem.itemsize * sum(copy.elements for copy in copies)
    modest = taken <= SMALL_COPY or taken <= min(LARGE_COPY, 2 * dense)
    return modest and pack_why_not(problem, pack) is None


def able(rungs: Sequence[Kernel], named: bool = False) -> list[Kernel]:
    """Those whose sums may be taken, the highest first; of rungs that are not `named`, auto's."""
    ordered = (r for r in reversed(rungs) if r.limits.in_order or r.limits.ordered)
    return [r for r in ordered if r.limits.tile.warpgroups and (r.policy.auto or named)]


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
