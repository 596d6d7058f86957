"""`python -m perf model`: transformers' models before and after `tritemm.convert`."""

from __future__ import annotations

import argparse

from .. import model_build, model_race, model_report
from ..cli import add_command, add_measurement, argument, list_of, one_of, positive, refuse, say
from ..cli import unable as unable_to_time
from ..engine import Plan
from ..model import CASES, EXPERIMENT, MODELS, MODES, cells
from ..session import Session

ROUNDS, QUICK_ROUNDS, QUICK_LAYERS = 9, 3, 2

EXAMPLES = """
python -m perf model
python -m perf model --models llama --cases train --modes eager,compiled
python -m perf model --quick
python -m perf plot model --out model.png
"""


def register(commands) -> None:
    described = (
        "Race Llama and GPT-2, as they are and after tritemm.convert: prefill, decode, training; "
        "eager, compiled, as CUDA graphs."
    )
    command = add_command(commands, "model", run, described, EXAMPLES)
    for option, known in (("models", MODELS), ("cases", CASES), ("modes", MODES)):
        every = ",".join(known)
        command.add_argument(
            f"--{option}", type=list_of(one_of(*known)), default=every,
            metavar=f"{option[:-1].upper()},...", help=f"default: {every}",
        )  # fmt: skip
    command.add_argument(
        "--layers", type=argument(positive), help="no more than so many; default: the model's"
    )
    command.add_argument(
        "--minutes", type=argument(positive), default=5,
        help="begin no further race after so many; default: %(default)s",
    )  # fmt: skip
    add_measurement(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := unable_to_time("model") or model_build.missing():
        return refuse(reason)
    chosen = (dict.fromkeys(words) for words in (args.models, args.cases, args.modes))
    layers = args.layers or (QUICK_LAYERS if args.quick else None)
    session = Session(args, EXPERIMENT)
    left = model_race.measure(session, list(cells(*chosen, layers)), plan(args), args.minutes)
    if left and not session.interrupted:
        names = ", ".join(cell.id for cell in left)
        say(f"not begun within {args.minutes} minutes (--minutes): {names}")
    return session.finish(lambda races: model_report.text([r for race in races for r in race]))


def plan(args: argparse.Namespace) -> Plan:
    """A step longer than 2 s is not repeated."""
    if args.quick:
        rounds = min(QUICK_ROUNDS, args.rounds)
        return Plan(rounds=rounds, replay=0.02, lead=0.02, settle=0.2, longest=2.0)
    return Plan(rounds=args.rounds, settle=1.0, longest=2.0)
