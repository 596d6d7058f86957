"""`python -m perf search`: time everything that the dispatcher could have chosen."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

import torch

from tritemm.compile.pool import WORKERS
from tritemm.rungs import RUNGS

from .. import machine, search_parts, shards
from ..case import ACCUMULATE, OUTPUT, Case, parse_layout
from ..cli import (
    TYPES,
    add_command,
    add_gpus,
    argument,
    list_of,
    one_of,
    positive,
    refuse,
    say,
    shared_out,
    unable,
    unshared,
)
from ..found import Found, text, to_json
from ..problems import SUITE, random_problems, read_suite
from ..search import Searches, Task
from ..session import _command, now
from .suite import select

EXAMPLES = """
python -m perf search --class prefill,decode --out found.jsonl
python -m perf search --random 60 --seed 7 --limit 300 --out found.jsonl
python -m perf search --shape 4096,4096,4096,NT --shape 333,7777,1111,NN --all
python -m perf search --id P1 --kernel pingpong
python -m perf search --random 400 --gpus 4 --out found.jsonl
"""


def register(commands) -> None:
    described = "Time every config that the dispatcher could choose; how good is its choice?"
    command = add_command(commands, "search", run, described, EXAMPLES)
    add = command.add_argument
    add("--file", type=Path, default=SUITE, help="CSV with the columns of perf/suite.csv")
    add("--class", dest="classes", type=list_of(str), default=[], metavar="CLASS,...")
    add("--id", dest="ids", type=list_of(str), default=[], metavar="ID,...")
    add("--random", type=argument(positive), metavar="N", help="that many random problems")
    add(
        "--shape", dest="shapes", type=argument(shape), action="append", default=[],
        metavar="M,N,K[,LAYOUT]", help="one problem; may be given again",
    )  # fmt: skip
    add("--dtype", choices=TYPES, default="bf16", help="of --shape; default: bf16")
    add("--seed", type=int, default=0, help="of the random problems, the data and the order")
    add_search(command)
    add_gpus(command)
    words = ("auto", *(kernel.name for kernel in RUNGS))
    add("--kernel", type=argument(one_of(*words)), default="auto", help="candidates of one rung")
    add("--limit", type=float, metavar="SECONDS", help="begin no problem after so long")
    add("--out", type=Path, help="JSON lines are added to this file")


def add_search(command: argparse.ArgumentParser) -> None:
    """What `regret` has too."""
    add = command.add_argument
    add(
        "--within", type=float, default=3.0, metavar="X",
        help="leave out what is predicted to take X times the least; default: 3",
    )  # fmt: skip
    add("--all", action="store_true", help="leave out nothing")
    add(
        "--workers", type=argument(positive),
        help="that compile, those of all GPUs together; default: one per core",
    )  # fmt: skip


def workers(args: argparse.Namespace) -> int | None:
    """Of this process; None leaves it to `Compilers`, as if no other process had workers."""
    if args.part is None:
        return args.workers
    most = min(len(os.sched_getaffinity(0)), args.part.of * WORKERS)
    return max(1, (args.workers or most) // args.part.of)


def shape(text_: str) -> tuple[int, int, int, str]:
    """`4096,4096,512,NT` or without a layout, which is then NN."""
    *sizes, last = text_.split(",")
    layout = "NN" if last.isdecimal() else parse_layout(last.upper())
    sizes = [*sizes, last] if last.isdecimal() else sizes
    if len(sizes) != 3:
        raise ValueError(f"a shape is M,N,K or M,N,K,LAYOUT, not {text_!r}")
    return (*map(positive, sizes), layout)


def run(args: argparse.Namespace) -> int:
    """0; 1 if an output was wrong; 2: it can't begin; 3: the device failed; 130 after Ctrl-C.

    With `--gpus`, the first of 130, the status of a process that failed, and 1.
    """
    try:
        cases = wanted(args)
    except (OSError, ValueError) as error:
        return refuse(str(error))
    if reason := unable("search") or unshared(args):
        return refuse(reason)
    if shared_out(args):
        return gather(cases, args)
    torch.manual_seed(args.seed)
    mine = args.part.share(cases) if args.part else cases
    tasks = tasks_of(mine, args.kernel, None if args.all else args.within)
    return search_all(tasks, args)


def wanted(args: argparse.Namespace) -> list[Case]:
    """The suite's problems unless others are named; ValueError says what isn't there."""
    cases = []
    if args.classes or args.ids or not (args.random or args.shapes):
        cases += [p.case for p in select(read_suite(args.file), args.classes, args.ids)]
    if args.random:
        cases += [p.case for p in random_problems(args.random, args.seed)]
    for M, N, K, layout in args.shapes:
        cases.append(Case(M, N, K, layout, args.dtype, ACCUMULATE[args.dtype]))
    return list(dict.fromkeys(cases))


def tasks_of(cases: Iterable[Case], kernel: str, within: float | None) -> list[Task]:
    """Of the cases that can be run; the others are named, and why."""
    tasks = []
    for case in cases:
        if case.dtype not in TYPES or case.output not in (OUTPUT[case.dtype], *FLOATS):
            say(f"{case}: left out: no rung multiplies this type")
            continue
        try:
            tasks.append(Task.of(case, kernel, within))
        except ValueError as error:
            say(f"{case}: left out: {error}")
    return tasks


#: Other outputs than the operands' own type that the rungs write.
FLOATS = ("fp16", "bf16", "fp32")


def gather(cases: Sequence[Case], args: argparse.Namespace) -> int:
    """Have a process on each GPU search its share; print and record all in the cases' order."""
    head = heading(args)
    ended = shards.run(args.argv, min(args.gpus, len(cases)), now(), args.out, say)
    places = {case: place for place, case in enumerate(cases, start=1)}
    searched = sorted(search_parts.read(ended.files), key=lambda one: places[one.found.case])
    if args.out:
        with args.out.open("a") as out:
            record(out, [head, *(line for one in searched for line in one.lines)])
    ended.discard()
    found = [one.found for one in searched]
    for one in searched:
        print(f"[{places[one.found.case]}/{len(cases)}] {one.title}\n{text(one.found)}")
    print(summary(found))
    status = 130 if ended.interrupted else ended.status
    return status or int(any(map(wrong, found)))


def search_all(tasks: Sequence[Task], args: argparse.Namespace) -> int:
    """Search task by task, printing and recording each as it is done.

    A part says that it is done with a task, and leaves to the whole what was found and is wrong.
    """
    begin, status, part = time.monotonic(), 0, args.part
    rng = random.Random(args.seed)
    found: list[Found] = []
    path = part.out if part else args.out
    out = path.open("a") if path else None
    try:
        with Searches(tasks, workers(args)) as searches:
            record(out, [heading(args)])
            for index, task in enumerate(tasks):
                if args.limit and time.monotonic() - begin > args.limit:
                    say(f"{args.limit:g} s are over; {len(tasks) - index} problems are left")
                    break
                started = time.monotonic()
                one = attempt(lambda i=index: searches.run(i, rng, say), task)
                if one is None:
                    continue
                found.append(one)
                took = f"{time.monotonic() - started:.1f} s"
                title = f"{one.case}: {len(task.options)} candidates, {took}"
                notes = [search_parts.note(one, title)] if part else []
                record(out, [*notes, *(to_json(one.case, result) for result in one.results)])
                title = f"[{index + 1}/{len(tasks)}] {title}"
                if part:
                    say(title)
                else:
                    print(f"{title}\n{text(one)}", flush=True)
    except KeyboardInterrupt:
        status = 130
    except RuntimeError as error:  # a CUDA error: nothing more can be launched
        say(f"the search ends: {' '.join(str(error).split())[:300]}")
        status = 3
    finally:
        if out:
            out.close()
    if part:
        return status
    print(summary(found))
    return status or int(any(map(wrong, found)))


def wrong(found: Found) -> bool:
    """Whether an output was."""
    return any(result.error.startswith("wrong") for result in found.failures)


def attempt(search: Callable[[], Found], task: Task) -> Found | None:
    """None where the problem does not fit into memory."""
    try:
        return search()
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        say(f"{task.case}: left out: {' '.join(str(error).split())[:200]}")
        return None


def heading(args: argparse.Namespace) -> str:
    """What the lines below it were measured with."""
    known = dataclasses.asdict(machine.environment())
    return json.dumps({"time": now(), "command": _command(args.argv), "environment": known})


def record(out: TextIO | None, lines: Iterable[str]) -> None:
    if out:
        out.write("".join(f"{line}\n" for line in lines))
        out.flush()


def summary(found: Sequence[Found]) -> str:
    """How good the choices were, by these quick times, and how they compare with cuBLAS."""
    from ..stats import geomean

    regrets = {str(one.case): one.regret for one in found if one.regret}
    if not regrets:
        return "nothing was timed"
    worst = max(regrets, key=regrets.get)
    ratios = [(one.cublas.seconds, one) for one in found if one.cublas and one.choice]
    chosen = geomean(theirs / one.choice.seconds for theirs, one in ratios)
    best = geomean(theirs / one.timed[0].seconds for theirs, one in ratios)
    return (
        f"{len(regrets)} problems: the choice takes {geomean(regrets.values()):.4f} of the best, "
        f"at worst {regrets[worst]:.3f} ({worst})\n"
        f"cuBLAS's time over the choice's: {chosen:.4f}; over the best's: {best:.4f}"
    )
