"""The machine code of both ladders, counted: what a lesson shows as proof."""

from collections.abc import Mapping, Sequence
from typing import Any

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from docs import code
from perf.competitors import rung_of, twins
from perf.tables import Table, markdown
from tritemm.compile.asm import own_type
from tritemm.rungs import RUNGS
from tritemm.spec import Kernel

#: What is counted, as far as a kernel has it; the names are those of "CUDA Binary Utilities".
SHOWN = (
    "FFMA", "DMMA", "HMMA", "HGMMA", "QGMMA", "LDG", "STS", "LDS", "LDSM", "LDGSTS", "UTMALDG",
    "UTMASTG", "STSM", "SYNCS", "BAR", "USETMAXREG", "UCGABAR_ARV",
)  # fmt: skip


def mirrored(kernel: Kernel) -> list[str]:
    """The CUDA rungs of the same design. A header that begins with nothing names others as well."""
    if kernel.header["Mirrors"].startswith("nothing"):
        return []
    return list(dict.fromkeys(rung_of(name) for name in twins(kernel, CUDA_RUNGS)))


def table(kernel: Kernel, below: str | None) -> str:
    """The counts of the rung below, of this one and of its CUDA twins; and its signs."""
    names = [below] * bool(below) + [kernel.name, *mirrored(kernel)]
    keys = {name: f"{name} sm_{code.ARCH}" for name in names}
    entries = {name: code.load()[key] for name, key in keys.items() if key in code.load()}
    if kernel.name not in entries:
        return "Not yet recorded: `python -m docs.record code`."
    own = {each.name: each for each in RUNGS}
    shown = [name for name in SHOWN if any(code.count(e, name) for e in entries.values())]
    head, rows = ["", *(f"`{name}`" for name in shown), "registers"], []
    for name, entry in entries.items():
        title = name if name in own else f"{name} (CUDA)"
        counts = (str(code.count(entry, each)) for each in shown)
        title = f"**{title}**" if name == kernel.name else title
        rows.append([title, *counts, str(entry["registers"])])
    mine = entries[kernel.name]
    said = (
        "Instructions in the binary for sm_90, not executions. "
        f"The Triton kernels are what {mine['compiler']} makes for {products(own, entries)}."
        f"{of_cuda(mirrored(kernel))} The signs, as `nvdisasm` prints them:"
    )
    signs = "\n".join(["```text", *mine["lines"], "```"])
    return markdown([Table(head, rows), said, signs])


def products(own: Mapping[str, Kernel], entries: Mapping[str, Any]) -> str:
    """What each Triton kernel of the table multiplies, of which type, and in which config."""
    known = {
        name: (own_type(own[name]), entry["kernel"])
        for name, entry in entries.items() if name in own
    }  # fmt: skip
    types, product = {dtype for dtype, _ in known.values()}, f"4096³ {code.LAYOUT}"
    if len(types) == 1:
        product += f", {types.pop()}"
        each = [f"{name} in {config}" for name, (_, config) in known.items()]
    else:
        each = [f"{name} of {dtype} in {config}" for name, (dtype, config) in known.items()]
    if len(known) == 2 and len(set(known.values())) == 1:
        each = [f"both in {config}" for _, config in set(known.values())]
    cut = [name for name in known if code.cut(own[name])]
    each += [f"{name}'s rows are those of {code.GROUPS} groups" for name in cut]
    return f"{product}: {'; '.join(each)}"


def of_cuda(names: Sequence[str]) -> str:
    """A sentence on what `code.ARGUMENTS` takes of these CUDA rungs; nothing if there are none."""
    if not names:
        return ""
    if all(name.endswith("_fp8") for name in names):
        return f" The CUDA kernel is the one for {code.LAYOUT}, e4m3 and a C in {code.DTYPE}."
    wmma = any(name.startswith("wmma_") for name in names)
    exception = "; those of wmma are for fp16, their only type" if wmma else ""
    kinds = f"{code.LAYOUT} and {code.DTYPE} with sums in fp32"
    return f" The CUDA kernels are those for {kinds}{exception}."
