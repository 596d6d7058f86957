"""The command line: `python -m perf ladder|compare|table|plot`."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
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
from .rows import RESULTS, Row, append, latest_compare, latest_ladder, read

EXAMPLE = """examples:
  python -m perf ladder --sizes 4096,8192 --layouts NN,NT
  python -m perf ladder --sizes 4096 --layouts NT --configs none --config-file tiles.json
  python -m perf compare --sizes 4096 --accumulate fp32,fp16
  python -m perf table --size 4096 --layout NT
  python -m perf plot --size 4096 --layout NT --out ladder.png
  python -m perf plot --what compare --dtype fp16 --accumulate fp16 --out compare.png
"""


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    return args.command(args)


def ladder(args: argparse.Namespace) -> int:
    """The status is that of `_measure`."""
    from .ladder import competitors, read_candidates, refuse_unknown

    if reason := _unable("ladder"):
        return _refuse(reason)
    if args.precision != "ieee" and args.dtype != "fp32":
        return _refuse(f"--precision says how fp32 is multiplied, not {args.dtype}")
    try:
        refuse_unknown(args.only)
        candidates = read_candidates(args.config_file) if args.config_file else []
    except (OSError, ValueError) as error:
        return _refuse(str(error))
    accumulate = args.accumulate or ACCUMULATE[args.dtype]
    cases = [
        Case(*size, layout, args.dtype, accumulate, args.precision)
        for size, layout in itertools.product(args.sizes, args.layouts)
    ]
    chosen = {"only": args.only, "configs": args.configs, "candidates": candidates}
    return _measure(args, cases, functools.partial(competitors, **chosen))


def compare(args: argparse.Namespace) -> int:
    """The status is that of `_measure`."""
    from cuda_reference.rungs import RUNGS as CUDA_RUNGS
    from tritemm.rungs import RUNGS

    from .compare import competitors
    from .ladder import refuse_unknown

    if reason := _unable("compare"):
        return _refuse(reason)
    try:
        refuse_unknown(args.only, (*RUNGS, *CUDA_RUNGS))
    except ValueError as error:
        return _refuse(str(error))
    wanted = [kernel for kernel in CUDA_RUNGS if not args.only or kernel.name in args.only]
    unavailable, broken = _build([kernel.name for kernel in wanted])
    cases = [
        Case(*size, args.layout, dtype, accumulate)
        for size, dtype in itertools.product(args.sizes, args.dtype)
        for accumulate in args.accumulate
        if accumulate == "fp32" or dtype == "fp16"  # bf16 accumulates in fp32 only
    ]
    if not cases:
        return _refuse("only fp16 can be accumulated in fp16")
    chosen = {
        "cuda": [] if unavailable else wanted,
        "broken": broken,
        "only": args.only,
        "configs": args.configs,
    }
    status = _measure(args, cases, functools.partial(competitors, **chosen))
    if unavailable:
        say(f"the CUDA ladder took no part: refused: {unavailable}")
    return status


def _build(names: Sequence[str]) -> tuple[str | None, dict[str, str]]:
    """Build CUDA extensions, all at once: why none can be, and the errors of those that failed."""
    from cuda_reference import loader

    if not names:
        return None, {}
    if reason := loader.unavailable():
        return reason, {}
    return None, loader.build(names)


def _unable(command: str) -> str | None:
    """Why kernels can't be timed here."""
    import torch

    if not torch.cuda.is_available():
        return f"python -m perf {command} needs a CUDA device, and torch sees none"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "TRITON_INTERPRET is set: unset it to measure compiled kernels"
    return None


def _measure(args: argparse.Namespace, cases: Sequence[Case], competitors: Callable) -> int:
    """0; 1 if a kernel's output was wrong; 130 after Ctrl-C.

    `competitors(problem, reference)` are those of one case.
    """
    import torch

    from . import machine
    from .report import text_table

    environment = machine.environment()
    out = args.out or RESULTS / f"{machine.slug(environment.gpu)}.jsonl"
    recorded = args.out is not None or not args.quick
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    races: list[list[Row]] = []
    interrupted = False
    try:
        for case in cases:
            rows, interrupted = _race(case, args, competitors, environment, rng)
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
    case: Case, args: argparse.Namespace, competitors: Callable, environment, rng: random.Random
) -> tuple[list[Row], bool]:
    """The rows of one case, and whether Ctrl-C cut it short."""
    from tritemm.problem import Problem

    from . import engine, machine
    from .sustained import Sustained, reference

    say(f"{case}:")
    plan = _plan(args)
    bench = Sustained(case, plan, machine.probe())
    accumulate = DTYPES[case.accumulate]
    problem = Problem.of(*bench.sets[0], accumulate=accumulate, precision=case.precision)
    field = competitors(problem, reference)
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
    chosen = {"size": args.size, "layout": args.layout, "accumulate": args.accumulate}
    if args.what == "compare":
        return latest_compare(read(*paths), args.gpu, dtype=args.dtype, **chosen)
    precision = args.precision
    return latest_ladder(read(*paths), args.gpu, dtype=args.dtype, precision=precision, **chosen)


def table(args: argparse.Namespace) -> int:
    from .report import caption, markdown_compare, markdown_table

    rows = _chosen(args)
    if not rows:
        return _refuse("no recorded row matches")
    write = {"ladder": markdown_table, "compare": markdown_compare}[args.what]
    print(f"{write(rows)}\n\n{caption(rows)}")
    return 0


def plot(args: argparse.Namespace) -> int:
    from .plot import plot_compare, plot_ladder

    rows = _chosen(args)
    if not any(row.us for row in rows):
        return _refuse("no recorded row matches")
    draw = {"ladder": plot_ladder, "compare": plot_compare}[args.what]
    out = args.out or Path(f"{args.what}.png")
    draw(rows, out)
    print(out)
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


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"one of {', '.join(known)}, not {text!r}")
        return text

    return parse


def _list_of(parse: Callable) -> Callable:
    """An argument's type: values with commas between them."""
    return _argument(lambda text: _each(parse, text))


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
        return command

    race = add("ladder", ladder, "Race every rung against cuBLAS, sustained, and record it.")
    _add_types(race)
    _add_sizes(race, "4096,8192")
    layouts = _list_of(parse_layout)
    race.add_argument("--layouts", type=layouts, default="NN,NT", help="of NN, NT, TN, TT")
    _add_race(race, rounds=30)
    race.add_argument(
        "--config-file",
        type=Path,
        metavar="FILE",
        help='more candidates: [{"rung": "tma", "BLOCK_M": 128, ...}, ...]',
    )

    both = add("compare", compare, "Race both ladders, Triton's and CUDA's, against cuBLAS.")
    _add_sizes(both, "4096")
    both.add_argument("--layout", type=_argument(parse_layout), default="NT")
    both.add_argument("--dtype", type=_list_of(_one_of("fp16", "bf16")), default="fp16")
    both.add_argument("--accumulate", type=_list_of(_one_of("fp32", "fp16")), default="fp32,fp16")
    _add_race(both, rounds=15)
    both.set_defaults(precision="ieee")

    show = add("table", table, "Print the newest recorded ladder as Markdown.")
    draw = add("plot", plot, "Draw the newest recorded ladder.")
    draw.add_argument("--out", type=Path, help=".png or .svg; default: ladder.png, compare.png")
    for command in (show, draw):
        _add_types(command)
        command.add_argument("--what", choices=("ladder", "compare"), default="ladder")
        command.add_argument("--results", type=Path, help="default: all of perf/results")
        command.add_argument("--gpu", help="default: that of the newest row")
        command.add_argument("--size", type=_argument(parse_size), default="4096")
        command.add_argument("--layout", type=_argument(parse_layout), default="NT")
    return parser


def _add_types(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dtype", choices=ACCUMULATE, default="bf16")
    command.add_argument(
        "--accumulate", choices=("fp16", "fp32", "fp64"), help="default: the type's own"
    )
    command.add_argument(
        "--precision", default="ieee", help="how fp32 is multiplied", choices=PRECISIONS
    )


def _add_sizes(command: argparse.ArgumentParser, default: str) -> None:
    sizes = _list_of(parse_size)
    text = "4096 or MxNxK, with commas"
    command.add_argument("--sizes", "--size", type=sizes, default=default, help=text)


def _add_race(command: argparse.ArgumentParser, rounds: int) -> None:
    """The options of a command that measures."""
    command.add_argument("--rounds", type=int, default=rounds, help=f"default: {rounds}")
    command.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="as many rounds as fit in S seconds per case, instead of --rounds",
    )
    command.add_argument(
        "--only",
        type=lambda text: _each(str, text),
        default="",
        metavar="RUNG,...",
        help="these rungs (and cuBLAS)",
    )
    command.add_argument(
        "--configs", choices=("first", "all", "none"), default="first", help="of each rung"
    )
    command.add_argument("--all", action="store_true", help="also what takes over 0.5 s per launch")
    command.add_argument("--quick", action="store_true", help="few, short rounds; not recorded")
    command.add_argument("--out", type=Path, help="default: perf/results/<gpu>.jsonl")
    command.add_argument("--json", action="store_true", help="print rows instead of tables")
    command.add_argument("--seed", type=int, default=0)
    command.set_defaults(argv=sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
