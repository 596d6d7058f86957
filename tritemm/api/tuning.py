"""`tritemm.tune`: times a problem's candidates, on request, and keeps the fastest.

`export` and `load` carry its results from machine to machine.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures import as_completed
from os import PathLike
from pathlib import Path

import torch

from .. import budget, dispatch, plan
from ..compile import pool
from ..dispatch import Choice, cache
from ..dtypes import Precision
from ..machine.command import bar
from ..problem import (
    GATED,
    INTERPRETER,
    NOTHING,
    Activation,
    Device,
    EpilogueInputs,
    Problem,
    result_shape,
    spread,
)
from ..problem.config import Config, config_of
from ..runtime.clock import elapsed
from ..spec import Kernel
from .epilogue import activation_of
from .scaled import operands_of

#: Candidates predicted to take longer than the best by more than this factor are not tried.
_WITHIN = 3.0
#: Seconds of work per timing; candidates and rounds of the final heat.
_TIMING, _FINALISTS, _ROUNDS = 3e-3, 5, 5
#: Candidates that this process compiles itself; seconds to wait for the first worker to start.
_OWN, _START = 3, 2.0
#: Total bytes of the operands of one timing: more than L2 holds.
_BEYOND_L2 = 2**28
#: Every how many rows are checked, so that each tile is; columns that are checked at once.
_ROW_STEP, _COLUMNS = 61, 8192
#: Only one thread times at a time; two at once would disturb each other.
_timing = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Timed:
    """A candidate with its seconds per product, or with an error."""

    kernel: Kernel
    config: Config
    predicted: float
    seconds: float = math.inf
    error: str | None = None

    def __str__(self) -> str:
        time = self.error or f"{1e6 * self.seconds:.1f} us"
        predicted = f"{1e6 * self.predicted:.1f} us predicted"
        return f"{time} ({predicted}): {self.kernel.name}, {self.config}"


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What `tune` found: the choice from now on, and all timings, fastest first."""

    choice: Choice
    timed: tuple[Timed, ...]
    skipped: int

    def __repr__(self) -> str:
        return f"<Tuned {self.choice!r}, {self._count()}>"

    def _count(self) -> str:
        return f"{len(self.timed)} of {len(self.timed) + self.skipped} candidates timed"

    def __str__(self) -> str:
        best = [one for one in self.timed if not one.error][:5]
        failed = [one for one in self.timed if one.error][:5]
        title = f"{self.choice.problem}: {self._count()}"
        return "\n  ".join([title, *(str(one) for one in best + failed)])


def tune(
    input: torch.Tensor,
    other: torch.Tensor,
    *,
    precision: Precision | None = None,
    accumulate: torch.dtype | None = None,
    out_dtype: torch.dtype | None = None,
    activation: Activation | None = None,
    scales: Sequence | None = None,
    use_fast_accum: bool = False,
    seconds: float = 60.0,
    progress: bool = True,
) -> Tuned:
    """Find the fastest kernel and config for products like this one, and use it from now on.

    Compiles and times the candidates of `kernel="auto"`, beginning with those that the model
    predicts to be fastest. A candidate can win only if its result passes `tritemm.budget`'s check.
    The winner is kept in the user's cache, `$TRITEMM_CACHE` or else `~/.cache/tritemm`, for this
    and later processes; a warning says if it can't be written. `tritemm.tuning.export` and `load`
    carry it to other machines. It applies to operands of the same sizes, strides, types and
    alignment; `tritemm.explain` says so.

    Args:
        input, other, precision, accumulate, out_dtype: see `matmul`. The operands' values are
            multiplied: pass typical ones, since zeros multiply faster.
        activation: "swiglu" or "geglu": tunes the product alone first, which torch's kernels would
            then activate, and then the kernels, if any, that do both.
        scales, use_fast_accum: see `explain`, for products by `scaled_mm`.
        seconds: after which no further candidate is tried or awaited. The model's choice is tried
            first, however long it takes; it wins if there was no time for another. If a second
            thread tunes, it and its seconds begin when the first has ended. Other threads may
            multiply and allocate meanwhile; their random numbers on the GPU fail while a graph is
            being captured.
        progress: show a bar on a terminal, if tqdm is installed.

    Raises the errors of `matmul`; RuntimeError without a GPU.
    """
    asked = "auto", precision, accumulate, out_dtype
    others = {"precision": precision, "accumulate": accumulate, "activation": activation}
    a, b, options, found = operands_of(
        "tune", input, other, asked, scales, use_fast_accum, **others
    )  # fmt: skip
    if not isinstance(seconds, int | float):
        raise TypeError(f"tune(): seconds must be a number, not {type(seconds).__name__}")
    a, b = a.detach(), b.detach()
    if activation is None:
        return _tune(a, b, options, NOTHING, seconds, progress, found)
    name = activation_of(activation, b)
    if name not in GATED:
        raise ValueError(f"activation={name!r}: products are tuned without what follows "
                         f"them, except for {' and '.join(GATED)}")  # fmt: skip
    before = _tune(a, b, options, NOTHING, seconds / 2, progress)
    then = EpilogueInputs.made(a, b, None, None, name)
    try:
        return _tune(a, b, options, then, seconds / 2, progress)
    except ValueError:  # no kernel does all of it
        return before


def _tune(
    a, b, options: tuple, then: EpilogueInputs, seconds: float, progress: bool, scales=None
) -> Tuned:  # fmt: skip
    _, precision, accumulate, out_dtype = options
    out = torch.empty(result_shape(a, b, then.activation), dtype=out_dtype, device=a.device)
    problem, *tensors = plan.matrices(a, b, out, precision, accumulate, then, scales=scales)
    tensors += scales[:2] if scales else ()
    if plan.is_trivial(problem.K, out):
        raise ValueError(f"there is nothing to tune: {problem} needs no kernel")
    problem = dispatch.choose(problem).problem  # fp32 by FFMA, unless planes are chosen
    ranked = dispatch.ranked(problem)
    worth = [row for row in ranked if row[0] <= _WITHIN * ranked[0][0]]
    with _timing, torch.cuda.device_of(out):
        timed = _heats(problem, worth, tensors, seconds, progress)
    timed.sort(key=lambda one: one.seconds)
    best = timed[0]
    if best.error:
        raise RuntimeError(
            f"no candidate computed {problem}, of {len(timed)} tried in {seconds:g} s; "
            f"{best.kernel.name}: {best.error}"
        )
    entry = cache.entry(best.kernel.name, best.config, best.seconds)
    cache.store(problem.device.name, {cache.key(problem): entry})
    plan.forget()
    return Tuned(dispatch.first_choice(problem), tuple(timed), len(worth) - len(timed))


def export(path: str | PathLike, device: torch.device | str | int | None = None) -> int:
    """Write all that `tune` found on this GPU, or on `device`, to `path`, a JSON file for `load`.

    Returns the number of problems in it.
    """
    gpu = Device.of(torch.device(device or "cuda")).name
    table = cache.table_of(gpu)
    Path(path).write_text(json.dumps({"gpu": gpu, "problems": table}, indent=1))
    return len(table)


def load(path: str | PathLike) -> int:
    """Add what another machine exported to this user's cache; it replaces older entries.

    Returns the number of problems added. They apply to GPUs with the name in the file.
    Raises ValueError if `export` didn't write `path`.
    """
    try:
        data = json.loads(Path(path).read_text())
        gpu, table = data["gpu"], data["problems"]
        if not isinstance(gpu, str):
            raise TypeError("gpu is no name")
        for entry in table.values():
            config_of(entry["config"])
            dispatch.find(entry["kernel"])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not what tritemm.tuning.export wrote: {error!r}") from error
    cache.store(gpu, table)
    plan.forget()
    return len(table)


def _heats(problem, rows, tensors, seconds, progress) -> list[Timed]:
    """Times every candidate once, while time lasts; then the fastest few again, in turn."""
    deadline = time.monotonic() + seconds
    runner = timer(problem, tensors)
    timed = []
    with contextlib.closing(_compiled(problem, rows, deadline)) as compiled:
        candidates: Iterable[Timed] = compiled
        if progress:
            candidates = bar(compiled, total=len(rows), desc="tune", unit="candidate")
        for one in candidates:
            timed.append(one if one.error else _time(runner, problem, one, tensors))
            if time.monotonic() > deadline:
                break
    timed.sort(key=lambda one: one.seconds)
    finalists = [one for one in timed[:_FINALISTS] if not one.error]
    if len(finalists) < 2:
        return timed
    again: dict[Timed, list[float]] = {one: [] for one in finalists}
    for _ in range(_ROUNDS):
        for one in random.sample(finalists, len(finalists)):
            again[one].append(runner(one.kernel, one.config))
    last = [dataclasses.replace(o, seconds=statistics.median(again[o])) for o in finalists]
    return last + timed[len(last) :]


def _time(runner, problem: Problem, one: Timed, tensors) -> Timed:
    """`one` with its seconds, if its result is right."""
    try:
        error = _wrong(one.kernel, problem, one.config, tensors)
        if error is None:
            return dataclasses.replace(one, seconds=runner(one.kernel, one.config))
    except Exception as raised:  # a compiler or a launch may raise anything
        error = f"{type(raised).__name__}: {str(raised).strip().splitlines()[:1]}"
    return dataclasses.replace(one, error=error)


def _wrong(kernel: Kernel, problem: Problem, config: Config, tensors) -> str | None:
    """What is wrong with the candidate's result for these operands and for exact ones, or None.

    Checks a sample of rows, spread over the matrix, in every column.
    """
    a, b, out, *scales = tensors
    rows = torch.arange(0, problem.M, min(_ROW_STEP, problem.M), device=out.device)
    rows = torch.cat((rows, rows.new_tensor([problem.M - 1])))
    activation = problem.epilogue.activation
    then = EpilogueInputs(activation=activation) if activation else None
    pairs = [(a, b)]
    if a.is_floating_point() and not scales:
        pairs.append(budget.exact_operands(a, b, problem.accumulate))
    for a, b in pairs:
        out.fill_(math.nan if out.is_floating_point() else 77)
        plan.run(kernel, problem, config, a, b, out, *scales)
        x, got = a.index_select(-2, rows), out.index_select(-2, rows)
        # Gated activations need a column of every half of b.
        pieces = b.chunk(b.shape[-1] // out.shape[-1], -1)
        for begin in range(0, out.shape[-1], _COLUMNS):
            part = slice(begin, begin + _COLUMNS)
            how: dict = {"accumulate": problem.accumulate, "precision": problem.precision}
            how["planes"] = problem.is_split(config.PACK)
            if scales:
                how = {"scales": (*_of_lines(scales, problem, rows, part), problem.sums != "whole")}
            verdict = budget.check(
                got[..., part], x, torch.cat([piece[..., part] for piece in pieces], -1),
                ending=then, **how,
            )  # fmt: skip
            if not verdict.ok:
                return f"wrong: {verdict}"
    return None


def _of_lines(scales, problem: Problem, rows, part: slice) -> list[torch.Tensor]:
    """The scales of these rows, and of the columns in `part`."""
    sizes = problem.M, problem.N
    a, b = (spread(s, n, s.shape[1]).expand(n, -1) for s, n in zip(scales, sizes, strict=True))
    return [a[rows], b[part]]


def _compiled(problem: Problem, rows, deadline: float) -> Generator[Timed]:
    """The candidates of `rows` that are ready in time, not timed yet.

    Where kernels are compiled, this process compiles the first few, the model's choice among them,
    as it runs them; meanwhile workers start, which compile the rest.
    """
    own = len(rows) if problem.device == INTERPRETER else _OWN
    first, others = rows[:own], rows[own:]
    if time.monotonic() + _START > deadline:
        others = []
    waiting = {pool.shared().submit((k.name, problem, c)): (k, c, p) for p, k, c in others}
    try:
        yield from (Timed(kernel, config, predicted) for predicted, kernel, config in first)
        with contextlib.suppress(FutureTimeout):
            for future in as_completed(waiting, max(0.0, deadline - time.monotonic())):
                yield Timed(*waiting[future], error=future.result().error)
    finally:
        for future in waiting:
            future.cancel()


def timer(problem: Problem, tensors: Sequence[torch.Tensor]) -> Callable[[Kernel, Config], float]:
    """(kernel, config) -> seconds per product, in a CUDA graph, on operands larger than L2."""
    device = tensors[0].device
    if device.type != "cuda":
        raise RuntimeError("tritemm.tune times kernels on a GPU; no GPU was found")
    size = sum(t.untyped_storage().nbytes() for t in tensors)
    copies = max(1, min(16, -(-_BEYOND_L2 // size)))
    # Copies of the operands with the same values, strides and alignment, in separate memory.
    sets = [tensors, *([copy.deepcopy(t) for t in tensors] for _ in range(copies - 1))]

    def measure(kernel: Kernel, config: Config) -> float:
        def once():
            for one in sets:
                plan.run(kernel, problem, config, *one)

        once()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate and synchronise while the graph is captured.
        stream = torch.cuda.Stream(device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            once()
        graph.replay()
        rough = elapsed(graph.replay)
        repeats = max(1, math.ceil(_TIMING / max(rough, 1e-6)))
        return elapsed(graph.replay, repeats) / len(sets)

    return measure
