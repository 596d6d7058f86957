"""Shares one command's problems out over the GPUs of a host: a process per GPU.

The command runs its own command line again, once for each GPU, with a `Part` in the environment
that says which problems are that process's and which file is. Files of their own survive whatever
happens to the command; at its end it adds what they hold to the one file that was asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tritemm.compile.pool import WORKERS

#: What every process runs, before the arguments; and the environment variable with its `Part`.
COMMAND = (sys.executable, "-m", "perf")
VARIABLE = "TRITEMM_PERF_PART"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Part:
    """Problem `index` and every `of`-th after it; `run` stamps what is measured, `out` gets it."""

    index: int
    of: int
    run: str
    out: str

    def share(self, items: Sequence[T]) -> list[T]:
        return list(items[self.index :: self.of])


def own() -> Part | None:
    """This process's part; None where it does everything, or shares it out."""
    text = os.environ.get(VARIABLE)
    return Part(**json.loads(text)) if text else None


def workers(asked: int | None, part: Part | None) -> int | None:
    """Processes that compile for this one, so that those of all parts are as many as `asked`.

    None leaves it to `Compilers`.
    """
    if part is None:
        return asked
    most = min(len(os.sched_getaffinity(0)), part.of * WORKERS)
    return max(1, (asked or most) // part.of)


def visible(count: int) -> list[str]:
    """The first `count` visible GPUs, as CUDA_VISIBLE_DEVICES names them: an index or a UUID."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = named.split(",") if named is not None else map(str, range(count))
    return [word.strip() for word in words][:count]


@contextlib.contextmanager
def run(
    argv: Sequence[str], count: int, stamp: str, out: Path | None, say: Callable[[str], None]
) -> Iterator[tuple[list[Path], int]]:
    """The files that `python -m perf` with `argv` leaves on the first GPUs, and the status.

    It is the first failure's, 128 and the signal if one ended it, 130 after Ctrl-C, else 0. What a
    process prints goes where this one's lines do. The files lie beside `out`, or among temporary
    ones, and are removed at the end of the block, unless an exception leaves it.
    """
    beside = {}
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = {"dir": out.parent.absolute(), "prefix": f"{out.name}.parts-"}
    folder = Path(tempfile.mkdtemp(**{"prefix": "tritemm-perf-"} | beside))
    say(f"{count} processes, one per GPU; until they end, what they measure is in {folder}")
    parts = [Part(i, count, stamp, str(folder / f"{i}.jsonl")) for i in range(count)]
    children: list[subprocess.Popen] = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    try:
        children += map(_start, [argv] * count, parts, visible(count))
        _wait(children)
    except KeyboardInterrupt:
        interrupted = True
        for child in children:
            child.send_signal(signal.SIGINT)
        _wait(children)
    finally:
        signal.signal(signal.SIGTERM, before)
    status = _failure([child.returncode for child in children], interrupted, say)
    yield [file for file in (Path(part.out) for part in parts) if file.exists()], status
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def _start(argv: Sequence[str], part: Part, device: str) -> subprocess.Popen:
    known = {VARIABLE: json.dumps(dataclasses.asdict(part)), "CUDA_VISIBLE_DEVICES": device}
    # In a session of its own: a terminal's Ctrl-C is for the parent, which passes it on once.
    options = {"env": os.environ | known, "stdin": subprocess.DEVNULL, "start_new_session": True}
    return subprocess.Popen([*COMMAND, *argv], **options)


def _wait(children: Sequence[subprocess.Popen]) -> None:
    for child in children:
        child.wait()


def _failure(statuses: Sequence[int], interrupted: bool, say: Callable[[str], None]) -> int:
    """The status of the first that failed, as a shell says it; every failure is named."""
    expected = (0, 130, -signal.SIGINT) if interrupted else (0,)
    failed = {index: status for index, status in enumerate(statuses) if status not in expected}
    for index, status in failed.items():
        how = f"signal {-status} ended it" if status < 0 else f"its status is {status}"
        say(f"gpu {index} FAILED: {how}; what it measured before is kept")
    first = next(iter(failed.values()), 130 if interrupted else 0)
    return 128 - first if first < 0 else first
