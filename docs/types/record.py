"""The rows of docs/types.md, and what they compile to, as docs/types.json has it; no GPU.

A row is the entries of the type table that are said in the same words.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import triton

from cuda_reference import cubin, toolkit
from cuda_reference.types.table import TABLE, Entry
from tritemm.compile import pool
from tritemm.compile.driver import standing_for
from tritemm.compile.sass import count_instructions, group_of, run_tool

from . import ways

DATA = Path(__file__).resolve().parents[1] / "types.json"
#: N of wgmma, which changes nothing but the number of registers: the ends, and one between.
SHOWN_N = (8, 64, 256)
#: The columns: CUDA's kernel, `tl.dot`, and what Gluon says it with.
COLUMNS = ("cuda", "triton", "gluon")
#: What stands behind instructions that multiply other types than the entry's, or are no tensor
#: core's: integer or floating-point code around them makes up for it.
EMULATED = "emulated"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: its name, and the entries that it stands for."""

    name: str
    entries: tuple[Entry, ...]

    @functools.cached_property
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


@functools.cache
def rows() -> tuple[Row, ...]:
    """All rows, in the table's order."""
    found: dict[str, list[Entry]] = {}
    for entry in TABLE:
        found.setdefault(name(entry), []).append(entry)
    return tuple(Row(row, tuple(members)) for row, members in found.items())


def name(entry: Entry) -> str:
    """What the row is called: the entry's words without the layouts, N and swizzle.

    What is modified of wgmma has rows of its own, for all types.
    """
    bare = dataclasses.replace(entry, a_layout="", b_layout="", swizzle=0)
    if entry.modified:
        plain = dataclasses.replace(bare, a_in_registers=False, scale_a=1, scale_b=1, scale_d=1)
        return "wgmma" + bare.name.removeprefix(plain.name)
    return re.sub(r"n\d+k", "nNk", bare.name) if entry.instruction == "wgmma" else bare.name


@dataclasses.dataclass(frozen=True)
class Job:
    """An entry to compile for a column and an architecture: "80" or "90a"."""

    row: str
    column: str
    entry: Entry
    arch: str

    @property
    def way(self) -> ways.Way | None:
        """How Triton says it; None for CUDA, and where Triton does not."""
        if self.column == "cuda":
            return None
        if self.column == "gluon":
            return ways.gluon_way(self.entry)
        return ways.DOT if ways.DOT.says(self.entry) else None


def label(entry: Entry) -> str:
    """What the entry has of its own in its row: types, N of wgmma, or layouts."""
    if entry.modified:
        words = (entry.d, entry.a, entry.b, "satfinite" * entry.satfinite)
    elif entry.instruction == "wgmma":
        words = (f"n{entry.shape[1]}",)
    else:
        words = (entry.a_layout, entry.b_layout)
    return ".".join(filter(None, words))


def jobs(chosen: Iterable[Row]) -> list[Job]:
    """All that is compiled for these rows."""
    every = [
        Job(row.name, column, entry, arch)
        for row in chosen
        for column in COLUMNS
        for entry in row.compiled
        for arch in entry.architectures
    ]
    return [job for job in every if job.column == "cuda" or job.way]


# Compiling


def compile_jobs(wanted: Sequence[Job], processes: int | None = None) -> list[str]:
    """The code of each; Triton's by so many processes, one for each core unless given.

    Raises `cuda_reference.toolkit.Unavailable` without nvcc, RuntimeError where one does not
    compile.
    """
    with ThreadPoolExecutor(processes or len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(code, wanted))


def code(job: Job) -> str:
    """The tensor-core instructions of one job: "HMMA.16816.F32 x2"."""
    found = _cuda(job) if job.column == "cuda" else _triton(job)
    return described(job.entry, *found)


def _cuda(job: Job) -> tuple[dict[str, int], dict[str, int]]:
    """Counts of the kernel of the .cu that holds it; of wgmma's several, of its instruction."""
    e = job.entry
    functions = _functions(e.source, job.arch)
    if e.instruction != "wgmma":
        [function] = (each for each in functions if each.name.partition("(")[0] == e.function)
        return function.mix, function.variants
    # Of each N the code is the same but for the number of registers.
    name = re.sub(r"n\d+k", r"n\\d+k", re.escape(e.function))
    function = next(each for each in functions if re.fullmatch(name, each.name))
    types = [e.a.upper(), e.b.upper()] if e.a in ("s8", "u8", "e4m3", "e5m2") else []
    types += ["SAT"] * e.satfinite
    mine = {
        name: 1
        for name in function.variants
        if "GMMA" in name and (not types or name.split(".")[-len(types) :] == types)
    }
    return function.mix, mine


@functools.cache
def _functions(source: str, arch: str) -> tuple[cubin.Function, ...]:
    flags = cubin.FEW_N if "wgmma" in source else cubin.FLAGS
    return cubin.compile_cubin(source, arch, flags).functions


def _triton(job: Job) -> tuple[dict[str, int], dict[str, int]]:
    worker = pool.take()
    try:
        found = worker.ask(compile_here, job.way.name, job.entry, int(job.arch[:2]))
    except pool.Ended as error:
        raise RuntimeError(f"{job.entry}, {job.way.name}, sm_{job.arch}: {error}") from None
    pool.keep(worker)
    return found


def compile_here(way: str, entry: Entry, sm: int) -> tuple[dict[str, int], dict[str, int]]:
    """Instructions by mnemonic, of what Triton compiles in this process."""
    [chosen] = (each for each in (ways.DOT, *ways.GLUON) if each.name == way)
    with standing_for(sm):
        kernel = ways.compiled(chosen, entry)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(kernel.asm["cubin"])
        return count_instructions(run_tool("nvdisasm", "-ndf", "-c", str(file)))


def described(entry: Entry, mix: Mapping[str, int], variants: Mapping[str, int]) -> str:
    """The products' instructions and their numbers, and whether they stand in for others."""
    found = group_of(variants, "tensor core") or {"FFMA": mix.get("FFMA", 0)}
    words = [name + (f" x{count}" if count > 1 else "") for name, count in found.items()]
    text = ", ".join(re.sub(r"GMMA\.64x\d+x", "GMMA.64xNx", word) for word in words)
    return text if _is_native(entry, set(re.split(r"\W+", text))) else f"{text}, {EMULATED}"


def _is_native(entry: Entry, words: set[str]) -> bool:
    """Whether the instructions multiply the entry's own types, as it does."""
    own = {type_.upper() for type_ in (entry.a, entry.b) if type_ in _NAMED}
    return "FFMA" not in words and own | {entry.op.upper()} - {""} <= words


#: The types that mnemonics name; of f16 they do not, and b1 is BMMA.
_NAMED = ("s8", "u8", "s4", "u4", "e4m3", "e5m2", "bf16", "tf32")


# The recorded file


def load() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def record(chosen: Iterable[Row] | None = None, processes: int | None = None) -> dict[str, Any]:
    """Compile the rows, all of them unless given, and gather what they compile to.

    {"compilers": {column: compiler}, "rows": {row: {column: {architecture: {code: labels}}}}}
    """
    wanted = jobs(rows() if chosen is None else chosen)
    found: dict[str, Any] = {}
    for job, text in zip(wanted, compile_jobs(wanted, processes), strict=True):
        place = found.setdefault(job.row, {}).setdefault(job.column, {})
        place.setdefault(job.arch, {}).setdefault(text, {})[label(job.entry)] = None
    for place in (place for row in found.values() for place in row.values()):
        for codes in place.values():
            codes.update({text: ", ".join(labels) for text, labels in codes.items()})
    return {"compilers": compilers(), "rows": found}


def compilers() -> dict[str, str]:
    own = f"Triton {triton.__version__}"
    return {"cuda": f"nvcc {toolkit.nvcc().version}", "triton": own, "gluon": own}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is recorded of the rows of `new` and is not so, a line each.

    Another version of a compiler may choose other instructions; the same one may not.
    """
    found = []
    for row, columns in new["rows"].items():
        for column, made in columns.items():
            if old["compilers"][column] != new["compilers"][column]:
                continue
            was = old["rows"].get(row, {}).get(column)
            if was != made:
                found.append(f"{row}, {column}: recorded {was}; it is {made}")
    return found
