"""`python -m perf serving`: `tritemm.matmul` against cuBLAS on layers of served models."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from concurrent.futures import Future

from tritemm.compile.pool import Compiled, Compilers

from .. import serving_report
from ..ahead import chosen
from ..bench import BENCHES
from ..case import Case
from ..cli import (
    add_command,
    add_gpus,
    add_measurement,
    argument,
    list_of,
    positive,
    refuse,
    shared_out,
    unable,
    unshared,
)
from ..engine import Competitor, Plan
from ..operands import Operands
from ..peers import against
from ..problems import Problem
from ..roof import Roof
from ..search import HUNGRY
from ..serving import EXPERIMENT, part, problems
from ..session import Session, Task
from .search import workers
from .suite import PLAN, add_peers, plan

#: Where memory limits, the clock that a longer lead would wait for hardly matters.
SHORT = Plan(replay=0.015, lead=0.02, longest=PLAN.longest)
ROUNDS, MOST = 5, 9

EXAMPLES = """
python -m perf serving --out serving.jsonl
python -m perf serving --part 1/4 --out serving.jsonl
python -m perf serving --model llama-3-8b,deepseek-v3 --layer qkv,o,router
python -m perf serving --rows 1,16,64,256 --quick
python -m perf serving --layer down --peers lt --out serving.jsonl
python -m perf serving --gpus 4
"""


def register(commands) -> None:
    described = (
        "Race tritemm.matmul against cuBLAS on the linear layers of served models, each over "
        "M = 1 ... 4096, in bf16. All of them take about half an hour on one GPU."
    )
    command = add_command(commands, "serving", run, described, EXAMPLES)
    command.add_argument(
        "--model", dest="models", type=list_of(str), default="", metavar="MODEL,...",
        help="these alone: llama-3-8b, deepseek-v3, ...",
    )  # fmt: skip
    command.add_argument(
        "--layer", dest="layers", type=list_of(str), default="", metavar="LAYER,...",
        help="these alone: qkv, down, ...",
    )  # fmt: skip
    command.add_argument(
        "--rows", type=list_of(positive), default="", metavar="M,...",
        help="these M alone, or others: 1,16,100",
    )  # fmt: skip
    command.add_argument(
        "--part", dest="share", type=argument(part), default="1/1", metavar="K/N",
        help="every N-th problem from the K-th on, to measure all in N sittings",
    )  # fmt: skip
    add_peers(command)
    command.add_argument("--mode", choices=BENCHES, default="sustained")
    add_gpus(command)
    add_measurement(command, ROUNDS)
    command.set_defaults(workers=None)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`, or else of a process that failed."""
    try:
        wanted = problems(args.models, args.layers, args.rows)
    except ValueError as error:
        return refuse(str(error))
    mine = wanted[args.share]
    if not mine:
        return refuse(f"--part: there are only {len(wanted)} problems to share out")
    if reason := unable("serving") or unshared(args):
        return refuse(reason)
    session = Session(args, EXPERIMENT, args.mode, args.part)
    failed = 0
    if shared_out(args):
        failed = session.gather([problem.id for problem in mine])
    else:
        race(session, args.part.share(mine) if args.part else mine)
    told = serving_report.text
    return session.finish(lambda races: told([row for race in races for row in race])) or failed


def race(session: Session, mine: Sequence[Problem]) -> None:
    """Measure, while other processes compile the kernels of what comes later."""
    args = session.args
    long, short = (plan(args, MOST, base) for base in (PLAN, SHORT))
    with Compilers(workers(args)) as compilers:
        compiled = [compilers.submit(chosen(problem.case)) for problem in mine]
        session.measure_roofs()
        tasks = []
        for problem, future in zip(mine, compiled, strict=True):
            roof = session.roofs and session.roofs.of(problem.case)
            own = long if hungry(problem.case, roof) else short
            among = functools.partial(field, problem.case, future, args.peers)
            tasks.append(Task(problem.case, among, problem.to_json(), plan=own))
        session.measure(tasks, long)


def hungry(case: Case, roof: Roof | None) -> bool:
    """Whether power may limit the speed, at that of the roof; true where the roof isn't known.

    Not only where arithmetic takes longer: 128 x 4096 x 4096 takes all of an H200's power.
    """
    return roof is None or case.flops / roof.floor(case) * 1e6 > HUNGRY


def field(
    case: Case, compiled: Future[Compiled], peers: Sequence[str], operands: Operands
) -> list[Competitor]:
    """Who races, once the kernel is compiled; what does not compile fails again, and says why."""
    compiled.result()
    return against(case, operands, ["auto"], peers)
