"""`python -m perf search`: time everything that the dispatcher could have chosen."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from tritemm.problem.config import changed, config_of
from tritemm.rungs import find

from .. import cli, searches, session, shards
from ..case import ACCUMULATE, Case, parse_layout
from ..problems import SUITE, chosen, random_problems
from ..searches import CUBLAS, Found, Option, Result, Searches, Task, tasks_of
from ..session import heading_line, record
from ..stats import geomean

EXAMPLES = """
python -m perf search --class prefill,decode --out found.jsonl
python -m perf search --random 60 --seed 7 --limit 300 --out found.jsonl
python -m perf search --shape 4096,4096,4096,NT --shape 333,7777,1111,NN --all
python -m perf search --id P1 --kernel pingpong
python -m perf search --random 400 --gpus 4 --out found.jsonl
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
    cli.add_gpus(command)
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
    """0; 1 if an output was wrong; 2: it can't begin; 3: the device failed; 130 after Ctrl-C.

    With `--gpus`, the first of 130, the status of a process that failed, and 1.
    """
    try:
        cases = wanted(args)
    except (OSError, ValueError) as error:
        return cli.refuse(error)
    if args.out and args.out.suffix == ".gz":
        return cli.refuse("--out: lines are added to a plain file; gzip it after the search")
    if reason := cli.unable("search") or cli.unshared(args):
        return cli.refuse(reason)
    if cli.shared_out(args):
        return gather(cases, args)
    torch.manual_seed(args.seed)
    mine = args.part.share(cases) if args.part else cases
    tasks = tasks_of(mine, args.kernel, None if args.all else args.within)
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


def to_json(found: Found, result: Result) -> str:
    """One line: the problem, the option, what it took and what was expected, in microseconds.

    `precision` and `accumulate` are there where they are not the type's own; `error` where there
    is no time; `scaled` where the time is; `chosen` on the line of the dispatcher's choice.
    """
    case, option = found.case, result.option
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
        "chosen": result.name == found.chosen,
    }
    return json.dumps(fields | {k: v for k, v in more.items() if v}, separators=(",", ":"))


def read(cases: Sequence[Case], paths: Iterable[Path]) -> list[Found]:
    """What processes have left of these cases; a torn line, of one that died, is left out."""
    known = {_key(case): Found(case, (), "") for case in cases}
    for line in (line for path in paths for line in path.read_text().splitlines()):
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if "kernel" in fields:  # not the heading
            result, one = _result(fields), known[_key(Case(**_asked(fields)))]
            chosen = result.name if fields.get("chosen") else one.chosen
            results = (*one.results, result)
            known[_key(one.case)] = dataclasses.replace(one, results=results, chosen=chosen)
    return [one for one in known.values() if one.results]


def _asked(fields: dict[str, Any]) -> dict[str, Any]:
    """The case of a line, but for what the line's case and another one's may differ in by name."""
    own = {name: fields[name] for name in ("M", "N", "K", "batch", "layout", "dtype")}
    own["accumulate"] = fields.get("accumulate", ACCUMULATE[fields["dtype"]])
    return own | {"precision": fields.get("precision", "ieee"), "out_dtype": fields["out"]}


def _key(case: Case) -> Case:
    return dataclasses.replace(case, out_dtype=case.output)


def _result(fields: dict[str, Any]) -> Result:
    us, predicted = (fields[name] and fields[name] / 1e6 for name in ("us", "predicted_us"))
    kernel = None if fields["kernel"] == CUBLAS else find(fields["kernel"])
    option = Option(kernel, kernel and config_of(fields["config"]), predicted)
    return Result(option, us, fields.get("error"), "scaled" in fields)


def text(found: Found, best: int = 5) -> str:
    """The fastest few with what was predicted of them, cuBLAS, and how the choice compares."""
    lines = [_line(str(i), result) for i, result in enumerate(found.timed[:best], 1)]
    if found.cublas:
        lines.append(_line("", found.cublas))
    if found.choice and found.rank > best:
        lines.append(_line(str(found.rank), found.choice))
    placed = found.choice and f"is number {found.rank}, {found.regret:.3f} of the best"
    lines.append(f"     the choice {placed or f'has no time: {found.chosen}'}")
    if found.failures:
        lines.append(f"     {len(found.failures)} without a time, of {len(found.results) - 1}")
    return "\n".join(lines)


def _line(rank: str, result: Result) -> str:
    predicted = result.option.predicted
    note = f"  predicted {1e6 * predicted:9.2f}" if predicted else ""
    return f"{rank:>4} {result.name:<56} {1e6 * result.seconds:9.2f} us{note}"


def summary(found: Sequence[Found]) -> str:
    """How good the choices were, by these quick times, and how they compare with cuBLAS."""
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


def gather(cases: Sequence[Case], args: argparse.Namespace) -> int:
    """Have a process on each GPU search its share and print it; record all in the cases' order."""
    head, count = heading_line(args), min(args.gpus, len(cases))
    with shards.run(args.argv, count, session.now(), args.out, cli.say) as (files, status):
        found = read(cases, files)
        record(args.out, [head, *(to_json(one, r) for one in found for r in one.results)])
    return _finished(found, status)


def _finished(found: Sequence[Found], status: int) -> int:
    """Print the summary; 1 in place of 0 if an output was wrong."""
    print(summary(found))
    return status or int(any(map(wrong, found)))


def search_all(tasks: Sequence[Task], args: argparse.Namespace) -> int:
    """Search task by task, printing and recording each as it is done.

    A part leaves to the whole to say what all were like, and what was wrong.
    """
    begin, status, part = time.monotonic(), 0, args.part
    rng, found, path = random.Random(args.seed), [], Path(part.out) if part else args.out
    try:
        with Searches(tasks, shards.workers(args.workers, part)) as there:
            record(path, [heading_line(args)])
            for index, task in enumerate(tasks):
                started = time.monotonic()
                if args.limit and started - begin > args.limit:
                    cli.say(f"{args.limit:g} s are over; {len(tasks) - index} problems are left")
                    break
                try:
                    one = there.run(index, rng, cli.say)
                except torch.OutOfMemoryError as error:
                    torch.cuda.empty_cache()
                    cli.say(f"{task.case}: left out: {cli.short(error, 200)}")
                    continue
                found.append(one)
                record(path, [to_json(one, result) for result in one.results])
                took = f"{len(task.options)} candidates, {time.monotonic() - started:.1f} s"
                place = f"[{index + 1}/{len(tasks)}] {one.case}: {took}"
                print(f"{place}\n{text(one)}", flush=True)
    except KeyboardInterrupt:
        status = 130
    except RuntimeError as error:  # a CUDA error: nothing more can be launched
        cli.say(f"the search ends: {cli.short(error)}")
        status = 3
    return status if part else _finished(found, status)


def wrong(found: Found) -> bool:
    """Whether an output was."""
    return any(result.error.startswith("wrong") for result in found.failures)
