"""Whether a product with an activation is one kernel, or a product that torch's kernels end."""

from __future__ import annotations

import dataclasses
import math

from ..arch import gpus
from ..dtypes import REAL
from ..problem import INTERPRETER, PLAIN, EpilogueSpec, Problem
from . import cache
from .explain import Choice
from .request import Request
from .selection import choose

#: Kernels of torch after the product: the activation of one half, and the product of the halves;
#: and how many times both together move an element of the result.
_KERNELS, _MOVED = 2, 5


def first_choice(problem: Problem, kernel: str = "auto") -> Choice:
    """What runs `problem`, or if torch's kernels end it, the product before them.

    Raises what `choose` raises.
    """
    if problem.epilogue.activation and problem.a.dtype not in REAL:
        return apart(problem, kernel)[0]
    if not problem.epilogue.gated:
        return choose(problem, kernel)
    return choose_gated(problem, kernel) or apart(problem, kernel)[0]


def choose_gated(problem: Problem, kernel: str = "auto") -> Choice | None:
    """The kernel and config that do all of a gated `problem`, or None: better apart, or none can.

    Which is better follows from what the model expects, or `tritemm.tune` has measured.
    A rung that is named does all if it can. With batch_invariant=True it is always apart: which of
    the two is faster depends on M, and the two round differently. Raises `Unsupported`.
    """
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
    """The product before the activation, contiguous, with its bias; of a gated one, all columns."""
    M, N, spec = problem.M, problem.N, problem.epilogue
    outer, inner = problem.batches
    batch = inner * M * N * (outer > 1), M * N * (inner > 1)
    c = dataclasses.replace(problem.c, cols=N, strides=(*batch, N, 1), aligned=True)
    before = EpilogueSpec(alpha=spec.alpha, bias=spec.bias, along=spec.along)
    return dataclasses.replace(problem, c=c, epilogue=PLAIN if before == PLAIN else before)
