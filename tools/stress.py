#!/usr/bin/env python
"""Look for hangs and races in the rungs whose warps are synchronised by hand; needs a GPU.

    python tools/stress.py [--tiny [N]] [--launches 10000] [--consan] [--racecheck] [RUNG ...]

    --tiny       every config and layout, or N of each rung, on a few tiles and k-steps, each
                 within 20 s
    --launches   random sizes on several streams, every result compared with exact sums
    --consan     some of the tiny ones under Triton's concurrency sanitizer
    --racecheck  the same under compute-sanitizer's memcheck and racecheck

Without any of them, all. Prints a line for each rung and check, and what it found. 1: something
was found; 2: it can't run.

racecheck reports that warps which wait for a role read, in a kernel's first instructions, the word
that says which, while others write it later: Triton's code, with barriers between that the tool
doesn't count. It is let pass where a kernel whose roles share nothing is reported alike; see
`stressed.control_kernel`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a script's path begins with its own folder

CHILD = Path(__file__).resolve().parent / "stressed.py"
#: Seconds for torch and the device to come up, and for one trial (a batch, of launches).
START = 120
#: Children of one rung and check that may end badly before the rest is left.
ENOUGH = 3
#: Trials under slow instruments; findings that are printed.
FEW, SHOWN = 8, 12
#: What compute-sanitizer ends with if it found something.
SANITIZER_FOUND = 9


@dataclasses.dataclass(frozen=True)
class Check:
    """`silence` is the seconds without a word that make a hang; `prefix` is run around Python."""

    name: str
    silence: float
    count: int = FEW
    prefix: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    #: Whether races of Triton's own dispatch of roles are let pass.
    dispatch_races: bool = False

    @property
    def trials(self) -> str:
        """The word of `stressed.trials_of`."""
        return self.name if self.name in ("tiny", "launches", "consan") else "few"


def main() -> int:
    args = parse()
    # As Ctrl-C does, it ends the child too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    import torch

    found = torch.cuda.is_available() and torch.cuda.get_device_name()
    if not found or torch.cuda.get_device_capability() < (9, 0):
        print(f"stress: needs a CUDA device of sm_90 or newer, and torch sees {found or 'none'}",
              file=sys.stderr)  # fmt: skip
        return 2
    from tools import stressed
    from tritemm.problem import Device

    known = {kernel.name: kernel for kernel in stressed.by_hand()}
    unknown = [name for name in args.rungs if name not in known]
    if unknown or not known:
        print(f"stress: no such rung: {', '.join(unknown)}; there are {', '.join(known) or 'none'}",
              file=sys.stderr)  # fmt: skip
        return 2
    wanted, missing = checks(args)
    device = Device.of(torch.device("cuda"))
    clean = True
    for check in wanted:
        if check.name == "racecheck":
            check = with_control(check)
        for name in args.rungs or known:
            if check.name == "consan" and known[name].clusters:
                print(f"{check.name:<10} {name:<20} not run: it knows Gluon's barriers, and these "
                      "are PTX", flush=True)  # fmt: skip
                continue
            trials = stressed.trials_of(check.trials, name, device, check.count, args.seed)
            begin = time.monotonic()
            if not check.prefix:
                compile_all(trials, device, dict(check.env))
            found = stress(check, name, trials, args.seed)
            clean &= not found and bool(trials)
            report(check, name, len(trials), found, time.monotonic() - begin)
    if missing:
        print(f"stress: {missing}", file=sys.stderr)
    return 1 if not clean else 2 if missing else 0


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("rungs", nargs="*", metavar="RUNG", help="default: every rung in Gluon")
    add("--tiny", nargs="?", type=int, const=0, metavar="N")
    add("--launches", type=int, metavar="N")
    add("--consan", action="store_true")
    add("--racecheck", action="store_true")
    add("--seed", type=int, default=0, help="of the random sizes")
    return parser.parse_args(words)


def checks(args: argparse.Namespace) -> tuple[list[Check], str | None]:
    """Those that are asked for and can be run, and what is missing for the others."""
    every = args.tiny is None and not (args.launches or args.consan or args.racecheck)
    found, missing = [], None
    if args.tiny is not None or every:
        found.append(Check("tiny", 20, args.tiny or 0))
    if args.launches or every:
        found.append(Check("launches", 20, args.launches or 10000))
    if args.consan or every:
        found.append(Check("consan", 180, env=(("TRITON_INSTRUMENTATION_MODE", "consan"),)))
    if args.racecheck or every:
        try:
            found += [sanitized(tool) for tool in ("memcheck", "racecheck")]
        except RuntimeError as error:
            missing = str(error)
    return found, missing


def sanitized(tool: str) -> Check:
    """A check under compute-sanitizer; RuntimeError where it isn't installed."""
    from cuda_reference import toolkit
    from tools.sanitize import find_sanitizer

    try:
        root = toolkit.nvcc().root
    except toolkit.Unavailable:
        root = Path("/usr/local/cuda")
    prefix = (
        find_sanitizer(root), "--tool", tool, "--error-exitcode", str(SANITIZER_FOUND),
        "--print-limit", "1000",
    )  # fmt: skip
    # Every tensor has an allocation of its own, so that its bounds are seen.
    return Check(tool, 300, prefix=prefix, env=(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),))


def compile_all(trials: Sequence, device, env: Mapping[str, str]) -> None:
    """In parallel, so that silence is a hang; what fails is the child's to tell.

    `env` is added to the environment of the processes that compile: an instrument's code is code
    of its own.
    """
    from tritemm.compile import pool

    items = [(trial.rung, trial.of_meta(device), trial.config) for trial in trials]
    with mock.patch.dict(os.environ, env):
        pool.compile_all(list({pool.likeness(*item): item for item in items}.values()))


def stress(check: Check, rung: str, trials: Sequence, seed: int) -> list[str]:
    """What went wrong, a few lines each; a new child goes on behind what ended the last one."""
    found: list[str] = []
    start = 0
    for _ in range(ENOUGH):
        at, end, bad = watch(check, [check.trials, rung, str(start), str(check.count), str(seed)])
        found += [f"{trials[i]}\n        {why}" for i, why in bad]
        if end and check.dispatch_races and only_dispatch_races(end):
            end = None
        if end:
            named = trials[at] if at is not None else f"{rung}: before its first trial"
            if check.trials == "launches":
                named = f"{named}, or one of those launched together with it"
            found.append(f"{named}\n        {end.what}")
        if end is None or at is None or at + 1 == len(trials):
            break
        start = at + 1
    return found


class End(NamedTuple):
    """How a child ended that didn't end well: in words, its status, and what it printed."""

    what: str
    status: int
    lines: list[str]


def with_control(check: Check) -> Check:
    """`check`, which lets pass what it reports of a kernel whose roles share nothing."""
    from tools.stressed import CONTROL

    _, end, _ = watch(check, [check.trials, CONTROL, "0", "0", "0"])
    alike = end is not None and only_dispatch_races(end)
    verdict = "not reported" if end is None else "reported, and let pass" if alike else end.what
    print(f"{check.name:<10} Triton's dispatch of roles: {verdict}", flush=True)
    return dataclasses.replace(check, dispatch_races=alike)


#: An error of compute-sanitizer, the read that a report of racecheck begins with, and a write that
#: it names behind that: kernel, file and line.
_ERROR = re.compile(r"=+ +(Error: .*|and \w+ access .*)")
_READ = re.compile(
    r"Error: Race reported between Read access at (\w+)\+0x[0-9a-f]{1,3} in (\S+):(\d+)"
)
_WRITE = re.compile(r"and Write access at (\w+)\+0x[0-9a-f]+ in (\S+):(\d+)")


def only_dispatch_races(end: End) -> bool:
    """Whether all that racecheck found is of Triton's dispatch of roles.

    That reads in the first lines of a kernel's machine code, which stand for its `def`, as no line
    of a kernel does. Its writes stand for lines of the kernel's own function, and not of a role's.
    """
    from tools.stressed import lines_of_kernels

    found = [match[1] for line in end.lines if (match := _ERROR.match(line.strip()))]
    known = lines_of_kernels()

    def is_dispatch(access: str) -> bool:
        read = _READ.match(access)
        place = read or _WRITE.match(access)
        if not place or place[1] not in known:
            return False
        file, lines = known[place[1]]
        own = lines[:1] if read else lines
        return place[2] == file and int(place[3]) in own

    return end.status == SANITIZER_FOUND and bool(found) and all(map(is_dispatch, found))


def watch(check: Check, words: list[str]) -> tuple[int | None, End | None, list[tuple[int, str]]]:
    """Run a child: the trial that ended it and how, None if it ended well; and the wrong ones."""
    from tools.sessions import session

    at, bad, limit = None, [], START * (3 if check.prefix else 1)
    env = os.environ | dict(check.env) | {"OMP_NUM_THREADS": "1"}
    command = [*check.prefix, sys.executable, str(CHILD), *words]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        session(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, lines), daemon=True).start()
        printed: list[str] = []
        what = None
        while True:
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                what = f"HANG: no word for {limit:g} s"
                break
            if not line:
                break
            word, _, rest = line.strip().partition(" ")
            if word in ("ready", "begin", "ok", "bad"):
                limit = check.silence
            if word in ("begin", "ok"):
                at = int(rest)
            elif word == "bad":
                index, _, why = rest.partition(" ")
                at = int(index)
                bad.append((at, why))
            elif word != "ready":
                printed.append(line)
        if what is None and (status := process.wait(timeout=60)):
            log.seek(0)
            printed += log
            what = f"ended with status {status}\n{told(printed)}"
    return at, what and End(what, process.returncode, printed), bad


def _pump(stream, lines: queue.Queue[str]) -> None:
    """The lines of a stream, then an empty one."""
    for line in stream:
        lines.put(line)
    lines.put("")


def told(lines: Sequence[str]) -> str:
    """The first lines of what a tool or an assertion says, and the last of an error."""
    said = [f"        {line.rstrip()}" for line in lines if line.strip(" =\n")]
    return "\n".join(said if len(said) <= 24 else [*said[:14], "        ...", *said[-9:]])


def report(check: Check, rung: str, trials: int, found: list[str], seconds: float) -> None:
    verdict = "ok" if not found else f"FOUND {len(found)}"
    if not trials:
        verdict = "FOUND no trial"
    print(
        f"{check.name:<10} {rung:<18} {trials:>6} trials  {seconds:7.1f} s  {verdict}", flush=True
    )
    for text in found:
        print(f"    {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
