"""`python -m perf ladder`: every rung of both ladders against cuBLAS, in the same rounds."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from cuda_reference import loader
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.compile.pool import Compilers, Item
from tritemm.rungs import RUNGS
from tritemm.spec import Config, Kernel

from .. import cli, figures, session, tables
from ..case import Case, parse_layout, parse_size
from ..competitors import chosen, ladders, of_kernels, problem_of, read_candidates, refuse_unknown
from ..engine import Plan
from ..operands import Operands
from ..problems import Problem
from ..rows import CUDA, HALF, REFERENCE, TRITON, Row
from ..select import latest_compare, latest_ladder, newest
from ..tables import Parts, Table, digits, spread
from ..views import Selection, View

LADDERS = {TRITON: RUNGS, CUDA: CUDA_RUNGS}
#: Where pictures go unless a folder is named: beside what else is made here, out of git's sight.
PICTURES = Path("build")

EXAMPLES = """
python -m perf ladder
python -m perf ladder --size 8192 --dtype bf16 --rounds 30
python -m perf ladder --ladders triton --layouts NN,TN --dtype fp32 --precision tf32
python -m perf ladder --accumulate fp16 --only mma_async_stage3,mma_async_stage4
python -m perf ladder --configs none --config-file tiles.json
"""


class Ahead(contextlib.AbstractContextManager):
    """Makes what races of the ladders need, by many processes, and while earlier races are timed.

    Tasks of `competitors.ladders` with rungs of `named`, of LADDERS: first all tasks, which begin
    to compile Triton's part; then `build`; then the races. What does not compile fails again in
    its race, which says so.
    """

    def __init__(self, named: Collection[str]):
        self.compilers = Compilers()
        self.kernels = {name: LADDERS[name] if name in named else () for name in LADDERS}
        self.wanted: set[str] = set()
        self.broken: dict[str, str] = {}

    def task(self, case: Case, options: dict, **fields) -> session.Task:
        """A race of these `options` of `competitors.ladders`; `fields`: more of the task."""
        items = _items(case, triton=self.kernels[TRITON], others=self.kernels[CUDA], **options)
        futures = [self.compilers.submit(item) for item in items]
        only = options.get("only")
        self.wanted |= {k.name for k in self.kernels[CUDA] if not only or k.name in only}

        def field(operands: Operands):
            for future in futures:
                future.result()
            return ladders(case, operands, broken=self.broken, **self.kernels, **options)

        return session.Task(case, field, **fields)

    def build(self) -> None:
        """CUDA's part of all tasks, all at once."""
        unavailable, self.broken = build(sorted(self.wanted))
        if unavailable:
            cli.say(f"the CUDA ladder takes no part: refused: {unavailable}")
            self.kernels[CUDA] = ()

    def __exit__(self, *raised) -> None:
        self.compilers.close()


def _items(case: Case, *, triton: Sequence[Kernel], auto: bool = False, **options) -> list[Item]:
    """What Triton has to compile."""
    problem = problem_of(case)
    raced = [c for c in of_kernels(problem, triton, **options) if not c.refusal and c.config]
    found = [(c.rung, problem, Config(**c.config)) for c in raced]
    return [*found, chosen(case)] if auto else found


def build(names: list[str]) -> tuple[str | None, dict[str, str]]:
    """Build CUDA extensions, all at once: why none can be, and the errors of those that failed."""
    if not names:
        return None, {}
    if reason := loader.unavailable():
        return reason, {}
    return None, loader.build(names)


def register(commands) -> None:
    text = "Race every rung, Triton's and CUDA's, against cuBLAS, sustained."
    command = cli.add_command(commands, "ladder", run, text, EXAMPLES)
    cli.add_types(command, "fp16")
    add = command.add_argument
    sizes = {"dest": "sizes", "type": cli.list_of(parse_size), "metavar": "SIZE,..."}
    add("--size", "--sizes", **sizes, default="4096", help="4096 (default) or MxNxK")
    layouts = cli.list_of(parse_layout)
    add("--layouts", type=layouts, default="NT", help="of NN, NT (default), TN, TT")
    add_ladders(command, "all")
    add("--configs", choices=("first", "all", "none"), default="first", help="of each rung")
    text = 'more of Triton\'s: [{"rung": "tma", "BLOCK_M": 128, ...}, ...]'
    add("--config-file", type=Path, metavar="FILE", help=text)
    text = "as many rounds as fit in S seconds per case, instead of --rounds"
    add("--seconds", type=cli.argument(float), metavar="S", help=text)
    add("--all", action="store_true", help="also what takes over 0.5 s per launch")
    cli.add_measurement(command, rounds=5)


def add_ladders(command: argparse.ArgumentParser, default: str) -> None:
    """Who races, by default which rungs, and where pictures go."""
    cli.add_list(command, "--ladders", cli.one_of(*LADDERS), "default: both", ",".join(LADDERS))
    cli.add_list(command, "--only", str, f"these rungs (and cuBLAS); default: {default}")
    text = f"for pictures, which are drawn anew after every round; default: {PICTURES}"
    command.add_argument("--folder", type=Path, default=PICTURES, help=text)


def run(args: argparse.Namespace) -> int:
    try:
        accumulate = cli.accumulator(args, args.dtype)
        refuse_unknown(args.only, (*RUNGS, *CUDA_RUNGS))
        candidates = read_candidates(args.config_file) if args.config_file else []
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    options = {"only": args.only, "configs": args.configs, "candidates": candidates}

    def measure(there: session.Session, mine: Sequence[Problem]) -> None:
        with Ahead(args.ladders) as ahead:
            tasks = [
                ahead.task(Case(*size, layout, args.dtype, accumulate, args.precision), options)
                for size, layout in itertools.product(args.sizes, args.layouts)
            ]
            ahead.build()
            there.measure(tasks, plan(args))

    return session.run(args, "ladder", [], measure, text, draw=draw)


def plan(args: argparse.Namespace) -> Plan:
    made = Plan(rounds=args.rounds, seconds=args.seconds)
    if args.quick:
        made = dataclasses.replace(made, rounds=min(5, args.rounds), replay=0.01, settle=1.0)
    return dataclasses.replace(made, longest=math.inf) if args.all else made


# Tables


def label(row: Row) -> str:
    """`07 pipelined`, `wmma_base` (CUDA's rungs are called by their names alone), `cuBLAS`.

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
    """A table for each race."""
    races = tables.grouped(rows, lambda row: (row.time, row.case)).values()
    return tables.text(part for race in races for part in _race(race))


def _race(rows: list[Row]) -> list[Table | str]:
    """Microseconds, TFLOP/s, times cuBLAS's speed, times the rung below's.

    A CUDA rung has its Triton twins too, with their speed over its own.
    """
    first, timed = rows[0], [row for row in rows if row.us]
    title = f"{first.case} on {first.environment.gpu}, {first.mode}"
    if timed:
        clock = tables.whole(timed[0].settled_mhz or None) or "?"
        title += f", {tables.most_rounds(rows)} rounds, settled at {clock} MHz"
    head = ("", "us", "TFLOP/s", "x cuBLAS (p20-p80)", "x below", "MHz", "W", "error/bound")
    body = []
    for row, cells in _lines(rows):
        worst = "" if row.worst is None else f"{row.worst:.2f}"
        card = (tables.whole(row.sm_mhz), tables.whole(row.power_w))
        body.append((*cells, *card, worst, _twins(row)))
    untimed = [f"{label(row)}: {row.outcome}: {row.reason}" for row in rows if not row.us]
    missed = [f"{label(row)}: {row.reason}" for row in timed if row.reason]
    return [title, Table((*head, "Triton / this"), body), *untimed, *missed]


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

    What was not measured stands below its table, by reason.
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


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """A picture of each case that was measured; of both ladders where both took part."""
    written = []
    for case in dict.fromkeys(row.case for row in rows):
        own = newest(rows, case)
        if any(row.us for row in own):
            name = re.sub(r"\W+", "-", str(case).replace(" x ", "x")).strip("-")
            both = any(row.ladder == CUDA for row in own)
            view = VIEWS["compare" if both else "ladder"]
            written.append(view.draw(own, Path(folder) / f"ladder-{name}.png", Selection()))
    return written


def plot(rows: list[Row], selection: Selection):
    """Bars of TFLOP/s: Triton's rungs, each followed by the CUDA rungs whose first twin it is.

    Where only one ladder raced, cuBLAS has a bar too, and what has no time says why.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    measured = [row for row in rows if row.us]
    if not measured:
        raise figures.NothingMeasured
    both = any(row.ladder == CUDA for row in measured)
    groups = families(measured) if both else [[row] for row in rows]
    count, step = sum(map(len, groups)), 0.5 if both else 0
    line, size = (0.25, 9) if both else (0.36, 10)
    figure, axes = figures.blank(1.5 + line * (count + step * len(groups)))
    axes.grid(visible=False)
    top, place, ticks = max(row.tflops for row in measured), 0.0, {}
    for group in groups:
        for row in group:
            _bar(axes, place, row, top, size)
            ticks[place] = label(row)
            place += 1
        place += step
    styles = {REFERENCE: "--", HALF: ":"}
    lines = [(row, styles[row.competitor]) for row in measured if row.competitor in styles]
    for row, style in lines:
        axes.axvline(row.tflops, color=figures.GREY, linestyle=style, linewidth=1, zorder=0)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=size)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xlim(0, top * 1.17)  # room for the labels at the bars' ends
    if both:
        names = {"Triton": figures.RUNG, "CUDA": figures.CUDA_RUNG}
        handles = [Patch(color=color, label=name) for name, color in names.items()]
        for row, style in lines:
            look = {"color": figures.GREY, "linestyle": style}
            handles.append(Line2D([], [], label=f"{label(row)}, {row.tflops:.0f}", **look))
        axes.legend(handles=handles, fontsize=9, loc="upper right", framealpha=1)
    axes.set_title(f"{rows[0].case}, {rows[0].mode}", fontsize=11, loc="left")
    axes.set_xlabel("TFLOP/s (times cuBLAS's speed in the same rounds)", fontsize=10)
    axes.tick_params(axis="y", length=0)
    figures.caption(figure, rows)
    return figure


def _bar(axes, place: float, row: Row, top: float, size: int) -> None:
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
    axes.text(row.tflops + top / 80, place, words, va="center", fontsize=size, bbox=box)


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


def _parts(rows: list[Row], s: Selection, *, both: bool) -> Parts:
    return [*(both_ladders(rows) if both else [one_ladder(rows)]), tables.caption(rows)]


VIEWS = {
    "ladder": View(_one, functools.partial(_parts, both=False), plot, "ladder 2"),
    "compare": View(_both, functools.partial(_parts, both=True), plot, "compare 2"),
}
