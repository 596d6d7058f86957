"""The mma rungs without a GPU: their own C++ with an emulated warp, in both layouts of B.

What is compiled is the rung's .cu and its headers; ptx.cuh and launch.cuh are replaced by those of
`tests/cuda/emulator`, which do what the PTX ISA says. So index arithmetic, edges and tails are the
ones that run on a GPU; the order of threads and copies is not.
"""

import ctypes
import dataclasses
import shutil

import pytest
import torch

from cuda_reference import loader, source
from cuda_reference.rungs import RUNGS
from tests.cuda import emulator
from tests.cuda.test_reference import operands, tile_of
from tests.dispatch.choosing import H200
from tests.harness import Guarded
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
