"""The generated parts of docs/types.md: tables of `wmma.mma`, `mma.sync` and `wgmma`."""

import re
from collections.abc import Mapping, Sequence

from perf.tables import Table, markdown

from . import record, ways
from .record import Row

HEAD = ["combination", *(words for side in ("CUDA", "Triton", "Gluon")
                         for words in (f"in {side}", "compiles to"))]  # fmt: skip


def parts() -> dict[str, str]:
    """The texts by the names of their markers."""
    data = record.load()
    tables: dict[str, list[list[str]]] = {}
    for row in record.rows():
        kind = "modified" if row.first.modified else row.first.instruction
        tables.setdefault(f"types-{kind}", []).append(cells(row, data["rows"].get(row.name, {})))
    compilers = " and ".join(sorted(set(data["compilers"].values())))
    return {
        "types-compilers": f"Compiled by {compilers}.",
        **{name: markdown([Table(HEAD, lines, words=7)]) for name, lines in tables.items()},
    }


def cells(row: Row, codes: Mapping[str, Mapping[str, Mapping[str, Sequence[int]]]]) -> list[str]:
    """The row's name, its layouts if there are several, and for each side the words and code."""
    gluon, dot = ways.gluon_way(row.first), ways.dot_why_not(row.first)
    words = {
        "cuda": in_cuda(row),
        "triton": f"no: {dot}" if dot else ways.DOT.words(row.first),
        "gluon": gluon.words(row.first) if gluon else "no",
    }
    layouts = len({(entry.a_layout, entry.b_layout) for entry in row.entries})
    found = [f"`{row.name}`" + f", {layouts} layouts" * (layouts > 1)]
    for column, text in words.items():
        found += [text, code(codes.get(column, {}), row)]
    return found


def in_cuda(row: Row) -> str:
    """The kernel and its file; a * stands for the layouts or for N if there are several."""
    source = row.first.source
    shown = row.first.function
    if row.first.modified:
        shown = "wgmma_*_modified"
    elif len({entry.function for entry in row.entries}) > 1:
        differs = r"(?<=n)\d+(?=k)" if row.first.instruction == "wgmma" else "row_col"
        shown = re.sub(differs, "*", shown)
    return f"`{shown}` in [{source.rpartition('/')[2]}](../cuda_reference/{source}.cu)"


def code(by_architecture: Mapping[str, Mapping[str, Sequence[int]]], row: Row) -> str:
    """What it compiles to: once if all the architectures that have it agree, and with N if the code
    depends on N."""
    texts = {}
    for arch, found in by_architecture.items():
        told = {text: ", ".join(f"n{n}" for n in ns) for text, ns in found.items()}
        # Mnemonics as code, what follows them as plain text: `HMMA.16816.F32` x2, emulated.
        quoted = {re.sub(r"(\w+(?:\.\w+)+|FFMA)", r"`\1`", text): ns for text, ns in told.items()}
        parts = [text + f" ({ns})" * (len(told) > 1) for text, ns in quoted.items()]
        texts[f"sm_{arch[:2]}"] = ", ".join(parts)
    everywhere = len(texts) == 2 or row.first.instruction == "wgmma"
    if everywhere and len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{arch}: {text}" for arch, text in texts.items())
