"""`python -m perf roofline`: the card's roofs, measured, and the suite's problems on them."""

from __future__ import annotations

import argparse
import functools

from ..cli import add_command, add_measurement, refuse, unable
from ..competitors import cublas
from ..engine import Plan
from ..roofline import at_own_clock, cases, text
from ..rows import recorded
from ..select import latest_run
from ..session import Session, Task
from ..views import full_suite

EXAMPLES = """
python -m perf roofline
python -m perf plot roofline --out roofline.png
"""


def register(commands) -> None:
    described = "Measure the roofs (a copy; a large product of each type) and place the suite."
    command = add_command(commands, "roofline", run, described, EXAMPLES)
    add_measurement(command, rounds=3)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := unable("roofline"):
        return refuse(reason)
    session = Session(args, "roofline")
    session.measure_roofs()
    if session.roofs is None:
        return refuse("the SM clock can't be read: pip install nvidia-ml-py (and see nvidia-smi)")
    made = Plan(rounds=args.rounds, replay=0.02 if args.quick else 0.1, settle=1.0)
    tasks = [Task(case, functools.partial(_field, case)) for case in cases()]
    session.measure(tasks, made, amend=functools.partial(at_own_clock, roofs=session.roofs))
    known = recorded()
    gpu = session.environment.gpu
    suite = latest_run(known, "suite", gpu, competitor="auto", enough=full_suite())
    return session.finish(lambda races: text([row for race in races for row in race], suite))


def _field(case, operands):
    return cublas(case)
