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
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

#: What every process runs, before the arguments; and the environment variable with its `Part`.
COMMAND = (sys.executable, "-m", "perf")
VARIABLE = "TRITEMM_PERF_PART"
#: Seconds between two looks at the processes; until a dead one's last lines are given up.
PAUSE, LAST = 0.1, 5.0

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Part:
    """Problem `index` and every `of`-th after it; `run` stamps what is measured, `out` gets it."""

    index: int
    of: int
    run: str
    out: Path

    def share(self, items: Sequence[T]) -> list[T]:
        return list(items[self.index :: self.of])

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self) | {"out": str(self.out)})

    @staticmethod
    def from_json(text: str) -> Part:
        fields = json.loads(text)
        return Part(**fields | {"out": Path(fields["out"])})


def own() -> Part | None:
    """This process's part; None where it does everything, or shares it out."""
    text = os.environ.get(VARIABLE)
    return Part.from_json(text) if text else None


@dataclasses.dataclass(frozen=True)
class Ended:
    """What the processes left: the files that there are, part by part, all in `folder`.

    `status` is that of the first process that failed, 128 and the signal if one ended it, else 0;
    `interrupted` says whether Ctrl-C ended them.
    """

    folder: Path
    files: tuple[Path, ...]
    status: int
    interrupted: bool

    def discard(self) -> None:
        """Once the files' contents are elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)


def run(
    argv: Sequence[str], count: int, stamp: str, out: Path | None, say: Callable[[str], None]
) -> Ended:
    """Run `python -m perf` with `argv` on each of the first `count` visible GPUs, until all end.

    The parts' files lie beside `out`, or, without one, among temporary files, until `discard`.
    `say` gets each line that a process prints, after the name of its GPU. Ctrl-C and SIGTERM are
    passed on as Ctrl-C, and the processes waited for.
    """
    folder = _folder(out)
    say(f"{count} processes, one per GPU; until they end, what they measure is in {folder}")
    parts = [Part(i, count, stamp, folder / f"{i}.jsonl") for i in range(count)]
    children: list[subprocess.Popen] = []
    lock = threading.Lock()
    with _caught(signal.SIGINT, signal.SIGTERM) as caught:
        for part, device in zip(parts, visible(count), strict=True):
            if not caught:
                children.append(_start(argv, part, device))
        relays = [
            threading.Thread(target=_relay, args=(f"gpu {i}", child, say, lock), daemon=True)
            for i, child in enumerate(children)
        ]
        for relay in relays:
            relay.start()
        _wait(children, caught)
    for relay in relays:
        relay.join(LAST)
    status = _failure([child.returncode for child in children], bool(caught), say)
    files = tuple(part.out for part in parts if part.out.exists())
    return Ended(folder, files, status, bool(caught))


def visible(count: int) -> list[str]:
    """The first `count` visible GPUs, as CUDA_VISIBLE_DEVICES names them: an index or a UUID."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = named.split(",") if named is not None else map(str, range(count))
    return [word.strip() for word in words][:count]


def _folder(out: Path | None) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="tritemm-perf-"))
    out.parent.mkdir(parents=True, exist_ok=True)
    # Absolute: an error elsewhere must not depend on the working directory.
    return Path(tempfile.mkdtemp(dir=out.parent.absolute(), prefix=f"{out.name}.parts-"))


def _start(argv: Sequence[str], part: Part, device: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*COMMAND, *argv],
        env=os.environ | {VARIABLE: part.to_json(), "CUDA_VISIBLE_DEVICES": device},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a terminal's Ctrl-C is for the parent, which passes it on
    )


def _relay(name: str, child: subprocess.Popen, say: Callable[[str], None], lock) -> None:
    """If `say` fails the pipe is closed, and the child ends at its next line: it can't block."""
    with child.stdout as lines:
        for line in lines:
            with lock:
                say(f"{name}: {line.rstrip()}")


@contextlib.contextmanager
def _caught(*numbers: signal.Signals) -> Iterator[list[int]]:
    """The signals that came so far; they do nothing else meanwhile."""
    caught: list[int] = []
    before = {n: signal.signal(n, lambda number, frame: caught.append(number)) for n in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _wait(children: Sequence[subprocess.Popen], caught: Sequence[int]) -> None:
    passed = 0
    while [child for child in children if child.poll() is None]:
        if len(caught) > passed:
            passed = len(caught)
            for child in children:
                child.send_signal(signal.SIGINT)
        time.sleep(PAUSE)


def _failure(statuses: Sequence[int], interrupted: bool, say: Callable[[str], None]) -> int:
    """The status of the first that failed, as a shell says it; every failure is named."""
    expected = (0, 130, -signal.SIGINT) if interrupted else (0,)
    failed = {index: status for index, status in enumerate(statuses) if status not in expected}
    for index, status in failed.items():
        how = f"signal {-status} ended it" if status < 0 else f"its status is {status}"
        say(f"gpu {index} FAILED: {how}; what it measured before is kept")
    first = next(iter(failed.values()), 0)
    return 128 - first if first < 0 else first
