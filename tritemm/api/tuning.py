"""`tritemm.tune`: the fastest candidate of one problem, found by timing them, on request.

`export` and `load` carry what it found from machine to machine.
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
    scales: Sequence | None = None,
    use_fast_accum: bool = False,
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
        scales, use_fast_accum: as of `explain`, for products by `scaled_mm`.
        seconds: after which no further candidate is tried, nor waited for. What the model chooses
            comes first, whatever the time; it is what wins where there was time for no other. A
            second thread's tuning, and its seconds, begin when the first one's has ended. Others
            may multiply and allocate meanwhile; random numbers of a GPU fail in them while a
            graph is captured.
        progress: show a bar on a terminal, if tqdm is installed.

    Raises what `matmul` raises; RuntimeError without a GPU.
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
        raise ValueError(f"activation={name!r}: products are tuned apart from what follows "
                         f"them, but for {' and '.join(GATED)}")  # fmt: skip
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
    problem = dispatch.choose(problem).problem  # of fp32 by FFMA, where planes aren't chosen
    ranked = dispatch.ranked(problem)
    worth = [row for row in ranked if row[0] <= _WITHIN * ranked[0][0]]
    with _timing, torch.cuda.device_of(out):
        timed = _heats(problem, worth, tensors, seconds, progress)
    timed.sort(key=lambda one: one.seconds)
    best = timed[0]
    if best.error:
        raise RuntimeError(
            f"no candidate computed {problem}, of {len(timed)} that were tried in {seconds:g} s; "
            f"{best.kernel.name}: {best.error}"
        )
    entry = cache.entry(best.kernel.name, best.config, best.seconds)
    cache.store(problem.device.name, {cache.key(problem): entry})
    plan.forget()
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
    """`one` with its seconds, once its result was found right."""
    try:
        error = _wrong(one.kernel, problem, one.config, tensors)
        if error is None:
            return dataclasses.replace(one, seconds=runner(one.kernel, one.config))
    except Exception as raised:  # a compiler or a launch may raise anything
        error = f"{type(raised).__name__}: {str(raised).strip().splitlines()[:1]}"
    return dataclasses.replace(one, error=error)


def _wrong(kernel: Kernel, problem: Problem, config: Config, tensors) -> str | None:
    """What is wrong with the candidate's results, of these operands and of exact ones.

    Spread rows are looked at, in every column.
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
        # As many pieces of b as columns make one of the result.
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
    """The scales of some rows, and of a part of the columns."""
    sizes = problem.M, problem.N
    a, b = (spread(s, n, s.shape[1]).expand(n, -1) for s, n in zip(scales, sizes, strict=True))
    return [a[rows], b[part]]


def _compiled(problem: Problem, rows, deadline: float) -> Generator[Timed]:
    """The candidates of `rows` that are ready in time, not timed yet.

    Where kernels are compiled, workers do so, all but the first few, the choice as it is among
    them: these are compiled as they are run, while workers start.
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
    """(kernel, config) -> seconds per product, in a CUDA graph, on operands that L2 can't hold."""
    device = tensors[0].device
    if device.type != "cuda":
        raise RuntimeError("tritemm.tune times kernels on a GPU; there is none")
    size = sum(t.untyped_storage().nbytes() for t in tensors)
    copies = max(1, min(16, -(-_BEYOND_L2 // size)))
    # Each with the same values, strides and alignment, in memory of its own.
    sets = [tensors, *([copy.deepcopy(t) for t in tensors] for _ in range(copies - 1))]

    def measure(kernel: Kernel, config: Config) -> float:
        def once():
            for one in sets:
                plan.run(kernel, problem, config, *one)

        once()
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate and synchronise meanwhile.
        stream = torch.cuda.Stream(device)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            once()
        graph.replay()
        rough = elapsed(graph.replay)
        repeats = max(1, math.ceil(_TIMING / max(rough, 1e-6)))
        return elapsed(graph.replay, repeats) / len(sets)

    return measure
