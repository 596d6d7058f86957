"""`python -m perf linear` on the CPU: endings, their check, who races, and what the rows say."""

import dataclasses
import math
import subprocess
import sys

import pytest
import torch

import tritemm
from perf import __main__, bench, linear_report, linear_ways, machine, operands, roof, rows, views
from perf.case import Case
from perf.commands import linear as command
from perf.commands import suite
from perf.ending import Ending
from perf.linear_ways import ADDED, ADDMM, COMPILED, EPILOGUE, OURS, ways
from perf.machine import ROOT, State
from perf.problems import LINEAR, read_suite
from perf.rows import NULL, REFERENCE
from perf.stats import Quantiles
from tritemm import budget, plan
from tritemm.problem import INTERPRETED, Device

from .perf_fakes import ENVIRONMENT, FakeBench, by_name, four_gpus, heading, here, kept, rows_after

pytestmark = pytest.mark.host
interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors here")

HEAD = "id,class,name,batch,M,N,K,dtype,out_dtype,layout,ending\n"
ENDINGS = (
    "bias", "bias relu", "bias gelu", "silu", "gelu_tanh", "residual", "bias silu residual",
    "swiglu", "geglu", "accumulate",
)  # fmt: skip


def case_of(ending, dtype="bf16"):
    if ending == "accumulate":
        return Case(17, 24, 32, "TN", dtype, out_dtype="fp32", ending=ending)
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


# The words, and the table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bias tanh", "not 'tanh'"),
        ("bias bias", "each word once"),
        ("relu gelu", "one activation"),
        ("accumulate bias", "stand alone"),
        ("swiglu residual", "stand alone"),
    ],
)
def test_words_that_are_no_ending_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Ending.parse(text)


def test_words_are_an_ending_and_count_as_bytes():
    assert Ending.parse("bias gelu residual") == Ending(True, "gelu", True)
    assert Ending.parse(None) == Ending() and Ending.parse("swiglu").gated
    plain = Case(8, 16, 32, "NT")
    bytes_of = {e: dataclasses.replace(plain, ending=e).bytes - plain.bytes for e in ENDINGS[:8]}
    assert (bytes_of["bias"], bytes_of["residual"], bytes_of["swiglu"]) == (32, 256, -128)
    assert bytes_of["bias silu residual"] == 288 and bytes_of["silu"] == 0
    assert str(case_of("bias gelu")) == "17 x 24 x 32 NT, bf16, bias gelu"


def test_the_table_has_what_models_run():
    found = {problem.id: problem for problem in read_suite(LINEAR)}
    assert len(found) >= 12
    assert found["T1"].case == Case(8192, 28672, 4096, "NT", "bf16", ending="bias gelu")
    assert found["T2"].case.size == "65536 x 3072 x 768"
    assert (found["T3"].case.ending, found["T3"].case.columns) == ("swiglu", 14336)
    words = {word for p in found.values() for word in p.case.ending.split()}
    assert words == {"bias", "gelu", "relu", "silu", "residual", "swiglu", "accumulate"}
    assert {p.case.dtype for p in found.values()} == {"bf16", "fp16"}
    assert {1, 65536} <= {p.case.M for p in found.values()}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A,one,x,2,8,8,8,bf16,bf16,NT,bias", "one 16-bit product"),
        ("A,one,x,1,8,8,8,fp32,fp32,NT,bias", "one 16-bit product"),
        ("A,one,x,1,8,8,8,bf16,bf16,TN,accumulate", "what accumulates is fp32"),
        ("A,one,x,1,8,8,8,bf16,fp32,NT,bias", "what accumulates is fp32"),
        ("A,one,x,1,8,8,8,bf16,bf16,NN,bias", "layout is NT"),
        ("A,one,x,1,8,7,8,bf16,bf16,NT,swiglu", "halves of N"),
        ("A,one,x,1,8,8,8,bf16,bf16,NT,tanh", "line 2: an ending is made of"),
    ],
)
def test_what_has_no_such_ending_is_named(tmp_path, line, message):
    path = tmp_path / "mine.csv"
    path.write_text(HEAD + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_suite(path)


def test_rows_say_the_ending_and_others_have_none():
    known = {"competitor": "auto", "rung": None, "number": None, "config": None}
    row = rows.Row(**vars(heading(case_of("bias gelu"))), **known, outcome="failed")
    assert kept([row]) == [row] and '"ending":"bias gelu"' in "".join(rows.lines([row]))
    plain = dataclasses.replace(row, case=Case(8, 8, 8))
    assert kept([plain]) == [plain] and "ending" not in "".join(rows.lines([plain]))


# The check


@interpreted
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_ours_is_right_by_the_bound(uncompiled, ending, dtype):
    case = case_of(ending, dtype)
    there = FakeBench(case, {})
    ours = ways(case, there.sets[0], [])[0]
    assert (ours.name, ours.refusal) == (OURS, None) and ours.config
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
}


@pytest.mark.parametrize("ending", FAULTS)
def test_an_ending_that_is_wrong_is_found(ending):
    case = case_of(ending)
    there = FakeBench(case, {})
    competitor = linear_ways.Competitor("wrong", FAULTS[ending], rung="wrong")
    assert not there.verify(there.loop(competitor)).ok


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_one_wrong_element_of_a_gated_result_is_found(activation):
    case = case_of(activation)
    a, b, c, *_ = operands.operands(case, "cpu")
    there = linear_ways._eager(case.after)(a, b, c, None, None)
    how = {"ending": plan.Ending(None, None, activation, 1.0, 1.0), "stepwise": True}
    assert budget.check(there, a, b, **how).ok
    there[3, 5] += 2
    verdict = budget.check(there, a, b, **how)
    assert not verdict.ok and str(verdict).startswith("1 of 204 elements are wrong; at (3, 5)")


def test_what_accumulates_is_judged_by_how_often_it_did():
    case = case_of("accumulate")
    sets = [operands.operands(case, "cpu") for _ in range(2)]

    def replay(launches=5):
        for index in range(launches):
            a, b, c, *_ = sets[index % 2]
            c.add_(a.float() @ b.float())

    assert operands.verify(case, sets, replay, 5).ok
    assert not operands.verify(case, sets, lambda: replay(4), 5).ok


# Who races


@pytest.mark.parametrize("ending", ENDINGS)
def test_torchs_ways_agree_and_each_is_compiled_apart(uncompiled, ending):
    case = case_of(ending)
    there = FakeBench(case, {})
    found = {c.name: c for c in ways(case, there.sets[0], list(COMPILED))}
    single = {"accumulate": [ADDED], "residual": [ADDMM], "bias relu": [EPILOGUE]}.get(ending, [])
    others = [*COMPILED, *single]
    assert list(found) == [OURS, REFERENCE, NULL, *others]
    assert found[OURS].rivals == tuple(others)
    static = {"fullgraph": True, "dynamic": False}
    wanted = [static, static | {"mode": "max-autotune-no-cudagraphs"}]
    assert [options for _, options in uncompiled] == wanted
    assert len({id(code) for code, _ in uncompiled}) == 2
    a, b, c, bias, residual = there.sets[0]
    exact = found[REFERENCE].run(a, b, c.clone(), bias, residual).float()
    for name in others:
        torch.testing.assert_close(
            found[name].run(a, b, c.clone(), bias, residual).float(), exact, rtol=0.05, atol=0.1
        )


# The command

TABLE = (
    HEAD
    + """A,one,up,1,17,24,32,bf16,bf16,NT,bias gelu
B,one,gate and up,1,8,16,32,fp16,fp16,NT,swiglu
C,two,gradient,1,16,8,32,bf16,fp32,TN,accumulate
"""
)


@pytest.fixture
def timed(uncompiled, monkeypatch, tmp_path):
    """The command on the CPU: times are `timed`'s by competitor."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    seconds = {}
    roofs = roof.Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), 1450.0, 4200.0)
    for module in (command, suite):
        monkeypatch.setattr(module, "unable", lambda name: None)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0))
    monkeypatch.setattr(roof, "measure", lambda probe: roofs)
    make = lambda case, plan, probe: FakeBench(case, seconds)  # noqa: E731
    monkeypatch.setattr(bench, "BENCHES", {"sustained": make, "burst": make})
    here(monkeypatch)
    (tmp_path / "mine.csv").write_text(TABLE)
    return seconds


def test_the_command_races_torchs_ways_and_records(timed, tmp_path, capsys):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    timed |= {"compile": 0.9e-3, "max-autotune": 0.8e-3, OURS: 0.75e-3}
    words = ["linear", "--file", str(file), "--rounds", "12", "--out", str(path)]
    assert __main__.main(words) == 0
    found = rows.read(path)
    names = [OURS, REFERENCE, *COMPILED]
    assert [row.competitor for row in found] == [*names, *names, *names, ADDED]
    assert {row.experiment for row in found} == {"linear"}
    for row in (row for row in found if row.competitor == OURS):
        assert row.ratio.p50 == pytest.approx(4 / 3, rel=0.01)
        assert row.versus["max-autotune"].p50 == pytest.approx(16 / 15, rel=0.01)
        assert row.null and row.code and row.config
    told = capsys.readouterr().out
    assert "losses (0): none" in told and "wins (3): " in told
    last = next(line for line in told.splitlines() if line.startswith("all "))
    means = [float(last.split()[i]) for i in (2, -1)]
    assert means == pytest.approx([16 / 15, 4 / 3], abs=0.005)
    results = linear_report.results(found)
    assert [(r.id, r.best) for r in results] == [(key, "max-autotune") for key in "ABC"]
    (shown,) = views.VIEWS["linear"].chosen(found, views.Selection())
    assert "| A up | 17 x 24 x 32 NT, bf16, bias gelu |" in views.VIEWS["linear"].table(
        shown, views.Selection()
    )
    for other in ("suite", "problems", "random", "invariant", "ladder"):
        assert views.VIEWS[other].chosen(found, views.Selection()) is None
    assert __main__.main([*words, "--compiled", "compile", "--id", "A", "--json"]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    # Products with an ending and those without are for different commands.
    assert __main__.main(["suite", "--file", str(file)]) == 2
    assert __main__.main(["linear", "--file", str(suite.SUITE), "--id", "P1"]) == 2
    told = capsys.readouterr().err
    assert "are for python -m perf linear" in told and "are for python -m perf suite" in told


def test_a_wrong_linear_is_not_timed_and_ends_red(timed, tmp_path, monkeypatch, capsys):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    monkeypatch.setattr(tritemm, "linear", lambda x, w, *given, **options: x @ w.mT)
    words = ["linear", "--file", str(file), "--id", "A", "--rounds", "3", "--out", str(path)]
    assert __main__.main(words) == 1
    found = by_name(rows.read(path))
    assert (found[OURS].outcome, found[OURS].us) == ("wrong", None)
    assert all(found[name].outcome == "measured" for name in (REFERENCE, *COMPILED))
    assert "A, tritemm: wrong: " in capsys.readouterr().out


def test_what_torch_cannot_compile_is_said_and_the_rest_goes_on(timed, tmp_path, monkeypatch):
    def broken(function, **options):
        def fails(*given):
            raise RuntimeError("no Triton")

        return fails if "mode" in options else function

    monkeypatch.setattr(torch, "compile", broken)
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    words = ["linear", "--file", str(file), "--id", "A", "--rounds", "3", "--out", str(path)]
    assert __main__.main(words) == 0
    found = rows.read(path)
    assert by_name(found)["max-autotune"].reason == "RuntimeError: no Triton"
    text = linear_report.text(found)
    assert "A, max-autotune: failed: RuntimeError: no Triton" in text


def test_the_layers_are_shared_out_over_cards(timed, tmp_path, monkeypatch):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    four_gpus(monkeypatch)
    words = ["linear", "--file", str(file), "--rounds", "3", "--compiled", "compile"]
    assert __main__.main([*words, "--gpus", "2", "--out", str(path)]) == 0
    ids = [row.problem["id"] for row in rows.read(path) if row.competitor == OURS]
    assert ids == ["A", "B", "C"]


def made_up(ids, best=1.0, eager=1.2, null=1.0):
    """Rows whose ratios to max-autotune and to torch have no spread; max-autotune is the faster."""
    found = []
    for key in ids:
        problem = {"id": key, "class": "one", "name": "made up"}
        head = heading(case_of("bias gelu"), experiment="linear", run="r", problem=problem)
        for name, us in ((OURS, 10.0), (REFERENCE, 10 * eager), ("max-autotune", 10 * best)):
            ours = name == OURS
            found.append(rows.Row(
                **vars(head), competitor=name, rung="tma" if ours else None, number=None,
                config=None, outcome="measured", us=Quantiles(us, us, us), rounds=7,
                ratio=Quantiles(*[10 * eager / us] * 3), null=Quantiles(*[null] * 3),
                versus={"max-autotune": Quantiles(*[best] * 3)} if ours else None,
                reason=None if ours else "3 of 9 elements are wrong",
            ))  # fmt: skip
    return found


def test_losses_to_the_best_of_torch_are_printed_like_wins():
    found = [*made_up("A", 1.1), *made_up("B", 0.9), *made_up("C", 1.004, null=1.005)]
    text = linear_report.text(found)
    assert "wins (1): A 1.100" in text and "losses (1): B 0.900" in text
    assert "1.004 (1.004-1.004), a tie" in text
    last = next(line for line in text.splitlines() if line.startswith("all "))
    assert last.split() == ["all", "3", "0.998", "0.900", "(B)", "1", "1", "1", "1.200"]
    assert "rounded once: torch: A, B, C; max-autotune: A, B, C" in text
    # Where torch itself is the fastest of its ways, its ratio is the one.
    (result,) = linear_report.results(made_up("D", 1.3))
    assert (result.best, result.ratio.p50) == (REFERENCE, 1.2)
    table = linear_report.markdown(found)
    for part in table.split("\n\n")[:2]:
        assert len({line.count("|") for line in part.splitlines()}) == 1
    assert linear_report.text([]) == "nothing was measured"


def test_a_race_is_that_of_the_engine(uncompiled):
    case = case_of("residual")
    there = FakeBench(case, {ADDMM: 0.5e-3})
    field = [c for c in ways(case, there.sets[0], []) if c.name != OURS]
    found = by_name(rows_after(field, there))
    assert found[ADDMM].ratio.p50 == pytest.approx(2, rel=0.02) and found[NULL].tie


@pytest.mark.gpu
@pytest.mark.xdist_group("perf")
@pytest.mark.parametrize("mode", ["sustained", "burst"])
def test_the_command_runs_on_a_gpu(tmp_path, mode):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    sizes = (("M", "NT"), ("D", "NT"))
    lines = [f"{key}{i},one,x,1,{16 if key == 'D' else 256},512,256,bf16,bf16,{layout},{ending}"
             for key, layout in sizes for i, ending in enumerate(ENDINGS[:-1])]  # fmt: skip
    lines.append("W,two,x,1,512,256,1024,bf16,fp32,TN,accumulate")
    file.write_text(HEAD + "\n".join(lines) + "\n")
    words = [sys.executable, "-m", "perf", "linear", "--file", str(file), "--mode", mode]
    words += ["--quick", "--compiled", "compile", "--out", str(path)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = rows.read(path)
    assert all(row.outcome == "measured" for row in found), run.stdout
    assert all(row.versus["compile"] for row in found if row.competitor == OURS)
