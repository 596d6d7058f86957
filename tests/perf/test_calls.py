"""`python -m perf host` on the CPU: made-up calls on a made-up clock."""

import dataclasses
import gc
import itertools
import random
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import tritemm
from perf import called as hosted
from perf import calls, machine, rows
from perf.called import CALLS, ENABLED, LAUNCHES, LEAD, MODES, QUEUE
from perf.calls import OURS
from perf.case import Case
from perf.engine import Competitor, Plan
from perf.experiments import host, show
from perf.machine import State
from perf.rows import NULL, REFERENCE
from perf.views import Selection
from tests.perf.fakes import by_name, on_cpu, ran, rows_after
from tritemm.problem import INTERPRETED

pytestmark = [pytest.mark.host, pytest.mark.once]
interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")

CASE = Case(48, 40, 32, "NT", "bf16")
KERNEL_KINDS = hosted.kernel_kinds(CASE, [])
KINDS = {kind.name: kind for kind in (*KERNEL_KINDS, *hosted.KINDS, *hosted.ROUTED)}


@pytest.fixture
def cpu(monkeypatch):
    """Benches of calls on the CPU."""
    monkeypatch.setattr(hosted, "DEVICE", "cpu")
    monkeypatch.setattr(host, "SETTLE", 0.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(machine, "probe", lambda: State)


# How calls are timed


class Machine:
    """A clock that calls advance, and a launch queue that they fill.

    The host gets slower by 20 % over time and jitters by 2 %. Torch takes 13 us, tritemm 39, and
    torch's call where it is routed 31. `fault` is planted in what tritemm returns.
    """

    def __init__(self, monkeypatch, fault=lambda y: y, falls=False):
        self.rng, self.now, self.fault = random.Random(2), 0.0, fault
        self.pending = self.most = self.synchronised = 0
        self.seen, self.uncollected, self.routed = [], [], []
        clock = SimpleNamespace(perf_counter=lambda: self.now, monotonic=time.monotonic)
        monkeypatch.setattr(calls, "time", clock)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronise)

        class Inside:
            ran, fell_back = ({}, {"mm": {"no kernel": 1}}) if falls else ({"mm": 1}, {})

            def __enter__(inner):
                self.routed.append(1)
                return inner

            def __exit__(inner, *raised):
                self.routed.pop()

            def __str__(inner):
                return "mm  0  1\nno kernel"

        monkeypatch.setattr(tritemm, "enabled", Inside)

    def synchronise(self):
        self.pending, self.synchronised = 0, self.synchronised + 1

    def spent(self, name, known, multiply):
        def call(a, b, out=None):
            self.seen.append(self.synchronised)
            self.uncollected.append(gc.isenabled())
            self.pending += LAUNCHES
            self.most = max(self.most, self.pending)
            us = 31 if self.routed else known
            drift = 1 + 0.2 * min(self.now, 0.5) / 0.5
            self.now += us * 1e-6 * drift * self.rng.gauss(1, 0.02)
            y = multiply(a, b)
            y = self.fault(y) if name == OURS else y
            return y if out is None else out.copy_(y)

        return call

    def kind(self, kind):
        """The kind with these functions."""
        multiply = F.linear if kind.weight and kind.case.layout == "NT" else torch.matmul
        torchs = self.spent(REFERENCE, 13, multiply)
        ours = self.spent(OURS, 39, multiply)
        if kind.family == "routed":
            torchs, ours = (lambda bias, own=own: own for own in (torchs, ours))
        return dataclasses.replace(kind, torchs=torchs, ours=ours)

    def bench(self, kind):
        return hosted.Called(self.kind(kind), Plan(settle=0))


def small(name, **fields):
    """The kind with small operands, and short chains that aren't compiled."""
    kind = KINDS[name]
    case = Case(4, 24, 24, kind.case.layout, "bf16")
    make = kind.make if kind.mode == "eager" else hosted.chained(3)
    return dataclasses.replace(kind, case=case, make=make, mode="eager", **fields)


def test_the_queue_never_fills_nothing_waits_inside_a_batch_and_garbage_waits(cpu, monkeypatch):
    there = Machine(monkeypatch)
    loop = there.bench(KERNEL_KINDS[0]).loop(Competitor(OURS, None))
    there.seen.clear()
    there.uncollected.clear()
    for _ in range(5):
        loop.time()
    # The lead of each sample follows the batch before it without a wait; the first has no such.
    batches = itertools.groupby(there.seen)
    assert [len(list(group)) for _, group in batches] == [LEAD, *[CALLS + LEAD] * 4, CALLS]
    assert there.most <= QUEUE // 2
    assert there.uncollected[: LEAD + CALLS] == [True] * LEAD + [False] * CALLS

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calls.by_clock(interrupt, 1, State)
    assert gc.isenabled()


@pytest.mark.parametrize(
    "name", [*MODES, "plain", "recorded", "backward", "graph 1", "linear bias"]
)
def test_of_every_kind_torch_again_ties_and_only_enabled_is_routed(cpu, monkeypatch, name):
    there, kind = Machine(monkeypatch), small(name, **({"products": 40} if "bias" in name else {}))
    found = by_name(rows_after(
        calls.field(*(kind.kernels or [OURS])), there.bench(kind), Plan(rounds=20)
    ))  # fmt: skip
    assert found[OURS].ratio.inverse.p50 == pytest.approx(3, rel=0.03)
    assert found[NULL].tie and not found[OURS].tie and found[OURS].worst < 1
    count = 3 if name == "graph 1" else 1
    assert 13 * count * 0.97 < found[REFERENCE].us.p50 < 13 * count * 1.23
    assert found[OURS].launches == kind.calls and not there.routed
    if ENABLED in kind.kernels:
        more = found[ENABLED].us.p50 - found[REFERENCE].us.p50  # 18, by a clock that drifts
        assert more == pytest.approx(20, abs=2.5)


FAULTS = {
    **dict.fromkeys(MODES, lambda y: y + 1),
    "plain": lambda y: y.index_fill(-1, torch.tensor([5]), 9.0),
    "recorded": lambda y: y * 1.05,
    "backward": lambda y: y.detach() + 0 * y,
    "graph 1": lambda y: y * torch.nan,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_call_that_is_wrong_is_not_timed(cpu, monkeypatch, name):
    bench = Machine(monkeypatch, FAULTS[name]).bench(small(name))
    found = by_name(rows_after(calls.field(OURS), bench, Plan(rounds=3)))
    assert (found[OURS].outcome, found[OURS].us) == ("wrong", None)
    assert found[REFERENCE].outcome == "measured"


def test_a_call_that_falls_back_is_not_a_routed_one(cpu, monkeypatch):
    bench = Machine(monkeypatch, falls=True).bench(small("linear"))
    verdict = bench.verify(bench.loop(Competitor(ENABLED, None)))
    assert (verdict.ok, str(verdict)) == (False, "not routed: mm 0 1 no kernel")


def test_what_is_not_written_is_not_what_an_earlier_call_left(cpu, monkeypatch):
    poisoned, full_like = [], torch.full_like
    full = lambda t, value, **o: poisoned.append((*t.shape, value)) or full_like(t, value, **o)  # noqa: E731
    monkeypatch.setattr(torch, "full_like", full)
    Machine(monkeypatch).bench(small("backward")).results(REFERENCE)
    assert [str(p) for p in poisoned] == ["(4, 24, nan)", "(4, 24, nan)", "(24, 24, nan)"]


@pytest.mark.parametrize("name", ["plain", "recorded", "backward", "graph 1"])
def test_gradients_are_asked_for_and_graphs_compiled_where_the_kind_says_so(cpu, monkeypatch, name):
    made, asked, kind = [], [], KINDS[name]
    monkeypatch.setattr(torch, "compile", lambda f, **options: made.append(f.__code__) or f)

    def multiply(x, w):
        asked.append((x.requires_grad, w.requires_grad))
        return F.linear(x, w)

    case = Case(4, 24, 24, "NT", "bf16")
    kind = dataclasses.replace(kind, case=case, torchs=multiply, ours=multiply)
    bench = hosted.Called(kind, Plan())
    asked.clear()
    for own in (REFERENCE, OURS):
        bench.call(own)()
    compiled = kind.mode == "compiled"
    assert len(asked) == 2 * (kind.products if compiled else 2 if name == "backward" else 1)
    assert set(asked) == {(name in ("recorded", "backward"),) * 2}
    assert len(set(map(id, made))) == len(made) == 2 * compiled
    assert (kind.calls + LEAD) * 2 * kind.products <= QUEUE // 2


@interpreted
@pytest.mark.parametrize("name", [kind.name for kind in hosted.ROUTED])
def test_every_routed_kind_is_routed_and_agrees(cpu, name):
    bench = hosted.Called(small(name), Plan())
    for competitor in (REFERENCE, NULL, ENABLED, OURS):
        verdict = bench.verify(bench.loop(Competitor(competitor, None)))
        assert verdict.ok, f"{competitor}: {verdict}"
    assert KINDS["mm"].function(REFERENCE, None) is KINDS["mm"].function(ENABLED, None) is torch.mm


# The command


@pytest.fixture
def commanded(cpu, monkeypatch):
    on_cpu(monkeypatch)
    monkeypatch.setattr(hosted, "CALLS", 3)
    few = [small(name, products=40) for name in ("plain", "workspace")]
    monkeypatch.setattr(hosted, "KINDS", few)
    monkeypatch.setattr(hosted, "ROUTED", [small("mm", products=40)])


WORDS = ("host", "--size", "48x40x36", "--kernel", "auto,tma", "--rounds", "2")


def test_the_command_records_every_table(commanded, tmp_path, capsys):
    # K = 36 is 72 bytes of bf16: TMA refuses.
    status, found = ran(tmp_path / "x.jsonl", *WORDS)
    assert status == 0 and {row.experiment for row in found} == {"host"}
    kernels = [row for row in found if row.mode in MODES]
    assert [row.competitor for row in kernels] == ["auto", "tma", REFERENCE, NULL] * 2
    assert "TMA needs a multiple of 16" in kernels[1].reason and kernels[0].rung == "pipelined"
    rest = [row for row in found if row.mode not in MODES]
    modes = ["host call plain"] * 3 + ["host call workspace"] * 5 + ["host routed mm"] * 4
    assert [row.mode for row in rest] == modes
    # The rungs with a workspace don't run in the interpreter, and say so.
    assert [row.competitor for row in rest if row.outcome == "failed"] == ["split_k", "stream_k"]
    for each in found:
        assert each.roof is each.worst is each.ratio_below is None
    printed = capsys.readouterr().out
    assert printed.count('tma: refused: kernel="tma" cannot run this problem') == 1
    assert "auto (pipelined)" in printed and "with a workspace, split_k: failed" in printed
    assert printed.count("host time per call on NVIDIA H200") == 3


def test_the_newest_full_run_of_kernels_is_shown():
    full, late = show.VIEWS["host"].chosen(rows.recorded(), Selection()), "2027-01-01T00:00:00"

    def newer(keep=lambda row: True, **fields):
        return [dataclasses.replace(r, run=late, **fields) for r in filter(keep, full)]

    for more, expected in (
        (newer(), late),
        (newer(lambda row: row.competitor == "auto"), full[0].run),
        (newer(lambda row: row.mode == MODES[0]), full[0].run),
        (newer(case=CASE), full[0].run),
    ):
        found = show.VIEWS["host"].chosen([*full, *more], Selection())
        assert {row.run for row in found} == {expected}
