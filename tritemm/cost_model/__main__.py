"""`python -m tritemm.cost_model`: fit the model's constants."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..command import refuse, status_of, write_why_not
from ..problem import Device
from . import constants
from .fit import fit, quality
from .samples import read


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tritemm.cost_model", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    command = commands.add_parser("fit", help="constants of the cost model from measured times")
    command.add_argument("samples", nargs="+", type=Path, help="files of python -m perf search")
    command.add_argument("--out", type=Path, help="default: the GPU's file in this package")
    command.add_argument(
        "--hold", default="", metavar="NAME,...", help="plain numbers that stay, such as power"
    )
    command.add_argument("--gpu", default="NVIDIA H200", help="default: %(default)s")
    command.add_argument("--sms", type=int, default=132, help="default: %(default)s")
    command.add_argument("--shared", type=int, default=232448, help="bytes; default: %(default)s")
    command.add_argument("--capability", default=(9, 0), type=capability, help="default: 9.0")
    command.set_defaults(run=_fit)

    args = parser.parse_args(argv)
    return args.run(args)


def capability(text: str) -> tuple[int, int]:
    """Of 9.0; argparse says this name of what is none."""
    major, minor = text.split(".")
    return int(major), int(minor)


def _fit(args: argparse.Namespace) -> int:
    device = Device(args.gpu, args.capability, args.sms, args.shared)
    out = args.out or constants.path_of(device)
    hold = [name for name in args.hold.split(",") if name]
    try:
        if unknown := set(hold) - set(constants.Constants.RATES):
            names = ", ".join(constants.Constants.RATES)
            raise ValueError(
                f"--hold: there is no {', '.join(sorted(unknown))}; the numbers are {names}"
            )
        if reason := write_why_not(out):
            raise ValueError(f"--out {out}: {reason}")
        samples = read(args.samples, device)
        if not samples:
            raise ValueError("there is no time of a rung in these files")
    except (OSError, ValueError) as error:
        return refuse("cost_model fit", error)
    start = constants.of(device)
    print("before", quality(samples, start))
    found = fit(samples, start, hold=hold, progress=_bar)
    out.write_text(render(constants.to_json(found, device)))
    print("after ", quality(samples, constants.from_json(json.loads(out.read_text()))))
    print(out)
    return 0


def render(data: dict) -> str:
    """JSON with one line for each tile, so that a change can be read."""
    text = json.dumps(data, indent=2)
    for pair in (pair for table in data["steps"].values() for pair in table.values()):
        spread = "[\n" + ",\n".join(f"        {v}" for v in pair) + "\n      ]"
        text = text.replace(spread, json.dumps(pair))
    return text + "\n"


def _bar(rounds):
    try:
        from tqdm import tqdm
    except ImportError:
        return rounds
    return tqdm(rounds, desc="fit", disable=None, leave=False)


if __name__ == "__main__":
    sys.exit(status_of(main))
