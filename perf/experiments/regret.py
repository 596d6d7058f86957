"""`python -m perf regret`: the dispatcher's choice against the best that a search finds."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
from collections.abc import Sequence

from tritemm.spec import Config

from .. import cli, searches, session, tables
from ..competitors import Candidate, matmul
from ..engine import Bench, Competitor, Plan
from ..operands import Operands
from ..problems import Problem, random_problems
from ..rows import Row
from ..searches import Result, Searches, Task, tasks_of
from ..stats import geomean
from ..tables import Parts, Table, median, us
from ..views import ENOUGH, Selection, View, latest_of

#: The competitor that is judged: what `tritemm.matmul` runs by default.
CHOICE = "auto"
#: As `suite`'s, with a shorter lead: the competitors draw much the same power.
PLAN = Plan(replay=0.02, lead=0.03, longest=5.0)
ROUNDS, MOST = 5, 8
#: The seed of problems that nothing was fitted to.
SEED = 11
#: A choice is as good as the best within these.
GOOD, FAIR = 1.03, 1.10

EXAMPLES = """
python -m perf regret
python -m perf regret --n 20 --seed 12 --best 3 --all
python -m perf regret --seed 71,72,73 --within 1.12 --best 3
"""


def register(commands) -> None:
    described = "Race the dispatcher's choice against the best configs of a search."
    command = cli.add_command(commands, "regret", run, described, EXAMPLES)
    add, count = command.add_argument, cli.argument(cli.positive)
    add("--n", type=count, default=ENOUGH, help=f"random problems per seed; default: {ENOUGH}")
    told = "how many of the best configs of each search to race; default: 5"
    add("--best", type=count, default=5, help=told)
    searches.add_search(command)
    cli.add_measurement(command, ROUNDS, seeds=(SEED,))


def run(args: argparse.Namespace) -> int:
    """The status is that of `session.run`; 3 where a CUDA error ended it."""
    if not args.seeds:
        return cli.refuse("--seed names none")
    args.seed = args.seeds[0]  # of the data and of the order
    problems = [problem for seed in args.seeds for problem in random_problems(args.n, seed)]
    return session.run(args, "regret", lambda there: measure(there, problems), text)


def measure(there: session.Session, problems: Sequence[Problem]) -> int:
    """Search and race problem after problem; 0, or 3 where a CUDA error ended it."""
    args = there.args
    known = {problem.case: problem for problem in problems}
    tasks = tasks_of(known, None if args.all else args.within)
    rng = random.Random(args.seed)
    there.measure_roofs()

    def entrants(index: int, there: Bench) -> list[Competitor]:
        """The competitors, known once the task is searched, just before its race."""
        results = searcher.run(index, rng, cli.say)
        return field(tasks[index], results, there.sets[0], args.best)

    with Searches(tasks, args.workers) as searcher:
        races = [
            session.Task(task.case, functools.partial(entrants, index), known[task.case])
            for index, task in enumerate(tasks)
        ]
        try:
            there.measure(races, session.planned(args, PLAN, MOST))
        except RuntimeError as error:  # a CUDA error: nothing more can be launched
            cli.say(f"the measurement ends: {cli.short(error)}")
            return 3
    return 0


def field(task: Task, results: Sequence[Result], operands: Operands, best: int) -> list[Competitor]:
    """The choice, the `best` of the search that are something else, and cuBLAS."""
    names = [r.name for r in searches.timed(results) if r.name != task.chosen][:best]
    chosen, *references = matmul(task.case, operands, [CHOICE])
    known = {option.name: option for option in task.options}
    others = [task.competitor(known[name]) for name in names]
    return [dataclasses.replace(chosen, rivals=tuple(names)), *others, *references]


class Regret(tables.Result):
    """The choice, and the others of its race."""

    @property
    def value(self) -> float:
        """The choice's time over the fastest one's, the one with the least median time.

        Within rounds; 1 where the choice is the fastest, or its rounds say so.
        """
        if not self.best or self.others[self.best].us.p50 >= self.ours.us.p50:
            return 1.0
        return max(1.0, 1 / self.ratio.p50)


def regrets(rows: Sequence[Row]) -> list[Regret]:
    """The regret of each problem with a measured choice, the largest first."""
    found = []
    for race in tables.raced(rows, lambda row: (row.time, row.case)).values():
        if (choice := race.get(CHOICE)) and choice.us:
            others = {name: race[name] for name in choice.versus or {} if name in race}
            found.append(Regret(choice, others))
    return sorted(found, key=lambda r: -r.value)


def text(rows: Sequence[Row]) -> str:
    """Every problem, the largest regret first, and the summary, for a terminal."""
    found = regrets(rows)
    return tables.text([_table(found), _summary(found)] if found else [])


def parts(rows: list[Row], selection: Selection) -> Parts:
    """The summary of each class, and the problems with the largest regret."""
    found = regrets(rows)
    worst = [r for r in found if r.value > 1][:10]
    return [_summary(found), _table(worst) if worst else "", tables.commands(rows)]


def _summary(found: Sequence[Regret]) -> Table:
    """A line per class and, where they are several, per seed, and one for all."""
    head = ("class", "problems", "geomean", "largest", "within 3 %", "within 10 %")
    body = []
    seeds = tables.grouped(found, lambda regret: regret.id.partition("-")[0])
    *classes, whole = tables.tallies(found)
    if len(seeds) > 1:
        classes += [tables.Tally(f"seed {seed}", own) for seed, own in seeds.items()]
    for tally in (*classes, whole):
        own = [regret.value for regret in tally.results]
        most = f"{max(own):.3f} ({tally.results[own.index(max(own))].id})"
        counts = (sum(v <= GOOD for v in own), sum(v <= FAIR for v in own), own.count(1))
        body.append((tally.name, str(len(own)), f"{geomean(own):.4f}", most, *map(str, counts)))
    return Table((*head, "choice is best"), body)


def _table(found: Sequence[Regret]) -> Table:
    head = ("problem", "", "regret", "µs", "x cuBLAS", "chosen", "fastest")
    body = [
        (r.id, str(r.ours.case), f"{r.value:.3f}", us(r.ours), median(r.ours.ratio),
         _named(r.ours), _named(r.others[r.best]) if r.value > 1 else "the same")
        for r in found
    ]  # fmt: skip
    return Table(head, body, words=2)


def _named(row: Row) -> str:
    """The rung and its config."""
    return Candidate(row.rung, Config(**row.config)).name if row.config else row.competitor


VIEWS = {"regret": View(latest_of("regret", lambda: ENOUGH), parts)}
