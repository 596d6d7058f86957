"""JSON files that commands write and people compare: an entry a line."""

import json
from pathlib import Path
from typing import Any


def save(path: Path, data: Any) -> None:
    path.write_text(_text(data, 2) + "\n")


def _text(data: Any, depth: int) -> str:
    """Lines for the entries of so many levels of dicts, and one for all that is within."""
    if depth == 0 or not isinstance(data, dict):
        return json.dumps(data, ensure_ascii=False, sort_keys=True)
    entries = (f"{json.dumps(key)}: {_text(data[key], depth - 1)}" for key in sorted(data))
    return "{\n" + ",\n".join(entries) + "\n}"
