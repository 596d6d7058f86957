"""What Nsight Compute (ncu) counts in one launch, in plain words; and what Proton times."""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from .case import Case


@dataclasses.dataclass(frozen=True)
class Counter:
    """A line of the table. `names` are ncu's, the first that it knows is asked for.

    `kind` is us, MB, bytes, % or count: how the value is shown. `adds`: a sum over kernels means
    something.
    """

    label: str
    kind: str
    names: tuple[str, ...]
    adds: bool = False

    def value(self, values: dict[str, float]) -> float | None:
        """Seconds, bytes, percent or a count; None if ncu did not count it."""
        return next((values[name] for name in self.names if name in values), None)


_ACTIVE = "avg.pct_of_peak_sustained_active"
_BANKS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_STALLED = "smsp__average_warps_issue_stalled_"
_ISSUED = "_per_issue_active"

#: Those of the load and store unit: TMA and WGMMA reach shared memory without it.
CONFLICTS = (
    Counter("  by loads", "count", (f"{_BANKS}_op_ld.sum",)),
    Counter("  by stores", "count", (f"{_BANKS}_op_st.sum",)),
)
#: Newer chips have other names for some of the counters.
COUNTERS = (
    Counter("duration", "us", ("gpu__time_duration.sum",), adds=True),
    Counter("DRAM read", "MB", ("dram__bytes_read.sum", "dram__bytes_op_read.sum"), adds=True),
    Counter("DRAM written", "MB", ("dram__bytes_write.sum", "dram__bytes_op_write.sum"), adds=True),
    Counter("L2 traffic", "MB", ("lts__t_bytes.sum",), adds=True),
    Counter("L2 hit rate", "%", ("lts__t_sector_hit_rate.pct",)),
    Counter("tensor pipe busy", "%", (f"sm__pipe_tensor_cycles_active.{_ACTIVE}",)),
    Counter(
        "  with HMMA or WGMMA of 16 bits or tf32",
        "%",
        tuple(f"sm__pipe_tensor_{op}hmma_cycles_active.{_ACTIVE}" for op in ("op_", "subpipe_")),
    ),
    Counter("WGMMA instructions", "count", ("sm__inst_executed_pipe_tensor_op_gmma.sum",)),
    Counter("shared-memory bank conflicts", "count", (f"{_BANKS}.sum",)),
    *CONFLICTS,
    Counter("registers per thread", "count", ("launch__registers_per_thread",)),
    Counter("shared memory per block", "bytes", ("launch__shared_mem_per_block",)),
    Counter("achieved occupancy", "%", (f"sm__warps_active.{_ACTIVE}",)),
)

#: Asked for by a pattern, because each chip has its own list.
STALL_PATTERN = f"regex:{_STALLED}.*{_ISSUED}"
#: How many reasons are shown.
TOP = 5
#: What a warp that can't be issued waits for, by ncu's word. "selected" is no stall.
STALLS = {
    "barrier": "the block's other warps, at a barrier",
    "branch_resolving": "the target of a branch",
    "dispatch_stall": "the dispatcher",
    "drain": "its stores, before it exits",
    "gmma": "its warpgroup, before a WGMMA",
    "imc_miss": "a constant that is not in the cache",
    "lg_throttle": "room in the queue of global and local memory",
    "long_scoreboard": "data from L2 or DRAM",
    "math_pipe_throttle": "the arithmetic pipe that it needs",
    "membar": "a memory fence",
    "mio_throttle": "room in the queue of shared memory and special instructions",
    "misc": "something else",
    "no_instruction": "its next instruction, to be fetched",
    "not_selected": "its turn: it is ready, and another warp was issued",
    "short_scoreboard": "data from shared memory or a special unit",
    "sleeping": "the end of its sleep",
    "tex_throttle": "room in the texture queue",
    "wait": "the fixed latency of its last instruction",
}

#: ncu's units, up to any "/", in seconds and bytes; all others stay as they are.
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3}
_UNITS |= {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12}


@dataclasses.dataclass(frozen=True)
class Profile:
    """One kernel: `values` by ncu's names, in seconds, bytes, percent or counts."""

    kernel: str
    grid: str
    block: str
    values: dict[str, float]

    def stalls(self) -> list[tuple[str, float]]:
        """Reasons by ncu's words and the warps stalled so per issued instruction, most first."""
        found = {}
        for name, value in self.values.items():
            base = name.removesuffix(".ratio")
            if base.startswith(_STALLED) and base.endswith(_ISSUED):
                found[base.removeprefix(_STALLED).removesuffix(_ISSUED)] = value
        none = {r for r, v in found.items() if r == "selected" or "not_issued" in r or not v}
        return sorted(((r, v) for r, v in found.items() if r not in none), key=lambda p: -p[1])


def metrics(unknown: Collection[str] = ()) -> list[str]:
    """What to ask ncu for: of each counter the first name that is not `unknown` to it."""
    firsts = (next((n for n in c.names if n not in unknown), None) for c in COUNTERS)
    return [name for name in (*firsts, STALL_PATTERN) if name and name not in unknown]


def command(ncu: str, log: Path, asked: Sequence[str], child: Sequence[str]) -> list[str]:
    """The clocks stay as they are, L2 is emptied before every pass, one launch is looked at."""
    return [
        ncu, "--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off",
        "--target-processes", "all", "--csv", "--page", "raw", "--print-units", "base",
        "--log-file", str(log), "--metrics", ",".join(asked), *child,
    ]  # fmt: skip


def unknown(output: str, asked: Sequence[str]) -> set[str]:
    """Those of `asked` that ncu failed over because this chip has no such counter."""
    lines = [line for line in output.splitlines() if "Failed to find metric" in line]
    said = "\n".join(lines).replace("\\", "")

    def named(name: str) -> bool:
        base = name.removeprefix("regex:").partition(".")[0]
        return re.search(rf"(?<!\w){re.escape(base)}(?!\w)", said) is not None

    return {name for name in asked if named(name)}


def parse(output: str) -> list[Profile]:
    """The kernels in what `ncu --csv --page raw` prints: a row of names, one of units, the rows.

    What is not CSV is skipped, and so is every value that is no number ("n/a").
    """
    found: list[Profile] = []
    names: list[str] = []
    units: list[str] = []
    for row in csv.reader(line for line in output.splitlines() if line.startswith('"')):
        if "Kernel Name" in row:
            names, units = row, [""] * len(row)
        elif names and len(row) == len(names):
            cells = dict(zip(names, row, strict=True))
            if not cells["Kernel Name"]:
                units = row
                continue
            values = {n: _number(v, u) for n, v, u in zip(names, row, units, strict=True)}
            counted = {n: v for n, v in values.items() if v is not None and "__" in n}
            grid, block = cells.get("Grid Size", "?"), cells.get("Block Size", "?")
            found.append(Profile(cells["Kernel Name"], grid, block, counted))
    return found


def _number(text: str, unit: str) -> float | None:
    """In seconds, bytes or the unit as it is; commas stand between thousands."""
    text = text.replace(",", "")
    if not re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text, re.IGNORECASE):
        return None
    return float(text) * _UNITS.get(unit.partition("/")[0], 1)


def reason(output: str) -> str:
    """A sentence on why ncu counted nothing."""
    other = "`--tool proton` times kernels without counters"
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "ncu may not read this GPU's counters (ERR_NVGPUCTRPERM): run it as root, start the "
            "container with --cap-add=SYS_ADMIN, or load the driver with "
            f"NVreg_RestrictProfilingToAdminUsers=0; {other}"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR==")]
    said = " ".join(error for error in errors if "application returned" not in error)
    if "LibraryNotLoaded" in output:
        said = said or next(line for line in lines if "LibraryNotLoaded" in line)
        return f"this machine has no counters for ncu, as in some sandboxes: {said} Here {other}"
    if said:
        return f"ncu failed: {said}\n{other}"
    return "\n".join(["ncu counted no kernel; its last words:", *lines[-20:], other])


def total(profiles: Sequence[Profile]) -> dict[str, float]:
    """Seconds and bytes of all kernels together, by ncu's names; those that each has counted."""
    sums = {}
    for counter in COUNTERS:
        for name in counter.names if counter.adds else ():
            counted = [p.values[name] for p in profiles if name in p.values]
            if counted and len(counted) == len(profiles):
                sums[name] = sum(counted)
    return sums


def text(profiles: Sequence[Profile], case: Case) -> str:
    """A section per kernel, and the sums."""
    return "\n\n".join([*map(_section, profiles), _sums(profiles, case)])


def _section(profile: Profile) -> str:
    lines = [(c.label, _show(c.value(profile.values), c.kind)) for c in COUNTERS]
    stalls = profile.stalls()[:TOP]
    lines += [("warps that wait, per issued instruction, for", "" if stalls else "not counted")]
    lines += [(f"  {_plain(word)}", f"{warps:.2f}") for word, warps in stalls]
    title = f"{profile.kernel}\ngrid {profile.grid}, block {profile.block}"
    return f"{title}\n{aligned(lines)}"


def _plain(word: str) -> str:
    return f"{STALLS[word]} ({word})" if word in STALLS else word


def _sums(profiles: Sequence[Profile], case: Case) -> str:
    sums, count = total(profiles), len(profiles)
    lines = [(c.label, _show(c.value(sums), c.kind)) for c in COUNTERS if c.adds and count > 1]
    moved = [c.value(sums) for c in COUNTERS if c.label in ("DRAM read", "DRAM written")]
    ratio = "not counted" if None in moved else f"{sum(moved) / case.bytes:.2f}"
    lines.append(("DRAM traffic over the least, A, B and C once", ratio))
    return f"{count} kernel{'s' * (count > 1)} in all\n{aligned(lines)}"


def aligned(lines: Sequence[tuple[str, str]]) -> str:
    """Labels and values in two columns."""
    width = max(len(label) for label, _ in lines)
    return "\n".join(f"  {label.ljust(width)}  {value:>14}".rstrip() for label, value in lines)


def _show(value: float | None, kind: str) -> str:
    """A value in seconds, bytes, percent or a count, as its kind is shown."""
    if value is None:
        return "not counted"
    if kind == "us":
        return f"{value * 1e6:,.1f} us"
    if kind == "MB":
        return f"{value / 1e6:,.1f} MB"
    return f"{value:.1f} %" if kind == "%" else f"{value:,.0f}" + " bytes" * (kind == "bytes")


def proton_kernels(tree: Sequence[dict]) -> list[tuple[str, float]]:
    """Names and microseconds of the leaves that have a time."""
    found: list[tuple[str, float]] = []
    for node in tree:
        nanoseconds = node.get("metrics", {}).get("time (ns)")
        if node.get("children"):
            found += proton_kernels(node["children"])
        elif nanoseconds:
            found.append((node["frame"]["name"], nanoseconds / 1e3))
    return found
