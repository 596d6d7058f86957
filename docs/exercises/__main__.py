"""Lists the tutorial's exercises, asks the question of one, or checks a file's answer to it.

`write` in front of a rung is for the exercises in which you write a kernel instead of a function.
"""

import argparse
import runpy
import sys
import traceback
from pathlib import Path

from . import Wrong, check, every, question, signature, told
from .write import WHERE, command


def main(argv: list[str] | None = None) -> int:
    """0; 1 if the answer is wrong; 2 if there is none to check."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["write"]:
        return command.main(argv[1:])
    parser = argparse.ArgumentParser(prog="python -m docs.exercises", description=__doc__)
    parser.add_argument("rung", nargs="?", choices=every(), help="ask its question")
    parser.add_argument("file", nargs="?", help="check the function `answer` in this file")
    args = parser.parse_args(argv)
    if args.rung is None:
        for rung in every():
            print(f"{rung:24} {question(rung).splitlines()[0]}")
        return command.listed()
    if args.file is None:
        checks = f"python -m docs.exercises {args.rung} FILE"
        print(f"{question(args.rung)}\n\nWrite {signature(args.rung)} into a file.")
        print(f"`{checks}` checks it. Run it from {WHERE}.")
        return 0
    try:
        Path(args.file).read_bytes()
    except OSError as error:
        return _refuse(f"{args.file}: {error.strerror}")
    try:
        names = runpy.run_path(args.file)
    except (Exception, SystemExit) as error:  # whatever the file does
        said = error.msg if isinstance(error, SyntaxError) else told(error)
        return _refuse(f"{_place(error, args.file)}: {said}")
    if not callable(answer := names.get("answer")):
        return _refuse(f"{args.file} has no function `answer`: write {signature(args.rung)}")
    try:
        check(args.rung, answer)
    except Wrong as wrong:
        print(f"Not yet. {wrong}")
        return 1
    print("Right.")
    return 0


def _place(error: BaseException, file: str) -> str:
    """ "answer.py, line 3": where in the file it came from, as far as that is known."""
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines.append(error.lineno)
    return f"{file}, line {lines[-1]}" if lines else file


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:  # without the seconds that the import of tritemm takes
        sys.exit(main())
    from tritemm.machine.command import status_of

    sys.exit(status_of(main))
