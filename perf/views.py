"""The tables and pictures that `perf` makes of recorded rows, by name: which rows each shows.

The documentation shows the same: `docs.generate` takes them from here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from . import (
    host_calls_report,
    host_report,
    host_routing_report,
    invariant_report,
    linear_report,
    model_report,
    peers_report,
    regret,
    report,
    roofline,
    serving,
    serving_report,
    summary,
)
from .plots import figures
from .plots import ladder as ladder_plot
from .plots import model as model_plot
from .plots import random as random_plot
from .plots import roofline as roofline_plot
from .plots import serving as serving_plot
from .plots import suite as suite_plot
from .plots import sweep as sweep_plot
from .problems import LINEAR, SUITE, Problem, read_suite
from .rows import Row
from .select import (
    all_runs,
    latest_compare,
    latest_ladder,
    latest_run,
    newest_races,
    problems_of,
)
from .sweep import DTYPE, LAYOUT, SWEEPS, latest_sweep

#: Random problems that are as telling as more.
ENOUGH = 60


@dataclasses.dataclass(frozen=True)
class Selection:
    """What to show; None is each view's own default.

    `competitor` is what `tritemm.matmul` was asked for, in suite and random.
    """

    gpu: str | None = None
    size: tuple[int, int, int] | None = None
    layout: str | None = None
    dtype: str | None = None
    accumulate: str | None = None
    precision: str = "ieee"
    mode: str = "sustained"
    competitor: str = "auto"


@dataclasses.dataclass(frozen=True)
class View:
    """`choose` the rows, in one list or more; then `table` them as Markdown or `draw` them.

    Both get the lists, `draw` a path too, and then the selection; either may be missing. `drawing`
    names the drawing and its version.
    """

    choose: Callable[[Sequence[Row], Selection], tuple[list[Row], ...]]
    table: Callable[..., str] | None = None
    draw: Callable[..., object] | None = None
    drawing: str | None = None

    def chosen(self, rows: Sequence[Row], selection: Selection) -> tuple[list[Row], ...] | None:
        """None if nothing was measured."""
        lists = self.choose(rows, selection)
        return lists if any(row.us for row in lists[0]) else None

    def digest(self, lists: Sequence[Sequence[Row]]) -> str:
        """What a picture of these rows carries (`figures.drawn_from`)."""
        return figures.digest([row for rows in lists for row in rows], self.drawing)


def _ladder(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    given = _given(s, "size", "layout", "dtype")
    return (latest_ladder(rows, s.gpu, precision=s.precision, accumulate=s.accumulate, **given),)


def _compare(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    given = _given(s, "size", "layout", "dtype")
    return (latest_compare(rows, s.gpu, accumulate=s.accumulate, **given),)


def full_suite() -> int:
    """Problems of a run that counts as full: a few may be missing, as after a time limit."""
    return round(0.95 * len(read_suite()))


def _suite(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    enough = full_suite()
    return (latest_run(rows, "suite", s.gpu, mode=s.mode, competitor=s.competitor, enough=enough),)


def _random(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (latest_run(rows, "random", s.gpu, mode=s.mode, competitor=s.competitor, enough=ENOUGH),)


def _roofline(rows: Sequence[Row], s: Selection) -> tuple[list[Row], list[Row]]:
    roofs = latest_run(rows, "roofline", s.gpu, enough=len(roofline.cases()))
    return roofs, _suite(rows, dataclasses.replace(s, mode="sustained"))[0]


def _runs(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    """Every full run of the suite in the file."""
    known = all_runs(rows, "suite", s.gpu, mode=s.mode)
    full = [run for run in known if problems_of(run, s.competitor) >= full_suite()]
    return ([row for run in full for row in run],)


def _regret(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (latest_run(rows, regret.EXPERIMENT, s.gpu, competitor=regret.CHOICE, enough=ENOUGH),)


def _invariant(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (_races(rows, invariant_report.EXPERIMENT, read_suite(SUITE), s),)


def _peers(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (_races(rows, peers_report.EXPERIMENTS["suite"], read_suite(SUITE), s),)


def _random_peers(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    experiment, given = peers_report.EXPERIMENTS["random"], {"competitor": s.competitor}
    return (latest_run(rows, experiment, s.gpu, mode=s.mode, enough=ENOUGH, **given),)


def _linear(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (_races(rows, linear_report.EXPERIMENT, read_suite(LINEAR), s),)


def _serving(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (_races(rows, serving.EXPERIMENT, serving.problems(), s),)


def _races(
    rows: Sequence[Row], experiment: str, problems: Sequence[Problem], s: Selection
) -> list[Row]:
    """The newest of each problem, in this order."""
    order = [problem.id for problem in problems]
    return newest_races(rows, experiment, order, s.gpu, mode=s.mode)


def _host(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (host_report.latest(rows, s.gpu),)


def _calls(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (host_calls_report.latest(rows, s.gpu),)


def _routing(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (host_routing_report.latest(rows, s.gpu),)


def _model(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
    return (model_report.latest(rows, s.gpu),)


def _sweep(name: str):
    def choose(rows: Sequence[Row], s: Selection) -> tuple[list[Row]]:
        layout, dtype = s.layout or LAYOUT, s.dtype or DTYPE
        return (latest_sweep(rows, name, s.gpu, layout=layout, dtype=dtype),)

    return choose


def _given(selection: Selection, *names: str) -> dict:
    found = {name: getattr(selection, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _captioned(table: Callable[[list[Row]], str]) -> Callable[[list[Row], Selection], str]:
    return lambda rows, selection: f"{table(rows)}\n\n{report.caption(rows)}"


def _summed(table: Callable[[list[Row], str], str]) -> Callable[[list[Row], Selection], str]:
    def write(rows: list[Row], selection: Selection) -> str:
        origin = f"{rows[0].mode}. {report.origin(rows)}"
        commands = dict.fromkeys(f"`{row.command}`" for row in rows)
        return f"{table(rows, selection.competitor)}\n\n{', '.join(commands)}, {origin}"

    return write


def _roofs(roofs: list[Row], suite: list[Row], selection: Selection) -> str:
    return f"{roofline.markdown(roofs)}\n\n{report.origin(roofs)}"


def _drawn(draw: Callable[..., object]) -> Callable[..., object]:
    return lambda *given: draw(*given[:-1])


def _drawn_of(draw: Callable[..., object]) -> Callable[..., object]:
    return lambda *given: draw(*given[:-1], given[-1].competitor)


VIEWS = {
    "ladder": View(
        _ladder,
        _captioned(report.markdown_table),
        _drawn(ladder_plot.plot_ladder),
        ladder_plot.LADDER,
    ),
    "compare": View(
        _compare,
        _captioned(report.markdown_compare),
        _drawn(ladder_plot.plot_compare),
        ladder_plot.COMPARE,
    ),
    "suite": View(
        _suite,
        _summed(summary.markdown),
        _drawn_of(suite_plot.plot_suite),
        suite_plot.DRAWING,
    ),
    "problems": View(_suite, _summed(summary.markdown_problems)),
    "runs": View(_runs, lambda rows, selection: summary.markdown_runs(rows, selection.competitor)),
    "serving": View(
        _serving,
        _summed(lambda rows, competitor: serving_report.markdown(rows)),
        _drawn(serving_plot.plot_serving),
        serving_plot.DRAWING,
    ),
    "random": View(
        _random,
        _summed(summary.markdown),
        _drawn_of(random_plot.plot_random),
        random_plot.DRAWING,
    ),
    "roofline": View(
        _roofline, _roofs, _drawn_of(roofline_plot.plot_roofline), roofline_plot.DRAWING
    ),
    "regret": View(_regret, _summed(lambda rows, competitor: regret.markdown(rows))),
    "invariant": View(
        _invariant, _summed(lambda rows, competitor: invariant_report.markdown(rows))
    ),
    "peers": View(_peers, _summed(peers_report.markdown)),
    "random-peers": View(_random_peers, _summed(peers_report.markdown)),
    "linear": View(_linear, _summed(lambda rows, competitor: linear_report.markdown(rows))),
    "host": View(_host, lambda rows, selection: host_report.markdown(rows)),
    "calls": View(_calls, lambda rows, selection: host_calls_report.markdown(rows)),
    "routing": View(_routing, lambda rows, selection: host_routing_report.markdown(rows)),
    "model": View(
        _model,
        lambda rows, selection: model_report.markdown(rows),
        _drawn(model_plot.plot_model),
        model_plot.DRAWING,
    ),
    **{
        f"sweep-{name}": View(
            _sweep(name), draw=_drawn(sweep_plot.draw), drawing=sweep_plot.DRAWING
        )
        for name in SWEEPS
    },
}
TABLES = {name: view for name, view in VIEWS.items() if view.table}
PICTURES = {name: view for name, view in VIEWS.items() if view.draw}
