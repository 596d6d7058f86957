"""Renews what the pages show of compilers and GPUs: `python -m docs.record WHAT [--check]`.

Without a GPU `code` compiles both ladders, and `types` the type table, in minutes, with nvcc;
`blackwell` the kernel for sm_100, in seconds. On a GPU `counters` and `joules` measure each rung,
and `timelines` what the warps of an SM do. `make docs` then fills the pages.
"""

import argparse
import sys

import torch

from perf import cli
from tritemm.machine.command import status_of
from tritemm.rungs import find

from . import code
from .blackwell import code as blackwell
from .lessons import measured
from .saved import save
from .timeline import measure as timelines
from .types import record as types

COMPILED = {"types": types, "code": code, "blackwell": blackwell}
MEASURED = {"counters": measured, "joules": measured, "timelines": timelines}


def main(argv: list[str] | None = None) -> int:
    """0: written, or nothing has changed; 1: `--check` found something; 2: can't be done here."""
    parser = argparse.ArgumentParser(prog="python -m docs.record", description=__doc__)
    parser.add_argument("what", choices=(*COMPILED, *MEASURED))
    parser.add_argument("--check", action="store_true", help="compile and compare; 1 if stale")
    cli.add_list(parser, "--only", lambda name: find(name).name, "measure these rungs alone")
    given = parser.parse_args(argv)
    if given.check if given.what in MEASURED else given.only:
        parser.error("--check is for what is compiled, --only for what is measured")
    try:
        if given.what in COMPILED:
            module = COMPILED[given.what]
            new = module.record()
            if given.check:
                return compared(given.what, module.differences(module.load(), new))
            save(module.DATA, new)
        elif not torch.cuda.is_available():
            raise RuntimeError(f"{given.what} need a GPU")
        else:
            module = MEASURED[given.what]
            for found in module.measure(given.what, given.only):
                save(module.DATA, found)  # after each, so that whoever stops early keeps the others
    except RuntimeError as error:  # `toolkit.Unavailable` among them
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {module.DATA.name}; now run `make docs`")
    return 0


def compared(what: str, found: list[str]) -> int:
    for line in found:
        print(f"{line}; run `python -m docs.record {what}`")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(status_of(main))
