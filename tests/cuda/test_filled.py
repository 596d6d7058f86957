"""The filled example of wgmma_m64n8k16: the numbers that it prints."""

import pytest

from cuda_reference import filled, loader
from cuda_reference.__main__ import main
from cuda_reference.types.fragments import places
from cuda_reference.types.show import describe

pytestmark = [pytest.mark.host, pytest.mark.once]

LAST = [977792, 994040, 1010288, 1026536, 1042784, 1059032, 1075280, 1091528]


def to_bf16(x):
    """An integer below 1024 to 8 bits, to nearest, ties to even."""
    step = 1 if x < 256 else 2 if x < 512 else 4
    count, rest = divmod(x, step)
    return step * (count + (2 * rest > step or (2 * rest == step and count % 2)))


def test_expected_numbers():
    """Row 0 is sum of k (8 k + n) = 9920 + 120 n; the others in integers, rounded by hand."""
    d = filled.expected().tolist()
    assert d[0] == [9920 + 120 * n for n in range(8)]
    assert d[1] == [25280, 25656, 26032, 26408, 26784, 27160, 27536, 27912]
    assert d[63] == LAST
    for m, row in enumerate(d):
        a = [to_bf16(16 * m + k) for k in range(16)]
        assert row == [sum(a[k] * (8 * k + n) for k in range(16)) for n in range(8)]
    assert max(map(max, d)) < 2**24


def test_b_lies_as_the_example_says():
    """In shared memory, by columns: 0, 8, 16, ... 56, then 1; from 64 on the next core matrix."""
    _, b = filled.operands()
    at = places(filled.ENTRIES["col"], "b")
    order = sorted(at, key=at.get)
    numbers = [int(b[element]) for element in order]
    assert numbers[:9] == [0, 8, 16, 24, 32, 40, 48, 56, 1]
    assert numbers[63:66] == [63, 64, 72]
    at = places(filled.ENTRIES["row"], "b")
    assert [int(b[element]) for element in sorted(at, key=at.get)] == list(range(128))
    assert "T0 c0,c1" in describe(filled.ENTRIES["col"])


def test_it_is_the_example_of_one_rung(capsys):
    assert main(["run", "mma_base", "--filled"]) == 2
    assert "--filled is the example of wgmma_m64n8k16, not of mma_base" in capsys.readouterr().err


@pytest.mark.gpu
def test_the_command_prints_them(loads, capsys):
    if loader.architecture() != "90a":
        pytest.skip("wgmma needs compute capability 9.0")
    assert main(["run", filled.RUNG, "--filled"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 66 and lines[-1].startswith("ok")
    assert [int(x) for x in lines[64].split()] == LAST
    assert "\n".join(lines[1:-1]) == filled.table(filled.expected())
