"""The .cu files by name: a name is the path from here without the suffix, "types/wmma_f64"."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tritemm.spec import Signs, parse_header, parse_signs, parse_title

ROOT = Path(__file__).resolve().parent
INCLUDE = ROOT / "include"
#: What a header says; "By hand" takes the place of a Triton rung's "Compiler does".
HEADER_KEYS = ("Adds to", "Mirrors", "By hand", "Signs", "Needs", "Note")

_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def names() -> list[str]:
    """Every .cu file, those of the ladder first."""
    found = [path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.cu")]
    return sorted(found, key=lambda name: ("/" in name, name))


def path_of(name: str) -> Path:
    """The file called `name`; ValueError with the names there are if there is none."""
    path = ROOT / f"{name}.cu"
    if not path.is_file():
        raise ValueError(f"no CUDA source is called {name!r}; there are {', '.join(names())}")
    return path


def largest_first(names: Iterable[str]) -> list[str]:
    """In the order to compile them in: the one that takes the longest should not start last."""

    def size(name: str) -> int:
        return sum(file.stat().st_size for file in files_of(path_of(name)))

    return sorted(names, key=lambda name: ("/" not in name, -size(name)))


def opening_comment(path: Path) -> str:
    """The text of the block comment that a .cu opens with: its header."""
    match = re.match(r"/\*(.*?)\*/", path.read_text(), re.DOTALL)
    if match is None:
        raise ValueError(f"{path.name} does not open with a block comment")
    return inspect.cleandoc(match.group(1)).strip()


def title(name: str) -> str:
    return parse_title(opening_comment(path_of(name)))


def header(name: str) -> Mapping[str, str]:
    """The header's keys and their text."""
    return parse_header(opening_comment(path_of(name)), HEADER_KEYS)


def signs(name: str) -> Signs:
    """Per architecture (80, 90): the SASS mnemonics that must and that must not appear."""
    return parse_signs(header(name)["Signs"])


def architectures(name: str) -> tuple[str, ...]:
    """What `name` is compiled for, as its signs say: "80", "90a" or both."""
    return tuple(target(sm) for sm in sorted(signs(name)))


@functools.cache
def target(sm: int) -> str:
    """The name of a real architecture: Hopper's own instructions need the suffix of sm_90a."""
    return "90a" if sm == 90 else str(sm)


def files_of(path: Path) -> list[Path]:
    """The file and every file of ours that it includes, directly or not."""
    found = [path]
    for file in found:
        for word in _INCLUDED.findall(file.read_text()):
            for folder in (file.parent, INCLUDE):
                included = (folder / word).resolve()
                if included.is_file():
                    if included not in found:
                        found.append(included)
                    break
    return found
