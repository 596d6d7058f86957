"""A rung's needs as values: each checks one thing, and has the sentence for its failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from .config import Config
from .problem import Problem


@dataclasses.dataclass(frozen=True)
class Constraint:
    """What must hold for a problem `p`, or a tile `t`; `sentence` is a format string on it.

    A call returns the formatted sentence, or None. A function with the same signature can replace
    a constraint if its check and its sentence are computed together.
    """

    sentence: str
    holds: Callable[[Any], bool]

    def __call__(self, asked: Problem | Tile) -> str | None:
        return None if self.holds(asked) else self.sentence.format(p=asked, t=asked)


def field(name: str, possible: str, holds: Callable[[int], bool]) -> Constraint:
    """A constraint on a config's field; `possible` says which values are allowed."""
    return Constraint(f"{name} is {{t.c.{name}}}; {possible}", lambda t: holds(getattr(t.c, name)))


#: A constraint, or a function that acts as one.
Need = Callable[[Any], str | None]


def refusal(needs: Iterable[Need], asked: Problem | Tile) -> str | None:
    """The sentence of the first of the `needs` that fails, or None."""
    for need in needs:
        if (sentence := need(asked)) is not None:
            return sentence
    return None


class Tile:
    """A config `c` for a problem `p`, as a family of rungs lays it out; `needs` are checked on it.

    A family adds quantities derived from the two: registers, shared memory, boxes.
    """

    needs: ClassVar[tuple[Need, ...]] = ()
    #: Whether warpgroups multiply it if the device can; their sums have the order of K.
    warpgroups: ClassVar[bool] = False

    def __init__(self, problem: Problem, config: Config):
        self.p, self.c = problem, config

    @classmethod
    def why_not(cls, problem: Problem, config: Config) -> str | None:
        """Why the family can't run the problem in the config, or None."""
        return refusal(cls.needs, cls(problem, config))

    @property
    def steps(self) -> int:
        """Steps of K of a whole tile."""
        return -(-self.p.K // self.c.BLOCK_K)
