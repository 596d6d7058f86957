"""How the commands end: with a status, and with a sentence instead of a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path


def status_of(main: Callable[[], int]) -> int:
    """What `main` returns; the shell's status for SIGPIPE if the reader left (`| head`).

    2, with a sentence, if the output can't be written.
    """
    if sys.stdout is None:  # it was closed, which print ignores
        return main()
    try:
        try:
            return main()
        finally:  # argparse's help leaves by SystemExit
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno is None:  # something else is wrong
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        if isinstance(error, BrokenPipeError):
            return 128 + 13
        return refuse("", f"its output can't be written: {error.strerror}")


def write_why_not(path: Path) -> str | None:
    """Why no file can be written there, or None."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if path.is_dir():
        return "it is a folder"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return "it can't be written"
    return None


def bar(rounds: Iterable, **shown) -> Iterable:
    """`rounds` with a bar on a terminal, if tqdm is installed; `shown` is what tqdm takes."""
    try:
        from tqdm import tqdm
    except ImportError:
        return rounds
    return tqdm(rounds, disable=None, leave=False, **shown)


def refuse(command: str, reason: object) -> int:
    """Print why the command fails to stderr; returns its status."""
    print(f"{f'tritemm {command}'.rstrip()}: {sentence(reason)}", file=sys.stderr)
    return 2


def sentence(reason: object) -> object:
    """A system error in words, without its number; any other reason unchanged."""
    if isinstance(reason, OSError) and reason.filename is not None:
        return f"{reason.filename}: {reason.strerror}"
    return reason
