"""The generated parts of docs/concepts/blackwell.md."""

from docs import code as rungs
from perf.tables import Table, markdown
from tritemm.arch.gpus import DEVICES

from . import code
from .shape import VERSIONS

#: The rung that the page begins with, as docs/code.json has it.
RUNG = "warp_specialized"
#: Bytes of an element of A or B.
ELEMENT = 2
#: Instructions and what they are in PTX, in the order of a step's way.
ROWS = {
    "UTMALDG": "a box by TMA",
    "HGMMA": "`wgmma`, a warpgroup's product",
    "UTCHMMA": "`tcgen05.mma`, a thread's product",
    "UTCBAR": "`tcgen05.commit`, an arrival when products are complete",
    "LDTM": "`tcgen05.ld`, sums into registers",
    "UTMASTG": "a piece of C by TMA",
    "UTCATOMSWS": "`tcgen05.alloc` and `dealloc`",
    "USETMAXREG": "`setmaxnreg`, registers from one role to another",
    "UCGABAR_ARV": "`barrier.cluster`",
    "UGETNEXTWORKID": "`clusterlaunchcontrol.try_cancel`",
}


def parts() -> dict[str, str]:
    return {"blackwell-sizes": sizes(), "blackwell-code": instructions()}


def sizes() -> str:
    """What each version takes."""
    recorded, limit = code.load(), DEVICES[code.ARCH].shared
    rows = []
    for name, shape in VERSIONS.items():
        own = recorded[name]
        stage = (shape.BLOCK_M + shape.BLOCK_N) // shape.CTAS * shape.BLOCK_K * ELEMENT
        rows.append([
            f"`{name}`", str(shape.CTAS), f"{shape.BLOCK_M} x {shape.BLOCK_N}",
            f"{shape.STAGES} x {stage // 1024} KB", f"{own['shared'] / 1024:.0f} KB",
            f"{shape.ACCUMULATORS} x {own['columns'] // shape.ACCUMULATORS}",
            str(own["registers"]),
        ])  # fmt: skip
    head = ["version", "programs", "their tile", "stages", "shared memory", "columns of sums",
            "registers of a thread"]  # fmt: skip
    said = (
        f"Of each program, which has at most {limit // 1024} KB of shared memory and "
        f"{code.COLUMNS} columns."
    )
    return markdown([Table(head, rows), said])


def instructions() -> str:
    """How often each instruction is in rung 10 and in both versions, and how it is written."""
    recorded, hopper = code.load(), rungs.load()[f"{RUNG} sm_{rungs.ARCH}"]
    entries = [hopper, *recorded.values()]
    rows = [
        [f"`{sign}`", words, *(str(code.count(entry, sign)) for entry in entries)]
        for sign, words in ROWS.items()
    ]
    head = ["instruction", "is", RUNG, *(f"`{name}`" for name in recorded)]
    said = (
        f"Instructions in the binary, not executions: {RUNG}'s for sm_{rungs.ARCH} by "
        f"{hopper['compiler']}, the kernel's for sm_{code.ARCH} by {recorded['one']['compiler']}. "
        "Those of `pair` begin like this:"
    )
    lines = "\n".join(["```text", *recorded["pair"]["lines"], "```"])
    return markdown([Table(head, rows, words=2), said, lines])
