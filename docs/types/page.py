"""The generated parts of docs/types.md: a table for each of `wmma.mma`, `mma.sync` and `wgmma`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import record, ways
from .rows import Row, rows

HEAD = (
    "| combination | in CUDA | compiles to | in Triton | compiles to | in Gluon | compiles to |\n"
    "|---|---|---|---|---|---|---|"
)


def parts() -> dict[str, str]:
    """The texts by the names of their markers."""
    data = record.load()
    tables = {f"types-{name}": table(name, data) for name in record.INSTRUCTIONS}
    return {"types-compilers": compilers(data), **tables}


def compilers(data: Mapping[str, Any]) -> str:
    names = sorted(set(data["compilers"].values()))
    return f"Compiled by {' and '.join(names)}."


def table(instruction: str, data: Mapping[str, Any]) -> str:
    lines = (line(row, data["rows"].get(row.name, {})) for row in rows(instruction))
    return "\n".join([HEAD, *lines])


def line(row: Row, codes: Mapping[str, Any]) -> str:
    """A row: what it is, and for each side the words and the code."""
    gluon = ways.gluon_way(row.first)
    dot = ways.DOT.why_not(row.first)
    words = {
        "cuda": in_cuda(row),
        "triton": f"no: {dot}" if dot else ways.DOT.words(row.first),
        "gluon": gluon.words(row.first) if gluon else "no",
    }
    cells, architectures = [combination(row)], 1 if row.first.instruction == "wgmma" else 2
    for column, text in words.items():
        cells += [text, code(codes.get(column, {}), architectures)]
    return "| " + " | ".join(cells) + " |"


def combination(row: Row) -> str:
    """The row's name, and how many layouts it has if several."""
    layouts = {(entry.a_layout, entry.b_layout) for entry in row.entries}
    return f"`{row.name}`" + (f", {len(layouts)} layouts" if len(layouts) > 1 else "")


def in_cuda(row: Row) -> str:
    """The kernel and its file, with a * for the layouts or for N if there are several."""
    source = row.first.source
    shown = row.first.function
    if len({entry.function for entry in row.entries}) > 1:
        differs = r"(?<=n)\d+(?=k)" if row.first.instruction == "wgmma" else "row_col"
        shown = re.sub(differs, "*", shown)
    return f"`{shown}` in [{source.rpartition('/')[2]}](../cuda_reference/{source}.cu)"


def code(by_architecture: Mapping[str, Mapping[str, str]], expected: int) -> str:
    """What it compiles to: once where all the architectures that are expected agree."""
    texts = {f"sm_{arch[:2]}": one(found) for arch, found in by_architecture.items()}
    if len(texts) == expected and len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{arch}: {text}" for arch, text in texts.items())


def one(found: Mapping[str, str]) -> str:
    """The code; where that depends on the layout or on N, with those behind it."""
    if len(found) == 1:
        return _quoted(next(iter(found)))
    return ", ".join(f"{_quoted(text)} ({labels})" for text, labels in found.items())


def _quoted(text: str) -> str:
    """Mnemonics as code, what stands behind them as it is: `HMMA.16816.F32` x2, emulated."""
    words = (word.partition(" ") for word in text.split(", "))
    return ", ".join(
        name if name == record.EMULATED else f"`{name}`{space}{count}"
        for name, space, count in words
    )
