#!/usr/bin/env python
"""Race this checkout's `tritemm.matmul` against another checkout's, in one process; needs a GPU.

    git worktree add ../before v0.1
    python tools/versus.py ../before [--random 400] [--serving 100] [--gpus 2] [--out FILE]

The problems are the suite's, random ones, and some of the layers of `perf serving`. Each product is
checked with exact sums and timed in turn with the other checkout's, so that both see the same card;
where this checkout seems more than 2 % slower, it is timed again, longer, and that is what counts.
Prints the geometric means, and the problems that lost most; a line for each goes to FILE. 1: a
product is wrong or failed; 2: it can't run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
    if reason := why_not(args):
        print(f"versus: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="versus-") as folder:
        if args.part is not None:
            rows = race(renamed(args.other / "tritemm", Path(folder)), args)
        else:
            known = measured_where(args)
            rows = [known | row for row in shared_out(Path(folder), args)]
    print(report(rows))
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return int(not rows or any(row["reason"] for row in rows))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, metavar="CHECKOUT")
    parser.add_argument("--random", type=int, default=400, metavar="N")
    parser.add_argument("--serving", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=20, help="of the random problems, and which")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def why_not(args: argparse.Namespace) -> str | None:
    """Why it can't run."""
    import torch

    if not torch.cuda.is_available():
        return "needs a CUDA device"
    if not (args.other / "tritemm" / "__init__.py").is_file():
        return f"{args.other} is no checkout: it has no tritemm/"
    seen = torch.cuda.device_count()
    return f"--gpus {args.gpus}: torch sees {seen}; ask for no more" if args.gpus > seen else None


def renamed(package: Path, folder: Path) -> ModuleType:
    """A copy of `package` in `folder` that calls itself `OTHER`, its operators too; imported."""
    copy = folder / OTHER
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.rglob("*.py"):
        file.write_text(re.sub(r"\btritemm\b", OTHER, file.read_text()))
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")])
    )  # for the processes that compile
    return importlib.import_module(OTHER)


def shared_out(folder: Path, args: argparse.Namespace) -> list[dict]:
    """The rows of a process for each GPU; none is left running."""
    from tools.sessions import session

    words = [sys.executable, __file__, str(args.other), "--random", str(args.random)]
    words += ["--serving", str(args.serving), "--seed", str(args.seed), "--gpus", str(args.gpus)]
    outs = [folder / f"{part}.jsonl" for part in range(args.gpus)]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(args.gpus)))
    devices = [word.strip() for word in visible.split(",")][: args.gpus]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                session(
                    [*words, "--part", str(part), "--out", str(out)],
                    env=os.environ | {"CUDA_VISIBLE_DEVICES": device},
                    stdout=subprocess.DEVNULL,
                )
            )
            for part, (out, device) in enumerate(zip(outs, devices, strict=True))
        ]
        statuses = [process.wait() for process in running]
    for part, (status, out) in enumerate(zip(statuses, outs, strict=True)):
        if status not in (0, 1) or not out.exists():
            raise SystemExit(f"versus: the process of GPU {part} ended with {status}")
    return [json.loads(line) for out in outs for line in out.read_text().splitlines()]


def measured_where(args: argparse.Namespace) -> dict:
    """What all rows have in common: when, on what, and the commits, or the other folder's name."""
    from perf.machine import environment
    from perf.session import now

    against = args.other.resolve().name
    if (args.other / ".git").exists():
        words = ["git", "-C", str(args.other), "rev-parse", "HEAD"]
        against = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    return {"time": now(), "against": against} | dataclasses.asdict(environment())


def race(other: ModuleType, args: argparse.Namespace) -> list[dict]:
    import tritemm
    from perf.experiments import serving
    from perf.problems import random_problems, read_suite

    layers = serving.problems()
    some = random.Random(args.seed).sample(layers, min(args.serving, len(layers)))
    problems = [*read_suite(), *random_problems(args.random, args.seed), *some]
    problems = problems[args.part :: args.gpus]
    for library in (tritemm, other):
        problems = warmed(library, problems)
    rows = []
    for problem in problems:
        row = problem.to_json() | {"case": str(problem.case), "ratio": None, "reason": None}
        rows.append(row | raced(tritemm, other, problem.case))
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def warmed(library: ModuleType, problems: Sequence) -> list:
    """Those of types that the library multiplies, once it has compiled what they need.

    Their operands share memory; those of the same options are compiled at once.
    """
    import torch

    from perf.case import DTYPES
    from perf.competitors import matmul_options
    from tritemm.problem import stored

    cases = [problem.case for problem in problems]
    sizes = (c.batch * max(c.M, c.N) * c.K * DTYPES[c.dtype].itemsize for c in cases)
    memory = torch.zeros(max(sizes, default=0), dtype=torch.int8, device="cuda")
    groups: dict[str, tuple[dict, list]] = {}
    known = []
    for problem in problems:
        case = problem.case
        dtype, batch = DTYPES[case.dtype], (case.batch,) if case.batch > 1 else ()

        def view(*shape: int, dtype=dtype) -> torch.Tensor:
            return memory[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

        pair = (
            stored(view, *batch, case.M, case.K, layout=case.layout[0]),
            stored(view, *batch, case.K, case.N, layout=case.layout[1]),
        )
        options = matmul_options(case, "auto")
        try:
            library.explain(*pair, **options)
        except NotImplementedError:
            continue
        known.append(problem)
        groups.setdefault(repr(options), (options, []))[1].append(pair)
    for options, pairs in groups.values():
        library.warmup(pairs, **options)
    return known


def raced(ours: ModuleType, other: ModuleType, case) -> dict:
    """What a row has: the ratio of the other's time to ours, and both times in seconds."""
    from perf.bench import Quick
    from perf.competitors import matmul_options
    from perf.engine import Competitor, Plan, admit

    options = matmul_options(case, "auto")
    plan = Plan(replay=REPLAY, lead=REPLAY / 2, settle=0.0, longest=math.inf)
    bench, loops = Quick(case, plan), {}
    for name, library in (("this", ours), ("other", other)):

        def run(a, b, c, library=library) -> None:
            library.matmul(a, b, out=c, **options)

        entrant = admit(Competitor(name, run), bench, plan)
        if entrant.reason:
            return {"reason": f"{name}: {entrant.reason}"}
        loops[name] = entrant.loop
    found = measured(loops, ROUNDS)
    if found["ratio"] < 1 - DOUBT:
        found = measured(loops, MORE) | {"first": found["ratio"]}
    return found


def measured(loops: Mapping, count: int) -> dict:
    """The medians of the rounds' ratios and times."""
    from perf.engine import run_rounds
    from perf.stats import Quantiles, compare

    taken, _ = run_rounds(loops, count, random.Random(0))
    times = [{name: sample.seconds for name, sample in each.items()} for each in taken]
    medians = {name: Quantiles.of(each[name] for each in times).p50 for name in loops}
    return {"ratio": compare(times, "other", "this").p50, **medians, "rounds": len(times)}


def report(rows: Sequence[dict]) -> str:
    """The geometric means, and who lost most."""
    from perf.stats import geomean

    lines = []
    groups: dict[str, list[float]] = {"suite": [], "random": [], "serving": []}
    for row in rows:
        if row["ratio"]:
            served = "serving" if "/" in row["id"] else "suite"
            groups["random" if row["name"] == "random" else served].append(row["ratio"])
    for title, ratios in groups.items():
        if ratios:
            slower = sum(ratio < 0.97 for ratio in ratios)
            lines.append(
                f"{title:<8}{len(ratios):>5} problems   "
                f"{geomean(ratios):.4f} x the other checkout's speed   "
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
