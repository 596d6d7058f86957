"""Problem -> kernel and config.

`kernel="auto"` takes the candidate with the least predicted time, unless this problem was tuned.
The same problem always gets the same choice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings

from ..arch import gpus, questions
from ..dtypes import has_epilogue
from ..kernels import residues
from ..kernels.pack import why_not as pack_why_not
from ..problem import INTERPRETER, PLAIN, EpilogueSpec, Problem, Unsupported
from ..rungs import RUNGS, find
from . import cache
from .candidates import best, groups, invariant, least, must_run
from .explain import Choice
from .request import Request, refusal

#: torch's kernels after a gated product: the activation of one half, and the product of the halves;
#: and how often both together move an element of the result.
_KERNELS, _MOVED = 2, 5
#: Seconds that the kernels around a product of residues take besides memory traffic, on an H200.
_RESIDUES = 35e-6


@functools.lru_cache(maxsize=8192)
def choose(problem: Problem, kernel: str = "auto") -> Choice:
    """The kernel and config that will run `problem`.

    `kernel` is "auto", a rung's name or a `Request` as a word.

    Raises:
        ValueError: `kernel` is no rung, or the rung or its config can't run the problem; the
            message says why, and what can.
        Unsupported: the device is older than sm_80.
    """
    if reason := questions.too_old(problem):
        raise Unsupported(reason, "a device older than sm_80")
    request = Request.parse(kernel)
    rungs = RUNGS if request.kernel == "auto" else (find(request.kernel),)
    tuned = cache.lookup(problem) if kernel == "auto" else None
    split = problem.only_split or questions.planes(problem)
    if request.kernel == "auto" and split and not tuned:
        return _split_or_not(problem, kernel, request)
    if request.batch_invariant:
        why = "batch_invariant=True: sums in the same order for every M"
        parts = questions.parts_of(problem)
        return Choice(problem, *invariant(problem, rungs, parts), why)
    name, config = tuned or (request.kernel, request.config)
    why = "the least predicted time" if kernel == "auto" else f'requested: kernel="{name}"'
    if config:
        view = config.view(problem)
        rung = next((rung for rung in rungs if rung.name == name), None)
        reason = f"no rung is called {name!r}"
        if rung:
            reason = residues.why_not(problem, config) or pack_why_not(problem, config.PACK)
            reason = reason or refusal(rung, view, config)
        if rung and not reason:
            why = "measured as the fastest by tritemm.tune" if tuned else f"{why} and its config"
            return Choice(problem, rung, config, why)
        if not tuned:
            must_run(rungs[0], view)
            raise ValueError(f'kernel="{name}" cannot run this config: {reason}')
        warnings.warn(  # the file may come from another version, or be anybody's
            f"the tuning result for {problem} is not used: {name}, {config}: {reason}. "
            "tritemm.tune measures it again",
            stacklevel=2,
        )
    return Choice(problem, *best(problem, rungs), why)


def _split_or_not(problem: Problem, kernel: str, request: Request) -> Choice:
    """By planes or residues; or by FFMA or DMMA, which round no operand, if that is no slower, or
    if no kernel offers the other."""
    exact = choose(dataclasses.replace(problem, precision="ieee"), kernel)
    able = questions.planes(problem) and not request.batch_invariant
    found = least(groups(problem, RUNGS)) if able else None
    if found is None:
        return dataclasses.replace(
            exact, why=f"{exact.why}; no kernel offers {problem.precision} here"
        )
    choice = Choice(problem, *found, "the least predicted time")
    more = _RESIDUES if problem.by_residues else 0.0
    if choice.predicted + more < exact.predicted:
        return choice
    return dataclasses.replace(exact, why=f"{exact.why}; {problem.precision} would be slower")


def forget() -> None:
    """Discard all choices, because the tuning results have changed."""
    choose.cache_clear()


def first_choice(problem: Problem, kernel: str = "auto") -> Choice:
    """What runs `problem`, or, if torch's kernels end it, the product before them.

    Raises the errors of `choose`.
    """
    alone = not has_epilogue(problem.a.dtype, problem.precision) and problem.scales is None
    if problem.epilogue.activation and alone:
        return apart(problem, kernel)[0]
    return choose_whole(problem, kernel) or apart(problem, kernel)[0]


def choose_whole(problem: Problem, kernel: str = "auto") -> Choice | None:
    """The kernel and config that do all of `problem`; None if no kernel can, or if a gated product
    is faster in two steps.

    The model's predictions decide, or the measurements of `tritemm.tune`. A named rung does all if
    it can. With batch_invariant=True a gated product is always in two steps, because which way is
    faster depends on M, and the two round differently. Raises the errors of `choose`; for pairs
    only `Unsupported`.
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
    except ValueError:  # no rung can, or not the named one
        return None


def apart(problem: Problem, kernel: str = "auto") -> tuple[Choice, float]:
    """The choice for the activation's argument, and the seconds of that plus torch's kernels."""
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
    """Seconds of the choice: measured, if it was tuned, else predicted."""
    tuned = cache.lookup(choice.problem) == (choice.kernel.name, choice.config)
    return (tuned and cache.seconds(choice.problem)) or choice.predicted


def argument_of(problem: Problem) -> Problem:
    """The product before the activation, contiguous, with its bias; for pairs, all columns."""
    M, N, spec = problem.M, problem.N, problem.epilogue
    outer, inner = problem.batches
    batch = inner * M * N * (outer > 1), M * N * (inner > 1 and problem.groups != "m")
    c = dataclasses.replace(problem.c, cols=N, strides=(*batch, N, 1), aligned=True)
    before = EpilogueSpec(alpha=spec.alpha, bias=spec.bias, along=spec.along)
    return dataclasses.replace(problem, c=c, epilogue=PLAIN if before == PLAIN else before)
