"""`python -m perf race | serving` on the CPU: who races, how long, and what the rows say."""

import itertools
import math

import pytest
import torch

import tritemm
from docs import generate
from perf import bench, race, tables, ways
from perf.calls import OURS
from perf.case import Case
from perf.engine import Competitor
from perf.experiments import serving, show
from perf.rows import NULL, REFERENCE
from perf.stats import geomean
from perf.views import Selection
from perf.ways import ADDED, ADDMM, COMPILED, EPILOGUE
from tests.perf.fakes import ROOFS, Compilers, FakeBench, by_name, flat, on_cpu, ran, row
from tritemm.problem import INTERPRETED

pytestmark = [pytest.mark.host, pytest.mark.once]

# Linear layers

ENDINGS = (
    "bias", "bias relu", "bias gelu", "silu", "gelu_tanh", "residual", "bias silu residual",
    "swiglu", "geglu", "accumulate", "symmetric", "int4",
)  # fmt: skip
LAYERS = """id,class,name,batch,M,N,K,dtype,out_dtype,layout,ending
A,one,up,1,17,24,32,bf16,bf16,NT,bias gelu
B,one,gate and up,1,8,16,32,fp16,fp16,NT,swiglu
C,two,gradient,1,16,8,32,bf16,fp32,TN,accumulate
"""


def case_of(ending, dtype="bf16"):
    if ending == "accumulate":
        return Case(17, 24, 32, "TN", dtype, out_dtype="fp32", ending=ending)
    if ending == "symmetric":
        return Case(24, 24, 32, "NT", dtype, batch=3, ending=ending)
    if ending == "int4":
        return Case(17, 24, 256, "NT", dtype, ending=ending)
    return Case(17, 24, 32, "NT", dtype, ending=ending)


@pytest.fixture
def uncompiled(monkeypatch):
    """torch.compile is asked, and hands back what it was given; the options of each."""
    asked = []

    def compiles(function, **options):
        asked.append((function.__code__, options))
        return function

    monkeypatch.setattr(torch, "compile", compiles)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    torch.manual_seed(5)
    return asked


@pytest.fixture
def timed(uncompiled, monkeypatch, tmp_path):
    (tmp_path / "mine.csv").write_text(LAYERS)
    monkeypatch.chdir(tmp_path)
    return on_cpu(monkeypatch)


@pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_ours_is_right_by_the_bound(uncompiled, ending, dtype):
    there = FakeBench(case_of(ending, dtype), {})
    ours = ways.ways(there.case, there.sets[0], [])[0]
    assert (ours.name, ours.refusal) == (OURS, None)
    assert bool(ours.config) == (ending != "int4")
    loop = there.loop(ours)
    for _ in range(2):  # the state that launches leave is not that of the next check
        verdict = there.verify(loop)
        assert verdict.ok and verdict.worst > 0, str(verdict)


FAULTS = {
    "bias": lambda a, b, c, bias, residual: a @ b,
    "bias relu": lambda a, b, c, bias, residual: (a @ b).relu() + bias,
    "bias silu residual": lambda a, b, c, bias, residual: torch.nn.functional.silu(a @ b + bias),
    "swiglu": lambda a, b, c, bias, residual: (
        (a @ b)[:, :12] * torch.nn.functional.silu((a @ b)[:, 12:])
    ),
    "geglu": lambda a, b, c, bias, residual: (a @ b)[:, :12].mul(math.nan),
    "accumulate": lambda a, b, c, bias, residual: c.copy_(a.float() @ b.float()),
    "residual": lambda a, b, c, bias, residual: None,
    "symmetric": lambda a, b, c, bias, residual: (a @ b).tril(),
    "int4": lambda a, b, c, bias, residual, packed, scale: a @ b.roll(1, 0),
}


@pytest.mark.parametrize("ending", FAULTS)
def test_an_ending_that_is_wrong_is_found(ending):
    there = FakeBench(case_of(ending), {})
    assert not there.verify(there.loop(Competitor("x", FAULTS[ending], rung="x"))).ok


@pytest.mark.parametrize("ending", ENDINGS)
def test_torchs_ways_agree_and_each_is_compiled_apart(uncompiled, ending):
    there = FakeBench(case_of(ending), {})
    found = {c.name: c for c in ways.ways(there.case, there.sets[0], list(COMPILED))}
    single = {"accumulate": [ADDED], "residual": [ADDMM], "bias relu": [EPILOGUE]}.get(ending, [])
    others = [] if ending == "int4" else [*COMPILED, *single]
    assert list(found) == [OURS, REFERENCE, NULL, *others]
    assert found[OURS].rivals == tuple(others)
    a, b, c, *more = there.sets[0]
    exact = found[REFERENCE].run(a, b, c.clone(), *more).float()
    if INTERPRETED:
        ours = found[OURS].run(a, b, c.clone(), *more).float()
        torch.testing.assert_close(ours, exact, rtol=0.05, atol=0.1)
    if not others:
        return
    static = {"fullgraph": True, "dynamic": False}
    wanted = [static, static | {"mode": "max-autotune-no-cudagraphs"}]
    assert [options for _, options in uncompiled] == wanted
    assert len({id(code) for code, _ in uncompiled}) == 2
    for name in others:
        own = found[name].run(a, b, c.clone(), *more).float()
        torch.testing.assert_close(own, exact, rtol=0.05, atol=0.1)


WORDS = ("race", "--cases", "mine.csv", "--rounds", "12")


def test_linear_races_torchs_ways_and_records(timed, tmp_path, monkeypatch, capsys):
    timed |= {"compile": 0.9e-3, "max-autotune": 0.8e-3, OURS: 0.75e-3}
    monkeypatch.setattr(race, "OF_FILES", {tmp_path / "mine.csv": "linear"})
    status, found = ran(tmp_path / "x.jsonl", *WORDS)
    names = [OURS, REFERENCE, *COMPILED]
    assert status == 0 and [r.competitor for r in found] == [*names, *names, *names, ADDED]
    for ours in (r for r in found if r.competitor == OURS):
        assert ours.ratio.p50 == pytest.approx(4 / 3, rel=0.01)
        assert ours.versus["max-autotune"].p50 == pytest.approx(16 / 15, rel=0.01)
        assert ours.null and ours.code and ours.config and ours.experiment == "linear"
    told = capsys.readouterr().out
    assert "losses (0): none" in told and "wins (3): " in told
    last = next(line for line in told.splitlines() if line.startswith("all ")).split()
    assert [float(last[i]) for i in (2, -1)] == pytest.approx([16 / 15, 4 / 3], abs=0.005)
    view, selection = show.VIEWS["linear"], Selection()
    table = view.table(view.chosen(found, selection), selection)
    assert "| A up | 17 x 24 x 32 NT, bf16, bias gelu |" in table
    others = ("suite", "problems", "random", "invariant", "ladder")
    assert not any(show.VIEWS[name].chosen(found, selection) for name in others)


def test_a_weight_of_4_bits_races_and_has_a_view(timed, tmp_path, monkeypatch):
    (tmp_path / "mine.csv").write_text("id,name,M,N,K,ending\nW,down,17,24,256,int4\n")
    monkeypatch.setattr(race, "OF_FILES", {tmp_path / "mine.csv": "int4"})
    timed |= {OURS: 0.5e-3, REFERENCE: 1e-3}
    status, found = ran(tmp_path / "x.jsonl", *WORDS)
    assert status == 0 and [r.competitor for r in found] == [OURS, REFERENCE]
    view, selection = show.VIEWS["int4"], Selection()
    table = view.table(view.chosen(found, selection), selection)
    (line,) = (line for line in table.splitlines() if line.startswith("| W down | 17 x 24 x 256 "))
    us, gbs, torchs, ratio = (float(cell.split()[0]) for cell in line.split("|")[3:-1])
    moved = 2 * 17 * (24 + 256) + 24 * 256 / 2 + 2 * 24 * 2
    assert gbs == pytest.approx(moved / us / 1e3, rel=0.02)
    assert ratio == pytest.approx(torchs / us, rel=0.02) == pytest.approx(2, rel=0.05)


def test_a_wrong_linear_and_what_torch_cannot_compile_are_said(
    timed, tmp_path, monkeypatch, capsys
):
    def broken(function, **options):
        def fails(*given):
            raise RuntimeError("no Triton")

        return fails if "mode" in options else function

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(tritemm, "linear", lambda x, w, *given, **options: x @ w.mT)
    status, found = ran(tmp_path / "x.jsonl", *WORDS, "--id", "A")
    found, told = by_name(found), capsys.readouterr().out
    assert status == 1 and (found[OURS].outcome, found[OURS].us) == ("wrong", None)
    assert found[REFERENCE].us and found["compile"].us and "A wrong: " in told
    assert "max-autotune: A failed: RuntimeError: no Triton" in told


def test_losses_to_the_best_of_torch_are_printed_like_wins():
    def made(key, best, eager=1.2, null=1.0):
        """Rows whose ratios to max-autotune and to torch have no spread."""
        same = {"experiment": "linear", "case": case_of("bias gelu"), "null": null}
        versus, missed = {"max-autotune": flat(best)}, "3 of 9 elements are wrong"
        return [
            row(key, "one", eager, OURS, us=flat(10.0), versus=versus, **same),
            row(key, "one", 1.0, REFERENCE, us=flat(10 * eager), reason=missed, **same),
            row(key, "one", 1.0, "max-autotune", us=flat(10 * best), reason=missed, **same),
        ]

    found = [*made("A", 1.1), *made("B", 0.9), *made("C", 1.004, null=1.005)]
    text = race.text(found)
    assert "wins (1): A 1.100" in text and "losses (1): B 0.900" in text
    assert "1.004 (1.004-1.004), a tie" in text
    last = next(line for line in text.splitlines() if line.startswith("all ")).split()
    assert last == [
        *["all", "3", "0.998", "0.900", "(B)", "2", "of", "3,", "67", "%", "1", "1", "1", "1.200"]
    ]
    assert "Beyond the error bound: torch: A, B, C; max-autotune: A, B, C" in text
    page = show.VIEWS["linear"].table(found, Selection())
    assert "| all | 3 | 0.998 | 0.900 (B) | 1 | 1 | 1 | 1.200 |" in page
    assert "rounded once: torch: A, B, C; max-autotune: A, B, C." in page
    # Where torch itself is the fastest of its ways, its ratio is the one.
    (result,) = tables.results(made("D", 1.3), OURS)
    assert (result.best, result.ratio.p50) == (REFERENCE, 1.2)


# Layers of served models


def test_the_layers_are_those_of_the_models_configs_over_quarters_of_octaves():
    """Written as heads, ranks and widths, as the configs have them."""
    found = {(layer.model, layer.name): (layer.N, layer.K) for layer in serving.known()}
    wanted = {
        ("Llama-3-8B", "qkv"): ((32 + 2 * 8) * 128, 4096),
        ("Llama-3-8B", "gate_up"): (2 * 14336, 4096),
        ("Llama-3-70B TP8", "qkv"): ((64 + 2 * 8) * 128 // 8, 8192),
        ("Llama-3-70B TP8", "o"): (8192, 64 * 128 // 8),
        ("Llama-3-70B TP8", "down"): (8192, 28672 // 8),
        ("Qwen2.5-7B", "qkv"): ((28 + 2 * 4) * 128, 3584),
        ("Mixtral-8x7B", "router"): (8, 4096),
        ("DeepSeek-V3", "q_kv_a"): (1536 + 512 + 64, 7168),
        ("DeepSeek-V3", "q_b"): (128 * (128 + 64), 1536),
        ("DeepSeek-V3", "kv_b"): (128 * (128 + 128), 512),
        ("DeepSeek-V3", "shared_down"): (7168, 2048),
    }
    assert wanted.items() <= found.items() and len(found) == 22
    grid = serving.ROWS
    assert (grid[0], grid[-1], len(grid)) == (1, 4096, 53) and list(grid) == sorted(set(grid))
    assert {*(2**bit for bit in range(13)), 3, 5, 7, 20, 448, 1536, 17, 333, 2047} <= set(grid)
    assert all(b / a <= 4 / 3 for a, b in itertools.pairwise(grid[2:]))


def test_problems_have_stable_ids_and_are_chosen_by_words():
    every = serving.problems()
    known = {problem.id: problem for problem in every}
    assert len(known) == len(every) == 22 * 53
    one = known["llama-3-8b/qkv/48"]
    assert one.case == Case(48, 6144, 4096, "NT", "bf16")
    assert one.to_json() == {"id": "llama-3-8b/qkv/48", "class": "Llama-3-8B", "name": "qkv"}
    found = serving.problems(["deepseek-v3", "mixtral-8x7b"], ["router"], [100, 1, 100])
    layers = ("mixtral-8x7b/router", "deepseek-v3/router")
    assert [p.id for p in found] == [f"{layer}/{M}" for layer in layers for M in (1, 100)]


@pytest.mark.parametrize("of", [1, 2, 4, 7])
def test_parts_share_the_problems_out_fairly(of):
    every = serving.problems()
    parts = [every[race.part(f"{index + 1}/{of}")] for index in range(of)]
    assert sorted(p.id for own in parts for p in own) == sorted(p.id for p in every)
    for own in parts:
        assert abs(len(own) - len(every) / of) < 1
        mean = geomean(p.case.M for p in own) / geomean(p.case.M for p in every)
        assert 0.9 < mean < 1.1
    # Of one M no part has all layers, as it had if layers were as long as a multiple of the parts.
    if of > 1:
        assert max(sum(p.case.M == 64 for p in own) for own in parts) <= math.ceil(22 / of)


@pytest.mark.parametrize(
    ("M", "layer", "hungry"),
    [(1, (6144, 4096), False), (32, (28672, 4096), False), (128, (4096, 4096), True),
     (4096, (4096, 14336), True), (4096, (8, 4096), False), (32, (256, 7168), False)],
)  # fmt: skip
def test_only_what_may_draw_much_power_has_a_long_lead(M, layer, hungry):
    case = Case(M, *layer, "NT")
    assert race.hungry(case, ROOFS) is hungry and race.hungry(case, None)


@pytest.fixture
def served(monkeypatch):
    """Three layers; the plan of each race."""
    on_cpu(monkeypatch)
    plans = []

    def bench_of(case, plan, probe):
        plans.append(plan)
        return FakeBench(case, {"auto": 1e-3 / 1.05})

    layers = (serving.Layer("Small A1", "up", 24, 40), serving.Layer("Small A1", "down", 40, 24))
    layers += (serving.Layer("Large B", "up", 48, 32),)
    monkeypatch.setattr(serving, "known", lambda: layers)
    monkeypatch.setattr(bench, "BENCHES", {"sustained": bench_of})
    return plans


def test_the_layers_race_are_compiled_ahead_and_each_has_its_plan(
    served, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(race, "hungry", lambda case, roofs: case.N == 48)
    status, found = ran(tmp_path / "x.jsonl", "serving", "--rows", "1,3,17")
    told = capsys.readouterr()
    ids = [f"{layer}/{M}" for layer in ("small-a1/up", "small-a1/down", "large-b/up")
           for M in (1, 3, 17)]  # fmt: skip
    assert status == 0 and [(r.id, r.competitor) for r in found] == [
        (key, name) for key in ids for name in ("auto", REFERENCE)
    ]
    assert all(r.ratio.p50 == pytest.approx(1.05, abs=0.015) and r.rung for r in found[::2])
    assert "[9/9] large-b/up/17 up: 17 x 48 x 32 NT, bf16" in told.err
    assert "9 of 9, 100 %" in told.out and "cuBLAS against itself" in told.out
    assert Compilers.asked == [row.case for row in found[::2]]
    assert [plan.lead for plan in served] == [0.02] * 6 + [0.1] * 3
    assert [plan.settle for plan in served] == [2.5] + [0] * 8
    assert {(p.rounds, p.most, p.error) for p in served} == {(5, 9, 0.006)}


def test_parts_share_one_list(served, tmp_path):
    path = tmp_path / "x.jsonl"
    words = ["serving", "--rows", "1,3,17", "--rounds", "3", "--part"]
    every = [problem.id for problem in serving.problems(rows=[1, 3, 17])]
    status, found = ran(path, *words, "2/2")
    assert status == 0 and [r.id for r in found[::2]] == every[1::2]
    _, found = ran(path, *words, "1/2")
    # Two sittings are shown as one list, in the order of the problems.
    shown = show.VIEWS["serving"].chosen(found, Selection())
    assert [row.id for row in shown[::2]] == every


def some(more=()):
    """Rows of made-up ratios, one of them refused; `more` are of cuBLASLt, over ours, by place."""
    keys = ("llama-3-8b/qkv/1", "llama-3-8b/qkv/48", "llama-3-8b/qkv/64", "llama-3-8b/o/16",
            "deepseek-v3/router/2", "deepseek-v3/router/4", "deepseek-v3/router/8")  # fmt: skip
    ratios, found = (1.21, 0.9, 0.98, 1.1, 0.97, 1.5, None), []
    known = {problem.id: problem for problem in serving.problems()}
    for place, (key, ratio) in enumerate(zip(keys, ratios, strict=True)):
        problem = known[key]
        same = {"experiment": "serving", "case": problem.case, "title": problem.name}
        same |= {"null": 1.01 if place == 1 else 1.0}
        peer = dict(more).get(place)
        versus = {"versus": {"cublaslt": flat(peer)}} if peer else {}
        us = {"us": flat(20.0 + place)} if ratio else {}
        found.append(row(key, problem.group, ratio, rung="split_k", **same, **us, **versus))
        theirs = flat(30.0 + place)
        found.append(row(key, problem.group, 1.0, REFERENCE, us=theirs, **same))
        if peer:
            us = flat((20.0 + place) * peer)
            found.append(row(key, problem.group, 1.0, "cublaslt", us=us, **same))
    return found


def test_every_layer_has_a_line_all_have_one_and_peers_have_columns():
    alone = serving.layers_table(some())
    qkv, _, router, every = alone.body
    mean = f"{geomean([1.21, 0.9, 0.98]):.3f}"
    assert qkv[2:] == ("6144 x 4096", "3", mean, "0.900 (M = 48)", "2 of 3, 67 %")
    assert router[3] == "2 of 3" and every[3] == "6 of 7"
    beside = serving.layers_table(some({0: 1.1, 1: 0.8}.items()))
    assert beside.head == (*alone.head, "with peers", "x best peer", "least")
    assert beside.body[0][-3:] == ("2", f"{geomean([1.1, 0.8]):.3f}", "0.800 (M = 48)")
    assert beside.body[1][-3:] == ("0", "", "") and beside.body[0][:-3] == qkv


def test_without_rows_there_is_no_sentence_and_the_page_says_so():
    assert serving.sentence([]) == "" and serving.text([]) == "nothing was measured"
    assert generate.pictured("serving", "Layers", []) == "Not yet measured."
