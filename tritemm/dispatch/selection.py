"""Problem -> kernel and config.

`kernel="auto"` takes, of all candidates, the one with the least predicted time, unless this
problem was tuned. The same problem gets the same choice every time.

With batch_invariant=True sums have one order, whatever M and the batch are. Where the tensor core
adds products in K's order whatever the tile (`questions.one_order`), all are candidates that have K
whole, or all that cut it at the same places and add the parts in their order. The least predicted
time decides. Of others the order follows from the tile, which is that of a product with a canonical
M.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Sequence
from typing import NoReturn

from ..arch import gpus, questions
from ..dtypes import REAL
from ..problem import INTERPRETER, PLAIN, EpilogueSpec, Problem, Unsupported
from ..problem.config import Config
from ..rungs import RUNGS, find
from ..spec import Kernel
from . import cache
from .candidates import able, best_config, groups, in_one_order, least, packs, parts_of
from .explain import Choice
from .request import Request, refusal, why_not

#: The M that stands for all others when rows must not depend on it.
_CANONICAL_M = 1024
#: Kernels of torch after a product: the activation of one half, and the product of the halves; and
#: how many times both together move an element of the result.
_KERNELS, _MOVED = 2, 5


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
    if request.batch_invariant:
        found = _invariant(problem, request)
        why = "batch_invariant=True: sums in the same order for every M"
    elif request.kernel != "auto":
        found = _named(problem, find(request.kernel), request.config)
        why = f'asked for: kernel="{request.kernel}"{" and its config" * bool(request.config)}'
    elif found := _tuned(problem):
        why = "measured as the fastest by tritemm.tune"
    else:
        found = least(groups(problem, RUNGS)) or _none(problem)
        why = "the least predicted time"
    return Choice(problem, *found, why)


def forget() -> None:
    """Choose anew from now on: what was tuned has changed."""
    choose.cache_clear()


def first_choice(problem: Problem, kernel: str = "auto") -> Choice:
    """What runs `problem`, or if torch's kernels end it, the product before them.

    Raises what `choose` raises.
    """
    if problem.epilogue.activation and problem.a.dtype not in REAL:
        return apart(problem, kernel)[0]
    return choose_whole(problem, kernel) or apart(problem, kernel)[0]


def choose_whole(problem: Problem, kernel: str = "auto") -> Choice | None:
    """The kernel and config that do all of `problem`; None of pairs that are better apart, or that
    no kernel can do.

    Which is better follows from what the model expects, or `tritemm.tune` has measured.
    A rung that is named does all if it can. With batch_invariant=True it is always apart: which of
    the two is faster depends on M, and the two round differently. Raises what `choose` raises, of
    pairs only `Unsupported`.
    """
    if problem.epilogue.per_column == 1:
        return choose(problem, kernel)
    request = Request.parse(kernel)
    if request.batch_invariant or problem.device == INTERPRETER:
        return None
    try:
        whole = choose(problem, kernel)
        if request.kernel != "auto":
            return whole
        return whole if _seconds(whole) <= apart(problem)[1] else None
    except ValueError:  # no rung can, or not the one that was asked for
        return None


def apart(problem: Problem, kernel: str = "auto") -> tuple[Choice, float]:
    """What makes the activation's argument, and the seconds of that and of torch's kernels."""
    choice = choose(argument_of(problem), kernel)
    then = f"{choice.why}; {problem.epilogue.activation} by torch's kernels after it"
    choice = dataclasses.replace(choice, why=then)
    if problem.device == INTERPRETER:
        return choice, math.inf
    physics = gpus.physics(problem.device)
    result = problem.batch * problem.M * problem.c.cols * problem.c.dtype.itemsize
    after = _KERNELS * physics.launch + _MOVED * result / physics.copy_rate
    return choice, _seconds(choice) + after


def _seconds(choice: Choice) -> float:
    """That were measured of the choice, if it was tuned, else that the model expects."""
    tuned = cache.lookup(choice.problem) == (choice.kernel.name, choice.config)
    return (tuned and cache.seconds(choice.problem)) or choice.predicted


def argument_of(problem: Problem) -> Problem:
    """The product before the activation, contiguous, with its bias; of pairs, all columns."""
    M, N, spec = problem.M, problem.N, problem.epilogue
    outer, inner = problem.batches
    batch = inner * M * N * (outer > 1), M * N * (inner > 1)
    c = dataclasses.replace(problem.c, cols=N, strides=(*batch, N, 1), aligned=True)
    before = EpilogueSpec(alpha=spec.alpha, bias=spec.bias, along=spec.along)
    return dataclasses.replace(problem, c=c, epilogue=PLAIN if before == PLAIN else before)


def _tuned(problem: Problem) -> tuple[Kernel, Config] | None:
    """What `tritemm.tune` found, if it is what the rung would run for a caller who named it.

    The file may be of another version, or anybody's: a warning names an entry that is left out.
    """
    found = cache.lookup(problem)
    if found is None:
        return None
    name, config = found
    rung = next((rung for rung in RUNGS if rung.name == name), None)
    reason = f"no rung is called {name!r}" if rung is None else refusal(rung, problem, config)
    if reason:
        warnings.warn(
            f"what was tuned for {problem} is not used: {name}, {config}: {reason}. "
            "tritemm.tune measures it anew",
            stacklevel=3,
        )
        return None
    return rung, config


def _named(problem: Problem, rung: Kernel, config: Config | None) -> tuple[Kernel, Config]:
    """The rung that is asked for, and its config; ValueError where it can't run."""
    must_run(rung, config.view(problem) if config else problem)
    if config and (reason := refusal(rung, problem, config)):
        raise ValueError(f'kernel="{rung.name}" cannot run this config: {reason}')
    return rung, config or best_config(rung, problem)


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


def _invariant(problem: Problem, request: Request) -> tuple[Kernel, Config]:
    """The kernel and config whose sums have the same order whatever M and the batch are."""
    one_order, named = questions.one_order(problem), request.kernel != "auto"
    rungs = (find(request.kernel),) if named else RUNGS
    if named:
        limits = rungs[0].limits
        if limits.in_order or limits.ordered:
            must_run(rungs[0], problem)
        if not limits.in_order and not (limits.ordered and one_order):
            raise ValueError(
                f'kernel="{request.kernel}" sums in an order that depends on M; '
                "batch_invariant=True can't have it"
            )
    some = able(rungs, named)
    if not some or not one_order:
        return _as_anchored(problem, [r for r in rungs if r.limits.in_order], copies=not named)
    parts = parts_of(problem) if any(rung.limits.fixed_parts for rung in some) else 1
    found = least(in_one_order(problem, some, parts, copies=not named))
    if found is None:
        cut = f", with K in {parts} parts" if parts > 1 else ""
        unfit = "none of its tiles sums in that order, or fits"
        reasons = "; ".join(f"{rung.name}: {rung.why_not(problem) or unfit}" for rung in some)
        raise ValueError(f"batch_invariant=True can't have {problem}{cut}: {reasons}")
    return found


def _as_anchored(problem: Problem, rungs: Sequence[Kernel], copies: bool) -> tuple[Kernel, Config]:
    """The rung and config of a canonical M: the order of sums follows from the tile.

    With `copies` of operands if the rung needs them.
    """
    rung, config = _anchor(problem, rungs)
    for pack in packs(problem) if copies else ("",):
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
        for group in groups(canonical, rungs)
        if not group.pack and not group.swap
    )
    if found is None:
        raise ValueError(f"no kernel has sums that don't depend on M for {problem}")
    return found
