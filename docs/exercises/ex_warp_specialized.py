"""For which phase does each role wait?

A producer and a consumer count the steps of K from 0, over all tiles. Step n has a stage of the
ring, 0 to `stages` - 1. The producer waits at the stage's `empty` barrier and asks for a copy into
it, whose arrival completes a phase of the stage's `full` barrier. The consumer waits at `full`,
reads the stage, and so completes a phase of `empty`. A barrier counts the phases that are complete,
none at first, and a wait for a parity passes when their number is odd if the parity is 0, and even
if it is 1. Return the stage of step n, the parity that the consumer waits for and the one that the
producer waits for, so that neither ever waits in vain, no stage is read before its step is there,
none is overwritten before it is read, and the producer can ask for `stages` steps before the
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
