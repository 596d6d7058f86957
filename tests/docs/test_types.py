"""docs/types.md: each entry of the type table has its row, words and code."""

import pytest

from cuda_reference import types
from cuda_reference.types.table import TABLE
from docs.types import record, ways
from tests.harness import needs_nvcc
from tests.sweep import drawn

pytestmark = pytest.mark.host

PAGE = record.DATA.with_suffix(".md")
ROWS = record.rows()
MMA_SYNC = ways.GLUON[2]
by_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def test_every_entry_has_one_row():
    held = [entry for row in ROWS for entry in row.entries]
    assert sorted(held, key=str) == sorted(TABLE, key=str)
    assert len({row.name for row in ROWS}) == len(ROWS)


@by_row
def test_a_row_stands_on_the_page_with_words_and_code(row):
    [line] = (text for text in PAGE.read_text().splitlines() if text.startswith(f"| `{row.name}`"))
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    sides = list(zip(cells[1::2], cells[2::2], strict=True))
    assert len(sides) == len(record.COLUMNS)
    assert all(bool(code) != words.startswith("no") for words, code in sides)
    assert sides[0][1], "CUDA has every entry"


@by_row
def test_all_of_a_row_is_recorded(row):
    """What each side can say, on each architecture that has it, and no other."""
    wanted = [(job.column, job.arch, job.entry.shape[1]) for job in record.jobs([row])]
    found = [
        (column, arch, n)
        for column, made in record.load()["rows"][row.name].items()
        for arch, codes in made.items()
        for ns in codes.values()
        for n in ns
    ]
    assert sorted(found) == sorted(wanted)


@by_row
def test_gluon_says_what_triton_does_not(row):
    """In PTX where it has no word."""
    assert ways.gluon_way(row.first)


#: A row of each way to say it, and of each kind of code.
SAMPLE = {
    "wmma.m8n8k32.s32.s4.s4.s32",
    "wmma.m16n16k16.s32.u8.u8.s32",
    "mma.m8n8k4.rz.f64.f64.f64.f64",
    "mma.m16n8k16.f16.f16.f16.f16",
    "wgmma.m64nNk32.s32.s8.u8",
    "wgmma.m64nNk8.f32.tf32.tf32",
    "wgmma.registers.minus_b",
}


@pytest.mark.latest
def test_a_sample_of_the_record_is_what_the_compilers_make():
    needs_nvcc()
    rows = [row for row in ROWS if row.name in SAMPLE]
    assert len(rows) == len(SAMPLE)
    rows = drawn(rows, 3)
    new = record.record(rows, processes=1)
    assert set(new["rows"]) == {row.name for row in rows}
    assert record.differences(record.load(), new) == []


def test_the_same_compiler_must_agree_and_another_need_not():
    old = record.load()
    assert record.differences(old, old) == []
    name = ROWS[0].name
    new = {
        "compilers": dict(old["compilers"]),
        "rows": {name: {"cuda": {"80": {"HMMA": [16]}}}},
    }
    [line] = record.differences(old, new)
    assert line.startswith(f"{name}, cuda: recorded ")
    new["compilers"]["cuda"] = "nvcc 99"
    assert record.differences(old, new) == []
    added = {"compilers": old["compilers"], "rows": {"wmma.m1": {"cuda": {}}}}
    assert record.differences(old, added) == ["wmma.m1, cuda: recorded None; it is {}"]


@pytest.mark.parametrize(
    ("name", "part", "repeats"),
    [
        ("wmma.m16n16k16.col.row.s32.u8.u8.s32", (16, 8, 16), (1, 2)),
        ("wmma.m32n8k16.row.col.s32.s8.s8.s32.satfinite", (16, 8, 16), (2, 1)),
        ("wmma.m8n32k16.row.col.s32.u8.u8.s32", (8, 8, 16), (1, 4)),
        ("wmma.m8n8k4.row.col.rm.f64.f64.f64.f64", (8, 8, 4), (1, 1)),
    ],
)
def test_wmma_is_made_of_the_mma_of_its_shape(name, part, repeats):
    entry = types.find(name)
    *_, down, across, text, _ = MMA_SYNC.arguments(entry)
    own = ".".join(filter(None, ("satfinite" * entry.satfinite, entry.rounding, entry.d)))
    shape = "m{}n{}k{}".format(*part)
    assert text.startswith(f"mma.sync.aligned.{shape}.row.col.{own}.")
    assert (down, across) == repeats
    assert not MMA_SYNC.says(types.find("wmma.m8n32k16.row.col.f32.f32"))
