"""Races of many products, as data: `race`, and the presets `suite`, `random`, `serving`.

A `Preset` lists problems; who races on each follows from the problem and the options, how long from
the roof. All of them are measured and recorded in the same way.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from tritemm.compile.pool import Item

from . import cli, session, tables
from .case import Case
from .competitors import chosen, invariant
from .engine import Competitor, Plan
from .operands import Operands
from .peers import against
from .problems import INT4, LINEAR, SCALED, Problem
from .roof import Roof
from .rows import Row
from .ways import COMPILED, ways

#: Many races in a row keep the card hot, so that each can be shorter than a lone one; where memory
#: limits, the clock that a longer lead would wait for hardly matters.
PLAN = Plan(replay=0.02, longest=5.0)
SHORT = dataclasses.replace(PLAN, replay=0.015, lead=0.02)
#: FLOP per second from which on power may limit the clock.
HUNGRY = 2.5e14
#: Rows of these races are experiments of their own, so that no table takes them for a usual run.
WITH_PEERS = {"suite": "peers", "random": "random peers"}
OF_FILES = {LINEAR: "linear", SCALED: "scaled", INT4: "int4"}


def text(rows: list[Row]) -> str:
    """Products alone, those with scales, and those with an ending, by who their reference is."""
    kinds = tables.grouped(rows, lambda row: (bool(row.case.ending), bool(row.case.scaling)))
    return tables.text([part for kind in sorted(kinds) for part in tables.report(kinds[kind])])


@dataclasses.dataclass(frozen=True)
class Preset:
    """A command: `problems` are what its arguments name, `text` is printed of the rows.

    `options` adds its own arguments. Problems take `rounds` at least, and up to `most` where that
    is not precise enough. `short`: what is bound by memory is measured by `SHORT`.
    """

    name: str
    help: str
    examples: str
    problems: Callable[[argparse.Namespace], list[Problem]]
    options: Callable[[argparse.ArgumentParser], None]
    rounds: int
    most: int
    text: Callable[[list[Row]], str] = text
    short: bool = False

    def register(self, commands) -> None:
        command = cli.add_command(commands, self.name, self.run, self.help, self.examples)
        asked = {"kernels": ["auto"], "peers": [], "scaling": [], "compiled": list(COMPILED)}
        command.set_defaults(**asked, batch_invariant=False, share=slice(None), minutes=math.inf)
        self.options(command)
        cli.add_measurement(command, self.rounds, modes=True)

    def run(self, args: argparse.Namespace) -> int:
        try:
            wanted = self.problems(args)
        except (OSError, ValueError) as error:
            return cli.refuse(error)
        problems, experiment = wanted[args.share], self.name
        if not problems:
            return cli.refuse(f"--part: there are only {len(wanted)} problems to share out")
        if self.name == "race":
            experiment = OF_FILES.get(args.file.resolve(), self.name)
        if args.scaling:
            experiment = f"scaled {experiment}"
        if args.peers:
            experiment = WITH_PEERS.get(experiment, experiment)
        if args.batch_invariant:
            experiment = "invariant"
            if args.peers:
                return cli.refuse("--batch-invariant races auto and cuBLAS: leave --peers out")
            if args.kernels != ["auto"]:
                return cli.refuse("--batch-invariant chooses the kernel itself: leave --kernel out")

        def measure(there: session.Session) -> None:
            there.measure_roofs()
            among = functools.partial(field, args)
            tasks = []
            for each in problems:
                short = self.short and not hungry(each.case, there.roofs)
                plan = session.planned(args, SHORT if short else PLAN, self.most)
                tasks.append(session.Task.of(each, among, items=items(args, each.case), plan=plan))
            there.measure(tasks, PLAN, args.minutes)

        return session.run(args, self.name, measure, self.text, experiment)


def field(args: argparse.Namespace, case: Case, operands: Operands) -> Sequence[Competitor]:
    """The competitors on a case: a product alone, or one that something follows."""
    if case.ending:
        return ways(case, operands, args.compiled)
    if args.batch_invariant:
        return invariant(case, operands)
    return against(case, operands, args.kernels, args.peers)


def items(args: argparse.Namespace, case: Case) -> list[Item]:
    """What Triton has to compile, known before the race."""
    if case.ending or "auto" not in args.kernels:
        return []
    try:
        return chosen(case)
    except (NotImplementedError, ValueError):  # what is refused has nothing to compile
        return []


def hungry(case: Case, roofs) -> bool:
    """Whether power may limit the speed, at that of the roof; true where the roof isn't known.

    Not only if arithmetic takes longer: 128 x 4096 x 4096 takes all of an H200's power.
    """
    roof: Roof | None = roofs and roofs.of(case)
    return roof is None or case.flops / roof.floor(case) * 1e6 > HUNGRY


def part(text: str) -> slice:
    """A part of a list: `2/4` is its second item and every fourth after that. Raises ValueError."""
    index, _, of = text.partition("/")
    if not (index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of)):
        raise ValueError(f"a part is 1/4, 2/4, 3/4 or 4/4, or of another number, not {text!r}")
    return slice(int(index) - 1, None, int(of))


def add_part(command: argparse.ArgumentParser) -> None:
    text = "only every N-th problem, from the K-th on, to measure all in N sittings"
    share = {"dest": "share", "type": cli.argument(part), "default": "1/1", "metavar": "K/N"}
    command.add_argument("--part", **share, help=text)


def add_compiled(command: argparse.ArgumentParser) -> None:
    every = ",".join(COMPILED)
    text = f"modes of torch.compile to race beside eager torch; default: {every}"
    cli.add_list(command, "--compiled", cli.one_of(*COMPILED), text, every)
