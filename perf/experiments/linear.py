"""`python -m perf linear`: `tritemm.linear` with its epilogue, against torch and torch.compile.

Torch's ways are the calls that a user would write, what `torch.compile` makes of them, for these
sizes, and where torch has a function for just that, that function. All return new tensors, but for
those that accumulate, and all are captured in CUDA graphs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence

import torch
import torch.nn.functional as F

import tritemm
from tritemm import dispatch, plan
from tritemm.problem import GATED, EpilogueInputs, result_shape

from .. import cli, session, tables
from ..case import DTYPES, Case, Ending
from ..engine import Competitor
from ..operands import Operands
from ..problems import LINEAR, chosen
from ..rows import NULL, REFERENCE, TRITON, Row
from ..tables import Parts, Result, Table, Tally, median, spread, us
from ..views import Selection, View, newest_of
from .model import compiled_apart
from .suite import plan as plan_of

OURS = "auto"
ROUNDS, MOST = 7, 24
#: What may be left out, and what `torch.compile` is given for it (for static sizes, and without
#: CUDA graphs of its own): it takes its time to compile.
COMPILED = {"compile": {}, "max-autotune": {"mode": "max-autotune-no-cudagraphs"}}
#: Torch's single functions for an ending: the names are those of competitors.
ADDMM, EPILOGUE, ADDED = "torch.addmm", "torch._addmm_activation", "torch.mm, then add"

#: Of a, b, c, bias, residual, as `perf.operands` makes them; returns the result.
Way = Callable[..., torch.Tensor]

EXAMPLES = """
python -m perf linear
python -m perf linear --class decode --rounds 15
python -m perf linear --id T1,T2,T3 --compiled compile
python -m perf linear --gpus 4 --out linear.jsonl
"""


def register(commands) -> None:
    described = (
        "Race tritemm.linear with bias, activation, residual or gradient accumulation against "
        "torch, eager and compiled, on the layers of a CSV file."
    )
    command = cli.add_command(commands, "linear", run, described, EXAMPLES)
    cli.add_problems(command, LINEAR)
    every = ",".join(COMPILED)
    text = f"what of torch.compile races beside eager torch; default: {every}"
    cli.add_list(command, "--compiled", cli.one_of(*COMPILED), text, every)
    cli.add_shared(command, ROUNDS)


def run(args: argparse.Namespace) -> int:
    try:
        problems = chosen(args.file, args.classes, args.ids)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    if plain := [problem.id for problem in problems if not problem.case.ending]:
        return cli.refuse(f"{', '.join(plain)}: products alone are for python -m perf suite")
    field = functools.partial(ways, compiled=args.compiled)
    return session.race(args, "linear", problems, field, plan_of(args, MOST), text)


def ways(case: Case, operands: Operands, compiled: Collection[str]) -> list[Competitor]:
    """tritemm first, then torch eagerly, twice, then its other ways: `compiled`, of `COMPILED`."""
    torch.compiler.reset()  # what was compiled for the last case is of no use
    after = case.after
    body = _add if after.accumulate else _layer(after)
    others = {name: _way(after, compiled_apart(body, **COMPILED[name])) for name in compiled}
    others |= _single(after)
    eager = _way(after, _accumulate if after.accumulate else body)
    return [
        dataclasses.replace(_ours(case, operands), rivals=tuple(others)),
        *(Competitor(name, way) for name, way in {REFERENCE: eager, NULL: eager, **others}.items()),
    ]


def _ours(case: Case, operands: Operands) -> Competitor:
    fused = _fused(case.after)
    try:
        choice = _choice(case, *operands)
    except (NotImplementedError, ValueError) as error:
        return Competitor(OURS, fused, ladder=TRITON, refusal=str(error))
    kernel, config = choice.kernel, dataclasses.asdict(choice.config)
    return Competitor(OURS, fused, TRITON, kernel.name, kernel.number, config)


def _fused(after: Ending) -> Way:
    if after.accumulate:
        return lambda a, b, c, bias, residual: tritemm.matmul(
            a, b, out=c, beta=1, out_dtype=c.dtype
        )
    activation = after.activation or None
    return lambda a, b, c, bias, residual: tritemm.linear(
        a, b.mT, bias, activation=activation, residual=residual
    )


def _choice(case: Case, a, b, c, bias, residual) -> dispatch.Choice:
    """What tritemm runs; of a gated activation that torch ends, for the product before it."""
    after = case.after
    added = c if after.accumulate else residual
    ending = EpilogueInputs.made(a, b, bias, added, after.activation)
    shape = result_shape(a, b, after.activation)
    out = torch.empty(shape, dtype=c.dtype, device="meta")
    problem = plan.matrices(a, b, out, None, DTYPES[case.accumulate], ending)[0]
    return dispatch.first_choice(problem)


def _way(after: Ending, body: Callable[..., torch.Tensor]) -> Way:
    """Of a function of a, b and c, where the ending accumulates, or else of a layer's arguments."""
    if after.accumulate:
        return lambda a, b, c, bias, residual: body(a, b, c)
    return lambda a, b, c, bias, residual: body(a, b.mT, bias, residual)


def _accumulate(a, b, c) -> torch.Tensor:
    """Into fp32, of 16-bit operands: a form that torch's kernels for the CPU don't have."""
    if not c.is_cuda:
        return c.add_(a.to(c.dtype) @ b.to(c.dtype))
    return torch.addmm(c, a, b, out_dtype=c.dtype, out=c)


def _add(a, b, c) -> torch.Tensor:
    return c.add_(torch.mm(a, b))


def _layer(after: Ending) -> Callable[..., torch.Tensor]:
    """A module's forward, of an input, a weight [N, K], a bias and a residual."""
    name, gated = after.activation, after.gated
    activation = getattr(F, GATED.get(name, name).removesuffix("_tanh")) if name else None
    options = {"approximate": "tanh"} if name == "gelu_tanh" else {}

    def forward(x, weight, bias, residual):
        y = F.linear(x, weight, bias)
        if gated:
            gate, up = y.chunk(2, -1)
            y = activation(gate) * up
        elif activation is not None:
            y = activation(y, **options)
        return y if residual is None else y + residual

    return forward


def _single(after: Ending) -> dict[str, Way]:
    """Torch's functions that do all of it, or the other form of it, by name."""
    if after.accumulate:
        return {ADDED: _way(after, _add)}
    if after == Ending(residual=True):
        return {ADDMM: lambda a, b, c, bias, residual: torch.addmm(residual, a, b)}
    if after == Ending(bias=True, activation="relu"):
        return {EPILOGUE: lambda a, b, c, bias, residual: torch._addmm_activation(bias, a, b)}
    return {}


# Tables

HEAD = ("problem", "", "kernel", "µs", "torch µs", "the best of torch", "µs")
HEAD += ("x the best (p20-p80)", "x torch", "torch again")
TOTALS = ("class", "problems", "x the best", "least", "won", "tied", "lost", "x torch")
MEANS = tables.TALLY | {
    "x the best": lambda tally: tally.mean,
    "x torch": lambda tally: Tally("", [Result(r.ours, {}) for r in tally.timed]).mean,
}


def text(rows: list[Row]) -> str:
    found = tables.results(rows, OURS)
    sides = [tables.listed("wins", found, 1), tables.listed("losses", found, -1)]
    every = [problems_of(found), *sides, totals(found), *_notes(found)]
    return tables.text(every if found else [])


def parts(rows: list[Row], selection: Selection) -> Parts:
    """The means and every problem."""
    found = tables.results(rows, OURS)
    return [totals(found), problems_of(found), *_notes(found), tables.commands(rows)]


def problems_of(found: Sequence[Result]) -> Table:
    body = []
    for result in found:
        ours, best = result.ours, result.best
        first = (tables.RESULT[name](result) for name in HEAD[:4])
        theirs = (us(result.others.get(REFERENCE)), _named(best) if best else "")
        ratios = (spread(result.ratio, result.tie), median(ours.ratio), median(ours.null))
        body.append((*first, *theirs, us(result.others.get(best)), *ratios))
    return Table(HEAD, body, words=3)


def _named(name: str) -> str:
    return {REFERENCE: "torch", OURS: "tritemm"}.get(name, name)


def totals(found: Sequence[Result]) -> Table:
    """A line for each class, and one for all."""
    groups = [tally for tally in tables.tallies(found) if tally.name != "all 16-bit"]
    return Table.of(TOTALS, groups, MEANS)


def _notes(found: Sequence[Result]) -> list[str]:
    """Who was not timed, and why; and which of torch's ways round more than once."""
    rows = [row for result in found for row in (result.ours, *result.others.values())]
    untimed = [row for row in rows if not row.us]
    notes = [f"{r.id}, {_named(r.competitor)}: {r.outcome}: {r.reason}." for r in untimed]
    noted = (row for row in rows if row.us and row.reason)
    rounded = tables.grouped(noted, lambda row: _named(row.competitor)).items()
    listed = "; ".join(f"{name}: {', '.join(row.id for row in own)}" for name, own in rounded)
    told = f"beyond the bound of a result that is rounded once: {listed}."
    return [*notes, told] if listed else notes


VIEWS = {"linear": View(newest_of("linear", lambda: chosen(LINEAR)), parts)}
