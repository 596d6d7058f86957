"""Compiles the kernel for sm_100 and counts its code: `python -m docs.blackwell`, without a GPU."""

import argparse
import sys

from tritemm.arch.gpus import DEVICES
from tritemm.compile.sass import count_instructions, instruction_table
from tritemm.machine.command import status_of

from .code import ARCH, ASKS, COLUMNS, compile_all, count, variants
from .shape import VERSIONS

SHARED = DEVICES[ARCH].shared


def main(argv: list[str] | None = None) -> int:
    """0: compiled; 2: this Triton can't."""
    parser = argparse.ArgumentParser(prog="python -m docs.blackwell", description=__doc__)
    parser.add_argument("--ptx", action="store_true", help="also print the PTX")
    parser.add_argument("--sass", action="store_true", help="also print the SASS")
    given = parser.parse_args(argv)
    try:
        codes = compile_all()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    for name, code in codes.items():
        print(f"{name}: {VERSIONS[name].words}; compiled for sm_{ARCH}, never run\n")
        print("\n".join(instruction_table(*count_instructions(code["sass"]))))
        print(
            f"{'asks for tiles':<14}{count({'variants': variants(code['sass'])}, ASKS):>7}  {ASKS}"
        )
        print(f"{'registers':<14}{code['registers']:>7}  per thread, {code['warps']} warps")
        print(f"{'spills':<14}{code['spills']:>7}  bytes of stack per thread")
        print(f"{'shared':<14}{code['shared']:>7}  bytes per program, of {SHARED}")
        print(f"{'tensor memory':<14}{code['columns']:>7}  columns per program, of {COLUMNS}\n")
        for text in [text for text in ("ptx", "sass") if getattr(given, text)]:
            print(code[text])
    return 0


if __name__ == "__main__":
    sys.exit(status_of(main))
