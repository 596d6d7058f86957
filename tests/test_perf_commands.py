"""`python -m perf`: its commands, on the CPU where a stand-in can time them."""

import itertools
import re
import subprocess
import sys
import tempfile

import pytest
import torch

import tritemm
from cuda_reference import loader
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from perf import __main__, bench, engine, machine, problems, report, roof, rows, session, views
from perf.case import Case
from perf.commands import ladder, roofline, suite
from perf.machine import ROOT, State
from perf.rows import HALF, INVARIANT, NULL, REFERENCE
from tritemm.problem import INTERPRETED, Device
from tritemm.rungs import RUNGS

from .perf_fakes import ENVIRONMENT, Clock, FakeBench, four_gpus, here, parsed_by, synthetic

pytestmark = pytest.mark.host

ROOFS = roof.Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), mhz=1450.0, gbs=4200.0)


def command(*args):
    words = [sys.executable, "-m", "perf", *args]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize("race", ["suite", "serving", "random", "linear", "ladder", "roofline"])
def test_without_a_gpu_the_race_says_so(race, capsys):
    assert __main__.main([race]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"python -m perf {race} needs a CUDA device, and torch sees none\n"


@pytest.fixture
def timed(monkeypatch):
    """The commands on the CPU: rungs are interpreted, times are `timed`'s by competitor."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    seconds = {}
    for module in (ladder, suite, roofline):
        monkeypatch.setattr(module, "unable", lambda command: None)
    monkeypatch.setattr(loader, "unavailable", lambda: None)
    monkeypatch.setattr(loader, "build", lambda names: {})
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0))
    monkeypatch.setattr(roof, "measure", lambda probe: ROOFS)
    make = lambda case, plan, probe: FakeBench(case, seconds)  # noqa: E731
    monkeypatch.setattr(bench, "BENCHES", {"sustained": make, "burst": make})
    here(monkeypatch)
    return seconds


def test_the_ladder_races_both_and_records(timed, tmp_path, monkeypatch, capsys):
    path, rung, cuda = tmp_path / "x.jsonl", RUNGS[1].name, CUDA_RUNGS[0].name
    timed[rung] = 0.2
    words = ["ladder", "--size", "48x40x32", "--rounds", "3", "--out", str(path)]
    words += ["--folder", str(tmp_path / "pictures")]
    for accumulate in ("fp32", "fp16"):
        only = ["--only", f"{rung},{cuda}", "--accumulate", accumulate]
        assert __main__.main([*words, *only]) == 0
    printed = capsys.readouterr().out
    assert printed.count("on NVIDIA H200, sustained, 3 rounds") == 2
    found = rows.read(path)
    names = [rung, cuda, REFERENCE, NULL]
    assert [row.competitor for row in found] == [*names, *names, HALF]
    assert [row.case.accumulate for row in found] == ["fp32"] * 4 + ["fp16"] * 5
    refused = {row.reason for row in found if row.outcome == "refused"}
    assert refused == {"the tensors are on the CPU; a CUDA kernel needs them on a GPU"}
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == [
        "ladder-48x40x32-NT-fp16-fp16-accumulator.png", "ladder-48x40x32-NT-fp16.png"
    ]  # fmt: skip

    assert __main__.main([*words, "--ladders", "triton", "--only", f"{rung},{cuda}"]) == 0
    assert cuda not in capsys.readouterr().out

    monkeypatch.setattr(loader, "unavailable", lambda: "nvcc was not found")
    assert __main__.main([*words, "--only", f"{rung},{cuda}"]) == 0
    told = capsys.readouterr()
    assert told.err.count("nvcc was not found") == 1
    assert cuda not in told.out

    assert __main__.main([*words, "--only", "nope"]) == 2
    assert __main__.main([*words, "--dtype", "bf16", "--accumulate", "fp16"]) == 2
    assert __main__.main([*words, "--dtype", "bf16", "--precision", "tf32"]) == 2


SUITE = """id,class,name,batch,M,N,K,dtype,out_dtype,layout
A,one,small,1,33,24,40,fp16,fp16,NT
B,one,batched,2,16,24,40,bf16,bf16,NN
C,two,eight bits,1,32,32,64,fp8,bf16,NT
"""


def test_the_suite_runs_any_file_and_records(timed, tmp_path, capsys):
    """The planted speed is found, fp8 is refused by name, and the null test is in every row."""
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE)
    timed["auto"] = 1e-3 / 1.05
    words = ["suite", "--file", str(file), "--rounds", "12", "--out", str(path)]
    assert __main__.main(words) == 0
    told = capsys.readouterr()
    assert "[3/3] C eight bits: 32 x 32 x 64 NT, fp8" in told.err
    found = rows.read(path)
    assert [(row.problem["id"], row.competitor) for row in found] == [
        (key, name) for key in "ABC" for name in ("auto", REFERENCE)
    ]
    assert len({row.run for row in found}) == 1
    assert {row.experiment for row in found} == {"suite"}
    assert "suite --file mine.csv" in found[0].command and str(tmp_path) not in found[0].command
    for row in found[:4:2]:
        assert row.rung in {kernel.name for kernel in RUNGS} and row.config
        assert row.ratio.p50 == pytest.approx(1.05, abs=0.01)
        assert row.null.p50 == pytest.approx(1, abs=0.01)
        assert row.of_roof == pytest.approx(row.roof.floor(row.case) / row.us.p50)
    assert found[4].outcome == "refused" and "float8" in found[4].reason
    assert "wins (2): " in told.out and "losses (0): none" in told.out
    assert re.search(r"^all +2 of 3 +1\.0[45]\d ", told.out, re.MULTILINE)

    assert __main__.main([*words, "--class", "two", "--json"]) == 0
    heading, race = capsys.readouterr().out.splitlines()
    assert '"command":"python -m perf suite' in heading and '"class":"two"' in race
    for wrong in (["--class", "three"], ["--id", "A,Z"], ["--file", str(tmp_path / "none.csv")]):
        assert __main__.main([*words, *wrong]) == 2
    assert "no id is called 'Z'; there are A, B, C" in capsys.readouterr().err


def test_batch_invariance_races_beside_auto_and_is_an_experiment_of_its_own(
    timed, tmp_path, monkeypatch, capsys
):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE.replace("A,one,small", "A,decode,small"))
    timed |= {"auto": 0.8e-3, INVARIANT: 1.6e-3}
    asked, matmul = [], tritemm.matmul

    def seen(*operands, batch_invariant=False, **options):
        asked.append(batch_invariant)
        return matmul(*operands, batch_invariant=batch_invariant, **options)

    monkeypatch.setattr(tritemm, "matmul", seen)
    words = ["suite", "--file", str(file), "--rounds", "12", "--out", str(path)]
    assert __main__.main([*words, "--batch-invariant"]) == 0
    found = rows.read(path)
    names = [INVARIANT, "auto", REFERENCE]
    assert [(r.problem["id"], r.competitor) for r in found] == [
        (k, n) for k in "ABC" for n in names
    ]
    assert {row.experiment for row in found} == {"invariant"} and set(asked) == {True, False}
    for row in found[:6:3]:
        assert row.ratio.p50 == pytest.approx(1 / 1.6, rel=0.01)
        assert row.versus["auto"].p50 == pytest.approx(0.5, rel=0.01)
    told = capsys.readouterr().out
    sixteen, decode, every = (
        next(line.split() for line in told.splitlines() if line.startswith(f"{name} "))
        for name in ("all 16-bit", "decode", "all ")
    )
    assert (sixteen[2], decode[1], every[1:4]) == ("2", "1", ["2", "of", "3"])
    means = [float(sixteen[i]) for i in (3, 6, 7)]
    assert means == pytest.approx([1 / 1.6, 1.25, 0.5], abs=0.01)
    selection = views.Selection()
    (shown,) = views.VIEWS["invariant"].chosen(found, selection)
    assert "| decode | 1 |" in views.VIEWS["invariant"].table(shown, selection)
    for name in ("suite", "problems", "runs", "roofline"):
        assert views.VIEWS[name].chosen(found, selection) is None
    assert __main__.main([*words, "--batch-invariant", "--kernel", "tma"]) == 2
    assert "leave --kernel out" in capsys.readouterr().err


def test_a_wrong_matmul_is_refused_and_ends_with_status_1(timed, tmp_path, monkeypatch):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE)

    def spoilt(a, b, *, out, **options):
        torch.matmul(a, b, out=out)[..., -1, -1] += 1
        return out

    monkeypatch.setattr(tritemm, "matmul", spoilt)
    words = ["suite", "--file", str(file), "--class", "one", "--rounds", "3", "--out", str(path)]
    assert __main__.main(words) == 1
    outcomes = {(row.competitor, row.outcome, row.us is None) for row in rows.read(path)}
    assert outcomes == {("auto", "wrong", True), (REFERENCE, "measured", False)}


def test_ctrl_c_keeps_the_problems_before(timed, tmp_path, monkeypatch, capsys):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE)
    real = engine.measure

    def interrupted(field, there, *rest, **more):
        if there.case.batch == 2:
            raise KeyboardInterrupt
        return real(field, there, *rest, **more)

    monkeypatch.setattr(engine, "measure", interrupted)
    words = ["suite", "--file", str(file), "--rounds", "3", "--out", str(path)]
    assert __main__.main(words) == 130
    assert [row.problem["id"] for row in rows.read(path)] == ["A", "A"]
    assert "interrupted; what was measured is kept" in capsys.readouterr().err


def test_the_ladder_is_drawn_after_every_round_and_after_ctrl_c(timed, tmp_path, monkeypatch):
    """Each drawing has one round more; the interrupted one has what was measured."""
    drawn = []

    def draw(rows, folder):
        drawn.append([row.rounds for row in rows if row.us])
        return []

    monkeypatch.setattr(ladder.ladder, "draw", draw)
    rung = RUNGS[2].name
    words = ["ladder", "--size", "48x40x32", "--ladders", "triton", "--only", rung]
    words += ["--out", str(tmp_path / "x.jsonl")]
    assert __main__.main([*words, "--rounds", "3"]) == 0
    # While one picture is being drawn, the next rows wait.
    assert drawn[0] == [1] * 3 and drawn[-1] == [3] * 3
    assert [counts[0] for counts in drawn] == sorted(counts[0] for counts in drawn)

    def interrupted(self):
        if self.ticks > 6:
            raise KeyboardInterrupt
        self.ticks += 1
        return 1.0

    monkeypatch.setattr(Clock, "slowness", interrupted)
    assert __main__.main([*words, "--rounds", "9"]) == 130
    assert sum(drawn[-1]) == 7


def test_what_would_end_too_late_is_not_begun(timed, tmp_path, monkeypatch, capsys):
    clock = itertools.count()
    monkeypatch.setattr(session.time, "monotonic", lambda: 60 * next(clock))
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE)
    args = parsed_by(suite, "suite", "--file", str(file), "--rounds", "3", "--out", str(path))
    made = session.Session(args, "suite")  # begins at minute 0; each race takes one
    found = problems.read_suite(file)[:2] * 3
    made.measure([suite.task(p, ["auto"]) for p in found], engine.Plan(rounds=3), minutes=4)
    assert len(made.races) == 2
    assert capsys.readouterr().err.count("not begun, to end within 4 minutes") == 1


def test_out_of_memory_is_a_row_and_the_suite_goes_on(timed, tmp_path, monkeypatch):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE)

    def make(case, plan, probe):
        if case.batch == 2:
            raise torch.OutOfMemoryError("tried to allocate 1 TiB")
        return FakeBench(case, {})

    monkeypatch.setattr(bench, "BENCHES", {"sustained": make})
    words = ["suite", "--file", str(file), "--class", "one", "--rounds", "3", "--out", str(path)]
    assert __main__.main(words) == 0
    failed = rows.read(path)[-1]
    assert (failed.outcome, failed.reason) == ("failed", "tried to allocate 1 TiB")


def test_a_shared_suite_leaves_the_rows_of_one_process(timed, tmp_path, monkeypatch, capsys):
    """Three problems on two cards: in the suite's order, with the command that was typed."""
    file, alone, shared = (tmp_path / name for name in ("mine.csv", "alone.jsonl", "shared.jsonl"))
    file.write_text(SUITE)
    four_gpus(monkeypatch)
    words = ["suite", "--file", str(file), "--rounds", "3"]
    assert __main__.main([*words, "--out", str(alone)]) == 0
    table = capsys.readouterr().out
    gpus = ["--gpus", "2"]
    assert __main__.main([*words, *gpus, "--out", str(shared)]) == 0
    told = capsys.readouterr()
    assert "[1/2] A small" in told.err and "[1/1] B batched" in told.err
    assert told.err.endswith(f"rows are in {shared}\n") and told.err.count("rows are in") == 1
    same = lambda row: (row.problem, row.case, row.competitor, row.outcome)  # noqa: E731
    found = rows.read(shared)
    assert list(map(same, found)) == list(map(same, rows.read(alone)))
    assert len({row.run for row in found}) == 1 and len({row.time for row in found}) == 3
    command = "python -m perf suite --file mine.csv --rounds 3 --gpus 2 --out shared.jsonl"
    assert {row.command for row in found} == {command}
    digitless = lambda text: re.sub(r"[\d. ~-]+", "", text)  # noqa: E731
    assert digitless(told.out) == digitless(table)
    assert sorted(tmp_path.iterdir()) == sorted([file, alone, shared])

    assert __main__.main([*words, *gpus, "--out", str(shared), "--json"]) == 0
    assert capsys.readouterr().out.splitlines() == list(rows.lines(rows.read(shared)[6:]))
    assert __main__.main([*words, "--gpus", "5"]) == 2
    assert capsys.readouterr() == ("", "--gpus 5: torch sees 4; ask for no more\n")


def test_a_quick_shared_suite_records_nothing(timed, tmp_path, monkeypatch, capsys):
    file = tmp_path / "mine.csv"
    file.write_text(SUITE)
    four_gpus(monkeypatch)
    monkeypatch.setattr(session, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert __main__.main(["suite", "--file", str(file), "--quick", "--gpus", "4"]) == 0
    told = capsys.readouterr()
    assert "nothing is recorded" in told.err and "3 processes" in told.err
    assert re.search(r"^all +2 of 3 ", told.out, re.MULTILINE)
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_wrong_or_fails_on_one_card_is_the_status(timed, tmp_path, monkeypatch, capsys):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE)
    four_gpus(monkeypatch)
    words = ["suite", "--file", str(file), "--rounds", "3", "--gpus", "2", "--out", str(path)]

    def spoilt(a, b, *, out, **options):
        torch.matmul(a, b, out=out)[..., -1, -1] += a.ndim == 3
        return out

    with monkeypatch.context() as patch:
        patch.setattr(tritemm, "matmul", spoilt)
        assert __main__.main([*words, "--class", "one"]) == 1
    assert "FAILED" not in capsys.readouterr().err
    path.unlink()

    real = engine.measure

    def interrupted(field, there, *rest, **more):
        if there.case.dtype == "fp8":
            raise KeyboardInterrupt
        return real(field, there, *rest, **more)

    monkeypatch.setattr(engine, "measure", interrupted)
    assert __main__.main(words) == 130
    assert "gpu 0 FAILED: its status is 130" in capsys.readouterr().err
    assert [row.problem["id"] for row in rows.read(path)] == ["A", "A", "B", "B"]


def test_random_problems_are_those_of_the_seed(timed, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    small = sorted(problems.random_problems(200, 3), key=lambda p: p.case.flops)[:2]
    monkeypatch.setattr(suite, "random_problems", lambda n, seed: small[:n])
    assert __main__.main(["random", "--n", "2", "--seed", "3", "--out", str(path)]) == 0
    found = rows.read(path)
    assert [row.case for row in found if row.competitor == "auto"] == [p.case for p in small]
    assert {row.experiment for row in found} == {"random"}


def test_the_roofline_has_each_type_at_its_own_clock(timed, tmp_path, monkeypatch, capsys):
    path = tmp_path / "x.jsonl"
    cases = [Case(32, 32, 64, "NT"), Case(32, 32, 64, "NT", "fp32", precision="tf32")]
    monkeypatch.setattr(roofline, "cases", lambda: cases)
    assert __main__.main(["roofline", "--rounds", "3", "--out", str(path)]) == 0
    found = [row for row in rows.read(path) if row.competitor == REFERENCE]
    rate = 132 * 4096 * 1400 / 1e6  # the fake bench's clock, not that of ROOFS
    assert [row.roof.tflops for row in found] == pytest.approx([rate, rate / 2])
    printed = capsys.readouterr().out
    assert re.search(r"^bf16 +1400 +690 +757 ", printed, re.MULTILINE)
    assert re.search(r"^tf32 ", printed, re.MULTILINE)


@pytest.mark.gpu
@pytest.mark.xdist_group("perf")
@pytest.mark.parametrize("mode", ["sustained", "burst"])
def test_the_suite_runs_on_a_gpu(tmp_path, mode):
    file, path = tmp_path / "mine.csv", tmp_path / "x.jsonl"
    file.write_text(SUITE + "D,two,integers,1,64,64,128,int8,int32,NT\n")
    run = command("suite", "--file", str(file), "--mode", mode, "--quick", "--out", str(path))
    assert run.returncode == 0, run.stderr
    found = rows.read(path)
    timed = {row.problem["id"] for row in found if row.competitor == "auto" and row.ratio}
    assert timed == {"A", "B", "D"}
    assert all(row.mode == mode and row.of_roof and row.null for row in found if row.us)


@pytest.mark.gpu
@pytest.mark.xdist_group("perf")
def test_the_ladder_runs_and_records(tmp_path):
    path = tmp_path / "x.jsonl"
    rung = RUNGS[-1].name
    run = command(
        "ladder",
        "--sizes",
        "1024",
        "--only",
        rung,
        "--quick",
        "--out",
        str(path),
    )
    assert run.returncode == 0, run.stderr
    found = rows.read(path)
    assert [row.competitor for row in found] == [rung, REFERENCE, NULL]
    assert all(row.outcome == "measured" and row.ratio for row in found)


def test_table_and_plot_read_recorded_rows(tmp_path):
    path, picture = tmp_path / "x.jsonl", tmp_path / "ladder.png"
    rows.append(path, synthetic())
    run = command("table", "--results", str(path))
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(report.markdown_table(synthetic()))
    assert __main__.main(["plot", "--results", str(path), "--out", str(picture)]) == 0
    assert picture.stat().st_size > 20_000
    assert __main__.main(["table", "--results", str(path), "--size", "77"]) == 2


@pytest.mark.parametrize("show", ["table", "plot"])
def test_a_file_that_is_not_there_is_named(show, tmp_path, capsys):
    assert __main__.main([show, "--results", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
