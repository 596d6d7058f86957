"""`python -m perf errors`: how far products of fp32 and fp64 are from the exact ones.

An error is counted in units of 2**-24 (fp64: 2**-53) of sum |a| |b|, element by element, on the
operands of `perf.grading`. Of fp32 the exact product is that of fp64. Of fp64 it is that of
`perf.exact`, for the elements in `SAMPLE` rows and as many columns.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import multiprocessing
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import tritemm
from tritemm import plan
from tritemm.problem import Problem

from .. import cli, exact, grading, session, tables
from ..case import ACCUMULATE, DTYPES, Case, parse_size
from ..competitors import is_split
from ..operands import poison, reference
from ..problems import Problem as Named
from ..rows import REFERENCE, TRITON, Row
from ..select import newest_races
from ..tables import Parts, Table
from ..views import Selection, View
from .conform import differ

SIZES = "256,1024,512x384x16384,4096"
#: How tritemm is asked to multiply.
PRECISIONS = {
    "fp32": ("ieee", "tf32x3", "bf16x6", "bf16x9", "int8x7"),
    "fp64": ("ieee", "int8x14", "int8x15"),
}
#: Rows, and columns, of fp64 whose elements are compared.
SAMPLE = 64
#: How a product was multiplied if not as requested: tritemm chose IEEE; or it did it
#: once more, by FFMA or DMMA, because of what the operands hold.
CHOSEN, AGAIN = "ieee", "again"

EXAMPLES = """
python -m perf errors
python -m perf errors --dtype fp64 --data normal,phi2 --size 1024,512x384x16384
"""
DESCRIBED = (
    "Measure the errors of fp32 and fp64, element by element, on operands by which accuracy is "
    "graded: the largest and the root mean square, by cuBLAS and by each precision of tritemm."
)


def register(commands) -> None:
    command = cli.add_command(commands, "errors", run, DESCRIBED, EXAMPLES)
    cli.add_choices(command, "--dtype", PRECISIONS)
    text = f"sizes, N for a cube or MxNxK; default: {SIZES}"
    cli.add_list(command, "--size", parse_size, text, SIZES)
    cli.add_choices(command, "--data", grading.DATA)
    add = command.add_argument
    add("--seed", type=int, default=0, help="seed of the operands")
    add("--out", type=Path, help="file to add rows to; default: a new file in perf/results")
    add("--json", action="store_true", help="print rows instead of tables")
    command.set_defaults(mode="errors", quick=False)


@dataclasses.dataclass(frozen=True)
class Job:
    """What one process multiplies: matrices of a type and a size, of each kind of `data`."""

    dtype: str
    size: tuple[int, int, int]
    data: tuple[str, ...]
    seed: int = 0
    device: str = "cuda"

    @property
    def problems(self) -> list[Named]:
        case = Case(*self.size, "NN", self.dtype, ACCUMULATE[self.dtype])
        dtype, size = DTYPES[self.dtype], "x".join(map(str, self.size))
        return [
            Named(f"{self.dtype}-{size}-{name}", name, grading.described(name, dtype), case)
            for name in grading.of(dtype)
            if name in self.data
        ]


def jobs(dtypes: Iterable[str], sizes: Iterable, data: Iterable[str], seed: int = 0) -> list[Job]:
    """The longest first."""
    sizes = sorted(sizes, key=math.prod, reverse=True)
    every = (Job(dtype, size, tuple(data), seed) for size in sizes for dtype in dtypes)
    return [job for job in every if job.problems]


def run(args: argparse.Namespace) -> int:
    """0; 1 if something failed, or is not finite where cuBLAS's is; 2: it can't begin."""
    asked = jobs(args.dtype, args.size, args.data, args.seed)
    if not asked:
        return cli.refuse("no operands of this kind are of this type")

    def measure(there: session.Session) -> int:
        # Side by side, because kernels take longer to compile than to run.
        workers = min(len(asked), len(os.sched_getaffinity(0)))
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for job, found in zip(asked, pool.map(graded, asked), strict=True):
                for problem, products in zip(job.problems, found, strict=True):
                    heading = there.heading(session.Task(problem.case, lambda bench: (), problem))
                    rows = [Row(**vars(heading), **fields) for fields in products]
                    there.add(rows)
                    cli.say(f"{problem.id}: {', '.join(map(_told, rows))}")
        return int(any(row.outcome == "failed" for row in there.rows))

    return session.run(args, "errors", measure, text)


def graded(job: Job) -> list[list[dict]]:
    """The fields of the rows of each of the job's problems."""
    return [products(problem, job) for problem in job.problems]


def products(problem: Named, job: Job) -> list[dict]:
    """cuBLAS's product, and each of tritemm's."""
    case, dtype = problem.case, DTYPES[job.dtype]
    a, b = grading.operands(problem.group, job.size, dtype, job.seed, job.device)
    judge, usual = Judge(a, b), poison(a.new_empty(case.M, case.N))
    reference(case)(a, b, usual)
    first = {"competitor": REFERENCE, "errors": judge.errors(usual)}
    return [first, *(product(word, a, b, usual, judge) for word in PRECISIONS[job.dtype])]


def product(word: str, a, b, usual: torch.Tensor, judge: Judge) -> dict[str, Any]:
    """tritemm's product by a precision, beside cuBLAS's `usual` one."""
    fields: dict[str, Any] = {"competitor": word, "ladder": TRITON}
    out = poison(torch.empty_like(usual))
    try:
        choice = tritemm.explain(a, b, precision=word)
        tritemm.matmul(a, b, out=out, precision=word)
        worse = ~out.isfinite() & usual.isfinite()
        count = int(worse.sum())
    except Exception as error:  # of a compiler or a driver too: news, not a crash
        refused = isinstance(error, NotImplementedError | ValueError)
        return fields | {"outcome": "refused" if refused else "failed", "reason": cli.short(error)}
    fields |= {"rung": choice.kernel.name, "config": dataclasses.asdict(choice.config)}
    fields |= {"multiplied": multiplied(choice, word, a, b, out)}
    if count:
        at = tuple(worse.nonzero()[0].tolist())
        said = f"{count} of {out.numel()} elements are NaN or infinite, and cuBLAS's are not: {at}"
        return fields | {"outcome": "wrong", "reason": said}
    return fields | {"errors": judge.errors(out)}


def multiplied(choice, word: str, a, b, out: torch.Tensor) -> str | None:
    """`CHOSEN`, `AGAIN`, or None if it was multiplied as requested.

    A product that was multiplied again has the bits of the one that follows a flag.
    """
    if choice.problem.precision != word:
        return CHOSEN
    if not is_split(choice.problem, choice.config):
        return None
    other = poison(torch.empty_like(out))
    flag = torch.ones(4, dtype=torch.int32, device=out.device)
    plan.launch_guarded(Problem.of(a, b, other), a, b, other, flag)
    return None if differ(out, other).any() else AGAIN


class Judge:
    """What products of A and B are compared with: the exact one, and the unit of each error."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor):
        kind = torch.finfo(a.dtype)
        self.rows = self.columns = slice(None)
        if a.dtype == torch.float64:
            self.rows, self.columns = sample(a.shape[0], a.device), sample(b.shape[1], b.device)
        a, b = a[self.rows].double(), b[:, self.columns].double()
        self.want = (a @ b, 0.0) if kind.bits < 64 else exact.product(a, b)
        # No number is nearer than half the least subnormal one.
        least = kind.tiny * kind.eps
        self.unit = (kind.eps / 2 * (a.abs() @ b.abs())).clamp_min(least)

    def errors(self, out: torch.Tensor) -> dict[str, float]:
        """The largest and the root mean square, in units, of what is finite; none if nothing is."""
        got, (high, low) = out[self.rows][:, self.columns].double(), self.want
        errors = ((got - high - low).abs() / self.unit)[got.isfinite()]
        if not errors.numel():
            return {}
        return {"largest": errors.max().item(), "rms": errors.square().mean().sqrt().item()}


def sample(count: int, device: torch.device) -> torch.Tensor:
    """`SAMPLE` indices, or all: the first, the last, and evenly spaced ones between."""
    return torch.linspace(0, count - 1, min(count, SAMPLE), device=device).round().long()


# The tables

UNITS = {"fp32": "2^-24", "fp64": "2^-53"}
METHOD = (
    "Each cell: largest error, root mean square; x cuBLAS: as multiples of cuBLAS's. ieee: tritemm "
    "chose FFMA or DMMA instead. again: it multiplied once more, by FFMA or DMMA, because of what "
    "the operands hold."
)


def text(rows: list[Row]) -> str:
    return tables.text([*summary(rows), *parts(rows)])


def parts(rows: Sequence[Row], selection: Selection | None = None) -> Parts:
    """For each type a table of all errors, and one of them as multiples of cuBLAS's."""
    for dtype, own in tables.grouped(_sorted(rows), lambda row: row.case.dtype).items():
        races = list(tables.raced(own).values())
        words = list(dict.fromkeys(row.competitor for row in own))
        yield f"{dtype}, in units of {UNITS[dtype]} of the sum of |a||b|:"
        yield _table(races, words, lambda race, word: _cell(race.get(word)))
        words.remove(REFERENCE)
        yield f"{dtype}, x cuBLAS's:"
        yield _table(races, words, lambda race, word: _pair(times(race, word)))
        yield from tables.reasons(own, lambda row: f"{row.id}, {row.competitor}")
    yield _end(rows)


def _table(races: Sequence[Mapping[str, Row]], words: Sequence[str], cell) -> Table:
    """A line for each product, a column for each way to multiply it."""
    body = []
    for race in races:
        row = next(iter(race.values()))
        cells = [cell(race, word) for word in words]
        body.append((row.case.size, row.problem["name"], *cells))
    return Table(("M x N x K", "operands", *map(_named, words)), body, words=2)


def summary(rows: Sequence[Row], selection: Selection | None = None) -> Parts:
    """A line for each way to multiply a type: the most of all its products."""
    body = []
    kinds = tables.grouped(_sorted(rows), lambda row: (row.case.dtype, row.competitor))
    for (dtype, word), own in kinds.items():
        races = tables.raced(row for row in rows if row.case.dtype == dtype).values()
        compared = [times(race, word) for race in races] if word != REFERENCE else []
        ways = [sum(row.multiplied == how for row in own) for how in (CHOSEN, AGAIN)]
        counts = (len(own), *ways) if word != REFERENCE else (len(own), "", "")
        most = _pair(_most(row.errors for row in own)), _pair(_most(compared))
        body.append((dtype, _named(word), *map(str, counts), *most))
    head = ("", "multiplied by", "products", "chosen ieee", "again", "at most", "x cuBLAS, at most")
    yield Table(head, body, words=2)
    yield _end(rows)


def _end(rows: Sequence[Row]) -> str:
    sampled = f"Only the elements in {SAMPLE} rows and {SAMPLE} columns of fp64 count."
    return f"{METHOD} {sampled} {tables.origin(rows)}." if rows else ""


def _named(word: str) -> str:
    return "cuBLAS" if word == REFERENCE else word


def _sorted(rows: Iterable[Row]) -> list[Row]:
    """By type, size and operands, cuBLAS first."""
    names = list(grading.DATA)
    return sorted(rows, key=lambda r: (r.case.dtype, r.case.flops, names.index(r.problem["class"])))


def times(race: Mapping[str, Row], word: str) -> dict[str, float] | None:
    """The errors over cuBLAS's; None where one of them has none."""
    row, usual = race.get(word), race.get(REFERENCE)
    if not (row and usual and row.errors and usual.errors and all(usual.errors.values())):
        return None
    return {name: value / usual.errors[name] for name, value in row.errors.items()}


def _most(found: Iterable[dict[str, float] | None]) -> dict[str, float] | None:
    known = [each for each in found if each]
    return {name: max(each[name] for each in known) for name in known[0]} if known else None


def _pair(errors: Mapping[str, float] | None) -> str:
    return ", ".join(f"{value:.3g}" for value in errors.values()) if errors else ""


def _cell(row: Row | None) -> str:
    if row is None or not row.errors:
        return row.outcome if row else ""
    return _pair(row.errors) + (f" ({row.multiplied})" if row.multiplied else "")


def _told(row: Row) -> str:
    """For a line of progress."""
    return f"{_named(row.competitor)} {_cell(row)}{f': {row.reason}' if row.reason else ''}"


def newest(dtypes: Sequence[str], rows: Sequence[Row], s: Selection) -> list[Row]:
    """The newest products of these types, or of those and that size that are selected."""
    chosen = [s.dtype] if s.dtype else dtypes
    every = jobs(PRECISIONS, map(parse_size, SIZES.split(",")), grading.DATA)
    order = [problem.id for job in every for problem in job.problems]
    found = newest_races(rows, "errors", order, s.gpu)
    sizes = lambda row: (row.case.M, row.case.N, row.case.K)  # noqa: E731
    return _sorted(r for r in found if r.case.dtype in chosen and s.size in (None, sizes(r)))


def _of(*dtypes: str) -> functools.partial:
    return functools.partial(newest, dtypes)


VIEWS = {
    "errors": View(_of(*PRECISIONS), summary),
    **{f"errors-{dtype}": View(_of(dtype), parts) for dtype in PRECISIONS},
}
