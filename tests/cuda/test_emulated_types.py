"""The index arithmetic of types/*.cu, run on a CPU, against that of `types.fragments`.

The .cu files are compiled as they are, but for the instruction: in its place each thread shows its
registers, and numbers those of D (`tests/cuda/emulator/instruction.h`).
"""

import ctypes
import re
import shutil

import pytest
import torch

from cuda_reference import source
from cuda_reference.types.fragments import fragment, places
from cuda_reference.types.run import Operands
from cuda_reference.types.table import BITS, TABLE
from tests.cuda import emulator
from tests.cuda.test_fragments import as_stored, elements_held, sizes

pytestmark = [pytest.mark.host, pytest.mark.once]

#: Of mma all; of wgmma those of the smallest N, which differ in more than N.
ENTRIES = [
    entry
    for entry in TABLE
    if entry.instruction == "mma"
    or (entry.instruction == "wgmma" and entry.shape[1] == 8 and not entry.satfinite
        and entry.scale_a == entry.scale_b == entry.scale_d == 1)
]  # fmt: skip
#: What threads hold, and where D goes, depends neither on a swizzle nor on a major.
REGISTERS = [
    entry
    for entry in ENTRIES
    if entry.instruction == "mma"
    or (entry.swizzle == 128 and (entry.a_layout, entry.b_layout) == ("row", "col"))
]
BYTES = 1 << 20

#: What stands in place of the PTX, and of the launch.
REPLACED = (
    (r'asm\("cvt\.rna.*?\)\);', "word = (word + 0x1000) & ~0x1FFFu;"),
    (r"asm volatile\(opcode.*?\);", "SHOW(a, na, b, nb, c, nc, d, nd);"),
    (r'asm volatile\("fence.*?"memory"\);', ""),
    (r"switch \(variant\) \{ __VA_ARGS__ \}", "SHOW_WGMMA(shared, d, registers);"),
    (r"<<<.*?>>>\((.*?)\);", r"; run_block(threads, [&] { instruction.kernel(\1); });"),
    (r"TRY\(cudaGetLastError\(\)\);", ""),
    ("__shared__", "static"),
)


def replaced(text):
    for pattern, by in REPLACED:
        text = re.sub(pattern, by, text, flags=re.DOTALL)
    return text


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The library of a file of types/, for the CPU."""
    folder = tmp_path_factory.mktemp("types")
    for file in (*source.INCLUDE.iterdir(), *(source.ROOT / "types").glob("*.cuh")):
        (folder / file.name).write_text(replaced(file.read_text()))
    for file in emulator.FOLDER.glob("*.h"):
        shutil.copy(file, folder)
    library = emulator.compiler(folder, "instruction.h", "-O0", "-DFEW_N")

    def run(name):
        # Only this one has registers of A.
        modified = ["-DA_IN_REGISTERS"] if "modifiers" in name else []
        found = library(name, replaced(source.path_of(name).read_text()), *modified)
        found.run.restype = ctypes.c_char_p
        return found

    return run


class Shown:
    """Runs an entry; keeps what its threads had of each operand, and where D went."""

    def __init__(self, library, entry):
        self.library, self.entry = library, entry
        self.threads = 128 if entry.instruction == "wgmma" else 32
        self.shared = torch.zeros(BYTES, dtype=torch.uint8)

    def run(self, operand, storage, ld):
        """The registers of `operand`, [threads, at most 8]; the other operands are zeros."""
        memory = {name: torch.zeros(BYTES, dtype=torch.uint8) for name in "abcd"}
        memory[operand] = storage
        shown = {name: torch.zeros(self.threads * 8, dtype=torch.int64) for name in "abc"}
        pointers = (ctypes.c_void_p(shown[name].data_ptr()) for name in "abc")
        self.library.show_to(*pointers, ctypes.c_void_p(self.shared.data_ptr()))
        lds = {f"ld{name}": 1024 for name in "abcd"} | {f"ld{operand}": ld}
        if operand == "d":
            lds["ldc"] = 8
        given = {name: tensor.data_ptr() for name, tensor in memory.items()}
        operands = Operands(**given, **lds, swizzle=self.entry.swizzle, scale_d=1)
        error = self.library.run(self.entry.ptx.encode(), ctypes.byref(operands))
        assert error is None, error
        return shown.get(operand)


@pytest.mark.wide
@pytest.mark.parametrize("entry", REGISTERS, ids=str)
def test_threads_hold_what_the_formulas_say(compiled, entry):
    shown = Shown(compiled(entry.source), entry)
    for operand in "abc":
        held = fragment(entry, operand)
        if held is None:
            continue
        by_rows = getattr(entry, f"{operand}_layout", "row") == "row"
        rows, cols = sizes(entry, operand)
        lines = (rows, cols) if by_rows else (cols, rows)

        bits = BITS[getattr(entry, operand)]
        shift = ROUNDED_AWAY * (bits == 32 and operand != "c")

        def registers_of(storage, ld, operand=operand, held=held, shift=shift):
            found = shown.run(operand, shifted(storage, shift), ld) >> shift
            return found[: shown.threads * held.registers].view(shown.threads, held.registers)

        found = elements_held(registers_of, *lines, bits, held.per_register)
        assert found == as_stored(held, by_rows), operand


#: The low bits that tf32 loses: an element is 1 << 13 and not 1.
ROUNDED_AWAY = 13


def shifted(storage, bits):
    return (storage.view(torch.int32) << bits).view(torch.uint8)


@pytest.mark.parametrize("entry", REGISTERS, ids=str)
def test_d_goes_where_the_formulas_say(compiled, entry):
    m, n, _ = entry.shape
    held, bits = fragment(entry, "d"), BITS[entry.d]
    dtype = {16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    d = torch.full((m, n), -1, dtype=dtype)
    Shown(compiled(entry.source), entry).run("d", d.view(torch.uint8), n)
    for (row, col), holders in held.holders().items():
        thread, register = holders[0]
        place = held.elements[thread].index((row, col)) % held.per_register
        number = 2 * (thread * held.registers + register) + place
        assert int(d[row, col]) & 0xFFFF == number


@pytest.mark.parametrize(
    "entry", [e for e in ENTRIES if e.instruction == "wgmma" and not e.a_in_registers], ids=str
)
def test_shared_memory_holds_what_the_formulas_say(compiled, entry):
    shown = Shown(compiled(entry.source), entry)
    for operand, begin in (("a", 0), ("b", 64 * 128)):
        rows, cols = sizes(entry, operand)
        at, bits = places(entry, operand), BITS[getattr(entry, operand)]
        by_rows = getattr(entry, f"{operand}_layout") == "row"
        where = [[at[r, c] for c in range(cols)] for r in range(rows)]
        where = torch.tensor(where if by_rows else list(zip(*where, strict=True)))

        shift = ROUNDED_AWAY * (bits == 32)

        def registers_of(storage, ld, operand=operand, at=where + shift, begin=begin, shift=shift):
            shown.run(operand, shifted(storage, shift), ld)
            byte = shown.shared[begin + at // 8].to(torch.int64) >> at % 8
            return byte.view(1, -1)

        ((*found,),) = elements_held(registers_of, *where.shape, bits, 1)
        lines, length = where.shape
        assert found == [(line, i) for line in range(lines) for i in range(length)]
