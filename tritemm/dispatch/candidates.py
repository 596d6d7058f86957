"""What a problem may be run with: rungs, their configs, swapped operands, copied operands.

Copies are of what TMA refuses, or of what is read better once it is copied: by tensor cores with K
contiguous, by FFMA one of the two across K.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from ..arch import questions
from ..kernels.pack import Copy
from ..kernels.residues import made_bytes
from ..problem import INTERPRETER, PLAIN, EpilogueSpec, Problem
from ..problem.config import Config
from ..rungs import RUNGS, find
from ..spec import Kernel
from .cost_model.columns import Group
from .cost_model.model import seconds
from .request import refusal

#: The M that stands for all others when rows must not depend on it.
_CANONICAL_M = 1024
#: Every rung considers swapped operands where the shorter side of C has at most so many elements.
SHORT_SIDE = 256
#: Bytes of copies that are made whatever they gain; of those that are not made unasked; and of a
#: line of a copy, which a single element may take.
SMALL_COPY, LARGE_COPY, LINE_BYTES = 2**30, 2**34, 128


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
    at = int(seconds(some).argmin())
    for group in some:
        if at < len(group.configs):
            break
        at -= len(group.configs)
    return group.kernel, group.whole(group.configs[at])


def best_config(kernel: Kernel, problem: Problem) -> Config:
    """The kernel's config with the least predicted time; the earlier one where they tie."""
    return best(problem, (kernel,))[1]


def best(problem: Problem, rungs: Sequence[Kernel]) -> tuple[Kernel, Config]:
    """What has the least predicted time, of all rungs or of one; ValueError if none can run."""
    if len(rungs) == 1:
        must_run(rungs[0], problem)
    some = groups(problem, rungs)
    if found := least(some):
        return found
    why = [f"{rung.name}: {reason}" for rung in rungs if (reason := rung.why_not(problem))]
    if len(why) < len(rungs):
        others = "it" if len(rungs) == 1 else "the others" if why else "any"
        room = f"the {problem.device.shared} bytes of shared memory of {problem.device.name}"
        why.append(f"no tile of {others} fits {room}")
    none = f'kernel="{rungs[0].name}" cannot' if len(rungs) == 1 else "no kernel can"
    raise ValueError(f"{none} run {problem}: {'; '.join(why)}")


def must_run(rung: Kernel, view: Problem) -> None:
    """ValueError, with a rung that can, if `rung` refuses."""
    if reason := rung.why_not(view):
        some = (group for group in groups(view, RUNGS) if not group.pack)
        other = least(group for group in some if group.kernel.why_not(view) is None)
        hint = f'; kernel="{other[0].name}" can run this' if other else ""
        raise ValueError(f'kernel="{rung.name}" cannot run this problem: {reason}{hint}')


def invariant(problem: Problem, rungs: Sequence[Kernel], parts: int) -> tuple[Kernel, Config]:
    """The kernel and config whose sums have the same order whatever M and the batch are.

    Where products are added in K's order whatever the tile is, K is in so many `parts`, and all are
    candidates that have K whole, or all that cut it at the same places and add the parts in their
    order. The least predicted time decides. Of others the order follows from the tile, which
    is that of a product with a canonical M. A single one of the `rungs` is named by the caller.
    """
    named = len(rungs) == 1
    if named:
        limits = rungs[0].limits
        if limits.in_order or limits.ordered:
            must_run(rungs[0], problem)
        if not limits.in_order and not (limits.ordered and parts):
            raise ValueError(
                f'kernel="{rungs[0].name}" sums in an order that depends on M; '
                "batch_invariant=True can't have it"
            )
    some = rungs_in_order(problem, rungs, named) if parts else []
    if some:
        return _ordered(problem, some, parts, copied=not named)
    in_order = [rung for rung in rungs if rung.limits.in_order]
    return _as_anchored(problem, in_order, copied=not named)


def _ordered(
    problem: Problem, rungs: Sequence[Kernel], parts: int, copied: bool
) -> tuple[Kernel, Config]:
    """The least predicted time of those `in_one_order`."""
    if not any(rung.limits.fixed_parts for rung in rungs):
        parts = 1
    some = in_one_order(problem, rungs, parts, copied)
    if found := least(some):
        return found
    cut = f", with K in {parts} parts" if parts > 1 else ""
    unfit = "none of its tiles sums in that order, or fits"
    reasons = "; ".join(f"{rung.name}: {rung.why_not(problem) or unfit}" for rung in rungs)
    raise ValueError(f"batch_invariant=True can't have {problem}{cut}: {reasons}")


def _as_anchored(problem: Problem, rungs: Sequence[Kernel], copied: bool) -> tuple[Kernel, Config]:
    """The rung and config of a canonical M: the order of sums follows from the tile.

    With `copies` of operands if the rung needs them. Of groups it is the first that can run.
    """
    if problem.groups:
        able = [rung for rung in rungs if rung.why_not(problem) is None]
        return (able[0], able[0].configs(problem)[0]) if able else best(problem, rungs)
    rung, config = _anchor(problem, rungs)
    for pack in copies(problem)[0] if copied else [""]:
        view = problem.packed(pack)
        if rung.why_not(view) is None and not questions.lacks_registers(rung, view, config):
            break
    else:
        pack, view = "", problem
    must_run(rung, view)
    if problem.device != INTERPRETER:
        config = _shallower(rung, view, config)
    return rung, dataclasses.replace(config, PACK=pack)


def _shallower(rung: Kernel, view: Problem, anchor: Config) -> Config:
    """`anchor`, with fewer stages where C as it is stored needs room; sums stay the same."""
    for stages in range(anchor.num_stages, 0, -1):
        config = dataclasses.replace(anchor, num_stages=stages)
        if refusal(rung, view, config) is None:
            return config
    reason = refusal(rung, view, anchor)
    raise ValueError(f"batch_invariant=True can't have {rung.name}, {anchor}, for {view}: {reason}")


def _anchor(problem: Problem, rungs: Sequence[Kernel]) -> tuple[Kernel, Config]:
    """The kernel and config of a product with the canonical M and well-stored operands.

    Of a symmetric one that is N as well.
    """
    M, N, once, b, c = _CANONICAL_M, problem.N, (1, 1), problem.b, problem.c
    epilogue = PLAIN
    if problem.epilogue.symmetric:
        N, epilogue = M, EpilogueSpec(symmetric=True)
        b, c = dataclasses.replace(b, cols=N), dataclasses.replace(c, cols=N)
    a = dataclasses.replace(problem.a, rows=M).packed("N", once)
    b = b.packed("T" if b.layout == "T" else "N", once)
    c = dataclasses.replace(c, rows=M, strides=(0, 0, N, 1), aligned=True)
    canonical = dataclasses.replace(
        problem, M=M, N=N, batches=once, a=a, b=b, c=c, epilogue=epilogue
    )
    found = least(
        group._replace(configs=tuple(c for c in group.configs if c.SPLIT_K == 1))
        for group in groups(canonical, rungs)
        if not group.pack and not group.swap
    )
    if found is None:
        raise ValueError(f"no kernel has sums that don't depend on M for {problem}")
    return found


def groups(problem: Problem, rungs: Sequence[Kernel]) -> Iterator[Group]:
    """Candidates of one rung as it is, with swapped operands too; of several, with copied ones."""
    if len(rungs) == 1:
        yield from _groups(problem, rungs, copied=False)
        return
    some, autos = None, [rung for rung in reversed(rungs) if rung.policy.auto]
    for some in _groups(problem, autos, copied=True):
        yield some
    if some is None:  # the last resort
        others = (rung for rung in reversed(rungs) if not rung.policy.auto)
        for rung in [rung for rung in others if rung.why_not(problem) is None][:1]:
            yield from groups(problem, (rung,))


def in_one_order(
    problem: Problem, rungs: Sequence[Kernel], parts: int, copied: bool = True
) -> Iterator[Group]:
    """Those whose sums have K's order, whatever M and the batch are, with K in so many fixed parts.

    With `copies` of what a rung refuses: where K is in parts, the least copies even if they are
    large, for no other rung can do that. Operands may be swapped: on an H200, sums were the same
    bits then in all 143 configs.
    """
    return _groups(problem, rungs, copied, parts)


def _groups(
    problem: Problem, rungs: Sequence[Kernel], copied: bool, parts: int = 0
) -> Iterator[Group]:
    """`copied`: also with `copies`; `parts`: of `in_one_order`; neither: what doesn't suit, too."""
    every = not copied and not parts
    if problem.device == INTERPRETER:  # where a copy or a swap gains nothing
        for rung in rungs:
            if rung.why_not(problem) is None and (every or _suits(rung, problem)):
                yield Group(rung, (rung.interpreted,), problem)  # type: ignore[attr-defined]
        return
    packs, turned = copies(problem, large=parts > 1) if copied else ([""], "")
    short = min(problem.typical[:2]) <= SHORT_SIDE and (parts or not _swap_is_redundant(problem))
    for pack in packs:
        packed, moved = problem.packed(pack), problem.copied(pack)
        swaps = short or questions.better_swapped(packed)
        refusing: dict[Kernel, None] = {}  # in their order, each once
        # Of a symmetric C, swapped operands would compute the other triangle.
        for swap in (False,) if problem.epilogue.symmetric or problem.splits else (False, True):
            view = packed.transposed() if swap else packed
            for rung in rungs:
                if swap and not swaps and not rung.policy.swap(packed):
                    continue
                upright = every or parts or _is_upright(rung, view)
                if not upright and pack == packs[-1]:
                    continue  # nobody asks whether it refuses
                if rung.why_not(view) is not None:
                    refusing[rung] = None
                    continue
                suits = upright and (every or parts or _suits(rung, view))  # which takes longest
                if not suits and pack == packs[-1]:
                    continue
                if suits:
                    own = rung.in_one_order(view, parts) if parts else rung.configs(view)
                    if parts:
                        own = [config for config in own if questions.in_that_order(view, config)]
                    yield Group(rung, own, view, moved, pack, swap)
                if rung.policy.supersedes and not every:
                    break
        if not turned:
            rungs = tuple(refusing)  # the others need no copy


def _swap_is_redundant(problem: Problem) -> bool:
    """Whether swapping gains nothing by a short side, and is left out.

    A and B are stored in opposite ways, C's sides differ by less than a factor of 2, and it has
    rows enough.
    """
    M, N, *_ = problem.typical
    alike = problem.a.layout != problem.b.layout and M < 2 * N and N < 2 * M
    return alike and (M > questions.LEAST_ROWS or M >= N)


def _suits(rung: Kernel, view: Problem) -> bool:
    """Whether the rung is made for such problems."""
    few = rung.policy.few_rows
    return (few is None or few(view) >= view.M) and rung.policy.suits(view)


def _is_upright(rung: Kernel, view: Problem) -> bool:
    """Whether this one of the two orders of the operands is the one to consider for the rung."""
    if rung.policy.few_rows is not None or view.epilogue.per_column > 1 or view.by_ffma:
        return True  # the operands stay as they are, or no tensor core multiplies them
    if view.transposed().groups and view.transposed().groups not in rung.limits.groups:
        return True
    M, N, *_ = view.typical
    return M > questions.LEAST_ROWS or M >= N


def copies(problem: Problem, large: bool = False) -> tuple[list[str], str]:
    """What may be copied first, of what the GPU can't read well; also what is not modest.

    And the operands of which copies are a gain for rungs, too, that can do without.
    """
    turned, some = questions.turned(problem), questions.copies(problem)
    return [pack for pack in some if large or not pack or _is_modest(problem, pack)], turned


def _is_modest(problem: Problem, pack: str) -> bool:
    """Whether the copies can be made, in memory that a caller may be expected to have."""
    if problem.by_residues:
        return sum(made_bytes(problem)) <= LARGE_COPY
    sources = [getattr(problem, name) for name in pack]
    dense = problem.batch * problem.itemsize * sum(m.rows * m.cols for m in sources)
    if dense * LINE_BYTES <= SMALL_COPY:
        return True  # at once: no element takes more than a line
    packed = problem.packed(pack)
    copies = [Copy.of(getattr(problem, n), getattr(packed, n), problem.batches) for n in pack]
    taken = sum(copy.target.dtype.itemsize * copy.elements for copy in copies)
    # A program copies 32 bytes or more: so many have room in one launch.
    return taken <= SMALL_COPY or taken <= min(LARGE_COPY, 2 * dense)


def rungs_in_order(problem: Problem, rungs: Sequence[Kernel], named: bool = False) -> list[Kernel]:
    """Rungs whose sums have K's order, the highest first; if not `named`, auto's.

    Of 16-bit operands these are all of WGMMA. Of others they are those that suit, and those of
    their type: a vector suits `gemv` better, but that adds up in another order.
    """
    some = [r for r in reversed(rungs) if r.policy.auto or named]
    if problem.itemsize == 2:
        ordered = (r for r in some if r.limits.in_order or r.limits.ordered)
        return [r for r in ordered if r.limits.tile.warpgroups]
    dtype = problem.a.dtype
    some = [r for r in some if r.limits.in_order and r.limits.dtype in (None, dtype)]
    return [r for r in some if named or r.limits.dtype == dtype or r.policy.suits(problem)]
