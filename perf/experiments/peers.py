"""Who else multiplies, and races beside cuBLAS as torch calls it: cuBLASLt's list, and quack.

cublaslt  the fastest of the algorithms that cuBLASLt's heuristic lists. Each is checked, and timed
          for some milliseconds, before the race (`bench.Quick`); its `config` says what came of it
quack     `quack.gemm_interface.gemm` in its default config, where the package is installed

The best peer of a problem is the fastest of cuBLAS, as torch calls it, and of these, by the median.

Both write to C, on torch's current stream. A peer is no reference: its results are checked before
the race on integers, and in the race within `SLACK`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from .. import competitors, cublaslt, tables
from ..bench import Quick
from ..case import Case
from ..engine import Competitor
from ..operands import Operands, poison
from ..rows import PEERS, REFERENCE, Row
from ..tables import Parts, Result, Table, Tally, spread, us
from ..views import Selection

#: The rows' experiment, by the command.
EXPERIMENTS = {"suite": "peers", "random": "random peers"}
LT, QUACK = PEERS["lt"], PEERS["quack"]
#: Times the error bound. cuBLAS's splits of K that round to 16 bits in between have been up to 142
#: times beyond it; other operands' product is thousands of times beyond.
SLACK = 1000.0
#: The largest error on integers, over the root mean square of the results. Such splits of K have
#: some hundredths; other operands' product has more than 1.
NEAR = 0.1
#: How often each algorithm of a list is timed.
PASSES = 5

#: Of a case, its first operands, and what makes a bench of its own for it.
Maker = Callable[[Case, Operands, Callable[[], Quick]], Competitor]


def peers(case: Case, operands: Operands, words: Iterable[str]) -> list[Competitor]:
    """The competitors that `words` of `rows.PEERS` name, on the device of the operands.

    Nothing is raised: what can't take part is refused, and what fails will fail when it is run.
    """
    there = functools.cache(lambda: Quick(case))  # made once, if one of them wants it
    return [_made(word, case, operands, there) for word in dict.fromkeys(words)]


def against(
    case: Case, operands: Operands, kernels: Iterable[str], words: Iterable[str]
) -> list[Competitor]:
    """`competitors.matmul`, and the peers; what is tritemm's is compared with those too."""
    others = peers(case, operands, words)
    names = tuple(other.name for other in others)
    mine = competitors.matmul(case, operands, kernels)
    return [dataclasses.replace(c, rivals=names) if c.ladder else c for c in mine] + others


def _made(word: str, case: Case, operands: Operands, there: Callable[[], Quick]) -> Competitor:
    try:
        return MAKERS[word](case, operands, there)
    except Exception as error:  # of a compiler or a library: news, not a crash
        failure = error.with_traceback(None)  # which holds memory

    def run(a, b, c) -> None:
        raise failure

    return Competitor(PEERS[word], run)


def _refused(name: str, reason: str) -> Competitor:
    return Competitor(name, lambda a, b, c: None, refusal=reason)


def _why_not(name: str, case: Case, operands: Operands, types: Mapping[str, str]) -> str | None:
    """Why a peer that accumulates these types, named with a word for them, in fp32 can't run."""
    if case.ending:
        return f"{name} is asked for products alone here, and this is {case}"
    if case.dtype not in types:
        return f"{name} is asked for {' and '.join(types.values())} here, not for {case.dtype}"
    if case.accumulate != "fp32":
        return f"{name} is asked to accumulate in fp32 here, not in {case.accumulate}"
    if case.output not in (case.dtype, "fp32"):
        return f"{name} is asked for results of the operands' type or fp32 here: {case}"
    if not all(t.is_cuda for t in operands[:3]):
        return f"the tensors are on the CPU; {name} needs them on a GPU"
    return None


def _disagreement(run: Callable[..., None], there: Quick) -> str | None:
    """How results on small integers differ by more than rounding from the exact ones; None: not."""
    (a, b, c), want = there.exact, there.want
    poison(c)
    run(a, b, c)
    size = float(torch.linalg.vector_norm(want, dtype=torch.float32)) / want.numel() ** 0.5
    worst = float((c - want).abs().max())
    if worst <= NEAR * size:  # which no NaN is
        return None
    return f"on small integers it is off by {worst:.4g}, where results are about {size:.4g}"


# cuBLASLt


def _lt(case: Case, operands: Operands, there: Callable[[], Quick]) -> Competitor:
    types = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
    if reason := _why_not(LT, case, operands, types):
        return _refused(LT, reason)
    if case.dtype == "fp32" and case.precision not in cublaslt.COMPUTE:
        return _refused(LT, f"cuBLASLt has no {case.precision}")
    products = Products(cublaslt.library(), case.precision, operands)
    runs = [functools.partial(products.run, i) for i in range(products.count)]
    if cublaslt.geometry(*there().exact) != cublaslt.geometry(*operands):
        raise RuntimeError("what is timed before the race has other strides or alignments")
    us, fault = timed(runs, there())
    config = {"algorithm": None, "us": us}
    if fault:
        return Competitor(LT, runs[0], config=config, fault=fault)
    kept = min((i for i, each in enumerate(us) if each is not None), key=us.__getitem__)
    return Competitor(LT, runs[kept], config=config | {"algorithm": kept}, slack=SLACK)


class Products:
    """`cublaslt.Product`s by geometry; `count` algorithms compute that of the operands given first.

    Another geometry, as that of the strip by which a bench estimates a time, has its own first one.
    """

    def __init__(self, lt: cublaslt.Library, precision: str, operands: Operands):
        self._lt, self._precision = lt, precision
        self._known: dict[tuple, cublaslt.Product] = {}
        self._first = self._of(*operands)
        self.count = len(self._first.algorithms)

    def run(self, index: int, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        product = self._of(a, b, c)
        product.run(index if product is self._first else 0, a, b, c)

    def _of(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> cublaslt.Product:
        key = cublaslt.geometry(a, b, c)
        if key not in self._known:
            self._known[key] = cublaslt.Product(self._lt, a, b, c, self._precision)
        return self._known[key]


def timed(
    runs: Sequence[Callable[..., None]], there: Quick
) -> tuple[list[float | None], str | None]:
    """Microseconds of each, None where it can't run; and which of them is wrong, in a sentence.

    Medians of `PASSES` over all of them in random order. The last error where none can run.
    """
    loops, last, rng = {}, None, random.Random(0)
    for index, run in enumerate(runs):
        try:
            if wrong := _disagreement(run, there):
                return [None] * len(runs), f"algorithm {index} of {len(runs)}: {wrong}"
            loops[index] = there.loop(Competitor(LT, run))
        except RuntimeError as error:  # one that the list has, and this card or stream doesn't take
            there.recover()
            last = error
    if last and not loops:
        raise last
    samples: dict[int, list[float]] = {index: [] for index in loops}
    for _ in range(PASSES):
        for index in rng.sample(list(loops), len(loops)):
            samples[index].append(loops[index].time().seconds * 1e6)
    us = [statistics.median(samples[i]) if i in loops else None for i in range(len(runs))]
    return [each and round(each, 3) for each in us], None


# quack


def _quack(case: Case, operands: Operands, there: Callable[[], Quick]) -> Competitor:
    if reason := _why_not(QUACK, case, operands, {"bf16": "bf16", "fp16": "fp16"}):
        return _refused(QUACK, reason)
    if not all(map(_whole, operands[:3])):
        return _refused(QUACK, "quack takes rows of whole 16 bytes alone, at such addresses")
    try:
        interface = importlib.import_module("quack.gemm_interface")
    except ImportError as error:
        return _refused(QUACK, f"quack is not installed ({error}): pip install quack-kernels")

    def run(a, b, c) -> None:
        interface.gemm(a, b, out=c, tuned=False)

    config = {"version": importlib.import_module("quack").__version__, "tuned": False}
    return Competitor(
        QUACK, run, config=config, fault=_disagreement(run, there()), slack=SLACK
    )  # fmt: skip


def _whole(t: torch.Tensor) -> bool:
    """Whether the address and all strides but that of one are multiples of 16 bytes."""
    strides = [stride for stride in t.stride() if stride != 1]
    return all(size * t.element_size() % 16 == 0 for size in strides) and t.data_ptr() % 16 == 0


MAKERS: dict[str, Maker] = {"lt": _lt, "quack": _quack}


# Tables

#: The classes of large problems. Those of 16-bit types have a total, but for any whose rows are not
#: whole 16 bytes: there cuBLAS is slow.
LARGE, LARGE_CLASSES = "large aligned", ("prefill", "train", "square")
TOTALS = ("class", "problems", "x cuBLAS", "least", "x best peer", "least", "won", "tied", "lost")
TOTALS += ("the best peers",)


def text(rows: list[Row]) -> str:
    """Every problem, what is won and lost against the best, and the means, for a terminal."""
    parts: list[Table | str] = []
    for name in ours(rows):
        found = beside(rows, name)
        parts += [_problems(rows, found), *_notes(found)]
        parts += [tables.listed("wins against the best peer", found, 1)]
        parts += [tables.listed("losses against the best peer", found, -1), totals(found)]
    return tables.text([*parts, tables.quiet(rows)])


def parts(rows: list[Row], selection: Selection) -> Parts:
    """The means and every problem."""
    found = beside(rows, selection.competitor)
    lost = f"{tables.listed('Lost to the best peer', found, -1)}."
    tail = [lost, _problems(rows, found), *_notes(found), tables.commands(rows)]
    return [totals(found), tables.quiet(rows), *tail]


def sentence(rows: Sequence[Row], competitor: str) -> str:
    """The means, for a headline; empty where nothing was timed."""
    groups = {tally.name: tally for tally in _groups(beside(rows, competitor))}
    every = groups["all"]
    if not every.timed:
        return ""
    raced = ["cuBLAS", *_peers_of(rows)]
    large = f", at {groups[LARGE].geomean:.2f}x on the {LARGE} ones" if LARGE in groups else ""
    return (
        f"Against the fastest of {', '.join(raced[:-1])} and {raced[-1]} on each of "
        f"{len(every.timed)} shapes it runs at {every.geomean:.2f}x{large}, the worst at "
        f"{every.least.ratio.p50:.2f}x ({every.least.ours.case.size})."
    )


def ours(rows: Iterable[Row]) -> list[str]:
    """What of tritemm raced, in the order of appearance."""
    return [name for name in tables.competitors(rows) if name not in PEERS.values()]


def _peers_of(rows: Iterable[Row]) -> list[str]:
    there = {row.competitor for row in rows}
    return [name for name in PEERS.values() if name in there]


def beside(rows: Sequence[Row], competitor: str) -> list[Result]:
    """Each problem of one of ours; the others of tritemm's are no peers."""
    mine = ours(rows)
    return tables.results(rows, competitor, lambda name: name not in mine)


def totals(found: Sequence[Result]) -> Table:
    """A line for each class, for the large problems, for the 16-bit ones, and for all."""
    body = []
    for tally in _groups(found):
        cublas = Tally("cublas", [Result(result.ours, {}) for result in tally.timed])
        best = collections.Counter(_named(result.best) for result in tally.timed)
        means = (cublas.mean, cublas.least_at(), tally.mean, tally.least_at())
        who = ", ".join(f"{peer} {times}" for peer, times in best.most_common())
        body.append((tally.name, tally.count, *means, *tally.sides, who))
    return Table(TOTALS, body)


def _groups(found: Sequence[Result]) -> list[Tally]:
    timed = [tally for tally in tables.tallies(found, {LARGE: _large}) if tally.results]
    return timed or [Tally("all", [])]


def _large(result: Result) -> bool:
    case, group = result.ours.case, result.ours.problem["class"]
    a, b = case.layout
    rows = (case.K if a == "N" else case.M, case.N if b == "N" else case.K, case.N)
    aligned = all(elements % 8 == 0 for elements in rows)
    return case.dtype in tables.SIXTEEN_BIT and group in LARGE_CLASSES and aligned


def _problems(rows: Iterable[Row], found: Sequence[Result]) -> Table:
    """What has no time says what became of it."""
    others = (REFERENCE, *_peers_of(rows))
    head = ("problem", "", "kernel", "µs", *(f"{_named(name)} µs" for name in others))
    body = []
    for result in found:
        row, best = result.ours, result.best
        first = (f"{result.id} {row.problem['name']}", str(row.case), row.rung or "", us(row))
        times = (us(result.others.get(name)) for name in others)
        ratios = (spread(row.ratio, row.tie), (best and _named(best)) or "")
        body.append((*first, *times, *ratios, spread(result.ratio, result.tie)))
    more = ("x cuBLAS (p20-p80)", "best peer", "x best peer (p20-p80)")
    return Table((*head, *more), body, words=3)


def _named(name: str) -> str:
    return "cuBLAS" if name == REFERENCE else name


def _notes(found: Sequence[Result]) -> list[str]:
    """Who has no time, and why; and whose results missed the error bound, and were timed."""
    notes, beyond = [tables.unmeasured(result.ours for result in found)], []
    for name in (REFERENCE, *PEERS.values()):
        own = [result.others[name] for result in found if name in result.others]
        if told := tables.unmeasured(own):
            notes.append(f"{_named(name)}: {told}")
        if missed := [row.id for row in own if row.us and row.reason]:
            beyond.append(f"{_named(name)}: {', '.join(missed)}")
    return [*notes, f"Beyond the error bound: {'; '.join(beyond)}." if beyond else ""]
