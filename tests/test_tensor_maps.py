"""Tensor maps are named in PTX: each by its own parameter, and all are announced."""

import dataclasses
import re

import pytest

from tritemm import asm
from tritemm.rungs import RUNGS

NAMES = [kernel.name for kernel in RUNGS if kernel.number >= 10 and kernel.name != "gemv"]
#: Layout, batch, N, the tile's columns if the rung has such a tile, and the tensor maps beside
#: those of A and B: one where B's columns come in two parts, one where C's rows are aligned.
CASES = [("NT", (), 1024, 128, 1), ("NN", (3,), 1024, 192, 2), ("TT", (), 1023, 192, 1)]


@pytest.fixture(scope="module")
def codes():
    """(rung, case) -> code."""
    jobs = {}
    for name in NAMES:
        for case in CASES:
            layout, batch, N, columns, _ = case
            job = asm.Job(name, layout=layout, batch=batch, M=1024, N=N, K=4096)
            own = asm.configs_of(job)
            config = next((c for c in own if columns == c.BLOCK_N), own[0])
            jobs[name, case] = dataclasses.replace(job, config=config)
    found = asm.compile_many(list(jobs.values()), processes=2)
    return dict(zip(jobs, found, strict=True))


def test_every_map_is_announced_once(codes):
    """Before warps take their roles, and before the kernel waits for the one before it."""
    for (name, case), code in codes.items():
        maps = re.findall(r"\.param \.align \d+ \.b8 (\w+)\[128\]", code.ptx)
        first = code.ptx.index("griddepcontrol.wait")
        announced = re.findall(
            r"mov\.b64 map, (\w+);\s+cvta\.param\.u64 map, map;\s+@one prefetch\.tensormap",
            code.ptx[:first],
        )
        assert announced == maps, (name, case)
        # WGMMA as wide as the tile has one map for B.
        assert len(maps) == 2 + (case[-1] if "cluster" not in name else case[2] % 2 == 0)
        assert code.count("UTMACCTL.PF") == len(maps)


@pytest.mark.parametrize("name", ["cluster", "cluster_split_k"])
def test_loads_name_their_maps(codes, name):
    for (rung, _), code in codes.items():
        if rung == name:
            a, b, *_ = re.findall(r"\.param \.align \d+ \.b8 (\w+)\[128\]", code.ptx)
            loads = re.findall(r"mov\.b64 map, (\w+);(?:(?!mov\.b64).)*?@one cp\.async\.bulk",
                               code.ptx, re.DOTALL)  # fmt: skip
            assert set(loads) == {a, b}
