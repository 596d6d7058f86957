"""Problem -> kernel and config.

`kernel="auto"` takes, of all candidates, the one with the least predicted time, unless this
problem was tuned. The same problem gets the same choice every time.
"""

from __future__ import annotations

import functools
import warnings

from ..arch import questions
from ..problem import Problem, Unsupported
from ..problem.config import Config
from ..rungs import RUNGS
from ..spec import Kernel
from . import cache, candidates, invariant
from .explain import Choice
from .request import Request, refusal


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
    request, found = Request.parse(kernel), None
    if request.batch_invariant:
        found = invariant.best(problem, request)
        why = "batch_invariant=True: sums in the same order for every M"
    elif request.kernel != "auto":
        why = f'asked for: kernel="{request.kernel}"' + (
            " and its config" if request.config else ""
        )
    elif found := _tuned(problem):
        why = "measured as the fastest by tritemm.tune"
    else:
        why = "the least predicted time"
    return Choice(problem, *(found or candidates.best(problem, request)), why)


def forget() -> None:
    """Choose anew from now on: what was tuned has changed."""
    choose.cache_clear()


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
