"""Kinds of calls of tritemm's and of torch's functions, and the bench that times them.

A call is timed by the wall clock around calls that only enqueue: the GPU is idle when they begin
and nothing waits for it at their end. `CALLS` of them are a small part of the launch queue, so
that none waits for room there, however slow the kernels are; no garbage is collected meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

import tritemm

from . import calls, session
from .agreement import Agreement
from .calls import OURS, CallBench, compiled
from .case import DTYPES, Case
from .competitors import matmul
from .engine import Competitor, Loop, Plan
from .operands import operands
from .problems import Problem
from .rows import REFERENCE

#: Launches that a CUDA stream takes before the next one waits (about as many, on an H200).
QUEUE = 1024
#: Calls in a batch, of at most so many launches each (a padding copy or a reduction is one).
CALLS, LAUNCHES = 50, 8
#: Untimed calls before a batch, which bring the competitor's code back into the CPU's caches.
LEAD = 5
#: Modes of the rows: without and with `out=`.
MODES = EAGER, OUT = "host eager", "host out"
#: What is measured unless another size is asked for.
CASE = Case(128, 128, 128, "NT", "bf16")
#: Where the operands are.
DEVICE = "cuda"

# Kinds of calls

Multiply = Callable[..., torch.Tensor]
#: Makes a call of its multiplication, its operands and a mode of `calls.MODES`; the call returns
#: its results, in this order.
Make = Callable[[Multiply, torch.Tensor, torch.Tensor, str], Callable[[], tuple]]
RESULTS = ("result", "gradient of x", "gradient of w")
#: Products of the longer of two compiled graphs: the difference is what a product costs.
CHAIN = 33
#: Torch's call inside `tritemm.enabled()`.
ENABLED = "enabled"


def plain(multiply: Multiply, x: torch.Tensor, w: torch.Tensor, mode: str):
    return lambda: (multiply(x, w),)


def into(multiply: Multiply, x: torch.Tensor, w: torch.Tensor, mode: str):
    """A call with `out=`."""
    out = torch.empty_like(multiply(x, w))
    return lambda: (multiply(x, w, out=out),)


def recorded(multiply: Multiply, x: torch.Tensor, w: torch.Tensor, mode: str):
    """Both operands require a gradient, which is never computed."""
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
    """A compiled graph of a number of products in a row."""

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
    """One way to call. `products`: of one call; `mode`: of `calls.MODES`.

    `torchs` and `ours` are the functions; of a routed kind they are given a bias first. With
    `weight`, layout NT is `F.linear`'s, whose weight is stored [N, K]. `kernels`: what tritemm is
    asked for. Of `family` "kernel" `name` is the rows' mode.
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
    ours: Callable = tritemm.linear
    weight: bool = True

    @property
    def mode_of_rows(self) -> str:
        return self.name if self.family == "kernel" else f"host {self.family} {self.name}"

    @property
    def calls(self) -> int:
        """Per batch: with all launches of its products, half of the queue."""
        launches = LAUNCHES if self.family == "kernel" else 2 * self.products
        return max(1, min(CALLS, QUEUE // 2 // launches - LEAD))

    def function(self, name: str, bias: torch.Tensor | None) -> Multiply:
        """The competitor's function: torch's (also inside `tritemm.enabled()`) or tritemm's."""
        if self.family == "routed":
            return (self.ours if name == OURS else self.torchs)(bias)
        if name == REFERENCE:
            return self.torchs
        return self.ours if name == "auto" else functools.partial(self.ours, kernel=name)

    def field(self, there: CallBench) -> list[Competitor]:
        if self.family != "kernel":
            return calls.field(*self.kernels)
        return matmul(self.case, (there.x, there.w, None), dict.fromkeys(self.kernels))


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


def kernel_kinds(case: Case, kernels: Sequence[str]) -> list[Kind]:
    """One per mode."""
    known = {"kernels": tuple(kernels), "family": "kernel", "weight": False, **_STORED}
    return [Kind(mode, mode, case, make, **known) for mode, make in ((EAGER, plain), (OUT, into))]


def task_of(kind: Kind) -> session.Task:
    """Its rows lack what describes the GPU's work: errors, rungs below."""
    problem = Problem(kind.name, kind.family, kind.title, kind.case)
    left_out = {"worst": None, "below": None, "ratio_below": None}
    return session.Task(
        kind.case,
        kind.field,
        None if kind.family == "kernel" else problem,
        functools.partial(Called, kind),
        amend=lambda there, rows: [dataclasses.replace(row, **left_out) for row in rows],
        fields={"mode": kind.mode_of_rows, "roof": None},
    )


# How they are timed


class Called(CallBench):
    """Calls of one kind.

    Those of `ENABLED` are routed. Routing is one setting of the process, so it is switched on
    before a batch and off after it, untimed.
    """

    def __init__(self, kind: Kind, plan: Plan):
        self.kind, self.case, self.mode = kind, kind.case, kind.mode_of_rows
        # Values of a weight that keeps the size of what it multiplies, however often it does.
        self.x, self.w = self.operands(kind.case)
        self.bias = torch.randn(kind.case.N, dtype=DTYPES[kind.case.dtype], device=DEVICE)
        multiply = self.multiply(REFERENCE, torch.float32)
        call = kind.make(multiply, self.x.float(), self.w.float(), "eager")
        super().__init__(_named(call), plan)

    def operands(self, case: Case) -> tuple[torch.Tensor, torch.Tensor]:
        a, b, _ = operands(case, DEVICE)
        turned = self.kind.weight and case.layout == "NT"
        return a, (b.mT if turned else b) / math.sqrt(case.K)

    def multiply(self, name: str, dtype: torch.dtype) -> Multiply:
        """The competitor's function, for operands of this type."""
        bias = self.bias.detach().clone().to(dtype)
        return self.kind.function(name, bias.requires_grad_(self.kind.make is recorded))

    def make(self, name: str) -> Callable[[], tuple]:
        """Each competitor has its own leaves."""
        x, w = self.x.detach().clone(), self.w.detach().clone()
        return self.kind.make(self.multiply(name, x.dtype), x, w, self.kind.mode)

    def batch(self, seconds: float) -> tuple[int, int]:
        return LEAD, self.kind.calls

    @contextlib.contextmanager
    def around(self, name: str) -> Iterator[None]:
        """`tritemm.enabled()`, for the competitor that is timed there."""
        with tritemm.enabled() if name == ENABLED else contextlib.nullcontext() as self.report:
            yield

    def results(self, name: str) -> calls.Results:
        """The allocator's free memory is poisoned first: an element that isn't written must not
        hold what an earlier call wrote there."""
        call, dtype = self.call(name), self.x.dtype
        poison = [torch.full_like(t, math.nan, dtype=dtype) for t in self.exact.values()]
        del poison
        return _named(call)

    def verify(self, loop: Loop, accumulate: str | None = None) -> Agreement:
        """A call that tritemm leaves to torch is no routed call."""
        verdict = super().verify(loop)
        if self.report and (self.report.fell_back or not self.report.ran):
            left = " ".join(str(self.report).split())
            return dataclasses.replace(verdict, ok=False, message=f"not routed: {left}")
        return verdict


def _named(call: Callable[[], tuple]) -> dict[str, torch.Tensor]:
    return {name: t.detach() for name, t in zip(RESULTS, call(), strict=False)}
