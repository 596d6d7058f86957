"""What `convert` did to a model, module by module, as a value and as a table."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from .converted import fell_back


@dataclasses.dataclass(frozen=True)
class Entry:
    """One module: its name in the model, its class, its weight's shape, and what to say of it."""

    name: str
    kind: str
    shape: tuple[int, ...] | None
    note: str


@dataclasses.dataclass(frozen=True)
class Report:
    """`changed` says what each module became; `left`, why each other module was left unchanged.

    `compiled` says which layers of a Sequential get the activation that follows as an epilogue in
    code from torch.compile; the Sequential itself doesn't change.

    In print, modules whose names differ only in numbers share a line: layers.*.mlp.
    """

    changed: tuple[Entry, ...] = ()
    left: tuple[Entry, ...] = ()
    compiled: tuple[Entry, ...] = ()
    _before: Counter = dataclasses.field(default_factory=fell_back.copy, repr=False, compare=False)

    @property
    def fell_back(self) -> dict[str, int]:
        """Why torch's own function ran in converted layers -> calls, since `convert` returned.

        Counts the layers of all models; compiled code isn't counted.
        """
        return dict(fell_back - self._before)

    def __str__(self) -> str:
        known = {"changed": self.changed, "compiled": self.compiled, "left": self.left}
        rows = [row for word, entries in known.items() for row in _rows(word, entries)]
        rows += [("by torch", f"{n} x", "", "", "", why) for why, n in self.fell_back.items()]
        if not rows:
            return "no module that multiplies by a weight"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        padded = ([text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in rows)
        return "\n".join("  ".join(row).rstrip() for row in padded)


def _rows(word: str, entries: Iterable[Entry]) -> Iterator[tuple[str, ...]]:
    """One row for all entries that print alike, with their number."""
    counts: dict[tuple[str, ...], int] = {}
    for entry in entries:
        shape = "" if entry.shape is None else str(list(entry.shape))
        line = re.sub(r"(?<![^.])\d+(?![^.])", "*", entry.name), entry.kind, shape, entry.note
        counts[line] = counts.get(line, 0) + 1
    for (name, *rest), count in counts.items():
        yield word, f"{count} x", name or "(the model)", *rest
