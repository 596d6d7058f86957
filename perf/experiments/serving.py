"""`python -m perf serving`: `tritemm.matmul` against cuBLAS on layers of served models.

A layer is `x @ W.T`, bf16, W stored [N, K], raced over many M. `serving.csv` has a line per layer,
and from which fields of the model's config its shape is; TP8 is the share of one GPU of eight.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from .. import cli, figures, race, tables
from ..case import Case
from ..problems import SUITE, Problem, refuse_unknown
from ..race import Preset
from ..rows import PEERS, Row
from ..stats import geomean
from ..tables import Parts, Result, Table, Tally
from ..views import Selection, View, newest_of

LAYERS = SUITE.with_name("serving.csv")
#: The largest M, and those that are multiples of little.
MOST, ODD = 4096, (17, 33, 65, 129, 257, 333, 513, 1001, 2047)
#: The ratio to cuBLAS from which on nobody would notice; problems that are listed one by one.
ENOUGH, WORST = 0.98, 5

EXAMPLES = """
python -m perf serving --out serving.jsonl
python -m perf serving --part 1/4 --out serving.jsonl
python -m perf serving --model llama-3-8b,deepseek-v3 --layer qkv,o,router
python -m perf serving --rows 1,16,64,256 --quick
python -m perf serving --layer down --peers lt --out serving.jsonl
"""


def _grid() -> tuple[int, ...]:
    """Quarters of octaves that are whole numbers, and `ODD`."""
    quarters = {2**bit * step / 4 for bit in range(MOST.bit_length()) for step in (4, 5, 6, 7)}
    return tuple(sorted({*ODD, *(int(M) for M in quarters if M.is_integer() and M <= MOST)}))


#: The M of every layer. They are 53, a prime: so a part (`part`) has other M of one layer than of
#: the next, and as many small ones as large ones.
ROWS = _grid()


@dataclasses.dataclass(frozen=True)
class Layer:
    """A weight [N, K] of a model."""

    model: str
    name: str
    N: int
    K: int

    @property
    def slug(self) -> str:
        """The model's name as options and ids have it: `llama-3-70b-tp8`."""
        return self.model.lower().replace(" ", "-")

    def problem(self, rows: int) -> Problem:
        case = Case(rows, self.N, self.K, "NT", "bf16")
        return Problem(f"{self.slug}/{self.name}/{rows}", self.model, self.name, case)


@functools.cache
def known() -> tuple[Layer, ...]:
    """Every layer, model by model."""
    with open(LAYERS, newline="") as file:
        lines = list(csv.DictReader(file))
    return tuple(Layer(x["model"], x["layer"], int(x["N"]), int(x["K"])) for x in lines)


def problems(
    models: Sequence[str] = (), layers: Sequence[str] = (), rows: Sequence[int] = ()
) -> list[Problem]:
    """Layer by layer, the least M first: of these models, layers and M, if any are named.

    ValueError says which word names nothing, and what there is.
    """
    refuse_unknown("model", models, [layer.slug for layer in known()])
    some = [layer for layer in known() if not models or layer.slug in models]
    refuse_unknown("layer", layers, [layer.name for layer in some])
    some = [layer for layer in some if not layers or layer.name in layers]
    return [layer.problem(M) for layer in some for M in sorted(set(rows)) or ROWS]


def options(command: argparse.ArgumentParser) -> None:
    cli.add_list(command, "--model", str, "these alone: llama-3-8b, ...", dest="models")
    cli.add_list(command, "--layer", str, "these alone: qkv, down, ...", dest="layers")
    cli.add_list(command, "--rows", cli.positive, "these M alone, or others: 1,16,100")
    race.add_part(command)
    cli.add_peers(command)


def register(commands) -> None:
    described = (
        "Race tritemm.matmul against cuBLAS on the linear layers of served models, each over "
        "M = 1 ... 4096, in bf16. All of them take about half an hour on one GPU."
    )
    wanted = lambda args: problems(args.models, args.layers, args.rows)  # noqa: E731
    how = {"rounds": 5, "most": 9, "text": text, "short": True}
    Preset("serving", described, EXAMPLES, wanted, options, **how).register(commands)


# Tables

HEAD = ("model", "layer", "N x K", "problems", "x cuBLAS", "least", f"at {ENOUGH} or more")
#: Where peers raced: how many problems, and against the fastest of each.
PEERS_HEAD = ("with peers", "x best peer", "least")
WORST_HEAD = ("the worst", "", "kernel", "µs", "cuBLAS µs", "x cuBLAS (p20-p80)")


def text(rows: list[Row]) -> str:
    return tables.text(parts(rows))


def parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """Every layer, all of them, the worst problems and the null test."""
    found = tables.against_cublas(rows)
    if not found:
        return []
    timed = sorted((r for r in found if r.ratio), key=lambda r: r.ratio.p50)
    worst = Table.of(
        WORST_HEAD, timed[:WORST], tables.RESULT | {"the worst": lambda r: r.id}, words=3
    )
    untimed = tables.unmeasured(result.ours for result in found)
    tail = [untimed, tables.quiet(rows), tables.commands(rows) if selection else ""]
    return [layers_table(rows), worst, *tail]


def by_layer(found: Sequence[Result]) -> dict[tuple[str, str], list[Result]]:
    """Results by model and layer."""
    return tables.grouped(found, lambda r: (r.ours.problem["class"], r.ours.problem["name"]))


def layers_table(rows: list[Row]) -> Table:
    """A line for each layer, and one for all; without what only races against peers have."""
    found, best = tables.against_cublas(rows), {r.id: r for r in tables.results(rows)}
    body = []
    for (model, name), some in by_layer(found).items():
        case = some[0].ours.case
        means = _means(some, lambda r: f"M = {r.ours.case.M}", best)
        body.append((model, name, f"{case.N} x {case.K}", *means))
    body.append(("all", "", "", *_means(found, lambda r: r.id, best)))
    peers = any(row.competitor in PEERS.values() and row.us for row in rows)
    head = HEAD + PEERS_HEAD if peers else HEAD
    return Table(head, [cells[: len(head)] for cells in body], words=3)


def _means(
    found: Sequence[Result], named: Callable[[Result], str], best: dict[str, Result]
) -> tuple[str, ...]:
    """Against cuBLAS, and against the best of the peers where they raced."""
    tally = Tally("", found)
    raced = (best[result.id] for result in tally.timed)
    beside = Tally("", [one for one in raced if one.others.keys() & set(PEERS.values())])
    cells = (tally.count, tally.mean, tally.least_at(named), tally.share(ENOUGH))
    return (*cells, str(len(beside.timed)), beside.mean, beside.least_at(named))


def sentence(rows: Sequence[Row]) -> str:
    """The mean, how many are slower than `ENOUGH`, and the worst, for a headline."""
    tally = Tally("all", tables.against_cublas(rows))
    if not tally.timed:
        return ""
    slower = len(tally.timed) - tally.reached(ENOUGH)
    worst = tally.least.ours
    return (
        f"On {len(tally.timed)} linear layers of models that people serve, with 1 to 4096 rows, it "
        f"runs at {tally.geomean:.2f}x: {slower} of them are below {ENOUGH}x, the worst at "
        f"{tally.least.ratio.p50:.2f}x ({worst.case.size})."
    )


# The picture

#: Inches: the figure; a panel, what lies between two, above the first and below the last.
WIDTH, HEIGHT, BETWEEN, TOP, BOTTOM = 8.0, 1.75, 0.42, 0.78, 0.88
#: Where the axes begin and what their labels take, in the left column and in the right one.
LEFTS, LABELS = (0.45, 4.4), 1.2


def plot_serving(rows: list[Row], selection: Selection | None = None):
    """The ratio to cuBLAS over M, a panel for each model."""
    from matplotlib.figure import Figure

    own = [r for r in figures.measured(tables.against_cublas(rows)) if r.ratio]
    panels: dict[str, dict[str, list[Result]]] = {}
    for (model, layer), found in by_layer(own).items():
        panels.setdefault(model, {})[layer] = sorted(found, key=lambda r: r.ours.case.M)
    lines = (len(panels) + 1) // 2
    height = TOP + BOTTOM + lines * HEIGHT + (lines - 1) * BETWEEN
    figure = Figure(figsize=(WIDTH, height))
    for place, (model, found) in enumerate(panels.items()):
        # What has no neighbour is as wide as two.
        last = WIDTH if place % 2 or place + 1 == len(panels) else LEFTS[1] - LEFTS[0]
        left = LEFTS[place % 2]
        bottom = height - TOP - (place // 2) * (HEIGHT + BETWEEN) - HEIGHT
        box = (left / WIDTH, bottom / height, (last - left - LABELS) / WIDTH, HEIGHT / height)
        _panel(figure.add_axes(box), model, found, [r.ratio.p50 for r in own])
    tally = Tally("", own)
    small = {"fontsize": 8.5, "va": "center"}
    words = f"{figures.called(r.ours for r in own)} over cuBLAS on layers of served models"
    figures.frame(figure, [r.ours for r in own], f"{words}, {rows[0].mode}", 0.02, 0.2)
    words = (
        f"x @ W.T in bf16, cuBLAS (grey) at 1: geomean {tally.mean} of {len(own)} problems, "
        f"{tally.share(ENOUGH).rpartition(', ')[2]} at {ENOUGH} or more; at the lines' ends, theirs"
    )
    figure.text(0.02, 1 - 0.42 / height, words, **small)
    words = "across: M, the rows of x; up: times cuBLAS's speed in the same rounds (arrow: further)"
    figure.text(0.5, 0.5 / height, words, ha="center", **small)
    return figure


def _panel(axes, model: str, found: dict[str, list[Result]], every: Sequence[float]) -> None:
    """A line for each layer, with its name and mean right of the axes, in the order of the ends."""
    figures.plain(axes, 7.5)
    low, high = figures.ratio_axis(axes.yaxis, every, (0.7, 1.6))
    most = 1.1 * max(MOST, *(r.ours.case.M for own in found.values() for r in own))
    figures.octaves(axes.xaxis, {4**i: str(4**i) for i in range(16) if 4**i <= most})
    axes.set_xlim(1 / 1.15, most)
    figures.reference(axes)
    ends = []
    for place, (layer, own) in enumerate(found.items()):
        color, marker = figures.CLASSES[place % len(figures.CLASSES)]
        points = [(r.ours.case.M, min(max(r.ratio.p50, low), high)) for r in own]
        look = {"color": color, "zorder": 3, "mew": 0}
        axes.plot(*zip(*points, strict=True), linewidth=0.9, marker=marker, markersize=2.2, **look)
        for edge, head in ((low, "v"), (high, "^")):
            off = [point for point in points if point[1] == edge]
            arrow = look | {"linestyle": "", "marker": head, "markersize": 5, "clip_on": False}
            axes.plot(*zip(*off, strict=True), **arrow)
        label = f"{layer} {geomean(r.ratio.p50 for r in own):.2f}"
        ends.append((points[-1][1], points[-1][0], label, color))
    beside = 1 + 0.1 / (WIDTH * axes.get_position().width)
    line = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 1.5, "relpos": (0, 0.5)}
    for place, (ratio, size, label, color) in enumerate(sorted(ends)):
        alone = math.log(ratio / low) / math.log(high / low)
        up = (place + 0.5) / len(ends) if len(ends) > 1 else alone
        axes.annotate(
            label, (size, ratio), xytext=(beside, up), textcoords="axes fraction", color=color,
            fontsize=7, va="center", arrowprops=line | {"color": color},
        )  # fmt: skip
    axes.set_title(model, fontsize=9, loc="left", pad=3)


VIEWS = {"serving": View(newest_of("serving", problems), parts, plot_serving, "serving 2")}
