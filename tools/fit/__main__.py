"""`python -m tools.fit`: how good the cost model's constants are, and better ones."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tritemm.arch import gpus
from tritemm.dispatch.cost_model import constants
from tritemm.machine.command import bar, refuse, status_of, write_why_not
from tritemm.rungs import find

from .fit import NAMES, fit, quality, to_json
from .samples import read


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fit", description=__doc__)
    parser.add_argument("command", choices=("quality", "fit"), help="of the constants; find others")
    parser.add_argument("samples", nargs="+", type=Path, help="files of python -m perf search")
    parser.add_argument("--gpu", default="NVIDIA H200", help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="of fit; default: the GPU's file in tritemm")
    parser.add_argument(
        "--hold", default="", metavar="NAME,...", help="numbers that stay, such as power"
    )
    parser.add_argument(
        "--rung", default="", metavar="NAME,...", help="only numbers of these rungs move"
    )
    args = parser.parse_args(argv)
    hold, rungs = ({name for name in words.split(",") if name} for words in (args.hold, args.rung))
    try:
        data = gpus.file_of(args.gpu)
        out = args.out or gpus.path_of(args.gpu)
        if unknown := sorted(hold.difference(NAMES)):
            told = f"there is no {', '.join(unknown)}; the numbers are {', '.join(NAMES)}"
            raise ValueError(f"--hold: {told}")
        for name in rungs:
            find(name)
        if reason := write_why_not(out):
            raise ValueError(f"--out {out}: {reason}")
        device = gpus.device_of(data)
        samples = read(args.samples, device)
        if not samples:
            raise ValueError("there is no time of a rung in these files")
    except (OSError, ValueError) as error:
        return refuse(f"fit {args.command}", error)
    start = constants.of(device)
    print(quality(samples, start))
    if args.command == "fit":
        fitted = to_json(fit(samples, start, hold=hold, rungs=rungs, progress=bar))
        own = {name: value for name, value in data.items() if name != "rates"}  # are in `fitted`
        out.write_text(gpus.text_of({**own, "fitted": fitted}))
        print(quality(samples, constants.from_json(fitted, device)))
        print(out)
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
