"""Rows as tables, for a terminal and as Markdown: cells, captions, who won, and the means."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from . import sources
from .rows import NULL, REFERENCE, TORCH_FAST, Row
from .stats import Quantiles, geomean

SIXTEEN_BIT = ("bf16", "fp16")
T = TypeVar("T", bound=Hashable)
#: What a table's columns show of an item, by their heads.
Cells = Mapping[str, Callable[[Any], str]]


class Table(NamedTuple):
    """Cells below a head; the first `words` columns and the last `tail` ones are of words."""

    head: Sequence[str]
    body: Sequence[Sequence[str]]
    words: int = 1
    tail: int = 0

    @staticmethod
    def of(head: Sequence[str], items: Iterable[Any], cells: Cells, **widths: int) -> Table:
        """A line for each item, of what `cells` say of it."""
        return Table(head, [[cells[name](item) for name in head] for item in items], **widths)


#: What a report is made of: tables, and sentences.
Parts = Iterable[Table | str | None]


def text(parts: Parts) -> str:
    """The report for a terminal."""
    return _joined(parts, lambda table: align([table.head, *table.body]))


def markdown(parts: Parts) -> str:
    return _joined(parts, _markdown)


def _joined(parts: Parts, table: Callable[[Table], str]) -> str:
    found = [table(part) if isinstance(part, Table) else part for part in parts if part]
    return "\n\n".join(found) or "nothing was measured"


def _markdown(table: Table) -> str:
    head, body, words, tail = table
    rule = "|" + "---|" * words + "--:|" * (len(head) - words - tail) + "---|" * tail
    return "\n".join([line(head), rule, *map(line, body)])


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def align(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns: words to the left, figures to the right.

    A column is of figures where no cell below the head begins with a letter.
    """
    forms = []
    for head, *column in zip(*lines, strict=True):
        side = "<" if any(cell[:1].isalpha() for cell in column) else ">"
        forms.append(f"{side}{max(map(len, (head, *column)))}")
    found = (map(format, cells, forms) for cells in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in found)


def whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share in percent, without the sign."""
    return whole(100 * share if share else None)


def digits(value: float | None) -> str:
    """A number with at least three significant digits."""
    if value is None:
        return ""
    for limit, decimals in ((1, 3), (10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"


def us(row: Row | None, outcome: bool = True) -> str:
    """The median in microseconds; without one, its outcome if `outcome`."""
    if row and row.us:
        return digits(row.us.p50)
    return row.outcome if row and outcome else ""


def us_spread(row: Row | None) -> str:
    """The median and the percentiles around it."""
    if row is None or not row.us:
        return us(row)
    return f"{us(row)} ({digits(row.us.p20)}-{digits(row.us.p80)})"


def spread(ratio: Quantiles | None, tie: bool = False) -> str:
    """The median and the percentiles around it; a tie is named."""
    if not ratio:
        return ""
    return f"{ratio.p50:.3f} ({ratio.p20:.3f}-{ratio.p80:.3f}){', a tie' if tie else ''}"


def median(ratio: Quantiles | None) -> str:
    return f"{ratio.p50:.3f}" if ratio else ""


def caption(rows: Sequence[Row]) -> str:
    """The case and the origin, for under a table."""
    return f"{rows[0].case}, {rows[0].mode}. {origin(rows)}"


def origin(rows: Sequence[Row]) -> str:
    """GPU, versions, commit and day of the newest row; and whether the kernels are still those.

    cuBLAS's is every version that the rows had, the newest row's first.
    """
    newest = sorted(rows, key=lambda row: row.time, reverse=True)
    row = newest[0]
    e = row.environment
    commit = f"commit {e.commit[:7]}{'+' if e.dirty else ''}" if e.commit else "commit unknown"
    if len({r.environment.commit for r in rows}) > 1:
        commit += " and older"
    cublas = " and ".join(dict.fromkeys(r.environment.cublas or "?" for r in newest))
    versions = f"Triton {e.triton}, torch {e.torch}, cuBLAS {cublas}"
    return f"{e.gpu}, {versions}, {commit}, {row.time[:10]}{sources.note(rows)}"


def commands(rows: Sequence[Row]) -> str:
    """What was run, how, and the origin.

    Without `--gpus N`, which older rows have and the commands no longer take: problems were shared
    out among so many GPUs of one kind.
    """
    found = (re.sub(r" --gpus \d+", "", row.command) for row in rows)
    typed = ", ".join(dict.fromkeys(f"`{command}`" for command in found))
    return f"{typed}, {rows[0].mode}. {origin(rows)}"


def unmeasured(rows: Iterable[Row], named: Callable[[Row], str] = lambda row: row.id) -> str:
    """A sentence that names the rows without a time by what became of them; empty if all have."""
    untimed = (row for row in rows if not row.us)
    reasons = grouped(untimed, lambda row: f"{row.outcome}: {row.reason}").items()
    told = "; ".join(f"{', '.join(dict.fromkeys(map(named, own)))} {why}" for why, own in reasons)
    return told and f"{told}."


def reasons(rows: Iterable[Row], named: Callable[[Row], str]) -> list[str]:
    """What became of the unmeasured, and what there is to say of the measured; each once."""
    told = [
        f"{named(row)}: {'' if row.us else f'{row.outcome}: '}{row.reason}."
        for row in rows
        if row.reason
    ]
    return list(dict.fromkeys(told))


def rounds(rows: Iterable[Row]) -> str:
    """How many rounds the measured took part in: `9`, or `5 to 9` where sittings differ."""
    counts = {row.rounds or 0 for row in rows if row.us} or {0}
    least, most = min(counts), max(counts)
    return f"{most}" if least == most else f"{least} to {most}"


def grouped(items: Iterable, key: Callable[[Any], T]) -> dict[T, list]:
    """The items of each key, in the order of appearance."""
    found: dict[T, list] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def raced(rows: Iterable[Row], key: Callable[[Row], T] = lambda row: row.id) -> dict:
    """The rows of each problem, or of what `key` tells apart, by competitor."""
    return {each: {r.competitor: r for r in race} for each, race in grouped(rows, key).items()}


@dataclasses.dataclass(frozen=True)
class Result:
    """One problem: our row, the others' by name, the fastest of those, and the ratio to it."""

    ours: Row
    others: Mapping[str, Row]

    @property
    def id(self) -> str:
        return self.ours.id

    @property
    def best(self) -> str | None:
        """The name of that of the others with the least median."""
        timed = {name: row.us.p50 for name, row in self.others.items() if row.us}
        return min(timed, key=timed.get) if timed else None

    @property
    def ratio(self) -> Quantiles | None:
        """The best of the others' time over ours, within rounds."""
        if self.best in (None, REFERENCE):
            return self.ours.ratio
        return (self.ours.versus or {}).get(self.best)

    @property
    def tie(self) -> bool:
        """Whether the ratio says nothing, as of `Row.tie`."""
        return dataclasses.replace(self.ours, ratio=self.ratio).tie

    @property
    def side(self) -> int:
        """1 where we win, -1 where we lose, 0 where it is a tie or wasn't timed."""
        if self.ratio is None or self.tie:
            return 0
        return 1 if self.ratio.p50 > 1 else -1


#: Columns of results; where there is no time, the kernel's says what became of it.
RESULT: Cells = {
    "problem": lambda result: f"{result.id} {result.ours.problem['name']}",
    "": lambda result: str(result.ours.case),
    "kernel": lambda r: r.ours.rung or "" if r.ours.us else r.ours.outcome,
    "µs": lambda result: us(result.ours, outcome=False),
    "TFLOP/s": lambda result: digits(result.ours.tflops),
    "GB/s": lambda result: digits(result.ours.gbs),
    "x cuBLAS (p20-p80)": lambda result: spread(result.ours.ratio, result.ours.tie),
    "x torch": lambda result: median(result.ours.ratio),
    "torch again": lambda result: median(result.ours.null),
    "% of roof": lambda result: percent(result.ours.of_roof),
    "cuBLAS µs": lambda result: us(result.others.get(REFERENCE), outcome=False),
    "torch µs": lambda result: us(result.others.get(REFERENCE)),
    "best": lambda result: called(result, result.best),
    "its µs": lambda result: us(result.others.get(result.best)),
    "x the best (p20-p80)": lambda result: spread(result.ratio, result.tie),
}


def called(result: Result, name: str | None) -> str:
    """One of the others; the reference is cuBLAS, or torch where it is more than a product."""
    case = result.ours.case
    reference = "torch" if case.ending or case.groups or case.scaling else "cuBLAS"
    return {None: "", REFERENCE: reference, TORCH_FAST: "torch fast"}.get(name, name)


def results(
    rows: Iterable[Row], ours: str = "auto", others: Callable[[str], bool] = lambda name: True
) -> list[Result]:
    """Results by problem, in the order of the rows, against the others that `others` accepts."""
    return [
        Result(race[ours], {n: r for n, r in race.items() if n not in (ours, NULL) and others(n)})
        for race in raced(rows).values()
        if ours in race
    ]


def against_cublas(rows: Iterable[Row], ours: str = "auto") -> list[Result]:
    return results(rows, ours, lambda name: name == REFERENCE)


def against_all(rows: Sequence[Row], ours: str = "auto") -> list[Result]:
    """Against all that is not tritemm's."""
    mine = tritemms(rows)
    return results(rows, ours, lambda name: name not in mine)


def tritemms(rows: Iterable[Row]) -> list[str]:
    """What of tritemm raced, in the order of appearance."""
    return list(dict.fromkeys(row.competitor for row in rows if row.ladder))


def others(found: Iterable[Result]) -> list[str]:
    """Names of those who raced against ours, in the order of appearance."""
    return list(dict.fromkeys(name for result in found for name in result.others))


def notes(found: Sequence[Result], beyond: str = "Beyond the error bound") -> list[str]:
    """Sentences: who has no time, and why; whose results missed the bound, and were timed."""
    told, missed = [unmeasured(result.ours for result in found)], []
    for name in others(found):
        raced = [result for result in found if name in result.others]
        own, name = [result.others[name] for result in raced], called(raced[0], name)
        if text := unmeasured(own):
            told.append(f"{name}: {text}")
        if ids := [row.id for row in own if row.us and row.reason]:
            missed.append(f"{name}: {', '.join(ids)}")
    return [*told, f"{beyond}: {'; '.join(missed)}." if missed else ""]


def report(rows: Sequence[Row]) -> Parts:
    """Each of tritemm's: every problem, what it won and lost against the best, and the means."""
    for name in tritemms(rows):
        found = against_all(rows, name)
        there = others(found)
        names = {each: called(found[0], each) for each in there}
        cells = RESULT | {
            f"{names[each]} µs": lambda result, each=each: us(result.others.get(each))
            for each in there
        }
        cells |= {f"x {each} (p20-p80)": RESULT["x cuBLAS (p20-p80)"] for each in names.values()}
        first = names.get(REFERENCE, "cuBLAS")
        head = ["problem", "", "kernel", "µs", "TFLOP/s", "GB/s", "% of roof"]
        head += [f"{each} µs" for each in names.values()] + [f"x {first} (p20-p80)"]
        means, best = TALLY, ("best", "x the best (p20-p80)") if len(there) > 1 else ()
        if best:
            means = TALLY | {f"x {first}": lambda tally: tally.to_reference.mean}
        yield from (Table.of([*head, *best], found, cells, words=3), *notes(found))
        yield from (listed("wins", found, 1), listed("losses", found, -1))
        yield Table.of(list(means), tallies(found), means)
        yield weighted(found)
    yield quiet(rows)


def weighted(found: Sequence[Result]) -> str:
    """All products as often as their weights say, as a sentence; empty where none is given."""
    timed = [r for r in found if r.ours.us and (row := r.others.get(REFERENCE)) and row.us]
    weights = [int(result.ours.problem.get("weight", 1)) for result in timed]
    if set(weights) <= {1}:
        return ""
    pairs = [(result.ours, result.others[REFERENCE]) for result in timed]
    ours, theirs = (
        sum(weight * pair[side].us.p50 for weight, pair in zip(weights, pairs, strict=True))
        for side in (0, 1)
    )
    name = called(timed[0], REFERENCE)
    return (
        f"Run as often as their weights say: {digits(ours)} µs, and {digits(theirs)} with {name}: "
        f"{theirs / ours:.3f} times {name}'s speed."
    )


def sorted_by(found: Iterable[Result], side: int) -> list[Result]:
    """Those on that side of a tie, the farthest from it first."""
    return sorted((r for r in found if r.side == side), key=lambda r: -side * r.ratio.p50)


def listed(title: str, found: Iterable[Result], side: int) -> str:
    own = sorted_by(found, side)
    return f"{title} ({len(own)}): {', '.join(f'{r.id} {r.ratio.p50:.3f}' for r in own) or 'none'}"


@dataclasses.dataclass(frozen=True)
class Tally:
    """What some problems say together. A tie is neither won nor lost."""

    name: str
    results: Sequence[Result]

    @property
    def timed(self) -> list[Result]:
        return [result for result in self.results if result.ratio]

    @property
    def count(self) -> str:
        timed, every = len(self.timed), len(self.results)
        return str(every) if timed == every else f"{timed} of {every}"

    @property
    def geomean(self) -> float:
        return geomean(result.ratio.p50 for result in self.timed)

    @property
    def to_reference(self) -> Tally:
        """The timed ones against the reference alone."""
        return Tally(self.name, [Result(result.ours, {}) for result in self.timed])

    @property
    def mean(self) -> str:
        return f"{self.geomean:.3f}" if self.timed else ""

    @property
    def least(self) -> Result | None:
        return min(self.timed, key=lambda result: result.ratio.p50, default=None)

    def least_at(self, named: Callable[[Result], str] = lambda result: result.id) -> str:
        least = self.least
        return f"{least.ratio.p50:.3f} ({named(least)})" if least else ""

    def reached(self, limit: float = 1.0) -> int:
        return sum(result.ratio.p50 >= limit for result in self.timed)

    def share(self, limit: float = 1.0) -> str:
        """`9 of 10, 90 %`."""
        timed, reached = len(self.timed), self.reached(limit)
        return f"{reached} of {timed}, {100 * reached / timed:.0f} %" if timed else ""

    @property
    def sides(self) -> tuple[str, str, str]:
        """How many are won, tied and lost; empty where nothing was timed."""
        sides = [result.side for result in self.timed]
        return tuple(str(sides.count(side)) if sides else "" for side in (1, 0, -1))


def tallies(found: Sequence[Result], more: Mapping[str, Callable] | None = None) -> list[Tally]:
    """The tally of each class, of what `more` accept, of the 16-bit problems, and of all.

    The 16-bit problems are left out where they are all.
    """
    groups = grouped(found, lambda result: result.ours.problem["class"])
    groups |= {name: list(filter(holds, found)) for name, holds in (more or {}).items()}
    groups["all 16-bit"] = [r for r in found if r.ours.case.dtype in SIXTEEN_BIT]
    if len(groups["all 16-bit"]) == len(found) and more is None:
        del groups["all 16-bit"]
    return [Tally(name, own) for name, own in groups.items() if own] + [Tally("all", found)]


#: Columns of tallies.
TALLY: Cells = {
    "class": lambda tally: tally.name,
    "problems": lambda tally: tally.count,
    "geomean": lambda tally: tally.mean,
    "least": lambda tally: tally.least_at(),
    "at 1.00 or more": lambda tally: tally.share(),
    "won": lambda tally: tally.sides[0],
    "tied": lambda tally: tally.sides[1],
    "lost": lambda tally: tally.sides[2],
}


def noise(rows: Iterable[Row]) -> tuple[float, float, str] | None:
    """The null test over many problems: geomean, the farthest from 1, and where.

    One value per problem; None without any.
    """
    nulls = {row.id: row.null.p50 for row in rows if row.null}
    if not nulls:
        return None
    at = max(nulls, key=lambda key: abs(nulls[key] - 1))
    return geomean(nulls.values()), nulls[at], at


def quiet(rows: Iterable[Row], name: str = "cuBLAS") -> str:
    """The null test of the reference as a sentence; empty without one."""
    if not (found := noise(rows)):
        return ""
    mean, farthest, at = found
    return f"{name} against itself: geomean {mean:.4f}, farthest from 1 {farthest:.4f} ({at})."
