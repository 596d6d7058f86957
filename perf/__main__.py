"""The command line; `python -m perf --help`."""

from __future__ import annotations

import argparse
import sys

from tritemm.machine.command import status_of

from .experiments import (
    conform,
    errors,
    experts,
    host,
    joules,
    ladder,
    model,
    moe,
    profile,
    race,
    regret,
    roofline,
    search,
    serving,
    show,
    suite,
    sweep,
)

#: In the order of the help. A new experiment is a module of `perf.experiments`, and an entry here.
COMMANDS = (
    *(race, suite, serving, moe, experts, ladder, sweep, host, joules, model, roofline),
    *(search, regret, conform, errors, profile, show),
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m perf",
        description="Measure tritemm against cuBLAS, record the results and show them.",
        epilog="`python -m perf COMMAND --help` has the options and examples of each.",
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.register(commands)
    return made


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    args.argv = argv
    return args.command(args)


if __name__ == "__main__":
    sys.exit(status_of(main))
