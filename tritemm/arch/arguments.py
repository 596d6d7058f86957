"""What several families have in common: sizes and strides as arguments; configs that are kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

from ..problem import Matrix, Problem
from ..runtime.bounded import Bounded


def sizes(problem: Problem) -> dict[str, Any]:
    B0, B1 = problem.batches
    return {"M": problem.M, "N": problem.N, "K": problem.K, "B0": B0, "B1": B1}


def strides(name: str, axes: str, matrix: Matrix) -> dict[str, Any]:
    named = zip(axes, matrix.strides, strict=True)
    return {f"stride_{name}{axis}": stride for axis, stride in named}


def once_per(kind: Callable[[Problem], Hashable]):
    """Works a function of a problem out once for all problems of a `kind`.

    It may ask for nothing else of a problem. Cheaper, and the objects stay the same, by which the
    cost model knows configs (`Kind.shapes`).
    """

    def of(function: Callable):
        known: dict[Hashable, Any] = Bounded(4096)

        @functools.wraps(function)
        def found(problem: Problem, *more: Hashable):
            key = kind(problem), more
            if (answer := known.get(key, known)) is known:
                answer = known[key] = function(problem, *more)
            return answer

        return found

    return of
