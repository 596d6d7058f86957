"""Fragments of `mma.sync`: the PTX ISA's formulas, and what inline PTX makes of its operands."""

import itertools
import re

import numpy as np
import pytest

from cuda_reference.types import find
from cuda_reference.types.fragments import fragment as cuda_fragment
from cuda_reference.types.table import BITS, TABLE
from docs.types import registers
from docs.types.mma_sync import tile
from docs.types.ways import mma_sync_why_not

pytestmark = pytest.mark.host

LANES = range(32)
TILES = {
    entry.name: tile(entry)
    for entry in TABLE
    if entry.instruction != "wgmma" and mma_sync_why_not(entry) is None
}
#: One tile of each set of fragments.
DISTINCT = {each.fragments: each for each in TILES.values()}
by_fragments = pytest.mark.parametrize(
    "one", [pytest.param(each, id=each.entry.name) for each in DISTINCT.values()]
)


def places(fragment):
    """[lane][element] of the fragment: where it stands."""
    count = 2 ** len(fragment.elements)
    return [[fragment.place(lane, i) for i in range(count)] for lane in LANES]


@by_fragments
def test_every_element_is_held_once(one):
    for fragment in one.fragments:
        rows, cols = fragment.shape
        found = sorted(itertools.chain(*places(fragment)))
        assert found == list(itertools.product(range(rows), range(cols)))


@by_fragments
def test_lanes_and_elements_add_up(one):
    """What CUDA's side says of every element, from that of the powers of two alone."""
    part = tile(one.part)
    m, n, k = one.part.shape
    for operand, fragment in zip("abcd", part.fragments, strict=True):
        held = cuda_fragment(one.part, operand).elements
        each = max(1, 8 // BITS[getattr(one.part, operand)])
        down, across = {"a": (1, each), "b": (each, 1)}.get(operand, (1, 1))
        rows, cols = {"a": (m, k // each), "b": (k // each, n)}.get(operand, (m, n))
        for lane, i in itertools.product(LANES, range(len(held[0]))):
            row, col = fragment.place(lane, i // each)
            of_this_tile = row % rows, col % cols
            assert of_this_tile == (held[lane][i][0] // down, held[lane][i][1] // across)


#: "Matrix Fragments for mma", section by section: the row and the column of element i of A, B and C
#: in lane 4 g + t.
ISA = {
    "mma.m16n8k8.row.col.f32.f16.f16.f32": (
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
        lambda g, t, i: (t * 2 + i, g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m16n8k16.row.col.f32.bf16.bf16.f32": (
        lambda g, t, i: (
            g if 0 <= i < 2 or 4 <= i < 6 else g + 8,
            t * 2 + (i & 1) + (8 if i >= 4 else 0),
        ),
        lambda g, t, i: (t * 2 + (i & 1) + (8 if i >= 2 else 0), g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m16n8k4.row.col.f32.tf32.tf32.f32": (
        lambda g, t, i: (g if i == 0 else g + 8, t),
        lambda g, t, i: (t, g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m16n8k8.row.col.f32.tf32.tf32.f32": (
        lambda g, t, i: (g if i in (0, 2) else g + 8, t if i in (0, 1) else t + 4),
        lambda g, t, i: (t if i == 0 else t + 4, g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m8n8k4.row.col.f64.f64.f64.f64": (
        lambda g, t, i: (g, t),
        lambda g, t, i: (t, g),
        lambda g, t, i: (g, t * 2 + i),
    ),
    "mma.m16n8k16.row.col.f64.f64.f64.f64": (
        lambda g, t, i: (g if i % 2 == 0 else g + 8, (i * 2 if i % 2 == 0 else i * 2 - 2) + t),
        lambda g, t, i: (t + i * 4, g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m8n8k16.row.col.s32.s8.s8.s32": (
        lambda g, t, i: (g, t * 4 + i),
        lambda g, t, i: (t * 4 + i, g),
        lambda g, t, i: (g, t * 2 + i),
    ),
    "mma.m16n8k16.row.col.s32.u8.s8.s32": (
        lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
        lambda g, t, i: (t * 4 + i, g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m16n8k32.row.col.f32.e4m3.e5m2.f32": (
        lambda g, t, i: (
            g if 0 <= i < 4 or 8 <= i < 12 else g + 8,
            t * 4 + (i & 3) + (0 if i < 8 else 16),
        ),
        lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m8n8k32.row.col.s32.s4.s4.s32": (
        lambda g, t, i: (g, t * 8 + i),
        lambda g, t, i: (t * 8 + i, g),
        lambda g, t, i: (g, t * 2 + i),
    ),
    "mma.m16n8k64.row.col.s32.u4.u4.s32": (
        lambda g, t, i: (
            g if 0 <= i < 8 or 16 <= i < 24 else g + 8,
            t * 8 + (i & 7) + (0 if i < 16 else 32),
        ),
        lambda g, t, i: (t * 8 + (i & 7) + (0 if i < 8 else 32), g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
    "mma.m8n8k128.row.col.s32.b1.b1.s32.xor.popc": (
        lambda g, t, i: (g, t * 32 + i),
        lambda g, t, i: (t * 32 + i, g),
        lambda g, t, i: (g, t * 2 + i),
    ),
    "mma.m16n8k256.row.col.s32.b1.b1.s32.and.popc": (
        lambda g, t, i: (
            g if 0 <= i < 32 or 64 <= i < 96 else g + 8,
            t * 32 + (i & 31) + (0 if i < 64 else 128),
        ),
        lambda g, t, i: (t * 32 + (i & 31) + (0 if i < 32 else 128), g),
        lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ),
}


@pytest.mark.parametrize("name", ISA)
def test_fragments_are_the_isa_s(name):
    one = TILES[name]
    e = one.entry
    for operand, formula, fragment in zip("abc", ISA[name], one.fragments[:3], strict=True):
        each = max(1, 8 // BITS[getattr(e, operand)])  # elements in a byte; it lies along K
        along = {"a": (1, each), "b": (each, 1), "c": (1, 1)}[operand]
        held = places(fragment)
        for lane, byte, i in itertools.product(LANES, range(len(held[0])), range(each)):
            row, col = formula(lane // 4, lane % 4, byte * each + i)
            assert (row // along[0], col // along[1]) == held[lane][byte]


def volta(lane, i, operand):
    """m8n8k4 of f16: the row, the column and the tile, as the section says."""
    group = lane % 4 if lane < 16 else lane % 4 + 4
    high = 0 if lane < 16 else 4
    return {
        "a.row": (group, i),
        "a.col": (high + i, lane % 4),
        "b.row": (lane % 4, high + i),
        "b.col": (i, group),
        "c.f16": (group, i),
        "c.f32": ((lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)),
    }[operand], lane // 4 % 4


@pytest.mark.parametrize(
    "name", [name for name in TILES if name.startswith("mma.m8n8k4") and "f16" in name]
)
def test_four_tiles_at_a_time(name):
    one = TILES[name]
    e = one.entry
    operands = f"a.{e.a_layout}", f"b.{e.b_layout}", f"c.{e.c}", f"c.{e.d}"
    for operand, fragment in zip(operands, one.fragments, strict=True):
        held = places(fragment)
        for lane, i in itertools.product(LANES, range(len(held[0]))):
            (row, col), nth = volta(lane, i, operand)
            apart = (0, 8 * nth) if operand[0] == "b" else (8 * nth, 0)
            assert (row + apart[0], col + apart[1]) == held[lane][i]


# The way into registers, and out of them


def value(constexpr):
    return getattr(constexpr, "value", constexpr)


def elements(matrix, layout):
    """`registers.elements` in numpy: [element][lane]."""
    bits, order = value(registers.bits(layout)), value(registers.order(layout))
    parts = [matrix.reshape(bits).transpose(order).reshape(value(registers.per_lane(layout)))]
    for _ in layout.reg_bases:
        parts = [half for part in parts for half in (part[..., 0], part[..., 1])]
    return parts


def matrix(parts, layout):
    """`registers.matrix` in numpy."""
    while len(parts) > 1:
        parts = [np.stack(pair, -1) for pair in zip(parts[::2], parts[1::2], strict=True)]
    back = value(registers.inverse(value(registers.order(layout))))
    bits = value(registers.bits(layout))
    return parts[0].reshape(bits).transpose(back).reshape(layout.shape)


@by_fragments
def test_registers_hold_what_the_fragment_says(one):
    for fragment in one.fragments:
        layout, (rows, cols) = fragment.layout, fragment.shape
        numbered = np.arange(rows * cols).reshape(rows, cols)
        found = elements(numbered, layout)
        for lane, i in itertools.product(LANES, range(len(found))):
            row, col = fragment.place(lane, i)
            assert found[i][lane] == numbered[row, col]
        assert np.array_equal(matrix(found, layout), numbered)


@pytest.mark.parametrize(
    "name", [name for name, one in TILES.items() if one.repeats != (1, 1) and "row.col" in name]
)
def test_the_parts_of_a_tile_make_the_whole(name):
    """Each line of the text, on the registers that it names, as the instruction multiplies them."""
    one = TILES[name]
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-9, 9, fragment.shape) for fragment in one.fragments[:3])
    layouts = [fragment.layout for fragment in one.fragments]
    operands = [elements(m, layout) for m, layout in zip((a, b, c), layouts[:3], strict=True)]
    counts = one.registers
    # A register holds several elements of A and of B: in the text's order, D's come first.
    files = [list(np.array_split(parts, n)) for parts, n in zip(operands, counts[:3], strict=True)]
    numbered = [None] * counts[3] + [words for file in files for words in file]
    assert one.constraints.count(",") + 1 == sum(counts)

    part = tile(one.part)
    for line in one.text.splitlines():
        assert line.startswith(f"{one.part.opcode} {{") and line.endswith("};")
        lists = [re.findall(r"\$(\d+)", words) for words in re.findall(r"\{(.*?)\}", line)]
        d, *read = ([int(n) for n in names] for names in lists)
        x, y, z = (
            matrix(list(np.concatenate([numbered[n] for n in names])), fragment.layout)
            for names, fragment in zip(read, part.fragments[:3], strict=True)
        )
        results = elements(x @ y + z, part.fragments[3].layout)
        for n, words in zip(d, np.array_split(results, len(d)), strict=True):
            assert numbered[n] is None
            numbered[n] = words
    got = matrix(list(np.concatenate(numbered[: counts[3]])), layouts[3])
    assert np.array_equal(got, a @ b + c)


def test_wmma_is_made_of_the_mma_of_its_shape():
    shapes = {
        "wmma.m16n16k16.col.row.s32.u8.u8.s32": ((16, 8, 16), (1, 2)),
        "wmma.m32n8k16.row.col.s32.s8.s8.s32.satfinite": ((16, 8, 16), (2, 1)),
        "wmma.m8n32k16.row.col.s32.u8.u8.s32": ((8, 8, 16), (1, 4)),
        "wmma.m8n8k4.row.col.rm.f64.f64.f64.f64": ((8, 8, 4), (1, 1)),
        "wmma.m8n8k128.row.col.s32.b1.b1.s32.xor.popc": ((8, 8, 128), (1, 1)),
    }
    for name, (shape, repeats) in shapes.items():
        one = tile(find(name))
        assert (one.part.shape, one.repeats) == (shape, repeats)
        words = ("satfinite", "rounding", "op", "a", "b", "c", "d")
        assert all(getattr(one.part, word) == getattr(one.entry, word) for word in words)
    assert mma_sync_why_not(find("wmma.m8n32k16.row.col.f32.f32")) == "no `mma.sync` has its parts"
