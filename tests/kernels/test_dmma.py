"""fp64 by DMMA: the rung dgemm, where its tiles lie, and what it is chosen for."""

import dataclasses
import itertools

import pytest
import torch

from tests.dispatch.choosing import A100, H200, problem
from tests.kernels.test_ffma import codes
from tests.kernels.test_signs import faults
from tritemm import Config, dispatch
from tritemm.arch.register_tiles import DmmaTile
from tritemm.compile import asm
from tritemm.dispatch.request import why_not
from tritemm.kernels.device import dmma
from tritemm.rungs import find

FP64 = torch.float64
DGEMM = find("dgemm")
LAYOUTS = asm.LAYOUTS
CONFIGS = [Config(*tile, "grouped", 8, SPLIT_K=n) for tile in DmmaTile.tiles for n in (1, 3)]
SIZES = [
    (256, 256, 256), (1024, 1024, 1024), (4096, 4096, 4096), (512, 4096, 4096), (16, 4096, 4096),
    (64, 64, 65536), (1000, 1111, 777), (5, 208, 8520),
]  # fmt: skip


def fp64(*size, layout="NT", device=H200, **options):
    return problem(*size, layout, FP64, device, **options)


@pytest.mark.host
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_auto_takes_it(size, layout):
    assert dispatch.choose(fp64(*size, layout=layout)).kernel is DGEMM


@pytest.mark.host
def test_few_tiles_are_small_and_have_k_in_parts():
    (large,), (small,) = (DGEMM.configs(fp64(n, n, n)) for n in (8192, 512))
    (long,) = DGEMM.configs(fp64(64, 64, 65536))
    assert large.BLOCK_M * large.BLOCK_N > small.BLOCK_M * small.BLOCK_N
    assert large.SPLIT_K == 1 and long.SPLIT_K >= 32


@pytest.mark.host
@pytest.mark.parametrize("size", [(256, 256, 256), (300, 400, 500), (16, 4096, 4096)], ids=str)
def test_few_tiles_have_slices_of_each_step(size):
    """But none where sums must have one order, which slices would change."""
    asked = fp64(*size)
    words = "auto", "auto/batch_invariant", "dgemm/batch_invariant"
    tiles = [dataclasses.astuple(dispatch.choose(asked, word).config)[:3] for word in words]
    assert [DmmaTile.slices(*tile) for tile in tiles] == [2, 1, 1]


@pytest.mark.host
def test_a_vector_is_for_gemv():
    assert dispatch.choose(fp64(1, 4096, 4096)).kernel.name == "gemv"


@pytest.mark.host
@pytest.mark.parametrize("config", [
    pytest.param(config, id=str(config), marks=[pytest.mark.wide] if number % 4 else [])
    for number, config in enumerate(CONFIGS)
])  # fmt: skip
def test_every_tile_stays_in_registers(config):
    """And finds room beside others."""
    registers, together, *_ = DmmaTile.tiles[dataclasses.astuple(config)[:5]]
    assert together * registers * 32 * config.num_warps <= 2**16
    for code in codes("dgemm", config, LAYOUTS[CONFIGS.index(config) % 4]):
        assert faults(code) == []
        assert {name for name in code.variants if "DMMA" in name} == {"DMMA.16x8x16"}
        assert code.registers <= registers and together * (code.shared + 1024) <= 228 * 1024


def of_instruction(order, place):
    """A place in the operand, as the instruction has it."""
    return sum((place >> i & 1) << bit for i, bit in enumerate(order))


def in_memory(side, rows, columns, warps, slices, along_k):
    """(slice, line, k) of the instruction, and number of the element in shared memory."""
    lines = columns if side else rows
    layout = dmma.tile_layout(rows, columns, warps, slices, side, along_k)
    found = {}
    for number in range(16 * lines * slices):
        place = [0, 0, 0]
        for i, basis in enumerate(layout.offset_bases):
            if number >> i & 1:
                place = [x ^ y for x, y in zip(place, basis, strict=True)]
        part, first, second = place
        found[(part, second, first) if side else (part, first, second)] = number
    return found


TILES = list(itertools.product(DmmaTile.tiles, (0, 1), (True, False)))


def sizes(tile, side):
    """Rows, columns, warps and slices: of C for B's tile, and for A's those of a piece of rows."""
    rows, columns, depth, warps, _ = tile
    slices = DmmaTile.slices(rows, columns, depth)
    pieces = 1 if side or slices > 1 else 2
    return rows // pieces, columns, warps, slices


@pytest.mark.host
@pytest.mark.once
@pytest.mark.parametrize(("tile", "side", "along_k"), TILES, ids=str)
def test_tiles_are_read_where_tma_puts_them(tile, side, along_k):
    """Lines of 128 bytes, in which pieces of 16 are exchanged by the line's number."""
    rows, columns, warps, slices = sizes(tile, side)
    found = in_memory(side, rows, columns, warps, slices, along_k)
    order = dmma.line_order(rows, columns, warps // slices, side, along_k)
    lines = columns if side else rows
    for part, line, k in itertools.product(range(slices), range(lines), range(16)):
        if along_k:
            at = 16 * line + (((k // 2) ^ (line % 8)) * 2 + k % 2)
        else:
            at = 256 * (line // 16) + 16 * k + ((line % 16 // 2) ^ (k % 8)) * 2 + line % 2
        assert found[part, of_instruction(order, line), k] == 16 * lines * part + at


@pytest.mark.host
@pytest.mark.once
@pytest.mark.parametrize(("tile", "side", "along_k"), TILES, ids=str)
def test_lanes_that_read_at_once_read_from_all_banks(tile, side, along_k):
    """16 lanes 8 bytes each; or 8 of them 16 bytes, which are registers side by side."""
    found = in_memory(side, *sizes(tile, side), along_k)
    wide = side == 0 and found[0, 8, 0] == 1
    assert wide == (side == 0 and not along_k)
    lanes = [found[0, lane // 4, lane % 4] for lane in range(32)]
    size = 2 if wide else 1
    for first in range(0, 32, 16 // size):
        banks = {at % 16 // size for at in lanes[first : first + 16 // size]}
        assert len(banks) == 16 // size


@pytest.mark.host
def test_refusals():
    assert "multiple of 16" in DGEMM.why_not(fp64(64, 64, 63))
    assert "torch.bfloat16" in DGEMM.why_not(problem(64, 64, 64))
    assert "compute capability" in DGEMM.why_not(fp64(64, 64, 64, device=A100))
    asked = fp64(256, 256, 256)
    assert "the tile is (64, 64, 32, 4, 4)" in why_not(DGEMM, asked, Config(64, 64, 32, 4, 4))
    config = Config(64, 64, 16, 4, 4, "grouped", 8, SPLIT_K=128)
    fits, beyond = (fp64(33, 33, 2**28 - 16 + more) for more in (0, 2))
    assert why_not(DGEMM, fits, config) is None
    assert "up to 2**28 - 16" in why_not(DGEMM, beyond, config)
    assert DGEMM.configs(fits)[0].SPLIT_K == 64 and DGEMM.configs(beyond)[0].SPLIT_K == 1
    assert "K = 256 has 16 steps" in why_not(
        DGEMM, asked, Config(64, 64, 16, 4, 4, "grouped", 8, SPLIT_K=17)
    )
