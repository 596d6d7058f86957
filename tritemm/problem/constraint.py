"""What a rung needs, as values: each asks one thing, and has the sentence for where it fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from .config import Config
from .problem import Problem


@dataclasses.dataclass(frozen=True)
class Constraint:
    """What must hold of a problem `p`, or of a tile `t`; the `sentence` is a format string of it.

    It is called as a function that returns the sentence or None. Such a function stands beside
    constraints as one of them where what fails and what is said are found together.
    """

    sentence: str
    holds: Callable[[Any], bool]

    def __call__(self, asked: Problem | Tile) -> str | None:
        return None if self.holds(asked) else self.sentence.format(p=asked, t=asked)


def field(name: str, possible: str, holds: Callable[[int], bool]) -> Constraint:
    """What must hold of a config's field, and what is said to be possible."""
    return Constraint(f"{name} is {{t.c.{name}}}; {possible}", lambda t: holds(getattr(t.c, name)))


#: A constraint, or a function that does as one.
Need = Callable[[Any], str | None]


def refusal(needs: Iterable[Need], asked: Problem | Tile) -> str | None:
    """What the first of the `needs` says that fails."""
    for need in needs:
        if (sentence := need(asked)) is not None:
            return sentence
    return None


class Tile:
    """A config `c` for a problem `p`, as a family of rungs lays it out: what `needs` ask of.

    A family adds what else follows from the two: registers, shared memory, boxes.
    """

    needs: ClassVar[tuple[Need, ...]] = ()
    #: Whether warpgroups multiply it where the device can, whose sums have the order of K.
    warpgroups: ClassVar[bool] = False

    def __init__(self, problem: Problem, config: Config):
        self.p, self.c = problem, config

    @classmethod
    def why_not(cls, problem: Problem, config: Config) -> str | None:
        """Why the family can't run the problem in the config."""
        return refusal(cls.needs, cls(problem, config))

    @property
    def steps(self) -> int:
        """Steps of K of a whole tile."""
        return -(-self.p.K // self.c.BLOCK_K)
