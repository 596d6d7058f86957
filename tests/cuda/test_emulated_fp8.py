"""wgmma_fp8 without a GPU: its own C++, with mbarriers, TMA and WGMMA as functions.

What stands in place of each asm is in `tests/cuda/emulator/hopper.h`. So the roles, the ring, the
descriptors, scales, edges and tails are the ones that run on a GPU; what runs at once there, and
what is in flight, is not.
"""

import ctypes
import re
import shutil

import pytest

from cuda_reference import loader, source
from tests.cuda import emulator
from tests.cuda.test_fp8 import FP16, KERNEL, SIZES, multiply

pytestmark = [pytest.mark.host, pytest.mark.once, pytest.mark.usefixtures("emulated")]

#: What stands in place of an asm that has these words; nothing in place of others.
INSTRUCTIONS = {
    "mbarrier.init": "init_barrier(barrier, arrivals);",
    "mbarrier.arrive.expect_tx": "arrive(barrier, bytes);",
    "mbarrier.arrive.shared::cta": "arrive(barrier);",
    "mbarrier.try_wait": "done = has_passed(barrier, parity);",
    "m64n128k32.f32.e4m3.e4m3": "multiply_fp8(d, a, b, keep);",
    ".multicast": ";",
    "cp.async.bulk.tensor.2d.shared::cluster": "copy_box(to, map, row, col, barrier);",
}
#: What calls CUDA, or is no C++.
REPLACED = (
    (r"asm volatile\((?:[^;\"]|\"[^\"]*\")*\);", lambda asm: function_of(asm[0])),
    (r"extern __shared__ .*? dynamic\[\];", "char* dynamic = reinterpret_cast<char*>(::shared);"),
    (r"kernel<<<(\w+), (\w+),.*?>>>(\(.*?\));", r"run_grid(\1, \2, [&] { kernel\3; });"),
    (r"TRY\(cuda.*?\)\);", ""),
    (r"if \(status != .*?;", ""),
    (r"reinterpret_cast<decltype\(&cuTensorMapEncodeTiled\)>\(found\)", "encode_tiled"),
)


def function_of(asm):
    return next((by for words, by in INSTRUCTIONS.items() if words in asm), ";")


def replaced(text):
    for pattern, by in REPLACED:
        text = re.sub(pattern, by, text, flags=re.DOTALL)
    return text


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The library of the rung, for the CPU."""
    folder = tmp_path_factory.mktemp("fp8")
    for file in source.INCLUDE.iterdir():
        (folder / file.name).write_text(replaced(file.read_text()))
    for name in ("block.h", "hopper.h", "launch.cuh"):
        shutil.copy(emulator.FOLDER / name, folder)
    library = emulator.compiler(folder, "hopper.h", "-O2")
    found = library(KERNEL.name, replaced(KERNEL.file.read_text()))
    found.launch.restype = ctypes.c_char_p
    return found


@pytest.fixture
def emulated(compiled, library, monkeypatch):
    """In place of what a GPU runs."""
    monkeypatch.setattr(loader, "library", lambda name, arch: compiled)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size):
    multiply(*size, pitch_gap=1)


@pytest.mark.parametrize("layout", ["T", "S", "0"])
def test_scales_of_any_strides(layout):
    multiply(130, 140, 300, layout, FP16)
