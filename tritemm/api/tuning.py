"""`tritemm.tune`: the fastest candidate of one problem, found by timing them, on request.

`export` and `load` carry what it found from machine to machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
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
)
from ..problem.config import Config, config_of
from ..runtime.clock import elapsed
from ..spec import Kernel
from . import arguments
from .epilogue import activation_of

#: Candidates that are predicted to take longer than the best by this factor are not tried.
_WITHIN = 3.0
#: Seconds of work of one timing; candidates and rounds of the last heat.
_TIMING, _FINALISTS, _ROUNDS = 3e-3, 5, 5
#: Candidates that this process compiles itself; seconds in which no worker has started.
_OWN, _START = 3, 2.0
#: Bytes that the operands of one timing have together: more than L2 holds.
_BEYOND_L2 = 2**28
#: Every so many rows are checked, so that no tile goes without; columns that are checked at once.
_ROW_STEP, _COLUMNS = 61, 8192
#: One thread times at a time: what two do at once, neither measures.
_timing = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Timed:
    """A candidate, its seconds per product, or the error that it has instead."""

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
    """What `tune` found: the choice from now on, and all that was timed, the fastest first."""

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
    seconds: float = 60.0,
    progress: bool = True,
) -> Tuned:
    """Find the fastest kernel and config for products like this one, and use it from now on.

    The candidates of `kernel="auto"` are compiled and timed, those first that the model expects
    to be fast. Each result is checked (`tritemm.budget`) before its candidate may win. The winner
    is kept in the user's cache for this and later processes: `$TRITEMM_CACHE`, else
    `~/.cache/tritemm`; a warning says where that can't be. `tritemm.tuning.export` and `load` carry
    it to other machines. It counts for operands of these sizes, strides, types and alignment;
    `tritemm.explain` says so.

    Args:
        input, other, precision, accumulate, out_dtype: as for `matmul`. The operands' values are
            multiplied: take typical ones, since zeros are multiplied faster.
        activation: "swiglu" or "geglu": then the product that torch's kernels would end is tuned
            first, and what does all of it, if anything can, after that.
        seconds: after which no further candidate is tried, nor waited for. What the model chooses
            comes first, whatever the time; it is what wins where there was time for no other. A
            second thread's tuning, and its seconds, begin when the first one's has ended. Others
            may multiply and allocate meanwhile; random numbers of a GPU fail in them while a
            graph is captured.
        progress: show a bar on a terminal, if tqdm is installed.

    Raises what `matmul` raises; RuntimeError without a GPU.
    """
    a, b, options = arguments.operands(
        input, other, None, "auto", precision, accumulate, out_dtype, "tune"
    )
    _, precision, accumulate, out_dtype = options
    if not isinstance(seconds, int | float):
        raise TypeError(f"tune(): seconds must be a number, not {type(seconds).__name__}")
    a, b = a.detach(), b.detach()
    if activation is None:
        return _tune(a, b, precision, accumulate, out_dtype, NOTHING, seconds, progress)
    activation = activation_of(activation, b)
    if activation not in GATED:
        raise ValueError(f"activation={activation!r}: products are tuned apart from what follows "
                         f"them, but for {' and '.join(GATED)}")  # fmt: skip
    then = EpilogueInputs.made(a, b, None, None, activation)
    types = precision, accumulate, out_dtype
    before = _tune(a, b, *types, NOTHING, seconds / 2, progress)
    try:
        return _tune(a, b, *types, then, seconds / 2, progress)
    except ValueError:  # no kernel does all of it
        return before


def _tune(a, b, precision, accumulate, out_dtype, then, seconds, progress) -> Tuned:
    shape = result_shape(a, b, then.activation)
    out = torch.empty(shape, dtype=out_dtype, device=a.device)
    problem, a, b, out = plan.matrices(a, b, out, precision, accumulate, then)
    if plan.is_trivial(problem.K, out):
        raise ValueError(f"there is nothing to tune: {problem} needs no kernel")
    dispatch.choose(problem)  # raises if no kernel can
    ranked = dispatch.ranked(problem)
    worth = [row for row in ranked if row[0] <= _WITHIN * ranked[0][0]]
    with _timing, torch.cuda.device_of(out):
        timed = _heats(problem, worth, (a, b, out), seconds, progress)
    best = min(timed, key=lambda one: one.seconds)
    if best.error:
        raise RuntimeError(
            f"no candidate computed {problem}, of {len(timed)} that were tried in {seconds:g} s; "
            f"{best.kernel.name}: {best.error}"
        )
    entry = cache.entry(best.kernel.name, best.config, best.seconds)
    cache.store(problem.device.name, {cache.key(problem): entry})
    plan.forget()
    timed.sort(key=lambda one: one.seconds)
    return Tuned(dispatch.first_choice(problem), tuple(timed), len(worth) - len(timed))


def export(path: str | PathLike, device: torch.device | str | int | None = None) -> int:
    """Write all that `tune` found on this GPU, or on `device`, to `path`.

    Returns how many problems it holds. The file is JSON; `load` reads it on another machine.
    """
    gpu = Device.of(torch.device(device or "cuda")).name
    table = cache.table_of(gpu)
    Path(path).write_text(json.dumps({"gpu": gpu, "problems": table}, indent=1))
    return len(table)


def load(path: str | PathLike) -> int:
    """Add what another machine exported to this user's cache; it replaces what is there.

    Returns how many problems were added. They count for GPUs of the name in the file.
    Raises ValueError if `path` is no such file.
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
    """Every candidate once, in time; then the fastest few again, in turn."""
    deadline = time.monotonic() + seconds
    runner = timer(problem, tensors)
    timed = []
    with _compiled(problem, rows, deadline) as compiled:
        if progress:
            compiled = bar(compiled, total=len(rows), desc="tune", unit="candidate")
        for kernel, config, predicted, error in compiled:
            one = Timed(kernel, config, predicted, error=error)
            timed.append(one if error else _time(runner, problem, one, tensors))
            if time.monotonic() > deadline:
                break
    finalists = sorted((t for t in timed if not t.error), key=lambda one: one.seconds)
    finalists = finalists[:_FINALISTS]
    if len(finalists) > 1:
        again = {one: [] for one in finalists}
        for _ in range(_ROUNDS):
            for one in random.sample(finalists, len(finalists)):
                again[one].append(runner(one.kernel, one.config))
        others = [one for one in timed if one not in again]
        timed = others + [
            dataclasses.replace(one, seconds=statistics.median(times))
            for one, times in again.items()
        ]
    return timed


def _time(runner, problem: Problem, one: Timed, tensors) -> Timed:
    """`one` with its seconds, once its result was found right."""
    try:
        error = _wrong(one.kernel, problem, one.config, tensors)
        if error is None:
            return dataclasses.replace(one, seconds=runner(one.kernel, one.config))
    except Exception as raised:  # a compiler or a launch may raise anything
        error = f"{type(raised).__name__}: {str(raised).strip().splitlines()[:1]}"
    return dataclasses.replace(one, error=error)


def _wrong(kernel: Kernel, problem: Problem, config: Config, tensors) -> str | None:
    """What is wrong with the candidate's results, of these operands and of exact ones."""
    a, b, out = tensors
    error = _wrong_of(kernel, problem, config, a, b, out)
    if error or not a.is_floating_point():
        return error
    return _wrong_of(kernel, problem, config, *budget.exact_operands(a, b, problem.accumulate), out)


def _wrong_of(kernel: Kernel, problem: Problem, config: Config, a, b, out) -> str | None:
    """What is wrong with one product, of which spread rows are looked at, in every column."""
    out.fill_(math.nan if out.is_floating_point() else 77)
    plan.run(kernel, problem, config, a, b, out)
    rows = torch.arange(0, problem.M, min(_ROW_STEP, problem.M), device=out.device)
    rows = torch.cat((rows, rows.new_tensor([problem.M - 1])))
    a, out = a.index_select(-2, rows), out.index_select(-2, rows)
    count = problem.epilogue.per_column
    then = EpilogueInputs(activation=problem.epilogue.activation) if count > 1 else None
    for begin in range(0, out.shape[-1], _COLUMNS):
        part = slice(begin, begin + _COLUMNS)
        halves = [half[..., part] for half in b.chunk(count, -1)]
        verdict = budget.check(
            out[..., part], a, torch.cat(halves, -1) if count > 1 else halves[0],
            accumulate=problem.accumulate, precision=problem.precision, ending=then,
        )  # fmt: skip
        if not verdict.ok:
            return f"wrong: {verdict}"
    return None


@contextlib.contextmanager
def _compiled(problem: Problem, rows, deadline: float):
    """Yields an iterator of (kernel, config, predicted seconds, error), those of `rows` in time.

    Where kernels are compiled, workers do so, all but the first few, the choice as it is among
    them: these are compiled as they are run, while workers start.
    """
    own = len(rows) if problem.device == INTERPRETER else _OWN
    first, others = rows[:own], rows[own:]
    if time.monotonic() + _START > deadline:
        others = []
    with contextlib.ExitStack() as stack:
        waiting = {}
        if others:
            compilers = stack.enter_context(pool.shared())
            waiting = {compilers.submit((k.name, problem, c)): (p, k, c) for p, k, c in others}

        def arriving():
            yield from ((kernel, config, predicted, None) for predicted, kernel, config in first)
            with contextlib.suppress(FutureTimeout):
                for future in as_completed(waiting, max(0.0, deadline - time.monotonic())):
                    predicted, kernel, config = waiting[future]
                    yield kernel, config, predicted, future.result().error

        try:
            yield arriving()
        finally:
            for future in waiting:
                future.cancel()


def timer(problem: Problem, tensors: Sequence[torch.Tensor]) -> Callable[[Kernel, Config], float]:
    """(kernel, config) -> seconds per product, in a CUDA graph, on operands that L2 can't hold."""
    a, b, out = tensors
    if not out.is_cuda:
        raise RuntimeError("tritemm.tune times kernels on a GPU; there is none")
    one = sum(t.untyped_storage().nbytes() for t in tensors)
    copies = max(1, min(16, -(-_BEYOND_L2 // one)))
    sets = [(a, b, out), *([_copy(t) for t in tensors] for _ in range(copies - 1))]

    def measure(kernel: Kernel, config: Config) -> float:
        def once():
            for operands in sets:
                plan.run(kernel, problem, config, *operands)

        once()
        torch.cuda.synchronize(out.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate and synchronise meanwhile.
        stream = torch.cuda.Stream(out.device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            once()
        graph.replay()
        rough = elapsed(graph.replay)
        repeats = max(1, math.ceil(_TIMING / max(rough, 1e-6)))
        return elapsed(graph.replay, repeats) / len(sets)

    return measure


def _copy(t: torch.Tensor) -> torch.Tensor:
    """The same values with the same strides and alignment, elsewhere."""
    storage = torch.empty(t.untyped_storage().nbytes(), dtype=torch.uint8, device=t.device)
    storage.copy_(torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage()))
    typed = torch.empty(0, dtype=t.dtype, device=t.device)
    return typed.set_(storage.untyped_storage(), t.storage_offset(), t.shape, t.stride())
