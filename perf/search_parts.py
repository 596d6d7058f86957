"""What the processes of a shared search leave in their files, and how the whole is read from it.

A file has the lines of any search: a heading, then a line per result, rounded. Before the results
of a problem stands a note of what these lines don't say.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tritemm.config import config_of
from tritemm.rungs import find

from .case import Case
from .found import CUBLAS, Found, Option, Result


@dataclasses.dataclass(frozen=True)
class Searched:
    """What was found, the title above its table, and the lines that record it."""

    found: Found
    title: str
    lines: tuple[str, ...]


def note(found: Found, title: str) -> str:
    """The line before those of the results."""
    known = {"case": dataclasses.asdict(found.case), "chosen": found.chosen, "title": title}
    return json.dumps({"note": known})


def read(paths: Iterable[Path]) -> list[Searched]:
    """Problem after problem, file after file; a torn line, of a process that died, is left out."""
    searched = []
    for path in paths:
        notes: list[tuple[Mapping[str, Any], list[tuple[str, Result]]]] = []
        for line in path.read_text().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:
                continue
            if "note" in fields:
                notes.append((fields["note"], []))
            elif notes:  # the heading comes before any
                notes[-1][1].append((line, _result(fields)))
        searched += [_searched(told, results) for told, results in notes if results]
    return searched


def _searched(told: Mapping[str, Any], results: Iterable[tuple[str, Result]]) -> Searched:
    lines, found = zip(*results, strict=True)
    return Searched(Found(Case(**told["case"]), found, told["chosen"]), told["title"], lines)


def _result(fields: Mapping[str, Any]) -> Result:
    library = fields["kernel"] == CUBLAS
    option = Option(
        None if library else find(fields["kernel"]),
        None if library else config_of(fields["config"]),
        _seconds(fields["predicted_us"]),
    )
    return Result(option, _seconds(fields["us"]), fields.get("error"), "scaled" in fields)


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6
