"""Calls as models make them, on the CPU: made-up times, planted faults, interpreted rungs."""

import dataclasses
import functools
import random

import pytest
import torch
import torch.nn.functional as F

from perf import engine, host, host_calls, host_calls_report, host_report, machine, rows, views
from perf.case import Case
from perf.commands import host as command
from perf.host_bench import LEAD, QUEUE, Cached, Watch
from perf.host_calls import CHAIN, KINDS, Called, chained
from perf.machine import State
from perf.rows import NULL, REFERENCE
from tritemm.problem import INTERPRETED

from .perf_fakes import ENVIRONMENT, by_name, heading, ran

pytestmark = pytest.mark.host

SMALL = Case(4, 24, 32, "NT", "bf16")
KNOWN = {kind.name: kind for kind in KINDS}


def small(name):
    """The kind with small operands, and short chains that aren't compiled."""
    kind = KNOWN[name]
    make = kind.make if kind.mode == "eager" else chained(3)
    square = {"case": Case(4, 24, 24, "NT", "bf16")} if kind.mode != "eager" else {"case": SMALL}
    return dataclasses.replace(kind, make=make, mode="eager", **square)


class Clock:
    """Torch's multiplication takes 13 us, tritemm's 39; the host gets slower and jitters."""

    def __init__(self, fault=lambda y: y):
        self.now, self.rng, self.fault = 0.0, random.Random(2), fault

    def multiply(self, seconds, x, w):
        self.now += seconds * (1 + 0.2 * min(self.now, 0.5)) * self.rng.gauss(1, 0.02)
        return F.linear(x, w)

    def bench(self, kind):
        variants = {
            REFERENCE: lambda x, w: self.multiply(13e-6, x, w),
            "auto": lambda x, w: self.fault(self.multiply(39e-6, x, w)),
        }
        return Called(kind, variants, device="cpu", watch=Watch(lambda: self.now, lambda: None))


def race(bench, rounds=20):
    field = [c for c in host_calls.field(bench.kind) if c.name in (REFERENCE, NULL, "auto")]
    bench.settle = lambda loops: State()
    found = engine.measure(field, bench, engine.Plan(rounds=rounds), random.Random(0))
    return by_name(engine.rows_of(found, heading(bench.case, mode=bench.mode)))


@pytest.mark.parametrize("name", ["plain", "recorded", "backward", "graph 1"])
def test_a_planted_factor_is_found_and_torch_again_ties(name):
    found = race(Clock().bench(small(name)))
    assert found["auto"].ratio.inverse.p50 == pytest.approx(3, rel=0.02)
    assert found[NULL].tie and not found["auto"].tie
    calls = 3 if name == "graph 1" else 1
    assert 13 * calls * 0.97 < found[REFERENCE].us.p50 < 13 * calls * 1.2
    assert found["auto"].launches == small(name).calls
    assert found["auto"].worst < 1


FAULTS = {
    "plain": lambda y: y.index_fill(-1, torch.tensor([5]), 9.0),
    "recorded": lambda y: y * 1.05,
    "backward": lambda y: y.detach() + 0 * y,
    "graph 1": lambda y: y * torch.nan,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_call_that_is_wrong_is_not_timed(name):
    found = race(Clock(FAULTS[name]).bench(small(name)), rounds=3)
    assert (found["auto"].outcome, found["auto"].us) == ("wrong", None)
    assert found[REFERENCE].outcome == "measured"


def test_what_is_not_written_is_not_what_an_earlier_call_left(monkeypatch):
    poisoned, full_like = [], torch.full_like

    def full(t, value, **options):
        poisoned.append((tuple(t.shape), value != value, options))
        return full_like(t, value, **options)

    monkeypatch.setattr(torch, "full_like", full)
    bench = Clock().bench(small("backward"))
    bench.verify(bench.loop(engine.Competitor(REFERENCE, None)))
    shapes = [(4, 24), (4, 32), (24, 32)]
    assert poisoned == [(shape, True, {"dtype": torch.bfloat16}) for shape in shapes]


def test_gradients_are_asked_for_where_the_kind_says_so():
    asked = {}
    for name in ("plain", "recorded", "backward"):

        def multiply(x, w, name=name):
            asked[name] = x.requires_grad, w.requires_grad
            return F.linear(x, w)

        bench = Called(small(name), {REFERENCE: multiply}, device="cpu", watch=Watch(None, None))
        call = bench.call(REFERENCE)
        results = call()
        x, w = bench.x, bench.w
        assert not (x.requires_grad or w.requires_grad)
        assert len(results) == (3 if name == "backward" else 1)
    assert asked == {"plain": (False, False), "recorded": (True, True), "backward": (True, True)}


def test_only_graphs_are_compiled_and_each_apart(monkeypatch):
    made = []
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: made.append(function) or function
    )
    for name in ("plain", "graph 1", f"graph {CHAIN}"):
        count = []
        kind = dataclasses.replace(KNOWN[name], case=Case(4, 24, 24, "NT", "bf16"))

        def multiply(x, w, count=count):
            count.append(1)
            return F.linear(x, w)

        variants = {REFERENCE: multiply, "auto": multiply}
        bench = Called(kind, variants, device="cpu", watch=Watch(None, None))
        count.clear()
        for own in variants:
            bench.call(own)()
        assert len(count) == 2 * kind.products
    assert len(made) == 4
    assert len({id(function.__code__) for function in made}) == 4


def test_no_kind_fills_the_queue():
    assert all((kind.calls + LEAD) * 2 * kind.products <= QUEUE // 2 for kind in KINDS)
    assert len({kind.mode_of_rows for kind in KINDS}) == len(KINDS)


@pytest.fixture
def commanded(monkeypatch, tmp_path):
    """Runs `--what calls` on the CPU: (status, its rows)."""
    monkeypatch.setattr(command, "unable", lambda name: None)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1980.0))
    monkeypatch.setattr(Cached.settle, "__defaults__", (0.0,))
    measure, watch = host_calls.run, Watch(synchronise=lambda: None)
    few = [dataclasses.replace(small(name), products=40) for name in ("plain", "workspace")]
    monkeypatch.setattr(
        host_calls, "run",
        lambda *given: measure(*given, kinds=few, device="cpu", watch=watch, probe=State),
    )  # fmt: skip
    path = tmp_path / "rows.jsonl"
    return functools.partial(ran, command, path, "host", "--what", "calls")


@pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")
def test_the_command_records_each_kind(commanded, capsys):
    status, found = commanded("--rounds", "1")
    assert status == 0
    assert [row.mode for row in found] == ["host call plain"] * 3 + ["host call workspace"] * 5
    # The rungs with a workspace don't run in the interpreter, and say so.
    outcomes = [row.outcome for row in found]
    assert outcomes == ["measured"] * 6 + ["failed"] * 2
    assert [row.competitor for row in found[6:]] == ["split_k", "stream_k"]
    for row in found:
        assert row.experiment == "host"
        assert row.roof is row.worst is None
    printed = capsys.readouterr().out
    assert "with a workspace, split_k: failed: ValueError" in printed
    assert "host time per call" in printed.splitlines()[0]


def test_ctrl_c_keeps_what_was_measured(commanded, monkeypatch):
    there = Called.verify

    def interrupted(self, *given):
        if self.kind.name == "workspace":
            raise KeyboardInterrupt
        return there(self, *given)

    monkeypatch.setattr(host_calls, "multiplications", lambda kind: dict.fromkeys(
        (REFERENCE, *kind.kernels), F.linear
    ))  # fmt: skip
    monkeypatch.setattr(Called, "verify", interrupted)
    status, found = commanded("--rounds", "1")
    assert status == 130
    assert {row.mode for row in found} == {"host call plain"}


OLD, NEW = "2026-01-02T03:04:05+00:00", "2026-02-02T03:04:05+00:00"


def made_up(run=OLD, kinds=KINDS):
    """Rows of a run: a product takes torch 5 us in a graph and 13 elsewhere, tritemm 8 and 26."""
    found = []
    for kind in kinds:
        problem = {"id": kind.name, "class": "call", "name": kind.title}
        head = heading(
            kind.case, mode=kind.mode_of_rows, experiment="host", run=run, time=run, problem=problem
        )
        known = {f.name: getattr(head, f.name) for f in dataclasses.fields(head)}
        for name in (REFERENCE, NULL, *kind.kernels):
            ours = name in kind.kernels
            us = 26.0 if ours else 13.0
            if kind.mode == "compiled":
                us = 20 + kind.products * (8 if ours else 5)
            ratio = 0.5 if ours else 1.0
            found.append(rows.Row(
                **known, competitor=name, rung=name if ours else None, number=None, config=None,
                outcome="measured", rounds=30, launches=50, us=rows.Quantiles(us - 1, us, us + 1),
                ratio=rows.Quantiles(ratio * 0.99, ratio, ratio * 1.001),
                null=rows.Quantiles(0.99, 1.0, 1.01),
            ))  # fmt: skip
    return found


def test_the_table_tells_a_products_cost_in_a_graph_from_the_graphs():
    found = made_up()
    assert host_calls_report.per_graph(found, REFERENCE) == pytest.approx((20, 5))
    assert host_calls_report.per_graph(found, "auto") == pytest.approx((20, 8))
    assert host_calls_report.per_graph(found[:9], "auto") is None
    title, _, first, *_ = host_calls_report.text(found).splitlines()
    assert title == "calls as models make them, on NVIDIA H200, host time per call"
    wanted = "plain 16 x 2048 x 2048 NT auto 13.0 26.0 (25.0-27.0) 2.000 (1.998-2.020) 1.00"
    assert first.split() == wanted.split()
    marked = host_calls_report.markdown(found)
    assert "a product takes torch 5.00 µs and tritemm 8.00, +3.00; the rest of a call" in marked
    assert marked.count("| with a workspace |") == 3
    assert host_calls_report.text([]) == "nothing was measured"


def test_the_newest_run_of_every_kind_is_shown():
    old, new = made_up(), made_up(NEW)
    torn = made_up("2026-03-02T00:00:00+00:00", KINDS[:4])
    assert host_calls_report.latest([*new, *old, *torn]) == new
    assert host_calls_report.latest(torn) == []
    assert views.VIEWS["calls"].chosen([*new, *old], views.Selection()) == (new,)
    # The table of the kernels has nothing to do with them.
    same = [dataclasses.replace(row, case=host_report.CASE) for row in new]
    assert host_report.latest(same) == []
    assert command.text([new]).startswith("calls as models make them")
    assert host.MODES[0] not in {row.mode for row in new}
