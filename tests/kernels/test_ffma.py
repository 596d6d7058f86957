"""fp32 as it is, on FFMA: the rung sgemm, what it is chosen for, and what others do without it."""

import dataclasses
import itertools

import pytest
import torch

from tests.dispatch.choosing import A100, H200, problem
from tests.harness import operands, run
from tests.kernels.test_signs import faults
from tritemm import Config, dispatch
from tritemm.arch.register_tiles import FfmaTile
from tritemm.compile import asm
from tritemm.dispatch import candidates
from tritemm.dispatch.request import why_not
from tritemm.rungs import find

FP32 = torch.float32
SGEMM = find("sgemm")
LAYOUTS = asm.LAYOUTS
SIZES = [
    (512, 3072, 1024), (2048, 2048, 2048), (512, 8192, 8192), (4096, 768, 3072), (64, 3072, 1024),
    (256, 768, 768), (17, 1312, 2480),
]  # fmt: skip


def fp32(*size, layout="NT", device=H200, **options):
    return problem(*size, layout, FP32, device, **options)


def configs():
    """Every tile, with K whole and in parts."""
    return [Config(*tile, "grouped", 8, SPLIT_K=n) for tile in FfmaTile.tiles for n in (1, 3)]


@pytest.mark.host
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_auto_takes_register_tiles(size, layout):
    choice = dispatch.choose(fp32(*size, layout=layout))
    assert choice.kernel is SGEMM
    assert choice.config.PACK in ("", "a", "b")
    assert not choice.config.PACK or layout == "NT" or size[0] == 17


#: M, N, K, the best tile's area and its time in us, on one H200.
MEASURED = [
    ((4096, 4096, 4096), "NN", 256 * 128, 2701), ((512, 512, 512), "NN", 32 * 32, 10.0),
    ((2048, 3072, 768), "NT", 128 * 64, 219), ((64, 3072, 1024), "NT", 32 * 32, 15.6),
    ((16, 4096, 4096), "NT", 16 * 64, 22.4), ((1000, 1000, 1000), "NN", 64 * 64, 50.8),
    ((6500, 268, 804), "TN", 128 * 64, 75.2), ((256, 256, 32768), "NT", 128 * 64, 106.7),
]  # fmt: skip


@pytest.mark.host
@pytest.mark.parametrize(("size", "layout", "area", "us"), MEASURED)
def test_the_tile_is_the_one_that_was_fastest(size, layout, area, us):
    asked = fp32(*size, layout=layout)
    (config,) = SGEMM.configs(asked)
    assert area == config.BLOCK_M * config.BLOCK_N
    tile = config.BLOCK_M, config.BLOCK_N, config.BLOCK_K, config.num_warps, config.num_stages
    clocks = FfmaTile.clocks.of(asked, config, FfmaTile.tiles[tile])
    assert clocks / 1755 == pytest.approx(us, rel=0.2)


@pytest.mark.host
@pytest.mark.parametrize(("rows", "rung"), [(1, "gemv"), (2, "gemv"), (9, "sgemm")])
def test_few_rows_need_no_tile(rows, rung):
    assert dispatch.choose(fp32(rows, 3072, 1024, layout="NN")).kernel.name == rung


@pytest.mark.host
@pytest.mark.parametrize("config", [
    pytest.param(config, id=str(config), marks=[pytest.mark.wide] if number % 4 else [])
    for number, config in enumerate(configs())
])  # fmt: skip
def test_every_tile_stays_in_registers(config):
    """And has 8 FFMA or more for each LDS.128, by which alone operands are read."""
    registers, together, *_ = FfmaTile.tiles[dataclasses.astuple(config)[:5]]
    for code in codes("sgemm", config, LAYOUTS[configs().index(config) % 4]):
        assert faults(code) == []
        heard = code.count("ATOMG")  # what one thread learns of other parts, and tells the others
        assert (heard > 0) == (config.SPLIT_K > 1)
        assert code.count("LDS") == code.count("LDS.128") + heard
        assert code.count("FFMA") >= 8 * code.count("LDS.128")
        assert code.registers <= registers and together * (code.shared + 1024) <= 228 * 1024


def codes(rung, config, layout):
    """Those of a product; with K in parts, of one whose parts the last program adds, and of one
    whose parts are added in shares, if tiles are large enough."""
    jobs = [asm.Job(rung, 90, 1024, 1024, 1024, layout, config=config)]
    if config.SPLIT_K > 1:
        many = dataclasses.replace(config, SPLIT_K=16)
        jobs.append(asm.Job(rung, 90, 256, 128, 4096, layout, config=many))
    return asm.compile_many(jobs, "mix", apart=True)


@pytest.mark.host
def test_refusals():
    assert "multiple of 16" in SGEMM.why_not(fp32(64, 64, 63, layout="NT"))
    assert "torch.bfloat16" in SGEMM.why_not(problem(64, 64, 64))
    assert "tf32" in SGEMM.why_not(fp32(64, 64, 64, precision="tf32"))
    asked = fp32(256, 256, 256)
    assert "the tile is (64, 32, 32, 4, 4)" in why_not(SGEMM, asked, Config(64, 32, 32, 4, 4))
    assert "(256, 128, 32, 8, 4), " in why_not(SGEMM, asked, Config(64, 32, 32, 4, 4))
    assert SGEMM.configs(fp32(16, 16, 2**29, layout="NN"))[0].SPLIT_K == 1
    assert "K = 256 has 16 steps" in why_not(
        SGEMM, asked, Config(64, 64, 16, 4, 4, "grouped", 8, SPLIT_K=17)
    )


@pytest.mark.host
def test_where_both_lie_along_k_one_may_be_copied_across():
    offered = {layout: candidates.copies(fp32(512, 512, 512, layout=layout))[0] for layout in
               LAYOUTS}  # fmt: skip
    assert offered == {"NN": [""], "NT": ["", "b"], "TN": [""], "TT": [""]}
    assert candidates.copies(fp32(64, 512, 512))[0] == ["", "a"]
    assert candidates.copies(fp32(512, 512, 512, device=A100))[0] == [""]
    odd = fp32(512, 512, 1023)
    assert candidates.copies(odd)[0] == ["", "ab"] and odd.packed("ab").layout == "NN"
    choice = dispatch.choose(fp32(8192, 8192, 8192))
    assert choice.config.PACK == "b" and choice.problem.packed("b").layout == "NN"
    assert "b, because FFMA lacks registers if both are stored along K" in str(choice)


@pytest.mark.host
def test_others_multiply_where_there_is_no_tma():
    assert dispatch.choose(fp32(512, 512, 512, device=A100)).kernel.name == "pipelined"
    by_rows, by_columns = (fp32(512, 512, 512, layout=each, device=A100) for each in ("NN", "NT"))
    assert dispatch.choose(by_rows).predicted == dispatch.choose(by_columns).predicted


@pytest.mark.parametrize("rung", ["tma", "persistent", "pipelined"])
@pytest.mark.parametrize("pack", ["", "a", "b"])
def test_copies_and_tiles_of_others_are_right(rung, pack):
    a, b = operands(100, 72, 40, FP32, "NT", aligned=True)
    tiles = find(rung).configs(fp32(100, 72, 40))
    for tile, swap in itertools.product(tiles, (False, True)):
        config = dataclasses.replace(tile, PACK=pack, SWAP=swap)
        assert run(find(rung), a, b, config=config) is None
