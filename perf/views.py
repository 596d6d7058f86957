"""A view: which recorded rows a table or a picture shows, and how it shows them.

Each module of `perf.experiments` has its own; `perf.experiments.show` and the documentation
(`docs.generate`) show them by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from . import figures, tables
from .problems import Problem, read_suite
from .rows import Row
from .select import latest_run, newest_races

#: A number of random problems beyond which more tell nothing new.
ENOUGH = 60


@dataclasses.dataclass(frozen=True)
class Selection:
    """What to show; None is each view's own default.

    `competitor` is the `kernel=` of `tritemm.matmul`, in suite and random.
    """

    gpu: str | None = None
    size: tuple[int, int, int] | None = None
    layout: str | None = None
    dtype: str | None = None
    accumulate: str | None = None
    precision: str = "ieee"
    mode: str = "sustained"
    competitor: str = "auto"

    def given(self, *names: str) -> dict:
        """Those of the fields that aren't None, by name."""
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class View:
    """`choose` the rows; `parts` of them make a table, `figure` draws them; either may be missing.

    All get the selection too. `drawing` names the drawing and its version: another one makes every
    figure outdated.
    """

    choose: Callable[[Sequence[Row], Selection], list[Row]]
    parts: Callable[[list[Row], Selection], tables.Parts] | None = None
    figure: Callable[[list[Row], Selection], object] | None = None
    drawing: str = ""

    def chosen(self, rows: Sequence[Row], selection: Selection) -> list[Row]:
        """Empty if nothing was measured."""
        found = self.choose(rows, selection)
        return found if any(row.us or row.errors for row in found) else []

    def table(self, rows: list[Row], selection: Selection) -> str:
        return tables.markdown(self.parts(rows, selection))

    def draw(self, rows: list[Row], path: Path, selection: Selection) -> Path:
        """`figures.NothingMeasured`, or another ValueError, where there is nothing to draw."""
        figures.save(self.figure(rows, selection), path, rows, self.drawing)
        return Path(path)

    def digest(self, rows: Sequence[Row]) -> str:
        """What a picture of these rows carries (`figures.drawn_from`)."""
        return figures.digest(rows, self.drawing)


def newest_of(experiment: str, problems: Callable[[], Sequence[Problem]]) -> Callable:
    """Chooses the newest race of each of these problems."""

    def choose(rows: Sequence[Row], s: Selection) -> list[Row]:
        return newest_races(rows, experiment, [p.id for p in problems()], s.gpu, s.mode)

    return choose


def full_suite() -> int:
    """Problems of a run that counts as full: some may be missing, as after a time limit, or where
    they joined the suite later."""
    return round(0.85 * len(read_suite()))


def latest_of(experiment: str, enough: Callable[[], int]) -> Callable:
    """Chooses the newest run; one of `enough()` problems is as good as a fuller one."""

    def choose(rows: Sequence[Row], s: Selection) -> list[Row]:
        chosen = {"mode": s.mode, "competitor": s.competitor, "enough": enough()}
        return latest_run(rows, experiment, s.gpu, **chosen)

    return choose


def newest_suite(rows: Sequence[Row], s: Selection) -> list[Row]:
    """Chooses the newest race of each problem of the suite in which the competitor took part."""
    races = {(row.run, row.id) for row in rows if row.competitor == s.competitor}
    taken = [row for row in rows if (row.run, row.id) in races]
    return newest_of("suite", read_suite)(taken, s)
