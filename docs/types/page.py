"""The generated parts of docs/types.md: tables of `wmma.mma`, `mma.sync` and `wgmma`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import record, ways
from .record import Row

HEAD = (
    "| combination | in CUDA | compiles to | in Triton | compiles to | in Gluon | compiles to |\n"
    "|---|---|---|---|---|---|---|"
)


def parts() -> dict[str, str]:
    """The texts by the names of their markers."""
    data = record.load()
    tables: dict[str, list[Row]] = {}
    for row in record.rows():
        kind = "modified" if row.first.modified else row.first.instruction
        tables.setdefault(f"types-{kind}", []).append(row)
    texts = {name: table(members, data) for name, members in tables.items()}
    return {"types-compilers": compilers(data), **texts}


def compilers(data: Mapping[str, Any]) -> str:
    names = sorted(set(data["compilers"].values()))
    return f"Compiled by {' and '.join(names)}."


def table(members: Sequence[Row], data: Mapping[str, Any]) -> str:
    return "\n".join([HEAD, *(line(row, data["rows"].get(row.name, {})) for row in members)])


def line(row: Row, codes: Mapping[str, Any]) -> str:
    """A row: what it is, and for each side the words and the code."""
    gluon = ways.gluon_way(row.first)
    dot = ways.dot_why_not(row.first)
    words = {
        "cuda": in_cuda(row),
        "triton": f"no: {dot}" if dot else ways.DOT.words(row.first),
        "gluon": gluon.words(row.first) if gluon else "no",
    }
    cells = [combination(row)]
    for column, text in words.items():
        cells += [text, code(codes.get(column, {}), row)]
    return "| " + " | ".join(cells) + " |"


def combination(row: Row) -> str:
    """The row's name, and how many layouts it has if several."""
    layouts = {(entry.a_layout, entry.b_layout) for entry in row.entries}
    return f"`{row.name}`" + (f", {len(layouts)} layouts" if len(layouts) > 1 else "")


def in_cuda(row: Row) -> str:
    """The kernel and its file, with a * for the layouts or for N if there are several."""
    source = row.first.source
    shown = row.first.function
    if row.first.modified:
        shown = "wgmma_*_modified"
    elif len({entry.function for entry in row.entries}) > 1:
        differs = r"(?<=n)\d+(?=k)" if row.first.instruction == "wgmma" else "row_col"
        shown = re.sub(differs, "*", shown)
    return f"`{shown}` in [{source.rpartition('/')[2]}](../cuda_reference/{source}.cu)"


def code(by_architecture: Mapping[str, Mapping[str, str]], row: Row) -> str:
    """What it compiles to: once where all the architectures that have it agree."""
    texts = {f"sm_{arch[:2]}": one(found, row) for arch, found in by_architecture.items()}
    expected = 1 if row.first.instruction == "wgmma" else 2
    if len(texts) == expected and len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{arch}: {text}" for arch, text in texts.items())


def one(found: Mapping[str, str], row: Row) -> str:
    """The code; where that depends on the layout or on N, with those behind it.

    The modified ones differ in types too: the code is that of the first.
    """
    if row.first.modified:
        mine = record.label(row.first)
        found = {text: labels for text, labels in found.items() if mine in labels.split(", ")}
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
