"""`python -m perf host`: microseconds per call of `tritemm.matmul` against torch's call.

A small product is over sooner than its call, so the call is what bounds many small layers. Three
tables: every kernel by name; calls as models make them; and torch's own calls inside and
outside of `tritemm.enabled()`. `perf.called` has the calls, and how they are timed.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from tritemm.rungs import RUNGS

from .. import called, cli, session, tables
from ..calls import OURS
from ..case import Case, parse_size
from ..engine import Plan
from ..rows import NULL, REFERENCE, Row
from ..select import latest_run
from ..tables import Parts, Table, digits, spread, us, us_spread
from ..views import Selection, View

#: Seconds of calls before a race.
SETTLE = 0.3
#: The tables; and the kernels of the first: slow rungs aren't called for speed.
WHAT = ("kernels", "calls", "routing")
DEFAULT = ("auto", *(kernel.name for kernel in RUNGS[-5:]))

EXAMPLES = """
python -m perf host
python -m perf host --what calls
python -m perf host --what routing --rounds 60
python -m perf host --kernel auto --size 16x4096x4096 --rounds 100
python -m perf host --quick --json
"""


def register(commands) -> None:
    described = (
        "Time the host's part of a call (bf16): of each kernel, eager and out= (NT); of calls as "
        "models make them: with gradients, in compiled graphs, packed; and of torch's own calls "
        "with and without tritemm.enabled()."
    )
    command = cli.add_command(commands, "host", run, described, EXAMPLES)
    every, words = ",".join(WHAT), ",".join(DEFAULT)
    text = "which tables; --kernel and --size apply to `kernels`; default: %(default)s"
    cli.add_list(command, "--what", cli.one_of(*WHAT), text, every)
    text = "what to pass to matmul as kernel=; default: %(default)s"
    cli.add_list(command, "--kernel", cli.one_of(*cli.KERNELS), text, words, "kernels")
    text = "size, N for a cube or MxNxK; default: %(default)s"
    size = {"type": cli.argument(parse_size), "default": str(called.CASE.M), "metavar": "SIZE"}
    command.add_argument("--size", **size, help=text)
    cli.add_measurement(command, rounds=30)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    case = Case(*args.size, called.CASE.layout, called.CASE.dtype)

    def measure(there: session.Session) -> None:
        kinds = {
            "kernels": called.kernel_kinds(case, args.kernels),
            "calls": called.KINDS,
            "routing": called.ROUTED,
        }
        tasks = [called.task_of(kind) for what in WHAT if what in args.what for kind in kinds[what]]
        there.measure(tasks, session.planned(args, Plan(longest=math.inf, settle=SETTLE)))

    return session.run(args, "host", measure, text)


# Tables

TITLES = {called.EAGER: "eager", called.OUT: "out="}
_NAMES = {REFERENCE: "torch.matmul", NULL: "torch.matmul again (noise)"}


def text(rows: list[Row]) -> str:
    """The tables of what was measured."""
    parts: list[Table | str] = []
    for modes, made in TABLES.values():
        if own := [row for row in rows if row.mode in modes]:
            parts += [f"host time per call on {own[0].environment.gpu}", *made(own)]
    return tables.text(parts)


def kernel_parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per competitor, its time per call and torch's in each mode."""
    modes = [mode for mode in called.MODES if any(row.mode == mode for row in rows)]
    head = ["", *(cell for mode in modes for cell in (f"{TITLES[mode]} µs (p20-p80)", "x torch"))]
    body = []
    for name in dict.fromkeys(row.competitor for row in rows):
        own = {row.mode: row for row in rows if row.competitor == name}
        cells = ((us_spread(own.get(mode)), _times(own.get(mode))) for mode in modes)
        body.append((_label(own[min(own, key=called.MODES.index)]), *itertools.chain(*cells)))
    calls = max((row.launches for row in rows if row.us), default=0)
    method = (
        f"{rows[0].case}. Median and percentiles of {tables.rounds(rows)} rounds; a call is "
        f"the mean of {calls} in a row. x torch: the time over that of torch.matmul in the same "
        f"round. {tables.origin(rows)}."
    )
    return [Table(head, body), *tables.reasons(rows, _label), method]


def _label(row: Row) -> str:
    """`auto (persistent)` where matmul chose the rung; the torch call by its name."""
    chosen = f" ({row.rung})" if row.rung not in (None, row.competitor) else ""
    return _NAMES.get(row.competitor) or row.competitor + chosen


def _times(row: Row | None) -> str:
    """The time over torch's."""
    if row is None or row.ratio is None or row.competitor == REFERENCE:
        return ""
    tie = " (a tie)" if row.tie and row.competitor != NULL else ""
    return digits(row.ratio.inverse.p50) + tie


def call_parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per kind of call and `kernel=`."""
    head = ("", "problem", "kernel=", "torch µs", "tritemm µs (p20-p80)")
    body = []
    for problem, race, noise in _raced(rows, _CALLS):
        torchs = us(race.get(REFERENCE), False)
        for name, row in race.items():
            if name not in (REFERENCE, NULL):
                body.append((*problem, name, torchs, us_spread(row), _over(row), noise))
    costs = [per_graph(rows, name) for name in (REFERENCE, OURS)]
    told = ""
    if all(costs):
        (their_graph, theirs), (our_graph, ours) = costs
        told = (
            f"In a compiled graph, a product takes {digits(theirs)} µs with torch and "
            f"{digits(ours)} with tritemm ({ours - theirs:+.2f}); the rest of a call takes "
            f"{digits(their_graph)} and {digits(our_graph)}."
        )
    method = (
        "x torch: the time over that of F.linear (or of torch.matmul, if the weight is stored "
        "[K, N]) in the same round."
    )
    table = Table((*head, "x torch (p20-p80)", "torch again"), body, words=3)
    return [table, *_below(rows, told, method)]


def routing_parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per call of torch's, and what routing adds."""
    head = ("", "problem", "torch µs (p20-p80)", "enabled µs (p20-p80)", "more µs")
    head += ("x torch (p20-p80)", "tritemm µs (p20-p80)", "x torch (p20-p80)", "torch again")
    body = []
    for problem, race, noise in _raced(rows, _ROUTES):
        torchs, enabled, ours = (race.get(name) for name in (REFERENCE, called.ENABLED, OURS))
        timed = torchs and torchs.us and enabled and enabled.us
        more = f"{enabled.us.p50 - torchs.us.p50:+.2f}" if timed else ""
        cells = (us_spread(torchs), us_spread(enabled), more, _over(enabled))
        body.append((*problem, *cells, us_spread(ours), _over(ours), noise))
    method = (
        "Enabled: the same torch call inside tritemm.enabled(); more: what that adds, with "
        "tritemm's launch instead of cuBLAS's. tritemm: its function of the same name. "
        "x torch: the time over torch's in the same round."
    )
    return [Table(head, body, words=2), *_below(rows, "", method)]


def _raced(rows: Sequence[Row], modes: Sequence[str]) -> Iterator[tuple[tuple, dict, str]]:
    """Each mode's cells of its problem, its race, and what torch takes over itself."""
    found = tables.raced(rows, lambda row: row.mode)
    for race in (found[mode] for mode in modes if mode in found):
        row, again = next(iter(race.values())), race.get(NULL)
        noise = digits(again.ratio.inverse.p50) if again and again.ratio else ""
        yield (row.problem["name"], f"{row.case.size} {row.case.layout}"), race, noise


def _below(rows: Sequence[Row], told: str, method: str) -> Parts:
    """What follows a table of calls."""
    usual = (
        f"bf16. Python's time for one call, the median of {tables.rounds(rows)} rounds. A round "
        "is a batch of calls that begins with an idle GPU and waits for nothing."
    )
    yield from tables.reasons(rows, lambda row: f"{row.problem['name']}, {row.competitor}")
    yield from (told, f"{usual} {method} {tables.origin(rows)}.")


def _over(row: Row | None) -> str:
    return spread(row.ratio.inverse, row.tie) if row and row.ratio else ""


def per_graph(rows: Sequence[Row], competitor: str) -> tuple[float, float] | None:
    """Microseconds of a compiled graph without its products, and of each product in it."""
    found = {row.mode: row.us.p50 for row in rows if row.competitor == competitor and row.us}
    one, many = (found.get(f"host call graph {count}") for count in (1, called.CHAIN))
    product = one and many and (many - one) / (called.CHAIN - 1)
    return (one - product, product) if product is not None else None


def _newest(modes: Sequence[str], rows: Sequence[Row], s: Selection) -> list[Row]:
    """The rows shown: of kernels, those of the documented case alone."""
    own = (r for r in rows if r.mode in modes and (r.id or r.case == called.CASE))
    return latest_run(own, "host", s.gpu, mode=None, share=0.6)


_CALLS, _ROUTES = ([kind.mode_of_rows for kind in own] for own in (called.KINDS, called.ROUTED))
TABLES = {
    "host": (called.MODES, kernel_parts),
    "calls": (_CALLS, call_parts),
    "routing": (_ROUTES, routing_parts),
}
VIEWS = {
    name: View(functools.partial(_newest, modes), parts) for name, (modes, parts) in TABLES.items()
}
