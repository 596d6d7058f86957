"""Calls as models make them: what Python spends on each, by torch and by tritemm.

`F.linear` of a few rows, whose kernel is over before the next call is made: plain, with a gradient
recorded, with its backward, in compiled graphs, with operands that have to be copied first because
their pitch is odd, and by kernels with a workspace. `perf.host_bench` says how calls are timed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

import tritemm

from . import engine, machine
from .case import Case
from .cli import progress, say
from .engine import Competitor, Plan
from .host_bench import CALLS, LEAD, QUEUE, Cached, Watch
from .machine import State
from .model_agreement import Agreement, Errors, errors, judge
from .model_bench import Repeated
from .model_steps import compiled
from .operands import operands
from .rows import NULL, REFERENCE, TRITON
from .session import Session

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
#: Makes a call of its multiplication, its operands and a mode of `perf.model.MODES`; the call
#: returns its results.
Make = Callable[[Multiply, torch.Tensor, torch.Tensor, str], Callable[[], tuple]]

#: Products of the longer of two compiled graphs: the difference is what a product costs.
CHAIN = 33
#: Names of a call's results, in order.
RESULTS = ("result", "gradient of x", "gradient of w")


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


@dataclasses.dataclass(frozen=True)
class Kind:
    """One way to call. `kernels`: what tritemm is asked for; `products`: of one call.

    Layout NT is `F.linear`'s: the weight is stored [N, K]. `mode`: of `perf.model.MODES`.
    `family`: the table that it is of.
    """

    name: str
    title: str
    case: Case
    make: Make = plain
    mode: str = "eager"
    products: int = 1
    kernels: tuple[str, ...] = ("auto",)
    family: str = "call"

    @property
    def mode_of_rows(self) -> str:
        return f"host {self.family} {self.name}"

    @property
    def calls(self) -> int:
        """Per batch: with two launches per product (one packs or adds up), half of the queue."""
        return max(1, min(CALLS, QUEUE // 2 // (2 * self.products) - LEAD))


LINEAR = Case(16, 2048, 2048, "NT", "bf16")
ODD_K, ODD_N = Case(16, 2048, 2047, "NT", "bf16"), Case(16, 2047, 2048, "NN", "bf16")
HEAD, DEEP = Case(16, 50257, 769, "NT", "bf16"), Case(64, 64, 16384, "NT", "bf16")
KINDS = (
    Kind("plain", "plain", LINEAR),
    Kind("recorded", "a gradient recorded", LINEAR, recorded),
    Kind("backward", "forward and backward", LINEAR, stepped, products=3),
    Kind("graph 1", "compiled, 1 product", LINEAR, chained(1), "compiled"),
    Kind(
        f"graph {CHAIN}", f"compiled, {CHAIN} products", LINEAR, chained(CHAIN), "compiled", CHAIN
    ),
    Kind("odd K", "packed, both operands", ODD_K),
    Kind("odd K backward", "packed, forward and backward", ODD_K, stepped, products=3),
    Kind("odd N", "packed, the weight stored [K, N]", ODD_N),
    Kind("odd head", "packed, 50257 rows of weights", HEAD),
    Kind("workspace", "with a workspace", DEEP, kernels=("auto", "split_k", "stream_k")),
)


def multiplications(kind: Kind) -> dict[str, Multiply]:
    """By competitor: torch's call, and tritemm's as it would take that one's place."""
    transposed = kind.case.layout == "NT"
    torchs = F.linear if transposed else torch.matmul
    found = {REFERENCE: torchs}
    for word in kind.kernels:
        ours = _linear if transposed else tritemm.matmul
        found[word] = ours if word == "auto" else functools.partial(ours, kernel=word)
    return found


def _linear(x: torch.Tensor, w: torch.Tensor, **options) -> torch.Tensor:
    return tritemm.matmul(x, w.mT, **options)


class Called(Cached):
    """An `engine.Bench` of batches of one kind of call."""

    def __init__(
        self,
        kind: Kind,
        variants: Mapping[str, Multiply],
        *,
        device: str = "cuda",
        watch: Watch | None = None,
        probe: Callable[[], State] = State,
    ):
        self.kind, self.variants = kind, variants
        self.case, self.mode = kind.case, kind.mode_of_rows
        self.watch, self.probe, self.calls = watch or Watch(), probe, kind.calls
        a, b, _ = operands(kind.case, device)
        # Values of a weight that keeps the size of what it multiplies, however often it does.
        self.x, self.w = a, (b.mT if kind.case.layout == "NT" else b) / math.sqrt(kind.case.K)
        self.made: dict[str, Callable[[], tuple]] = {}
        self.exact = self._exact()
        self.torchs: Errors | None = None

    def _exact(self) -> dict[str, torch.Tensor]:
        multiply = self.multiply(REFERENCE, torch.float32)
        return _results(self.kind.make(multiply, self.x.float(), self.w.float(), "eager"))

    def multiply(self, name: str, dtype: torch.dtype) -> Multiply:
        """That of a competitor, for operands of this type."""
        return self.variants[name]

    def call(self, name: str) -> Callable[[], tuple]:
        """Torch's is one, under both of its names; each has its own leaves."""
        name = REFERENCE if name == NULL else name
        if name not in self.made:
            x, w = self.x.detach().clone(), self.w.detach().clone()
            multiply = self.multiply(name, x.dtype)
            self.made[name] = self.kind.make(multiply, x, w, self.kind.mode)
        return self.made[name]

    def bind(self, caller: Competitor, *operands_) -> Callable[[], tuple]:
        return self.call(caller.name)

    def estimate(self, caller: Competitor) -> float:
        """Seconds of a call after those that compile and load it."""
        call = self.call(caller.name)
        for _ in range(LEAD):
            call()
        return self.watch.seconds(call, 1)

    def loop(self, caller: Competitor) -> Repeated:
        call = self.call(caller.name)
        seconds = self.watch.seconds(call, 1)
        sample = functools.partial(self._sample, call)
        return Repeated(self.calls, seconds, call, sample, name=caller.name)

    def verify(self, loop: Repeated, accumulate: str | None = None) -> Agreement:
        """Against fp32 by torch, and judged by what torch loses in the same type.

        The allocator's free memory is poisoned first: an element that isn't written must not hold
        what an earlier call wrote there.
        """
        call, dtype = self.call(loop.name), self.x.dtype
        poison = [torch.full_like(t, math.nan, dtype=dtype) for t in self.exact.values()]
        del poison
        own = errors(_results(call), self.exact)
        if self.torchs is None:
            self.torchs = own
        return judge(own, self.torchs)


def _results(call: Callable[[], tuple]) -> dict[str, torch.Tensor]:
    return {name: t.detach() for name, t in zip(RESULTS, call(), strict=False)}


def field(kind: Kind) -> list[Competitor]:
    """Torch first: it is what the others are judged by."""
    torchs = [Competitor(name, _nothing) for name in (REFERENCE, NULL)]
    return torchs + [Competitor(w, _nothing, ladder=TRITON, rung=w) for w in kind.kernels]


def _nothing(a, b, c) -> None:
    """`Called` knows what to call by the name."""


def called(kind: Kind, **options) -> Called:
    return Called(kind, multiplications(kind), **options)


def run(
    session: Session,
    rounds: int,
    amend: Callable,
    kinds: Sequence[Kind] = KINDS,
    make: Callable[..., Called] = called,
    **options,
) -> None:
    """Race every kind and record it; Ctrl-C keeps what was measured. `options`: of `make`."""
    plan = Plan(rounds=rounds, longest=math.inf)
    options = {"probe": machine.probe()} | options
    try:
        for kind in kinds:
            if session.interrupted:
                break
            say(f"{kind.mode_of_rows}: {kind.title}, {kind.case}")
            problem = {"id": kind.name, "class": kind.family, "name": kind.title}
            heading = session.heading(kind.case, problem, mode=kind.mode_of_rows)
            bench = make(kind, **options)
            race = engine.measure(field(kind), bench, plan, session.rng, say=say, progress=progress)
            session.add([amend(row) for row in engine.rows_of(race, heading)])
            session.interrupted = race.interrupted
    except KeyboardInterrupt:
        session.interrupted = True
