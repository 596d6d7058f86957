"""`python -m perf search`: time everything that the dispatcher could have chosen."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tritemm.problem.config import changed

from .. import cli, searches
from ..case import ACCUMULATE
from ..problems import SUITE, chosen, random_problems
from ..searches import CUBLAS, Result, Searches, Task, tasks_of, timed
from ..session import heading_line, record

EXAMPLES = """
python -m perf search --class prefill,decode --out found.jsonl
python -m perf search --random 60 --seed 7 --out found.jsonl
python -m perf search --file mine.csv --all
"""


def register(commands) -> None:
    described = "Time every config that the dispatcher could choose; how good is its choice?"
    command = cli.add_command(commands, "search", run, described, EXAMPLES)
    add = command.add_argument
    cli.add_problems(command, SUITE)
    count = cli.argument(cli.positive)
    add("--random", type=count, metavar="N", help="search N random problems instead")
    add("--seed", type=int, default=0, help="seed of the random problems, the data and the order")
    searches.add_search(command)
    add("--out", type=Path, help="file to add JSON lines to")


def run(args: argparse.Namespace) -> int:
    """0; 1 if an output was wrong; 2: it can't begin; 3: the device failed; 130 after Ctrl-C."""
    try:
        if args.random:
            found = random_problems(args.random, args.seed)
        else:
            found = chosen(args.file, args.classes, args.ids)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    if args.out and args.out.suffix == ".gz":
        return cli.refuse("--out: lines are added to a plain file; gzip it after the search")
    if reason := cli.unable("search"):
        return cli.refuse(reason)
    torch.manual_seed(args.seed)
    cases = dict.fromkeys(problem.case for problem in found)
    return search_all(tasks_of(cases, None if args.all else args.within), args)


def search_all(tasks: Sequence[Task], args: argparse.Namespace) -> int:
    """Search task by task, printing and recording each as it is done."""
    status, rng = 0, random.Random(args.seed)
    try:
        with Searches(tasks, args.workers) as there:
            record(args.out, [heading_line(args)])
            for index, task in enumerate(tasks):
                try:
                    results = there.run(index, rng, cli.say)
                except torch.OutOfMemoryError as error:
                    torch.cuda.empty_cache()
                    cli.say(f"{task}: left out: {cli.short(error, 200)}")
                    continue
                lines = (json.dumps(to_json(task, r), separators=(",", ":")) for r in results)
                record(args.out, lines)
                print(f"[{index + 1}/{len(tasks)}] {task}: {text(task, results)}", flush=True)
                if any(result.error and result.error.startswith("wrong") for result in results):
                    status = 1
    except KeyboardInterrupt:
        return 130
    except RuntimeError as error:  # a CUDA error: nothing more can be launched
        cli.say(f"the search ends: {cli.short(error)}")
        return 3
    return status


def to_json(task: Task, result: Result) -> dict[str, Any]:
    """One line: the problem, the option, what it took and what was expected, in microseconds.

    `precision` and `accumulate` ("fast" too) are there where they are not the type's own; `scaling`
    where operands have scales; `error` where there is no time; `scaled` where the time is;
    `chosen` on the line of the dispatcher's choice.
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
        "precision": case.precision if case.dtype == "fp32" or case.precision != "ieee" else None,
        "accumulate": task.how if task.how != ACCUMULATE[case.dtype] else None,
        "scaling": case.scaling,
        "error": result.error,
        "scaled": result.scaled,
        "chosen": result.name == task.chosen,
    }
    return fields | {k: v for k, v in more.items() if v}


def text(task: Task, results: Sequence[Result]) -> str:
    """The fastest, how the choice and cuBLAS compare with it, and how many have no time."""
    ranked, seconds = timed(results), {result.name: result.seconds for result in results}
    if not ranked:
        return "nothing was timed"
    best = ranked[0]
    words = [f"of {len(task.options)} the fastest is {best.name}, {1e6 * best.seconds:.2f} us"]
    for what, name in (("the choice", task.chosen), ("cuBLAS", CUBLAS)):
        taken = seconds.get(name)
        compared = f"takes {taken / best.seconds:.3f} of it" if taken else "has no time"
        words.append(f"{what} {compared}")
    if failed := sum(bool(result.error) for result in results):
        words.append(f"{failed} without a time")
    return "; ".join(words)
