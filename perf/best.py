"""Our time beside the best of the others', problem by problem, from rows of one race each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from .rows import NULL, REFERENCE, Row
from .select import raced
from .stats import Quantiles


@dataclasses.dataclass(frozen=True)
class Result:
    """One problem: our row, the others' by name, the fastest of those, and the ratio to it."""

    ours: Row
    others: Mapping[str, Row]

    @property
    def id(self) -> str:
        return self.ours.problem["id"]

    @property
    def best(self) -> str | None:
        """The name of that of the others with the least median."""
        timed = {name: row.us.p50 for name, row in self.others.items() if row.us}
        return min(timed, key=timed.get) if timed else None

    @property
    def ratio(self) -> Quantiles | None:
        """The best of the others' time over ours, within rounds."""
        if self.best in (None, REFERENCE):
            return self.ours.ratio
        return (self.ours.versus or {}).get(self.best)

    @property
    def tie(self) -> bool:
        """As of `Row.tie`."""
        ratio, null = self.ratio, self.ours.null
        return ratio is not None and (ratio.tie or (null is not None and null.covers(ratio.p50)))

    @property
    def side(self) -> int:
        """1 where we win, -1 where we lose, 0 where it is a tie or wasn't timed."""
        if self.ratio is None or self.tie:
            return 0
        return 1 if self.ratio.p50 > 1 else -1


def results(rows: Sequence[Row], ours: str = "auto", without: Sequence[str] = ()) -> list[Result]:
    """By problem, in the order of the rows; those `without` are neither ours nor others."""
    found = []
    for race in raced(rows).values():
        others = {name: row for name, row in race.items() if name not in (ours, NULL, *without)}
        if ours in race:
            found.append(Result(race[ours], others))
    return found


def listed(title: str, found: Sequence[Result], side: int) -> str:
    """The problems on that side of a tie, the farthest from it first."""
    own = sorted((r for r in found if r.side == side), key=lambda r: -side * r.ratio.p50)
    return f"{title} ({len(own)}): {', '.join(f'{r.id} {r.ratio.p50:.3f}' for r in own) or 'none'}"
