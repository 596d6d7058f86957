"""The command line: see the package."""

from __future__ import annotations

import argparse
import sys

from perf import cli
from tritemm.machine.command import status_of
from tritemm.rungs import find

from . import instructions, measured


def main() -> int:
    """0; 2 where it can't be done here."""
    parser = argparse.ArgumentParser(prog="python -m docs.lessons", description=__doc__)
    parser.add_argument("what", choices=("counters", "joules", "instructions"))
    cli.add_list(parser, "--only", lambda name: find(name).name, "counters, joules: of these rungs")
    given = parser.parse_args()
    if given.what == "instructions":
        if given.only:
            parser.error("instructions are recorded of all rungs")
        instructions.write(instructions.record())
        return 0
    import torch

    if not torch.cuda.is_available():
        print(f"{given.what} need a GPU", file=sys.stderr)
        return 2
    for found in measured.measure(given.what, given.only):
        measured.write(found)
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
