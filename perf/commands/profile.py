"""`python -m perf profile`: one warm launch of one kernel, under Nsight Compute or Proton.

ncu starts Python anew with the same words and `--child FILE`; that process checks the kernel,
warms it up and lets ncu see one launch. In FILE it leaves why it could not, if so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from tritemm.problem import Device, Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Config

from .. import profile
from ..ahead import build
from ..case import DTYPES, Case, parse_layout, parse_size
from ..cli import accumulator, add_command, add_types, argument, refuse, say, unable
from ..competitors import of_kernels, refuse_unknown
from ..engine import Competitor
from ..machine import ROOT
from ..operands import operands, verify
from ..reference import reference
from ..rows import CUDA, REFERENCE, TRITON
from ..session import now
from ..sources import hashes
from ..twins import rung_of

#: Launches before the one that counts.
WARM = 5

EXAMPLES = """
python -m perf profile pipelined
python -m perf profile wmma_padding --size 8192 --layout NN
python -m perf profile 'permuted[2]'
python -m perf profile cublas --size 4096x1280x8192 --json
python -m perf profile persistent --dtype fp32 --precision tf32 --tool proton
"""


def register(commands) -> None:
    text = "Count what one warm launch of a rung, or of cuBLAS, does: bytes, conflicts, stalls."
    command = add_command(commands, "profile", run, text, EXAMPLES)
    command.add_argument(
        "rung", metavar="RUNG",
        help=f"of either ladder, or {REFERENCE}; `permuted[1]` is one in its second config",
    )  # fmt: skip
    size = argument(parse_size)
    command.add_argument("--size", type=size, default="4096", help="4096 (default) or MxNxK")
    layout = argument(parse_layout)
    command.add_argument("--layout", type=layout, default="NT", help="NN, NT (default), TN or TT")
    add_types(command, "bf16, or fp16 where the rung takes no bf16")
    command.set_defaults(dtype=None)
    command.add_argument(
        "--tool", choices=("ncu", "proton"), default="ncu",
        help="Nsight Compute (default), or Triton's Proton, which times kernels and counts nothing",
    )  # fmt: skip
    command.add_argument("--ncu", metavar="PATH", default="ncu", help="default: on the PATH")
    command.add_argument("--json", action="store_true", help="print one object, units: s, byte, %%")
    command.add_argument("--child", type=Path, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """0; 1 if the output is wrong; 2 if it can't be profiled; 130 after Ctrl-C."""
    try:
        return _child(args) if args.child else _parent(args)
    except KeyboardInterrupt:
        return 130


def _parent(args: argparse.Namespace) -> int:
    if reason := unable("profile"):
        return refuse(reason)
    ncu = shutil.which(args.ncu)
    if args.tool == "ncu" and ncu is None:
        return refuse(
            f"{args.ncu} was not found: install Nsight Compute (it comes with the CUDA toolkit) "
            "or name it with --ncu PATH; `--tool proton` needs nothing more"
        )
    try:
        case, entrant = subject(args)
    except ValueError as error:
        return refuse(str(error))
    if entrant.refusal:
        return refuse(f"{entrant.name}, {case}: {entrant.refusal}")
    if entrant.ladder == CUDA:  # here, where ncu does not follow the compiler
        unavailable, broken = build([entrant.rung])
        if unavailable or broken:
            return refuse(unavailable or broken[entrant.rung])
    say(f"{entrant.name}: {case}, under {args.tool}")
    try:
        if args.tool == "proton":
            body, fields = _under_proton(entrant, case)
        else:
            body, fields = _under_ncu(os.path.abspath(ncu), args, case)
    except Unprofiled as error:
        refuse(str(error))
        return error.status
    head = {
        "time": now(),
        "rung": entrant.name,
        "ladder": entrant.ladder,
        "tool": args.tool,
        "gpu": torch.cuda.get_device_name(),
        "code": hashes().get((entrant.ladder, entrant.rung)),
        "case": dataclasses.asdict(case),
        "config": entrant.config,
    }
    print(json.dumps(head | fields) if args.json else f"{_title(head, case)}\n\n{body}")
    return 0


def _title(head: dict, case: Case) -> str:
    config = f"\n{Config(**head['config'])}" if head["config"] else ""
    how = (
        "one launch, repeated with an empty L2 for each group of counters"
        if head["tool"] == "ncu"
        else "one launch"
    )
    warm = f"{how}, after {WARM} to warm up; no clock is locked, so that times are no benchmark"
    return f"{head['rung']}, {case}, on {head['gpu']}{config}\n{warm}"


class Unprofiled(Exception):
    """Why there is no profile, as a sentence, and the command's exit status."""

    def __init__(self, sentence: str, status: int = 2):
        super().__init__(sentence)
        self.status = status


def subject(args: argparse.Namespace) -> tuple[Case, Competitor]:
    """The case and the kernel in its config; raises ValueError with a sentence."""
    try:
        refuse_unknown({rung_of(args.rung)} - {REFERENCE}, (*RUNGS, *CUDA_RUNGS))
    except ValueError as error:
        raise ValueError(f"{error}, {REFERENCE}") from None
    some = ("fp16",) if args.accumulate == "fp16" else ("bf16", "fp16")
    found = [_entry(args, dtype) for dtype in ([args.dtype] if args.dtype else some)]
    return next((pair for pair in found if not pair[1].refusal), found[0])


def _entry(args: argparse.Namespace, dtype: str) -> tuple[Case, Competitor]:
    accumulate = accumulator(args, dtype)
    case = Case(*args.size, args.layout, dtype, accumulate, args.precision)
    if args.rung == REFERENCE:
        return case, Competitor(REFERENCE, reference(case))
    problem = Problem.of(
        *operands(case, "meta"),
        accumulate=DTYPES[accumulate],
        precision=case.precision,
        device=Device.of(torch.device("cuda")),
    )
    rung = rung_of(args.rung)
    mine = any(kernel.name == rung for kernel in RUNGS)
    kernels, ladder = (RUNGS, TRITON) if mine else (CUDA_RUNGS, CUDA)
    every = of_kernels(problem, kernels, ladder=ladder, only=(rung,), configs="all")
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
        verdict = verify(case, sets, launch, 1)
        for _ in range(WARM):
            launch()
        torch.cuda.synchronize()
    except Exception as error:  # a compiler's or a driver's, of any type
        raise Unprofiled(f"{entrant.name} failed: {type(error).__name__}: {error}") from error
    if not verdict.ok:
        message = f"{entrant.name} is wrong: {verdict.message}"
        if entrant.name != REFERENCE:
            raise Unprofiled(f"{message}; a red kernel is not profiled", status=1)
        say(message)
    return launch


def _child(args: argparse.Namespace) -> int:
    """What ncu watches."""
    try:
        case, entrant = subject(args)
        launch = ready(entrant, case)
    except Unprofiled as error:
        args.child.write_text(json.dumps({"status": error.status, "sentence": str(error)}))
        return error.status
    with torch.cuda.profiler.profile():
        launch()
        torch.cuda.synchronize()
    return 0


def child_command(args: argparse.Namespace, case: Case, report: Path) -> list[str]:
    words = [sys.executable, "-m", "perf", "profile", args.rung]
    words += ["--size", f"{case.M}x{case.N}x{case.K}", "--layout", case.layout]
    words += ["--dtype", case.dtype, "--accumulate", case.accumulate]
    return [*words, "--precision", case.precision, "--child", str(report)]


def _under_ncu(ncu: str, args: argparse.Namespace, case: Case) -> tuple[str, dict]:
    """The text and the JSON fields; asks again, without them, if the chip lacks some counters."""
    unknown: set[str] = set()
    while True:
        asked = profile.metrics(unknown)
        output = _attempt(ncu, asked, args, case)
        if kernels := profile.parse(output):
            break
        missing = profile.unknown(output, asked)
        if not missing:
            raise Unprofiled(profile.reason(output))
        unknown |= missing
        say(f"this chip has no {', '.join(sorted(missing))}; again without")
    fields = {"kernels": [dataclasses.asdict(k) for k in kernels], "all": profile.total(kernels)}
    return profile.text(kernels, case), fields


def _attempt(ncu: str, asked: Sequence[str], args: argparse.Namespace, case: Case) -> str:
    """What ncu said, wherever; raises Unprofiled with what the child says."""
    with tempfile.TemporaryDirectory() as folder:
        log, report = Path(folder) / "ncu.csv", Path(folder) / "child.json"
        words = profile.command(ncu, log, asked, child_command(args, case, report))
        done = subprocess.run(
            words, cwd=ROOT, text=True, errors="replace", check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if report.exists():
            said = json.loads(report.read_text())
            raise Unprofiled(said["sentence"], said["status"])
        return done.stdout + "\n" + (log.read_text(errors="replace") if log.exists() else "")


def _under_proton(entrant: Competitor, case: Case) -> tuple[str, dict]:
    """The text and the JSON fields of kernels' times, in microseconds."""
    launch = ready(entrant, case)
    with tempfile.TemporaryDirectory() as folder:
        try:
            import triton.profiler as proton

            session = proton.start(str(Path(folder) / "launch"))
            launch()
            torch.cuda.synchronize()
            proton.finalize(session)
            (file,) = Path(folder).glob("launch*.hatchet")
            found = profile.proton_kernels(json.loads(file.read_text()))
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            raise Unprofiled(f"Proton failed: {error}") from error
    if not found:
        raise Unprofiled("Proton saw no kernel: CUPTI, which it asks, reports none here")
    body = [*found, ("all kernels", sum(us for _, us in found))]
    fields = {"kernels": [{"kernel": name, "us": us} for name, us in found]}
    return profile.aligned([(name, f"{us:,.1f} us") for name, us in body]), fields
