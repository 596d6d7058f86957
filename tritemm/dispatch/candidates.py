"""Candidates for a problem: rungs, their configs, swapped operands, copied operands.

An operand is copied if TMA refuses it, or if the copy is read faster: tensor cores prefer K
contiguous, FFMA one of the two operands across K.
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

#: The M that stands for every M when rows must not depend on it.
_CANONICAL_M = 1024
#: All rungs consider swapped operands if the shorter side of C has at most this many elements.
SHORT_SIDE = 256
#: Bytes of copies that are always acceptable; of those that need a caller's request; and of a line
#: of a copy, which a single element may occupy.
SMALL_COPY, LARGE_COPY, LINE_BYTES = 2**30, 2**34, 128


def ranked(problem: Problem, kernel: str = "auto") -> list[tuple[float, Kernel, Config]]:
    """All candidates that `choose` compares, with predicted seconds, the least first."""
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
    """The least predicted time among all rungs, or within one; ValueError if none can run."""
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
    """The kernel and config whose sums have the same order for every M and every batch.

    If the terms of a sum are added in K's order for every tile, K is cut into `parts`, and the
    candidates are all configs with K whole, or all that cut it at the same places and add the parts
    in order; the least predicted time decides. For other problems the order depends on the tile,
    which is the one for a canonical M. A single rung in `rungs` is the one that the caller named.
    """
    named = len(rungs) == 1
    if named:
        limits = rungs[0].limits
        if limits.in_order or limits.ordered:
            must_run(rungs[0], problem)
        if not limits.in_order and not (limits.ordered and parts):
            raise ValueError(
                f'kernel="{rungs[0].name}" sums in an order that depends on M; '
                "batch_invariant=True excludes it"
            )
    some = rungs_in_order(problem, rungs, named) if parts else []
    if some:
        return _ordered(problem, some, parts, copied=not named)
    in_order = [rung for rung in rungs if rung.limits.in_order]
    return _as_anchored(problem, in_order, copied=not named)


def _ordered(
    problem: Problem, rungs: Sequence[Kernel], parts: int, copied: bool
) -> tuple[Kernel, Config]:
    """The candidate of `in_one_order` with the least predicted time."""
    if not any(rung.limits.fixed_parts for rung in rungs):
        parts = 1
    some = in_one_order(problem, rungs, parts, copied)
    if found := least(some):
        return found
    cut = f", with K in {parts} parts" if parts > 1 else ""
    unfit = "none of its tiles fits and sums in that order"
    reasons = "; ".join(f"{rung.name}: {rung.why_not(problem) or unfit}" for rung in rungs)
    raise ValueError(f"batch_invariant=True is impossible for {problem}{cut}: {reasons}")


def _as_anchored(problem: Problem, rungs: Sequence[Kernel], copied: bool) -> tuple[Kernel, Config]:
    """The rung and config for a canonical M: the order of sums depends on the tile.

    With `copies` of operands if the rung needs them. For groups, the first rung that can run.
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
    """`anchor`, with fewer stages if C as it is stored needs room; sums stay the same."""
    for stages in range(anchor.num_stages, 0, -1):
        config = dataclasses.replace(anchor, num_stages=stages)
        if refusal(rung, view, config) is None:
            return config
    reason = refusal(rung, view, anchor)
    raise ValueError(f"batch_invariant=True excludes {rung.name}, {anchor}, for {view}: {reason}")


def _anchor(problem: Problem, rungs: Sequence[Kernel]) -> tuple[Kernel, Config]:
    """The kernel and config of a product with the canonical M and well-stored operands.

    If C is symmetric, N is canonical as well.
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
    """Candidates: one rung with operands as they are or swapped; several rungs with copies."""
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
    """Candidates whose sums have K's order for every M and batch, with K in `parts` fixed parts.

    With `copies` of what a rung refuses. With K in parts, the smallest copies are made even if they
    are large, for no other rung can run. Operands may be swapped: on an H200, sums then had the
    same bits in all 143 configs.
    """
    return _groups(problem, rungs, copied, parts)


def _groups(
    problem: Problem, rungs: Sequence[Kernel], copied: bool, parts: int = 0
) -> Iterator[Group]:
    """`copied`: with `copies` too; `parts`: see `in_one_order`; neither: also unsuitable rungs."""
    every = not copied and not parts
    if problem.device == INTERPRETER:  # a copy or a swap gains nothing there
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
        # For a symmetric C, swapped operands would compute the other triangle.
        for swap in (False,) if problem.epilogue.symmetric or problem.splits else (False, True):
            view = packed.transposed() if swap else packed
            for rung in rungs:
                if swap and not swaps and not rung.policy.swap(packed):
                    continue
                upright = every or parts or _is_upright(rung, view)
                if not upright and pack == packs[-1]:
                    continue  # whether it refuses doesn't matter
                if rung.why_not(view) is not None:
                    refusing[rung] = None
                    continue
                suits = upright and (every or parts or _suits(rung, view))  # checked last: slow
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
    """Whether swapping gains no short side, and is left out.

    So it is if A and B are stored in opposite ways, C's sides differ by less than a factor of 2,
    and C has enough rows.
    """
    M, N, *_ = problem.typical
    alike = problem.a.layout != problem.b.layout and M < 2 * N and N < 2 * M
    return alike and (M > questions.LEAST_ROWS or M >= N)


def _suits(rung: Kernel, view: Problem) -> bool:
    """Whether the rung is made for such problems."""
    few = rung.policy.few_rows
    return (few is None or few(view) >= view.M) and rung.policy.suits(view)


def _is_upright(rung: Kernel, view: Problem) -> bool:
    """Whether the rung should consider this one of the two orders of the operands."""
    if rung.policy.few_rows is not None or view.epilogue.per_column > 1 or view.by_ffma:
        return True  # operands keep their order, or no tensor core multiplies them
    if view.transposed().groups and view.transposed().groups not in rung.limits.groups:
        return True
    M, N, *_ = view.typical
    return M > questions.LEAST_ROWS or M >= N


def copies(problem: Problem, large: bool = False) -> tuple[list[str], str]:
    """Which operands may be copied first because the GPU reads them badly; `large`: of any size.

    And the operands whose copies also help rungs that can do without them.
    """
    turned, some = questions.turned(problem), questions.copies(problem)
    return [pack for pack in some if large or not pack or _is_modest(problem, pack)], turned


def _is_modest(problem: Problem, pack: str) -> bool:
    """Whether the copies fit in memory that a caller can be expected to have."""
    if problem.by_residues:
        return sum(made_bytes(problem)) <= LARGE_COPY
    sources = [getattr(problem, name) for name in pack]
    dense = problem.batch * problem.itemsize * sum(m.rows * m.cols for m in sources)
    if dense * LINE_BYTES <= SMALL_COPY:
        return True  # decided at once: no element takes more than a line
    packed = problem.packed(pack)
    copies = [Copy.of(getattr(problem, n), getattr(packed, n), problem.batches) for n in pack]
    taken = sum(copy.target.dtype.itemsize * copy.elements for copy in copies)
    # A program copies 32 bytes or more, which limits the bytes of one launch.
    return taken <= SMALL_COPY or taken <= min(LARGE_COPY, 2 * dense)


def rungs_in_order(problem: Problem, rungs: Sequence[Kernel], named: bool = False) -> list[Kernel]:
    """Rungs whose sums have K's order, the highest first; if not `named`, auto's.

    For 16-bit operands these are all rungs with WGMMA. For others they are the rungs that suit, or
    are for that type: `gemv` would suit a vector better, but it sums in another order.
    """
    some = [r for r in reversed(rungs) if r.policy.auto or named]
    if problem.itemsize == 2:
        ordered = (r for r in some if r.limits.in_order or r.limits.ordered)
        return [r for r in ordered if r.limits.tile.warpgroups]
    dtype = problem.a.dtype
    some = [r for r in some if r.limits.in_order and r.limits.dtype in (None, dtype)]
    return [r for r in some if named or r.limits.dtype == dtype or r.policy.suits(problem)]
