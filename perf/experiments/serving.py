"""`python -m perf serving`: `tritemm.matmul` against cuBLAS on layers of served models.

A layer is `x @ W.T`, bf16, W stored [N, K], raced over many M. `serving.csv` has a line per layer,
and from which fields of the model's config its shape is; TP8 is the share of one GPU of eight.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
from collections.abc import Callable, Sequence

from .. import cli, figures, race, tables
from ..case import Case
from ..problems import SUITE, Problem, refuse_unknown
from ..race import Preset
from ..rows import PEERS, Row
from ..tables import Parts, Result, Table, Tally
from ..views import Selection, View, newest_of

LAYERS = SUITE.with_name("serving.csv")
#: The largest M, and those that are multiples of little.
MOST, ODD = 4096, (17, 33, 65, 129, 257, 333, 513, 1001, 2047)
#: The ratio to cuBLAS from which on a difference doesn't matter; how many problems are listed.
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
    cli.add_list(command, "--model", str, "only these models: llama-3-8b, ...", dest="models")
    cli.add_list(command, "--layer", str, "only these layers: qkv, down, ...", dest="layers")
    cli.add_list(command, "--rows", cli.positive, "only these M, which may be others: 1,16,100")
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


def plot_serving(rows: list[Row], selection: Selection):
    """The ratio to cuBLAS over M, a panel for each model and a line for each layer."""
    from matplotlib.figure import Figure

    own = [r for r in figures.measured(tables.against_cublas(rows)) if r.ratio]
    models = tables.grouped(own, lambda r: r.ours.problem["class"])
    lines = (len(models) + 1) // 2
    figure = Figure(figsize=(8, 1.2 + 2.4 * lines), layout="constrained")
    panels = list(figure.subplots(lines, 2, sharey=True, squeeze=False).flat)
    for axes, (model, found) in zip(panels, models.items(), strict=False):
        figures.plain(axes, 7.5)
        figures.reference(axes)
        figures.ratio_axis(axes.yaxis, [r.ratio.p50 for r in own], (0.7, 2.5))
        figures.octaves(axes.xaxis, {4**i: str(4**i) for i in range(7)})
        layers = by_layer(found).items()
        for ((_, layer), some), (color, marker) in zip(layers, figures.CLASSES, strict=False):
            points = sorted((r.ours.case.M, r.ratio.p50) for r in some)
            look = {"color": color, "marker": marker, "markersize": 2.2, "linewidth": 0.9}
            look["label"] = f"{layer} {Tally('', some).geomean:.2f}"
            axes.plot(*zip(*points, strict=True), **look)
        axes.legend(fontsize=6.5, ncols=2, loc="best", framealpha=0.7)
        axes.set_title(model, fontsize=9, loc="left", pad=3)
    for axes in panels[len(models) :]:
        axes.remove()
    tally = Tally("", own)
    figures.title(
        figure,
        f"{figures.called(r.ours for r in own)} over cuBLAS on layers of served models, "
        f"{rows[0].mode}\nover M, the rows of x: geomean {tally.mean} of {len(own)} problems, "
        f"{tally.share(ENOUGH).rpartition(', ')[2]} at {ENOUGH} or more; beside the layers theirs",
        10,
    )
    figures.caption(figure, [r.ours for r in own])
    return figure


VIEWS = {"serving": View(newest_of("serving", problems), parts, plot_serving, "serving 3")}
