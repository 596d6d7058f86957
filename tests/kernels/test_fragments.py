"""tf32 whose A is stored by columns: WGMMA takes it from registers, and nothing is copied."""

import dataclasses
import re

import pytest
import torch

import tritemm
from tests.dispatch.choosing import problem
from tests.harness import operands, run
from tests.kernels.test_signs import EVEN, RAGGED, expect_no_faults, per_config
from tests.sweep import drawn
from tritemm import dispatch
from tritemm.compile import asm
from tritemm.dispatch.request import why_not
from tritemm.kernels.device import fragments
from tritemm.spec import Config

RUNGS = ["warp_specialized", "split_k"]
TF32 = {"dtype": torch.float32, "precision": "tf32"}


def tile(m, n, k=32, warps=8, stages=3, **more):
    return Config(m, n, k, warps, stages, ORDER="grouped", **more)


#: One and two parts of N, one and two blocks of rows of a warpgroup, one and two warpgroups, steps
#: deeper than a line.
TILES = [
    tile(128, 256), tile(256, 160), tile(128, 192, stages=4), tile(128, 64, warps=4, stages=8),
    tile(64, 8, warps=4, stages=12), tile(128, 128, 64, stages=2),
]  # fmt: skip
#: Those that a caller may ask the rung for.
GIVEN = [(rung, c) for rung in RUNGS for c in TILES if rung != "split_k" or c.BLOCK_N != 160]


@pytest.mark.parametrize(("layout", "swap"), [("NN", True), ("TT", False)])
@pytest.mark.parametrize("size", [(4096, 4096, 4096), (512, 512, 8192), (128, 4096, 1024)])
def test_auto_copies_nothing_where_one_operand_is_stored_along_k(layout, swap, size):
    rows = [
        (kernel.name, config.SWAP)
        for _, kernel, config in dispatch.ranked(problem(*size, layout, **TF32))
        if not config.PACK
    ]
    assert {(name, swap) for name in RUNGS} <= set(rows)
    assert not {(name, not swap) for name in RUNGS} & set(rows)


def test_auto_copies_one_of_two_operands_that_are_stored_otherwise():
    for size, smaller, swap in (((4096, 512, 4096), "b", False), ((512, 4096, 4096), "a", True)):
        rows = dispatch.ranked(problem(*size, "TN", **TF32))
        found = {(config.PACK, config.SWAP) for _, kernel, config in rows if kernel.name in RUNGS}
        assert {(smaller, swap), ("ab", False)} <= found
        packed = rows[0][2].PACK
        assert packed == smaller


@pytest.mark.parametrize("rung", RUNGS)
def test_tiles_without_room_for_a_in_registers_are_refused(rung):
    kernel = dispatch.find(rung)
    for layout in ("NT", "TT"):
        view = problem(4096, 4096, 4096, layout, **TF32)
        for config in (tile(192, 128, warps=4, stages=5), tile(256, 192)):
            reason = why_not(kernel, view, config)
            assert (reason is None) == (layout == "NT")
            assert reason is None or "no room" in reason or config.BLOCK_M == 192
            assert (config in kernel.configs(view)) == (reason is None)
        assert why_not(kernel, view, tile(128, 256)) is None


def test_a_batch_invariant_choice_may_be_what_registers_have_no_room_for(monkeypatch):
    anchor = dispatch.find("warp_specialized"), tile(192, 192, warps=4, stages=4)
    monkeypatch.setattr(dispatch.candidates, "_anchor", lambda problem, rungs: anchor)
    for layout, pack in (("NT", ""), ("TT", "a")):
        view = problem(4096, 512, 1024, layout, **TF32)
        choice = dispatch.choose.__wrapped__(view, "auto/batch_invariant")
        assert choice.config == dataclasses.replace(anchor[1], PACK=pack)


@pytest.mark.host
@pytest.mark.parametrize("rung", RUNGS)
def test_every_config_compiles_and_no_wgmma_waits_for_the_one_before(rung):
    jobs = per_config(asm.Job(rung, 90, *EVEN, "TT", "fp32", precision="tf32"))
    jobs += per_config(asm.Job(rung, 90, *RAGGED, "TT", "fp32", precision="tf32"))[:3]
    jobs += [
        asm.Job(rung, 90, *RAGGED, layout, "fp32", precision="tf32", config=config, **more)
        for layout, config, more in (
            ("NN", tile(128, 128, SWAP=True), {"batch": (3, 2), "b_batch": (1, 2)}),
            ("NN", tile(128, 192, SWAP=True), {"bias": True, "activation": "gelu"}),
            ("TT", tile(128, 64, warps=4, PARTS=2), {}),
            ("TT", tile(64, 8, 64, warps=4), {"out_dtype": "bf16"}),
        )
    ]
    expect_no_faults(drawn(jobs, 6), "mix")


@pytest.mark.host
def test_wgmma_takes_a_from_registers_that_are_loaded_in_turns():
    """Each half of a step has registers of its own, which a wait precedes."""
    (code,) = asm.compile_many(
        [asm.Job("warp_specialized", 90, *EVEN, "TT", "fp32", precision="tf32")], apart=True
    )
    fragments_of = re.findall(r"HGMMA\.64x256x8\.F32\.TF32 R\d+, R(\d+), gdesc", code.sass)
    assert len(set(fragments_of)) == 4
    words = r"WARPGROUP\.DEPBAR\.LE gsb0, 0x\d|LDS R|HGMMA"
    order = [word.split(" R")[0] for word in re.findall(words, code.sass)]
    loop = order[order.index("LDS") :]
    half = ["LDS"] * 8 + ["HGMMA"] * 2 + ["WARPGROUP.DEPBAR.LE gsb0, 0x1"]
    assert loop[:22] == half * 2


@pytest.mark.parametrize(("rows", "warps"), [(64, 4), (128, 4), (128, 8), (256, 8)])
def test_lanes_load_each_bank_once(rows, warps):
    """A tile's lines of 32 rows are swizzled: 16 bytes of line k stand k % 8 places further."""
    layout = fragments.load_layout(rows, 16, warps)
    lanes = [(0, 0)]
    for m, k in layout.lane_bases:
        lanes += [(row ^ m, line ^ k) for row, line in lanes]
    assert len({((m // 4 ^ k) % 8, m % 4) for m, k in lanes}) == 32
    bases = layout.reg_bases + layout.lane_bases + layout.warp_bases
    assert sorted(m for m, k in bases if m) == [1 << i for i in range(rows.bit_length() - 1)]
    assert sorted(k for m, k in bases if k) == [1, 2, 4, 8]


@pytest.mark.gpu
@pytest.mark.parametrize(("rung", "config"), GIVEN)
@pytest.mark.parametrize("size", [(516, 260, 1028), (1028, 1004, 36), (260, 4, 2052), (4, 12, 4)])
def test_products(rung, config, size):
    """Several tiles and rounds of the ring, edges inside a line, fewer steps than stages."""
    M, N, K = size
    a, b = operands(M, N, K, torch.float32, "TT")
    kernel = dispatch.find(rung)
    splits = (1, 3) if rung == "split_k" and K > 1000 else (1,)
    for split in splits:
        given = dataclasses.replace(config, SPLIT_K=split)
        assert run(kernel, a, b, precision="tf32", config=given) is None
        assert run(kernel, a, b, precision="tf32", config=given, transposed=True) is None


@pytest.mark.gpu
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("parts", [1, 2])
def test_bits_are_those_of_a_copy_along_k(rung, parts):
    """Whether WGMMA reads A in registers or in shared memory, and with which rows it does."""
    for M, N, K in ((516, 260, 1028), (2052, 1540, 2048)):
        a, b = operands(M, N, K, torch.float32)
        for config in [c for name, c in GIVEN if name == rung and c.BLOCK_K == 32]:
            if config.BLOCK_M * config.BLOCK_N > 2**14 and parts > 1:
                continue
            given = dataclasses.replace(config, PARTS=parts)
            options = {"kernel": rung, "precision": "tf32"}
            want = tritemm.matmul(b.mT.contiguous(), a.mT, config=given, **options)
            got = tritemm.matmul(b.mT, a.mT, config=given, **options)
            assert torch.equal(got, want), (config, M, N, K)
            exchanged = dataclasses.replace(given, SWAP=True)
            assert torch.equal(tritemm.matmul(a, b, config=exchanged, **options), want.mT)
