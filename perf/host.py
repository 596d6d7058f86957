"""The race of `python -m perf host`: who calls, with which new shapes, in which modes.

A small product is over sooner than its call, so the call is what bounds many small layers.
`perf.host_bench` says how it is timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
import triton

import tritemm

from . import engine, machine
from .case import Case
from .cli import progress, say
from .competitors import matmul, matmul_options
from .engine import Competitor, Plan
from .host_bench import Cached, Caller, First
from .operands import Operands
from .rows import Row
from .session import Session

#: Modes of the rows: cached, then first calls, each without and with `out=`.
EAGER, OUT = "host eager", "host out"
MODES = (EAGER, OUT, f"{EAGER} first", f"{OUT} first")


def callers(case: Case, operands_: Operands, kernels: Sequence[str]) -> list[Caller]:
    """`tritemm.matmul` with each `kernel=` word, then `torch.matmul` twice."""
    return [
        Caller(**vars(competitor), multiply=_multiply(case, competitor))
        for competitor in matmul(case, operands_, kernels)
    ]


def _multiply(case: Case, competitor: Competitor) -> Callable[..., torch.Tensor]:
    """Without the options that have their defaults: nobody spells them out."""
    if competitor.ladder is None:
        return torch.matmul
    options = {k: v for k, v in matmul_options(case, competitor.name).items() if v is not None}
    if options["kernel"] == "auto":
        del options["kernel"]
    return functools.partial(tritemm.matmul, **options)


def shapes(case: Case) -> Iterator[Case]:
    """Cases with other M and N than `case`, each once, the nearest first; without end.

    M and N differ by multiples of 16, which is what Triton specialises kernels by, and 1 stays 1.
    K stays, because kernels are compiled with and without a ragged last step. So most shapes run
    the kernel that their neighbour runs.

    Raises:
        ValueError: M and N are 1, so that there is no other shape.
    """
    if case.M == case.N == 1:
        raise ValueError(f"{case.size} has no neighbours: M and N are 1")
    for distance in itertools.count(1):
        rows, columns = (_steps(size, distance) for size in (case.M, case.N))
        for i, j in itertools.product(rows, columns):
            if max(abs(i), abs(j)) == distance:
                yield dataclasses.replace(case, M=case.M + 16 * i, N=case.N + 16 * j)


def _steps(size: int, distance: int) -> list[int]:
    """Of 16, that lead from `size` to others above 1; none from 1."""
    if size == 1:
        return [0]
    return [step for step in range(-distance, distance + 1) if size + 16 * step > 1]


@contextlib.contextmanager
def counted_loads() -> Iterator[Callable[[], int]]:
    """How many Triton kernels were loaded since the block began, compiled now or long ago."""
    loaded: list[str] = []

    def note(module, function, name, metadata_group, hash) -> None:
        loaded.append(name)

    hooks = triton.knobs.runtime.kernel_load_end_hook
    hooks.add(note)
    try:
        yield lambda: len(loaded)
    finally:
        hooks.remove(note)


def benches(case: Case, loads: Callable[[], int], **options) -> list[Cached]:
    """One per mode; they share what new shapes there are. `options` are those of `Cached`."""
    fresh = shapes(case)
    first = {"shapes": fresh, "loads": loads, **options}
    return [
        *(Cached(case, mode, out=mode == OUT, **options) for mode in MODES[:2]),
        *(First(case, mode, out=mode.startswith(OUT), **first) for mode in MODES[2:]),
    ]


def measure(session: Session, kernels: Sequence[str], rounds: int, modes: Sequence[Cached]) -> None:
    """Race the callers in each mode, and record it; Ctrl-C keeps what was measured."""
    plan = Plan(rounds=rounds, longest=math.inf)
    try:
        for bench in modes:
            say(f"{bench.mode}: {bench.case}")
            heading = session.heading(bench.case, mode=bench.mode)
            field = callers(bench.case, bench.sets[0], list(dict.fromkeys(kernels)))
            race = engine.measure(field, bench, plan, session.rng, say=say, progress=progress)
            session.add([of_the_host(row) for row in engine.rows_of(race, heading)])
            if race.interrupted:
                session.interrupted = True
                break
    except KeyboardInterrupt:
        session.interrupted = True


def of_the_host(row: Row) -> Row:
    """Without what says something about the GPU's work: errors, roofs, rungs below."""
    return dataclasses.replace(row, worst=None, roof=None, below=None, ratio_below=None)


def run(session: Session, case: Case, kernels: Sequence[str], rounds: int) -> None:
    """Measure all modes on the current CUDA device."""
    with counted_loads() as loads:
        measure(session, kernels, rounds, benches(case, loads, probe=machine.probe()))
