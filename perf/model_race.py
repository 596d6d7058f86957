"""The races of `python -m perf model`: torch's model and its twin, cell after cell."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import time
from collections.abc import Iterator, Sequence

import torch

from . import engine, machine, model_build
from .cli import progress, say
from .engine import Competitor, Plan
from .model import OURS, Cell, Model
from .model_bench import ModelBench
from .model_steps import Outputs, Steps
from .rows import NULL, REFERENCE, TRITON, Row
from .session import Session, failed


def field() -> list[Competitor]:
    """Torch comes first: what it loses to rounding is what tritemm is judged by."""
    return [
        Competitor(REFERENCE, _nothing),
        Competitor(NULL, _nothing),
        Competitor(OURS, _nothing, ladder=TRITON, rung=OURS),
    ]


def _nothing(a, b, c) -> None:
    """A model's steps have no operands; `ModelBench` knows them by name."""


class Pair:
    """A model and its twin, and the results of the case that they are at, in fp32."""

    def __init__(self, model: Model, device: str, seed: int):
        self.seed = seed
        self.torchs = model_build.build(model, device, seed)
        self.ours, self.report = model_build.twin(self.torchs)

    def steps(self, model: Model, case: str) -> tuple[Steps, Outputs]:
        steps = Steps(self.torchs, model, case, self.seed)
        exact = model_build.exact(self.torchs)
        return steps, steps.of(exact, "eager").outputs()


def measure(
    session: Session, cells: Sequence[Cell], plan: Plan, minutes: float, device: str = "cuda", **how
) -> list[Cell]:
    """Race the cells and record them; those that could not begin within `minutes` are returned.

    `how`: options of `ModelBench`. Ctrl-C keeps what was measured.
    """
    left = list(cells)
    try:
        for index, (cell, made) in enumerate(_prepared(cells, device, session.args.seed)):
            if session.interrupted or time.monotonic() - session.began > 60 * minutes:
                break
            say(f"[{index + 1}/{len(cells)}] {cell.id}: {cell.model.says(cell.case)}")
            # Once warm, the card only has to adapt to the next work.
            settle = plan.settle if index == 0 else 0.0
            _race(session, cell, made, dataclasses.replace(plan, settle=settle), how)
            left.remove(cell)
            _forget()
    except KeyboardInterrupt:
        session.interrupted = True
    return left


def _prepared(cells: Sequence[Cell], device: str, seed: int) -> Iterator[tuple]:
    """Each cell and what it needs, as a function, since making it may fail: a model is built once
    for its cells, and computed in fp32 once for those of a case."""
    pairs = functools.lru_cache(1)(lambda model: _told(Pair(model, device, seed)))
    cases = functools.lru_cache(1)(lambda model, case: pairs(model).steps(model, case))
    for cell in cells:
        yield cell, functools.partial(_ready, pairs, cases, cell)


def _told(pair: Pair) -> Pair:
    """Once it has been said what tritemm multiplies in it."""
    for line in str(pair.report).splitlines():
        say(f"  {line}")
    return pair


def _ready(pairs, cases, cell: Cell) -> tuple[Pair, Steps, Outputs]:
    pair = pairs(cell.model)
    return pair, *cases(cell.model, cell.case)


def _race(session: Session, cell: Cell, made, plan: Plan, how: dict) -> None:
    mode, case = f"model {cell.mode}", cell.model.case(cell.case)
    heading = session.heading(case, cell.problem, mode=mode)
    try:
        pair, steps, exact = made()
        make = {
            REFERENCE: functools.partial(steps.of, pair.torchs, cell.mode),
            OURS: functools.partial(steps.of, pair.ours, cell.mode),
        }
        bench = ModelBench(cell, make, exact, plan, machine.probe(), **how)
        race = engine.measure(field(), bench, plan, session.rng, say=say, progress=progress)
    except torch.OutOfMemoryError as error:
        reason = " ".join(str(error).split())[:300]
        say(f"  failed: {reason}")
        session.add([failed(heading, REFERENCE, reason)])
        return
    spent = ", ".join(f"{name} {s:.0f} s" for name, s in bench.compiling.items())
    say(f"  until the first timed step: {spent}")
    session.add([_of_a_model(row, bench) for row in engine.rows_of(race, heading)])
    session.interrupted = race.interrupted


def _of_a_model(row: Row, bench: ModelBench) -> Row:
    """With the agreement, and without what one product's sizes say of a time."""
    agreement = bench.agreements.get(row.competitor)
    numbers = agreement and {
        name: value if math.isfinite(value) else None for name, value in agreement.numbers.items()
    }
    skips = bench.skipped.get(row.competitor, 0)
    graphs = f"torch.compile left out {skips} CUDA graphs" if skips and row.us else None
    reason = "; ".join(filter(None, (row.reason, graphs))) or None
    return dataclasses.replace(row, agreement=numbers, reason=reason, roof=None)


def _forget() -> None:
    """What torch.compile has made, and its graphs' memory."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
