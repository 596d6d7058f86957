"""Time stamps: where they stand in PTX, that it still assembles, and how they are read back."""

import struct
import subprocess

import pytest
import triton

from docs.pictures import timelines
from docs.timeline import stamps
from docs.timeline.measure import CASE, RUNGS, Row, decoded, representatives
from tritemm.compile import asm

pytestmark = pytest.mark.host

KERNEL = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry kernel()
{
\t.reg .b32 %r<2>;
\tmov.b32 %r1, 0;
"""


def activities(ptx, events=stamps.EVENTS):
    """What the stamps of a text say, in its order, behind the array's address."""
    lines = stamps.stamped(ptx, 0, events).splitlines()
    words = [line for line in lines if line.startswith("\tmov.b64 %stamp_word, ")]
    return [stamps.ACTIVITIES[int(w.split()[-1].strip(";"))] for w in words[1:] if w[-2].isdigit()]


@pytest.mark.parametrize(
    ("instructions", "said"),
    [
        (["ld.global.v4.b32 {a}, [b];"] * 3, ["load"]),
        (["cp.async.cg.shared.global [a], [b], 16;", "cp.async.commit_group;"], ["load", "other"]),
        (["bar.sync 0;"], []),
        (["wgmma.fence.sync.aligned;", "wgmma.wait_group.sync.aligned 1;"], ["multiply"]),
        (
            ["wgmma.fence.sync.aligned;", "wgmma.wait_group.sync.aligned 1;", "bar.sync 0;"],
            ["multiply", "other"],
        ),
        (["ret;"], ["other"]),
    ],
)
def test_stamps_stand_where_an_activity_begins(instructions, said):
    assert activities(KERNEL + "\n".join(f"\t{each}" for each in instructions) + "\n}\n") == said


def test_the_ends_are_two_stamps():
    text = KERNEL + "\twgmma.fence.sync.aligned;\n\tret;\n}\n"
    assert activities(text, stamps.ENDS) == ["other"]
    assert stamps.stamped(text, 0, stamps.ENDS).count("%clock64") == 2


def test_inline_asm_is_not_torn():
    text = KERNEL + "\t// begin inline asm\n{\n\tmbarrier.try_wait.parity.shared.b64 a, [b], c;\n"
    text = stamps.stamped(text + "\t@!a bra.uni wait;\n}\n\t// end inline asm\n\tret;\n}\n", 0)
    block = text.partition("// begin inline asm")[2].partition("// end inline asm")[0]
    assert "stamp" not in block


def test_what_is_no_kernel_is_refused():
    with pytest.raises(ValueError, match="no kernel"):
        stamps.stamped(".address_size 64\n", 0)


@pytest.mark.parametrize("rung", RUNGS)
def test_the_stamped_kernel_assembles_without_spills(rung, tmp_path):
    job = asm.Job(rung, sm=90, M=CASE.M, N=CASE.N, K=CASE.K, layout=CASE.layout)
    file = tmp_path / "kernel.ptx"
    file.write_text(stamps.stamped(asm.compile_problem(job).ptx, 0))
    words = [triton.knobs.nvidia.ptxas.path, "-arch=sm_90a", "-v", str(file), "-o", "/dev/null"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores" in done.stderr


def test_stamps_are_read_back():
    raw = bytearray(stamps.BYTES)

    def put(row, *pairs):
        numbers = [number for pair in pairs for number in pair]
        place = stamps.HEAD_BYTES + row * stamps.ROW_BYTES
        struct.pack_into(f"<{len(numbers)}Q", raw, place, *numbers)

    put(0, (1000, 5 << 32 | 128), (1010, 2), (1030, 3))
    put(1, (990, 5 << 32 | 160), (1015, 1))
    put(2, (995, 5 << 32 | 0))  # nothing but its heading
    rows = decoded(bytes(raw))
    assert rows == [Row(5, 5, [25], [1]), Row(5, 4, [20, 40], [2, 3])]
    assert representatives(rows) == [rows[1]]
    with pytest.raises(RuntimeError, match="no warp"):
        decoded(bytes(stamps.BYTES))


def test_phases_are_of_whole_tiles():
    names = ("wait", "multiply", "other", "multiply", "store", "other", "multiply", "other")
    row = {"at": [*range(0, 80, 10)], "activity": [stamps.ACTIVITIES.index(n) for n in names]}
    assert list(timelines.phases(row)) == [
        (10, 40, "multiply"), (40, 50, "store"),
    ]  # fmt: skip


@pytest.mark.parametrize("rung", RUNGS)
def test_stamps_change_little(rung):
    """What is committed says so: the pictures show the kernels, not the stamps."""
    with_stamps = max(row["at"][-1] for row in timelines.data()["rungs"][rung]["rows"])
    assert abs(with_stamps / timelines.data()["rungs"][rung]["cycles"] - 1) < 0.06
