"""The rows of docs/types.md: entries of the type table that differ only in layout, N or swizzle."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from cuda_reference.types.table import TABLE, Entry

#: N of wgmma, which changes nothing but the number of registers: the ends, and one between.
SHOWN_N = (8, 64, 256)


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: its name, and the entries that it stands for."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def compiled(self) -> tuple[Entry, ...]:
        """The entries that are compiled for the row: all, but of wgmma's N and swizzles some."""
        return tuple(
            entry
            for entry in self.entries
            if entry.instruction != "wgmma" or (entry.shape[1] in SHOWN_N and entry.swizzle == 32)
        )

    @property
    def first(self) -> Entry:
        """The entry that the row's words are about: along K where there is a choice, N = 64."""

        def unusual(entry: Entry) -> tuple[bool, bool]:
            return (entry.a_layout, entry.b_layout) != ("row", "col"), entry.shape[1] != 64

        return min(self.compiled, key=unusual)


def name(entry: Entry) -> str:
    """What the row is called: the entry's words without the layouts, N and swizzle."""
    words = dataclasses.replace(entry, a_layout="", b_layout="", swizzle=0).name
    return re.sub(r"n\d+k", "nNk", words) if entry.instruction == "wgmma" else words


def rows(instruction: str, entries: Sequence[Entry] = TABLE) -> list[Row]:
    """The rows of `wmma`, `mma` or `wgmma`, in the table's order."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.instruction == instruction:
            found.setdefault(name(entry), []).append(entry)
    return [Row(row, tuple(members)) for row, members in found.items()]
