"""fp32 as it is, on FFMA: B stored by columns is read with conflicts, or is copied, or swapped.

Times are of one H200, in us, with operands in L2.
"""

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

SIZES = [
    (512, 3072, 1024), (2048, 2048, 2048), (512, 8192, 8192), (4096, 768, 3072), (64, 3072, 1024),
    (256, 768, 768), (8, 3072, 1024), (1, 4096, 4096),
]  # fmt: skip


def fp32(*size, layout="NT", device=H200):
    return problem(*size, layout, torch.float32, device)


@pytest.mark.host
@pytest.mark.parametrize("rung", ["tma", "persistent"])
def test_but_for_nn_operands_pass_through_shared_memory_twice(rung):
    """Why TMA doesn't suit them."""
    jobs = [asm.Job(rung, 90, 512, 3072, 1024, layout, "fp32") for layout in asm.LAYOUTS]
    found = asm.compile_many(jobs, "mix", apart=True)
    stored = {job.layout: code.count("STS") for job, code in zip(jobs, found, strict=True)}
    twice = {layout: count - stored["NN"] for layout, count in stored.items()}
    assert twice == {"NN": 0, "NT": 2, "TN": 2, "TT": 4}
    assert len({code.count("FFMA") for code in found}) == 1


@pytest.mark.host
@pytest.mark.parametrize("layout", asm.LAYOUTS)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_auto_has_no_conflicts(size, layout):
    choice = dispatch.choose(fp32(*size, layout=layout))
    view, tile, rung = choice.config.view(choice.problem), choice.config, choice.kernel.name
    assert rung == "gemv" or view.layout == "NN" or (rung, view.layout) == ("pipelined", "TN")
    turned = layout[1] == "T"
    assert turned or not (tile.PACK or (tile.SWAP and min(size) > candidates.SHORT_SIDE))


#: The rung, rows and columns of a tile of 4 warps, the operand that is copied, and whether they are
#: swapped, of what was fastest or within 3 % of that; and its time.
MEASURED = [
    ((512, 3072, 1024), "NT", ("tma", 64, 64, "a", True), 84.6),
    ((512, 3072, 1024), "NN", ("tma", 64, 64, "", False), 81.5),
    ((512, 3072, 1024), "TN", ("pipelined", 64, 64, "", False), 77.2),
    ((512, 3072, 1024), "TT", ("tma", 64, 64, "", True), 83.7),
    ((2048, 2048, 2048), "NN", ("tma", 64, 64, "", False), 403.2),
    ((2048, 2048, 2048), "NT", ("tma", 64, 64, "b", False), 410.6),
    ((2048, 3072, 1024), "NT", ("tma", 64, 64, "a", True), 311.4),
    ((4096, 768, 3072), "NT", ("tma", 64, 64, "b", False), 470.7),
    ((256, 768, 768), "NT", ("tma", 32, 64, "a", True), 21.5),
    ((64, 3072, 1024), "NT", ("tma", 32, 64, "a", True), 27.4),
    ((64, 3072, 1024), "NN", ("tma", 32, 64, "", False), 27.4),
    ((1, 4096, 4096), "NT", ("gemv", 1, 4, "", False), 19.0),
]


@pytest.mark.host
@pytest.mark.parametrize(("size", "layout", "fastest", "us"), MEASURED)
def test_the_fastest_is_chosen_and_predicted(size, layout, fastest, us):
    choice = dispatch.choose(fp32(*size, layout=layout))
    tile = choice.config
    found = choice.kernel.name, tile.BLOCK_M, tile.BLOCK_N, tile.PACK, tile.SWAP
    assert found == fastest
    assert 1e6 * choice.predicted == pytest.approx(us, rel=0.08)


@pytest.mark.host
def test_a_program_alone_on_its_sm_takes_longer_than_its_share():
    """39 us of one, and 81.5 of three beside each other."""
    tile = Config(64, 64, 16, num_stages=3, ORDER="grouped")
    for rows, us in ((64, 39.0), (512, 81.5)):
        predicted = dispatch.predict(find("tma"), fp32(rows, 3072, 1024, layout="NN"), tile)
        assert 1e6 * predicted == pytest.approx(us, rel=0.08)


@pytest.mark.host
@pytest.mark.parametrize(("rows", "rung"), [(2, "gemv"), (8, "gemv"), (9, "tma")])
def test_few_rows_need_no_tile_where_b_is_by_rows(rows, rung):
    assert dispatch.choose(fp32(rows, 3072, 1024, layout="NN")).kernel.name == rung


@pytest.mark.parametrize("layout", ["NN", "TN"])
def test_gemv_of_eight_rows_is_right(layout):
    problem = fp32(8, 72, 136, layout=layout)
    for config in find("gemv").configs(problem):
        a, b = operands(8, 72, 136, torch.float32, layout)
        assert run(find("gemv"), a, b, config=config) is None


@pytest.mark.host
def test_conflicts_are_counted_where_there_is_tma():
    tile = Config(128, 64, 16, num_stages=3, ORDER="grouped")
    predicted = dispatch.predict(find("pipelined"), fp32(512, 3072, 1024), tile)
    assert 1e6 * predicted == pytest.approx(204.6, rel=0.08)
    by_rows, by_columns = (fp32(512, 512, 512, layout=each, device=A100) for each in ("NN", "NT"))
    assert dispatch.choose(by_rows).predicted == dispatch.choose(by_columns).predicted


@pytest.mark.host
def test_one_operand_is_copied_across_k_or_swapped_operands_are_right():
    offered = {layout: candidates.copies(fp32(512, 512, 512, layout=layout))[0] for layout in
               asm.LAYOUTS}  # fmt: skip
    assert offered == {"NN": [""], "NT": ["", "b"], "TN": [""], "TT": [""]}
    assert candidates.copies(fp32(64, 512, 512))[0] == ["", "a"]
    assert candidates.copies(fp32(512, 512, 512, device=A100))[0] == [""]
    odd = fp32(512, 512, 1023)
    assert candidates.copies(odd)[0] == ["", "ab"] and odd.packed("ab").layout == "NN"


@pytest.mark.host
@pytest.mark.parametrize(("layout", "pack"), [("NT", "ab"), ("NN", "a"), ("TT", "ab")])
def test_what_tma_refuses_is_copied_to_where_its_tiles_read_it(layout, pack):
    choice = dispatch.choose(fp32(511, 3072, 1023, layout=layout))
    copies = choice.config.PACK, choice.problem.packed(choice.config.PACK).layout
    assert (choice.kernel.name, *copies) == ("tma", pack, "NN")


@pytest.mark.host
@pytest.mark.parametrize(
    ("size", "layout", "pack", "swap"),
    [
        ((512, 8192, 8192), "NT", "a", True),  # the copy of B is sixteen times as large
        ((8192, 512, 8192), "NT", "b", False),
        ((512, 8192, 8192), "TT", "", True),
        ((512, 8192, 8192), "TN", "", False),
        ((8, 3072, 1024), "NT", "", False),
    ],
)
def test_the_smaller_copy_is_made_where_it_pays(size, layout, pack, swap):
    choice = dispatch.choose(fp32(*size, layout=layout))
    assert (pack, swap) == (choice.config.PACK, choice.config.SWAP)
    if pack:
        assert (
            f"packed     {pack}, because FFMA reads B without bank conflicts only across K"
            in str(choice)
        )


@pytest.mark.parametrize("rung", ["tma", "persistent", "pipelined"])
@pytest.mark.parametrize("pack", ["", "a", "b"])
def test_copies_and_tiles_are_right(rung, pack):
    a, b = operands(100, 72, 40, torch.float32, "NT", aligned=True)
    tiles = find(rung).configs(fp32(100, 72, 40))
    for tile, swap in itertools.product(tiles, (False, True)):
        config = dataclasses.replace(tile, PACK=pack, SWAP=swap)
        assert run(find(rung), a, b, config=config) is None
