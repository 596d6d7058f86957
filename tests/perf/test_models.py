"""`python -m perf model` on the CPU: made-up models on a made-up clock."""

import dataclasses
import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tritemm
from perf import calls, machine
from perf.agreement import EPSILON, errors, judge
from perf.calls import MODES as COMPILED
from perf.calls import OURS
from perf.engine import Competitor, Plan, Sample
from perf.experiments import model, show
from perf.experiments.model import GPT2, LLAMA, LLAMA_FP8, Cell, ModelBench, cells
from perf.machine import State
from perf.rows import NULL, REFERENCE
from perf.views import Selection
from tests.nn.models import LlamaMLP
from tests.perf.fakes import by_name, on_cpu, ran, rows_after
from tritemm.nn.packing import packed
from tritemm.problem import INTERPRETED

pytestmark = [pytest.mark.host, pytest.mark.once]
interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")

TINY_SIZES = {"layers": 1, "hidden": 32, "heads": 2, "vocab": 97, "prompt": (2, 16)}
TINY_SIZES |= {"sequences": 2, "room": 32, "filled": 8}
LLAMA_SIZES = (("intermediate_size", 64), ("num_key_value_heads", 1), ("head_dim", 16))
TINY = {
    "llama": dataclasses.replace(LLAMA, more=LLAMA_SIZES, **TINY_SIZES),
    "gpt2": dataclasses.replace(GPT2, **TINY_SIZES),
    "llama-fp8": dataclasses.replace(LLAMA_FP8, more=LLAMA_SIZES, **TINY_SIZES),
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
        logits, loss = self.head(self.inner(self.embed(input_ids)).tanh()), None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
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


@pytest.fixture
def toy(monkeypatch):
    """Toys, and twins whose products are `Split`; tritemm's steps take 20 ms, torch's 10."""
    spent, rng = [0.0, 0], random.Random(1)

    def convert(module, dtype=None):
        for part in module.modules():
            if type(part) is nn.Linear:
                part.__class__ = Split
        return tritemm.nn.Report()

    def fill(steps, module):
        zeros, length = torch.zeros(1), torch.tensor(steps.model.filled)
        module.eval()
        layer = SimpleNamespace(cumulative_length=length, keys=zeros, values=zeros)
        return SimpleNamespace(layers=[layer])

    def timed(call, count, probe):
        before, spent[1] = spent[0], spent[1] + 1
        for _ in range(count):
            call()
        drift = 1 + 0.2 * min(spent[1], 100) / 100
        return Sample((spent[0] - before) * drift * rng.gauss(1, 0.01) / count, probe())

    real = model.Step.__call__

    def call(step):
        spent[0] += 0.02 if any(isinstance(m, Split) for m in step.module.modules()) else 0.01
        real(step)

    monkeypatch.setattr(machine, "probe", lambda: State)
    monkeypatch.setattr(model, "build", lambda made, device, seed: Toy().bfloat16())
    monkeypatch.setattr(tritemm, "convert", convert)
    monkeypatch.setattr(model.Steps, "_fill", fill)
    monkeypatch.setattr(model.Step, "__call__", call)
    monkeypatch.setattr(ModelBench, "timer", staticmethod(timed))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    torch.manual_seed(3)


def bench_of(case, mode="eager", plan=None):
    pair = model.Pair(TINY["llama"], "cpu", 0)
    steps, exact = pair.steps(TINY["llama"], case)
    make = {REFERENCE: lambda: steps.of(pair.torchs, mode), OURS: lambda: steps.of(pair.ours, mode)}
    plan = plan or Plan(rounds=12, replay=0.05, lead=0.03, settle=0)
    bench = ModelBench(Cell(TINY["llama"], case, mode), make, exact, plan)
    bench.case = TINY["llama"].case(case)
    return bench


@pytest.mark.parametrize("case", model.CASES)
def test_a_planted_factor_of_a_model_is_found_and_torch_again_ties(toy, case):
    bench = bench_of(case)
    found = by_name(rows_after(calls.field(OURS), bench, bench.plan))
    assert list(found) == [REFERENCE, NULL, OURS]
    assert found[OURS].ratio.p50 == pytest.approx(0.5, rel=0.02) and found[NULL].tie
    assert found[OURS].us.p50 == pytest.approx(20e3, rel=0.2) and found[OURS].worst <= 1
    # 0.05 s a sample, but no more steps than half of the cache's room.
    assert (found[REFERENCE].launches, found[OURS].launches) == (5, 3)


MODEL_FAULTS = {
    "one element": lambda y: y.index_fill(-1, torch.tensor([5]), 3.0),
    "rounded to eight steps": lambda y: (y * 8).round() / 8,
    "not a number": lambda y: y * torch.nan,
    "its gradient is zero": lambda y: y.detach() + 0 * y,
    "its gradient is lost": lambda y: y.detach().requires_grad_(),
    "twice the gradient": lambda y: 2 * y - y.detach(),
}


@pytest.mark.parametrize("fault", MODEL_FAULTS)
def test_a_model_that_is_wrong_is_not_timed(toy, monkeypatch, fault):
    monkeypatch.setattr(Split, "fault", staticmethod(MODEL_FAULTS[fault]))
    for case in ("train",) if "gradient" in fault else model.CASES:
        bench = bench_of(case)
        found = by_name(rows_after(calls.field(OURS), bench, bench.plan))
        assert (found[OURS].outcome, found[OURS].us) == ("wrong", None), case
        assert "from fp32" in found[OURS].reason and found[REFERENCE].us


def test_errors_are_judged_by_torchs():
    torch.manual_seed(0)
    exact = {"gradient of a": torch.randn(64, 64), "gradient of b": torch.randn(8)}
    noise = {name: torch.randn_like(tensor) for name, tensor in exact.items()}

    def off(scale, **only):
        return errors({n: t + (only.get(n[-1], scale)) * noise[n] for n, t in exact.items()}, exact)

    torchs = off(0.02)
    assert torchs["gradient of a"].norm == pytest.approx(0.02, rel=0.1)
    assert judge(torchs, torchs).ok and judge(off(0.028), torchs).ok
    assert judge(off(0.04), torchs).message.startswith("gradients: 0.041 from fp32")
    # A small tensor counts for little in the whole, so it is judged alone too.
    assert judge(off(0.02, b=0.5), torchs).message.startswith("gradient of b: ")
    # Where torch loses next to nothing, a rounding more is no fault.
    for scale, ok in ((0.9, True), (2.5, False)):
        assert judge(off(scale * EPSILON), off(0.3 * EPSILON)).ok is ok
    # One wrong element hides in every norm.
    one = {name: tensor.clone() for name, tensor in exact.items()}
    one["gradient of a"][3, 5] += 1
    assert errors(one, exact)["gradient of a"].norm < 0.02
    assert not judge(errors(one, exact), torchs).ok


@interpreted
def test_a_twin_is_what_convert_makes_over_the_same_parameters():
    """A gate and an up, which it packs: torch's own model reads the halves of the pair."""
    torchs, x = (
        nn.Sequential(LlamaMLP(16, 24), nn.Linear(16, 16), nn.Linear(16, 16)),
        torch.randn(3, 16),
    )
    torchs.eval()
    torchs[1].weight = torchs[2].weight
    expected = torchs(x)
    ours, report = model.twin(torchs)
    assert all(a is b for a, b in zip(ours.parameters(), torchs.parameters(), strict=True))
    assert report.changed and not report.left
    assert not any(isinstance(part, tritemm.Linear) for part in torchs.modules())
    gate, up = torchs[0].gate_proj.weight, torchs[0].up_proj.weight
    assert packed(gate, up) is not None and gate.is_contiguous() and up.is_contiguous()
    torch.testing.assert_close(torchs(x), expected, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), expected)
    ours(x).sum().backward()
    assert gate.grad is not None  # a gradient of either is one of both


def test_gradients_and_room_do_not_pile_up(toy):
    bench = bench_of("train")
    for name in (OURS, REFERENCE):
        loop = bench.loop(Competitor(name, None))
        loop.time()
        bench.verify(loop)
        assert all(p.grad is None for p in bench.calls[name].module.parameters())
    plan = Plan(rounds=3, replay=99.0, lead=99.0, settle=0)
    decode = bench_of("decode", plan=plan)  # the toy refuses to go beyond its room
    loop = decode.loop(Competitor(REFERENCE, None))
    assert loop.launches == 12
    for _ in range(2):
        loop.time()
    assert int(decode.calls[REFERENCE].cache.layers[0].cumulative_length) == 8 + 24


@pytest.mark.parametrize("mode", COMPILED)
def test_each_variant_is_compiled_apart_and_as_the_mode_says(toy, monkeypatch, mode):
    made, marks = [], []
    compiles = lambda f, **options: made.append((f.__code__, options)) or f  # noqa: E731
    monkeypatch.setattr(torch, "compile", compiles)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    bench = bench_of("prefill", mode)
    for name in (REFERENCE, NULL, OURS):
        bench.call(name)
    whole = {"fullgraph": True, "dynamic": False}
    options = None if mode == "eager" else whole | (COMPILED[mode] or {})
    assert [asked for _, asked in made] == ([options] * 2 if options else [])
    assert len({id(code) for code, _ in made}) == len(made)
    assert len(marks) == (2 * model.WARM if mode == "graph" else 0)


@pytest.fixture
def modelled(toy, monkeypatch):
    """The command on the CPU with toys."""
    on_cpu(monkeypatch)
    monkeypatch.setattr(model, "missing", lambda: None)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    monkeypatch.setattr(model, "MODELS", TINY)
    monkeypatch.setattr(model, "PLAN", Plan(replay=1e-4, lead=0, settle=0))
    tasks = model.tasks
    monkeypatch.setattr(model, "tasks", lambda *given: tasks(*given, device="cpu"))


MODEL = ("model", "--modes", "eager", "--rounds", "3", "--models")


def test_the_command_records_every_cell_with_its_agreement(modelled, tmp_path, capsys):
    status, found = ran(tmp_path / "x.jsonl", *MODEL, "gpt2")
    asked = [f"gpt2 {case} eager" for case in model.CASES]
    assert status == 0 and list(dict.fromkeys(row.id for row in found)) == asked
    for each in found:
        assert (each.mode, each.experiment, each.roof) == ("model eager", "model", None)
        (result,) = {"logits", "gradients"} & each.agreement.keys()
        assert 0 < each.agreement[result] < 0.02 and each.rounds == 3
    assert capsys.readouterr().out.count("GPT-2 train, eager") == 1
    assert show.VIEWS["model"].chosen(found, Selection()) == found


def test_what_is_wrong_ends_red(modelled, monkeypatch, tmp_path, capsys):
    fault = MODEL_FAULTS["not a number"]
    monkeypatch.setattr(Split, "fault", staticmethod(fault))
    status, found = ran(tmp_path / "x.jsonl", *MODEL, "gpt2", "--cases", "prefill")
    ours = by_name(found)[OURS]
    assert status == 1 and (ours.outcome, ours.agreement) == ("wrong", {"logits": None})
    assert "GPT-2 prefill, eager, tritemm: wrong: logits: inf from fp32" in capsys.readouterr().out


def test_the_cells_are_every_combination():
    every = list(cells(model.MODELS, model.CASES, COMPILED, None))
    assert len({cell.problem.id for cell in every}) == 24 and GPT2.vocab % 2 == 1
    (one,) = cells(["gpt2"], ["decode"], ["graph"], 2)
    assert (one.problem.id, one.model.layers, one.problem.case.M) == ("gpt2 decode graph", 2, 16)


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)
    assert "needs transformers: pip install '.[model]'" in model.missing()


@interpreted
@pytest.mark.parametrize("name", model.MODELS)
def test_transformers_models_agree_with_their_twins(name):
    pytest.importorskip("transformers")
    made = TINY[name]
    pair = model.Pair(made, "cpu", 0)
    # Seven of a layer of Llama, in 16 bits its pair and its trio; four of GPT-2's; and the head.
    changed = {"llama": 10, "gpt2": 5, "llama-fp8": 8}[name]
    assert len(pair.report.changed) == changed and not pair.report.left
    head = pair.ours.lm_head
    assert isinstance(head, tritemm.Linear)
    assert f"dtype={made.dtype}" in repr(head) or made.dtype is None
    assert head.weight is pair.torchs.lm_head.weight
    for case in model.CASES:
        steps, exact = pair.steps(made, case)
        found = []
        for module in (pair.torchs, pair.ours):
            step = steps.of(module, "eager")
            found.append(errors(step.outputs(), exact))
            step.drop()
        verdict = judge(*reversed(found), model.COARSER[made.dtype])
        assert verdict.ok, f"{case}: {verdict}"
        for fault in (lambda t: t.flatten().roll(1).view_as(t), lambda t: 0.9 * t):
            wrong = errors({name: fault(t) for name, t in exact.items()}, exact)
            assert not judge(wrong, found[0], model.COARSER[made.dtype]).ok
