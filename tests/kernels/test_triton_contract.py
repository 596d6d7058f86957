"""What kernels of clusters compile to; and what `triton_contract` relies on, in the PTX."""

import collections
import dataclasses
import re

import pytest

from tests.kernels.test_cluster import CUT, FEW, ROW, WIDE, rung_of
from tests.kernels.test_cluster_split_k import SIZES, shape
from tests.kernels.test_signs import faults
from tests.sweep import EVERY, drawn
from tritemm.arch import clusters
from tritemm.compile import asm
from tritemm.kernels.device import cluster_mainloop, triton_contract
from tritemm.spec import Config

pytestmark = [pytest.mark.host, pytest.mark.latest]

#: Widths and depths that cluster_split_k doesn't offer, with slabs of one and two.
OTHERS = (
    Config(64, 40, 192, num_warps=4, num_stages=3, ORDER="grouped", SPLIT_K=3),
    Config(256, 112, 64, num_warps=8, num_stages=3, ORDER="grouped", SPLIT_K=2),
    Config(128, 176, 64, num_warps=4, num_stages=3, ORDER="grouped", SPLIT_K=7),
    Config(192, 160, 64, num_warps=12, num_stages=3, ORDER="grouped", SPLIT_K=5),
)
#: Of each rung one with batches, whose descriptors have more sizes and strides.
BATCHED = (
    ("cluster", WIDE[0]), ("cluster_pingpong", WIDE[1]), ("multicast_split_k", CUT[2]),
    ("cluster_split_k", OTHERS[0]),
)  # fmt: skip


def jobs():
    """Configs of each rung in each layout, and some that stand out.

    Of those that are offered a few in turns; with TRITEMM_SWEEP=all every one in each layout.
    """
    for i, layout in enumerate(asm.LAYOUTS):
        for rung in ("cluster", "cluster_pingpong"):
            own = asm.configs_of(asm.Job(rung, layout=layout))
            fitted = asm.configs_of(asm.Job(rung, layout=layout, **ROW))
            fitted = [c for c in fitted if c not in own]
            usual = [asm.Job(rung, layout=layout, config=config) for config in own]
            others = [asm.Job(rung, layout=layout, config=c, **ROW) for c in fitted[:1]]
            if EVERY:
                yield from usual + others
            else:
                yield from others if i % 2 else usual[i : i + 1]
        yield asm.Job(rung_of(WIDE[i]).name, layout=layout, config=WIDE[i])
        yield asm.Job("multicast_split_k", layout=layout, config=CUT[i], **FEW)
        own = {}
        for M, N, K in SIZES:
            job = asm.Job("cluster_split_k", layout=layout, M=M, N=N, K=K)
            for config in asm.configs_of(job):
                tile = config.BLOCK_M, config.BLOCK_N
                own.setdefault(tile, dataclasses.replace(job, config=config))
        yield from list(own.values())[slice(None) if EVERY else slice(i, None, 8)]
        yield dataclasses.replace(job, config=OTHERS[i])
        rung, config = BATCHED[i]
        yield asm.Job(rung, layout=layout, batch=(3,), config=config)


@pytest.fixture(scope="module")
def codes():
    """Pairs of a job and its code."""
    kinds = collections.defaultdict(list)
    for job in jobs():
        kinds[job.rung, bool(job.batch)].append(job)
    some = [job for kind in kinds.values() for job in drawn(kind, 2)]
    return list(zip(some, asm.compile_many(some, apart=True), strict=True))


def consumers_of(job):
    """Those of a cluster take turns where a tile has four warps, so there are two at least."""
    count = job.config.num_warps // 4
    return count if job.rung == "cluster_split_k" else max(count, 2)


def ring_of(job):
    """Bytes of the allocation that the kernel addresses by itself."""
    return (shape(job).RING + cluster_mainloop.BARRIERS).value


def test_one_wgmma_is_as_wide_as_the_tile(codes):
    for job, code in codes:
        assert faults(code) == [], job
        c = job.config
        count = consumers_of(job) * cluster_mainloop.slabs_of(c.BLOCK_M, c.num_warps)
        products = {name: n for name, n in code.variants.items() if name.startswith("HGMMA")}
        both = 2 * count * c.BLOCK_K // 16  # of the first step, and of those after it
        assert products == {f"HGMMA.64x{c.BLOCK_N}x16.F32.BF16": both}


def test_wgmma_is_not_serialised(codes):
    """A fence for each line's products, of the first step and of those after it, and two waits; a
    serialised one has many of both, and zeros would be written before it.

    What consumers of cluster_split_k do alike may be shared code.
    """
    for job, code in codes:
        consumers = consumers_of(job)
        assert code.sass.count("WARPGROUP.ARRIVE") == 2 * consumers * job.config.BLOCK_K // 64
        assert code.count("CS2R") < job.config.BLOCK_N // 4
        least = consumers + 1 if job.rung == "cluster_split_k" else 2 * consumers
        assert least <= code.sass.count("WARPGROUP.DEPBAR") <= 2 * consumers


def test_registers_of_the_producer_are_uniform(codes):
    """Otherwise ptxas makes a loop over the threads of every load, 110 cycles each."""
    assert not [job for job, code in codes if "BRA.U.ANY" in code.sass]


def boxes(lines, along_k):
    """Boxes of a tile: one of all its lines, or one for 64 of them."""
    return 1 if along_k else -(-lines // 64)


def test_what_is_shared_is_multicast(codes):
    for job, code in codes:
        if job.rung == "cluster_split_k":
            continue
        shared = clusters.Multicast(asm.problem_of(job), job.config).shared
        tiles = {
            "a": boxes(job.config.BLOCK_M, job.layout[0] == "N"),
            "b": boxes(job.config.BLOCK_N, job.layout[1] == "T"),
        }
        many = sum(n for name, n in code.variants.items() if "MULTICAST" in name)
        assert many == tiles[shared] and code.count("UTMALDG") == sum(tiles.values())


def test_sums_go_from_registers_to_the_other_programs(codes):
    """16 bytes of a thread for 8 columns of each slab; nothing goes by way of device memory.

    Some of the consumers may share the code.
    """
    for job, code in codes:
        if job.rung == "cluster_split_k":
            c, consumers = job.config, consumers_of(job)
            sent = code.sass.count("STAS.128")
            once = c.BLOCK_M // 64 * c.BLOCK_N // 8 // consumers
            assert sent % once == 0 and 1 <= sent // once <= consumers
            assert not code.count("LDG") and not code.count("ATOM") and not code.count("RED")


def test_shared_memory_begins_at_a_symbol_with_the_largest_allocation(codes):
    """The words of `keep` are stored at their distance from the symbol: so it stands first."""
    for job, code in codes:
        assert re.search(r"\.extern \.shared \.align \d+ \.b8 global_smem\[\];", code.ptx)
        assert "mov.u32 %r" in code.ptx and ", global_smem;" in code.ptx
        kept = ring_of(job) - 4 * 128
        assert re.search(rf"\[%r\d+ ?\+ ?{kept}\]|, {kept};", code.ptx)


def test_nothing_else_has_a_place_in_it(codes):
    """C's buffers, which are used at the end only, lie beside it."""
    for job, code in codes:
        of = shape(job)
        buffers = of.CONSUMERS.value * of.BUFFERS.value * 64 * of.EPI_N.value * 2
        assert code.shared >= ring_of(job) + buffers


def test_parameters_have_the_kernel_s_name_and_their_place(codes):
    for job, code in codes:
        name = job.kernel.fn.__name__
        assert re.search(rf"\.entry {name}\(", code.ptx)
        for operand in "ab":
            tensor_map = triton_contract.tensor_map(name, operand, bool(job.batch))
            assert re.search(rf"\.param \.align \d+ \.b8 {tensor_map}\[128\]", code.ptx)
            assert re.search(rf"mov\.b64 map, {tensor_map};", code.ptx)
