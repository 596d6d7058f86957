"""Makes what races of the ladders need: by many processes, and while earlier races are timed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cuda_reference import loader
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm import dispatch
from tritemm.compile.pool import Compilers, Item
from tritemm.rungs import RUNGS
from tritemm.spec import Config, Kernel

from .case import Case
from .cli import say
from .competitors import ladders, of_kernels
from .operands import Operands
from .rows import CUDA, TRITON
from .search import problem_of
from .session import Task

LADDERS = {TRITON: RUNGS, CUDA: CUDA_RUNGS}


class Ahead:
    """Tasks of `competitors.ladders` with rungs of `named`, of LADDERS.

    First all tasks, which begin to compile Triton's part; then `build`; then the races. What does
    not compile fails again in its race, which says so.
    """

    def __init__(self, named: Collection[str]):
        self.compilers = Compilers()
        self.kernels = {name: LADDERS[name] if name in named else () for name in LADDERS}
        self.wanted: set[str] = set()
        self.broken: dict[str, str] = {}

    def task(self, case: Case, options: dict, **fields) -> Task:
        """A race of these `options` of `competitors.ladders`; `fields`: more of the `Task`."""
        items = _items(case, triton=self.kernels[TRITON], others=self.kernels[CUDA], **options)
        futures = [self.compilers.submit(item) for item in items]
        only = options.get("only")
        self.wanted |= {k.name for k in self.kernels[CUDA] if not only or k.name in only}

        def field(operands: Operands):
            for future in futures:
                future.result()
            return ladders(case, operands, broken=self.broken, **self.kernels, **options)

        return Task(case, field, **fields)

    def build(self) -> None:
        """CUDA's part of all tasks, all at once."""
        unavailable, self.broken = build(sorted(self.wanted))
        if unavailable:
            say(f"the CUDA ladder takes no part: refused: {unavailable}")
            self.kernels[CUDA] = ()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *raised) -> None:
        self.compilers.close()


def _items(case: Case, *, triton: Sequence[Kernel], auto: bool = False, **options) -> list[Item]:
    """What Triton has to compile."""
    problem = problem_of(case)
    raced = [c for c in of_kernels(problem, triton, **options) if not c.refusal and c.config]
    found = [(c.rung, problem, Config(**c.config)) for c in raced]
    return [*found, chosen(case)] if auto else found


def chosen(case: Case) -> Item:
    """What Triton has to compile for `tritemm.matmul`."""
    problem = problem_of(case)
    choice = dispatch.choose(problem)
    return choice.kernel.name, problem, choice.config


def build(names: list[str]) -> tuple[str | None, dict[str, str]]:
    """Build CUDA extensions, all at once: why none can be, and the errors of those that failed."""
    if not names:
        return None, {}
    if reason := loader.unavailable():
        return reason, {}
    return None, loader.build(names)
