"""What `tritemm.enabled()` costs a call of torch, and what tritemm's own function costs.

Each of torch's calls is timed as it is, inside `tritemm.enabled()`, and as tritemm's function of
its name. Routing is one setting of the process, so it is switched on before a batch and off after
it, untimed. `perf.host_bench` says how calls are timed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F

import tritemm

from . import host_calls
from .case import DTYPES, Case
from .engine import Competitor
from .host_calls import LINEAR, Called, Kind, Multiply, plain, recorded
from .model_agreement import Agreement
from .model_bench import Repeated
from .rows import REFERENCE
from .session import Session

#: Torch's call, routed; and tritemm's own function.
ENABLED, OURS = "enabled", "auto"
FAMILY = "routed"

#: Makes a multiplication that adds this bias, or none.
Biased = Callable[[torch.Tensor], Multiply]

STORED = dataclasses.replace(LINEAR, layout="NN")


def _kind(name: str, title: str, case: Case, make=plain) -> Kind:
    return Kind(name, title, case, make, kernels=(ENABLED, OURS), family=FAMILY)


KINDS = (
    _kind("mm", "torch.mm", STORED),
    _kind("linear", "F.linear", LINEAR),
    _kind("linear bias", "F.linear, bias", LINEAR),
    _kind("addmm", "torch.addmm", STORED),
    _kind("linear bias recorded", "F.linear, bias, a gradient recorded", LINEAR, recorded),
)
#: Torch's function and tritemm's, by the first words of a kind's name.
CALLS: dict[str, tuple[Biased, Biased]] = {
    "mm": (lambda bias: torch.mm, lambda bias: tritemm.matmul),
    "linear": (lambda bias: F.linear, lambda bias: tritemm.linear),
    "linear bias": (
        lambda bias: lambda x, w: F.linear(x, w, bias),
        lambda bias: lambda x, w: tritemm.linear(x, w, bias),
    ),
    "addmm": (
        lambda bias: lambda x, w: torch.addmm(bias, x, w),
        lambda bias: lambda x, w: tritemm.addmm(bias, x, w),
    ),
}


def multiplications(kind: Kind) -> dict[str, Biased]:
    """By competitor. What is enabled is torch's function itself."""
    torchs, ours = CALLS[kind.name.removesuffix(" recorded")]
    return {REFERENCE: torchs, ENABLED: torchs, OURS: ours}


class Routed(Called):
    """An `engine.Bench` of batches of one kind of call; `ENABLED`'s are routed."""

    def __init__(self, kind: Kind, variants, *, device: str = "cuda", **options):
        self.bias = torch.randn(kind.case.N, dtype=DTYPES[kind.case.dtype], device=device)
        super().__init__(kind, variants, device=device, **options)

    def multiply(self, name: str, dtype: torch.dtype) -> Multiply:
        bias = self.bias.detach().clone().to(dtype)
        return self.variants[name](bias.requires_grad_(self.kind.make is recorded))

    def estimate(self, caller: Competitor) -> float:
        with inside(caller.name):
            return super().estimate(caller)

    def loop(self, caller: Competitor) -> Repeated:
        with inside(caller.name):
            loop = super().loop(caller)
        return dataclasses.replace(
            loop, replay=_within(caller.name, loop.replay), time=_within(caller.name, loop.time)
        )

    def verify(self, loop: Repeated, accumulate: str | None = None) -> Agreement:
        """A call that tritemm leaves to torch is no routed call, whatever its result."""
        with inside(loop.name) as report:
            verdict = super().verify(loop, accumulate)
        if loop.name == ENABLED and (report.fell_back or not report.ran):
            left = " ".join(str(report).split())
            return dataclasses.replace(verdict, ok=False, message=f"not routed: {left}")
        return verdict


@contextlib.contextmanager
def inside(name: str) -> Iterator[tritemm.integrate.Report | None]:
    """`tritemm.enabled()`, for the competitor that is timed there."""
    if name != ENABLED:
        yield None
        return
    with tritemm.enabled() as report:
        yield report


def _within(name: str, work: Callable) -> Callable:
    def inner():
        with inside(name):
            return work()

    return inner


def routed(kind: Kind, **options) -> Routed:
    return Routed(kind, multiplications(kind), **options)


def run(
    session: Session, rounds: int, amend: Callable, kinds: Sequence[Kind] = KINDS, **options
) -> None:
    """Race every kind and record it; Ctrl-C keeps what was measured. `options`: of `Routed`."""
    host_calls.run(session, rounds, amend, kinds, routed, **options)
