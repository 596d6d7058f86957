"""Problem -> kernel and config.

`kernel="auto"` takes, of all candidates, the one with the least predicted time, unless this
problem was tuned. The same problem gets the same choice every time.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Sequence

from ..arch import questions
from ..kernels.pack import why_not as pack_why_not
from ..problem import INTERPRETER, PLAIN, Problem, Unsupported
from ..problem.config import Config
from ..rungs import RUNGS, find
from ..spec import Kernel
from . import cache, invariant
from .candidates import best_config, groups, least, packs
from .explain import Choice
from .request import Request, why_not

#: The M that stands for all others when rows must not depend on it.
_CANONICAL_M = 1024


@functools.lru_cache(maxsize=8192)
def choose(problem: Problem, kernel: str = "auto") -> Choice:
    """The kernel and config that will run `problem`.

    `kernel` is "auto", a rung's name or the word of a `Request`.

    Raises:
        ValueError: `kernel` is no rung, or the rung or its config can't run the problem; the
            message says why and what can.
        Unsupported: the device is older than sm_80.
    """
    if reason := questions.too_old(problem):
        raise Unsupported(reason, "a device older than sm_80")
    request = Request.parse(kernel)
    if request.config is not None:
        return _exactly(problem, request)
    if request.batch_invariant:
        return _invariant(problem, request)
    if request.kernel != "auto":
        rung = find(request.kernel)
        _must_run(rung, problem)
        return Choice(problem, rung, best_config(rung, problem), f'asked for: kernel="{kernel}"')
    return _tuned(problem) or _least(problem)


def forget() -> None:
    """Choose anew from now on: what was tuned has changed."""
    choose.cache_clear()


def _least(problem: Problem) -> Choice:
    best = least(groups(problem, RUNGS))
    if best is None:
        why = [f"{rung.name}: {reason}" for rung in RUNGS if (reason := rung.why_not(problem))]
        if len(why) < len(RUNGS):
            others = "the others" if why else "any"
            room = f"the {problem.device.shared} bytes of shared memory of {problem.device.name}"
            why.append(f"no tile of {others} fits {room}")
        raise ValueError(f"no kernel can run {problem}: {'; '.join(why)}")
    return Choice(problem, *best, "the least predicted time")


def _tuned(problem: Problem) -> Choice | None:
    """What `tritemm.tune` found, if it is what the rung would run for a caller who named it.

    The file may be of another version, or anybody's: a warning names an entry that is left out.
    """
    found = cache.lookup(problem)
    if found is None:
        return None
    name, config = found
    rung = next((rung for rung in RUNGS if rung.name == name), None)
    reason = f"no rung is called {name!r}" if rung is None else _refusal(problem, rung, config)
    if reason:
        warnings.warn(
            f"what was tuned for {problem} is not used: {name}, {config}: {reason}. "
            "tritemm.tune measures it anew",
            stacklevel=3,
        )
        return None
    return Choice(problem, rung, config, "measured as the fastest by tritemm.tune")


def _refusal(problem: Problem, rung: Kernel, config: Config) -> str | None:
    """Why `rung` can't run `problem` in `config`, after its copies and exchange; or None."""
    view = config.view(problem)
    return pack_why_not(problem, config.PACK) or rung.why_not(view) or why_not(rung, view, config)


def _must_run(rung: Kernel, view: Problem) -> None:
    """ValueError, with a rung that can, if `rung` refuses."""
    reason = rung.why_not(view)
    if reason:
        able = least(group for group in groups(view, RUNGS) if not group.pack)
        hint = f'; kernel="{able[0].name}" can run this' if able else ""
        raise ValueError(f'kernel="{rung.name}" cannot run this problem: {reason}{hint}')


def _exactly(problem: Problem, request: Request) -> Choice:
    rung, config = find(request.kernel), request.config
    _must_run(rung, config.view(problem))
    reason = _refusal(problem, rung, config)
    if reason:
        raise ValueError(f'kernel="{rung.name}" cannot run this config: {reason}')
    return Choice(problem, rung, config, f'asked for: kernel="{rung.name}" and its config')


def _invariant(problem: Problem, request: Request) -> Choice:
    """A choice whose sums have the same order whatever M and the batch are."""
    rungs = [rung for rung in RUNGS if rung.limits.in_order or rung.limits.ordered]
    one_order = questions.one_order(problem)
    named = request.kernel != "auto"
    if named:
        rung = find(request.kernel)
        limits = rung.limits
        if limits.in_order or limits.ordered:
            _must_run(rung, problem)
        if not limits.in_order and not (limits.ordered and one_order):
            raise ValueError(
                f'kernel="{request.kernel}" sums in an order that depends on M; '
                "batch_invariant=True can't have it"
            )
        rungs = [rung]
    able = invariant.able(rungs, named)
    if able and one_order:
        best = _in_one_order(problem, able, named)
    else:
        best = _as_anchored(problem, [r for r in rungs if r.limits.in_order], not named)
    return Choice(problem, *best, "batch_invariant=True: sums in the same order for every M")


def _in_one_order(problem: Problem, rungs: Sequence[Kernel], named: bool) -> tuple[Kernel, Config]:
    """The least of those of the `rungs`, or of the one that was `named`, in one order."""
    parts = invariant.parts_of(problem) if any(r.limits.fixed_parts for r in rungs) else 1
    best = least(invariant.groups(problem, rungs, parts, copies=not named))
    if best is None:
        cut = f", with K in {parts} parts" if parts > 1 else ""
        unfit = "none of its tiles sums in that order, or finds room"
        reasons = "; ".join(f"{rung.name}: {rung.why_not(problem) or unfit}" for rung in rungs)
        raise ValueError(f"batch_invariant=True can't have {problem}{cut}: {reasons}")
    return best


def _as_anchored(problem: Problem, rungs: Sequence[Kernel], copies: bool) -> tuple[Kernel, Config]:
    """The rung and config of a canonical M: the order of sums follows from the tile.

    With `copies` of operands if the rung needs them.
    """
    rung, config = _anchor(problem, rungs)

    def able(view: Problem) -> bool:
        return rung.why_not(view) is None and not questions.lacks_registers(rung, view, config)

    pack = ""
    if copies and not able(problem):
        pack = next((p for p in packs(problem) if able(problem.packed(p))), "")
    view = problem.packed(pack) if pack else problem
    _must_run(rung, view)
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
    best = least(
        group._replace(configs=tuple(c for c in group.configs if c.SPLIT_K == 1))
        for group in groups(canonical, rungs)
        if not group.pack and not group.swap
    )
    if best is None:
        raise ValueError(f"no kernel has sums that don't depend on M for {problem}")
    return best
