"""`python -m tritemm`: ladder, demo, explain, asm, env."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .compile import asm


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tritemm",
        description="Tensor-core matrix multiplication in Triton, from the naive kernel upwards.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("ladder", help="list the kernels, slowest first")
    _json_option(command)
    command.set_defaults(run=_ladder)

    command = commands.add_parser("demo", help="run and check every rung, draw the ladder")
    command.add_argument(
        "--plot", type=Path, default=Path("ladder.png"), metavar="FILE", help="default: %(default)s"
    )
    _json_option(command)
    command.set_defaults(run=_demo)

    command = commands.add_parser(
        "explain", help="what would be chosen for a problem, on a GPU that need not be here"
    )
    for size in "MNK":
        command.add_argument(size, type=int)
    _option(command, "--layout", "NT", "how A and B are stored: N as written or T transposed")
    _option(command, "--dtype", "bf16", "type of the operands")
    _option(command, "--out-dtype", None, "type of the result")
    _option(command, "--precision", "ieee", "how fp32 is multiplied")
    _option(command, "--kernel", "auto", "a rung, instead of auto")
    _option(command, "--sm", 90, "architecture", type=int)
    command.set_defaults(run=_explain)

    command = commands.add_parser("asm", help="PTX and SASS of a rung, with no GPU")
    asm.add_arguments(command)
    command.set_defaults(run=asm.main)

    command = commands.add_parser("env", help="what to paste in a bug report")
    _json_option(command)
    command.set_defaults(run=_env)

    args = parser.parse_args(argv)
    return args.run(args) or 0


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _option(parser: argparse.ArgumentParser, name: str, default, meaning: str, **more) -> None:
    shown = meaning if default is None else f"{meaning} (default: %(default)s)"
    parser.add_argument(name, default=default, help=shown, **more)


def _explain(args: argparse.Namespace) -> int:
    from . import dispatch

    try:
        job = asm.Job(
            "simt", args.sm, args.M, args.N, args.K, args.layout, args.dtype,
            args.out_dtype, None, args.precision,
        )  # fmt: skip
        print(dispatch.choose(asm.problem_of(job), args.kernel))
    except ValueError as error:
        print(f"tritemm explain: {error}", file=sys.stderr)
        return 2
    return 0


def _ladder(args: argparse.Namespace) -> None:
    from .rungs import ladder

    if args.json:
        rungs = [
            {"number": k.number, "name": k.name, "title": k.title, **k.header} for k in ladder()
        ]
        print(json.dumps(rungs, indent=2))
    else:
        print(ladder())


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    return demo.main(args.plot, as_json=args.json)


def _env(args: argparse.Namespace) -> None:
    from . import env

    facts = env.collect()
    print(json.dumps(facts, indent=2) if args.json else env.render(facts))


if __name__ == "__main__":
    sys.exit(main())
