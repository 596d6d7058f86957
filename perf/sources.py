"""Whether rows belong to the current kernels: a row carries a hash of its rung's sources.

Hashes need no history, so a shallow clone and an installed copy can tell. They are of what a kernel
is compiled from: the rung's file and those that it takes from the same folder, without comments,
headers and imports, so that a new rung, a better sentence or a moved file makes no row old.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from cuda_reference import source
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.rungs import RUNGS

from .rows import CUDA, TRITON, Row

#: What is measured in these modes is a kernel; in the others it is Python, or a whole model.
MODES = ("sustained", "burst", "settled", "in bursts", "errors")
#: What a caption adds if the kernels have changed since.
CHANGED = "; the kernels have changed since"


@functools.cache
def hashes() -> dict[tuple[str, str], str]:
    """The hash of every rung's sources, by ladder and name."""
    triton = {(TRITON, k.name): _hash(map(_python, files_of(_path(k.module)))) for k in RUNGS}
    cuda = {(CUDA, k.name): _hash(map(_cuda, source.files_of(k.file))) for k in CUDA_RUNGS}
    return triton | cuda


def hash_of(row: Row) -> str | None:
    """The hash of today's sources of the row's rung; None of what is no rung, as cuBLAS."""
    return hashes().get((row.ladder, row.rung))


def note(rows: Iterable[Row]) -> str:
    """What a caption has to add to the rows' commit and day: nothing if they are of these kernels.

    Rows that are older than the hashes may be of any.
    """
    own = (row for row in rows if row.ladder and row.mode in MODES)
    measured = [row for row in own if row.us or row.errors]
    if any(row.code and row.code != hash_of(row) for row in measured):
        return CHANGED
    return "; the kernels may have changed since" if any(not row.code for row in measured) else ""


def files_of(path: Path) -> list[Path]:
    """A module's file and those of its folder, and below, that it imports, directly or not."""
    found = [path]
    for file in found:
        for node in ast.walk(_tree(file)):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            module = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for place in (module, *(module / alias.name for alias in node.names)):
                other = place.with_suffix(".py")
                if other.is_relative_to(path.parent) and other.is_file() and other not in found:
                    found.append(other)
    return found


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _path(module: str) -> Path:
    return Path(importlib.util.find_spec(module).origin)


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()[:12]


@functools.cache
def _python(path: Path) -> str:
    """The lines of a file that are neither blank nor of a comment, a docstring or an import."""
    lines = path.read_text().splitlines()
    for node in ast.walk(_tree(path)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(line for line in lines if line.strip() and not line.strip().startswith("#"))


def _cuda(path: Path) -> str:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
