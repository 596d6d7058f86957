"""The rows of docs/types.md, and what they compile to, as docs/types.json has it; no GPU.

A row is the entries of the type table that are said in the same words, one of which is compiled in
CUDA, in Triton and in Gluon, for sm_80 and sm_90. `python -m docs.record types` does so.
"""

import atexit
import dataclasses
import functools
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
#: The types that mnemonics name; of f16 they do not, and b1 is BMMA.
NAMED = ("s8", "u8", "s4", "u4", "e4m3", "e5m2", "bf16", "tf32")


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: its name, and the entries that it stands for."""

    name: str
    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """The entry that the row's words are about: along K where there is a choice.

        Of wgmma it has N = 64, or the largest N of a modified one, and 32 bytes of swizzle, as a
        tile of one instruction can have.
        """

        def rank(entry: Entry) -> tuple:
            along_k = (entry.a_layout, entry.b_layout) == ("row", "col")
            n = entry.shape[1]
            return not along_k, n not in SHOWN_N[1:], n

        found = min(self.entries, key=rank)
        return dataclasses.replace(found, swizzle=32) if found.instruction == "wgmma" else found

    @property
    def compiled(self) -> list[Entry]:
        """The entries that are compiled for it: the first, and of wgmma with other N."""
        (m, _, k), first = self.first.shape, self.first
        if first.modified or first.instruction != "wgmma":
            return [first]
        return [dataclasses.replace(first, shape=(m, n, k)) for n in SHOWN_N]


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


# Compiling


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
        if self.column == "gluon":
            return ways.gluon_way(self.entry)
        return ways.DOT if self.column == "triton" and ways.DOT.says(self.entry) else None


def jobs(chosen: Iterable[Row]) -> Iterator[Job]:
    """All that is compiled for these rows."""
    for row in chosen:
        for column in COLUMNS:
            for entry in row.compiled:
                for arch in entry.architectures:
                    job = Job(row.name, column, entry, arch)
                    if column == "cuda" or job.way:
                        yield job


def code(job: Job) -> str:
    """The tensor-core instructions of one job: "HMMA.16816.F32 x2", or what stands in for them.

    Raises `cuda_reference.toolkit.Unavailable` without nvcc, RuntimeError where it does not
    compile.
    """
    mix, variants = _cuda(job) if job.column == "cuda" else _triton(job)
    found = group_of(variants, "tensor core") or {"FFMA": mix.get("FFMA", 0)}
    words = [name + (f" x{count}" if count > 1 else "") for name, count in found.items()]
    text = ", ".join(re.sub(r"GMMA\.64x\d+x", "GMMA.64xNx", word) for word in words)
    # Of other types, or no tensor core's: integer or floating-point code makes up for it.
    entry, said = job.entry, set(re.split(r"\W+", text))
    own = {type_.upper() for type_ in (entry.a, entry.b) if type_ in NAMED}
    native = "FFMA" not in said and own | {entry.op.upper()} - {""} <= said
    return text if native else f"{text}, emulated"


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


@functools.cache
def _worker(thread: int) -> pool.Worker:
    """The one of the thread of this number."""
    worker = pool.Worker()
    atexit.register(worker.close)
    return worker


def _triton(job: Job) -> tuple[dict[str, int], dict[str, int]]:
    try:
        return _worker(threading.get_ident()).ask(compile_here, job)
    except RuntimeError as error:
        raise RuntimeError(f"{job.entry}, {job.way.name}, sm_{job.arch}: {error}") from None


def compile_here(job: Job) -> tuple[dict[str, int], dict[str, int]]:
    """Instructions by mnemonic, of what Triton compiles in this process."""
    with standing_for(int(job.arch[:2])):
        kernel = ways.compiled(job.way, job.entry)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(kernel.asm["cubin"])
        return count_instructions(run_tool("nvdisasm", "-ndf", "-c", str(file)))


# The recorded file


def load() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def record(chosen: Sequence[Row] = (), processes: int | None = None) -> dict[str, Any]:
    """What the rows compile to, all of them unless some are given.

    {"compilers": {column: compiler}, "rows": {row: {column: {architecture: {code: [N, ...]}}}}}
    """
    wanted, found = list(jobs(chosen or rows())), {}
    with ThreadPoolExecutor(processes or len(os.sched_getaffinity(0))) as threads:
        for job, text in zip(wanted, threads.map(code, wanted), strict=True):
            codes = found.setdefault(job.row, {}).setdefault(job.column, {})
            codes.setdefault(job.arch, {}).setdefault(text, []).append(job.entry.shape[1])
    own = f"Triton {triton.__version__}"
    compilers = {"cuda": f"nvcc {toolkit.nvcc().version}", "triton": own, "gluon": own}
    return {"compilers": compilers, "rows": found}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is recorded of the rows of `new` and is not so, a line each.

    Another version of a compiler may choose other instructions; the same one may not.
    """
    found = []
    for row, columns in new["rows"].items():
        for column, made in columns.items():
            was = old["rows"].get(row, {}).get(column)
            if was != made and old["compilers"][column] == new["compilers"][column]:
                found.append(f"{row}, {column}: recorded {was}; it is {made}")
    return found
