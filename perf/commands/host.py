"""`python -m perf host`: microseconds per call of `tritemm.matmul` against torch's call."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tritemm.rungs import RUNGS

from .. import (
    host,
    host_calls,
    host_calls_report,
    host_report,
    host_routing,
    host_routing_report,
)
from ..case import Case, parse_size
from ..cli import add_command, add_measurement, argument, list_of, one_of, refuse, unable
from ..rows import Row
from ..session import Session

#: How many rungs, from the fastest down, are called beside auto: slow ones aren't called for speed.
FASTEST = 5
KERNELS = ("auto", *(kernel.name for kernel in RUNGS))
DEFAULT = ("auto", *(kernel.name for kernel in RUNGS[-FASTEST:]))

#: The tables: every kernel asked for by name, calls as models make them, and torch's own calls
#: inside and outside of `tritemm.enabled()`.
WHAT = ("kernels", "calls", "routing")

EXAMPLES = """
python -m perf host
python -m perf host --what calls
python -m perf host --what routing --rounds 60
python -m perf host --kernel auto --size 16x4096x4096 --rounds 100
python -m perf host --quick --json
"""


def register(commands) -> None:
    described = (
        "Time the host's part of a call (bf16): of each kernel, cached and first, eager and out= "
        "(NT); of calls as models make them: with gradients, in compiled graphs, packed; and of "
        "torch's own calls with and without tritemm.enabled()."
    )
    command = add_command(commands, "host", run, described, EXAMPLES)
    every = ",".join(WHAT)
    command.add_argument(
        "--what", type=list_of(one_of(*WHAT)), default=every, metavar="TABLE,...",
        help=f"--kernel and --size are of `kernels`; default: {every}",
    )  # fmt: skip
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
    rounds = min(5, args.rounds) if args.quick else args.rounds
    if "kernels" in args.what:
        host.run(session, case, args.kernels, rounds)
    if "calls" in args.what and not session.interrupted:
        host_calls.run(session, rounds, host.of_the_host)
    if "routing" in args.what and not session.interrupted:
        host_routing.run(session, rounds, host.of_the_host)
    return session.finish(text)


def text(races: Sequence[Sequence[Row]]) -> str:
    """The tables of what was measured."""
    rows = [row for race in races for row in race]
    calls, routed = host_calls_report.of(rows), host_routing_report.of(rows)
    kernels = [row for row in rows if row.mode in host.MODES]
    tables = [host_calls_report.text(calls)] if calls else []
    tables += [host_routing_report.text(routed)] if routed else []
    if kernels or not tables:
        tables.insert(0, host_report.text(kernels))
    return "\n\n".join(tables)


def case_of(args: argparse.Namespace) -> Case:
    """The documented case, in the asked size."""
    M, N, K = args.size
    return Case(M, N, K, host_report.CASE.layout, host_report.CASE.dtype)
