"""Processes that are not left running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

#: Seconds that a process may take to end once it is killed.
LAST = 60


@contextlib.contextmanager
def session(command: Sequence[str], **more) -> Iterator[subprocess.Popen]:
    """`command` as `subprocess.Popen` runs it with `more`, in a session of its own, in text.

    If it still runs when the block ends, however that does, it is killed with all of its session: a
    tool with its child, whose kernel may hang and keep the GPU from what comes next.
    """
    process = subprocess.Popen(command, text=True, errors="replace", start_new_session=True, **more)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LAST)
