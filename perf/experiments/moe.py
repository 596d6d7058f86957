"""`python -m perf moe`: products of groups, of the layers of experts of five models.

Each layer has an `up` product (gate and up in one) and a `down` one, and each of these three:
`forward`, tokens by weights stored [experts, N, K]; `data`, their gradient; and `weight`, the
weights', whose K is cut. `competitors.grouped` says who races.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from .. import cli, figures, race, tables
from ..case import Case
from ..groups import MODELS, SIZES, Groups
from ..peers import QUACK
from ..problems import Problem
from ..race import Preset
from ..rows import DENSE, REFERENCE, Row
from ..stats import geomean
from ..tables import Parts, Result, Table, Tally, digits
from ..views import Selection, View, newest_of

LAYERS, PRODUCTS = ("up", "down"), ("forward", "data", "weight")
TOKENS = (32, 512, 4096, 32768)
SCALINGS = ("row", "block")
#: Problems that are listed one by one.
WORST = 8

EXAMPLES = """
python -m perf moe --limit 60 --minutes 9
python -m perf moe --part 1/6 --peers quack --out moe.jsonl
python -m perf moe --model deepseek-v3 --product weight --tokens 4096 --sizes zipf,empty
python -m perf moe --model deepseek-v3 --tokens 4096 --scaling row,block
"""


def case(
    model: str, layer: str, product: str, tokens: int, sizes: str, scaling: str | None = None
) -> Case:
    of = MODELS[model]
    rows, cut = tokens * of.top, "k" if product == "weight" else "m"
    N, K = (2 * of.width, of.hidden) if layer == "up" else (of.hidden, of.width)
    forward, data, weight = (rows, N, K, "NT"), (rows, K, N, "NN"), (N, K, rows, "TN")
    dimensions = {"forward": forward, "data": data, "weight": weight}[product]
    groups = Groups(cut, of.experts, of.top, sizes)
    if scaling is None:
        return Case(*dimensions, groups=groups)
    # The tensor cores read 8 bits along K alone, so `quantize` stores all of it along K.
    return Case(*dimensions[:3], "NT", "fp8", groups=groups, scaling=scaling)


def problems(
    models=MODELS, layers=LAYERS, products=PRODUCTS, tokens=TOKENS, sizes=SIZES, scalings=(None,)
) -> list[Problem]:
    """Those of all these models, layers and products, model by model; by default 360."""
    return [
        Problem(
            "/".join(str(word) for word in one if word),
            MODELS[one[0]].title,
            " ".join(one[1:3]),
            case(*one),
        )
        for one in itertools.product(models, layers, products, tokens, sizes, scalings)
    ]


def drawn(args: argparse.Namespace) -> list[Problem]:
    """The selected problems, in an order drawn by the seed, so that the first are a sample."""
    scalings = args.scaling or (None,)
    found = problems(args.model, args.layer, args.product, args.tokens, args.sizes, scalings)
    random.Random(args.seed).shuffle(found)
    return found[: args.limit]


def options(command: argparse.ArgumentParser) -> None:
    cli.add_choices(command, "--model", MODELS)
    cli.add_choices(command, "--layer", LAYERS)
    cli.add_choices(command, "--product", PRODUCTS)
    cli.add_choices(command, "--tokens", TOKENS, cli.positive)
    cli.add_choices(command, "--sizes", SIZES)
    told = "race fp8 with these scales (row, block) instead: tritemm.scaled_grouped_mm"
    cli.add_list(command, "--scaling", cli.one_of(*SCALINGS), told)
    count = cli.argument(cli.positive)
    command.add_argument("--limit", type=count, help="most problems to race, drawn by --seed")
    command.add_argument("--minutes", type=count, default=float("inf"), help="time limit")
    race.add_part(command)
    cli.add_list(
        command, "--peers", cli.one_of("quack"), "also race the fastest of quack's configs"
    )


def register(commands) -> None:
    described = (
        "Race tritemm.grouped_mm against torch._grouped_mm on layers of experts, and for equal "
        "groups also against dense products of as many operations. With --scaling, race fp8. All "
        "360 problems take about an hour."
    )
    how = {"rounds": 5, "most": 9, "text": text, "short": True}
    Preset("moe", described, EXAMPLES, drawn, options, **how).register(commands)


# The table

HEAD = ("product", "tokens", "problems", "x torch", "least", "TFLOP/s", "torch's")
HEAD += ("x torch.mm", "x tritemm.matmul", "with quack", "x best peer", "least")
WORST_HEAD = ("the worst", "", "kernel", "µs", "torch µs", "x torch (p20-p80)")
CELLS = tables.RESULT | {
    "the worst": lambda result: result.id,
    "x torch (p20-p80)": tables.RESULT["x cuBLAS (p20-p80)"],
}
MEANS = (
    "Ratios and speeds are geomeans. Each number of tokens of a product has the same weight, "
    "however many of its problems were raced. "
)
DRAWN = "zipf: expert r is chosen in proportion to 1 / r; empty: half of the experts get nothing."
METHOD = (
    f"{MEANS}x torch: torch._grouped_mm's time over tritemm.grouped_mm's. x torch.mm, x "
    "tritemm.matmul: the time of a dense product of as many operations over that of equal groups. "
    f"x best peer: the time of the faster of torch and quack over tritemm's. {DRAWN}"
)
SCALED = (
    f"{MEANS}Sums of fp8 are promoted. x torch: torch._scaled_grouped_mm's time over "
    "tritemm.scaled_grouped_mm's; torch has only row scales. x torch.mm, x tritemm.matmul: the "
    "time of a dense product with such scales, by torch._scaled_mm and tritemm.scaled_mm, over "
    f"that of groups: of equal groups, or with block scales of any groups. {DRAWN}"
)


def text(rows: list[Row]) -> str:
    return tables.text(parts(rows))


def results(rows: Sequence[Row]) -> list[Result]:
    """Against torch's and the peers' products of groups."""
    mine = tables.tritemms(rows)
    return tables.results(rows, others=lambda name: not (name.startswith(DENSE) or name in mine))


def parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A table of what has no scales, and one for each kind of scales."""
    found = tables.grouped(rows, lambda row: row.case.scaling or "")
    return [part for word in sorted(found) for part in _parts(found[word], word, selection)]


def _parts(rows: list[Row], scaling: str, selection: Selection | None) -> Parts:
    """A line for each product and number of tokens, for each kind of sizes, and for all."""
    if not (found := results(rows)):
        return []
    tokens = [*map(str, TOKENS), "all"]
    keys = [*itertools.product(PRODUCTS, tokens), *(("all", s) for s in SIZES), ("all",)]
    body = []
    for key in keys:  # words of ids, and "all", which is of every product
        own = [r for r in found if {*key} <= {"all", *r.id.split("/")}]
        body += [[*(*key, "")[:2], *_means(own)]] if own else []
    timed = sorted((r for r in found if r.ours.ratio), key=lambda r: r.ours.ratio.p50)
    worst = Table.of(WORST_HEAD, timed[:WORST], CELLS, words=3)
    method = f"Each {scaling} has a scale. {SCALED}" if scaling else METHOD
    end = f"{method} {tables.commands(rows)}." if selection else ""
    return [Table(HEAD, body), worst, *tables.notes(found), tables.quiet(rows, "torch"), end]


def _means(found: Sequence[Result]) -> tuple[str, ...]:
    """The cells of some problems from `problems` on."""
    torchs = Tally("", found).to_reference
    beside = Tally("", [r for r in found if _versus(r, QUACK)])
    return (
        *(torchs.count, _mean(torchs.timed, _ratio), torchs.least_at()),
        _mean(found, lambda result: result.ours.tflops, digits),
        _mean(found, lambda result: getattr(result.others.get(REFERENCE), "tflops", None), digits),
        *(_mean(found, lambda r, n=name: _versus(r, DENSE + n)) for name in (REFERENCE, "auto")),
        *(str(len(beside.timed)), _mean(beside.timed, _ratio), beside.least_at()),
    )


def _ratio(result: Result) -> float:
    return result.ratio.p50


def _versus(result: Result, name: str) -> float | None:
    ratio = (result.ours.versus or {}).get(name)
    return ratio and ratio.p50


def _mean(found: Iterable[Result], value: Callable, form="{:.3f}".format) -> str:
    """The geomean of what is known, in which each number of tokens of a product counts alike."""
    known = {result.id: value(result) for result in found}
    return form(alike(known)) if any(known.values()) else ""


def alike(values: Mapping[str, float | None]) -> float:
    """The geomean of numbers by the ids of problems: first of a product and a number of tokens."""
    cells: dict[tuple[str, ...], list[float]] = {}
    for name, value in values.items():
        if value:
            cells.setdefault(tuple(name.split("/")[2:4]), []).append(value)
    return geomean(map(geomean, cells.values()))


# The picture


def plot_moe(rows: list[Row], selection: Selection):
    """The ratio to torch's over tokens: a line for each model, a panel for product and sizes."""
    from matplotlib.figure import Figure

    own = [result for result in figures.measured(tables.against_cublas(rows)) if result.ratio]
    ratios = {result.id: result.ratio.p50 for result in own}
    figure = Figure(figsize=(8, 7.5), layout="constrained")
    panels = figure.subplots(len(PRODUCTS), len(SIZES), sharex=True, sharey=True).flat
    for axes, (product, sizes) in zip(panels, itertools.product(PRODUCTS, SIZES), strict=True):
        figures.plain(axes, 7.5)
        figures.reference(axes)
        figures.ratio_axis(axes.yaxis, list(ratios.values()), (0.5, 4.0))
        figures.octaves(axes.xaxis, {count: str(count) for count in TOKENS})
        axes.set_title(f"{product}, {sizes}", fontsize=9, loc="left", pad=3)
        for model, (color, marker) in zip(MODELS, figures.CLASSES, strict=False):
            line = []
            for tokens in TOKENS:
                ids = [p.id for p in problems([model], LAYERS, [product], [tokens], [sizes])]
                known = [ratios[key] for key in ids if key in ratios]
                line.append(geomean(known))  # NaN of none, which is not drawn
            look = {"color": color, "marker": marker, "markersize": 3, "linewidth": 0.9}
            axes.plot(TOKENS, line, label=MODELS[model].title, **look)
    lines = figure.axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside right center", fontsize=7, frameon=False)
    figures.title(
        figure,
        f"tritemm.grouped_mm over torch._grouped_mm, {rows[0].mode}, over tokens; up and down "
        f"together.\nGeomean {alike(ratios):.3f} of {len(own)} problems",
        10,
    )
    figures.caption(figure, [result.ours for result in own])
    return figure


VIEWS = {
    "moe": View(newest_of("moe", problems), parts, plot_moe, "moe 1"),
    "scaled moe": View(
        newest_of("scaled moe", functools.partial(problems, scalings=SCALINGS)), parts
    ),
}
