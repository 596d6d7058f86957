"""The rung whose clusters share K: who adds up what, and what fits."""

import itertools
import re

import pytest
import torch

from tests.dispatch.choosing import H200, matrix, problem
from tritemm import dispatch
from tritemm.arch.exchange import Exchanging
from tritemm.arch.gpus import clusters_at_once
from tritemm.compile import asm
from tritemm.kernels import k18_cluster_split_k
from tritemm.kernels.device import exchange, wgmma
from tritemm.problem import Problem
from tritemm.spec import Config

pytestmark = pytest.mark.host

KERNEL = k18_cluster_split_k.KERNEL
#: M, N, K where every tile is offered, with many numbers of programs.
SIZES = ((128, 6144, 4096), (768, 768, 65536), (1872, 280, 8128), (8192, 16, 8192), (1280, 8, 8192))


def shape(job):
    """As the kernel of a cluster sees it."""
    return job.kernel.arguments.fixed(asm.problem_of(job), job.config)["SHAPE"]


# Who adds up what


def sent(shape, program, slab):
    """(receiver, bytes from the first slot) -> columns, of what a thread of a slab hands out."""
    slots = {}
    unit = wgmma.unit(shape.BLOCK_N)
    slot = exchange.slot_bytes(shape)
    for part in range(shape.BLOCK_N // unit):
        text = exchange._send_text(unit // 2, part, shape)
        receiver = None
        for line in text.splitlines():
            if found := re.match(r"mapa.shared::cluster.u32 to, base, (\d+);", line):
                receiver = int(found[1])
            elif found := re.match(r"st\.async.* \[to \+ (\d+)\], \{(.*)\}, \[full\];", line):
                first = int(found[2].split(",")[0].removeprefix("$"))
                place = program * slot + slab * 256 * shape.EPI_N + int(found[1])
                assert (receiver, place) not in slots
                slots[receiver, place] = part * unit + first * 2
    return slots


def added(shape, nth, slab):
    """Bytes from the first slot of what a thread adds up of a piece, for each 8 columns."""
    slot = exchange.slot_bytes(shape)
    text = exchange._receive_text(shape)
    first = nth * shape.SPLIT_K * slot + slab * 256 * shape.EPI_N
    places = [first + int(at) for at in re.findall(r"ld\.shared.*\[at \+ (\d+)\];", text)]
    return [places[i :: shape.EPI_N // 8] for i in range(shape.EPI_N // 8)]


@pytest.mark.parametrize("columns", [8, 24, 40, 96, 128, 192, 256])
@pytest.mark.parametrize("programs", range(2, 9))
def test_each_program_adds_up_what_all_found_in_their_order(columns, programs):
    config = Config(128, columns, 64, num_warps=8, num_stages=4, SPLIT_K=programs)
    job = asm.Job("cluster_split_k", layout="NT", config=config)
    asked = shape(job)
    slabs = range(asked.BLOCK_M // 64)
    slots = [[sent(asked, program, slab) for slab in slabs] for program in range(programs)]
    written = [place for one in slots for places in one for place in places]
    assert len(written) == len(set(written)), "a slot is written twice"
    size = Exchanging(asm.problem_of(job), config).slots
    assert all(place >= 0 and place + 2048 <= size for _, place in written)
    pieces = columns // asked.EPI_N
    for piece, slab in itertools.product(range(pieces), slabs):
        nth, receiver = divmod(piece, programs)
        for i, places in enumerate(added(asked, nth, slab)):
            assert len(places) == programs
            found = [slots[p][slab][receiver, place] for p, place in enumerate(places)]
            assert found == [piece * asked.EPI_N + 8 * i] * programs
    for rank in range(programs):  # its barrier counts the bytes that are sent
        own = (pieces - 1 - rank + programs) // programs
        count = 16 * 128 * sum(receiver == rank for receiver, _ in written)
        assert count == own * programs * exchange.slot_bytes(asked) < 2**20


# What fits


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", asm.LAYOUTS)
def test_what_is_offered_fits(size, layout):
    asked = problem(*size, layout=layout)
    offered = KERNEL.configs(asked)
    assert offered
    for config in offered:
        assert config.tiles(asked) <= clusters_at_once(config.SPLIT_K, H200)
        assert KERNEL.clusters(config) == config.SPLIT_K


@pytest.mark.parametrize("rung", ["multicast_split_k", "cluster_split_k"])
def test_a_problem_of_many_tiles_or_few_steps_has_a_config_all_the_same(rung):
    """For who asks for the rung by name; one of a single step of K is refused."""
    kernel = dispatch.find(rung)
    for size in [(8192, 8192, 8192), (64, 64, 65)]:
        asked = problem(*size)
        (config,) = kernel.configs(asked)
        assert config.SPLIT_K == 2 and kernel.config_why_not(asked, config) is None
        assert not kernel.policy.suits(asked)
    with pytest.raises(ValueError, match=r"K is 64; .* needs at least two steps of 64"):
        dispatch.choose(problem(64, 64, 64), rung)


@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("M", [64, 511, 1000])
def test_no_sums_reach_the_barriers(layout, M):
    """A wide C stored by columns, whose pieces leave little room for stages."""
    b = matrix(4096, 1280, layout[1], torch.bfloat16)
    asked = Problem.of(
        matrix(M, 4096, "N", torch.bfloat16), b, matrix(M, 1280, "T", torch.float32), device=H200
    )
    offered = [*KERNEL.configs(asked), *KERNEL.in_one_order(asked, 5)]
    assert offered
    for config in offered:
        assert KERNEL.config_why_not(asked, config) is None, config
