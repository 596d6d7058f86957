"""The constants of the cost model from measured times.

Each constant in turn is moved up and down by a factor, and stays where the samples are predicted
better, until no move helps; the factor shrinks. What counts is the relative error, of fast
candidates more than of slow ones, since the choice is among the fast ones; one wild sample counts
little. Where a problem was searched, what its choice would lose counts as well. A constant that the
samples say nothing of stays where it was.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from ..config import Config
from ..spec import Kernel
from . import constants as known
from .constants import Constants
from .kind import Kind, facts_of
from .model import Scene, pack_bytes
from .samples import Sample

#: Factors by which constants are moved, in the order in which they are tried.
_FACTORS = (1.6, 1.3, 1.15, 1.07, 1.03, 1.015)
#: The error (of logarithms) from which on a sample counts linearly and no longer squared.
_WILD = 0.15
#: What it costs to move a constant by e from where it began, in errors of one sample.
_INERTIA = 0.3
#: What a problem's regret counts, in squared errors: its samples' errors are 0.1 together.
_REGRET = 10.0
#: Samples from which on a problem counts as searched, and how near to the least predicted time
#: (in logarithms) a candidate is as good as chosen: the measured ones differ by as much.
_SEARCHED, _NEAR = 8, 0.02
#: What a choice may lose before it is a bad one.
_BAD = 0.05


@dataclasses.dataclass
class _Point:
    """A sample with what predicting it needs."""

    scene: Scene
    kernel: Kernel
    config: Config
    log_seconds: float
    weight: float
    key: known.Key
    problem: int
    now: float = 0.0  # the error that was found last

    def guess(self) -> list[float]:
        """The step and the ends of its tile where nothing was measured."""
        kind, trait = self.scene.kind, self.kernel.trait
        step, ends = kind.analytic(trait, self.config)
        return [step / kind.per_step(trait, self.config), ends]

    def error(self) -> float:
        """Logarithm of predicted over measured."""
        parts = next(self.scene.parts(self.kernel, (self.config,)))
        return math.log(parts.total) - self.log_seconds

    def loss(self) -> float:
        """Of the error that was found last."""
        error = self.now / _WILD
        return self.weight * _WILD**2 * 2 * (math.sqrt(1 + error * error) - 1)


class _Searched:
    """The points of a problem that was searched."""

    def __init__(self, points: Sequence[_Point]):
        self.points = points
        self.seconds = [point.log_seconds for point in points]
        self.least = self._loss(self.seconds)

    def regret(self) -> float:
        """What the choice loses by the errors that were found last, as a logarithm.

        A loss of `_BAD` counts double, one of three times as much fourfold.
        """
        predicted = [point.now + point.log_seconds for point in self.points]
        lost = max(0.0, self._loss(predicted) - self.least)
        return lost * (1 + lost / _BAD)

    def _loss(self, predicted: Sequence[float]) -> float:
        """Candidates count as chosen by how near they are to the least predicted time.

        So it changes steadily with the predictions.
        """
        least, fastest = min(predicted), min(self.seconds)
        shares = [math.exp((least - each) / _NEAR) for each in predicted]
        lost = sum(s * (each - fastest) for s, each in zip(shares, self.seconds, strict=True))
        return lost / sum(shares)


def fit(
    samples: Sequence[Sample],
    start: Constants | None = None,
    *,
    hold: Collection[str] = (),
    progress: Callable[[Iterable], Iterable] = iter,
) -> Constants:
    """The constants that predict `samples`, all of one device, best.

    `start` is where the search begins, by default the device's present constants. Rungs and tiles
    that have fewer than two samples keep theirs, and so do the plain numbers in `hold`, and what
    corrects them by rung.
    """
    search = _Search(samples, start or known.of(samples[0].problem.device), hold)
    for factor in progress(_FACTORS):
        for _ in range(4):
            moved = [search.move(number, factor) for number in search.numbers]
            if not any(moved):
                break
    steps = {
        kernel: {key: tuple(pair) for key, pair in table.items()}
        for kernel, table in search.constants.steps.items()
    }
    return dataclasses.replace(search.constants, steps=steps)


def _points(samples: Sequence[Sample], constants: Constants | None = None) -> list[_Point]:
    """By `constants`, or the device's present ones."""
    best: dict = {}
    for sample in samples:
        best[sample.problem] = min(best.get(sample.problem, math.inf), sample.seconds)
    points, kinds = [], {}
    numbers = {problem: number for number, problem in enumerate(best)}
    for s in samples:
        view = s.config.view(s.problem)
        told = facts_of(view)
        kind = kinds.setdefault(told, Kind(view.device, told, constants))
        scene = Scene(view, pack_bytes(s.problem, s.config.PACK), kind)
        key = known.key(s.kernel.trait, kind.word(s.kernel.trait), s.config)
        weight = (best[s.problem] / s.seconds) ** 2
        number = numbers[s.problem]
        points.append(_Point(scene, s.kernel, s.config, math.log(s.seconds), weight, key, number))
    return points


@dataclasses.dataclass
class _Number:
    """One constant: where it lies, who depends on it, and where it began."""

    table: Any
    place: Any
    points: Sequence[_Point]

    def __post_init__(self):
        self.first = self.table[self.place]


class _Search:
    """Moves one constant after the other; each knows the points that depend on it."""

    def __init__(self, samples: Sequence[Sample], start: Constants, hold: Collection[str]):
        steps = {
            kernel: {key: list(pair) for key, pair in table.items()}
            for kernel, table in start.steps.items()
        }
        by_rung = {mapping: dict(getattr(start, mapping)) for mapping in known.BY_RUNG}
        self.constants = dataclasses.replace(start, steps=steps, **by_rung)
        points = _points(samples)
        by_kernel, by_tile, by_problem = defaultdict(list), defaultdict(list), defaultdict(list)
        for point in points:
            by_kernel[point.kernel.measured_as].append(point)
            by_tile[point.kernel.measured_as, point.key].append(point)
            by_problem[point.problem].append(point)
        self.searched = {k: _Searched(p) for k, p in by_problem.items() if len(p) >= _SEARCHED}
        numbers = []
        for (kernel, key), some in by_tile.items():
            if len(some) > 1:
                pair = steps.setdefault(kernel, {}).setdefault(key, some[0].guess())
                numbers += [_Number(pair, place, some) for place in (0, 1)]
        for mapping, name in known.BY_RUNG.items():
            table = by_rung[mapping]
            for kernel, some in by_kernel.items():
                if len(some) > 1:
                    table.setdefault(kernel, getattr(start, name))
                    numbers += [_Number(table, kernel, some)] * (name not in hold)
        plain = vars(self.constants)  # frozen for everybody else
        left = [n for n in Constants.RATES if n not in hold and n not in known.BY_RUNG.values()]
        numbers += [_Number(plain, name, points) for name in left]
        self.numbers = [number for number in numbers if number.first]  # 0: there is no such limit
        for point in points:
            point.scene.kind.constants = self.constants
        for point in points:
            point.now = point.error()

    def move(self, number: _Number, factor: float) -> bool:
        """Put the best of value / factor, value, value * factor; whether that is another."""
        value, points = number.table[number.place], number.points
        searched = [self.searched[k] for k in {p.problem for p in points} & self.searched.keys()]

        def loss(at: float) -> tuple[float, list[float]]:
            number.table[number.place] = at
            for point in points:
                point.now = point.error()
            away = math.log(at / number.first)
            lost = sum(point.loss() for point in points) + _INERTIA * away * away
            lost += _REGRET * sum(each.regret() for each in searched)
            return lost, [point.now for point in points]

        best, (least, errors) = value, loss(value)
        for at in (value * factor, value / factor):
            lost, found = loss(at)
            if lost < least * (1 - 1e-6):
                best, least, errors = at, lost, found
        number.table[number.place] = best
        for point, error in zip(points, errors, strict=True):
            point.now = error
        return best != value


@dataclasses.dataclass(frozen=True)
class Quality:
    """How well constants predict samples.

    `error` is the median of |predicted / measured - 1|. Per problem, the regret is the time of
    the candidate that is predicted to be the fastest over that of the fastest: `regret` is their
    geometric mean, `worst` the largest.
    """

    samples: int
    problems: int
    error: float
    regret: float
    worst: float

    def __str__(self) -> str:
        return (
            f"{self.samples} samples of {self.problems} problems: error {100 * self.error:.1f} % "
            f"(median), regret {self.regret:.4f} (mean), {self.worst:.3f} (worst)"
        )


def quality(samples: Sequence[Sample], constants: Constants) -> Quality:
    """Of `constants` on `samples`."""
    errors, per_problem = [], defaultdict(list)
    for sample, point in zip(samples, _points(samples, constants), strict=True):
        error = point.error()
        errors.append(abs(math.expm1(error)))
        per_problem[sample.problem].append((error + point.log_seconds, sample.seconds))
    regrets = [min(rows)[1] / min(seconds for _, seconds in rows) for rows in per_problem.values()]
    return Quality(
        len(samples),
        len(regrets),
        statistics.median(errors),
        statistics.geometric_mean(regrets),
        max(regrets),
    )
