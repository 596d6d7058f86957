"""`python -m perf table | plot`: recorded rows as Markdown and as pictures; no GPU is needed."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from .. import cli, figures, rungs
from ..case import parse_layout, parse_size
from ..rows import read, recorded
from ..views import Selection
from . import (
    errors,
    experts,
    host,
    joules,
    model,
    moe,
    peers,
    race,
    regret,
    roofline,
    serving,
    suite,
    sweep,
)

#: Every view by name.
VIEWS = {
    name: view
    for module in (
        *(rungs, suite, peers, serving, moe, experts, roofline, regret, race, host, joules),
        *(model, sweep, errors),
    )
    for name, view in module.VIEWS.items()
}
TABLES = {name: view for name, view in VIEWS.items() if view.parts}
PICTURES = {name: view for name, view in VIEWS.items() if view.figure}

TABLE_EXAMPLES = """
python -m perf table ladder --size 8192 --layout NN
python -m perf table compare --accumulate fp16
python -m perf table problems
"""
PLOT_EXAMPLES = """
python -m perf plot suite --out suite.png
python -m perf plot ladder --size 8192 --layout NN --out ladder.svg
"""


def register(commands) -> None:
    for name, run, views, text, examples in (
        ("table", table, TABLES, "Print recorded rows as Markdown.", TABLE_EXAMPLES),
        ("plot", plot, PICTURES, "Draw recorded rows.", PLOT_EXAMPLES),
    ):
        command = cli.add_command(commands, name, run, text, examples)
        add = command.add_argument
        add("what", nargs="?", choices=views, default="ladder")
        add("--results", type=Path, help="file of rows; default: all of perf/results")
        add("--gpu", help="rows of this GPU; default: that of the newest row")
        told = "how it was measured; default: sustained"
        add("--mode", choices=("sustained", "burst"), default="sustained", help=told)
        told = "what matmul was given as kernel= in suite and random; default: auto"
        add("--kernel", dest="competitor", default="auto", help=told)
        add("--size", type=cli.argument(parse_size), help="size of a ladder; default: 4096")
        add("--layout", type=cli.argument(parse_layout), help="layout of a ladder; default: NT")
        add("--dtype", choices=cli.TYPES, help="type of the operands; default: the view's own")
        add("--accumulate", help="type of the sums; default: the operand type's own")
        add("--precision", default="ieee", help="how fp32 was multiplied; default: ieee")
        if views is PICTURES:
            add("--out", type=Path, help="a .png or .svg file; default: WHAT.png")


def table(args: argparse.Namespace) -> int:
    """0, or 2 with a sentence if there is nothing to show."""
    return _shown(args, lambda view, rows, selection: view.table(rows, selection))


def plot(args: argparse.Namespace) -> int:
    """0, or 2 with a sentence if there is nothing to draw, or nothing to draw with."""
    if reason := figures.missing():
        return cli.refuse(reason)
    out = args.out or Path(f"{args.what}.png")
    return _shown(args, lambda view, rows, selection: view.draw(rows, out, selection))


def _shown(args: argparse.Namespace, show) -> int:
    view, selection = VIEWS[args.what], _selection(args)
    try:
        rows = list(read(args.results) if args.results else recorded())
        gpus = sorted({row.environment.gpu for row in rows})
        if args.gpu not in (None, *gpus):
            return cli.refuse(
                f"no row is of a GPU called {args.gpu!r}; there are {', '.join(gpus)}"
            )
        rows = view.chosen(rows, selection)
        if not rows:
            return cli.refuse("no recorded row matches")
        shown = show(view, rows, selection)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    print(shown)
    return 0


def _selection(args: argparse.Namespace) -> Selection:
    return Selection(**{f.name: getattr(args, f.name) for f in dataclasses.fields(Selection)})
