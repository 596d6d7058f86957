"""Statistics of interleaved rounds: only times of the same round are divided by each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy


class Quantiles(NamedTuple):
    """Quantiles of a time, or of a ratio, over rounds."""

    p20: float
    p50: float
    p80: float

    @staticmethod
    def of(values: Iterable[float]) -> Quantiles:
        return Quantiles(*(float(q) for q in numpy.percentile(list(values), (20, 50, 80))))

    @property
    def tie(self) -> bool:
        """Whether a ratio with these quantiles says nothing: 1 lies between p20 and p80."""
        return self.p20 <= 1 <= self.p80

    def covers(self, ratio: float) -> bool:
        """Whether `ratio` is as near to 1 as the quantiles of a null test are."""
        return min(self.p20, 1.0) <= ratio <= max(self.p80, 1.0)

    @property
    def inverse(self) -> Quantiles:
        """Quantiles of the ratios turned over."""
        return Quantiles(1 / self.p80, 1 / self.p50, 1 / self.p20)


def ratios(rounds: Sequence[Mapping[str, float]], slow: str, fast: str) -> list[float]:
    """`slow`'s time over `fast`'s, for each round in which both took part.

    Clock and temperature drift by more between rounds than what competitors differ by; inside a
    round they drift little, and the random order there makes the rest fall on both sides.
    """
    return [times[slow] / times[fast] for times in rounds if slow in times and fast in times]


def standard_error(values: Sequence[float]) -> float:
    """The median's error, relative to it, if values are normal but for outliers: 1.25 s / sqrt(n).

    s is the distance of the 20th and the 80th percentile over 1.68, as of a normal distribution;
    times 1 + 4 / n, because few values lie closer together than more would: of five, the result is
    1.4 times the error, and without this it would be 0.8 times.
    """
    spread, count = Quantiles.of(values), len(values)
    deviation = (spread.p80 - spread.p20) / 1.683 * (1 + 4 / count)
    return 1.2533 * deviation / math.sqrt(count) / spread.p50


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    values = list(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else math.nan


def compare(rounds: Sequence[Mapping[str, float]], slow: str, fast: str) -> Quantiles | None:
    """Quantiles of `ratios`: over 1 where `fast` is faster; None if they never met."""
    values = ratios(rounds, slow, fast)
    return Quantiles.of(values) if values else None
