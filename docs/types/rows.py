"""The rows of docs/types.md: entries of the type table that are said in the same words."""

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
        """The entries that are compiled for the row: all, but of wgmma some.

        That is some N, and for all swizzles the one that a tile of one instruction can have; of
        the modified ones, the largest of each type that lies along K.
        """
        found = self.entries
        if found[0].instruction == "wgmma":
            found = (dataclasses.replace(e, swizzle=32) for e in found if e.shape[1] in SHOWN_N)
        if self.entries[0].modified:
            found = (e for e in found if e.shape[1] == SHOWN_N[-1] and _along_k(e))
        return tuple(dict.fromkeys(found))

    @property
    def first(self) -> Entry:
        """The entry that the row's words are about: along K where there is a choice, N = 64."""
        return min(self.compiled, key=lambda e: (not _along_k(e), e.shape[1] != SHOWN_N[1]))


def _along_k(entry: Entry) -> bool:
    return (entry.a_layout, entry.b_layout) == ("row", "col")


def name(entry: Entry) -> str:
    """What the row is called: the entry's words without the layouts, N and swizzle.

    What is modified of wgmma has rows of its own, for all types.
    """
    words = dataclasses.replace(entry, a_layout="", b_layout="", swizzle=0).name
    if entry.instruction != "wgmma":
        return words
    if entry.modified:
        plain = dataclasses.replace(
            entry, a_in_registers=False, scale_a=1, scale_b=1, scale_d=1, a_layout="", b_layout=""
        )
        return "wgmma" + words.removeprefix(plain.ptx)
    return re.sub(r"n\d+k", "nNk", words)


def rows(instruction: str, entries: Sequence[Entry] = TABLE) -> list[Row]:
    """The rows of `wmma`, `mma` or `wgmma`, in the table's order."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.instruction == instruction:
            found.setdefault(name(entry), []).append(entry)
    return [Row(row, tuple(members)) for row, members in found.items()]
