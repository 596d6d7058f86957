"""The kernel for sm_100: its text on plain integers, and what it compiles to. It was never run."""

import itertools
import re

import numpy as np
import pytest

from docs import pictures
from docs.blackwell import __main__ as command
from docs.blackwell import code, machine, plain
from docs.blackwell.shape import ONE as WHOLE_ONE
from docs.blackwell.shape import VERSIONS
from docs.pictures import blackwell as drawn
from tritemm.arch.gpus import DEVICES

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
    "an answer without a tile is asked for its tile": (
        "if answer.is_canceled():", "if True:", OF_PAIR),
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
            run_often(shape, text.replace(before, after))


def run_often(shape, text):
    for seed, (*size, room) in itertools.product(range(12), SIZES):
        plain.run(shape, *size, seed, room, text)


def test_the_picture_has_the_parts_of_the_boxes():
    """Rows of A and columns of B, which are rows where B is stored along K."""
    shown = pictures.path_of("blackwell-pair").read_text()
    whole = VERSIONS["pair"]
    for lines in (whole.BLOCK_M, whole.BLOCK_N):
        box = plain.Descriptor(np.arange(lines)[:, None], (lines, 1), whole.CTAS)
        for program in range(whole.CTAS):
            part = box.part((0, 0), program)[:, 0]
            assert shown.count(f">{part[0]} to {part[-1]}<") == 2
    stage = plain.Descriptor(
        np.empty(0), (whole.BLOCK_M + whole.BLOCK_N, whole.BLOCK_K), whole.CTAS
    )
    assert stage.nbytes_per_cta == drawn.stage()


# What it compiles to

#: Signs of a version, and what must not be there: the words of Hopper, and of the other version.
HOPPER = ("HGMMA", "WARPGROUP", "USETMAXREG", "LDL", "STL")
ALL = ("UTCHMMA", "UTCBAR", "UTCATOMSWS", "LDTM", "UTMALDG", "UTMASTG", "SYNCS")
OF_TWO = ("UTCHMMA.2CTA", "UTMALDG.2D.2CTA", "UTCBAR.2CTA.MULTICAST", "UGETNEXTWORKID.BROADCAST",
          "UCGABAR_ARV")  # fmt: skip
EXPECTED = {"one": (ALL, (*HOPPER, *OF_TWO)), "pair": ((*ALL, *OF_TWO), HOPPER)}


@pytest.fixture(scope="module")
def codes():
    """Of each version, in a process that doesn't interpret."""
    if reason := code.why_not():
        pytest.skip(reason)
    return code.compile_all()


@pytest.mark.latest
@pytest.mark.parametrize("name", VERSIONS)
def test_it_has_its_signs(codes, name):
    assert ".target sm_100a" in codes[name]["ptx"]
    required, forbidden = EXPECTED[name]
    entry = {"variants": code.variants(codes[name]["sass"])}
    count = {sign: code.count(entry, sign) for sign in (*required, *forbidden)}
    assert all(count[sign] for sign in required) and not any(count[sign] for sign in forbidden)
    # A step of 64 is 4 products of 16; the epilogue reads as many pieces as the tile has.
    assert count["UTCHMMA"] == VERSIONS[name].BLOCK_K // 16
    assert count["LDTM"] == VERSIONS[name].BLOCK_N // VERSIONS[name].EPI_N
    assert count["UTMALDG"] == 2


@pytest.mark.latest
@pytest.mark.parametrize("name", VERSIONS)
def test_it_fits(codes, name):
    made, shape = codes[name], VERSIONS[name]
    assert made["spills"] == 0 and made["shared"] <= DEVICES[code.ARCH].shared
    assert made["columns"] == shape.ACCUMULATORS * shape.BLOCK_N <= code.COLUMNS


@pytest.mark.latest
@pytest.mark.parametrize("name", VERSIONS)
def test_barriers_expect_the_bytes_of_the_boxes(codes, name):
    """Of the real tile, as of the model's small ones: of each program its share of A and of B."""
    shape = VERSIONS[name]
    lines = (shape.BLOCK_M + shape.BLOCK_N) // shape.CTAS
    expected = re.findall(r"expect_tx\.\S+ _, \[\S+\], (\d+);", codes[name]["ptx"])
    assert list(map(int, expected)) == [16] * shape.CLC + [lines * shape.BLOCK_K * plain.ELEMENT]


@pytest.mark.latest
@pytest.mark.parametrize("name", VERSIONS)
def test_a_cluster_counts_its_barriers_arrivals_once_per_program(codes, name):
    """As `plain.Words.init` does: a shared barrier of the pair takes twice as many."""
    shape = VERSIONS[name]
    found = re.findall(r"mbarrier\.init\.\S+ \[\S+\], (\d+);", codes[name]["ptx"])
    stages, slots, programs = shape.STAGES, shape.ACCUMULATORS, shape.CTAS
    shared, own = [programs] * (stages + slots), [1] * (stages + slots)
    answers = [1] * 4 + [3 * programs] * 4  # `answered` and `read`
    assert sorted(map(int, found)) == sorted([*shared, *own, *answers])


@pytest.mark.latest
def test_the_page_shows_what_this_compiler_makes(codes):
    """Another one may make other code; the same one may not."""
    made = {name: code.summary(name, each) for name, each in codes.items()}
    assert code.differences(code.load(), made) == [], "run `python -m docs.record blackwell`"


@pytest.mark.latest
def test_the_command_shows_both(codes, monkeypatch, capsys):
    monkeypatch.setattr(command, "compile_all", lambda: codes)
    assert command.main(["--sass"]) == 0
    said = capsys.readouterr().out
    assert f"one: {WHOLE_ONE.words}; compiled for sm_100, never run" in said
    assert "UTCHMMA.2CTA" in said and said.count("columns per program, of 512") == 2


def test_an_older_triton_is_told_in_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(code.importlib.util, "find_spec", lambda name: None)
    assert command.main([]) == 2
    assert re.fullmatch(
        r"cluster launch control needs Triton 3\.8; this is \S+\n", capsys.readouterr().err
    )
