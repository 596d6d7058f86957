"""`python -m perf suite | random`: `tritemm.matmul` against cuBLAS, and peers, on many problems.

With `--peers`, and with `--batch-invariant`, the rows are an experiment with a name of its own, so
that no table of the suite takes them for a run of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import textwrap
from collections.abc import Sequence

from .. import bars, cli, figures, tables
from ..problems import SUITE, WIDE, Problem, chosen, random_problems, read_suite
from ..race import Preset
from ..rows import INVARIANT, Row
from ..select import full_runs
from ..tables import Parts, Result, Table, Tally
from ..views import ENOUGH, Selection, View, full_suite, latest_of, newest_of, newest_suite

SUITE_EXAMPLES = """
python -m perf suite
python -m perf suite --class decode,ragged --kernel auto,persistent
python -m perf suite --id P1,S4 --rounds 30 --mode burst
python -m perf suite --file mine.csv --out mine.jsonl
python -m perf suite --batch-invariant --class decode
python -m perf suite --peers lt,quack --class prefill,square
"""
RANDOM_EXAMPLES = """
python -m perf random
python -m perf random --n 60 --seed 7 --kernel tma
python -m perf random --n 100 --peers lt,quack
"""


def register(commands) -> None:
    described = "Race tritemm.matmul against cuBLAS on the shape suite, or on another."
    suite = {"rounds": 5, "most": 24, "text": text}
    made = Preset("suite", described, SUITE_EXAMPLES, suite_problems, suite_options, **suite)
    made.register(commands)
    described = "Race tritemm.matmul against cuBLAS on log-uniform random problems."
    # Of random problems only the means count.
    chance = (drawn, random_options)
    Preset("random", described, RANDOM_EXAMPLES, *chance, rounds=4, most=5).register(commands)


def suite_options(command: argparse.ArgumentParser) -> None:
    cli.add_problems(command, SUITE)
    text = "also race matmul(batch_invariant=True); rows belong to the experiment 'invariant'"
    command.add_argument("--batch-invariant", action="store_true", help=text)
    cli.add_kernels(command)
    cli.add_peers(command, "; rows belong to an experiment of their own")


def drawn(args: argparse.Namespace) -> list[Problem]:
    """The 16-bit problems of the seed, and an eighth as many of fp32 and fp64."""
    wide = random_problems(args.n // 8, args.seed, WIDE)
    return random_problems(args.n, args.seed) + wide


def random_options(command: argparse.ArgumentParser) -> None:
    count, text = (
        cli.argument(cli.positive),
        "16-bit problems; an eighth as many in fp32 and fp64 are added",
    )
    command.add_argument("--n", type=count, default=400, help=f"{text}; default: 400")
    cli.add_kernels(command)
    cli.add_peers(command, "; rows belong to an experiment of their own")


def suite_problems(args: argparse.Namespace) -> list[Problem]:
    problems = chosen(args.file, args.classes, args.ids)
    if ended := [problem.id for problem in problems if problem.case.ending]:
        told = f"{', '.join(ended)}: products with an ending are for perf race"
        raise ValueError(told)
    return problems


# Tables

HEAD = ("class", "problems", "geomean", "least", "at 1.00 or more", "won", "tied", "lost")
PROBLEMS = ("problem", "", "kernel", "µs", "TFLOP/s", "GB/s", "x cuBLAS (p20-p80)", "% of roof")
PROBLEMS += ("cuBLAS µs",)


def text(rows: list[Row]) -> str:
    """Every problem, what was won and lost, and the means, for a terminal."""
    cost = _invariant(rows) if INVARIANT in tables.tritemms(rows) else ()
    return tables.text([*tables.report(rows), *cost])


def means(found: Sequence[Result]) -> Table:
    """A line for each class, and for all."""
    return Table.of(HEAD, tables.tallies(found), tables.TALLY)


def _runs(rows: list[Row], selection: Selection) -> Parts:
    """Each full run of the suite: whether they agree, and how quiet each was."""
    head = ("run", "commit", "problems", "geomean", "null test: geomean", "farthest from 1")
    body = []
    for run, own in tables.grouped(rows, lambda row: row.run).items():
        every = Tally("all", tables.against_cublas(own, selection.competitor))
        commit = (own[0].environment.commit or "unknown")[:7]
        found = tables.noise(own)
        quiet = (f"{found[0]:.4f}", f"{found[1]:.4f} ({found[2]})") if found else ("", "")
        count, mean = str(len(every.timed)), f"{every.geomean:.4f}"
        body.append((run[:16].replace("T", " "), commit, count, mean, *quiet))
    return [Table(head, body, words=2)]


def _to_auto(row: Row):
    """Auto's time over this row's."""
    return (row.versus or {}).get("auto")


def _invariant(rows: list[Row], selection: Selection | None = None) -> Parts:
    """What batch invariance costs: problems of few rows pay the most."""
    head = ("", "problems", "x cuBLAS", "least", "auto's x cuBLAS", "x auto", "least")
    found = tables.against_cublas(rows, INVARIANT)
    autos = {result.id: result for result in tables.against_cublas(rows)}
    groups = {tally.name: tally for tally in tables.tallies(found)}
    body = []
    for name in ("all 16-bit", "decode", "all"):
        if not (tally := groups.get(name)):
            continue
        both = [r for r in tally.timed if _to_auto(r.ours)]
        theirs = Tally("auto", [autos[r.id] for r in both if r.id in autos])
        alone = (dataclasses.replace(r.ours, ratio=_to_auto(r.ours)) for r in both)
        to_auto = Tally("x auto", [Result(row, {}) for row in alone])
        first = (name, tally.count, tally.mean, tally.least_at(), theirs.mean)
        body.append((*first, to_auto.mean, to_auto.least_at()))
    return [Table(head, body), tables.unmeasured(result.ours for result in found)]


# Pictures


def plot_suite(rows: list[Row], selection: Selection):
    """Every problem's ratio to cuBLAS, by class."""
    own = figures.measured(tables.against_cublas(rows, selection.competitor))
    words = f"{figures.called(r.ours for r in own)} over cuBLAS, {rows[0].mode}"
    return bars.plot(own, words, _named, "cuBLAS")


def _named(row: Row) -> str:
    """`P1   L3-8B qkv prefill   8192x28672x4096 NT bf16`; the output's type where it differs."""
    case, name = row.case, textwrap.shorten(row.problem["name"], 25, placeholder=" …")
    output = f"→{case.out_dtype}" if case.out_dtype else ""
    size = f"{case.size.replace(' ', '')} {case.layout} {case.kind}{output}"
    return f"{row.id:4}{name:26}{size:29}"


def plot_random(rows: list[Row], selection: Selection):
    """How the ratio to cuBLAS goes with size and alignment.

    Across: microseconds that the roof allows; floating-point operations where no roof is known.
    """
    own = figures.measured(tables.against_cublas(rows, selection.competitor))
    *classes, total = tables.tallies(own)
    roofed = all(result.ours.roof for result in total.timed)
    figure, axes = figures.blank(5.2)
    figures.reference(axes)
    classes = sorted(classes, key=lambda tally: _alignment(tally.name), reverse=True)
    for tally, (color, marker) in zip(classes, figures.CLASSES, strict=False):
        points = [result.ours for result in tally.timed]
        across = [row.roof.floor(row.case) if roofed else row.case.flops for row in points]
        label = f"{tally.name}: geomean {tally.mean} of {len(points)}"
        style = {"s": 20, "marker": marker, "color": color, "alpha": 0.75, "linewidths": 0}
        up = [row.ratio.p50 for row in points]
        axes.scatter(across, up, zorder=2, label=label if points else tally.name, **style)
    axes.set_xscale("log")
    figures.ratio_axis(axes.yaxis, [result.ratio.p50 for result in total.timed])
    across = "microseconds at the roof" if roofed else "floating-point operations"
    axes.set_xlabel(across, fontsize=10)
    axes.set_ylabel("times cuBLAS's speed in the same rounds", fontsize=10)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if roofed else f"{x:.0e}")
    figures.legend(axes, 2)
    words = f"{figures.called(r.ours for r in own)} over cuBLAS, {rows[0].mode}, "
    words += f"{len(total.timed)} random problems{bars.without(total)}"
    share = total.share().rpartition(", ")[2]
    figures.title(figure, f"{words}:\n{share} at 1.0 or more, geomean {total.mean}")
    figures.caption(figure, [result.ours for result in own])
    return figure


def _alignment(group: str) -> int:
    """What a class's dimensions are multiples of, from its name: `multiples of 64`, `any size`."""
    found = re.search(r"multiples of (\d+)", group)
    return int(found[1]) if found else 1


# Views


def _summary(rows: list[Row], s: Selection) -> Parts:
    found = tables.against_cublas(rows, s.competitor)
    return [means(found), tables.quiet(rows), tables.commands(rows)]


def _problems(rows: list[Row], s: Selection) -> Parts:
    """Every problem; those without a time show their outcome in a word."""
    found = tables.against_cublas(rows, s.competitor)
    untimed = tables.unmeasured(result.ours for result in found)
    table = Table.of(PROBLEMS, found, tables.RESULT, words=3)
    return [table, untimed, _later(rows), tables.commands(rows)]


def _later(rows: Sequence[Row]) -> str:
    """A sentence that names the problems of the suite that are newer than a run of it."""
    suite, raced = [problem.id for problem in read_suite()], {row.id for row in rows}
    later = [key for key in suite if key not in raced]
    return f"Not raced yet: {', '.join(later)}." if 0 < len(later) < len(suite) else ""


def _all_runs(rows: Sequence[Row], s: Selection) -> list[Row]:
    return full_runs(rows, "suite", s.competitor, full_suite(), gpu=s.gpu, mode=s.mode)


VIEWS = {
    "suite": View(newest_suite, _summary, plot_suite, "suite 3"),
    "problems": View(newest_suite, _problems),
    "runs": View(_all_runs, _runs),
    "random": View(latest_of("random", lambda: ENOUGH), _summary, plot_random, "random 2"),
    "invariant": View(
        newest_of("invariant", read_suite),
        lambda rows, s: [*_invariant(rows), tables.commands(rows)],
    ),
}
