"""The rungs whose clusters share loads: who shares what, what is offered, how they are launched."""

import dataclasses
import importlib
import re
import types

import pytest
import torch

from tests.dispatch.choosing import H200, problem
from tritemm import dispatch
from tritemm.arch import clusters
from tritemm.arch.gpus import clusters_at_once
from tritemm.compile import asm
from tritemm.kernels import k15_cluster, k16_cluster_pingpong, k17_multicast_split_k
from tritemm.runtime import triton_private
from tritemm.spec import Config

pytestmark = pytest.mark.host

KERNEL = k15_cluster.KERNEL
IN_TURNS = k16_cluster_pingpong.KERNEL
IN_PARTS = k17_multicast_split_k.KERNEL
#: BLOCK_N, not a power of two, with slabs of one and two, shared and in turns; clusters of 2 and 4.
WIDE = (
    Config(128, 80, 64, num_warps=8, num_stages=3, ORDER="grouped", CLUSTER=2),
    Config(64, 240, 64, num_warps=4, num_stages=3, ORDER="grouped", CLUSTER=2),
    Config(256, 96, 64, num_warps=8, num_stages=3, ORDER="grouped", CLUSTER=4),
    Config(192, 88, 64, num_warps=12, num_stages=3, ORDER="grouped", CLUSTER=2),
)
#: K in parts, in each layout: together and not, shared and in turns, a power of two wide or not.
CUT = (
    Config(128, 160, 64, num_warps=8, num_stages=5, ORDER="grouped", CLUSTER=4, SPLIT_K=8),
    Config(64, 96, 64, num_warps=4, num_stages=8, ORDER="grouped", CLUSTER=2, SPLIT_K=2),
    Config(192, 112, 64, num_warps=12, num_stages=5, ORDER="grouped", CLUSTER=2, SPLIT_K=3),
    Config(256, 64, 64, num_warps=8, num_stages=5, ORDER="grouped", CLUSTER=2, SPLIT_K=40),
)
#: M, N, K of few tiles and a long K.
FEW = {"M": 920, "N": 136, "K": 8904}
#: M, N, K where C is one row of tiles, so that programs stand side by side and share A; its configs
#: are as wide as the problem asks for.
ROW = {"M": 64, "N": 5376, "K": 5080}


def rung_of(config):
    """The one that takes it."""
    if config.SPLIT_K > 1:
        return IN_PARTS
    return IN_TURNS if config.num_warps == 4 else KERNEL


def test_a_tile_is_one_box_whatever_its_lines(monkeypatch):
    """Its type has a power of two, which Gluon asks for; its tensor map has the lines."""
    asked, config = problem(640, 3584, 3584), Config(128, 112, 64, num_warps=8, CLUSTER=2)
    a, b, *_ = clusters.Multicast(asked, config).boxes
    assert (a.block, b.block) == ([128, 64], [112, 64])
    monkeypatch.setattr(torch.Tensor, "data_ptr", lambda tensor: 0)
    found = [box.gluon_descriptor(torch.empty(640, 3584, device="meta")) for box in (a, b)]
    assert [each.block_shape for each in found] == [[128, 64], [16, 64]]
    assert [getattr(each, "box", None) for each in found] == [None, [112, 64]]
    entries = [{"block_size": each.block_shape} for each in found]
    kernel = types.SimpleNamespace(metadata=types.SimpleNamespace(tensordesc_meta=entries))
    triton_private.in_boxes(kernel, [None, [112, 64]])
    assert [entry["block_size"] for entry in entries] == [[128, 64], [112, 64]]
    with pytest.raises(triton_private.Moved, match="boxes of"):
        triton_private.in_boxes(kernel, [[112, 64]])


def test_programs_stand_where_fewer_clusters_do():
    """Or else share the larger tiles."""
    tall = Config(128, 96, 64, num_warps=8, num_stages=4, ORDER="grouped", CLUSTER=2)
    wide = Config(64, 96, 64, num_warps=4, num_stages=4, ORDER="grouped", CLUSTER=2)
    for config, M, N, operand, count in [
        (tall, 128, 6144, "a", 32), (tall, 4096, 96, "b", 16), (tall, 256, 192, "a", 2),
        (wide, 64, 6144, "a", 32), (wide, 4096, 96, "b", 32), (wide, 128, 192, "b", 2),
    ]:  # fmt: skip
        asked = problem(M, N, 64)
        assert clusters.Multicast(asked, config).shared == operand
        assert KERNEL.grid(asked, config) == count


#: M, N of problems of up to two rounds, and of one too narrow for them.
FEW_TILES = [(128, 6144), (64, 5376), (6736, 39), (1152, 672), (2056, 2056), (8192, 200), (2000, 9)]


@pytest.mark.parametrize("rung", [k15_cluster, k16_cluster_pingpong, k17_multicast_split_k])
@pytest.mark.parametrize("size", FEW_TILES)
def test_tiles_fill_whole_rounds(rung, size):
    """Where one is offered that is not of the usual widths, a narrower one takes a round more.

    Where K is cut, there is one round, with all parts.
    """
    asked = problem(*size, 2048)
    offered = rung.KERNEL.configs(asked)
    usual = clusters.usual(asked, getattr(rung, "TILES", ()))
    usual += clusters.as_wide(asked, getattr(rung, "WIDE", ()))
    narrowest = min(least for *_, least, _ in rung.FITTED)
    fitted = [c for c in offered if c not in (*usual, *clusters.Split.for_any(asked))]
    assert fitted or min(size) < narrowest or rung is not k15_cluster
    for config in fitted:
        assert rung_of(config) is rung.KERNEL
        assert rung.KERNEL.config_why_not(asked, config) is None
        room = clusters_at_once(config.CLUSTER, H200) // config.SPLIT_K
        most = len(clusters.WAVES) if config.SPLIT_K == 1 else 1
        step = 8 if config.SPLIT_K == 1 else 16
        narrower = config.BLOCK_N - step
        for operand in "ba":
            rounds, more = (
                -(-clusters.Multicast(asked, c)._clusters(operand) // room)
                for c in (config, dataclasses.replace(config, BLOCK_N=max(narrower, 1)))
            )
            if rounds <= most and (more > rounds or narrower < clusters.SMALLEST[1]):
                break
        else:
            pytest.fail(f"{config} fills no whole rounds")
    assert len(offered) == len(set(offered))


def test_the_tile_of_a_row_of_tiles_is_as_narrow_as_a_round_allows():
    def offered(*size):
        return {(c.BLOCK_M, c.BLOCK_N, c.CLUSTER) for c in IN_TURNS.configs(problem(*size))}

    assert (64, 96, 2) in offered(128, 6144, 4096)
    assert (64, 40, 4) in offered(6736, 39, 3248)


def test_few_tiles_are_cut_along_k():
    asked = problem(**FEW, layout="NN")
    cut = IN_PARTS.configs(asked)
    assert {config.SPLIT_K for config in cut} == set(clusters.COUNTS)
    assert IN_PARTS.policy.suits(asked)
    for config in cut:
        assert clusters.Multicast(asked, config).together
        assert IN_PARTS.grid(asked, config) % config.SPLIT_K == 0
    short = problem(FEW["M"], FEW["N"], 16 * 64 - 8, "NN")
    assert not IN_PARTS.policy.suits(short), "parts of 8 steps or more"


def test_a_c_of_a_few_clusters_is_cut_into_as_many_parts_as_fill_the_sms():
    asked = problem(384, 384, 2686391, "TN")
    deep = [c for c in IN_PARTS.configs(asked) if max(clusters.COUNTS) < c.SPLIT_K]
    found = {(c.BLOCK_M, c.BLOCK_N, c.CLUSTER, c.SPLIT_K) for c in deep}
    assert {(192, 192, 2, 33), (128, 192, 2, 22), (192, 96, 4, 15)} <= found
    assert all(clusters.Multicast(asked, config).together for config in deep)
    assert all(IN_PARTS.config_why_not(asked, config) is None for config in deep)


def test_each_consumer_has_room_for_its_sums_and_a_counter():
    """Accumulators of each program, and of what lies outside C too."""
    config = CUT[2]
    programs = 5 * 2  # tiles of 192 x 112, in pairs side by side
    room = IN_PARTS.workspace(problem(**FEW), config)
    assert room.sums == programs * 3 * 192 * 112
    assert room.counters >= programs * 3
    assert KERNEL.workspace is IN_TURNS.workspace is None


def test_k_has_a_step_for_every_part():
    config = dataclasses.replace(CUT[1], SPLIT_K=9)
    assert IN_PARTS.config_why_not(problem(64, 96, 64 * 8 + 8), config) is None
    reason = IN_PARTS.config_why_not(problem(64, 96, 64 * 8), config)
    assert reason == "SPLIT_K is 9; K = 512 has 8 steps of 64"
    assert "up to 2**28 - 16" in IN_PARTS.config_why_not(problem(8, 8, 2**28), config)


def test_the_grid_counts_clusters():
    config = Config(128, 256, 64, num_warps=8, num_stages=4, ORDER="grouped", CLUSTER=2)
    assert KERNEL.grid(problem(128, 256, 64), config) == 1
    assert KERNEL.grid(problem(257, 512, 64), config) == 3
    assert KERNEL.grid(problem(8192, 8192, 64), config) == H200.sms // 2
    fours = dataclasses.replace(config, BLOCK_N=128, CLUSTER=4)
    assert KERNEL.grid(problem(8192, 8192, 64), fours) == clusters_at_once(4, H200) == 30


@pytest.mark.parametrize(
    ("size", "tile", "programs", "parts", "late"),
    [
        ((4608, 80, 3584), (64, 80), 4, 1, True),  # 18 clusters; 30 have room
        ((3584, 129, 3584), (64, 72), 4, 1, True),  # 28
        ((3072, 352, 5120), (128, 72), 4, 1, False),  # 30, which leave 12 SMs free
        ((4096, 64, 4096), (64, 64), 4, 1, True),  # 16
        ((4096, 64, 4096), (64, 64), 2, 1, False),  # 32, and 66 have room
        ((5120, 96, 5120), (64, 96), 2, 1, True),  # 40
        ((8192, 257, 1024), (128, 136), 2, 1, False),  # 64, which leave 4 SMs free
        ((392, 2880, 4096), (64, 136), 4, 1, False),  # more than have room
        ((4608, 80, 3584), (64, 80), 4, 2, False),
    ],
)
def test_the_next_launch_is_let_in_late_where_it_fits_in_part(size, tile, programs, parts, late):
    config = Config(*tile, 64, num_stages=4, CLUSTER=programs, SPLIT_K=parts)
    found = clusters.Multicast(problem(*size), config)
    assert found.late is late


def lines_before(ptx, word):
    """The lines of a kernel that run before any with `word`, along its branches."""
    lines = ptx.splitlines()
    labels = {m[1]: at for at, line in enumerate(lines) if (m := re.match(r"(\$L\w+):", line))}
    unread, found = [0], set()
    while unread:
        at = unread.pop()
        if at in found or word in lines[at]:
            continue
        found.add(at)
        branch = re.match(r"\s*(@\S+\s+)?bra(?:\.uni)?\s+(\$L\w+);", lines[at])
        if branch:
            unread.append(labels[branch[2]])
        if not re.match(r"\s*(bra|brx|ret|exit)\b", lines[at]) and at + 1 < len(lines):
            unread.append(at + 1)
    return [lines[at] for at in found]


@pytest.mark.parametrize("size", [(4608, 80, 3584), (8192, 80, 3584)], ids=["late", "early"])
def test_it_is_let_in_once_the_tile_is_multiplied(size):
    """By one consumer, when it has begun to multiply, or when the kernel begins."""
    M, N, K = size
    config = Config(64, 80, 64, num_stages=4, ORDER="grouped", CLUSTER=4)
    (code,) = asm.compile_many([asm.Job(IN_TURNS.name, 90, M, N, K, "NT", config=config)])
    let_in = "griddepcontrol.launch_dependents"
    early = any(let_in in line for line in lines_before(code.ptx, "wgmma.mma_async"))
    assert any(let_in in line for line in lines_before(code.ptx, "no such word"))
    assert code.ptx.count(let_in) == 1 and early == (M == 8192)


def test_short_k_is_for_consumers_that_take_turns():
    choice = dispatch.choose(problem(65536, 3072, 768))
    assert choice.kernel is IN_TURNS


def compiled(programs=1, made_for=1):
    metadata = types.SimpleNamespace(num_ctas=made_for)
    return types.SimpleNamespace(packed_metadata=(8, programs, 1024), metadata=metadata)


@pytest.mark.latest
def test_a_compiled_kernel_is_told_to_come_in_clusters():
    """Unless its metadata are not as expected: they stay."""
    kernel = compiled()
    for _ in range(2):
        triton_private.in_clusters(kernel, 2)
        assert kernel.packed_metadata == (8, 2, 1024)
    for kernel in (compiled(programs=4), compiled(2, made_for=2)):
        before = kernel.packed_metadata
        with pytest.raises(triton_private.Moved, match="metadata are"):
            triton_private.in_clusters(kernel, 2)
        assert kernel.packed_metadata == before


@pytest.mark.latest
def test_a_launcher_that_moved_refuses(monkeypatch):
    backend = importlib.import_module("triton.backends.nvidia.compiler").CUDABackend
    asked = problem(512, 512, 512)
    assert KERNEL.why_not(asked) is None
    monkeypatch.setattr(backend, "pack_metadata", lambda self, metadata: (metadata.shared,) * 3)
    asked_anew = triton_private.clusters_why_not.__wrapped__
    monkeypatch.setattr(clusters, "clusters_why_not", asked_anew)
    with pytest.raises(ValueError, match="doesn't launch clusters"):
        dispatch.choose(asked, "cluster")
