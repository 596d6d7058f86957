"""Who holds which element: index arithmetic against itself and, on a GPU, a result."""

import ctypes
import re

import pytest
import torch

from cuda_reference import loader, source
from cuda_reference.__main__ import main
from cuda_reference.types import show
from cuda_reference.types.fragments import fragment, ldmatrix, places
from cuda_reference.types.run import Operands
from cuda_reference.types.table import BITS, TABLE, find, held_by

pytestmark = [pytest.mark.host, pytest.mark.once]

#: An entry of each shape, set of types and layouts; of wgmma the smallest N and a larger one.
DIFFERENT = {
    (e.instruction, e.shape, e.a, e.c, e.d, e.a_layout, e.b_layout, e.swizzle, e.a_in_registers): e
    for e in reversed(TABLE)
    if e.instruction != "wgmma" or e.shape[1] in (8, 96)
}.values()
each = pytest.mark.parametrize("entry", DIFFERENT, ids=str)
OPERANDS = "abcd"
FILES = [name for name in source.names() if held_by(name)]


def sizes(entry, operand):
    m, n, k = entry.shape
    return {"a": (m, k), "b": (k, n)}.get(operand, (m, n))


@each
def test_every_element_is_somewhere(entry):
    for operand in OPERANDS:
        rows, cols = sizes(entry, operand)
        held = fragment(entry, operand)
        found = places(entry, operand) if held is None else held.holders()
        assert set(found) == {(row, col) for row in range(rows) for col in range(cols)}
        if held is None:
            assert len(set(found.values())) == rows * cols
            # 16 bytes are 16 bytes, and a pattern of eight rows is at most 1024.
            assert max(found.values()) < 8 * (64 * 128 if operand == "a" else 128 * max(16, cols))


@each
def test_registers_hold_all_elements_once_or_are_repeated_alike(entry):
    for operand in OPERANDS:
        held = fragment(entry, operand)
        if held is None:
            continue
        rows, cols = sizes(entry, operand)
        threads = 128 if entry.instruction == "wgmma" else 32
        assert len(held.elements) == threads
        times = threads * len(held.elements[0]) // (rows * cols)
        assert {len(holders) for holders in held.holders().values()} == {times}
        width = BITS[getattr(entry, operand)] * held.per_register
        assert width == (64 if entry.d == "f64" else 32)


#: "Matrix Fragments for mma", section by section: elements in a register of A and B, or of 32 bits.
ISA = {
    "mma.m16n8k8.row.col.f32.f16.f16.f32": 2,
    "mma.m16n8k16.row.col.f32.f16.f16.f32": 2,
    "mma.m16n8k4.row.col.f32.tf32.tf32.f32": 1,
    "mma.m16n8k8.row.col.f32.tf32.tf32.f32": 1,
    "mma.m8n8k4.row.col.f64.f64.f64.f64": 1,
    "mma.m16n8k16.row.col.f64.f64.f64.f64": 1,
    "mma.m8n8k16.row.col.s32.s8.s8.s32": 4,
    "mma.m16n8k16.row.col.s32.u8.s8.s32": 4,
    "mma.m16n8k32.row.col.f32.e4m3.e5m2.f32": 4,
    "mma.m8n8k32.row.col.s32.s4.s4.s32": 8,
    "mma.m16n8k64.row.col.s32.u4.u4.s32": 8,
    "mma.m8n8k128.row.col.s32.b1.b1.s32.xor.popc": 32,
    "mma.m16n8k256.row.col.s32.b1.b1.s32.and.popc": 32,
}


@pytest.mark.parametrize(("name", "width"), ISA.items(), ids=ISA)
def test_fragments_are_the_isa_s(name, width):
    """Elements of lane 4 g + t. A's registers go down its rows, if 16, then to the next columns."""
    entry = find(name)
    down = entry.shape[0] // 8
    for lane in range(32):
        g, t = lane >> 2, lane % 4
        for i, at in enumerate(fragment(entry, "a").elements[lane]):
            across, below = divmod(i // width, down)
            assert at == (g + 8 * below, (4 * across + t) * width + i % width)
        for i, at in enumerate(fragment(entry, "b").elements[lane]):
            assert at == ((4 * (i // width) + t) * width + i % width, g)
        for i, at in enumerate(fragment(entry, "c").elements[lane]):
            assert at == (g if i < 2 else g + 8, t * 2 + (i & 1))


def volta(lane, i, operand):
    """m8n8k4 of f16: row and column, as the section says."""
    group, high = lane % 4 + lane // 16 * 4, lane // 16 * 4
    return {
        "a.row": (group, i),
        "a.col": (high + i, lane % 4),
        "b.row": (lane % 4, high + i),
        "b.col": (i, group),
        "c.f16": (group, i),
        "c.f32": ((lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)),
    }[operand]


@pytest.mark.parametrize("operand", ["a.row", "a.col", "b.row", "b.col", "c.f16", "c.f32"])
def test_fragments_of_m8n8k4_are_the_isa_s(operand):
    which, word = operand.split(".")
    entry = next(
        e
        for e in TABLE
        if (e.instruction, e.shape, e.a) == ("mma", (8, 8, 4), "f16")
        and word == (e.c if which == "c" else getattr(e, f"{which}_layout"))
    )
    for lane, elements in enumerate(fragment(entry, which).elements):
        assert list(elements) == [volta(lane, i, operand) for i in range(len(elements))]


def test_b_by_columns_is_what_ldmatrix_loads_and_by_rows_what_trans_loads():
    """ldmatrix.x2 of two 8 x 8 matrices of columns, or .x2.trans of 16 rows, is mma's B."""
    entry = find("mma.m16n8k16.row.col.f32.f16.f16.f32")
    b = fragment(entry, "b").elements
    columns = ldmatrix(2, trans=False).elements
    rows = ldmatrix(2, trans=True).elements
    for lane in range(32):
        # Row 8 i + n of what is loaded is column n at k = 8 i and on.
        assert b[lane] == tuple((8 * (row // 8) + k, row % 8) for row, k in columns[lane])
        assert b[lane] == rows[lane]


@pytest.mark.parametrize("file", FILES)
def test_run_prints_who_holds_what_without_a_gpu(file, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["run", file]) == 2
    said = capsys.readouterr()
    first = held_by(file)[0]
    assert said.out == show.describe(first) + "\n" and "CUDA" in said.err
    assert first.text in said.out and max(map(len, said.out.splitlines())) <= 100
    for operand in "ABC":
        assert re.search(rf"^{operand}, ", said.out, re.MULTILINE)


def test_run_prints_the_entry_that_is_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    name = "mma.m16n8k16.row.col.f32.f16.f16.f32"
    assert main(["run", "types/mma_f16", "--entry", name]) == 2
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: D[16 x 8] = A[16 x 16] B[16 x 8] + C\n")
    assert "\n  row 9     T4 a1 " in out and "\n  row 9     T4 c2,c3 " in out
    for words, message in (
        (["types/mma_f16", "--entry", "nothing"], "no instruction"),
        (["types/mma_s8", "--entry", name], "is in types/mma"),
        (["types/loads"], "types/loads multiplies nothing"),
        (["types/nothing"], "no CUDA source is called 'types/nothing'"),
    ):
        assert main(["run", *words]) == 2
        assert message in capsys.readouterr().err


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("file", FILES)
def test_run_checks_the_result(loads, file, capsys):
    if not loader.runs_on(file, loader.architecture()):
        pytest.skip(f"{file} is for {' and '.join(source.architectures(file))}")
    assert main(["run", file]) == 0
    assert capsys.readouterr().out.endswith("\nok: D is what it should be, in every element\n")


@pytest.mark.gpu
def test_a_wrong_result_is_told(loads, monkeypatch):
    monkeypatch.setattr(show, "multiply", lambda entry, a, b, c, source: c + 1)
    assert re.fullmatch(
        r"\d+ of 256 elements of D are wrong", show.check(TABLE[0], TABLE[0].source)
    )


#: What is loaded, and an entry and an operand whose fragment it fills; None: of ldmatrix.
LOADS = {
    f"wmma.load.{operand}.{layout}.m{e.shape[0]}n{e.shape[1]}k{e.shape[2]}.{getattr(e, operand)}": (
        e,
        operand,
    )
    for e in TABLE
    if e.instruction == "wmma"
    for operand in "abc"
    for layout in (("row", "col") if operand == "c" else (getattr(e, f"{operand}_layout"),))
}
MATRICES = {
    f"ldmatrix.x{count}{'.trans' * trans}": (count, trans)
    for count in (1, 2, 4)
    for trans in (False, True)
}


def test_every_load_is_in_the_file():
    text = source.path_of("types/loads").read_text()
    assert len(LOADS) == 62 + 2 * 13  # of A and B; of C, in both layouts
    for name in LOADS:
        shape, type_ = name.split(".")[-2:]
        assert shape in text and type_ in text


def elements_held(registers_of, lines, length, bits, per_register):
    """[thread][element] -> (line, place in the line), found out bit by bit.

    `registers_of(storage, ld)` are the threads' registers [threads, registers] of a matrix in
    memory, in bytes. In pass p an element of the matrix is 1 if bit p of its number is.
    """
    unit = max(bits, 8) // 8
    pitch = -(-length * bits // 8 // 32) * 32
    number = torch.arange(lines * length).view(lines, length)
    found = 0
    for p in range(int(number.max()).bit_length()):
        elements = (number >> p & 1).to(torch.uint8)
        if bits < 8:
            shifts = bits * torch.arange(8 // bits, dtype=torch.uint8)
            elements = (elements.unflatten(1, (-1, 8 // bits)) << shifts).sum(-1).to(torch.uint8)
        storage = torch.zeros(lines, pitch, dtype=torch.uint8)
        storage[:, : elements.shape[1] * unit : unit] = elements
        registers = registers_of(storage, pitch * 8 // bits)
        values = registers[:, :, None] >> bits * torch.arange(per_register)
        found = found | (values & 1).flatten(1) << p
    return [[(int(i) // length, int(i) % length) for i in thread] for thread in found]


def as_stored(held, by_rows):
    """A fragment's elements as (line, place in the line)."""
    return [[at if by_rows else at[::-1] for at in thread] for thread in held.elements]


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*LOADS, *MATRICES])
def test_a_device_s_fragments(loads, name):
    if name in MATRICES:
        count, trans = MATRICES[name]
        held, by_rows, rows, cols, bits = ldmatrix(count, trans), True, 8 * count, 8, 16
    else:
        entry, operand = LOADS[name]
        held, by_rows = fragment(entry, operand), ".row." in name
        rows, cols = sizes(entry, operand)
        bits = BITS[getattr(entry, operand)]
    library = loader.library("types/loads")

    def registers_of(storage, ld):
        a = storage.cuda()
        word = torch.int64 if bits == 64 else torch.int32
        d = torch.full((32, held.registers), -1, dtype=word, device="cuda")
        stream = torch.cuda.current_stream().cuda_stream
        operands = Operands(a=a.data_ptr(), d=d.data_ptr(), lda=ld, stream=stream)
        assert library.run(name.encode(), ctypes.byref(operands)) is None
        return d.cpu().to(torch.int64)

    lines = (rows, cols) if by_rows else (cols, rows)
    found = elements_held(registers_of, *lines, bits, held.per_register)
    assert found == as_stored(held, by_rows)
