"""`python -m perf table | plot`: recorded rows as Markdown and as pictures; no GPU is needed."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..case import parse_layout, parse_size
from ..cli import TYPES, add_command, argument, refuse
from ..plots.figures import missing
from ..rows import Row, read, recorded
from ..views import PICTURES, TABLES, Selection, View

TABLE_EXAMPLES = """
python -m perf table ladder --size 8192 --layout NN
python -m perf table compare --accumulate fp16
python -m perf table problems --mode burst
python -m perf table --write
"""
PLOT_EXAMPLES = """
python -m perf plot suite --out suite.png
python -m perf plot ladder --size 8192 --layout NN --out ladder.svg
python -m perf plot --write
"""


def register(commands) -> None:
    for name, run, views, text, examples in (
        ("table", table, TABLES, "Print recorded rows as Markdown.", TABLE_EXAMPLES),
        ("plot", plot, PICTURES, "Draw recorded rows.", PLOT_EXAMPLES),
    ):
        command = add_command(commands, name, run, text, examples)
        command.add_argument("what", nargs="?", choices=views, default="ladder")
        command.add_argument(
            "--write", action="store_true", help="renew all of the documentation's instead"
        )
        command.add_argument("--results", type=Path, help="default: all of perf/results")
        command.add_argument("--gpu", help="default: that of the newest row")
        command.add_argument("--mode", choices=("sustained", "burst"), default="sustained")
        command.add_argument("--kernel", default="auto", help="of suite and random")
        command.add_argument("--size", type=argument(parse_size), help="of a ladder; default: 4096")
        command.add_argument("--layout", type=argument(parse_layout), help="default: NT")
        command.add_argument("--dtype", choices=TYPES, help="default: the view's own")
        command.add_argument("--accumulate", help="default: the type's own")
        command.add_argument("--precision", default="ieee", help="how fp32 is multiplied")
        if views is PICTURES:
            command.add_argument("--out", type=Path, help=".png or .svg; default: WHAT.png")


def table(args: argparse.Namespace) -> int:
    """0, or 2 with a sentence if there is nothing to show."""
    if args.write:
        from docs import generate  # which takes its tables from perf

        return generate.write_texts()
    view = TABLES[args.what]
    try:
        lists = view.chosen(_rows(args), _selection(args))
    except OSError as error:
        return refuse(str(error))
    if lists is None:
        return refuse("no recorded row matches")
    print(view.table(*lists, _selection(args)))
    return 0


def plot(args: argparse.Namespace) -> int:
    """0, or 2 with a sentence if there is nothing to draw, or nothing to draw with."""
    view: View = PICTURES[args.what]
    if reason := missing():
        return refuse(reason)
    try:
        if args.write:
            from docs import generate

            return generate.write_figures()
        lists = view.chosen(_rows(args), _selection(args))
        if lists is None:
            return refuse("no recorded row matches")
        out = args.out or Path(f"{args.what}.png")
        view.draw(*lists, out, _selection(args))
    except (OSError, ValueError) as error:
        return refuse(str(error))
    print(out)
    return 0


def _rows(args: argparse.Namespace) -> list[Row]:
    return read(args.results) if args.results else recorded()


def _selection(args: argparse.Namespace) -> Selection:
    return Selection(
        gpu=args.gpu,
        size=args.size,
        layout=args.layout,
        dtype=args.dtype,
        accumulate=args.accumulate,
        precision=args.precision,
        mode=args.mode,
        competitor=args.kernel,
    )
