"""`python -m perf model` on the CPU: a toy of a model with made-up times, and transformers' own."""

import argparse
import copy
import dataclasses
import functools
import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tritemm
from perf import engine, machine, model_build, model_race, model_report, model_steps, rows, views
from perf.commands import model as command
from perf.engine import Sample
from perf.machine import State
from perf.model import GPT2, LLAMA, MODELS, MODES, OURS, Cell, cells
from perf.model_agreement import EPSILON, Error, errors, judge
from perf.model_bench import WARM, ModelBench
from perf.plots import figures
from perf.plots import model as plot
from perf.rows import NULL, REFERENCE
from tritemm.nn.packing import packed
from tritemm.problem import INTERPRETED

from .nn_models import Conv1D, LlamaMLP
from .perf_fakes import ENVIRONMENT, by_name, heading, kept, parsed_by, ran

pytestmark = pytest.mark.host

SMALL = {"layers": 1, "hidden": 32, "heads": 2, "vocab": 97, "prompt": (2, 16)}
SMALL |= {"sequences": 2, "room": 32, "filled": 8}
TINY = {
    "llama": dataclasses.replace(LLAMA, intermediate=64, kv_heads=1, head_dim=16, **SMALL),
    "gpt2": dataclasses.replace(GPT2, **SMALL),
}


class Toy(nn.Module):
    """Takes what transformers' models take; its cache counts the tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(97, 32)
        self.inner, self.head = nn.Linear(32, 48), nn.Linear(48, 97, bias=False)

    def forward(self, input_ids, labels=None, past_key_values=None, use_cache=None):
        if past_key_values is not None:
            past_key_values.layers[0].cumulative_length.add_(input_ids.shape[1])
            assert past_key_values.layers[0].cumulative_length <= 32, "no room is left"
        logits = self.head(self.inner(self.embed(input_ids)).tanh())
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()) if (
            labels is not None
        ) else None  # fmt: skip
        return SimpleNamespace(logits=logits, loss=loss)

    def gradient_checkpointing_enable(self):
        pass


class Split(nn.Linear):
    """Another order of the sums, as another kernel has it; `fault` is planted in the result."""

    fault = staticmethod(lambda y: y)

    def forward(self, x):
        half = x.shape[-1] // 2
        first = x[..., :half].float() @ self.weight[:, :half].mT.float()
        y = (first + x[..., half:].float() @ self.weight[:, half:].mT.float()).to(x.dtype)
        return self.fault(y if self.bias is None else y + self.bias)


class Cache:
    """What a step needs to know of a static cache."""

    def __init__(self, filled):
        zeros = torch.zeros(1)
        layer = SimpleNamespace(cumulative_length=torch.tensor(filled), keys=zeros, values=zeros)
        self.layers = [layer]


@pytest.fixture
def toy(monkeypatch):
    """`model_build` makes toys, and twins whose products are `Split`."""

    def convert(model):
        for part in model.modules():
            if type(part) is nn.Linear:
                part.__class__ = Split
        return tritemm.nn.Report()

    monkeypatch.setattr(model_build, "build", lambda model, device, seed: Toy().bfloat16())
    monkeypatch.setattr(tritemm, "convert", convert)
    monkeypatch.setattr(
        model_steps.Steps, "_fill", lambda self, module: module.eval() and Cache(self.model.filled)
    )
    torch.manual_seed(3)


def plant(monkeypatch, fault):
    monkeypatch.setattr(Split, "fault", staticmethod(fault))


class Times:
    """Made-up seconds: each timed step of tritemm's takes `ours`, of torch's 10 ms, with drift."""

    def __init__(self, ours=0.02):
        self.ours, self.rng, self.ticks, self.spent = ours, random.Random(1), 0, 0.0

    def step(self, module, of):
        self.spent += self.ours if any(isinstance(m, Split) for m in module.modules()) else 0.01
        return of()

    def timed(self, work, probe):
        before, self.ticks = self.spent, self.ticks + 1
        work()
        drift = 1 + 0.2 * min(self.ticks, 100) / 100
        return Sample((self.spent - before) * drift * self.rng.gauss(1, 0.01), probe())


def bench_of(case, mode="eager", times=None, plan=None):
    times = times or Times()
    model = TINY["llama"]
    pair = model_race.Pair(model, "cpu", 0)
    steps, exact = pair.steps(model, case)

    def make(module):
        made = steps.of(module, mode)
        call = made.call
        made.call = lambda: times.step(module, call)
        return made

    variants = {REFERENCE: lambda: make(pair.torchs), OURS: lambda: make(pair.ours)}
    plan = plan or engine.Plan(rounds=12, replay=0.05, lead=0.03, settle=0)
    quiet = {"timed": times.timed, "synchronise": lambda: None}
    return ModelBench(Cell(model, case, mode), variants, exact, plan, **quiet)


def race(bench):
    found = engine.measure(model_race.field(), bench, bench.plan, random.Random(0))
    return by_name(engine.rows_of(found, heading(bench.case, mode=bench.mode)))


@pytest.mark.parametrize("case", ["prefill", "decode", "train"])
def test_a_planted_factor_is_found_and_torch_again_ties(toy, case):
    found = race(bench_of(case))
    assert list(found) == [REFERENCE, NULL, OURS]
    assert found[OURS].ratio.p50 == pytest.approx(0.5, rel=0.02)
    assert found[NULL].tie
    assert found[OURS].us.p50 == pytest.approx(20e3, rel=0.2)
    # 0.05 s a sample, but no more steps than half of the cache's room.
    assert (found[REFERENCE].launches, found[OURS].launches) == (5, 3)
    assert found[OURS].worst <= 1


FAULTS = {
    "one element": lambda y: y.index_fill(-1, torch.tensor([5]), 3.0),
    "rounded to eight steps": lambda y: (y * 8).round() / 8,
    "not a number": lambda y: y * torch.nan,
    "its gradient is zero": lambda y: y.detach() + 0 * y,
    "its gradient is lost": lambda y: y.detach().requires_grad_(),
    "twice the gradient": lambda y: 2 * y - y.detach(),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_is_wrong_is_not_timed(toy, monkeypatch, fault):
    plant(monkeypatch, FAULTS[fault])
    cases = ("train",) if "gradient" in fault else ("prefill", "decode", "train")
    for case in cases:
        found = race(bench_of(case))
        assert (found[OURS].outcome, found[OURS].us) == ("wrong", None), case
        assert "from fp32" in found[OURS].reason
        assert found[REFERENCE].outcome == "measured"


def test_errors_are_judged_by_torchs():
    torch.manual_seed(0)
    exact = {"gradient of a": torch.randn(64, 64), "gradient of b": torch.randn(8)}
    noise = {name: torch.randn_like(tensor) for name, tensor in exact.items()}

    def off(scale, **only):
        return errors({n: t + (only.get(n[-1], scale)) * noise[n] for n, t in exact.items()}, exact)

    torchs = off(0.02)
    assert torchs["gradient of a"].norm == pytest.approx(0.02, rel=0.1)
    assert 0.04 < torchs["gradient of a"].peak < 0.12
    assert judge(torchs, torchs).ok
    assert judge(off(0.028), torchs).ok
    worse = judge(off(0.04), torchs)
    assert not worse.ok
    assert worse.message.startswith("gradients: 0.041 from fp32")
    # A small tensor counts for little in the whole, so it is judged alone too.
    alone = judge(off(0.02, b=0.5), torchs)
    assert alone.message.startswith("gradient of b: ")
    # Where torch loses next to nothing, a rounding more is no fault.
    assert judge(off(0.9 * EPSILON), off(0.3 * EPSILON)).ok
    assert not judge(off(2.5 * EPSILON), off(0.3 * EPSILON)).ok
    assert judge(off(0.02), torchs, torchs).numbers.keys() == {"gradients", "gradients to torch"}
    # One wrong element hides in every norm.
    one = {name: tensor.clone() for name, tensor in exact.items()}
    one["gradient of a"][3, 5] += 1
    assert errors(one, exact)["gradient of a"].norm < 0.02
    assert not judge(errors(one, exact), torchs).ok
    assert Error.of(torch.zeros(2), torch.zeros(2)).norm == 0
    assert Error.of(torch.ones(2), torch.zeros(2)).norm == float("inf")


class Whole(nn.Module):
    """All that `convert` knows: gate and up, a Conv1D, and a tied head of odd width."""

    def __init__(self):
        super().__init__()
        self.embed, self.mlp = nn.Embedding(11, 16), LlamaMLP(16, 24)
        self.mix, self.head = Conv1D(16, 16), nn.Linear(16, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.mix(self.mlp(self.embed(ids))))


@pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")
def test_a_twin_is_what_convert_makes_over_the_same_parameters():
    torchs, ids = Whole().eval(), torch.arange(6).view(2, 3)
    expected = torchs(ids)
    ours, report = model_build.twin(torchs)
    assert all(a is b for a, b in zip(ours.parameters(), torchs.parameters(), strict=True))
    assert ours.head.weight is ours.embed.weight is torchs.head.weight
    assert {entry.name: entry.note for entry in report.changed} == {
        "mlp": "gate and up packed, swiglu", "mix": "by tritemm.linear",
        **dict.fromkeys(
            ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "head"), "tritemm.Linear"
        ),
    }  # fmt: skip
    assert not report.left
    # Torch's own model reads the halves of the pair, each contiguous, and computes what it did.
    gate, up = torchs.mlp.gate_proj.weight, torchs.mlp.up_proj.weight
    assert packed(gate, up) is not None and gate.is_contiguous() and up.is_contiguous()
    assert not any(isinstance(part, tritemm.Linear) for part in torchs.modules())
    assert type(torchs.mlp) is LlamaMLP
    torch.testing.assert_close(torchs(ids), expected, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), expected)
    exact = copy.deepcopy(torchs).float()
    torch.testing.assert_close(exact(ids), expected)
    # A gradient of either is a gradient of both.
    ours(ids).sum().backward()
    assert gate.grad is not None and torchs.embed.weight.grad is not None
    torchs.train()
    assert not ours.training


def test_gradients_and_room_do_not_pile_up(toy):
    bench = bench_of("train")
    loop = bench.loop(engine.Competitor(OURS, None))
    loop.time()
    module = bench.steps[OURS].module
    assert all(p.grad is None for p in module.parameters())
    bench.verify(bench.loop(engine.Competitor(REFERENCE, None)))
    assert all(p.grad is None for p in module.parameters())
    plan = engine.Plan(rounds=3, replay=99.0, lead=99.0, settle=0)
    decode = bench_of("decode", plan=plan)  # the toy refuses to go beyond its room
    loop = decode.loop(engine.Competitor(REFERENCE, None))
    assert loop.launches == 12
    loop.time()
    loop.time()
    assert int(decode.steps[REFERENCE].cache.layers[0].cumulative_length) == 8 + 24


def test_each_variant_is_compiled_apart_and_as_the_mode_says(toy, monkeypatch):
    made, marks = [], []

    def compiles(function, **options):
        made.append((function.__code__, options))
        return function

    monkeypatch.setattr(torch, "compile", compiles)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    for mode in MODES:
        made.clear()
        marks.clear()
        bench = bench_of("prefill", mode)
        for name in (REFERENCE, NULL, OURS):
            bench.step(name)
        whole = {"fullgraph": True, "dynamic": False}
        wanted = {"eager": [], "compiled": [whole] * 2}.get(
            mode, [whole | {"mode": "reduce-overhead"}] * 2
        )
        assert [options for _, options in made] == wanted
        assert len({id(code) for code, _ in made}) == len(made)
        assert len(marks) == (2 * WARM if mode == "graph" else 0)


def test_the_cells_are_every_combination_that_was_asked_for():
    every = list(cells(MODELS, ("prefill", "decode", "train"), MODES, None))
    assert len({cell.id for cell in every}) == 16
    assert not any(cell.id.endswith("prefill graph") for cell in every)
    assert every[0].problem == {
        "id": "llama prefill eager", "class": "Llama", "name": "prefill, 1 x 4096 tokens, 8 layers"
    }  # fmt: skip
    assert GPT2.vocab % 2 == 1
    (one,) = cells(["gpt2"], ["decode"], ["graph"], 2)
    assert (one.id, one.model.layers) == ("gpt2 decode graph", 2)
    assert one.model.case("decode").M == 16


@pytest.fixture
def commanded(toy, monkeypatch, tmp_path):
    """Runs the command on the CPU with toys: (status, its rows)."""
    monkeypatch.setattr(command, "unable_to_time", lambda name: None)
    monkeypatch.setattr(model_build, "missing", lambda: None)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1400.0))
    monkeypatch.setattr(command, "cells", lambda *a: (
        dataclasses.replace(cell, model=TINY[cell.model.name]) for cell in cells(*a)
    ))  # fmt: skip
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(command, "plan", lambda args: engine.Plan(
        rounds=args.rounds, replay=1e-4, lead=0, settle=0
    ))  # fmt: skip
    measure = model_race.measure

    def timed(work, probe):
        work()
        return Sample(0.01, probe())

    quiet = {"timed": timed, "synchronise": lambda: None}
    monkeypatch.setattr(
        model_race, "measure", lambda *given: measure(*given, device="cpu", **quiet)
    )
    return functools.partial(ran, command, tmp_path / "rows.jsonl", "model")


def test_the_command_records_every_cell_with_its_agreement(commanded, capsys):
    status, found = commanded("--models", "gpt2", "--modes", "eager", "--rounds", "3")
    assert status == 0
    asked = [f"gpt2 {case} eager" for case in ("prefill", "decode", "train")]
    assert list(dict.fromkeys(row.problem["id"] for row in found)) == asked
    assert {row.mode for row in found} == {"model eager"}
    assert {row.experiment for row in found} == {"model"}
    for row in found:
        assert row.us.p50 > 0 and row.rounds == 3
        assert row.roof is None
        (result,) = {"logits", "gradients"} & row.agreement.keys()
        assert 0 < row.agreement[result] < 0.02
        assert (f"{result} to torch" in row.agreement) == (row.competitor == OURS)
    printed = capsys.readouterr().out
    assert printed.count("GPT-2 train, eager") == 1
    assert model_report.latest(found) == found


def test_what_is_wrong_ends_red_and_says_where(commanded, monkeypatch, capsys):
    plant(monkeypatch, FAULTS["not a number"])
    status, found = commanded("--models", "gpt2", "--cases", "prefill", "--modes", "eager")
    assert status == 1
    ours = by_name(found)[OURS]
    assert (ours.outcome, ours.agreement) == ("wrong", {"logits": None, "logits to torch": None})
    assert "GPT-2 prefill, eager, tritemm: wrong: logits: inf from fp32" in capsys.readouterr().out


def test_no_cell_begins_after_the_minutes_are_over(commanded, monkeypatch, capsys):
    clock = iter([0, 10, 350])
    monkeypatch.setattr(model_race.time, "monotonic", lambda: next(clock, 400))
    status, found = commanded("--models", "llama", "--modes", "eager", "--rounds", "1")
    assert status == 0
    assert {row.problem["id"] for row in found} == {"llama prefill eager"}
    told = "not begun within 5 minutes (--minutes): llama decode eager, llama train eager"
    assert told in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_measured(commanded, monkeypatch):
    there = ModelBench.verify

    def interrupted(self, *given):
        if self.cell.case == "decode":
            raise KeyboardInterrupt
        return there(self, *given)

    monkeypatch.setattr(ModelBench, "verify", interrupted)
    status, found = commanded("--models", "llama", "--modes", "eager", "--rounds", "1")
    assert status == 130
    assert {row.problem["id"] for row in found} == {"llama prefill eager"}


def test_memory_that_does_not_suffice_is_a_row(commanded, monkeypatch):
    def full(self, model, case):
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    monkeypatch.setattr(model_race.Pair, "steps", full)
    status, found = commanded("--models", "llama", "--cases", "train", "--modes", "eager")
    assert status == 0
    assert [(row.outcome, row.reason) for row in found] == [("failed", "tried to allocate 9 GiB")]


def test_what_is_missing_is_said(monkeypatch, capsys):
    monkeypatch.setattr(command, "unable_to_time", lambda name: None)
    monkeypatch.setattr(model_build.importlib.util, "find_spec", lambda name: None)
    assert command.run(argparse.Namespace()) == 2
    assert "needs transformers: pip install '.[model]'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parsed_by(command, "model", "--modes", "jit")
    assert "one of eager, compiled, graph, not 'jit'" in capsys.readouterr().err


def made_up(run, ids, ratio=1.02, **fields):
    """Rows of a run; tritemm's ratio is the given one, or it failed where that is None."""
    found = []
    for cell in cells(MODELS, ("prefill", "decode", "train"), MODES, None):
        if cell.id not in ids:
            continue
        case = cell.model.case(cell.case)
        mode, time = f"model {cell.mode}", run
        head = heading(
            case, mode=mode, run=run, time=time, experiment="model", problem=cell.problem
        )
        known = {f.name: getattr(head, f.name) for f in dataclasses.fields(head)}
        for name in (REFERENCE, NULL, OURS):
            own = ratio if name == OURS else 1.0
            timed = own and {
                "us": rows.Quantiles(*[2000 / own] * 3), "rounds": 9, "launches": 50,
                "ratio": rows.Quantiles(own * 0.99, own, own * 1.001),
                "null": rows.Quantiles(0.999, 1.0, 1.001), "agreement": {"logits": 0.004},
            }  # fmt: skip
            lost = {"outcome": "failed", "reason": "RuntimeError: a | b"}
            more = {"outcome": "measured", **timed} if own else lost
            rung = name if name == OURS else None
            found.append(rows.Row(
                **known, competitor=name, rung=rung, number=None, config=None, **more, **fields
            ))  # fmt: skip
    return found


EVERY = [cell.id for cell in cells(MODELS, ("prefill", "decode", "train"), MODES, None)]
OLD, NEW = "2026-01-02T03:04:05+00:00", "2026-02-02T03:04:05+00:00"


def test_rows_survive_the_round_trip_and_others_have_no_agreement():
    found = kept(made_up(OLD, EVERY[:1]))
    assert kept(found) == found
    assert "agreement" not in "".join(rows.lines([dataclasses.replace(found[0], agreement=None)]))


def test_the_table_shows_the_newest_race_of_each(tmp_path):
    older, newer = made_up(OLD, EVERY), made_up(NEW, EVERY[:1], ratio=0.9)
    found = model_report.latest([*newer, *older])
    assert [row.problem["id"] for row in found[::3]] == EVERY
    assert found[:3] == newer
    title, head, first, second, *_ = model_report.text(found).splitlines()
    assert title == "transformers' models on NVIDIA H200, by torch and by tritemm"
    assert head.split()[:2] == ["torch", "ms"]
    wanted = "Llama prefill, eager 2.00 2.22 0.900 (0.891-0.901) 1.000 0.004 0.004"
    assert first.split() == wanted.split()
    assert "Llama prefill, compiled" in second
    lost = model_report.markdown(made_up(NEW, EVERY[:2], ratio=None))
    assert "| Llama prefill, eager | 2.00 | failed |  | 1.000 | 0.004 |  |" in lost
    assert "Llama prefill, eager, tritemm: failed: RuntimeError: a | b." in lost
    assert "prefill, 1 x 4096 tokens, 8 layers" in lost
    assert model_report.latest([]) == []


@pytest.mark.parametrize("ratio", [1.02, 0.8, None])
def test_the_picture_carries_what_it_shows(tmp_path, ratio):
    found = [*made_up(OLD, EVERY[1:], ratio=1.3), *made_up(NEW, EVERY[:1], ratio=ratio)]
    view, path = views.PICTURES["model"], tmp_path / "model.png"
    lists = view.chosen(found, views.Selection())
    view.draw(*lists, path, views.Selection())
    assert figures.drawn_from(path) == view.digest(lists)
    with pytest.raises(ValueError, match="no measured row"):
        plot.plot_model(made_up(NEW, EVERY, ratio=None), path)


@pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")
@pytest.mark.parametrize("name", MODELS)
def test_transformers_models_agree_with_their_twins(name):
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    model = TINY[name]
    pair = model_race.Pair(model, "cpu", 0)
    assert not [m for m in pair.ours.modules() if type(m) in (nn.Linear, Conv1D)]
    assert not pair.report.left
    # Seven of a layer of Llama, its pair and its trio; four of GPT-2's, its MLP; and the head.
    assert len(pair.report.changed) == {"llama": 10, "gpt2": 6}[name]
    head = pair.ours.lm_head
    assert type(head) is tritemm.Linear and head.weight is pair.torchs.lm_head.weight
    assert head.weight is pair.torchs.get_input_embeddings().weight
    for case in ("prefill", "decode", "train"):
        steps, exact = pair.steps(model, case)
        found = []
        for module in (pair.torchs, pair.ours):
            step = steps.of(module, "eager")
            found.append(errors(step.outputs(), exact))
            step.drop()
        torchs, ours = found
        verdict = judge(ours, torchs)
        assert verdict.ok, f"{case}: {verdict}"
        assert all(0 < value < 0.03 for value in verdict.numbers.values() if value), case
