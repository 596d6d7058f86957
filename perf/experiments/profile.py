"""`python -m perf profile`: one warm launch of one kernel, under Nsight Compute.

ncu starts Python anew with the same words and `--child`; that process checks the kernel, warms it
up and lets ncu see one launch, or prints why it could not.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.rungs import RUNGS
from tritemm.spec import Config

from .. import cli
from ..case import Case, parse_layout, parse_size
from ..competitors import of_kernels, of_matmul, problem_of, rung_of
from ..engine import Competitor
from ..machine import ROOT
from ..operands import operands, reference, verify
from ..problems import refuse_unknown
from ..rows import CUDA, REFERENCE, TRITON
from ..rungs import build
from ..session import now
from ..sources import hashes
from ..tables import align

#: Launches before the one that counts; how many reasons to wait are shown.
WARM, TOP = 5, 5
#: The rung whose name it is tritemm.matmul's to choose.
AUTO = "auto"

EXAMPLES = """
python -m perf profile pipelined
python -m perf profile wmma_padding --size 8192 --layout NN
python -m perf profile 'permuted[2]'
python -m perf profile split_k --chosen --size 768x768x65536 --layout TN
python -m perf profile auto --size 16x4096x4096
python -m perf profile cublas --size 4096x1280x8192 --json
python -m perf profile persistent --dtype fp32 --precision tf32
"""


def register(commands) -> None:
    text = "Count what one warm launch of a rung, or of cuBLAS, does: bytes, conflicts, stalls."
    command = cli.add_command(commands, "profile", run, text, EXAMPLES)
    add = command.add_argument
    text = f"a rung of either ladder, {AUTO} or {REFERENCE}; `permuted[1]` is its second config"
    add("rung", metavar="RUNG", help=text)
    text = "use the config that tritemm.matmul(kernel=RUNG) chooses for the size, not its first"
    add("--chosen", action="store_true", help=text)
    add(
        "--size",
        type=cli.argument(parse_size),
        default="4096",
        help="N for a cube or MxNxK; default: 4096",
    )
    layout = cli.argument(parse_layout)
    add("--layout", type=layout, default="NT", help="NN, NT, TN or TT; default: NT")
    cli.add_types(command, "bf16, or fp16 if the rung takes no bf16")
    command.set_defaults(dtype=None)
    add(
        "--ncu",
        metavar="PATH",
        default="ncu",
        help="path of Nsight Compute; default: ncu on the PATH",
    )
    add("--json", action="store_true", help="print one object, in s, bytes and %%")
    add("--child", action="store_true", help=argparse.SUPPRESS)


class Unprofiled(Exception):
    """Why there is no profile, as a sentence."""


def run(args: argparse.Namespace) -> int:
    """0; 2 if it can't be profiled, as where the output is wrong; 130 after Ctrl-C."""
    try:
        if args.child:
            _child(args)
        else:
            print(_profiled(args))
    except Unprofiled as error:
        return cli.refuse(error)
    except KeyboardInterrupt:
        return 130
    return 0


def _profiled(args: argparse.Namespace) -> str:
    if reason := cli.unable("profile"):
        raise Unprofiled(reason)
    case, entrant = subject(args)
    if (ncu := shutil.which(args.ncu)) is None:
        raise Unprofiled(
            f"{args.ncu} was not found: install Nsight Compute (it comes with the CUDA toolkit) "
            "or name it with --ncu PATH"
        )
    if entrant.refusal:
        raise Unprofiled(f"{entrant.name}, {case}: {entrant.refusal}")
    if entrant.ladder == CUDA:  # here, where ncu does not follow the compiler
        unavailable, broken = build([entrant.rung])
        if unavailable or broken:
            raise Unprofiled(unavailable or broken[entrant.rung])
    cli.say(f"{entrant.name}: {case}, under ncu")
    gpu, code = torch.cuda.get_device_name(), hashes().get((entrant.ladder, entrant.rung))
    kernels = _counters(os.path.abspath(ncu), args.argv)
    if args.json:
        head = {"time": now(), "rung": entrant.name, "ladder": entrant.ladder, "gpu": gpu}
        head |= {"code": code, "case": dataclasses.asdict(case), "config": entrant.config}
        counted = {"kernels": [kernel._asdict() for kernel in kernels], "all": total(kernels)}
        return json.dumps(head | counted)
    config = f"\n{Config(**entrant.config)}" if entrant.config else ""
    warm = (
        f"one launch, repeated with an empty L2 for each group of counters, after {WARM} to warm "
        "up; no clock is locked, so that times are no benchmark"
    )
    return f"{entrant.name}, {case}, on {gpu}{config}\n{warm}\n\n{text(kernels, case)}"


def subject(args: argparse.Namespace) -> tuple[Case, Competitor]:
    """The case and the kernel in its config, of the first type that the kernel takes."""
    some = ("fp16",) if args.accumulate == "fp16" else ("bf16", "fp16")
    known = [*(kernel.name for kernel in (*RUNGS, *CUDA_RUNGS)), AUTO, REFERENCE]
    try:
        refuse_unknown("rung", [rung_of(args.rung)], known)
        found = [_entry(args, dtype) for dtype in ([args.dtype] if args.dtype else some)]
    except ValueError as error:
        raise Unprofiled(error) from None
    return next((pair for pair in found if not pair[1].refusal), found[0])


def _entry(args: argparse.Namespace, dtype: str) -> tuple[Case, Competitor]:
    accumulate = cli.accumulator(args, dtype)
    case = Case(*args.size, args.layout, dtype, accumulate, args.precision)
    rung = rung_of(args.rung)
    mine = any(kernel.name == rung for kernel in RUNGS)
    if args.chosen or rung == AUTO:
        if rung != args.rung or not (mine or rung == AUTO):
            raise ValueError(
                f"{args.rung} can't be chosen: the dispatcher takes one config of a Triton rung"
            )
        return case, of_matmul(case, operands(case, "cuda"), rung)
    if args.rung == REFERENCE:
        return case, Competitor(REFERENCE, reference(case))
    kernels, ladder = (RUNGS, TRITON) if mine else (CUDA_RUNGS, CUDA)
    chosen = {"ladder": ladder, "only": (rung,), "configs": "all"}
    every = of_kernels(problem_of(case), kernels, **chosen)
    named = {entrant.name: entrant for entrant in every}
    if every[0].refusal:  # it has no configs then
        return case, every[0]
    if args.rung not in named:
        raise ValueError(f"{args.rung}: for {case} there are {', '.join(named)}")
    return case, named[args.rung]


def ready(entrant: Competitor, case: Case) -> Callable[[], None]:
    """One launch on random data, warmed up and checked; raises Unprofiled on a wrong output.

    A wrong cuBLAS is only said to be so, as in the races: it is what a user gets.
    """
    torch.manual_seed(0)
    sets = [operands(case, "cuda")]

    def launch() -> None:
        entrant.run(*sets[0])

    try:
        launch()
        verdict = verify(case, sets, launch, 1, split=entrant.split)
        for _ in range(WARM):
            launch()
        torch.cuda.synchronize()
    except Exception as error:  # a compiler's or a driver's, of any type
        raise Unprofiled(f"{entrant.name} failed: {type(error).__name__}: {error}") from error
    if not verdict.ok:
        message = f"{entrant.name} is wrong: {verdict.message}"
        if entrant.name != REFERENCE:
            raise Unprofiled(f"{message}; a red kernel is not profiled")
        cli.say(message)
    return launch


def _child(args: argparse.Namespace) -> None:
    """What ncu watches."""
    launch = ready(*reversed(subject(args)))
    with torch.cuda.profiler.profile():
        launch()
        torch.cuda.synchronize()


def _counters(ncu: str, argv: Sequence[str]) -> list[Profile]:
    """What ncu counts; it is asked again, without them, if the chip lacks some counters.

    The clocks stay as they are, L2 is emptied before every pass, one launch is looked at.
    """
    how = "--clock-control none --cache-control all --profile-from-start off"
    how += " --target-processes all --csv --page raw --print-units base"
    child = [sys.executable, "-m", "perf", *argv, "--child"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "errors": "replace"}
    lacking: set[str] = set()
    while True:
        asked = metrics(lacking)
        words = [ncu, *how.split(), "--metrics", ",".join(asked), *child]
        output = subprocess.run(words, cwd=ROOT, check=False, **streams).stdout
        if kernels := parse(output):
            return kernels
        if not (missing := unknown(output, asked)):
            raise Unprofiled(reason(output))
        lacking |= missing
        cli.say(f"this chip has no {', '.join(sorted(missing))}; again without")


# What ncu counts


class Counter(NamedTuple):
    """A line of the table. `names` are ncu's; the first that it knows is used.

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
_STALLED, _ISSUED = "smsp__average_warps_issue_stalled_", "_per_issue_active"
_HMMA = tuple(f"sm__pipe_tensor_{op}hmma_cycles_active.{_ACTIVE}" for op in ("op_", "subpipe_"))
_READ = ("dram__bytes_read.sum", "dram__bytes_op_read.sum")
_WRITTEN = ("dram__bytes_write.sum", "dram__bytes_op_write.sum")
#: Those of the load and store unit: TMA and WGMMA reach shared memory without it.
CONFLICTS = (
    Counter("  by loads", "count", (f"{_BANKS}_op_ld.sum",)),
    Counter("  by stores", "count", (f"{_BANKS}_op_st.sum",)),
)
#: Newer chips have other names for some of the counters.
COUNTERS = (
    Counter("duration", "us", ("gpu__time_duration.sum",), adds=True),
    Counter("DRAM read", "MB", _READ, adds=True),
    Counter("DRAM written", "MB", _WRITTEN, adds=True),
    Counter("L2 traffic", "MB", ("lts__t_bytes.sum",), adds=True),
    Counter("L2 hit rate", "%", ("lts__t_sector_hit_rate.pct",)),
    Counter("SMs at work", "%", ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed",)),
    Counter("tensor pipe busy", "%", (f"sm__pipe_tensor_cycles_active.{_ACTIVE}",)),
    Counter("  with HMMA or WGMMA of 16 bits or tf32", "%", _HMMA),
    Counter("WGMMA instructions", "count", ("sm__inst_executed_pipe_tensor_op_gmma.sum",)),
    Counter("shared-memory bank conflicts", "count", (f"{_BANKS}.sum",)),
    *CONFLICTS,
    Counter("registers per thread", "count", ("launch__registers_per_thread",)),
    Counter("shared memory per block", "bytes", ("launch__shared_mem_per_block",)),
    Counter("achieved occupancy", "%", (f"sm__warps_active.{_ACTIVE}",)),
)
#: Asked for by a pattern, because each chip has its own list.
STALL_PATTERN = f"regex:{_STALLED}.*{_ISSUED}"
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
#: ncu's base units, in seconds; all others stay as they are.
_UNITS = {"ns": 1e-9, "nsecond": 1e-9}


class Profile(NamedTuple):
    """One kernel: `values` by ncu's names, in seconds, bytes, percent or counts."""

    kernel: str
    grid: str
    block: str
    values: dict[str, float]

    def stalls(self) -> list[tuple[str, float]]:
        """Reasons by ncu's words and the warps stalled so per issued instruction, most first."""
        form = re.compile(rf"{_STALLED}(?!selected_per|.*not_issued)(\w+){_ISSUED}(\.ratio)?")
        named = ((form.fullmatch(name), value) for name, value in self.values.items())
        found = [(match[1], value) for match, value in named if match and value]
        return sorted(found, key=lambda pair: -pair[1])


def metrics(unknown: Collection[str] = ()) -> list[str]:
    """What to ask ncu for: of each counter the first name that is not `unknown` to it."""
    firsts = (next((n for n in c.names if n not in unknown), None) for c in COUNTERS)
    return [name for name in (*firsts, STALL_PATTERN) if name and name not in unknown]


def unknown(output: str, asked: Sequence[str]) -> set[str]:
    """Those of `asked` that ncu failed over because this chip has no such counter."""
    lines = [line for line in output.splitlines() if "Failed to find metric" in line]
    said = "\n".join(lines).replace("\\", "")
    bases = {name: name.removeprefix("regex:").partition(".")[0] for name in asked}
    return {n for n, base in bases.items() if re.search(rf"(?<!\w){re.escape(base)}(?!\w)", said)}


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
            where = (cells.get(name, "?") for name in ("Grid Size", "Block Size"))
            found.append(Profile(cells["Kernel Name"], *where, counted))
    return found


def _number(text: str, unit: str) -> float | None:
    """The number in seconds, bytes or its own unit; commas separate thousands."""
    text = text.replace(",", "")
    if not re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text, re.IGNORECASE):
        return None
    return float(text) * _UNITS.get(unit, 1)


def reason(output: str) -> str:
    """A sentence on why ncu counted nothing."""
    if "ERR_NVGPUCTRPERM" in output:
        return (
            "ncu may not read this GPU's counters (ERR_NVGPUCTRPERM): run it as root, start the "
            "container with --cap-add=SYS_ADMIN, or load the driver with "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR==")]
    said = " ".join(error for error in errors if "application returned" not in error)
    if "LibraryNotLoaded" in output:
        said = said or next(line for line in lines if "LibraryNotLoaded" in line)
        return f"this machine has no counters for ncu, as in some sandboxes: {said}"
    if said:
        return f"ncu failed: {said}"
    return "\n".join(["ncu counted no kernel; its last words:", *lines[-20:]])


def total(profiles: Sequence[Profile]) -> dict[str, float]:
    """Seconds and bytes of all kernels together, by ncu's names; those that each has counted."""
    names = [name for counter in COUNTERS if counter.adds for name in counter.names]
    whole = [name for name in names if profiles and all(name in p.values for p in profiles)]
    return {name: sum(p.values[name] for p in profiles) for name in whole}


def text(profiles: Sequence[Profile], case: Case) -> str:
    """A section per kernel, and the sums."""
    parts = []
    for profile in profiles:
        lines, stalls = _counted(profile.values), profile.stalls()[:TOP]
        lines += [("warps that wait, per issued instruction, for", "" if stalls else "not counted")]
        lines += [(f"  {waiting(word)}", f"{warps:.2f}") for word, warps in stalls]
        title = f"{profile.kernel}\ngrid {profile.grid}, block {profile.block}"
        parts.append(f"{title}\n{align(lines)}")
    sums, count = total(profiles), len(profiles)
    lines = _counted(sums, [c for c in COUNTERS if c.adds and count > 1])
    moved = [c.value(sums) for c in COUNTERS if c.names in (_READ, _WRITTEN)]
    ratio = "not counted" if None in moved else f"{sum(moved) / case.bytes:.2f}"
    lines.append(("DRAM traffic over the least, A, B and C once", ratio))
    parts.append(f"{count} kernel{'s' * (count > 1)} in all\n{align(lines)}")
    return "\n\n".join(parts)


def _counted(values: dict, counters: Sequence[Counter] = COUNTERS) -> list[tuple[str, str]]:
    return [(c.label, shown(c.value(values), c.kind)) for c in counters]


def waiting(word: str) -> str:
    """What a stalled warp waits for, and ncu's word for it."""
    return f"{STALLS[word]} ({word})" if word in STALLS else word


def shown(value: float | None, kind: str) -> str:
    """A value in seconds, bytes, percent or a count, as its kind is shown."""
    if value is None:
        return "not counted"
    scale, form, unit = {
        "us": (1e-6, ",.1f", " us"), "MB": (1e6, ",.1f", " MB"), "%": (1, ".1f", " %"),
        "count": (1, ",.0f", ""), "bytes": (1, ",.0f", " bytes"),
    }[kind]  # fmt: skip
    return f"{value / scale:{form}}{unit}"
