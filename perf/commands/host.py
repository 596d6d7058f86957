"""`python -m perf host`: microseconds per call of `tritemm.matmul` against `torch.matmul`."""

from __future__ import annotations

import argparse

from tritemm.rungs import RUNGS

from .. import host, host_report
from ..case import Case, parse_size
from ..cli import add_command, add_measurement, argument, list_of, one_of, refuse, unable
from ..session import Session

#: How many rungs, from the fastest down, are called beside auto: slow ones aren't called for speed.
FASTEST = 5
KERNELS = ("auto", *(kernel.name for kernel in RUNGS))
DEFAULT = ("auto", *(kernel.name for kernel in RUNGS[-FASTEST:]))

EXAMPLES = """
python -m perf host
python -m perf host --kernel auto --size 16x4096x4096 --rounds 100
python -m perf host --quick --json
"""


def register(commands) -> None:
    described = "Time the host's part of a call (bf16, NT): cached and first, eager and out=."
    command = add_command(commands, "host", run, described, EXAMPLES)
    words = ",".join(DEFAULT)
    command.add_argument(
        "--kernel", dest="kernels", type=list_of(one_of(*KERNELS)), default=words,
        metavar="KERNEL,...", help=f"what matmul is asked for; default: {words}",
    )  # fmt: skip
    command.add_argument(
        "--size", type=argument(parse_size), default=str(host_report.CASE.M), metavar="SIZE",
        help="4096 or MxNxK, M or N above 1; default: %(default)s",
    )  # fmt: skip
    add_measurement(command, rounds=30)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := unable("host"):
        return refuse(reason)
    case = case_of(args)
    if case.M == case.N == 1:
        return refuse(f"first calls need other sizes of M or N, and both are 1 in {case.size}")
    session = Session(args, "host")
    host.run(session, case, args.kernels, min(5, args.rounds) if args.quick else args.rounds)
    return session.finish(lambda races: host_report.text([row for race in races for row in race]))


def case_of(args: argparse.Namespace) -> Case:
    """The documented case, in the asked size."""
    M, N, K = args.size
    return Case(M, N, K, host_report.CASE.layout, host_report.CASE.dtype)
