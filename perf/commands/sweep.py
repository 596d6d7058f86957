"""`python -m perf sweep`: every rung and cuBLAS over squares, over K and over M, as line plots."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tritemm.rungs import RUNGS

from .. import sweep
from ..case import parse_layout
from ..cli import add_command, add_measurement, argument, list_of, one_of, refuse, say, unable
from ..engine import Plan
from ..plots import sweep as plot_sweep
from ..plots.figures import FIGURES
from ..rows import Row, read
from ..session import Session

ROUNDS = 7
QUICK_ROUNDS = 3
#: The sweeps by the names of the command line.
WHAT = {name.lower(): name for name in sweep.SWEEPS}

EXAMPLES = """
python -m perf sweep
python -m perf sweep --what squares,k --layout NN --dtype fp16
python -m perf sweep --what m --only pipelined,persistent --folder pictures
python -m perf sweep --quick --folder pictures
"""


def register(commands) -> None:
    described = (
        "Race the rungs against cuBLAS over sizes, sustained; draw lines with triton.testing."
    )
    command = add_command(commands, "sweep", run, described, EXAMPLES)
    command.add_argument(
        "--what", type=list_of(one_of(*WHAT)), default=",".join(WHAT), metavar="SWEEP,...",
        help="of " + ", ".join(f"{k} ({sweep.SWEEPS[name].title})" for k, name in WHAT.items()),
    )  # fmt: skip
    command.add_argument(
        "--layout", type=argument(parse_layout), default=sweep.LAYOUT, help="NN, NT (default) ..."
    )
    command.add_argument(
        "--dtype", choices=("fp16", "bf16"), default=sweep.DTYPE, help=f"default: {sweep.DTYPE}"
    )
    words = one_of(*(kernel.name for kernel in RUNGS))
    command.add_argument(
        "--only", "--kernel", dest="only", type=list_of(words), default="", metavar="RUNG,...",
        help=f"these rungs (and cuBLAS); default: {sweep.FIRST:02d} and up",
    )  # fmt: skip
    command.add_argument(
        "--folder",
        type=Path,
        help="for pictures and CSV files; default: docs/figures, none with --quick or --out",
    )
    add_measurement(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := unable("sweep"):
        return refuse(reason)
    documented = args.folder is None and args.out is None and not args.quick
    if (args.folder or documented) and (reason := plot_sweep.missing()):
        return refuse(reason)
    names = [WHAT[word] for word in dict.fromkeys(args.what)]
    chosen = {"layout": args.layout, "dtype": args.dtype}
    session = Session(args, "sweep")
    session.measure_roofs()
    races = sweep.tasks(names, only=args.only, quick=args.quick, **chosen)
    session.measure(races, plan(args))
    if args.folder:
        found = [row for race in session.races for row in race]
        show(found, args.folder, names, chosen)
    elif documented:
        show(read(session.out), FIGURES, names, chosen, session.environment.gpu)
    return session.finish(sweep.text)


def plan(args: argparse.Namespace) -> Plan:
    """Many races in a row keep the card hot, so that each can be short."""
    if args.quick:
        return Plan(rounds=min(QUICK_ROUNDS, args.rounds), replay=0.01, lead=0.05, settle=0.2)
    return Plan(rounds=args.rounds, replay=0.02, settle=1.0)


def show(
    rows: Sequence[Row], folder: Path, names: Sequence[str], chosen: dict, gpu: str | None = None
) -> None:
    """Draw the newest of the rows' sweeps and say where."""
    for path in plot_sweep.draw_latest(rows, folder, gpu, names=names, **chosen):
        say(f"wrote {path}")
