"""`python -m perf search`: time everything that the dispatcher could have chosen."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tritemm.problem.config import changed

from .. import cli, searches
from ..case import ACCUMULATE, Case, parse_layout
from ..problems import SUITE, chosen, random_problems
from ..searches import CUBLAS, Result, Searches, Task, tasks_of, timed
from ..session import heading_line, record
from ..stats import geomean
from ..tables import grouped

EXAMPLES = """
python -m perf search --class prefill,decode --out found.jsonl
python -m perf search --random 60 --seed 7 --limit 300 --out found.jsonl
python -m perf search --shape 4096,4096,4096,NT --shape 333,7777,1111,NN --all
python -m perf search --id P1 --kernel pingpong
"""


def register(commands) -> None:
    described = "Time every config that the dispatcher could choose; how good is its choice?"
    command = cli.add_command(commands, "search", run, described, EXAMPLES)
    add = command.add_argument
    cli.add_problems(command, SUITE)
    count, listed = cli.argument(cli.positive), {"action": "append", "default": []}
    add("--random", type=count, metavar="N", help="that many random problems")
    listed |= {"dest": "shapes", "type": cli.argument(shape), "metavar": "M,N,K[,LAYOUT]"}
    add("--shape", **listed, help="one problem; may be given again")
    add("--dtype", choices=cli.TYPES, default="bf16", help="of --shape; default: bf16")
    add("--seed", type=int, default=0, help="of the random problems, the data and the order")
    searches.add_search(command)
    words = cli.argument(cli.one_of(*cli.KERNELS))
    add("--kernel", type=words, default="auto", help="candidates of one rung")
    add("--limit", type=float, metavar="SECONDS", help="begin no problem after so long")
    add("--out", type=Path, help="JSON lines are added to this file")


def shape(text_: str) -> tuple[int, int, int, str]:
    """`4096,4096,512,NT` or without a layout, which is then NN."""
    words = text_.split(",")
    layout = "NN" if words[-1].isdecimal() else parse_layout(words.pop().upper())
    if len(words) != 3:
        raise ValueError(f"a shape is M,N,K or M,N,K,LAYOUT, not {text_!r}")
    return (*map(cli.positive, words), layout)


def run(args: argparse.Namespace) -> int:
    """0; 1 if an output was wrong; 2: it can't begin; 3: the device failed; 130 after Ctrl-C."""
    try:
        cases = wanted(args)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    if args.out and args.out.suffix == ".gz":
        return cli.refuse("--out: lines are added to a plain file; gzip it after the search")
    if reason := cli.unable("search"):
        return cli.refuse(reason)
    torch.manual_seed(args.seed)
    tasks = tasks_of(cases, args.kernel, None if args.all else args.within)
    return search_all(tasks, args)


def wanted(args: argparse.Namespace) -> list[Case]:
    """The suite's problems unless others are named; ValueError says what isn't there."""
    found = []
    if args.classes or args.ids or not (args.random or args.shapes):
        found += chosen(args.file, args.classes, args.ids)
    if args.random:
        found += random_problems(args.random, args.seed)
    types = (args.dtype, ACCUMULATE[args.dtype])
    cases = [*(problem.case for problem in found), *(Case(*s, *types) for s in args.shapes)]
    return list(dict.fromkeys(cases))


def to_json(task: Task, result: Result) -> dict[str, Any]:
    """One line: the problem, the option, what it took and what was expected, in microseconds.

    `precision` and `accumulate` are there where they are not the type's own; `error` where there
    is no time; `scaled` where the time is; `chosen` on the line of the dispatcher's choice.
    """
    case, option = task.case, result.option
    us, predicted = (s and float(f"{1e6 * s:.5g}") for s in (result.seconds, option.predicted))
    fields: dict[str, Any] = {
        "M": case.M, "N": case.N, "K": case.K, "batch": case.batch, "layout": case.layout,
        "dtype": case.dtype, "out": case.output,
        "kernel": option.kernel.name if option.kernel else CUBLAS,
        "config": changed(option.config) if option.config else {},
        "us": us, "predicted_us": predicted,
    }  # fmt: skip
    more = {
        "precision": case.precision if case.dtype == "fp32" else None,
        "accumulate": case.accumulate if case.accumulate != ACCUMULATE[case.dtype] else None,
        "error": result.error,
        "scaled": result.scaled,
        "chosen": result.name == task.chosen,
    }
    return fields | {k: v for k, v in more.items() if v}


def dumped(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"))


def text(task: Task, results: Sequence[Result], best: int = 5) -> str:
    """The fastest few with what was predicted of them, cuBLAS, and how the choice compares."""
    ranked = timed(results)
    lines = [_line(str(i), result) for i, result in enumerate(ranked[:best], 1)]
    lines += [_line("", each) for each in results if each.seconds and not each.option.kernel]
    placed = f"has no time: {task.chosen}"
    for rank, result in enumerate(ranked, 1):
        if result.name == task.chosen:
            placed = f"is number {rank}, {result.seconds / ranked[0].seconds:.3f} of the best"
            if rank > best:
                lines.append(_line(str(rank), result))
    lines.append(f"     the choice {placed}")
    if failed := [result for result in results if result.error]:
        lines.append(f"     {len(failed)} without a time, of {len(results) - 1}")
    return "\n".join(lines)


def _line(rank: str, result: Result) -> str:
    predicted = result.option.predicted
    note = f"  predicted {1e6 * predicted:9.2f}" if predicted else ""
    return f"{rank:>4} {result.name:<56} {1e6 * result.seconds:9.2f} us{note}"


#: What tells problems apart in the lines.
PROBLEM = ("M", "N", "K", "batch", "layout", "dtype", "out", "accumulate", "precision")


def summary(lines: Sequence[dict[str, Any]]) -> str:
    """How good the choices were, by these quick times, and how they compare with cuBLAS."""
    regrets, chosen, best = [], [], []
    for own in grouped(lines, lambda line: tuple(map(line.get, PROBLEM))).values():
        known = [line for line in own if line["us"]]
        least = min((line["us"] for line in known if line["kernel"] != CUBLAS), default=None)
        theirs = next((line["us"] for line in known if line["kernel"] == CUBLAS), None)
        if choice := next((line for line in known if line.get("chosen")), None):
            words = "{M} x {N} x {K} {layout}, {dtype}".format(**choice)
            regrets.append((choice["us"] / least, words))
            if theirs:
                chosen.append(theirs / choice["us"])
                best.append(theirs / least)
    if not regrets:
        return "nothing was timed"
    worst, where = max(regrets)
    mean = geomean(regret for regret, _ in regrets)
    return (
        f"{len(regrets)} problems: the choice takes {mean:.4f} of the best, at worst {worst:.3f} "
        f"({where})\ncuBLAS's time over the choice's: {geomean(chosen):.4f}; over the best's: "
        f"{geomean(best):.4f}"
    )


def search_all(tasks: Sequence[Task], args: argparse.Namespace) -> int:
    """Search task by task, printing and recording each as it is done; then the summary."""
    begin, status, rng, lines = time.monotonic(), 0, random.Random(args.seed), []
    try:
        with Searches(tasks, args.workers) as there:
            record(args.out, [heading_line(args)])
            for index, task in enumerate(tasks):
                started = time.monotonic()
                if args.limit and started - begin > args.limit:
                    cli.say(f"{args.limit:g} s are over; {len(tasks) - index} problems are left")
                    break
                try:
                    results = there.run(index, rng, cli.say)
                except torch.OutOfMemoryError as error:
                    torch.cuda.empty_cache()
                    cli.say(f"{task.case}: left out: {cli.short(error, 200)}")
                    continue
                own = [to_json(task, result) for result in results]
                record(args.out, map(dumped, own))
                lines += own
                took = f"{len(task.options)} candidates, {time.monotonic() - started:.1f} s"
                place = f"[{index + 1}/{len(tasks)}] {task.case}: {took}"
                print(f"{place}\n{text(task, results)}", flush=True)
    except KeyboardInterrupt:
        status = 130
    except RuntimeError as error:  # a CUDA error: nothing more can be launched
        cli.say(f"the search ends: {cli.short(error)}")
        status = 3
    print(summary(lines))
    return status or int(any(line.get("error", "").startswith("wrong") for line in lines))
