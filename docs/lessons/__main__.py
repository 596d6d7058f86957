"""The command line: see the package."""

from __future__ import annotations

import argparse
import sys

from tritemm.command import status_of

from . import instructions, measured


def main() -> int:
    """0; 2 where it can't be done here."""
    parser = argparse.ArgumentParser(prog="python -m docs.lessons", description=__doc__)
    parser.add_argument("what", choices=("measure", "instructions"))
    if parser.parse_args().what == "instructions":
        instructions.write(instructions.record())
        return 0
    import torch

    if not torch.cuda.is_available():
        print("counters and joules need a GPU", file=sys.stderr)
        return 2
    measured.write(measured.measure())
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
