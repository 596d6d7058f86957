"""Every row of the PTX ISA's tables has its entry or its reason, and the code that says so."""

import dataclasses
import os
import re
import subprocess
from collections import Counter

import pytest

from cuda_reference import cubin, source, toolkit
from cuda_reference.types.syntax import MEMORY, MMA, SYNTAX, WGMMA, WMMA, Syntax
from cuda_reference.types.table import TABLE
from tests.cuda.test_build import flags_of

pytestmark = [pytest.mark.host, pytest.mark.once]

ENTRIES = Counter(entry.text for entry in TABLE)


def texts(rows):
    return [text for row in rows for text in row.texts()]


def can(rows):
    return [row for row in rows if not row.why_not]


def missing(rows, entries=ENTRIES):
    """The instructions of the rows that have neither an entry nor a reason."""
    return [text for text in texts(can(rows)) if text not in entries]


def test_every_row_has_its_entry_or_a_reason():
    """And stands once; no entry is without a row."""
    assert missing(SYNTAX) == []
    assert set(ENTRIES) <= set(texts(can(SYNTAX)))
    refused = [row for row in SYNTAX if row.why_not]
    assert refused and not set(texts(refused)) & set(ENTRIES)
    assert set(Counter(texts(SYNTAX) + texts(MEMORY)).values()) == {1}


@pytest.mark.parametrize("entry", [TABLE[0], TABLE[137], TABLE[200], TABLE[-1]], ids=str)
def test_a_row_without_an_entry_is_told(entry):
    others = Counter(e.text for e in TABLE if e.text != entry.text)
    assert missing(SYNTAX, others) == [entry.text]


def test_a_pattern_stands_for_each_choice():
    assert Syntax("a.{b,c}{,.d} e").texts() == ("a.b e", "a.b.d e", "a.c e", "a.c.d e")
    assert Syntax("a").texts() == ("a",)


def test_the_sizes_of_the_tables():
    assert len(texts(can(WMMA))) == 138
    assert len(texts(can(MMA))) == 110
    assert len(texts(can(WGMMA))) == sum(text.startswith("wgmma") for text in ENTRIES)
    found = {}
    for entry in TABLE:  # swizzles are not in the instruction
        found.setdefault(entry.text, []).append(entry)
    for entries in found.values():
        swizzled = entries[0].instruction == "wgmma" and not entries[0].modified
        assert len(entries) == (4 if swizzled else 1)
        assert not swizzled or {entry.swizzle for entry in entries} == {0, 32, 64, 128}


# With nvcc


def few(entries):
    """Those of wgmma that FEW_N compiles; not every type is modified at the largest N."""

    def compiled(entry):
        largest = entry.shape[1] == 256 and (not entry.modified or entry.a in ("tf32", "s8", "u8"))
        return entry.instruction != "wgmma" or entry.shape[1] in (8, 96) or largest

    return list(filter(compiled, entries))


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted({entry.source for entry in TABLE}))
def test_entries_are_in_the_code_of_their_source(nvcc, name):
    """The .cu has the instruction, in the function that the entry names, and knows the name."""
    entries = few(entry for entry in TABLE if entry.source == name)
    ptx = cubin.compile_ptx(name, "90a", flags_of(name))
    _, *parts = re.split(r"\.entry _Z\d+(\w+?)8Operandsi\(", ptx)
    functions = dict(zip(parts[::2], parts[1::2], strict=True))
    assert {entry.function for entry in entries} <= set(functions)
    for entry in entries:
        assert entry.opcode in functions[entry.function]


@pytest.mark.wide
@pytest.mark.parametrize("row", MEMORY, ids=lambda row: row.pattern)
def test_memory_instructions_are_used(nvcc, row):
    for target in source.architectures(row.used_by):
        ptx = cubin.compile_ptx(row.used_by, target)
        assert [text for text in row.texts() if text not in ptx] == []


def objections(text, tmp_path):
    """What ptxas says to an instruction of sm_90a, but for the number of an operand's registers."""
    opcode, _, operands = text.partition(" ")
    sizes = {"d": 4, "a": 8, "b": 8, "c": 4} if ".m16n16k16.f16" in opcode else {}
    words = [
        "{" + ",".join(["r"] * sizes.get(word, 2)) + "}" if word in "abcd" else word
        for word in operands.replace("a-desc", "q").replace("b-desc", "q").split(", ")
    ]
    if opcode.startswith("wgmma"):
        words[3] = "p"
    file = tmp_path / "one.ptx"
    file.write_text(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry one() {\n"
        f".reg .b32 r; .reg .b64 q; .reg .pred p;\n{opcode} {', '.join(words)};\nret;\n}}\n"
    )
    command = [toolkit.nvcc().root / "bin" / "ptxas", "-arch=sm_90a", "-o", os.devnull, file]
    said = subprocess.run(command, capture_output=True, text=True).stderr
    errors = [line for line in said.splitlines() if "; error " in line]
    return [line for line in errors if "Argument vector size mismatch" not in line]


@pytest.mark.parametrize("row", [row for row in SYNTAX if row.why_not], ids=lambda r: r.pattern)
def test_what_has_a_reason_does_not_assemble(nvcc, row, tmp_path):
    assert objections(row.texts()[0], tmp_path)


@pytest.mark.parametrize("text", ["wmma.mma.sync.aligned.row.row.m16n16k16.f16.f16 d, a, b, c",
    "mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 d, a, b, c",
    "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 d, a-desc, b-desc, 1, 1, 1",
])  # fmt: skip
def test_ptxas_has_no_objection_to_others(nvcc, text, tmp_path):
    assert text in ENTRIES and objections(text, tmp_path) == []


def test_architectures():
    for entry in TABLE:
        assert "90a" in entry.architectures
        assert set(entry.architectures) <= set(source.architectures(entry.source))
    assert dataclasses.replace(TABLE[-1], a_in_registers=True).modified and not TABLE[0].modified
