"""The machine code of both ladders, counted: what a lesson shows as proof."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton

from cuda_reference import cubin, source
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from perf.competitors import rung_of, twins
from perf.sources import hashes
from perf.tables import Table, markdown
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
#: Template arguments of what is counted of a CUDA rung: the first of these that it has. Those are
#: the type of the operands, that of the sums and whether B is stored by rows, as far as the rung
#: has a choice. Those of wmma are of fp16 and have the type of the sums alone.
ARGUMENTS = (
    "__nv_bfloat16, float, false", "__nv_bfloat16, float", "__nv_bfloat16, false", "__nv_bfloat16",
    "float",
)  # fmt: skip


def record() -> dict[str, Any]:
    """Every rung's counts, by its ladder and name; compiles all of them, in minutes."""
    jobs = [asm.Job(kernel.name, sm=ARCH, layout=LAYOUT, dtype=DTYPE) for kernel in RUNGS]
    found = {}
    for kernel, code in zip(RUNGS, asm.compile_many(jobs, processes=2), strict=True):
        found[f"triton {kernel.name}"] = _entry("triton", kernel, code) | {
            "lines": _signs(code.sass, kernel), "registers": code.registers, "shared": code.shared,
            "config": code.config, "compiler": compiler(),
        }  # fmt: skip
    for kernel in CUDA_RUNGS:
        arch = "90a" if "90a" in source.architectures(kernel.name) else "90"
        functions = cubin.compile_cubin(kernel.name, arch).functions
        own = counted([function.name for function in functions])
        (function,) = (function for function in functions if function.name == own)
        found[f"cuda {kernel.name}"] = _entry("cuda", kernel, function) | {
            "registers": function.registers, "function": own,
        }  # fmt: skip
    return found


def compiler() -> str:
    """What compiles Triton's rungs here; another release makes other code of them."""
    return f"Triton {triton.__version__}"


def counted(functions: Sequence[str]) -> str:
    """Which of a CUDA rung's functions is, by `ARGUMENTS`."""
    by_arguments = {name.partition("<")[2].removesuffix(">"): name for name in functions}
    return next(by_arguments[each] for each in ARGUMENTS if each in by_arguments)


def _entry(ladder: str, kernel: Kernel, code: asm.Code | cubin.Function) -> dict[str, Any]:
    counts = {name: count for name in SHOWN if (count := code.count(name))}
    return {"code": hashes()[ladder, kernel.name], "counts": counts}


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


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Rungs whose record is another one now."""
    return [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]


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
    entries = {key: load()[key] for key in keys if key in load()}
    if f"triton {kernel.name}" not in entries:
        return "Not yet recorded: `python -m docs.record instructions`."
    shown = [name for name in SHOWN if any(name in e["counts"] for e in entries.values())]
    head, rows = ["", *(f"`{name}`" for name in shown), "registers"], []
    for key, entry in entries.items():
        ladder, _, name = key.partition(" ")
        title = f"{name} (CUDA)" if ladder == "cuda" else name
        counts = (str(entry["counts"].get(each, 0)) for each in shown)
        title = f"**{title}**" if name == kernel.name else title
        rows.append([title, *counts, str(entry["registers"])])
    own = entries[f"triton {kernel.name}"]
    said = (
        f"Instructions in the binary for sm_90, not executions; {own['compiler']}'s for 4096³ "
        f"{LAYOUT}, {DTYPE}, in {own['config']}.{of_cuda(mirrored(kernel))} The signs, as "
        "`nvdisasm` prints them:"
    )
    signs = "\n".join(["```text", *own["lines"], "```"])
    return markdown([Table(head, rows), said, signs])


def of_cuda(names: Sequence[str]) -> str:
    """A sentence on what `ARGUMENTS` takes of these CUDA rungs; nothing if there are none."""
    if not names:
        return ""
    wmma = any(name.startswith("wmma_") for name in names)
    exception = ", wmma's those for fp16, their only type" if wmma else ""
    return f" CUDA's are the kernels for {LAYOUT} and {DTYPE} with sums in fp32{exception}."
