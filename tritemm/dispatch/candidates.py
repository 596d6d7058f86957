"""What a problem may be run with: rungs, their configs, swapped operands, copied operands.

Copies are of what TMA refuses, or of what the tensor cores can read only after a transposition.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from ..arch import questions
from ..kernels.pack import Copy
from ..kernels.pack import why_not as pack_why_not
from ..problem import INTERPRETER, Problem
from ..problem.config import Config
from ..rungs import RUNGS, find
from ..spec import Kernel
from .cost_model.columns import Group
from .cost_model.model import seconds
from .request import Request, refusal

#: Swapped operands are considered where the shorter side of C has at most so many elements.
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
    place = int(seconds(some).argmin())
    for group in some:
        if place < len(group.configs):
            return group.kernel, group.whole(group.configs[place])
        place -= len(group.configs)
    raise AssertionError("more times than configs")


def best_config(kernel: Kernel, problem: Problem) -> Config:
    """The kernel's config with the least predicted time; the earlier one where they tie."""
    return least(groups(problem, (kernel,)))[1]


def best(problem: Problem, request: Request) -> tuple[Kernel, Config]:
    """What is asked for, or has the least predicted time; ValueError where nothing can run."""
    if request.kernel == "auto":
        return least(groups(problem, RUNGS)) or _none(problem)
    rung, config = find(request.kernel), request.config
    must_run(rung, config.view(problem) if config else problem)
    if config and (reason := refusal(rung, problem, config)):
        raise ValueError(f'kernel="{rung.name}" cannot run this config: {reason}')
    return (rung, config) if config else (rung, best_config(rung, problem))


def must_run(rung: Kernel, view: Problem) -> None:
    """ValueError, with a rung that can, if `rung` refuses."""
    if reason := rung.why_not(view):
        able = least(group for group in groups(view, RUNGS) if not group.pack)
        hint = f'; kernel="{able[0].name}" can run this' if able else ""
        raise ValueError(f'kernel="{rung.name}" cannot run this problem: {reason}{hint}')


def _none(problem: Problem) -> NoReturn:
    why = [f"{rung.name}: {reason}" for rung in RUNGS if (reason := rung.why_not(problem))]
    if len(why) < len(RUNGS):
        others = "the others" if why else "any"
        room = f"the {problem.device.shared} bytes of shared memory of {problem.device.name}"
        why.append(f"no tile of {others} fits {room}")
    raise ValueError(f"no kernel can run {problem}: {'; '.join(why)}")


def groups(problem: Problem, rungs: Sequence[Kernel]) -> Iterator[Group]:
    """Candidates of one rung as it is, with swapped operands too; of several, with copied ones."""
    if len(rungs) == 1:
        yield from _groups(problem, rungs, ("",), every=True)
        return
    able, others = _ordered(tuple(rungs))
    some = None
    for some in _groups(problem, able, packs(problem)):
        yield some
    if some is None:
        last = (rung for rung in others if rung.why_not(problem) is None)
        yield from _groups(problem, tuple(last)[:1], ("",), every=True)


@functools.lru_cache
def _ordered(rungs: tuple[Kernel, ...]) -> tuple[tuple[Kernel, ...], tuple[Kernel, ...]]:
    """The rungs that auto takes, and those that are the last resort, the highest first."""
    able = tuple(rung for rung in reversed(rungs) if rung.policy.auto)
    return able, tuple(rung for rung in reversed(rungs) if not rung.policy.auto)


def _groups(
    problem: Problem, rungs: Sequence[Kernel], packs: Iterable[str], every: bool = False
) -> Iterator[Group]:
    """`every`: also what doesn't suit the rung."""
    if problem.device == INTERPRETER:
        yield from _interpreted(problem, rungs, every)
        return
    short = min(problem.M, problem.N) <= SHORT_SIDE and not _is_mirrored(problem)
    packs = list(packs)
    for pack in packs:
        packed = problem.packed(pack) if pack else problem
        copied = problem.copied(pack)
        refusing = {}  # in their order, each once
        for swap in (False, True):
            some = rungs if short or not swap else [r for r in rungs if r.policy.swap(packed)]
            if not some:
                continue
            view = packed.transposed() if swap else packed
            enough = False
            for rung in some:
                if enough:
                    break
                suits = every or _suits(rung, view)
                if not suits and pack == packs[-1]:
                    continue  # nobody asks whether it refuses
                if rung.why_not(view) is None:
                    enough = rung.policy.supersedes and not every
                    if suits:
                        yield Group(rung, rung.configs(view), view, copied, pack, swap)
                else:
                    refusing[rung] = None
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
    """Whether this one of the two orders of the operands is the one to consider for the rung."""
    policy = rung.policy
    if policy.few_rows is not None:
        return policy.few_rows(view) >= view.M
    if not policy.suits(view):
        return False
    if view.epilogue.gated:
        return True  # its operands stay as they are
    return view.M > questions.LEAST_ROWS or view.M >= view.N


def _interpreted(problem: Problem, rungs: Sequence[Kernel], every: bool) -> Iterator[Group]:
    """The rungs as they are: in the interpreter, a copy or a swap gains nothing."""
    for rung in rungs:
        few = rung.policy.few_rows
        fits = (few is None or few(problem) >= problem.M) and rung.policy.suits(problem)
        if rung.why_not(problem) is None and (every or fits):
            yield Group(rung, (rung.interpreted,), problem)


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
