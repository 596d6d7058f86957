"""The type table: what it holds, and what each file says that it has of it; refusals."""

import re

import pytest
import torch

from cuda_reference import source, types
from cuda_reference.types.run import Operands
from cuda_reference.types.table import TABLE, held_by
from tests.cuda.test_reference import fields_of
from tests.cuda.test_types import ONE

pytestmark = [pytest.mark.host, pytest.mark.once]

FILES = {entry.source for entry in TABLE}


def test_names_are_unique_and_found():
    assert len({entry.name for entry in TABLE}) == len(TABLE)
    assert all(types.find(entry.name) is entry for entry in TABLE)
    assert "wmma.m16n16k16.row.col.f32.f16" in map(str, TABLE)
    with pytest.raises(ValueError, match=r"no instruction is called 'wmma\.m1n1k1'"):
        types.find("wmma.m1n1k1")


def test_every_file_holds_entries():
    others = {"types/loads", "types/wmma_cpp"}
    assert FILES | others == {name for name in source.names() if name.startswith("types/")}
    assert {entry.a for entry in held_by("types/wmma_cpp")} == {"s8", "u8"}
    assert not held_by("types/loads") and all(held_by(file) for file in FILES)
    for file in (*FILES, *others):
        targets = {arch for entry in held_by(file) for arch in entry.architectures}
        assert set(source.architectures(file)) == (targets or {"80", "90a"})


def test_operands_are_laid_out_as_instruction_cuh_says():
    text = (source.ROOT / "types" / "instruction.cuh").read_text()
    assert list(fields_of(text, "Operands")) == Operands._fields_


def test_refusals_by_capability():
    wmma, wgmma = ONE["wmma.f16"], ONE["wgmma.f16"]
    assert types.why_not(wmma, (8, 0)) is None and types.why_not(wgmma, (9, 0)) is None
    assert "needs compute capability 8.0; this GPU has 7.5" in types.why_not(wmma, (7, 5))
    for capability in ((8, 9), (10, 0), (12, 0)):
        assert "wgmma needs compute capability 9.0" in types.why_not(wgmma, capability)
    fp8 = ONE["mma.e4m3"]
    assert types.why_not(fp8, (9, 0)) is None
    assert "needs compute capability 9.0; this GPU has 8.0" in types.why_not(fp8, (8, 0))


def test_refusals_of_tensors():
    entry = ONE["wmma.s4"]
    m, n, k = entry.shape
    a, b = (torch.zeros(shape, dtype=torch.int8) for shape in ((m, k), (k, n)))
    c = torch.zeros(m, n, dtype=torch.int32)
    for operands, reason in (
        ((a[1:], b, c), "a is [7, 32]; it should be [8, 32]"),
        ((a, b.float(), c), "b is fp32; s4 is held by int8"),
        ((a, b, c.long()), "c is int64; s32 is held by int32"),
        ((a + 8, b, c), "a holds 8 to 8; s4 holds -8 to 7"),
        ((a, b, c), "a is on cpu; it should be on a CUDA device"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{entry.name}: {reason}")):
            types.multiply(entry, *operands)
    with pytest.raises(ValueError, match='d_layout is "col"; mma has its accumulator in registers'):
        types.multiply(ONE["mma.f16"], a, b, c, d_layout="col")
    with pytest.raises(ValueError, match='c_layout is \'column\'; "row" or "col"'):
        types.multiply(entry, a, b, c, c_layout="column")
