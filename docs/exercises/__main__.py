"""The command line: see the package."""

from __future__ import annotations

import argparse
import runpy
import sys

from . import Wrong, every, find, question, signature


def main(argv: list[str] | None = None) -> int:
    """0; 1 if the answer is wrong; 2 if there is none to check."""
    parser = argparse.ArgumentParser(prog="python -m docs.exercises", description=__doc__)
    parser.add_argument("rung", nargs="?", choices=every(), help="ask its question")
    parser.add_argument("file", nargs="?", help="check the function `answer` in this file")
    args = parser.parse_args(argv)
    if args.rung is None:
        for rung in every():
            print(f"{rung:18} {question(rung).splitlines()[0]}")
        return 0
    if args.file is None:
        print(f"{question(args.rung)}\n\nWrite {signature(args.rung)} into a file, and name it.")
        return 0
    try:
        answer = runpy.run_path(args.file)["answer"]
    except OSError as error:
        return _refuse(f"{args.file}: {error.strerror}")
    except KeyError:
        return _refuse(f"{args.file} has no function `answer`: write {signature(args.rung)}")
    try:
        find(args.rung).check(answer)
    except Wrong as wrong:
        print(f"Not yet. {wrong}")
        return 1
    print("Right.")
    return 0


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
