"""fp32 as it is, on FFMA: B stored by columns is read with conflicts, or is copied, or swapped."""

import dataclasses
import itertools

import pytest
import torch

from tests.dispatch.choosing import A100, H200, problem
from tests.harness import operands, run
from tritemm import Config, dispatch
from tritemm.compile import asm
from tritemm.dispatch import candidates
from tritemm.rungs import find

#: Columns of a tile whose lanes read one bank in no more time than LDS.128 takes anyway: a lane has
#: 4 of them, and LDS.128 takes 4 clocks.
FREE = 16
SIZES = [
    (512, 3072, 1024), (2048, 2048, 2048), (512, 8192, 8192), (4096, 768, 3072), (64, 3072, 1024),
    (256, 768, 768), (8, 3072, 1024), (1, 4096, 4096),
]  # fmt: skip


def fp32(*size, layout="NT", device=H200):
    return problem(*size, layout, torch.float32, device)


@pytest.mark.host
@pytest.mark.parametrize("rung", ["tma", "persistent"])
def test_b_by_columns_passes_through_shared_memory_twice(rung):
    """What the cost model counts as turned."""
    jobs = [asm.Job(rung, 90, 512, 3072, 1024, layout, "fp32") for layout in asm.LAYOUTS]
    found = asm.compile_many(jobs, "mix", apart=True)
    stored = {job.layout: code.count("STS") for job, code in zip(jobs, found, strict=True)}
    assert stored["NT"] - stored["NN"] == stored["TT"] - stored["TN"] == 2
    assert len({code.count("FFMA") for code in found}) == 1


@pytest.mark.host
@pytest.mark.parametrize("layout", asm.LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_auto_has_no_conflicts(size, layout):
    choice = dispatch.choose(fp32(*size, layout=layout))
    view, tile = choice.config.view(choice.problem), choice.config
    assert view.b.layout == "N" or tile.BLOCK_N <= FREE or choice.kernel.name == "gemv"
    turned = layout[1] == "T"
    assert turned or not (tile.PACK or (tile.SWAP and min(size) > candidates.SHORT_SIDE))


@pytest.mark.host
def test_what_was_measured_is_predicted():
    """On an H200, us of one tile, with and without conflicts."""
    tile = Config(64, 128, 16, 8, 3, "grouped")
    for size, layout, us in (
        ((512, 3072, 1024), "NT", 335),
        ((2048, 2048, 2048), "NN", 448),
    ):
        predicted = dispatch.predict(find("tma"), fp32(*size, layout=layout), tile)
        assert 1e6 * predicted == pytest.approx(us, rel=0.05)
    by_rows, by_columns = (fp32(512, 512, 512, layout=each, device=A100) for each in ("NN", "NT"))
    assert dispatch.choose(by_rows).predicted == dispatch.choose(by_columns).predicted


@pytest.mark.host
def test_one_operand_is_copied_across_k_or_swapped_operands_are_right():
    offered = {layout: candidates.copies(fp32(512, 512, 512, layout=layout))[0] for layout in
               asm.LAYOUTS}  # fmt: skip
    assert offered == {"NN": [""], "NT": ["", "a", "b"], "TN": [""], "TT": ["", "b"]}
    assert candidates.copies(fp32(512, 512, 512, device=A100))[0] == [""]
    odd = fp32(512, 512, 1023)
    assert candidates.copies(odd)[0] == ["", "ab"] and odd.packed("ab").layout == "TN"


@pytest.mark.host
@pytest.mark.parametrize(
    ("size", "layout", "pack", "swap"),
    [
        ((512, 8192, 8192), "NT", "a", True),  # the copy of B is sixteen times as large
        ((8192, 512, 8192), "NT", "b", False),
        ((512, 8192, 8192), "TT", "", True),
        ((512, 8192, 8192), "TN", "", False),
        ((64, 3072, 1024), "NT", "", True),
        ((8, 3072, 1024), "NT", "", False),
        ((1, 4096, 4096), "NT", "", False),
    ],
)
def test_the_smaller_copy_is_made_where_it_pays(size, layout, pack, swap):
    choice = dispatch.choose(fp32(*size, layout=layout))
    assert (pack, swap) == (choice.config.PACK, choice.config.SWAP)
    if pack:
        assert f"packed     {pack}, because FFMA reads fp32 fastest across K" in str(choice)


@pytest.mark.parametrize("rung", ["tma", "persistent", "pipelined"])
@pytest.mark.parametrize("pack", ["", "a", "b"])
def test_copies_and_tiles_are_right(rung, pack):
    a, b = operands(100, 72, 40, torch.float32, "NT", aligned=True)
    tiles = find(rung).configs(fp32(100, 72, 40))
    for tile, swap in itertools.product(tiles, (False, True)):
        config = dataclasses.replace(tile, PACK=pack, SWAP=swap)
        assert run(find(rung), a, b, config=config) is None
