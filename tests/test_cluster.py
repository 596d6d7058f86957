"""The rung whose programs come in clusters: what it compiles to, and how it is launched."""

import importlib
import re
import types

import pytest

from tritemm import asm, dispatch, triton_private
from tritemm.kernels import _cluster, k15_cluster
from tritemm.spec import Config

from .choosing import H200, problem

KERNEL = k15_cluster.KERNEL
LAYOUTS = ("NT", "NN", "TN", "TT")
#: BLOCK_N, not a power of two, with slabs of one and two, shared and in turns.
WIDE = (
    Config(128, 80, 64, num_warps=8, num_stages=3, ORDER="grouped"),
    Config(64, 240, 64, num_warps=4, num_stages=3, ORDER="grouped"),
    Config(256, 112, 64, num_warps=8, num_stages=3, ORDER="grouped"),
    Config(192, 176, 64, num_warps=12, num_stages=3, ORDER="grouped"),
)


@pytest.fixture(scope="module")
def codes():
    """(layout, config) -> code, of every config in half of the layouts, and of some others."""
    jobs = []
    for i, layout in enumerate(LAYOUTS):
        own = asm.configs_of(asm.Job("cluster", layout=layout))
        jobs += [asm.Job("cluster", layout=layout, config=c) for c in own[i % 2 :: 2]]
        jobs.append(asm.Job("cluster", layout=layout, config=WIDE[i]))
    found = asm.compile_many(jobs, processes=2)
    return {(job.layout, job.config): code for job, code in zip(jobs, found, strict=True)}


def test_one_wgmma_is_as_wide_as_the_tile(codes):
    for (_, config), code in codes.items():
        (product,) = (name for name in code.variants if name.startswith("HGMMA"))
        assert product == f"HGMMA.64x{config.BLOCK_N}x16.F32.BF16"
        assert code.fits and not code.spills and not code.local


def test_half_of_b_is_multicast(codes):
    """By the one boxes that K's lines make, or by 64 columns and 32 of K."""
    for (layout, config), code in codes.items():
        columns = config.BLOCK_N
        boxes = columns // 2 // (columns // 2 & -(columns // 2))
        boxes = boxes if layout[1] == "T" else -(-columns // 64)
        many = sum(n for name, n in code.variants.items() if "UTMALDG.2D.MULTICAST" in name)
        assert (many, code.count("UTMALDG")) == (boxes, boxes + config.BLOCK_M // 64)


def test_registers_of_the_producer_are_uniform(codes):
    """Otherwise ptxas makes a loop over the threads of every load, 110 cycles each."""
    for code in codes.values():
        assert "BRA.U.ANY" not in code.sass


def test_wgmma_is_not_serialised(codes):
    """One fence for each step's products; a serialised one has a fence and a wait for each."""
    for (_, config), code in codes.items():
        consumers = k15_cluster.consumers_of(config.num_warps)
        slabs = k15_cluster.slabs_of(config.BLOCK_M, config.num_warps)
        assert code.count("HGMMA") == consumers * slabs * 4
        assert code.sass.count("WARPGROUP.ARRIVE") == consumers
        assert code.sass.count("WARPGROUP.DEPBAR") == 2 * consumers


def test_the_ring_is_where_shared_memory_begins(codes):
    """The kernel addresses it so, and the word that Gluon writes shows where Gluon put it."""
    for (layout, config), code in codes.items():
        lines = k15_cluster.b_lines(config.BLOCK_N, layout[1])
        ring = _cluster.ring_bytes(config.num_stages * 128 * (config.BLOCK_M + lines))
        assert re.search(rf"\[%r\d+ ?\+ ?{ring - 512}\]|, {ring - 512};", code.ptx)


def test_tensor_maps_are_the_parameters_that_are_named(codes):
    batched = asm.compile_problem(asm.Job("cluster", layout="NT", batch=(3,)))
    for code, many in [(batched, True), (codes["NT", WIDE[0]], False)]:
        for operand in "ab":
            name = _cluster.map_of("cluster_kernel", operand, many)
            assert re.search(rf"\.param \.align \d+ \.b8 {name}\[128\]", code.ptx)
            assert re.search(rf"mov\.b64 map, {name};", code.ptx)


def test_the_grid_counts_clusters():
    config = Config(128, 256, 64, num_warps=8, num_stages=4, ORDER="grouped")
    assert KERNEL.grid(problem(128, 256, 64), config) == 1
    assert KERNEL.grid(problem(257, 512, 64), config) == 4
    assert KERNEL.grid(problem(8192, 8192, 64), config) == H200.sms // 2


def test_short_k_is_for_consumers_that_take_turns():
    choice = dispatch.choose(problem(25216, 3072, 1024))
    assert (choice.kernel.name, choice.config.num_warps) == ("cluster", 4)


def compiled(programs=1, made_for=1):
    metadata = types.SimpleNamespace(num_ctas=made_for)
    return types.SimpleNamespace(packed_metadata=(8, programs, 1024), metadata=metadata)


def test_a_compiled_kernel_is_told_to_come_in_clusters():
    kernel = compiled()
    for _ in range(2):
        triton_private.in_clusters(kernel, 2)
        assert kernel.packed_metadata == (8, 2, 1024)


def test_a_launcher_that_moved_refuses(monkeypatch):
    backend = importlib.import_module("triton.backends.nvidia.compiler").CUDABackend
    asked = problem(512, 512, 512)
    assert KERNEL.why_not(asked) is None
    try:
        monkeypatch.setattr(backend, "pack_metadata", lambda self, metadata: (metadata.shared,) * 3)
        triton_private.clusters_why_not.cache_clear()
        with pytest.raises(ValueError, match="can't be told to launch clusters"):
            dispatch.choose(asked, "cluster")
    finally:
        monkeypatch.undo()
        triton_private.clusters_why_not.cache_clear()


@pytest.mark.parametrize("kernel", [compiled(programs=4), compiled(2, made_for=2)])
def test_metadata_that_moved_are_not_changed(kernel):
    before = kernel.packed_metadata
    with pytest.raises(triton_private.Moved, match="metadata are"):
        triton_private.in_clusters(kernel, 2)
    assert kernel.packed_metadata == before
