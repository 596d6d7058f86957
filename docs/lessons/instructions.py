"""The machine code of both ladders, counted: what a lesson shows as proof."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cuda_reference import cubin, source
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from perf.competitors import rung_of, twins
from perf.sources import hashes
from perf.tables import line
from tritemm.compile import asm
from tritemm.rungs import RUNGS
from tritemm.spec import Kernel

DATA = Path(__file__).with_name("instructions.json")
#: What is counted, as far as a kernel has it; the names are those of "CUDA Binary Utilities".
SHOWN = (
    "FFMA", "HMMA", "HGMMA", "LDG", "STS", "LDS", "LDSM", "LDGSTS", "UTMALDG", "UTMASTG", "STSM",
    "SYNCS", "BAR", "USETMAXREG", "UCGABAR_ARV",
)  # fmt: skip
#: The product that Triton's rungs are compiled for.
LAYOUT, DTYPE, ARCH = "NT", "bf16", 90


def record() -> dict[str, Any]:
    """Every rung's counts, by its ladder and name; compiles all of them, in minutes."""
    jobs = [asm.Job(kernel.name, sm=ARCH, layout=LAYOUT, dtype=DTYPE) for kernel in RUNGS]
    found = {}
    for kernel, code in zip(RUNGS, asm.compile_many(jobs, processes=2), strict=True):
        lines = _signs(code.sass, kernel)
        counts = {name: code.count(name) for name in SHOWN}
        found[f"triton {kernel.name}"] = _entry("triton", kernel, counts, lines) | {
            "registers": code.registers, "shared": code.shared, "config": code.config,
        }  # fmt: skip
    for kernel in CUDA_RUNGS:
        arch = "90a" if "90a" in source.architectures(kernel.name) else "90"
        code = cubin.compile_cubin(kernel.name, arch)
        function = max(code.functions, key=lambda each: sum(each.mix.values()))
        counts = {name: function.count(name) for name in SHOWN}
        found[f"cuda {kernel.name}"] = _entry("cuda", kernel, counts, _signs(code.sass, kernel)) | {
            "registers": function.registers
        }
    return found


def _entry(ladder: str, kernel: Kernel, counts: dict[str, int], lines: list[str]) -> dict[str, Any]:
    counted = {name: count for name, count in counts.items() if count}
    return {"code": hashes()[ladder, kernel.name], "counts": counted, "lines": lines}


def _signs(sass: str, kernel: Kernel) -> list[str]:
    """The first instruction of each of the rung's signs, as the disassembler writes it."""
    found = []
    for sign in kernel.signs.get(ARCH, kernel.signs[max(kernel.signs)])[0]:
        pattern = rf"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?({sign}\b.*?) *;"
        first = re.search(pattern, sass)
        found += [re.sub(r"\s+", " ", first[1])] if first else []
    return found


@functools.cache
def load() -> dict[str, Any]:
    return json.loads(DATA.read_text())


def stale() -> list[str]:
    """Rungs whose sources are others than those that were compiled, by ladder and name."""
    known = load()
    keys = {f"{ladder} {name}": code for (ladder, name), code in hashes().items()}
    return sorted(key for key, code in keys.items() if known.get(key, {}).get("code") != code)


def mirrored(kernel: Kernel) -> list[str]:
    """The CUDA rungs of the same design. A header that begins with nothing names others as well."""
    if kernel.header["Mirrors"].startswith("nothing"):
        return []
    return list(dict.fromkeys(rung_of(name) for name in twins(kernel, CUDA_RUNGS)))


def table(kernel: Kernel, below: str | None) -> str:
    """The counts of the rung below, of this one and of its CUDA twins; and its signs."""
    keys = [f"triton {below}"] * bool(below) + [f"triton {kernel.name}"]
    keys += [f"cuda {name}" for name in mirrored(kernel)]
    entries = {key: load()[key] for key in keys}
    shown = [name for name in SHOWN if any(name in e["counts"] for e in entries.values())]
    rows = [
        line(["", *(f"`{name}`" for name in shown), "registers"]),
        "|---|" + "--:|" * (1 + len(shown)),
    ]
    for key, entry in entries.items():
        ladder, _, name = key.partition(" ")
        title = f"{name} (CUDA)" if ladder == "cuda" else name
        counts = (str(entry["counts"].get(each, 0)) for each in shown)
        rows.append(
            line(
                [f"**{title}**" if name == kernel.name else title, *counts, str(entry["registers"])]
            )
        )
    own = entries[f"triton {kernel.name}"]
    return "\n".join([
        *rows, "",
        f"Instructions in the binary for sm_90, not executions; Triton's for 4096³ {LAYOUT}, "
        f"{DTYPE}, in {own['config']}. The signs, as `nvdisasm` prints them:",
        "", "```text", *own["lines"], "```",
    ])  # fmt: skip


def write(entries: Mapping[str, Any]) -> None:
    lines = (f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in sorted(entries.items()))
    text = ",\n".join(lines)
    DATA.write_text("{\n" + text + "\n}\n")
