"""Writes the file that an exercise starts from, or checks the kernel in it."""

import argparse
import importlib.util
import json
import linecache
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import WHERE, every, hint, name_of, question, start
from .ahead import refused

ROOT = Path(__file__).resolve().parents[3]
#: That kernels are interpreted; that what they print is seen even if the process is ended; and that
#: no folder appears beside the file.
SETTINGS = ("TRITON_INTERPRET", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
#: Packages without which no kernel can be checked.
NEEDS = ("torch", "triton")
#: Seconds that one launch of a kernel may take.
LIMIT = 20


def main(argv: list[str]) -> int:
    """0; 1 if the kernel is wrong; 2 if there is none to check, or the file can't be written."""
    parser = argparse.ArgumentParser(prog="python -m docs.exercises write", description=__doc__)
    parser.add_argument("rung", nargs="?", choices=every(), help="ask, and write a file to start")
    parser.add_argument("file", nargs="?", help="check the kernel in this file")
    parser.add_argument("--hint", action="store_true", help="show a hint, and do nothing else")
    args = parser.parse_args(argv)
    if args.rung is None:
        return listed()
    if args.hint:
        print(hint(args.rung))
        return 0
    if args.file is None:
        return begun(args.rung)
    try:
        Path(args.file).read_bytes()
    except OSError as error:
        return _refuse(f"{args.file}: {error.strerror}. {_begin(args.rung)}")
    for package in NEEDS:
        if importlib.util.find_spec(package) is None:
            return _refuse(f"This Python has no {package}. Run the command from {WHERE}.")
    said = refused(args.rung, args.file)
    if said is None:
        if sys.stderr.isatty():
            print("Checking; the interpreter takes some seconds ...", file=sys.stderr)
        (said,) = checked([(args.rung, args.file)])
    print("Right." if said is None else f"Not yet. {said}")
    return int(said is not None)


def listed() -> int:
    """A line for each exercise."""
    for rung in every():
        print(f"write {rung:18} {question(rung).splitlines()[0]}")
    return 0


def begun(rung: str) -> int:
    """Write the file to start from, unless there is one."""
    file = Path(name_of(rung))
    try:
        with file.open("x") as to:
            to.write(start(rung))
    except FileExistsError:
        return _refuse(f"{file} is there already, and stays as it is. {_check(rung)}")
    except OSError as error:
        return _refuse(f"{file}: {error.strerror}")
    print(f"{question(rung)}\n\nComplete {file}, which is in this folder now. {_check(rung)}")
    return 0


def checked(pairs: Sequence[tuple[str, str]], seconds: float = LIMIT) -> list[str | None]:
    """What is wrong with the files of these rungs, in a process of their own; None: nothing.

    Where one ends the process there are no verdicts about those after it.
    """
    files = [str(Path(file).resolve()) for _, file in pairs]
    words = [word for (rung, _), file in zip(pairs, files, strict=True) for word in (rung, file)]
    with tempfile.NamedTemporaryFile("r") as report:
        command = [sys.executable, "-m", "docs.exercises.write.child", report.name, str(seconds)]
        # If even the child's own limit doesn't end it.
        patience = 60 + len(files) * 20 * seconds
        environment = os.environ | dict.fromkeys(SETTINGS, "1")
        try:
            done = subprocess.run(
                [*command, *words], cwd=ROOT, env=environment, timeout=patience
            ).returncode
        except subprocess.TimeoutExpired:
            done = -signal.SIGKILL
        lines = report.read().splitlines()
    # json.dumps writes no line that begins otherwise, and faulthandler none that begins so.
    verdicts = [json.loads(line) for line in lines if line.startswith(('"', "null"))]
    if len(verdicts) < len(files):
        verdicts.append(_ended(lines, done, files[len(verdicts)], seconds))
    return verdicts


def _ended(lines: Sequence[str], status: int, file: str, seconds: float) -> str:
    """Why a file has no verdict."""
    if not any(line.startswith("Timeout") for line in lines):
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        return f"The process that ran the kernel ended {how}, before the check was complete."
    said = f"It ran longer than {seconds:g} s"
    for line in lines:
        if found := re.match(rf'  File "{re.escape(file)}", line (\d+) in ', line):
            code = linecache.getline(file, int(found[1])).strip()
            return f"{said}, and was then in line {found[1]}, `{code}`. Does a loop never end?"
    return f"{said}. Does a loop never end?"


def _begin(rung: str) -> str:
    return f"`python -m docs.exercises write {rung}` writes {name_of(rung)} to start from."


def _check(rung: str) -> str:
    command = f"python -m docs.exercises write {rung} {name_of(rung)}"
    return f"`{command}` checks it, without a GPU. Run it from {WHERE}."


def _refuse(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2
