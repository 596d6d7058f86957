"""For which phase does each role wait?

A producer and a consumer count the steps of K from 0, over all tiles. Step n has a stage of the
ring, 0 to `stages` - 1. The producer waits at the stage's `empty` barrier and then issues a copy
into the stage. When the copy arrives, it completes a phase of the stage's `full` barrier. The
consumer waits at `full` and reads the stage, which completes a phase of `empty`.

A barrier counts its complete phases, none at first. A wait for parity 0 passes while their number
is odd, and a wait for parity 1 while it is even. Return the stage of step n, the parity that the
consumer waits for, and the parity that the producer waits for. With your parities, neither role may
wait forever, no stage may be read before its step has arrived, and none may be overwritten before
it has been read. And the producer must be able to issue the copies of `stages` steps before the
consumer has read the first of them, so that all stages are in use.
"""

import itertools

from . import Answer, Wrong
from .ring import fault

DEPTHS = (2, 3, 4, 5)


def answer(n: int, stages: int) -> tuple[int, int, int]:
    stage = n % stages
    round_ = n // stages
    return stage, round_ % 2, (round_ + 1) % 2


def check(function: Answer) -> None:
    """In every order in which producer, TMA and consumer may run."""
    for stages in DEPTHS:
        steps = [function(n, stages) for n in range(4 * stages + 1)]
        possible = list(itertools.product(range(stages), (0, 1), (0, 1)))
        for n, step in enumerate(steps):
            if step not in possible:
                raise Wrong(
                    f"answer(n={n}, stages={stages}) is {step!r}; it should be a stage below "
                    f"{stages} and two parities."
                )
        if wrong := fault(steps, stages):
            raise Wrong(wrong)
