"""Work on many files at once, with a line of progress and every error kept."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed


def in_parallel(
    what: str, tasks: Mapping[str, Callable[[], object]], jobs: int | None = None
) -> dict[str, str]:
    """Run the tasks, `jobs` at a time, in order; returns the messages of RuntimeErrors by name."""
    failed: dict[str, str] = {}
    with _progress(what, len(tasks)) as done, ThreadPoolExecutor(jobs or _cores()) as pool:
        started = {pool.submit(_seconds, task): name for name, task in tasks.items()}
        for future in as_completed(started):
            name = started[future]
            try:
                done(f"{name} in {future.result():.1f} s")
            except RuntimeError as error:
                failed[name] = str(error)
                done(f"{name} failed")
    return failed


def _seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


@contextlib.contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """A function to call for each of `total` things done: a bar on a terminal, else a line each."""
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from tqdm import tqdm

            with tqdm(total=total, desc=what, unit="file", file=sys.stderr) as bar:
                yield lambda text: (bar.set_postfix_str(text, refresh=False), bar.update())
                return
    count = iter(range(1, total + 1))
    yield lambda text: print(f"{what}: {next(count)} of {total}, {text}", file=sys.stderr)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
