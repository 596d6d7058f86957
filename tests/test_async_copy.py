"""The rung whose producers are threads: what they copy with, and for which problems."""

import re

import pytest
import torch

from tritemm import asm, candidates, dispatch
from tritemm.kernels import k17_async_copy
from tritemm.problem import Problem

from .choosing import H200, problem

KERNEL = k17_async_copy.KERNEL


@pytest.fixture(scope="module")
def codes():
    """job -> its code: a third of the tiles in each layout, with pitches of 8 elements and more."""
    jobs = []
    for i, layout in enumerate(asm.LAYOUTS):
        job = asm.Job("async_copy", M=2056, N=1048, K=2104, layout=layout)
        found = {(c.BLOCK_M, c.BLOCK_N): c for c in asm.configs_of(job)}
        jobs += [
            job.__class__(**vars(job) | {"config": c}) for c in list(found.values())[i % 3 :: 3]
        ]
    return dict(zip(jobs, asm.compile_many(jobs, processes=2), strict=True))


def test_every_copy_is_16_bytes_wide(codes):
    """As many as the tiles of A and B have, 128 threads at a time; and one arrival of each."""
    for job, code in codes.items():
        c = job.config
        sixteens = (c.BLOCK_M + c.BLOCK_N) * c.BLOCK_K * 2 // 16
        assert set(re.findall(r"cp\.async\.c[ag]\.[^;]*\], (0x\w+|\d+), ", code.ptx)) == {"0x10"}
        assert code.variants["LDGSTS.E.BYPASS.128"] == code.count("LDGSTS") == sixteens // 128
        assert len(re.findall(r"cp\.async\.mbarrier\.arrive\.noinc", code.ptx)) == 1
        assert code.fits and not code.spills and not code.local


def test_wgmma_is_told_of_what_threads_wrote(codes):
    """A fence for each step, behind the wait and before the first product of the loop."""
    for code in codes.values():
        loop = code.ptx[: code.ptx.index("wgmma.mma_async")]
        assert loop.rfind("fence.proxy.async") > loop.rfind("mbarrier.try_wait") > 0


def test_it_is_considered_where_lines_straddle_those_of_l2():
    def names(*size, **options):
        return {rung.name for rung, _ in candidates.candidates(problem(*size, **options))}

    assert "async_copy" not in names(2048, 2048, 2048)
    assert "async_copy" in names(2056, 2056, 2056)
    assert "async_copy" in names(2048, 2048, 2064)
    assert "async_copy" in names(2048, 2056, 2048, layout="NN")
    assert "async_copy" not in names(2056, 2056, 2048), "K is the pitch of both"
    assert dispatch.choose(problem(2048, 2048, 2048), "async_copy").kernel is KERNEL


@pytest.mark.parametrize(
    ("size", "layout", "message"),
    [
        ((64, 64, 100), "NT", "multiple of 16"),
        ((64, 60, 64), "NN", "multiple of 16"),
    ],
)
def test_what_threads_cannot_copy_is_refused(size, layout, message):
    with pytest.raises(ValueError, match=message):
        dispatch.choose(problem(*size, layout=layout), "async_copy")


def test_lines_that_end_between_16_bytes_are_refused():
    """Though the next one begins on a boundary, and the copy engine takes them."""
    a = torch.empty(64, 104, dtype=torch.bfloat16, device="meta")[:, :100]
    b = torch.empty(64, 104, dtype=torch.bfloat16, device="meta")[:, :100].mT
    c = torch.empty(64, 64, dtype=torch.bfloat16, device="meta")
    asked = Problem.of(a, b, c, device=H200)
    with pytest.raises(ValueError, match="a's rows have 100 elements; they are copied 8 at a time"):
        dispatch.choose(asked, "async_copy")
    assert dispatch.choose(asked, "split_k")
