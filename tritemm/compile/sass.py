"""Reads machine code: instruction counts and resource usage, using NVIDIA's binary tools."""

from __future__ import annotations

import bisect
import collections
import itertools
import re
import struct
import subprocess
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from triton import knobs

#: What to count in an instruction mix. The mnemonics are those of "CUDA Binary Utilities".
GROUPS = {
    "tensor core": "HMMA HGMMA IMMA IGMMA DMMA BMMA BGMMA QMMA QGMMA OMMA "
    "UTCHMMA UTCQMMA UTCIMMA UTCOMMA",
    "multiply-add": "FFMA FFMA2 DFMA HFMA2 IDP",
    "global loads": "LDG",
    "global stores": "STG RED REDG ATOMG",
    "async copies": "LDGSTS LDGDEPBAR ARRIVES",
    "TMA": "UTMALDG UTMASTG UTMAREDG UTMAPF UTMACMDFLUSH UTMACCTL UBLKCP",
    "shared memory": "LDS LDSM STS STSM MOVM",
    "tensor memory": "LDTM STTM UTCCP UTCATOMSWS UTCBAR",
    "barriers": "BAR DEPBAR SYNCS WARPGROUP MEMBAR FENCE UCGABAR_ARV UCGABAR_WAIT ACQBULK PREEXIT",
    "registers": "USETMAXREG",
    "local memory": "LDL STL",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}

#: An instruction of nvdisasm or cuobjdump: address, predicate, mnemonic and its suffixes.
_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P(?:\d+|T)\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)",
    re.MULTILINE,
)


def disassemble(cubins: Sequence[bytes], sm: int) -> list[str]:
    """The instructions of each binary, each one kernel for `sm`, without labels.

    One run of nvdisasm reads them all: starting it takes a third of a second, reading little more.
    """
    codes = [_code_of(cubin) for cubin in cubins]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernels.bin")
        file.write_bytes(b"".join(codes))
        printed = run_tool("nvdisasm", "-b", f"SM{sm}", str(file))
    ends = list(itertools.accumulate(map(len, codes)))
    lines: list[list[str]] = [[] for _ in codes]
    for address, line in re.findall(r"^(?=\s*/\*([0-9a-f]+)\*/)(.*)$", printed, re.MULTILINE):
        lines[bisect.bisect_right(ends, int(address, 16))].append(line)
    return ["\n".join(each) for each in lines]


def _code_of(cubin: bytes) -> bytes:
    """The content of its sections called .text.*; a cubin is a 64-bit ELF file."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count, of_names = struct.unpack_from("<HHH", cubin, 58)
    # For each section its name's offset, type, flags, address, place and size.
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + i * size) for i in range(count)]
    names = sections[of_names][4]
    return b"".join(
        cubin[place : place + length]
        for name, _, _, _, place, length in sections
        if cubin.startswith(b".text.", names + name)
    )


def count_instructions(sass: str) -> tuple[dict[str, int], dict[str, int]]:
    """Instructions by base mnemonic, and by full mnemonic for those of the `GROUPS`."""
    found = _INSTRUCTION.findall(sass)
    mix = collections.Counter(base for base, _ in found)
    variants = collections.Counter(base + suffix for base, suffix in found if base in GROUP_OF)
    return dict(mix), dict(variants)


def count_of(mnemonic: str, mix: Mapping[str, int], variants: Mapping[str, int]) -> int:
    """Instructions of a base mnemonic (HMMA), or of a longer one (HGMMA.64x256x16)."""
    if mnemonic in mix:
        return mix[mnemonic]
    longer = mnemonic + "."
    return sum(n for name, n in variants.items() if f"{name}.".startswith(longer))


def group_of(variants: Mapping[str, int], group: str) -> dict[str, int]:
    """The part of `variants` that belongs to one of the `GROUPS`, most frequent first."""
    mine = [(name, n) for name, n in variants.items() if GROUP_OF[name.split(".")[0]] == group]
    return dict(sorted(mine, key=lambda item: (-item[1], item[0])))


def instruction_table(mix: Mapping[str, int], variants: Mapping[str, int]) -> list[str]:
    """A line for each of the `GROUPS` that occurs, in 100 columns, and one for the sum."""
    lines = []
    for group in GROUPS:
        found = group_of(variants, group)
        if found or group == "local memory":
            names = ", ".join(f"{name}\0{n}" for name, n in found.items()) or "none"
            line = f"{group:<14}{sum(found.values()):>7}  {names}"
            lines += textwrap.wrap(line, 100, subsequent_indent=" " * 23, break_on_hyphens=False)
    lines = [line.replace("\0", " ") for line in lines]  # a NUL was a space not to be broken
    return [*lines, f"{'all':<14}{sum(mix.values()):>7}  instructions in the binary"]


def parse_usage(text: str) -> tuple[int, int]:
    """Registers and bytes of stack per thread, from `cuobjdump -res-usage`; the largest of all."""
    found = re.findall(r"\bREG:(\d+) STACK:(\d+)", text)
    if not found:
        raise RuntimeError("cuobjdump reports no registers")
    registers, stack = zip(*found, strict=True)
    return max(map(int, registers)), max(map(int, stack))


def run_tool(name: str, *arguments: str) -> str:
    """The output of a CUDA binary tool: Triton's own, or the one at TRITON_`NAME`_PATH."""
    words = [getattr(knobs.nvidia, name).path, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{name} cannot read this binary: {tail(done.stderr)}")
    return done.stdout


def tail(text: str) -> str:
    """The end of a tool's message: its last lines with content."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-500:] or "no message"
