"""docs/types.md: each entry of the type table has its row, words and code; and one tile of each."""

import itertools
import re

import pytest
import torch

from cuda_reference import loader, types
from cuda_reference.types.table import DTYPES, TABLE
from docs import generate
from docs.types import page, record, ways
from docs.types.ways import multiply
from tritemm.problem import INTERPRETED

from .harness import needs_nvcc
from .test_cuda_types import (
    added,
    near_the_limits,
    products,
    report,
    small_integers,
    values,
)

pytestmark = pytest.mark.host

PAGE = record.DATA.with_suffix(".md")
ROWS = record.rows()
#: What says it in PTX.
MMA_SYNC, WGMMA = ways.GLUON[2:]


def by_row(wanted=lambda row: True):
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=row.name) for row in ROWS if wanted(row)]
    )


# The page


def test_every_entry_has_one_row():
    held = [entry for row in ROWS for entry in row.entries]
    assert sorted(held, key=str) == sorted(TABLE, key=str)
    assert len({row.name for row in ROWS}) == len(ROWS)


@by_row()
def test_a_row_stands_on_the_page_with_words_and_code(row):
    [line] = (text for text in PAGE.read_text().splitlines() if text.startswith(f"| `{row.name}`"))
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    sides = list(zip(cells[1::2], cells[2::2], strict=True))
    assert len(sides) == len(record.COLUMNS)
    assert all(bool(code) != words.startswith("no") for words, code in sides)
    assert sides[0][1], "CUDA has every entry"


@by_row()
def test_all_of_a_row_is_recorded(row):
    """Each entry that a side can say, on each architecture that has it, and no other."""
    wanted = {}
    for job in record.jobs([row]):
        wanted.setdefault((job.column, job.arch), set()).add(record.label(job.entry))
    found = {
        (column, arch): {label for labels in codes.values() for label in labels.split(", ")}
        for column, made in record.load()["rows"][row.name].items()
        for arch, codes in made.items()
    }
    assert found == wanted


@by_row()
def test_gluon_says_what_triton_does_not(row):
    """In PTX where it has no word: of `wgmma` with A and B in shared memory, along K."""
    for entry in row.compiled:
        if entry.instruction != "wgmma" or (entry.b_layout == "col" and not entry.a_in_registers):
            assert ways.gluon_way(entry), entry.name


def test_every_generated_part_has_its_place():
    text = PAGE.read_text()
    for name in page.parts():
        assert text.count(f"<!-- begin: {name} -->") == 1, name
        assert text.count(f"<!-- end: {name} -->") == 1, name


def test_a_page_with_another_code_is_stale(monkeypatch):
    """The parts of other pages, which take seconds, are left out."""
    data = record.load()
    monkeypatch.setattr(generate.tutorial, "pages", lambda rows: {})
    for other in (generate.correspondence, generate.cost_model):
        monkeypatch.setattr(other, "parts", lambda *rows: {})
    assert PAGE not in generate.stale_texts(generate.pages())
    data["rows"][ROWS[0].name]["triton"]["80"] = {"HMMA.16816.F16": "row.row"}
    monkeypatch.setattr(record, "load", lambda: data)
    assert PAGE in generate.stale_texts(generate.pages())


# The record


#: A row of each way to say it, and of each kind of code.
SAMPLE = {
    "wmma.m8n8k32.s32.s4.s4.s32",
    "mma.m8n8k4.rz.f64.f64.f64.f64",
    "mma.m16n8k16.f16.f16.f16.f16",
    "wgmma.m64nNk32.s32.s8.u8",
    "wgmma.m64nNk8.f32.tf32.tf32",
}


@pytest.mark.latest
def test_a_sample_of_the_record_is_what_the_compilers_make():
    needs_nvcc()
    rows = [row for row in ROWS if row.name in SAMPLE]
    assert len(rows) == len(SAMPLE)
    new = record.record(rows, processes=1)
    assert set(new["rows"]) == SAMPLE
    assert record.differences(record.load(), new) == []


def test_the_same_compiler_must_agree_and_another_need_not():
    old = record.load()
    assert record.differences(old, old) == []
    name = ROWS[0].name
    new = {
        "compilers": dict(old["compilers"]),
        "rows": {name: {"cuda": {"80": {"HMMA": "row.row"}}}},
    }
    [line] = record.differences(old, new)
    assert line.startswith(f"{name}, cuda: recorded ")
    new["compilers"]["cuda"] = "nvcc 99"
    assert record.differences(old, new) == []
    added = {"compilers": old["compilers"], "rows": {"wmma.m1": {"cuda": {}}}}
    assert record.differences(old, added) == ["wmma.m1, cuda: recorded None; it is {}"]


# One tile


@by_row(lambda row: MMA_SYNC.says(row.first))
def test_registers_hold_all_of_d(row):
    """Part after part; and the text names as many as there are, D's first."""
    entry = row.first
    m, n, _ = entry.shape
    d = torch.arange(m * n).view(m, n).to(DTYPES[entry.d])
    registers = ways._in_registers(d, entry, "d")
    assert torch.equal(ways._in_matrix(registers, entry), d)
    *counts, down, across, text, constraints = MMA_SYNC.arguments(entry)
    assert registers.shape == (down * across * counts[3], 32)
    named = [int(number) for number in re.findall(r"\$(\d+)", text)]
    assert named == list(range(sum(counts))) and constraints.count(",") + 1 == len(named)
    assert constraints.count("=&") == counts[3]


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


def operands(entry, near=True):
    """A, B and C whose D is exact in any order of K, and that D; integers near their limits."""
    m, n, k = entry.shape
    if entry.d == "s32":
        a, b = values((m, k), entry.a), values((k, n), entry.b)
        c = near_the_limits(entry, a, b) if near else small_integers((m, n), "s32", 10**6)
        return a, b, c, added(entry, c, products(entry, a, b))
    a, b = small_integers((m, k), entry.a, 3), small_integers((k, n), entry.b, 3)
    c = small_integers((m, n), entry.c, 99)
    sums = products(entry, a, b) + c.double() * entry.scale_d
    return a, b, c, sums.to(DTYPES[entry.d])


def wrong(entry, way, device, near=True):
    """What is wrong with D, if anything."""
    a, b, c, want = operands(entry, near)
    d = multiply(way, entry, *(x.to(device) for x in (a, b, c))).cpu()
    if not torch.equal(d, want):
        places = (d != want).nonzero().tolist()
        yield f"{entry.name} by {way.name}: {len(places)} elements, {places[:4]} among them"


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU the kernels are compiled")
@by_row(lambda row: ways.DOT.says(row.first))
def test_dot_multiplies_in_the_interpreter(row):
    """Any layout and N. Its integers wrap, and it has none of the limits of `satfinite`."""
    said = filter(ways.DOT.says, row.compiled)
    report(itertools.chain(*(wrong(entry, ways.DOT, "cpu", near=False) for entry in said)))


def on_this_gpu(row):
    """The row's first entry and its last, which differ in layout or N; skips if it has none."""
    capability = torch.cuda.get_device_capability()
    if reason := types.why_not(row.first, capability):
        pytest.skip(reason)
    return {row.compiled[0], row.compiled[-1]}


@pytest.mark.gpu
@by_row()
def test_every_way_multiplies_on_a_gpu(row):
    said = (
        (entry, way)
        for entry in on_this_gpu(row)
        for way in (ways.DOT, *ways.GLUON)
        if way.says(entry)
    )
    report(itertools.chain(*(wrong(entry, way, "cuda") for entry, way in said)))


def same_code(row):
    """Whether CUDA and Gluon have the same instructions, so that even sums round alike."""
    codes = record.load()["rows"][row.name]
    cuda, gluon = (set(codes.get(column, {}).get("90a", {})) for column in ("cuda", "gluon"))
    return cuda == gluon and not any(record.EMULATED in code for code in cuda)


@pytest.mark.gpu
@by_row(same_code)
def test_inline_ptx_has_the_bits_of_cuda(row):
    """Rounding modes, limits and the order of sums are those of the same instruction in CUDA."""
    if reason := loader.unavailable():
        pytest.skip(reason)
    for entry in on_this_gpu(row):
        m, n, k = entry.shape
        shapes = ((m, k), entry.a), ((k, n), entry.b), ((m, n), entry.c)
        a, b, c = (values(shape, type_).cuda() for shape, type_ in shapes)
        want = types.multiply(entry, a, b, c)
        for way in (MMA_SYNC, WGMMA):
            if way.says(entry):
                assert torch.equal(multiply(way, entry, a, b, c), want), (way.name, entry.name)
