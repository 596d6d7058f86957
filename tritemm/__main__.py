"""`python -m tritemm`: the commands of `cli`; `--version` and `env` on any machine."""

from __future__ import annotations

import sys

from .cli import env
from .machine.command import refuse, status_of
from .machine.needs import why_not
from .version import __version__


def main(argv: list[str] | None = None) -> int:
    missing = why_not()
    if missing is None:
        from .cli.main import main as run

        return run(argv)
    word, *more = [*(sys.argv[1:] if argv is None else argv), ""]
    if word == "--version":
        print(f"tritemm {__version__}")
    elif word == "env":
        env.show(as_json="--json" in more)
    else:
        return refuse(word, f"{missing}; --version and env work here all the same")
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
