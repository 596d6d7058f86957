"""The kernel for sm_100: its text on plain integers, and what it compiles to. It was never run."""

import re

import pytest

from docs.blackwell import machine, plain
from docs.blackwell.shape import VERSIONS

pytestmark = pytest.mark.host

ONE, PAIR = plain.SMALL
by_version = pytest.mark.parametrize("shape", plain.SMALL, ids=VERSIONS)

# The text, executed


@by_version
@pytest.mark.parametrize(
    ("M", "N", "K", "room"),
    [(8, 8, 4, 1), (8, 8, 40, 2), (30, 20, 18, 2), (24, 40, 4, 1), (33, 17, 9, 3)],
)
def test_c_is_right_in_whatever_order_things_happen(shape, M, N, K, room):
    """One tile; more steps than stages; several tiles, ragged; tiles of one step, so that the
    producer runs ahead by tiles."""
    for seed in range(3):
        assert plain.run(shape, M, N, K, seed, room).endswith("C is right")


#: What is changed in the text -> what it becomes, for which of the versions.
BOTH, OF_ONE, OF_PAIR = (ONE, PAIR), (ONE,), (PAIR,)
CHANGES = {
    "a stage is filled before it is read": (
        "mbarrier.wait(loop.empty.index(stage), odd ^ 1)", "pass", BOTH),
    "a stage is read before it is filled": (
        "mbarrier.wait(loop.full.index(stage), odd)", "pass", BOTH),
    "the producer waits for the other parity": (
        "mbarrier.wait(loop.empty.index(stage), odd ^ 1)",
        "mbarrier.wait(loop.empty.index(stage), odd)", BOTH),
    "half of the bytes are expected": (
        "mbarrier.expect(full, BYTES)", "mbarrier.expect(full, BYTES // 2)", BOTH),
    "the pair's bytes are expected of each": (
        "mbarrier.expect(full, BYTES)", "mbarrier.expect(full, 2 * BYTES)", BOTH),
    "sums are overwritten before they are read": (
        "mbarrier.wait(loop.free.index(slot), later ^ 1)", "pass", BOTH),
    "sums are read before they are complete": (
        "mbarrier.wait(loop.done.index(slot), later)", "pass", BOTH),
    "sums are given back after the first piece": ("nth == PIECES - 1", "nth == 0", BOTH),
    "sums are never given back": ("mbarrier.arrive(loop.free.index(slot))", "pass", BOTH),
    "the first step adds": ("use_acc=k > 0", "use_acc=True", BOTH),
    "a buffer is overwritten while TMA reads it": (
        "tma_store_wait(BUFFERS - 1)", "tma_store_wait(BUFFERS)", BOTH),
    "no fence": ("fence_async_shared()", "pass", BOTH),
    "pieces in one place": ("[row, col + nth * S.EPI_N]", "[row, col]", BOTH),
    "a tile is left out": ("tile + gl.num_programs(0)", "tile + gl.num_programs(0) + 1", OF_ONE),
    "the second program is not waited for": (
        "full, empty = ring(S.STAGES, 1, True)", "full, empty = ring(S.STAGES, 1, False)", OF_PAIR),
    "the second program's sums are not waited for": (
        "ring(S.ACCUMULATORS, 1, True)", "ring(S.ACCUMULATORS, 1, False)", OF_PAIR),
    "an answer is read before it is there": (
        "mbarrier.wait(self.answered.index(slot), odd)", "pass", OF_PAIR),
    "an answer is overwritten before it is read": (
        "mbarrier.wait(self.read.index(slot), odd ^ 1)", "pass", OF_PAIR),
    "answers have too few readers": ("ROLES: gl.constexpr = 3", "ROLES: gl.constexpr = 2", OF_PAIR),
    "nobody asks": ("work.ask(i)", "pass", OF_PAIR),
}  # fmt: skip
#: Several tiles and steps; and tiles of one step.
SIZES = ((30, 20, 18, 2), (40, 40, 4, 1))


@pytest.mark.parametrize("change", CHANGES)
def test_a_fault_is_found(change):
    """In some order of events: chance may be lucky."""
    before, after, shapes = CHANGES[change]
    text = plain.SOURCE.read_text()
    assert text.count(before) == 1
    for shape in shapes:
        with pytest.raises(machine.Fault):
            for seed in range(12):
                for *size, room in SIZES:
                    plain.run(shape, *size, seed, room, text.replace(before, after))
