"""The commands of `python -m tritemm`: ladder, demo, explain, asm, tuning, env; `--version`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from pathlib import Path

import torch

from .. import dispatch
from ..api import tuning
from ..arch import gpus
from ..compile import asm
from ..dispatch.request import word_of
from ..machine.command import refuse
from ..problem import INTERPRETED, Device, Unsupported
from ..rungs import ladder
from ..version import __version__
from . import demo, env

#: The GPU that `explain` assumes if there is none.
_ASSUMED = "H200"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tritemm",
        description="Tensor-core matrix multiplication in Triton, from the naive kernel upwards.",
    )
    parser.add_argument("--version", action="version", version=f"tritemm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("ladder", help="list the kernels, in reading order")
    _json_option(command)
    command.set_defaults(run=_ladder)

    command = commands.add_parser("demo", help="run and check every rung, draw the ladder")
    command.add_argument(
        "--plot", type=Path, default=Path("ladder.png"), metavar="FILE", help="default: %(default)s"
    )
    _json_option(command)
    command.set_defaults(run=_demo)

    command = commands.add_parser(
        "explain", help="what would run for a problem, on this GPU or another"
    )
    for size in "MNK":
        command.add_argument(size, type=int)
    layout = "how A and B are stored: N as written or T transposed"
    _option(command, "--layout", asm.LAYOUT, layout)
    _option(command, "--dtype", "bf16", f"type of the operands: {', '.join(asm.OPERANDS)}")
    _option(command, "--out-dtype", None, "type of the result")
    _option(command, "--precision", "ieee", "how fp32 is multiplied")
    _option(command, "--activation", None, "of the result; swiglu and geglu halve its columns")
    _option(command, "--kernel", "auto", "a rung, instead of auto")
    other = command.add_mutually_exclusive_group()
    _option(other, "--gpu", None, "another GPU by name, H100; it need not be present")
    _option(other, "--sm", None, f"an architecture: {', '.join(map(str, gpus.DEVICES))}")
    command.set_defaults(run=_explain)

    command = commands.add_parser("asm", help="PTX and SASS of a rung, without a GPU")
    asm.add_arguments(command)
    command.set_defaults(run=asm.main)

    command = commands.add_parser("tuning", help="carry what tritemm.tune found to other machines")
    command.add_argument("what", choices=("export", "load"))
    command.add_argument("path", type=Path)
    command.set_defaults(run=_tuning)

    command = commands.add_parser("env", help="facts to paste into a bug report")
    _json_option(command)
    command.set_defaults(run=lambda args: env.show(args.json))

    args = parser.parse_args(argv)
    return args.run(args) or 0


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def _option(parser: argparse._ActionsContainer, name: str, default, meaning: str, **more) -> None:
    shown = meaning if default is None else f"{meaning} (default: %(default)s)"
    parser.add_argument(name, default=default, help=shown, **more)


def _explain(args: argparse.Namespace) -> int:
    try:
        device, whose = _device(args.gpu, args.sm)
        job = asm.Job(
            "simt", 90, args.M, args.N, args.K, args.layout.upper(), args.dtype,
            args.out_dtype, None, args.precision, activation=args.activation or "",
        )  # fmt: skip
        problem = dataclasses.replace(asm.problem_of(job), device=device)
        choice = dispatch.first_choice(problem, word_of(args.kernel))
    except (RuntimeError, ValueError) as error:
        return refuse("explain", error)
    print(f"device     {device.name}{whose}\n{choice}")
    return 0


def _device(gpu: str | None, sm: str | None) -> tuple[Device, str]:
    """The device to explain for, and what to print after its name."""
    named = gpu if sm is None else asm.sm_of(sm)
    if named is not None:
        device = gpus.named(named)
        return device, f" with {device.sms} SMs"
    why = ""
    if not INTERPRETED and torch.cuda.is_available():
        try:
            return Device.of(torch.device("cuda")), ", which is here"
        except Unsupported as error:
            why = f" ({error})"
    return gpus.named(_ASSUMED), f", assumed{why}; --gpu or --sm names another"


def _ladder(args: argparse.Namespace) -> None:
    if args.json:
        rungs = [
            {"number": k.number, "name": k.name, "title": k.title, **k.header} for k in ladder()
        ]
        print(json.dumps(rungs, indent=2))
    else:
        print(ladder())


def _demo(args: argparse.Namespace) -> int:
    if reason := None if args.json else demo.plot_why_not(args.plot):
        return refuse("demo", f"--plot {args.plot}: {reason}")
    return demo.main(args.plot, as_json=args.json)


def _tuning(args: argparse.Namespace) -> int:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "tuning results are not kept", UserWarning)
            print(f"{getattr(tuning, args.what)(args.path)} problems")
    except (OSError, ValueError, UserWarning) as error:
        return refuse(f"tuning {args.what}", error)
    return 0
