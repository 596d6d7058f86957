"""The rungs on mma.sync by hand: layouts of shared memory, configs that they take, barriers."""

import dataclasses
import itertools

import pytest
import torch

from docs.pictures.banks import BANKS, CHUNK, place, ways
from tests.dispatch.choosing import H200, L40S, matrix, problem
from tests.kernels.test_signs import expect_no_faults, per_config
from tests.sweep import EVERY
from tritemm.compile import asm
from tritemm.dispatch.request import why_not
from tritemm.kernels.device import mma_sync
from tritemm.problem import Problem
from tritemm.rungs import find
from tritemm.spec import Config

pytestmark = pytest.mark.host

RINGS = {"permuted": (1,), "async": (1,), "async_pg2s": (2,), "async_stages": (4, 3, 2)}


@pytest.mark.parametrize("side", ["K", "L"])
@pytest.mark.parametrize("depth", [16, 32, 64, 128])
@pytest.mark.parametrize("lines", [16, 64, 128, 256])
def test_only_plain_tiles_have_bank_conflicts(lines, depth, side):
    inner = depth if side == "K" else lines
    assert ways("permuted", lines, depth, side) == 1
    assert ways("padded", lines, depth, side) == 1
    assert ways("plain", lines, depth, side) == 8 * min(inner * 2, BANKS) // BANKS


@pytest.mark.parametrize("kind", ["plain", "padded", "permuted"])
def test_a_layout_gives_each_chunk_its_own_place(kind):
    layout = mma_sync.shared_layout(kind, 64, 32, "K")
    places = [place(layout, row, chunk, 32) for row in range(64) for chunk in range(4)]
    assert len(set(places)) == len(places) and not any(at % CHUNK for at in places)


@pytest.mark.parametrize(("name", "stages"), RINGS.items())
def test_a_rung_has_the_stages_that_it_says(name, stages):
    rung, asked = find(name), problem(4096, 4096, 4096, "NT", torch.float16)
    assert tuple(dict.fromkeys(c.num_stages for c in rung.configs(asked))) == stages
    first = dataclasses.replace(rung.configs(asked)[0], BLOCK_M=128)
    for count in range(1, 6):
        reason = why_not(rung, asked, dataclasses.replace(first, num_stages=count))
        assert (reason is None) == (count in stages)
        assert reason is None or reason.startswith(f"num_stages is {count}; ")


def test_the_output_in_place_of_the_tiles_fits_too():
    asked = problem(4096, 4096, 4096, "NT", torch.float16, L40S)
    wide = dataclasses.replace(asked, c=dataclasses.replace(asked.c, dtype=torch.float32))
    rung = find("async")
    assert [rung.configs(view)[0].BLOCK_M for view in (asked, wide)] == [256, 128]
    large = rung.configs(asked)[0]
    assert why_not(rung, asked, large) is None
    assert "don't fit into shared memory" in why_not(rung, wide, large)


def test_padding_is_counted_on_the_side_that_it_lengthens():
    asked = problem(4096, 4096, 4096, "TN", torch.float16, L40S)
    config = Config(64, 32, 512, 8, SHARED="padded")
    assert "don't fit into shared memory" in why_not(find("permuted"), asked, config)
    along_k = problem(4096, 4096, 4096, "NT", torch.float16, L40S)
    assert why_not(find("permuted"), along_k, config) is None


@pytest.mark.parametrize("name", [*RINGS, "async_pg2s_ps2r"])
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_single_elements_are_few_for_each_thread(name, layout):
    """Slices of wider matrices, whose lines are no whole number of chunks."""
    rung = find(name)
    a, b = matrix(1001, 1016, "N", torch.float16), matrix(1016, 1016, "N", torch.float16)
    a, b = a[:, :1001], b[:1001, :1003]
    a, b = (a, b.mT[:1001, :1001].mT) if layout == "TN" else (a, b)
    asked = Problem.of(a, b, matrix(1001, b.shape[1], "N", torch.float16), device=H200)
    first = rung.configs(asked)[-1]
    assert why_not(rung, asked, first) is None and first.BLOCK_M <= 128
    large = dataclasses.replace(first, BLOCK_M=128, BLOCK_N=128, BLOCK_K=128)
    assert "single elements of A and B per thread" in why_not(rung, asked, large)


@pytest.mark.wide
@pytest.mark.parametrize("layout", asm.LAYOUTS)
def test_own_configs_have_no_local_memory(layout):
    """Every config; the architectures take turns with configs and layouts, unless all is swept."""
    jobs = []
    for name in ("async_pg2s", "async_stages"):
        jobs += per_config(asm.Job(name, 90, layout=layout, dtype="fp16"))
    turns = itertools.cycle([80, 90] if asm.LAYOUTS.index(layout) % 2 == 0 else [90, 80])
    jobs = [
        dataclasses.replace(job, sm=sm)
        for job in jobs
        for sm in ((80, 90) if EVERY else (next(turns),))
    ]
    expect_no_faults(jobs, "usage")


@pytest.mark.parametrize(("index", "stages"), [(0, 4), (1, 3), (2, 2)])
def test_a_ring_has_one_barrier_for_each_step(index, stages):
    """Its loop is a round; what isn't in it is the prologue's and the epilogue's."""
    job = asm.Job("async_stages", 80, layout="NT", dtype="fp16", config=index)
    code = asm.compile_many([job], "text", apart=True)[0]
    loop = code.sass[: code.sass.rindex("HMMA")]
    assert code.count("HMMA") == 64 * stages
    assert loop.count("BAR.SYNC") == 1 + stages
