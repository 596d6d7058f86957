"""The command line: `python -m perf ladder|table|plot`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import math
import os
import random
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tritemm.precision import PRECISIONS

from .case import ACCUMULATE, DTYPES, Case, parse_layout, parse_size
from .rows import RESULTS, Row, append, latest_ladder, read

EXAMPLE = """examples:
  python -m perf ladder --sizes 4096,8192 --layouts NN,NT
  python -m perf ladder --sizes 4096 --layouts NT --configs none --config-file tiles.json
  python -m perf table --size 4096 --layout NT
  python -m perf plot --size 4096 --layout NT --out ladder.png
"""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    return args.command(args)


def ladder(args: argparse.Namespace) -> int:
    """0; 1 if a kernel's output was wrong; 2 if this can't run here; 130 after Ctrl-C."""
    import torch

    if not torch.cuda.is_available():
        return _refuse("python -m perf ladder needs a CUDA device, and torch sees none")
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return _refuse("TRITON_INTERPRET is set: unset it to measure compiled kernels")
    if args.precision != "ieee" and args.dtype != "fp32":
        return _refuse(f"--precision says how fp32 is multiplied, not {args.dtype}")

    from . import machine
    from .ladder import read_candidates, refuse_unknown
    from .report import text_table

    try:
        refuse_unknown(args.only)
        candidates = read_candidates(args.config_file) if args.config_file else []
    except (OSError, ValueError) as error:
        return _refuse(str(error))

    environment = machine.environment()
    out = args.out or RESULTS / f"{machine.slug(environment.gpu)}.jsonl"
    recorded = args.out is not None or not args.quick
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    races: list[list[Row]] = []
    interrupted = False
    try:
        for case in _cases(args):
            rows, interrupted = _race(case, args, candidates, environment, rng)
            races.append(rows)
            if recorded:
                append(out, rows)
            if interrupted:
                break
            torch.cuda.empty_cache()
    except KeyboardInterrupt:
        interrupted = True
    finally:  # also after a lost device: what earlier cases measured stays true
        say(f"rows are in {out}" if recorded else "nothing is recorded: --quick without --out")
        if interrupted:
            say("interrupted; what was measured is kept")
        for rows in races:
            lines = [row.to_json() for row in rows] if args.json else [text_table(rows), ""]
            print("\n".join(lines), flush=True)
    if interrupted:
        return 130
    return int(any(row.outcome == "wrong" for rows in races for row in rows))


def _race(
    case: Case, args: argparse.Namespace, candidates: Sequence, environment, rng: random.Random
) -> tuple[list[Row], bool]:
    """The rows of one case, and whether Ctrl-C cut it short."""
    from tritemm.problem import Problem

    from . import engine, machine
    from .ladder import competitors
    from .sustained import Sustained, reference

    say(f"{case}:")
    plan = _plan(args)
    bench = Sustained(case, plan, machine.probe())
    accumulate = DTYPES[case.accumulate]
    problem = Problem.of(*bench.sets[0], accumulate=accumulate, precision=case.precision)
    field = competitors(
        problem, reference, only=args.only, configs=args.configs, candidates=candidates
    )
    race = engine.measure(field, bench, plan, rng, say=say, progress=progress)
    rows = engine.rows_of(
        race,
        case=case,
        mode=bench.mode,
        environment=environment,
        time=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=_command(args.argv),
    )
    return rows, race.interrupted


def _plan(args: argparse.Namespace):
    from .engine import Plan

    plan = Plan(rounds=args.rounds, seconds=args.seconds)
    if args.quick:
        plan = dataclasses.replace(plan, rounds=min(8, args.rounds), replay=0.01, settle=1.0)
    return dataclasses.replace(plan, longest=math.inf) if args.all else plan


def _cases(args: argparse.Namespace) -> Iterable[Case]:
    accumulate = args.accumulate or ACCUMULATE[args.dtype]
    for size, layout in itertools.product(args.sizes, args.layouts):
        yield Case(*size, layout, args.dtype, accumulate, args.precision)


def _command(argv: list[str]) -> str:
    """What was typed, without the folders, which mean nothing elsewhere."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in argv]
    return "python -m perf " + shlex.join(words)


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


def say(text: str) -> None:
    """A line of progress; on a terminal above the bar."""
    if sys.stderr.isatty():
        from tqdm import tqdm

        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr, flush=True)


def progress(items: Sequence, what: str) -> Iterable:
    """A bar on a terminal; elsewhere the lines that `say` prints are enough."""
    if not sys.stderr.isatty():
        return items
    from tqdm import tqdm

    return tqdm(items, desc=what, leave=False)


def _chosen(args: argparse.Namespace) -> list[Row]:
    paths = [args.results] if args.results else sorted(RESULTS.glob("*.jsonl"))
    return latest_ladder(
        read(*paths), args.gpu, size=args.size, layout=args.layout, dtype=args.dtype,
        precision=args.precision, accumulate=args.accumulate,
    )  # fmt: skip


def table(args: argparse.Namespace) -> int:
    from .report import caption, markdown_table

    rows = _chosen(args)
    if not rows:
        return _refuse("no recorded row matches")
    print(f"{markdown_table(rows)}\n\n{caption(rows)}")
    return 0


def plot(args: argparse.Namespace) -> int:
    from .plot import plot_ladder

    rows = _chosen(args)
    if not any(row.us for row in rows):
        return _refuse("no recorded row matches")
    plot_ladder(rows, args.out)
    print(args.out)
    return 0


def _each(parse: Callable, text: str) -> list:
    return [parse(part) for part in text.split(",") if part]


def _argument(parse: Callable) -> Callable:
    """`parse`, with its ValueError's sentence as argparse's message."""

    def wrapped(text: str):
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return wrapped


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf",
        description="Measure the rungs of tritemm, record the results, draw them.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)

    def add(name: str, run: Callable, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=EXAMPLE,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(command=run)
        command.add_argument("--dtype", choices=ACCUMULATE, default="bf16")
        command.add_argument(
            "--accumulate", choices=("fp16", "fp32", "fp64"), help="default: the type's own"
        )
        command.add_argument(
            "--precision",
            default="ieee",
            help="how fp32 is multiplied",
            choices=PRECISIONS,
        )
        return command

    race = add("ladder", ladder, "Race every rung against cuBLAS, sustained, and record it.")
    sizes = _argument(lambda text: _each(parse_size, text))
    race.add_argument("--sizes", type=sizes, default="4096,8192", help="4096 or MxNxK, with commas")
    race.add_argument(
        "--layouts",
        type=_argument(lambda text: _each(parse_layout, text)),
        default="NN,NT",
        help="of NN, NT, TN, TT",
    )
    race.add_argument("--rounds", type=int, default=30)
    race.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="as many rounds as fit in S seconds per case, instead of --rounds",
    )
    race.add_argument(
        "--only",
        type=lambda text: _each(str, text),
        default="",
        metavar="RUNG,...",
        help="these rungs (and cuBLAS)",
    )
    race.add_argument(
        "--configs", choices=("first", "all", "none"), default="first", help="of each rung"
    )
    race.add_argument(
        "--config-file",
        type=Path,
        metavar="FILE",
        help='more candidates: [{"rung": "tma", "BLOCK_M": 128, ...}, ...]',
    )
    race.add_argument("--all", action="store_true", help="also what takes over 0.5 s per launch")
    race.add_argument("--quick", action="store_true", help="few, short rounds; not recorded")
    race.add_argument("--out", type=Path, help="default: perf/results/<gpu>.jsonl")
    race.add_argument("--json", action="store_true", help="print rows instead of tables")
    race.add_argument("--seed", type=int, default=0)
    race.set_defaults(argv=sys.argv[1:])

    show = add("table", table, "Print the newest recorded ladder as Markdown.")
    draw = add("plot", plot, "Draw the newest recorded ladder.")
    draw.add_argument("--out", type=Path, default=Path("ladder.png"), help=".png or .svg")
    for command in (show, draw):
        command.add_argument("--results", type=Path, help="default: all of perf/results")
        command.add_argument("--gpu", help="default: that of the newest row")
        command.add_argument("--size", type=_argument(parse_size), default="4096")
        command.add_argument("--layout", type=_argument(parse_layout), default="NT")
    return parser


if __name__ == "__main__":
    sys.exit(main())
