"""Pictures that are drawn anew while rows come in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tritemm.compile.pool import Worker

from ..rows import Row

#: Draws rows into a folder and returns what it wrote.
Draw = Callable[[Sequence[Row], Path], list[Path]]


class Live:
    """Draws in a process of its own: a pause between two rounds would let the card cool."""

    def __init__(self, draw: Draw, folder: Path):
        self.draw, self.folder = draw, folder
        self.worker: Worker | None = None
        self.thread = ThreadPoolExecutor(1)
        self.last: Future | None = None

    def show(self, rows: Sequence[Row]) -> None:
        """Draw these rows, unless earlier ones are still being drawn."""
        self.worker = self.worker or Worker()
        if self.last is None or self.last.done():
            self.last = self.thread.submit(self.worker.ask, self.draw, rows, self.folder)

    def close(self, rows: Sequence[Row]) -> list[Path]:
        """Draw the last rows here, where an error is seen, and return what was written."""
        if self.worker:
            self.worker.kill()
            self.thread.shutdown(wait=True, cancel_futures=True)
            self.worker.close()
        return self.draw(rows, self.folder)
