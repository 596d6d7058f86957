"""Copies for TMA: every way of reading, every edge; what lies around a source must not matter."""

import itertools
import math

import pytest
import torch

from tests.dispatch.choosing import problem
from tests.harness import DEVICE, operand, operands
from tritemm import dispatch
from tritemm.dispatch import candidates
from tritemm.dispatch.request import Request
from tritemm.kernels import pack as packing
from tritemm.kernels.pack import pack
from tritemm.problem import INTERPRETED, Problem
from tritemm.spec import Config

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8]
LAYOUTS = ["NN", "NT", "TN", "TT", "SS"]


def problem_of(a, b):
    c = torch.empty(*a.shape[:-1], b.shape[-1], dtype=torch.float32, device="meta")
    return Problem.of(a, b, c)


def bits(tensor):
    """The tensor as integers, so that NaN equals itself."""
    # A column counts as contiguous whatever the stride of its one element per row: copied anyway.
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def check(a, b, operands="ab"):
    """Packs, and compares each copy with its source, bit by bit, and with its description."""
    problem = problem_of(a, b)
    target = problem.packed(operands)
    for name, source, copy in zip("ab", (a, b), pack(problem, operands, a, b)[:2], strict=True):
        if name not in operands:
            assert copy is source
            continue
        matrix = getattr(target, name)
        assert copy.dtype == source.dtype and copy.data_ptr() % 16 == 0
        skip = 0 if problem.batch > 1 else 2
        assert copy.stride() == matrix.strides[skip:]
        assert torch.equal(bits(copy), bits(source.reshape(copy.shape)))
    return target


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_types_and_layouts(layout, aligned, dtype):
    """8-bit and 32-bit operands may need a turn although TMA could read them."""
    target = check(*operands(130, 141, 83, dtype, layout, aligned=aligned))
    if dtype == torch.float32:
        assert target.layout == "NN"  # for FFMA
    elif dtype.itemsize != 2 or layout == "SS":
        assert target.layout == "NT"  # K is contiguous
    else:
        assert target.layout == layout


@pytest.mark.parametrize("offset", range(9))
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_odd_addresses(dtype, offset):
    """Every distance of the first element from an 8-byte word; NaN stands before and after."""
    a, b = operands(11, 13, 29, dtype, "NT", offset=offset)
    check(a, b)


#: Lines shorter than a word, shorter than a tile, one tile and a little more, several tiles.
LENGTHS = [1, 2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 255, 257, 1030]


@pytest.mark.parametrize(
    ("rows", "terms"),
    [*((9, n) for n in LENGTHS), *itertools.product([1, 2, 31, 33, 260], [1, 7, 100])],
)
def test_few_and_many_lines_of_every_length(rows, terms):
    for layout in "NT":
        check(operand(rows, terms, torch.bfloat16), operand(terms, rows, torch.bfloat16, layout))


@pytest.mark.parametrize("operands", ["a", "b", "ab"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_one_operand_or_both(operands, dtype):
    check(operand(20, 33, dtype), operand(33, 41, dtype), operands)


@pytest.mark.parametrize(
    "batches", [((5,), (5,)), ((2, 3), (2, 3)), ((1,), (4,)), ((3, 1), (1, 2))]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8], ids=str)
def test_batches(batches, dtype):
    """Distinct batches are copied, broadcast ones stay broadcast."""
    shape = torch.broadcast_shapes(*batches)
    a = operand(13, 35, dtype, "N", batches[0], offset=1)
    b = operand(35, 17, dtype, "N", batches[1])
    problem = problem_of(*(t.expand(*shape, -1, -1) for t in (a, b)))
    copies = pack(problem, "ab", a.expand(*shape, -1, -1), b.expand(*shape, -1, -1))[:2]
    for source, copy in zip((a, b), copies, strict=True):
        assert torch.equal(copy.reshape(*shape, *source.shape[-2:]),
                           source.expand(*shape, -1, -1))  # fmt: skip
        line = -(-max(copy.stride()[-2:]) * dtype.itemsize // 32) * 32
        lines = source.shape[-2] if copy.stride(-1) == 1 else source.shape[-1]
        distinct = math.prod(source.shape[:-2])
        assert copy.untyped_storage().nbytes() == distinct * lines * line


@pytest.mark.latest
def test_heads_of_attention_in_place():
    """[B, S, H, D] seen as [B, H, S, D]: two batch strides that don't merge, odd pitches."""
    q = operand(35 * 3, 41, torch.float16, batch=(2,)).unflatten(1, (35, 3)).transpose(1, 2)
    k = operand(50 * 3, 41, torch.float16, batch=(2,)).unflatten(1, (50, 3)).transpose(1, 2)
    check(q, k.mT)


@pytest.mark.parametrize("axis", [0, 1])
def test_expanded_rows_and_columns(axis):
    """A stride of 0 inside the matrix; the copy has all its elements."""
    a = operand(21, 27, torch.bfloat16).select(axis, 3).unsqueeze(axis).expand(21, 27)
    check(a, operand(27, 9, torch.bfloat16))


def test_infinities_nan_and_their_bits():
    a = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).to(DEVICE)
    a = a.view(torch.bfloat16)[: 255 * 257].view(255, 257)
    check(a, a.mT)


@pytest.mark.skipif(not INTERPRETED, reason="counts programs in the interpreter alone")
@pytest.mark.parametrize("width", packing.WIDTHS)
def test_each_width_of_a_tile(width, monkeypatch):
    monkeypatch.setattr(packing, "WIDTHS", (width,))
    packing._plan.cache_clear()
    check(operand(67, 300, torch.bfloat16, offset=3), operand(300, 31, torch.bfloat16, "T"))
    packing._plan.cache_clear()


@pytest.mark.gpu
@pytest.mark.large(9)
def test_copies_past_two_to_the_31():
    """A pitch of 2**17 + 1 elements and 2**15 lines; the copy is a row more than 2**32 long."""
    storage = torch.empty(2**15 * (2**17 + 1), dtype=torch.int8, device="cuda")
    a = storage.view(2**15, 2**17 + 1)
    a[0].fill_(1), a[-1].fill_(3), a[2**14].random_(-9, 9)
    b = torch.ones(2**17 + 1, 8, dtype=torch.int8, device="cuda")
    copy, *_ = pack(problem_of(a, b), "a", a, b)
    for row in (0, 2**14, -1):
        assert torch.equal(copy[row], a[row])


@pytest.mark.parametrize(
    ("layout", "aligned", "way"),
    [("N", False, "copy"), ("T", False, "turn"), ("T", True, "turn wide"), ("S", False, "gather")],
)
def test_wide_copies_are_right(layout, aligned, way, monkeypatch):
    monkeypatch.setattr(packing.Copy, "wide", True)
    packing._plan.cache_clear()
    a = operand(33, 41, torch.int8, layout, aligned=aligned)
    b = torch.zeros(41, 1, dtype=torch.int8, device=DEVICE)
    assert packing._plan(problem_of(a, b), "a").args["A_WAY"] == way
    check(a, b, "a")
    packing._plan.cache_clear()


def test_more_than_a_launch_has_programs_for_are_refused():
    asked = problem(3, 3, 3, batch=(2**30,))
    assert packing.why_not(asked, "a") is None
    reason = packing.why_not(asked, "ab")
    assert reason == "to copy a and b, 2147483648 programs are needed, and a launch has at " \
                     "most 2**31 - 1"  # fmt: skip
    with pytest.raises(ValueError, match="to copy a and b"):
        dispatch.choose(asked, str(Request("tma", Config(64, 64, 64, PACK="ab"))))


def test_auto_makes_none_that_are_far_larger_than_their_source():
    assert candidates.copies(problem(4096, 4096, 3))[0] == ["", "ab"]
    assert candidates.copies(problem(2**28, 4096, 3))[0] == [""]
    assert candidates.copies(problem(2**22, 4096, 999))[0] == ["", "ab"]
    assert candidates.copies(problem(2**23, 4096, 999))[0] == [""]


@pytest.mark.gpu
@pytest.mark.large(5)
def test_columns_to_copy_that_lie_two_to_the_31_apart():
    """4 GB; the distance in units of 16 bytes is less than 2**31."""
    store = torch.zeros(2**32 + 64, dtype=torch.int8, device="cuda")
    a = store.as_strided((64, 3), (1, 2**31))
    a.copy_(torch.arange(192, dtype=torch.int8, device="cuda").view(64, 3))
    b = torch.ones(3, 8, dtype=torch.int8, device="cuda")
    asked = problem_of(a, b)
    assert packing._plan(asked, "a").args["A_WAY"] == "turn wide"
    assert torch.equal(pack(asked, "a", a, b)[0], a)
