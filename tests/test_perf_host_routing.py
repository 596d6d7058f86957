"""Torch's calls and `tritemm.enabled()`, on the CPU: made-up times, real routes."""

import dataclasses
import functools
import random

import pytest
import torch
import torch.nn.functional as F

import tritemm
from perf import engine, host_calls_report, host_routing, host_routing_report, machine, rows, views
from perf.case import Case
from perf.commands import host as command
from perf.host_bench import LEAD, QUEUE, Cached, Watch
from perf.host_routing import ENABLED, KINDS, OURS, Routed, multiplications
from perf.machine import State
from perf.rows import NULL, REFERENCE
from tritemm.problem import INTERPRETED

from .perf_fakes import ENVIRONMENT, by_name, heading, ran

pytestmark = pytest.mark.host
interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")

KNOWN = {kind.name: kind for kind in KINDS}
EVERY = (REFERENCE, NULL, ENABLED, OURS)


def small(name):
    kind = KNOWN[name]
    return dataclasses.replace(kind, case=Case(4, 16, 24, kind.case.layout, "bf16"), products=40)


class Clock:
    """A call takes 13 us, 31 where it is routed and 52 of tritemm's; the host jitters."""

    def __init__(self):
        self.now, self.rng, self.routed = 0.0, random.Random(2), []

    def spend(self, us):
        self.now += us * 1e-6 * self.rng.gauss(1, 0.02)

    def bench(self, kind, monkeypatch):
        def torchs(bias):
            def call(x, w):
                self.spend(31 if self.routed else 13)
                return F.linear(x, w, bias)

            return call

        def ours(bias):
            def call(x, w):
                self.spend(52)
                return F.linear(x, w, bias)

            return call

        class Inside:
            ran, fell_back = {"addmm": 1}, {}

            def __enter__(inner):
                self.routed.append(1)
                return inner

            def __exit__(inner, *raised):
                self.routed.pop()

        monkeypatch.setattr(tritemm, "enabled", Inside)
        variants = {REFERENCE: torchs, ENABLED: torchs, OURS: ours}
        return Routed(kind, variants, device="cpu", watch=Watch(lambda: self.now, lambda: None))


def race(bench, rounds=20):
    bench.settle = lambda loops: State()
    field = [engine.Competitor(n, None, rung=n if n in (ENABLED, OURS) else None) for n in EVERY]
    found = engine.measure(field, bench, engine.Plan(rounds=rounds), random.Random(0))
    return by_name(engine.rows_of(found, heading(bench.case, mode=bench.mode)))


@pytest.mark.parametrize("name", ["linear bias", "linear bias recorded"])
def test_only_the_enabled_batches_are_routed(name, monkeypatch):
    clock = Clock()
    found = race(clock.bench(small(name), monkeypatch))
    assert found[ENABLED].us.p50 - found[REFERENCE].us.p50 == pytest.approx(18, abs=1)
    assert found[OURS].ratio.inverse.p50 == pytest.approx(4, rel=0.03)
    assert found[NULL].tie and not clock.routed


def test_gradients_are_recorded_where_the_kind_says_so():
    for name in ("linear bias", "linear bias recorded"):
        asked = []

        def torchs(bias, asked=asked):
            return lambda x, w: asked.append([t.requires_grad for t in (x, w, bias)]) or x @ w.mT

        kind = small(name)
        bench = Routed(kind, {REFERENCE: torchs}, device="cpu", watch=Watch(None, None))
        bench.call(REFERENCE)()
        assert asked[-1] == [name.endswith("recorded")] * 3


@interpreted
@pytest.mark.parametrize("name", KNOWN)
def test_every_kind_is_routed_and_agrees(name):
    kind = small(name)
    bench = host_routing.routed(kind, device="cpu", watch=Watch(lambda: 0.0, lambda: None))
    for competitor in EVERY:
        verdict = bench.verify(bench.loop(engine.Competitor(competitor, None)))
        assert verdict.ok, f"{competitor}: {verdict}"
    assert not tritemm.integrate.is_batch_invariant_mode_enabled()


def test_a_call_that_falls_back_is_not_a_routed_one(monkeypatch):
    class Left:
        ran, fell_back = {}, {"mm": {"no kernel": 1}}

        def __enter__(self):
            return self

        def __exit__(self, *raised):
            pass

        def __str__(self):
            return "mm  0  1\nno kernel"

    monkeypatch.setattr(tritemm, "enabled", Left)
    variants = dict.fromkeys((REFERENCE, ENABLED), lambda bias: F.linear)
    bench = Routed(small("linear"), variants, device="cpu", watch=Watch(lambda: 0.0, lambda: None))
    bench.verify(bench.loop(engine.Competitor(REFERENCE, None)))
    verdict = bench.verify(bench.loop(engine.Competitor(ENABLED, None)))
    assert (verdict.ok, str(verdict)) == (False, "not routed: mm 0 1 no kernel")


def test_what_is_enabled_is_torchs_own_function():
    for kind in KINDS:
        variants = multiplications(kind)
        assert variants[ENABLED] is variants[REFERENCE]
        assert (kind.calls + LEAD) * 2 <= QUEUE // 2
    bias = torch.zeros(1)
    assert variants[REFERENCE] is multiplications(KNOWN["linear bias"])[REFERENCE]
    assert multiplications(KNOWN["mm"])[REFERENCE](bias) is torch.mm
    assert multiplications(KNOWN["linear"])[OURS](bias) is tritemm.linear


@interpreted
def test_the_command_records_each_kind(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "unable", lambda name: None)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1980.0))
    monkeypatch.setattr(Cached.settle, "__defaults__", (0.0,))
    measure, watch = host_routing.run, Watch(synchronise=lambda: None)
    few = [small(name) for name in ("mm", "linear bias recorded")]
    monkeypatch.setattr(
        host_routing, "run",
        lambda *given: measure(*given, kinds=few, device="cpu", watch=watch, probe=State),
    )  # fmt: skip
    path = tmp_path / "rows.jsonl"
    what = functools.partial(ran, command, path, "host", "--what", "routing")
    status, found = what("--rounds", "1")
    assert status == 0
    assert [row.competitor for row in found] == [*EVERY] * 2
    assert {row.mode for row in found} == {"host routed mm", "host routed linear bias recorded"}
    assert {row.problem["class"] for row in found} == {"routed"}
    assert all(row.outcome == "measured" and row.worst is None for row in found)
    printed = capsys.readouterr().out
    assert printed.startswith("torch's calls and tritemm.enabled(), on NVIDIA H200")
    assert host_calls_report.of(found) == []


OLD, NEW = "2026-01-02T03:04:05+00:00", "2026-02-02T03:04:05+00:00"


def made_up(run=OLD, kinds=KINDS):
    found = []
    for kind in kinds:
        problem = {"id": kind.name, "class": "routed", "name": kind.title}
        head = heading(
            kind.case, mode=kind.mode_of_rows, experiment="host", run=run, time=run, problem=problem
        )
        for name, us in zip(EVERY, (13.0, 13.0, 15.5, 26.0), strict=True):
            ratio = 13 / us
            found.append(rows.Row(
                **vars(head), competitor=name, rung=None, number=None, config=None,
                outcome="measured", rounds=30, launches=50, us=rows.Quantiles(us - 1, us, us + 1),
                ratio=rows.Quantiles(ratio * 0.99, ratio, ratio * 1.001),
                null=rows.Quantiles(0.99, 1.0, 1.01),
            ))  # fmt: skip
    return found


def test_the_table_says_what_routing_adds():
    found = made_up()
    _, _, first, *_ = host_routing_report.text(found).splitlines()
    wanted = (
        "torch.mm 16 x 2048 x 2048 NN 13.0 (12.0-14.0) 15.5 (14.5-16.5) +2.50 1.192 (1.191-1.204) "
        "26.0 (25.0-27.0) 2.000 (1.998-2.020) 1.00"
    )
    assert first.split() == wanted.split()
    lost = {"us": None, "ratio": None, "outcome": "wrong", "reason": "not routed"}
    failed = dataclasses.replace(found[2], **lost)
    text = host_routing_report.markdown([*found[:2], failed])
    assert "torch.mm, enabled: wrong: not routed." in text
    assert host_routing_report.text([]) == "nothing was measured"


def test_the_newest_whole_run_is_shown():
    old, new, torn = made_up(), made_up(NEW), made_up("2026-03-02T00:00:00+00:00", KINDS[:2])
    assert views.VIEWS["routing"].chosen([*new, *old, *torn], views.Selection()) == (new,)
    assert host_routing_report.latest(torn) == []
    assert command.text([new]).startswith("torch's calls")
