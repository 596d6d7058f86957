"""The rungs of both ladders, as `ladder` and `sweep` race and show them."""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from cuda_reference import loader
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.compile.pool import Item
from tritemm.rungs import RUNGS
from tritemm.spec import Config, Kernel

from . import cli, figures, session, tables
from .case import Case
from .competitors import chosen, ladders, of_kernels, problem_of
from .engine import Bench, Competitor
from .problems import Problem
from .rows import CUDA, HALF, TRITON, Row
from .select import latest_compare, latest_ladder
from .tables import Parts, Table, digits, spread
from .views import Selection, View

LADDERS = {TRITON: RUNGS, CUDA: CUDA_RUNGS}


@dataclasses.dataclass(frozen=True)
class Built:
    """The rungs of the ladders that race, once CUDA's part is built, all at once.

    A rung that doesn't compile fails again in its race, which reports it.
    """

    triton: Sequence[Kernel]
    cuda: Sequence[Kernel]
    broken: Mapping[str, str]

    @staticmethod
    def of(named: Collection[str], only: Collection[str]) -> Built:
        """The rungs of these `LADDERS`; those in `only` are built, if any are named."""
        kernels = {name: LADDERS[name] if name in named else () for name in LADDERS}
        unavailable, broken = build(k.name for k in kernels[CUDA] if not only or k.name in only)
        if unavailable:
            cli.say(f"the CUDA ladder takes no part: refused: {unavailable}")
            kernels[CUDA] = ()
        return Built(kernels[TRITON], kernels[CUDA], broken)

    def task(self, case: Case, options: dict, problem: Problem | None = None, **more):
        """A race of these `options` of `competitors.ladders`; `more` of the task."""

        def field(there: Bench) -> list[Competitor]:
            return ladders(case, there.sets[0], **vars(self), **options)

        known = {"triton": self.triton, "others": self.cuda} | options
        return session.Task(case, field, problem, items=items(case, **known), **more)


def items(case: Case, *, triton: Sequence[Kernel], auto: bool = False, **options) -> list[Item]:
    """What Triton has to compile."""
    problem = problem_of(case)
    raced = [c for c in of_kernels(problem, triton, **options) if not c.refusal and c.config]
    found = [(c.rung, problem, Config(**c.config)) for c in raced]
    return [*found, *chosen(case)] if auto else found


def build(names: Iterable[str]) -> tuple[str | None, dict[str, str]]:
    """Build CUDA extensions: why none can be, and the errors of those that failed."""
    if not (names := sorted(names)):
        return None, {}
    if reason := loader.unavailable():
        return reason, {}
    return None, loader.build(names)


def add_ladders(command: argparse.ArgumentParser, default: str) -> None:
    """Options: who races, by default which rungs."""
    every = ",".join(LADDERS)
    cli.add_list(command, "--ladders", cli.one_of(*LADDERS), "triton or cuda; default: both", every)
    known = cli.one_of(*(kernel.name for kernel in (*RUNGS, *CUDA_RUNGS)))
    cli.add_list(command, "--only", known, f"only these rungs (and cuBLAS); default: {default}")


# Tables


def label(row: Row) -> str:
    """`07 pipelined`, `wmma_base` (CUDA's rungs are called only by their names), `cuBLAS`.

    `05 permuted[1], padded` is a rung in a further config, and what tells it from the first.
    `tritemm.matmul`, where it has no number because it races against rungs.
    """
    if row.number is None:
        auto = row.competitor == "auto"
        return "tritemm.matmul" if auto else row.competitor.replace("cublas", "cuBLAS")
    if row.ladder == CUDA:
        return row.competitor
    return f"{row.number:02d} {row.competitor}{told(row.competitor, row.config)}"


def told(name: str, config: Mapping | str | None) -> str:
    """What tells a rung's further config, `name[1]`, from its first: `, padded`, `, 3 stages`.

    The config is a mapping of its fields, or its text.
    """
    if not name.endswith("]") or not config:
        return ""
    text = config if isinstance(config, str) else str(Config(**config))
    found = re.search(r"\w+(?= shared memory)", text) or re.search(r"\d+ stages?", text)
    return f", {found[0]}" if found else ""


def text(rows: list[Row]) -> str:
    """The tables of each race."""
    races = tables.grouped(rows, lambda row: (row.time, row.case)).values()
    return tables.text(part for race in races for part in (tables.caption(race), *shown(race)))


def shown(rows: list[Row]) -> list[Table | str]:
    """Both ladders side by side where CUDA's raced too."""
    both = any(row.ladder == CUDA for row in rows)
    return both_ladders(rows) if both else [one_ladder(rows)]


def _lines(rows: Sequence[Row]) -> Iterator[tuple[Row, list[str]]]:
    """The measured rows and their cells; a rung below is named where it isn't the line before."""
    for row, before in zip(rows, (None, *rows), strict=False):
        if row.us:
            ratio = spread(row.ratio, row.tie) if row.rung or row.competitor == HALF else ""
            below = f"{row.ratio_below.p50:.2f}" if row.ratio_below else ""
            if below and not (before and before.competitor == row.below):
                below += f" ({row.below})"
            yield row, [label(row), digits(row.us.p50), digits(row.tflops), ratio, below]


HEAD = ("rung", "µs", "TFLOP/s", "x cuBLAS (p20-p80)", "x the rung below")


def one_ladder(rows: Sequence[Row]) -> Table:
    """`select.latest_ladder(...)`; what was not measured says why."""
    cells = {row.competitor: cells for row, cells in _lines(rows)}
    for row in rows:
        if not row.us:
            reason = (row.reason or "").replace("|", "\\|")
            cells[row.competitor] = (label(row), "", "", f"{row.outcome}: {reason}", "")
    return Table(HEAD, [cells[row.competitor] for row in rows])


def both_ladders(rows: Sequence[Row]) -> list[Table | str]:
    """`select.latest_compare(...)`: the CUDA ladder beside its Triton twins, then Triton's ladder.

    What was not measured is listed below its table, by reason.
    """
    references = [row for row in rows if row.rung is None]
    half = any(row.competitor == HALF for row in references)
    parts: list[Table | str] = []
    for ladder, first in ((CUDA, "CUDA rung"), (TRITON, "Triton rung")):
        own, cuda = [row for row in rows if row.ladder == ladder], ladder == CUDA
        head = [first, *HEAD[1:]] + ["Triton twin: its speed over this one's"] * cuda
        body = [cells + [_twins(row)] * cuda for row, cells in _lines([*own, *references])]
        if half:
            head.insert(4, "x cuBLAS fp16")
            for (row, _), cells in zip(_lines([*own, *references]), body, strict=True):
                alike = (row.versus or {}).get(HALF)
                cells.insert(4, f"{tables.median(alike)}{', a tie' if alike and alike.tie else ''}")
        untimed = tables.unmeasured(own, lambda row: f"`{label(row)}`")
        parts += [Table(head, body, tail=int(cuda)), untimed]
    return parts


def _twins(row: Row) -> str:
    """The speed of a CUDA rung's Triton twins over its own: `tiled 1.43, swizzled 1.01 (tie)`."""
    if row.ladder != CUDA or not row.versus:
        return ""
    ratios = {name: ratio.inverse for name, ratio in row.versus.items() if name != HALF}
    return ", ".join(
        f"{name} {ratio.p50:.2f}{' (tie)' if ratio.tie else ''}" for name, ratio in ratios.items()
    )


# Pictures


def plot(rows: list[Row], selection: Selection):
    """Bars of TFLOP/s: Triton's rungs, each followed by the CUDA rungs whose first twin it is.

    Where only one ladder raced, what has no time says why.
    """
    measured = [row for row in rows if row.us]
    if not measured:
        raise figures.NothingMeasured
    both = any(row.ladder == CUDA for row in measured)
    references = [[row] for row in measured if row.rung is None]
    groups = [*families(measured), *references] if both else [[row] for row in rows]
    count, step = sum(map(len, groups)), 0.5 if both else 0
    figure, axes = figures.blank(1.5 + 0.3 * (count + step * len(groups)))
    axes.grid(visible=False)
    top, place, ticks = max(row.tflops for row in measured), 0.0, {}
    for group in groups:
        for row in group:
            _bar(axes, place, row, top)
            ticks[place] = label(row)
            place += 1
        place += step
    for (row,) in references:
        axes.axvline(row.tflops, color=figures.GREY, linestyle="--", linewidth=1, zorder=0)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlim(0, top * 1.17)  # room for the labels at the bars' ends
    colors = "; blue: Triton, orange: CUDA" if both else ""
    axes.set_title(f"{rows[0].case}, {rows[0].mode}{colors}", fontsize=11, loc="left")
    axes.set_xlabel("TFLOP/s (times cuBLAS's speed in the same rounds)", fontsize=10)
    axes.tick_params(axis="y", length=0)
    figures.caption(figure, rows)
    return figure


def _bar(axes, place: float, row: Row, top: float) -> None:
    """Labelled by its speed, and its ratio to cuBLAS's."""
    if not row.us:
        words = f"{row.outcome}: {textwrap.shorten(row.reason or '', 80)}"
        small = {"fontsize": 9, "style": "italic", "color": figures.GREY}
        axes.text(top / 100, place, words, va="center", **small)
        return
    colors = {CUDA: figures.CUDA_RUNG, TRITON: figures.RUNG, None: figures.GREY}
    axes.barh(place, row.tflops, height=0.74, color=colors[row.ladder])
    words = f"{row.tflops:.{0 if row.tflops >= 10 else 1}f}"
    if row.rung and row.ratio:
        words += f"  ({row.ratio.p50:.{2 if row.ratio.p50 >= 0.1 else 3}f}x)"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # over cuBLAS's line
    axes.text(row.tflops + top / 80, place, words, va="center", fontsize=9, bbox=box)


def families(rows: Sequence[Row]) -> list[list[Row]]:
    """Triton's rungs, each followed by the CUDA rungs whose first twin it is; then the others."""
    groups = {row.competitor: [row] for row in rows if row.ladder == TRITON and row.number}
    alone = []
    for row in rows:
        if row.ladder == CUDA:
            twin = next((name for name in row.versus or {} if name in groups), None)
            (groups[twin] if twin else alone).append(row)
    return [*groups.values(), *([alone] if alone else [])]


# Views


def _one(rows: Sequence[Row], s: Selection) -> list[Row]:
    given = s.given("size", "layout", "dtype", "accumulate", "precision")
    return latest_ladder(rows, s.gpu, **given)


def _both(rows: Sequence[Row], s: Selection) -> list[Row]:
    return latest_compare(rows, s.gpu, **s.given("size", "layout", "dtype", "accumulate"))


def _parts(rows: list[Row], s: Selection) -> Parts:
    return [*shown(rows), tables.caption(rows)]


VIEWS = {
    "ladder": View(_one, _parts, plot, "ladder 3"),
    "compare": View(_both, _parts, plot, "compare 3"),
}
