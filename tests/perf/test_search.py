"""`python -m perf search | regret`, and the quick bench: with stand-ins for the card."""

import contextlib
import dataclasses
import json
import random
import subprocess
import sys
import types

import pytest
import torch

import tritemm
from perf import __main__, bench, competitors, engine, operands, searches
from perf.case import Case
from perf.engine import Competitor
from perf.experiments import regret, search, show
from perf.machine import ROOT
from perf.problems import random_problems
from perf.searches import CUBLAS, Option, Task
from perf.views import Selection
from tests.perf.fakes import (
    CASE,
    FakeBench,
    fake,
    flat,
    on_cpu,
    ran,
    row,
    spoil_one,
)
from tritemm import dispatch
from tritemm.compile.asm import DEVICES
from tritemm.problem import INTERPRETED
from tritemm.spec import Config

pytestmark = [pytest.mark.host, pytest.mark.once]

H200 = DEVICES[90]


def refuses(c):
    raise RuntimeError("out of resources")


RIGHT, WRONG, RAISES = fake("k01_right"), fake("k02_wrong", spoil_one), fake("k03_raises", refuses)
SMALL, LARGE = Config(16, 16, 16), Config(32, 32, 16)
SWAPPED = dataclasses.replace(LARGE, SWAP=True, SPLIT_K=3)
NAMES = {
    SMALL: "right 16x16x16 w4 s1 linear",
    LARGE: "right 32x32x16 w4 s1 linear",
    SWAPPED: "right 32x32x16 w4 s1 linear split3 swap",
}
TIMES = {NAMES[SMALL]: 4e-3, NAMES[LARGE]: 2e-3, NAMES[SWAPPED]: 2.1e-3, CUBLAS: 1e-3}


@pytest.fixture
def fakes(monkeypatch):
    """A dispatcher of made-up rungs: what it predicts, in milliseconds, by rung and config."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    predicted = {
        (RIGHT, SMALL): 1.0, (RIGHT, LARGE): 2.5, (RIGHT, SWAPPED): 3.5,
        (WRONG, SMALL): 0.5, (RAISES, SMALL): 1.5,
    }  # fmt: skip
    chosen = types.SimpleNamespace(kernel=RIGHT, config=SWAPPED, predicted=3.5e-3)

    def ranked(problem):
        return [(ms / 1e3, *candidate) for candidate, ms in predicted.items()]

    monkeypatch.setattr(dispatch, "choose", lambda problem: chosen)
    monkeypatch.setattr(dispatch, "ranked", ranked)
    return predicted


def searched(times=TIMES, **given):
    """The task, its results, and of those the ones with a time."""
    task = Task.of(CASE, within=None)
    results = searches.search(task, FakeBench(CASE, times), random.Random(0), **given)
    return task, results, searches.timed(results)


# What is searched, and found


def test_candidates_are_the_dispatchers_least_predicted_first_with_its_choice(fakes):
    task = Task.of(CASE, within=3.0)
    assert [(o.kernel.name, o.predicted) for o in task.options] == [
        ("wrong", 0.5e-3), ("right", 1e-3), ("raises", 1.5e-3), ("right", 3.5e-3),
    ]  # fmt: skip
    assert task.chosen == NAMES[SWAPPED] == task.options[-1].name
    assert len(Task.of(CASE, within=None).options) == 5


def test_the_real_dispatcher_can_be_searched_for_the_problem_that_matmul_has():
    problem = competitors.problem_of(Case(64, 48, 40, "TN", "fp16", out_dtype="fp32"), H200)
    assert str(problem) == "64 x 48 x 40 TN, fp16 x fp16 -> fp32" and problem.device == H200
    assert all(m.aligned for m in (problem.a, problem.b, problem.c))
    task = Task.of(Case(512, 512, 512, "NT"), device=H200, within=None)
    names = [option.name for option in task.options]
    assert len(set(names)) == len(names) > 3 and task.chosen in names


def test_the_fastest_is_found_the_choice_placed_and_what_is_wrong_named(fakes):
    said = []
    task, results, timed = searched(say=said.append)
    assert [r.name for r in timed] == [NAMES[LARGE], NAMES[SWAPPED], NAMES[SMALL]]
    assert timed[1].seconds / timed[0].seconds == pytest.approx(2.1 / 2, rel=0.05)
    assert results[0].name == CUBLAS and results[0].seconds == pytest.approx(1e-3, rel=0.2)
    text = search.text(task, results)
    assert text.startswith(f"of 5 the fastest is {NAMES[LARGE]}, ")
    assert "; the choice takes 1.0" in text and "; cuBLAS takes 0.5" in text
    assert text.endswith("; 2 without a time")
    task, results, _ = searched(broken={NAMES[SWAPPED]: "needs 300000 bytes"}, say=said.append)
    errors = {r.name: r.error for r in results}
    assert errors[NAMES[SWAPPED]] == "failed: needs 300000 bytes"
    assert errors["wrong 16x16x16 w4 s1 linear"].startswith("wrong: ")
    assert errors["raises 16x16x16 w4 s1 linear"] == "failed: RuntimeError: out of resources"
    assert said[0].startswith("  WRONG: wrong 16x16x16") and len(said) == 2
    assert "the choice has no time" in search.text(task, results)


def test_the_hopeless_are_timed_once_more_the_near_often_and_what_stalled_like_others(
    fakes, monkeypatch
):
    taken, real, stalls = {}, FakeBench.loop, []

    def loop(self, competitor):
        made, name = real(self, competitor), competitor.name

        def time():
            taken[name] = taken.get(name, 0) + 1
            return made.time()

        return dataclasses.replace(made, time=time, seconds=1.0 if name in stalls else made.seconds)

    monkeypatch.setattr(FakeBench, "loop", loop)
    slow, often = 1e-3 * (searches.HOPELESS + 1), searches.PASSES + searches.FINALS
    *_, timed = searched(times=TIMES | {NAMES[SMALL]: slow, NAMES[LARGE]: 1e-3})
    assert taken[NAMES[SMALL]] == 1 and taken[NAMES[LARGE]] == taken[CUBLAS] == often
    assert taken[NAMES[SWAPPED]] == often  # the choice
    assert timed[-1].seconds == pytest.approx(slow, rel=0.1)
    stalls.append(NAMES[LARGE])
    assert searched()[2][0].seconds == pytest.approx(TIMES[NAMES[LARGE]], rel=0.1)


def test_times_before_the_clock_has_settled_are_scaled_and_lines_are_compact(fakes, monkeypatch):
    """Settled times count for the two in the finals, here three times as long."""
    task, results, _ = searched()
    lines = {r.name: search.to_json(task, r) for r in results}
    assert [name for name in lines if lines[name].get("chosen")] == [NAMES[SWAPPED]]
    line = lines[NAMES[SWAPPED]]
    config = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16, "SPLIT_K": 3, "SWAP": True}
    assert line["config"] == config and line["predicted_us"] == 3500 and "scaled" not in line
    shared = {"M": 48, "N": 40, "K": 32, "batch": 1, "layout": "NT", "dtype": "fp32", "out": "fp32"}
    assert shared.items() <= line.items() and line["precision"] == "ieee"
    assert (lines[CUBLAS]["kernel"], lines[CUBLAS]["config"]) == (CUBLAS, {})
    assert lines["raises 16x16x16 w4 s1 linear"]["us"] is None
    monkeypatch.setattr(searches, "HUNGRY", 0.0)
    monkeypatch.setattr(searches, "FINALISTS", 1)
    monkeypatch.setattr(searches, "_settled", lambda loop: 3 * loop.seconds)
    results = {r.name: r for r in searched()[1]}
    for name, seconds in TIMES.items():
        assert results[name].seconds == pytest.approx(3 * seconds, rel=0.2)
        assert results[name].scaled == (name in (NAMES[SMALL], NAMES[LARGE]))


def test_a_config_is_named_by_all_it_has():
    option = Option(RIGHT, dataclasses.replace(SWAPPED, PACK="ab", ORDER="grouped", CLUSTER=2), 1.0)
    assert option.name == "right 32x32x16 w4 s1 grouped16 split3 cluster2 swap pack-ab"


# The quick bench


@pytest.mark.parametrize("case", [
    Case(40, 24, 56, "NT", "fp16", "fp16"), Case(40, 24, 56, "NN", "int8", "int32"),
    Case(40, 24, 56, "NN", "fp16", batch=3, out_dtype="fp32"),
], ids=str)  # fmt: skip
def test_products_of_small_integers_are_exact(case):
    (a, b, c), want = operands.integers(case, "cpu")
    assert want.dtype == c.dtype and want.shape == c.shape
    c.copy_(torch.matmul(a.double(), b.double()))
    assert operands.exactly(c, want).ok
    for wrong in (want[..., -1, 2] + 1, *([torch.nan] if c.is_floating_point() else [])):
        c[..., -1, 2] = wrong
        verdict = operands.exactly(c, want)
        assert not verdict.ok and f"of {c.numel()} are wrong; at" in verdict.message


class Card:
    """As much of torch.cuda as a bench needs, on the CPU: 30 us a launch, 10 in a graph."""

    def __init__(self, monkeypatch):
        self.replays = self.launches = 0

        def graph():
            begin = lambda pool: setattr(self, "launches", 0)  # noqa: E731
            replay = lambda: setattr(self, "replays", self.replays + 1)  # noqa: E731
            return types.SimpleNamespace(
                capture_begin=begin, capture_end=lambda: None, replay=replay
            )  # fmt: skip

        def event(enable_timing):
            made = types.SimpleNamespace(synchronize=lambda: None)
            made.record = lambda: setattr(made, "at", self.replays)
            made.elapsed_time = lambda end: (
                ((end.at - made.at) * self.launches * 10.0 or 30.0) / 1e3
            )  # fmt: skip
            return made

        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        for name, value in {
            "get_device_properties": lambda index: types.SimpleNamespace(L2_cache_size=50000),
            "current_device": lambda: 0, "current_stream": lambda: None, "CUDAGraph": graph,
            "synchronize": lambda: None, "graph_pool_handle": lambda: "pool", "Event": event,
            "Stream": lambda: stream, "stream": lambda stream: contextlib.nullcontext(),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        for name in ("operands", "integers"):
            made = getattr(operands, name)
            monkeypatch.setattr(bench, name, lambda case, device, made=made: made(case, "cpu"))

    def run(self, spoil=lambda c: None):
        def run(a, b, c):
            self.launches += 1
            torch.matmul(a, b, out=c)
            spoil(c)

        return run


def test_the_quick_bench_times_whole_cycles_over_more_than_l2_and_finds_what_is_wrong(monkeypatch):
    card = Card(monkeypatch)
    there = bench.Quick(CASE)
    size = 4 * (48 * 32 + 32 * 40 + 48 * 40)
    assert len(there.sets) == -(-4 * 50000 // size) == 11
    entrant = engine.admit(Competitor("x", card.run()), there, bench.QUICK)
    assert entrant.outcome == "measured" and entrant.worst == 0.0
    # 30 us, the host's part included, ask for 84 launches, so 88 a graph; 10 us for three replays.
    assert entrant.loop.launches == 3 * 88 and entrant.loop.seconds == pytest.approx(10e-6)
    card.launches = 88
    assert entrant.loop.time().seconds == pytest.approx(10e-6)
    entrant = engine.admit(Competitor("x", card.run(spoil_one), rung="x"), there, bench.QUICK)
    assert entrant.outcome == "wrong" and entrant.reason.startswith("1 of 1920 are wrong")


def test_what_hangs_ends_the_process_and_is_named_and_so_is_a_cuda_error(fakes, monkeypatch):
    text = (
        "import time; from perf.searches import watched\n"
        "with watched('quick', 30): pass\n"
        "with watched('pingpong on 1 x 1 x 1', 0.3): time.sleep(60)\n"
    )
    words = [sys.executable, "-c", text]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 3
    assert "pingpong on 1 x 1 x 1 HANGS: nothing came back in 0.3 s" in run.stderr

    def recover(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(FakeBench, "recover", recover)
    message = r"^raises 16x16x16 w4 s1 linear on 48 x 40 x 32 NT, .*: CUDA error: an illegal"
    with pytest.raises(RuntimeError, match=message):
        searched()


# The command


class FakeSearches:
    """In place of compiling and timing: what was found, or what is raised for a layout."""

    raises = None

    def __init__(self, tasks, workers=None):
        self.tasks = tasks

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def run(self, index, rng, say):
        task = self.tasks[index]
        if error := self.raises.get(task.case.layout):
            raise error
        return searches.search(task, FakeBench(task.case, TIMES), rng, say=say)


@pytest.fixture
def command(fakes, monkeypatch, tmp_path):
    del fakes[WRONG, SMALL], fakes[RAISES, SMALL]
    seconds = on_cpu(monkeypatch)
    monkeypatch.setattr(FakeSearches, "raises", {})
    (tmp_path / "mine.csv").write_text("M,N,K,layout,dtype\n48,40,32,NT,fp32\n40,48,32,NN,fp32\n")
    monkeypatch.chdir(tmp_path)
    for module in (search, regret):
        monkeypatch.setattr(module, "Searches", FakeSearches)
    return seconds


SHAPES = ("--file", "mine.csv")


def test_the_command_prints_and_records_every_problem(
    command, fakes, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "found.jsonl"
    assert __main__.main(["search", *SHAPES, "--out", str(path), "--all"]) == 0
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert first["environment"]["gpu"] == "NVIDIA H200"
    assert first["command"].startswith("python -m perf search --file mine.csv")
    assert len(lines) == 2 * 4 and sum(line["kernel"] == CUBLAS for line in lines) == 2
    out = capsys.readouterr().out
    assert f"[2/2] 40 x 48 x 32 NN, fp32 (ieee): of 3 the fastest is {NAMES[LARGE]}, " in out
    asked, problem = [], dataclasses.replace(random_problems(1, 3)[0], case=CASE)
    monkeypatch.setattr(search, "random_problems", lambda *of: asked.append(of) or [problem])
    assert __main__.main(["search", "--random", "2", "--seed", "3"]) == 0
    assert asked == [(2, 3)] and f"[1/1] {CASE}: " in capsys.readouterr().out
    fakes[WRONG, SMALL] = 0.4
    assert __main__.main(["search", *SHAPES]) == 1
    assert "WRONG: wrong 16x16x16" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RuntimeError("CUDA error: misaligned"), 3, "the search ends: CUDA error: misaligned"),
        (KeyboardInterrupt(), 130, ""),
        (torch.OutOfMemoryError("tried to allocate 2 TiB"), 0, "left out: tried to allocate"),
    ],
)
def test_errors_and_ctrl_c_keep_what_was_found(command, tmp_path, capsys, error, status, said):
    path, FakeSearches.raises = tmp_path / "found.jsonl", {"NN": error}
    words = ["search", *SHAPES, "--out", str(path)]
    assert __main__.main(words) == status
    assert len(path.read_text().splitlines()) == 1 + 3 + 1
    assert said in capsys.readouterr().err


# Regret


def race(key, group="one", **seconds):
    """A race of the choice and others, `seconds` each."""
    made, config = [], dataclasses.asdict(SMALL)
    for name, us in seconds.items():
        others = {n: flat(s / us) for n, s in seconds.items() if n != "auto"}
        same = {"experiment": "regret", "rung": "right", "config": config, "us": flat(us)}
        versus = others if name == "auto" else None
        made.append(row(key, group, 1.0, name, versus=versus, time=key, **same))
    return made


REGRETS = [
    *race("7-A", auto=1.2, x=1.0, y=1.1),
    *race("7-B", "two", auto=1.0, x=1.02, y=2.0),
    *race("8-C", auto=1.02, x=1.0),
]


def test_regret_is_the_choices_time_over_the_fastest_ones():
    found = {r.id: (r.value, r.best) for r in regret.regrets(REGRETS)}
    assert found == {"7-A": (pytest.approx(1.2), "x"), "8-C": (pytest.approx(1.02), "x"),
                     "7-B": (1.0, "x")}  # fmt: skip
    text = show.VIEWS["regret"].table(REGRETS, Selection())
    geomean = (1.2 * 1.02) ** (1 / 3)
    assert f"| all | 3 | {geomean:.4f} | 1.200 (7-A) | 2 | 2 | 1 |" in text
    assert "| 7-A | 64 x 64 x 64 NN, bf16 | 1.200 |" in text and "\n| 7-B" not in text


def test_regret_races_the_choice_the_best_of_the_search_and_cublas(command, monkeypatch, tmp_path):
    """The choice is 1.1 of the best."""
    command |= TIMES | {"auto": 2.2e-3}
    whole = types.SimpleNamespace(is_split=lambda operands: False)
    choice = types.SimpleNamespace(kernel=RIGHT, config=SWAPPED, problem=whole)
    monkeypatch.setattr(tritemm, "explain", lambda *operands, **options: choice)
    monkeypatch.setattr(tritemm, "matmul", lambda a, b, out, **options: torch.matmul(a, b, out=out))
    cases = [dataclasses.replace(CASE, M=M) for M in (48, 32, 16)]
    drawn = zip(random_problems(3, 11), cases, strict=True)
    made = [dataclasses.replace(problem, case=case) for problem, case in drawn]
    seeds = {5: made[:2], 6: made[2:]}
    monkeypatch.setattr(regret, "random_problems", lambda n, seed: seeds[seed][:n])
    words = "regret", "--n", "2", "--seed", "5,6", "--all"
    status, found = ran(tmp_path / "x.jsonl", *words)
    names = ["auto", NAMES[LARGE], NAMES[SMALL], "cublas"]
    assert status == 0 and [row.competitor for row in found] == names * 3
    assert [(row.id, row.case) for row in found[::4]] == [(p.id, p.case) for p in made]
    ours = found[0]
    assert ours.config == dataclasses.asdict(SWAPPED) and set(ours.versus) == set(names[1:3])
    regrets = regret.regrets(found)
    assert {r.best for r in regrets} == {NAMES[LARGE]}
    assert regrets[0].value == pytest.approx(1.1, rel=0.02)
