"""How many programs of a kernel an SM holds at once: the table of docs/tutorial/00_primer.md."""

import re

from docs import code
from docs.pictures import h200
from perf.tables import Table, markdown
from tritemm.arch import sm80

#: Rungs of the table: small tiles, large tiles, and large tiles with stages in shared memory.
SHOWN = ("simt", "tiled", "pipelined")
#: Registers come in eights for each thread. Of an SM's shared memory, in bytes, a program takes
#: `RESERVED` beside its own; and so many programs at most (CUDA programming guide, 9.0).
EIGHT, CAPACITY, RESERVED, MOST = 8, 228 * 1024, 1024, 32


def programs(warps: int, registers: int, shared: int) -> int:
    """Programs of an SM at once; `registers` of a thread, bytes of shared memory of a program."""
    threads = warps * h200.WARP
    held = -(-registers // EIGHT) * EIGHT * threads
    limits = (sm80.THREADS // threads, sm80.REGISTERS // held, CAPACITY // (shared + RESERVED))
    return min(*limits, MOST)


def table() -> str:
    """The rungs as they are compiled for sm_90."""
    rows = []
    for name in SHOWN:
        entry = code.load()[f"{name} sm_90"]
        (warps,) = map(int, re.findall(r"(\d+) warps", entry["kernel"]))
        registers, shared = entry["registers"], entry["shared"]
        found = programs(warps, registers, shared)
        share = f"{100 * found * warps / h200.WARPS:g} %"
        cells = (warps, registers, f"{shared // 1024} KB", found, found * warps, share)
        rows.append([name, *map(str, cells)])
    head = ["kernel", "warps of a program", "registers of a thread", "shared memory of a program",
            "programs on an SM", "warps on an SM", "occupancy"]  # fmt: skip
    return markdown([Table(head, rows)])


def parts() -> dict[str, str]:
    """The generated parts of the page."""
    return {"occupancy": table()}
