"""`python -m perf host`: microseconds per call of `tritemm.matmul` against torch's call.

A small product is over sooner than its call, so the call is what bounds many small layers. Three
tables: every kernel asked for by name; calls as models make them; and torch's own calls inside and
outside of `tritemm.enabled()`.

A call is timed by the wall clock around calls that only enqueue: the GPU is idle when they begin
and nothing waits for it at their end. `CALLS` of them are a small part of the launch queue, so
that none waits for room there, however slow the kernels are; no garbage is collected meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton

import tritemm
from tritemm.budget import Verdict
from tritemm.rungs import RUNGS

from .. import cli, machine, session, tables
from ..agreement import Agreement, Errors, errors, judge
from ..case import DTYPES, Case, parse_size
from ..competitors import matmul, matmul_options
from ..engine import Competitor, Loop, Plan, Repeated, Sample
from ..machine import State
from ..operands import Operands, operands, verify
from ..problems import Problem
from ..rows import NULL, REFERENCE, TRITON, Row
from ..select import newest_of_all, runs
from ..tables import Parts, Table, digits, spread, us, us_spread
from ..views import Selection, View
from .model import OURS, compiled, uncollected

#: Launches that a CUDA stream takes before the next one waits (about as many, on an H200).
QUEUE = 1024
#: Calls in a batch, of at most `LAUNCHES` launches each (a padding copy or a reduction is one).
CALLS, LAUNCHES = 50, 8
#: Untimed calls before a batch, which bring the competitor's code back into the CPU's caches.
LEAD = 5
#: First calls of a competitor that don't count yet; shapes that are tried for one without a load.
WARM, ATTEMPTS = 2, 20
#: Modes of the rows: cached, then first calls, each without and with `out=`.
EAGER, OUT = "host eager", "host out"
MODES = (EAGER, OUT, f"{EAGER} first", f"{OUT} first")
#: What is measured unless another size is asked for.
CASE = Case(128, 128, 128, "NT", "bf16")
#: The tables; and who is asked for in the first: slow rungs aren't called for speed.
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
        "Time the host's part of a call (bf16): of each kernel, cached and first, eager and out= "
        "(NT); of calls as models make them: with gradients, in compiled graphs, packed; and of "
        "torch's own calls with and without tritemm.enabled()."
    )
    command = cli.add_command(commands, "host", run, described, EXAMPLES)
    every, words = ",".join(WHAT), ",".join(DEFAULT)
    text = "tables; --kernel and --size are of `kernels`; default: %(default)s"
    cli.add_list(command, "--what", cli.one_of(*WHAT), text, every)
    text = "what matmul is asked for; default: %(default)s"
    cli.add_list(command, "--kernel", cli.one_of(*cli.KERNELS), text, words, "kernels")
    text = "4096 or MxNxK, M or N above 1; default: %(default)s"
    size = {"type": cli.argument(parse_size), "default": str(CASE.M), "metavar": "SIZE"}
    command.add_argument("--size", **size, help=text)
    cli.add_measurement(command, rounds=30)


def run(args: argparse.Namespace) -> int:
    """The status is that of `Session.finish`."""
    if reason := cli.unable("host"):
        return cli.refuse(reason)
    case = Case(*args.size, CASE.layout, CASE.dtype)
    if case.M == case.N == 1:
        return cli.refuse(f"first calls need other sizes of M or N, and both are 1 in {case.size}")
    there = session.Session(args, "host")
    rounds = min(5, args.rounds) if args.quick else args.rounds
    with counted_loads() as loads:
        races = [
            *(kernel_races(case, args.kernels, loads) if "kernels" in args.what else ()),
            *(call_races(KINDS) if "calls" in args.what else ()),
            *(call_races(ROUTED) if "routing" in args.what else ()),
        ]
        measure(there, races, rounds)
    return there.finish(text)


@dataclasses.dataclass(frozen=True)
class Race:
    """In `mode`, of `make`'s bench and field; `problem` is the kind of call."""

    mode: str
    case: Case
    make: Callable[[], tuple]
    problem: Problem | None = None


def measure(there: session.Session, races: Sequence[Race], rounds: int) -> None:
    """Record every race; Ctrl-C keeps what was measured.

    The rows are without what says something about the GPU's work: errors, rungs below.
    """
    plan, left_out = (
        Plan(rounds=rounds, longest=math.inf),
        {"worst": None, "below": None, "ratio_below": None},
    )
    amend = lambda rows: [dataclasses.replace(row, **left_out) for row in rows]  # noqa: E731
    try:
        for race in races:
            cli.say(f"{race.mode}: {race.case}")
            problem = race.problem and race.problem.to_json()
            heading = there.heading(race.case, problem, mode=race.mode, roof=None)
            there.race(heading, lambda plan, race=race: race.make(), plan, amend)
            if there.interrupted:
                break
    except KeyboardInterrupt:
        there.interrupted = True


# How calls are timed


@dataclasses.dataclass(frozen=True)
class Watch:
    """`clock()` in seconds; `synchronise()` waits until the GPU is idle."""

    clock: Callable[[], float] = time.perf_counter
    synchronise: Callable[[], None] = torch.cuda.synchronize

    def seconds(self, call: Callable[[], Any], calls: int) -> float:
        """Of `calls` calls in a row, dropped results included, beginning with an idle GPU."""
        self.synchronise()
        with uncollected():
            begin = self.clock()
            for _ in itertools.repeat(None, calls):
                call()
            return self.clock() - begin


#: What a bench of calls needs to know of the machine; a test has its own.
DEVICE, WATCH, SETTLE = "cuda", Watch(), 0.3


class Calls:
    """An `engine.Bench` of batches of `calls` calls; `bind` makes one of a competitor's ready.

    Those of `ENABLED` are routed, which is one setting of the process: it is switched on before a
    batch and off after it, untimed.
    """

    #: Calls that compile the kernel and load it.
    first = LEAD

    def __init__(self, case: Case, mode: str, calls: int):
        self.case, self.mode, self.calls, self.watch = case, mode, calls, WATCH

    def estimate(self, caller: Competitor) -> float:
        """Seconds of a call after the first ones."""
        with inside(caller.name):
            call = self.bind(caller)
            for _ in range(self.first):
                call()
            return self.watch.seconds(call, 1)

    def loop(self, caller: Competitor) -> Repeated:
        name = caller.name
        with inside(name):
            call = self.bind(caller)
            seconds = self.watch.seconds(call, 1)

        def sample() -> Sample:
            """A batch."""
            with inside(name):
                for _ in range(LEAD):
                    call()
                return Sample(self.watch.seconds(call, self.calls) / self.calls)

        def replay() -> None:
            with inside(name):
                self.keep(call())

        return Repeated(self.calls, seconds, replay, sample, name=name)

    def keep(self, result: Any) -> None:
        """Leave a result where `verify` looks."""

    def recover(self) -> None:
        self.watch.synchronise()

    def settle(self, loops: Sequence[Loop]) -> State:
        """Calls for a while: the CPU has a clock to raise, too. The state is the GPU's."""
        begin, probe = self.watch.clock(), machine.probe()
        while self.watch.clock() - begin < SETTLE:
            for loop in loops:
                loop.replay()
            self.watch.synchronise()
        return probe()


@contextlib.contextmanager
def inside(name: str) -> Iterator[tritemm.takeover.integrate.Report | None]:
    """`tritemm.enabled()`, for the competitor that is timed there."""
    with tritemm.enabled() if name == ENABLED else contextlib.nullcontext() as report:
        yield report


class Cached(Calls):
    """Of `caller.run` on one set of operands; `out`: with out=."""

    first = 2

    def __init__(self, case: Case, mode: str, *, out: bool, calls: int | None = None):
        super().__init__(case, mode, calls or CALLS)
        assert (self.calls + LEAD) * LAUNCHES <= QUEUE // 2, "a call would wait for the GPU"
        self.out, self.sets = out, [operands(case, DEVICE)]

    def bind(self, caller: Competitor, given: Operands = ()) -> Callable:
        """On the known operands, unless others are `given`."""
        a, b, c = given or self.sets[0]
        return functools.partial(caller.run, a, b, **({"out": c} if self.out else {}))

    def keep(self, result: torch.Tensor) -> None:
        c = self.sets[0][2]
        if result is not c:
            c.copy_(result)

    def verify(self, loop: Loop, accumulate: str | None = None) -> Verdict:
        return verify(self.case, self.sets, loop.replay, 1, accumulate)


class First(Cached):
    """Each sample is the one call that its sizes ever get, by a kernel that is already loaded.

    What a new sequence length costs. `loads()` counts loaded kernels: a call that loads one is not
    counted, and another shape takes its place.
    """

    def __init__(self, *args, shapes: Iterator[Case], loads: Callable[[], int], **options):
        super().__init__(*args, **options)
        self.shapes, self.loads = shapes, loads

    def loop(self, caller: Competitor) -> Loop:
        """Raises RuntimeError if each of `ATTEMPTS` shapes loads a kernel of its own."""
        known, time = super().loop(caller), functools.partial(self._without_load, caller)
        for _ in range(WARM):
            time()
        return dataclasses.replace(known, launches=1, time=time)

    def _without_load(self, caller: Competitor) -> Sample:
        """The first call of a shape that an already loaded kernel multiplies."""
        for _ in range(ATTEMPTS):
            before = self.loads()
            call = self.bind(caller, operands(next(self.shapes), DEVICE))
            # A known shape first: only the sizes of the timed call are new, not its code.
            self.bind(caller)()
            seconds = self.watch.seconds(call, 1)
            if self.loads() == before:
                return Sample(seconds)
        raise RuntimeError(f"{ATTEMPTS} new shapes in a row, and each loaded another kernel")


@contextlib.contextmanager
def counted_loads() -> Iterator[Callable[[], int]]:
    """How many Triton kernels were loaded since the block began, compiled now or long ago."""
    loaded: list[tuple] = []
    note = lambda *given, **named: loaded.append(given)  # noqa: E731
    hooks = triton.knobs.runtime.kernel_load_end_hook
    hooks.add(note)
    try:
        yield lambda: len(loaded)
    finally:
        hooks.remove(note)


def shapes(case: Case) -> Iterator[Case]:
    """Cases with other M and N than `case`, each once, the nearest first; without end.

    M and N differ by multiples of 16, which is what Triton specialises kernels by, and 1 stays 1.
    K stays, because kernels are compiled with and without a ragged last step. So most shapes run
    the kernel that their neighbour runs. ValueError where there is no other shape.
    """
    if case.M == case.N == 1:
        raise ValueError(f"{case.size} has no neighbours: M and N are 1")
    for distance in itertools.count(1):
        steps = range(-distance, distance + 1)
        rows, columns = (
            [step for step in steps if size + 16 * step > 1] if size > 1 else [0]
            for size in (case.M, case.N)
        )
        for i, j in itertools.product(rows, columns):
            if max(abs(i), abs(j)) == distance:
                yield dataclasses.replace(case, M=case.M + 16 * i, N=case.N + 16 * j)


def kernel_races(case: Case, kernels: Sequence[str], loads: Callable[[], int]) -> Iterator[Race]:
    """A race per mode; they share what new shapes there are."""
    fresh = shapes(case)
    kinds = (Cached, Cached) + (functools.partial(First, shapes=fresh, loads=loads),) * 2
    for mode, kind in zip(MODES, kinds, strict=True):

        def make(mode=mode, kind=kind):
            bench = kind(case, mode, out=mode.startswith(OUT))
            return bench, callers(case, bench.sets[0], dict.fromkeys(kernels))

        yield Race(mode, case, make)


def callers(case: Case, operands_: Operands, kernels: Iterable[str]) -> list[Competitor]:
    """`tritemm.matmul` with each `kernel=` word, then `torch.matmul` twice; `out=` is optional."""
    found = []
    for each in matmul(case, operands_, kernels):
        # Without the options that have their defaults: nobody spells them out.
        asked = matmul_options(case, each.name).items()
        options = {k: v for k, v in asked if v is not None and (k, v) != ("kernel", "auto")}
        run = functools.partial(tritemm.matmul, **options) if each.ladder else torch.matmul
        found.append(dataclasses.replace(each, run=run))
    return found


# Calls as models make them, and torch's own

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: Makes a call of its multiplication, its operands and a mode of `model.MODES`; the call returns
#: its results, in this order.
Make = Callable[[Multiply, torch.Tensor, torch.Tensor, str], Callable[[], tuple]]
RESULTS = ("result", "gradient of x", "gradient of w")
#: Products of the longer of two compiled graphs: the difference is what a product costs.
CHAIN = 33
#: Torch's call inside `tritemm.enabled()`.
ENABLED = "enabled"


def plain(multiply: Multiply, x: torch.Tensor, w: torch.Tensor, mode: str):
    return lambda: (multiply(x, w),)


def recorded(multiply: Multiply, x: torch.Tensor, w: torch.Tensor, mode: str):
    """Both operands ask for a gradient, which nobody computes."""
    return plain(multiply, x.requires_grad_(), w.requires_grad_(), mode)


def stepped(multiply: Multiply, x: torch.Tensor, w: torch.Tensor, mode: str):
    """Forward and backward; each gradient becomes its operand's `.grad`, and is dropped."""
    x, w = x.requires_grad_(), w.requires_grad_()
    given = torch.ones_like(multiply(x, w).detach())

    def call() -> tuple:
        y = multiply(x, w)
        y.backward(given)
        found = y.detach(), x.grad, w.grad
        x.grad = w.grad = None
        return found

    return call


def chained(count: int) -> Make:
    """A compiled graph of so many products in a row."""

    def make(multiply: Multiply, x: torch.Tensor, w: torch.Tensor, mode: str):
        def work(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = multiply(x, w)
            return x

        ready = compiled(work, mode)
        return lambda: (ready(x, w),)

    return make


def linear(x: torch.Tensor, w: torch.Tensor, **options) -> torch.Tensor:
    return tritemm.matmul(x, w.mT, **options)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One way to call. `products`: of one call; `mode`: of `model.MODES`.

    `torchs` and `ours` are the functions; of a routed kind they are given a bias first. Layout NT
    is `F.linear`'s: the weight is stored [N, K]. `kernels`: what tritemm is asked for.
    """

    name: str
    title: str
    case: Case
    make: Make = plain
    mode: str = "eager"
    products: int = 1
    kernels: tuple[str, ...] = ("auto",)
    family: str = "call"
    torchs: Callable = F.linear
    ours: Callable = linear

    @property
    def mode_of_rows(self) -> str:
        return f"host {self.family} {self.name}"

    @property
    def calls(self) -> int:
        """Per batch: with two launches per product (one packs or adds up), half of the queue."""
        return max(1, min(CALLS, QUEUE // 2 // (2 * self.products) - LEAD))

    def function(self, name: str, bias: torch.Tensor | None) -> Multiply:
        """That of a competitor: torch's, inside `tritemm.enabled()` too, or tritemm's."""
        if self.family == "routed":
            return (self.ours if name == OURS else self.torchs)(bias)
        if name == REFERENCE:
            return self.torchs
        return self.ours if name == "auto" else functools.partial(self.ours, kernel=name)


LINEAR = Case(16, 2048, 2048, "NT", "bf16")
STORED = dataclasses.replace(LINEAR, layout="NN")
ODD_K, ODD_N = Case(16, 2048, 2047, "NT", "bf16"), Case(16, 2047, 2048, "NN", "bf16")
HEAD, DEEP = Case(16, 50257, 769, "NT", "bf16"), Case(64, 64, 16384, "NT", "bf16")
_LONG = (f"graph {CHAIN}", f"compiled, {CHAIN} products")
_STORED = {"torchs": torch.matmul, "ours": tritemm.matmul}
KINDS = (
    Kind("plain", "plain", LINEAR),
    Kind("recorded", "a gradient recorded", LINEAR, recorded),
    Kind("backward", "forward and backward", LINEAR, stepped, products=3),
    Kind("graph 1", "compiled, 1 product", LINEAR, chained(1), "compiled"),
    Kind(*_LONG, LINEAR, chained(CHAIN), "compiled", CHAIN),
    Kind("odd K", "packed, both operands", ODD_K),
    Kind("odd K backward", "packed, forward and backward", ODD_K, stepped, products=3),
    Kind("odd N", "packed, the weight stored [K, N]", ODD_N, **_STORED),
    Kind("odd head", "packed, 50257 rows of weights", HEAD),
    Kind("workspace", "with a workspace", DEEP, kernels=("auto", "split_k", "stream_k")),
)
_routed = functools.partial(Kind, family="routed", kernels=(ENABLED, OURS))
_BIASED = _routed(
    "linear bias",
    "F.linear, bias",
    LINEAR,
    torchs=lambda bias: lambda x, w: F.linear(x, w, bias),
    ours=lambda bias: lambda x, w: tritemm.linear(x, w, bias),
)
_ADDMM = {
    "torchs": lambda bias: lambda x, w: torch.addmm(bias, x, w),
    "ours": lambda bias: lambda x, w: tritemm.addmm(bias, x, w),
}
_MM = {"torchs": lambda bias: torch.mm, "ours": lambda bias: tritemm.matmul}
_LINEAR = {"torchs": lambda bias: F.linear, "ours": lambda bias: tritemm.linear}
_TITLE = "F.linear, bias, a gradient recorded"
ROUTED = (
    _routed("mm", "torch.mm", STORED, **_MM),
    _routed("linear", "F.linear", LINEAR, **_LINEAR),
    _BIASED,
    _routed("addmm", "torch.addmm", STORED, **_ADDMM),
    dataclasses.replace(_BIASED, name="linear bias recorded", title=_TITLE, make=recorded),
)


class Called(Calls):
    """Of one kind of call. Torch comes first: it is what the others are judged by."""

    def __init__(self, kind: Kind):
        super().__init__(kind.case, kind.mode_of_rows, kind.calls)
        self.kind = kind
        a, b, _ = operands(kind.case, DEVICE)
        # Values of a weight that keeps the size of what it multiplies, however often it does.
        self.x, self.w = a, (b.mT if kind.case.layout == "NT" else b) / math.sqrt(kind.case.K)
        self.bias = torch.randn(kind.case.N, dtype=DTYPES[kind.case.dtype], device=DEVICE)
        self.made: dict[str, Callable[[], tuple]] = {}
        multiply = self.multiply(REFERENCE, torch.float32)
        self.exact = _results(kind.make(multiply, self.x.float(), self.w.float(), "eager"))
        self.torchs: Errors | None = None

    def multiply(self, name: str, dtype: torch.dtype) -> Multiply:
        """That of a competitor, for operands of this type."""
        bias = self.bias.detach().clone().to(dtype)
        return self.kind.function(name, bias.requires_grad_(self.kind.make is recorded))

    def call(self, name: str) -> Callable[[], tuple]:
        """Torch's is one, under both of its names; each has its own leaves."""
        name = REFERENCE if name == NULL else name
        if name not in self.made:
            x, w = self.x.detach().clone(), self.w.detach().clone()
            multiply = self.multiply(name, x.dtype)
            self.made[name] = self.kind.make(multiply, x, w, self.kind.mode)
        return self.made[name]

    def bind(self, caller: Competitor) -> Callable[[], tuple]:
        return self.call(caller.name)

    def verify(self, loop: Repeated, accumulate: str | None = None) -> Agreement:
        """Against fp32 by torch, and judged by what torch loses in the same type.

        The allocator's free memory is poisoned first: an element that isn't written must not hold
        what an earlier call wrote there. A call that tritemm leaves to torch is no routed call.
        """
        with inside(loop.name) as report:
            call, dtype = self.call(loop.name), self.x.dtype
            poison = [torch.full_like(t, math.nan, dtype=dtype) for t in self.exact.values()]
            del poison
            own = errors(_results(call), self.exact)
        self.torchs = self.torchs or own
        verdict = judge(own, self.torchs)
        if report and (report.fell_back or not report.ran):
            left = " ".join(str(report).split())
            return dataclasses.replace(verdict, ok=False, message=f"not routed: {left}")
        return verdict


def _results(call: Callable[[], tuple]) -> dict[str, torch.Tensor]:
    return {name: t.detach() for name, t in zip(RESULTS, call(), strict=False)}


def call_races(kinds: Sequence[Kind]) -> Iterator[Race]:
    """A race per kind."""
    for kind in kinds:
        problem = Problem(kind.name, kind.family, kind.title, kind.case)
        field = [Competitor(name, None) for name in (REFERENCE, NULL)]
        field += [Competitor(name, None, ladder=TRITON, rung=name) for name in kind.kernels]
        make = lambda kind=kind, field=field: (Called(kind), field)  # noqa: E731
        yield Race(kind.mode_of_rows, kind.case, make, problem)


# Tables

TITLES = dict(zip(MODES, ("eager", "out=", "first eager", "first out="), strict=True))
_NAMES = {REFERENCE: "torch.matmul", NULL: "torch.matmul again (noise)"}


def text(rows: list[Row]) -> str:
    """The tables of what was measured."""
    parts: list[Table | str] = []
    for modes, made in ((MODES, kernel_parts), (_CALLS, call_parts), (_ROUTES, routing_parts)):
        if own := [row for row in rows if row.mode in modes]:
            parts += [f"host time per call on {own[0].environment.gpu}", *made(own)]
    return tables.text(parts)


def kernel_parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per competitor, its time per call and torch's in each mode."""
    modes = [mode for mode in MODES if any(row.mode == mode for row in rows)]
    head = ["", *(cell for mode in modes for cell in (f"{TITLES[mode]} µs (p20-p80)", "x torch"))]
    body = []
    for name in dict.fromkeys(row.competitor for row in rows):
        own = {row.mode: row for row in rows if row.competitor == name}
        cells = ((us_spread(own.get(mode)), _times(own.get(mode))) for mode in modes)
        body.append((_label(own[min(own, key=MODES.index)]), *itertools.chain(*cells)))
    calls = max((row.launches for row in rows if row.us), default=0)
    method = (
        f"{rows[0].case}. Median and percentiles of {tables.most_rounds(rows)} rounds; a cached "
        f"call is the mean of {calls} in a row, a first call the only one of its sizes, with a "
        "kernel that is already compiled. x torch: the time over that of torch.matmul in the same "
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


def latest_kernels(rows: Sequence[Row], s: Selection) -> list[Row]:
    """The rows of the newest run that reached the last mode of the documented case.

    A run of less than half of the competitors does not displace a fuller one.
    """
    table = runs((row for row in rows if row.case == CASE), "host", s.gpu, None)
    timed = table[table.timed & (table["mode"] == MODES[-1])].groupby("run").size()
    fuller = timed.index[2 * timed >= timed.max()]
    return list(table.row[table.run == fuller[-1]]) if len(fuller) else []


def call_parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per kind of call and kernel asked for."""
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
            f"in a compiled graph a product takes torch {digits(theirs)} µs and tritemm "
            f"{digits(ours)}, {ours - theirs:+.2f}; the rest of a call {digits(their_graph)} and "
            f"{digits(our_graph)}."
        )
    method = (
        "x torch: the time over that of F.linear (of torch.matmul where the weight is stored "
        "[K, N]) in the same round."
    )
    table = Table((*head, "x torch (p20-p80)", "torch again"), body, words=3)
    return [table, *_below(rows, told, method)]


def _raced(rows: Sequence[Row], modes: Sequence[str]) -> Iterator[tuple[tuple, dict, str]]:
    """Of each mode its problem's cells, its race, and what torch takes over itself."""
    found = tables.raced(rows, lambda row: row.mode)
    for race in (found[mode] for mode in modes if mode in found):
        row, again = next(iter(race.values())), race.get(NULL)
        noise = digits(again.ratio.inverse.p50) if again and again.ratio else ""
        yield (row.problem["name"], f"{row.case.size} {row.case.layout}"), race, noise


def _below(rows: Sequence[Row], told: str, method: str) -> Parts:
    """What stands below a table of calls."""
    usual = (
        f"bf16. Python's time for one call, the median of {tables.most_rounds(rows)} rounds of a "
        "batch each, which begins with an idle GPU and waits for nothing."
    )
    yield from tables.reasons(rows, lambda row: f"{row.problem['name']}, {row.competitor}")
    yield from (told, f"{usual} {method} {tables.origin(rows)}.")


def _over(row: Row | None) -> str:
    return spread(row.ratio.inverse, row.tie) if row and row.ratio else ""


def per_graph(rows: Sequence[Row], competitor: str) -> tuple[float, float] | None:
    """Microseconds of a compiled graph without its products, and of each product in it."""
    found = {row.mode: row.us.p50 for row in rows if row.competitor == competitor and row.us}
    one, many = (found.get(f"host call graph {count}") for count in (1, CHAIN))
    product = one and many and (many - one) / (CHAIN - 1)
    return (one - product, product) if product is not None else None


def routing_parts(rows: list[Row], selection: Selection | None = None) -> Parts:
    """A line per call of torch's, and what routing adds."""
    head = ("", "problem", "torch µs (p20-p80)", "enabled µs (p20-p80)", "more µs")
    head += ("x torch (p20-p80)", "tritemm µs (p20-p80)", "x torch (p20-p80)", "torch again")
    body = []
    for problem, race, noise in _raced(rows, _ROUTES):
        torchs, enabled, ours = (race.get(name) for name in (REFERENCE, ENABLED, OURS))
        timed = torchs and torchs.us and enabled and enabled.us
        more = f"{enabled.us.p50 - torchs.us.p50:+.2f}" if timed else ""
        cells = (us_spread(torchs), us_spread(enabled), more, _over(enabled))
        body.append((*problem, *cells, us_spread(ours), _over(ours), noise))
    method = (
        "Enabled: the same call of torch's inside tritemm.enabled(); more: what that adds, "
        "tritemm's launch in place of cuBLAS's included. tritemm: its function of the same name. "
        "x torch: the time over torch's in the same round."
    )
    return [Table(head, body, words=2), *_below(rows, "", method)]


_CALLS, _ROUTES = ([kind.mode_of_rows for kind in kinds] for kinds in (KINDS, ROUTED))
VIEWS = {
    "host": View(latest_kernels, kernel_parts),
    "calls": View(lambda rows, s: newest_of_all(rows, "host", _CALLS, s.gpu), call_parts),
    "routing": View(lambda rows, s: newest_of_all(rows, "host", _ROUTES, s.gpu), routing_parts),
}
