"""`python -m perf regret`: the dispatcher's choice against the best that a search finds."""

from __future__ import annotations

import argparse
import dataclasses
import random
from collections.abc import Sequence

from ..cli import (
    add_command,
    add_gpus,
    add_measurement,
    argument,
    positive,
    refuse,
    say,
    shared_out,
    unable,
    unshared,
)
from ..engine import Competitor, Plan
from ..operands import Operands
from ..problems import Problem, random_problems
from ..regret import EXPERIMENT, field, text
from ..search import Searches, Task
from ..session import Session
from ..session import Task as Race
from .search import add_search, tasks_of, workers

#: As `commands.suite`'s, with a shorter lead: the competitors draw much the same power.
PLAN = Plan(replay=0.02, lead=0.03, longest=5.0)
ROUNDS, MOST = 5, 8
#: The seed of problems that nothing was fitted to.
SEED = 11

EXAMPLES = """
python -m perf regret
python -m perf regret --n 20 --seed 12 --best 3 --all
python -m perf regret --n 200 --gpus 4
"""


def register(commands) -> None:
    described = "Race the dispatcher's choice against the best configs of a search."
    command = add_command(commands, "regret", run, described, EXAMPLES)
    add = command.add_argument
    add("--n", type=argument(positive), default=60, help="random problems; default: 60")
    add("--best", type=argument(positive), default=5, help="of each search; default: 5")
    add_search(command)
    add_gpus(command)
    add_measurement(command, ROUNDS)
    command.set_defaults(seed=SEED)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed.

    3 where a CUDA error ended it.
    """
    if reason := unable(EXPERIMENT) or unshared(args):
        return refuse(reason)
    problems = random_problems(args.n, args.seed)
    session = Session(args, EXPERIMENT, part=args.part)
    if shared_out(args):
        failed = session.gather([problem.id for problem in problems])
    else:
        failed = measure(session, args.part.share(problems) if args.part else problems)
    return session.finish(lambda races: text([row for race in races for row in race])) or failed


def measure(session: Session, problems: Sequence[Problem]) -> int:
    """Search and race problem after problem; 0, or 3 where a CUDA error ended it."""
    args = session.args
    within = None if args.all else args.within
    known = {problem.case: problem for problem in problems}
    tasks = tasks_of(known, "auto", within)
    rng = random.Random(args.seed)
    plan = dataclasses.replace(PLAN, rounds=args.rounds, most=max(MOST, args.rounds))
    if args.quick:
        plan = dataclasses.replace(plan, rounds=3, most=None, replay=0.01, settle=0.2)
    session.measure_roofs()
    with Searches(tasks, workers(args)) as searches:
        races = [
            Race(task.case, _field(searches, index, rng, args.best), known[task.case].to_json())
            for index, task in enumerate(tasks)
        ]
        try:
            session.measure(races, plan)
        except RuntimeError as error:  # a CUDA error: nothing more can be launched
            say(f"the measurement ends: {' '.join(str(error).split())[:300]}")
            return 3
    return 0


def _field(searches: Searches, index: int, rng: random.Random, best: int):
    """Who races on a task: known once it is searched, just before its race."""

    def entrants(operands: Operands) -> list[Competitor]:
        task: Task = searches.tasks[index]
        found = searches.run(index, rng, say)
        return field(task, found, operands, best)

    return entrants
