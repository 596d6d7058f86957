#!/usr/bin/env python
"""Race this checkout's `tritemm.matmul` against another checkout's, in one process; needs a GPU.

    git worktree add ../before v0.1
    python tools/versus.py ../before [--random 400] [--seed 20] [--gpus 2] [--out FILE]

The problems are the suite's and random ones. Each product is checked with exact sums and timed in
turn with the other checkout's, so that both see the same card; where this checkout seems more than
2 % slower, it is timed again, longer, and that is what counts. Prints the geometric means, and the
problems that lost most; a line for each goes to FILE. 1: a product is wrong or failed; 2: it
can't run.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's path begins with its own folder

#: The other checkout's package: a second one of the same name can't be imported.
OTHER = "tritemm_before"
#: Rounds of a problem, and of one that seems to have lost more than `DOUBT`; seconds of a round.
ROUNDS, MORE, DOUBT, REPLAY = 7, 40, 0.02, 0.004
#: How many of those that lost most are printed.
SHOWN = 15


def main() -> int:
    args = parse()
    import torch

    if not torch.cuda.is_available():
        print("versus: needs a CUDA device", file=sys.stderr)
        return 2
    if not (args.other / "tritemm" / "__init__.py").is_file():
        print(f"versus: {args.other} is no checkout: it has no tritemm/", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="versus-") as folder:
        if args.part is not None:
            rows = race(renamed(args.other / "tritemm", Path(folder)), args)
        else:
            rows = shared_out(Path(folder), args)
    print(report(rows))
    if args.out:
        known = {} if args.part is not None else measured_where(args)
        args.out.write_text("".join(json.dumps(known | row) + "\n" for row in rows))
    return int(not rows or any(row["reason"] for row in rows))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, metavar="CHECKOUT")
    parser.add_argument("--random", type=int, default=400, metavar="N")
    parser.add_argument("--seed", type=int, default=20, help="of the random problems")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def renamed(package: Path, folder: Path) -> ModuleType:
    """A copy of `package` in `folder` that calls itself `OTHER`, its operators too; imported."""
    copy = folder / OTHER
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, copy, ignore=ignored)
    for file in copy.rglob("*.py"):
        file.write_text(re.sub(r"\btritemm\b", OTHER, file.read_text()))
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")])
    )  # for the processes that compile
    return importlib.import_module(OTHER)


def shared_out(folder: Path, args: argparse.Namespace) -> list[dict]:
    """The rows of a process for each GPU."""
    running = []
    for part in range(args.gpus):
        out = folder / f"{part}.jsonl"
        words = [sys.executable, __file__, str(args.other), "--random", str(args.random)]
        words += ["--seed", str(args.seed), "--gpus", str(args.gpus), "--part", str(part)]
        env = os.environ | {"CUDA_VISIBLE_DEVICES": str(part)}
        words += ["--out", str(out)]
        running.append((subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL), out))
    rows = []
    for process, out in running:
        if process.wait() not in (0, 1) or not out.exists():
            raise SystemExit(f"versus: the process of {out.stem} ended with {process.returncode}")
        rows += map(json.loads, out.read_text().splitlines())
    return rows


def race(other: ModuleType, args: argparse.Namespace) -> list[dict]:
    import tritemm
    from perf.problems import random_problems, read_suite

    problems = [*read_suite(), *random_problems(args.random, args.seed)][args.part :: args.gpus]
    for library in (tritemm, other):
        warm(library, [problem.case for problem in problems])
    rows = []
    for problem in problems:
        row = problem.to_json() | {"case": str(problem.case), "ratio": None, "reason": None}
        try:
            row |= raced(tritemm, other, problem.case)
        except NotImplementedError:  # a type that one of them doesn't multiply
            continue
        except Exception as error:  # a compiler's or a driver's, of any type
            row["reason"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    return rows


def measured_where(args: argparse.Namespace) -> dict:
    """What all rows have in common; TRITEMM_AGAINST names the commit of a checkout without git."""
    import torch

    from perf.machine import revision
    from perf.session import now

    against = os.environ.get("TRITEMM_AGAINST")
    if not against and (args.other / ".git").exists():
        words = ["git", "-C", str(args.other), "rev-parse", "HEAD"]
        against = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    gpu, commit = torch.cuda.get_device_name(), revision()[0]
    return {"time": now(), "gpu": gpu, "commit": commit, "against": against}


def options_of(case) -> dict:
    """The keyword arguments of `matmul`, without what they are by themselves."""
    from perf.competitors import matmul_options

    given = matmul_options(case, "auto")
    return {name: value for name, value in given.items() if value is not None and name != "kernel"}


def warm(library: ModuleType, cases: Sequence) -> None:
    """Compile what the cases need, those of the same options at once; operands share memory."""
    import torch

    from perf.case import DTYPES

    groups: dict[str, list] = {}
    for case in cases:
        groups.setdefault(repr(options_of(case)), []).append(case)
    sizes = ((c.batch * max(c.M, c.N) * c.K * DTYPES[c.dtype].itemsize) for c in cases)
    memory = torch.zeros(max(sizes), dtype=torch.int8, device="cuda")

    def matrix(case, rows: int, cols: int, layout: str) -> torch.Tensor:
        dtype = DTYPES[case.dtype]
        stored = (rows, cols) if layout == "N" else (cols, rows)
        shape = (case.batch, *stored) if case.batch > 1 else stored
        view = memory[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
        return view if layout == "N" else view.mT

    for some in groups.values():
        options, pairs = options_of(some[0]), []
        for c in some:
            pair = matrix(c, c.M, c.K, c.layout[0]), matrix(c, c.K, c.N, c.layout[1])
            with contextlib.suppress(NotImplementedError):
                library.explain(*pair, **options)
                pairs.append(pair)
        library.warmup(pairs, **options)


def raced(ours: ModuleType, other: ModuleType, case) -> dict:
    """What a row has: the ratio of the other's time to ours, and both times in seconds."""
    from perf.engine import Competitor, Plan
    from perf.quick import Quick

    options = options_of(case)
    plan = Plan(replay=REPLAY, lead=REPLAY / 2, settle=0.0, longest=0.5)
    bench = Quick(case, plan)
    loops = []
    for name, library in (("this", ours), ("other", other)):
        run = functools.partial(_multiply, library, options)
        competitor = Competitor(name, run)
        bench.estimate(competitor)
        loops.append(bench.loop(competitor))
        verdict = bench.verify(loops[-1])
        if not verdict.ok:
            return {"reason": f"{name}: {verdict.message}"}
    found = measured(loops, ROUNDS)
    if found["ratio"] < 1 - DOUBT:
        found = measured(loops, MORE) | {"first": found["ratio"]}
    return found


def _multiply(library: ModuleType, options: dict, a, b, c) -> None:
    library.matmul(a, b, out=c, **options)


def measured(loops: Sequence, rounds: int) -> dict:
    """The median of the rounds' ratios; who comes first changes from round to round."""
    times: list[tuple[float, float]] = []
    for index in range(rounds):
        order = (0, 1) if index % 2 else (1, 0)
        taken = {which: loops[which].time().seconds for which in order}
        times.append((taken[0], taken[1]))
    ratio = statistics.median(other / this for this, other in times)
    this, other = (statistics.median(column) for column in zip(*times, strict=True))
    return {"ratio": ratio, "this": this, "other": other, "rounds": rounds}


def report(rows: Sequence[dict]) -> str:
    """The geometric means, and who lost most."""
    lines = []
    for title, chosen in (
        ("suite", [row for row in rows if row["name"] != "random"]),
        ("random", [row for row in rows if row["name"] == "random"]),
    ):
        ratios = [row["ratio"] for row in chosen if row["ratio"]]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            slower = sum(ratio < 0.97 for ratio in ratios)
            lines.append(
                f"{title:<8}{len(ratios):>5} problems   {mean:.4f} x the other checkout's speed   "
                f"{slower} more than 3 % slower   least {min(ratios):.3f}   most {max(ratios):.3f}"
            )
    lines += [f"{row['case']}: {row['reason']}" for row in rows if row["reason"]]
    timed = sorted((row for row in rows if row["ratio"]), key=lambda row: row["ratio"])
    for row in timed[:SHOWN]:
        lines.append(
            f"{row['ratio']:.3f}  {row['id']:<8} {row['case']:<44} "
            f"{row['this'] * 1e6:9.2f} us, was {row['other'] * 1e6:.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
