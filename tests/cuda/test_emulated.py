"""The mma rungs without a GPU: their own C++ with an emulated warp, in both layouts of B.

What is compiled is the rung's .cu and its headers; ptx.cuh and launch.cuh are replaced by those of
`tests/cuda/emulator`, which do what the PTX ISA says. So index arithmetic, edges and tails are the
ones that run on a GPU; the order of threads and copies is not.
"""

import ctypes
import dataclasses
import itertools
import math
import shutil

import pytest
import torch

from cuda_reference import loader, source
from cuda_reference.rungs import RUNGS
from tests.cuda import emulator
from tests.cuda.test_reference import operands, tile_of
from tests.dispatch.choosing import H200
from tests.harness import Guarded, operand
from tritemm import budget
from tritemm.problem import Problem, short_name

pytestmark = [pytest.mark.host, pytest.mark.once, pytest.mark.usefixtures("emulated")]

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
rungs = pytest.mark.parametrize("name", [k.name for k in RUNGS if k.name.startswith("mma")])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The library of a rung, for the CPU."""
    folder = tmp_path_factory.mktemp("emulated")
    for place in (source.INCLUDE, emulator.FOLDER):
        for file in place.glob("*.*h"):
            shutil.copy(file, folder)
    library = emulator.compiler(folder, "block.h", "-O1")

    def compile_(name):
        text = (source.ROOT / f"{name}.cu").read_text()
        text = text.replace("extern __shared__ uint4 shared[];", "")
        found = library(name, text.replace("__shared__", "static"))
        found.launch.restype = ctypes.c_char_p
        return found

    return compile_


@pytest.fixture
def emulated(compiled, library, monkeypatch):
    """In place of what a GPU runs."""
    monkeypatch.setattr(loader, "library", lambda name, arch: compiled(name))


def multiply(name, a, b, layout, accumulate=FP32, **guard):
    """Runs the rung and checks every element and every guard."""
    kernel = next(k for k in RUNGS if k.name == name)
    guarded = Guarded.like((a.shape[0], b.shape[1]), a.dtype, **guard)
    c = guarded.tensor
    problem = Problem.of(a, b, c, accumulate=accumulate, device=H200)
    assert kernel.why_not(problem) is None
    b_major = kernel.readable.layout(problem)[1]
    assert b_major == layout[1] or problem.K == 1  # then it is stored both ways
    kernel.launch(problem, dataclasses.replace(tile_of(kernel), ORDER="serpentine"), a, b, c)
    guarded.assert_untouched_outside()
    verdict = budget.check(c, a, b, accumulate=accumulate)
    assert verdict.ok, f"{name} {layout} {problem}: {verdict}"


@rungs
@pytest.mark.wide
@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize(
    "shape", [(70, 41, 33), (16, 130, 72), (257, 8, 31), (3, 129, 1), (9, 7, 97)], ids=str
)
def test_edges(name, layout, shape):
    """NaN stands between the lines of A and B and in shared memory."""
    multiply(name, *operands(*shape, layout=layout), layout, pitch_gap=1)


@rungs
@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize(("dtype", "accumulate"), [(FP16, FP16), (BF16, FP32)], ids=short_name)
def test_types(name, layout, dtype, accumulate):
    multiply(name, *operands(40, 72, 48, dtype, layout), layout, accumulate)


@pytest.mark.parametrize("layout", ["NT", "NN"])
def test_the_serpentine_order_covers_a_ragged_last_stripe(layout):
    """Two stripes of tile columns, the second with one, and three tile rows."""
    multiply("mma_base", *operands(530, 16 * 128 + 9, 16, layout=layout), layout)


@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize("offset", [0, 1])
def test_the_naive_rung_reads_rows_at_any_address(layout, offset):
    options = {"aligned": False, "offset": offset}
    multiply("mma_naive", *operands(45, 61, 50, layout=layout, **options), layout)


GROUPED = [k for k in RUNGS if k.limits.groups]
#: Sizes of groups, and rows behind the last; more groups than a block has threads.
SIZES = {
    "ragged": ((5, 0, 300, 33, 0), 0),
    "rest": ((0, 256, 7), 70),
    "empty": ((0, 0, 0), 9),
    "many": ((1,) * 20 + (0,) * 280, 3),
}


def grouped(kernel, sizes, rest, N, K, layout, dtype=FP16, accumulate=FP32, order="grouped"):
    """Runs the rung on groups: each one's rows and matrix, with NaN and guards in between.

    Rows behind the last group hold NaN, and become zeros.
    """
    ends = list(itertools.accumulate(sizes))
    a = operand(ends[-1] + rest, K, dtype, layout[0], aligned=True)
    a[ends[-1] :] = math.nan
    b = operand(K, N, dtype, layout[1], (len(sizes),), aligned=True)
    guarded = Guarded.like((a.shape[0], N), dtype, pitch_gap=1)
    c = guarded.tensor
    problem = Problem.of(a, b, c, accumulate=accumulate, device=H200, groups="m")
    assert kernel.why_not(problem) is None
    config = dataclasses.replace(tile_of(kernel), ORDER=order, GROUP_M=2)
    kernel.launch(problem, config, a, b, c, torch.tensor(ends, dtype=torch.int32))
    guarded.assert_untouched_outside()
    for group, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        own = slice(begin, end)
        verdict = budget.check(c[own], a[own], b[group], accumulate=accumulate)
        assert verdict.ok, f"{kernel.name} {layout} group {group}: {verdict}"
    assert not c[ends[-1] :].any()


groups = pytest.mark.parametrize("kernel", GROUPED, ids=lambda kernel: kernel.name)


@groups
@pytest.mark.parametrize("layout", ["NT", "NN"])
@pytest.mark.parametrize("sizes", SIZES)
def test_groups(kernel, layout, sizes):
    """Ragged, empty and many; a tile ends with its group, whose neighbours it must not touch."""
    grouped(kernel, *SIZES[sizes], 41, 33, layout)


@groups
@pytest.mark.parametrize(("dtype", "accumulate"), [(FP16, FP16), (BF16, FP32)], ids=short_name)
@pytest.mark.parametrize("order", ["linear", "serpentine"])
def test_groups_of_each_type_in_each_order(kernel, dtype, accumulate, order):
    grouped(kernel, (3, 270), 0, 140, 48, "NT", dtype, accumulate, order)


@groups
def test_what_stands_beside_a_group_does_not_reach_it(kernel):
    """All rows and the matrix of one group are NaN."""
    a, b = operand(90, 40, FP16, aligned=True), operand(40, 24, FP16, "T", (3,), aligned=True)
    a[30:60], b[1] = math.nan, math.nan
    c = torch.empty(90, 24, dtype=FP16)
    problem = Problem.of(a, b, c, device=H200, groups="m")
    offs = torch.tensor([30, 60, 90], dtype=torch.int32)
    kernel.launch(problem, tile_of(kernel), a, b, c, offs)
    assert c[30:60].isnan().all()
    assert budget.check(c[:30], a[:30], b[0]).ok and budget.check(c[60:], a[60:], b[2]).ok


@groups
def test_offsets_that_no_caller_may_give_stay_inside(kernel):
    """Below 0, beyond the rows, decreasing: what is written is somewhere in C."""
    a, b = operand(300, 40, FP16, aligned=True), operand(40, 24, FP16, "T", (4,), aligned=True)
    for ends in ([-5, 400, 10, 20], [290, 3, 2, 1], [2**31 - 1] * 4, [-(2**31)] * 4):
        guarded = Guarded.like((300, 24), FP16, pitch_gap=1)
        problem = Problem.of(a, b, guarded.tensor, device=H200, groups="m")
        offs = torch.tensor(ends, dtype=torch.int32)
        kernel.launch(problem, tile_of(kernel), a, b, guarded.tensor, offs)
        guarded.assert_untouched_outside()
