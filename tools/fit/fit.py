"""The constants of the cost model from measured times.

All numbers are moved together, along the gradient of what counts: the relative errors, of fast
candidates more than of slow ones, since the choice is among the fast ones; one wild sample counts
little. Of a scaled time only predictions below it are errors. An error that all candidates of a
problem share costs less, since it changes no choice: cards and their clocks differ by as much, and
a problem that was searched twice counts as two races. What the choice of a race would lose counts
as well. Numbers are drawn to where they began, so one that the samples say nothing of stays there.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import Tensor

from tritemm.dispatch.cost_model import constants as known
from tritemm.dispatch.cost_model.constants import Constants, Rung

from .samples import Sample
from .table import FACTORS, PLAIN, Numbers, Table

#: What may be held.
NAMES = (*known.NUMBERS, *PLAIN, "efficiency", "load", *FACTORS)
#: Steps along the gradient, and the length of the first, in logarithms; it falls to nothing.
_STEPS, _LENGTH = 500, 0.03
#: The error (of logarithms) from which on a sample counts linearly and no longer squared.
_WILD = 0.15
#: What it costs to move a number by e from where it began, in errors of one sample.
_INERTIA = 0.3
#: The same for the factors of a tile, which are drawn to 1: those of a k-step and of the ends.
_FACTORS = {"step": 20.0, "late": 5.0}
#: Such factors within this of 1 are left out.
_NO_FACTOR = 0.035
#: How many samples like the fastest one a problem must have for half of a shared error to be its
#: own, and what such an error costs, in errors of one sample.
_SHARED, _OFFSET = 3.0, 20.0
#: What a problem's regret counts, in squared errors.
_REGRET = 4.0
#: Samples from which on a problem counts as searched, and how near to the least predicted time
#: (in logarithms) a candidate is as good as chosen. Of 0.005 to 0.03, this and less choose best
#: among searches that were held back.
_SEARCHED, _NEAR = 2, 0.01
#: What a choice may lose before it is a bad one.
_BAD = 0.05
#: What a scaled time may be too long by, as a logarithm, before a prediction below it is an error.
#: Up to 9 % were seen on an H200; of 2 to 10 %, this chooses best among settled times.
_SCALED = 0.03


def fit(
    samples: Sequence[Sample],
    start: Constants | None = None,
    *,
    hold: Collection[str] = (),
    rungs: Collection[str] = (),
    progress: Callable[[Iterable], Iterable] = iter,
) -> Constants:
    """The constants that predict `samples`, all of one device, best.

    `start` is where the search begins, by default the device's present constants. Numbers in
    `hold`, which are of `NAMES`, stay as they are; so do those that are 0, where there is no such
    limit. With `rungs`, only numbers of these move. Factors of tiles that may move begin at 1.
    """
    start = start or known.of(samples[0].problem.device)
    table, measured = Table(samples), _Measured(samples)
    first = table.numbers(start)
    moves = table.of_rungs(rungs)
    factors = first.by_tile.items()
    begin = {name: v if name in hold else torch.where(moves.by_tile, 1, v) for name, v in factors}
    first = first._replace(by_tile=begin)
    starts = {(g, name): v for g, some in first._asdict().items() for name, v in some.items()}
    logs = {place: torch.zeros_like(values).requires_grad_() for place, values in starts.items()}
    free = {}
    for (g, name), v in starts.items():
        own = getattr(moves, g).reshape(v.shape[:1] + (1,) * (v.dim() - 1))  # `load` has pairs
        free[g, name] = (v > 0) & own & (name not in hold)

    def now() -> Numbers:
        return Numbers(*(
            {n: v * torch.where(free[g, n], logs[g, n].exp(), 1.0) for n, v in some.items()}
            for g, some in first._asdict().items()
        ))  # fmt: skip

    optimiser = torch.optim.Adam(logs.values(), lr=_LENGTH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _STEPS)
    for _ in progress(range(_STEPS)):
        optimiser.zero_grad()
        lost = measured.loss(table.seconds(now()).log())
        for place, log in logs.items():
            inertia = _FACTORS.get(place[1], _INERTIA)
            lost = lost + inertia * (torch.where(free[place], log, 0.0) ** 2).sum()
        lost.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return table.constants(now(), start)


def to_json(constants: Constants) -> dict:
    """What was fitted of `constants`, to three digits, as `constants.from_json` reads it."""
    return {
        "rates": {name: _short(getattr(constants, name)) for name in known.NUMBERS},
        "rungs": {name: _rung(rung) for name, rung in sorted(constants.rungs.items())},
    }


def _rung(rung: Rung) -> dict:
    numbers = {name: _short(getattr(rung, name)) for name in PLAIN}
    efficiency = {word: _short(value) for word, value in sorted(rung.efficiency.items())}
    load = {word: [_short(value) for value in pair] for word, pair in sorted(rung.load.items())}
    tiles = {
        word: {"x".join(map(str, tile)): [_short(each) for each in own] for tile, own in some}
        for word, known in sorted(rung.tiles.items())
        if (some := [(t, own) for t, own in sorted(known.items()) if _tells(own)])
    }
    found = numbers | {"efficiency": efficiency, "load": load}
    return found | {"tiles": tiles} if tiles else found


def _tells(factors: Sequence[float]) -> bool:
    """Whether the factors of a tile say anything."""
    return any(abs(factor - 1) > _NO_FACTOR for factor in factors)


def _short(value: float) -> float:
    return float(f"{value:.3g}")


class _Measured:
    """The samples' times, and what predictions of them cost; a race is a problem in one search."""

    def __init__(self, samples: Sequence[Sample]):
        races: dict = {}
        self.race = torch.tensor([
            races.setdefault((s.problem, s.search), len(races)) for s in samples
        ])  # fmt: skip
        self.count = len(races)
        self.scaled = torch.tensor([s.scaled for s in samples])
        logs = torch.tensor([s.seconds for s in samples], dtype=torch.float64).log()
        self.logs = torch.where(self.scaled, logs - _SCALED, logs)
        least = self._least(torch.where(self.scaled, torch.inf, self.logs))
        self.lost = (self.logs - least).clamp(min=0)
        self.weight = (-2 * self.lost).exp()
        self.own = torch.where(self.scaled, 0.0, self.weight)
        self.weights = self._sum(self.own)
        self.searched = self._sum(torch.ones_like(self.logs)) >= _SEARCHED

    def loss(self, predicted: Tensor) -> Tensor:
        """What the logarithms of predicted seconds cost."""
        errors = predicted - self.logs
        shared = self._sum(self.own * errors) / (self.weights + _SHARED)
        errors = errors - shared[self.race]
        wild = torch.where(self.scaled, errors.clamp(max=0), errors) / _WILD
        lost = self.weight * _WILD**2 * 2 * ((1 + wild**2).sqrt() - 1)
        regret = torch.where(self.searched, self.regret(predicted), 0.0)
        # A loss of `_BAD` counts double, one of three times as much fourfold.
        regret = regret * (1 + regret / _BAD)
        return lost.sum() + _OFFSET * (shared**2).sum() + _REGRET * regret.sum()

    def regret(self, predicted: Tensor) -> Tensor:
        """What the choice of each race loses, as a logarithm.

        Candidates count as chosen by how near they are to the least predicted time, so that it
        changes steadily with the predictions.
        """
        chosen = ((self._least(predicted.detach()) - predicted) / _NEAR).exp()
        return self._sum(chosen * self.lost) / self._sum(chosen)

    def _sum(self, values: Tensor) -> Tensor:
        return values.new_zeros(self.count).index_add(0, self.race, values)

    def _least(self, values: Tensor) -> Tensor:
        """The least of each sample's race."""
        least = values.new_full((self.count,), torch.inf)
        return least.scatter_reduce(0, self.race, values, "amin")[self.race]


@dataclasses.dataclass(frozen=True)
class Quality:
    """How well constants predict samples.

    `error` is the median of |predicted / measured - 1|. Of a race, a problem in one search, the
    regret is the time of the candidate that is predicted to be the fastest over that of the
    fastest: `regret` is their geometric mean, `worst` the largest.
    """

    samples: int
    races: int
    error: float
    regret: float
    worst: float

    def __str__(self) -> str:
        return (
            f"{self.samples} samples of {self.races} races: error {100 * self.error:.1f} % "
            f"(median), regret {self.regret:.4f} (mean), {self.worst:.3f} (worst)"
        )


def quality(samples: Sequence[Sample], constants: Constants) -> Quality:
    """The quality of `constants` on those of the `samples` that were not scaled."""
    samples = [sample for sample in samples if not sample.scaled]
    table = Table(samples)
    predicted = table.seconds(table.numbers(constants)).tolist()
    errors, per_race = [], defaultdict(list)
    for sample, seconds in zip(samples, predicted, strict=True):
        errors.append(abs(seconds / sample.seconds - 1))
        per_race[sample.problem, sample.search].append((seconds, sample.seconds))
    regrets = [min(rows)[1] / min(seconds for _, seconds in rows) for rows in per_race.values()]
    return Quality(
        len(samples),
        len(regrets),
        statistics.median(errors),
        statistics.geometric_mean(regrets),
        max(regrets),
    )
