"""`python -m perf search | regret | repeat`: with stand-ins for the card, on the CPU."""

import dataclasses
import json
import random
import subprocess
import sys
import types

import pytest
import torch

import tritemm
from perf import (
    __main__,
    bench,
    engine,
    found,
    machine,
    quick,
    regret,
    repeat,
    roof,
    rows,
    search,
    search_parts,
    views,
)
from perf.case import Case
from perf.commands import regret as regret_command
from perf.commands import repeat as repeat_command
from perf.commands import search as search_command
from perf.found import CUBLAS, Found, Option, Result
from perf.machine import ROOT, State
from perf.problems import random_problems
from perf.search import Task
from perf.stats import Quantiles
from tritemm import dispatch
from tritemm.compile.asm import DEVICES
from tritemm.cost_model import samples
from tritemm.problem import INTERPRETED
from tritemm.spec import Config

from .perf_fakes import CASE, ENVIRONMENT, FakeBench, fake, four_gpus, heading, spoil_one

pytestmark = pytest.mark.host

H200 = DEVICES[90]


def refuses(c):
    raise RuntimeError("out of resources")


RIGHT, WRONG, RAISES = fake("k01_right"), fake("k02_wrong", spoil_one), fake("k03_raises", refuses)
SMALL, LARGE = Config(16, 16, 16), Config(32, 32, 16)
SWAPPED = dataclasses.replace(LARGE, SWAP=True, SPLIT_K=3)


@pytest.fixture
def fakes(monkeypatch):
    """A dispatcher of made-up rungs: what it predicts, in milliseconds, by rung and config."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    predicted = {
        (RIGHT, SMALL): 1.0, (RIGHT, LARGE): 2.5, (RIGHT, SWAPPED): 3.5,
        (WRONG, SMALL): 0.5, (RAISES, SMALL): 1.5,
    }  # fmt: skip
    seconds = predicted[RIGHT, SWAPPED] / 1e3
    chosen = types.SimpleNamespace(kernel=RIGHT, config=SWAPPED, predicted=seconds)

    def ranked(problem, kernel="auto"):
        return [(ms / 1e3, *candidate) for candidate, ms in predicted.items()]

    monkeypatch.setattr(dispatch, "choose", lambda problem, kernel="auto": chosen)
    monkeypatch.setattr(dispatch, "ranked", ranked)
    return predicted


NAMES = {
    SMALL: "right 16x16x16 w4 s1 linear",
    LARGE: "right 32x32x16 w4 s1 linear",
    SWAPPED: "right 32x32x16 w4 s1 linear split3 swap",
}
TIMES = {NAMES[SMALL]: 4e-3, NAMES[LARGE]: 2e-3, NAMES[SWAPPED]: 2.1e-3, CUBLAS: 1e-3}


def searched(within=None, times=TIMES, **given):
    task = Task.of(CASE, within=within)
    return search.search(task, FakeBench(CASE, times), random.Random(0), **given)


# What is searched


def test_candidates_are_the_dispatchers_least_predicted_first_with_its_choice(fakes):
    task = Task.of(CASE, within=3.0)
    assert [(o.kernel.name, o.predicted) for o in task.options] == [
        ("wrong", 0.5e-3), ("right", 1e-3), ("raises", 1.5e-3), ("right", 3.5e-3),
    ]  # fmt: skip
    assert task.chosen == NAMES[SWAPPED] == task.options[-1].name
    assert len(Task.of(CASE, within=None).options) == 5


def test_a_case_is_the_problem_that_matmul_has():
    case = Case(64, 48, 40, "TN", "fp16", out_dtype="fp32")
    problem = search.problem_of(case, H200)
    assert str(problem) == "64 x 48 x 40 TN, fp16 x fp16 -> fp32"
    assert problem.device == H200 and all(m.aligned for m in (problem.a, problem.b, problem.c))
    assert search.problem_of(Case(64, 48, 40, batch=5), H200).batch == 5


def test_the_real_dispatcher_can_be_searched():
    task = Task.of(Case(512, 512, 512, "NT"), device=H200, within=None)
    names = [option.name for option in task.options]
    assert len(set(names)) == len(names) > 3 and task.chosen in names
    asked = Task.of(Case(512, 512, 512, "NT"), "tma", device=H200)
    assert {option.kernel.name for option in asked.options} == {"tma"}


# What is found


def test_the_fastest_is_found_and_the_choice_placed(fakes):
    one = searched()
    assert [r.name for r in one.timed] == [NAMES[LARGE], NAMES[SWAPPED], NAMES[SMALL]]
    assert one.rank == 2 and one.choice.name == NAMES[SWAPPED]
    assert one.regret == pytest.approx(2.1 / 2, rel=0.05)
    assert one.cublas.seconds == pytest.approx(1e-3, rel=0.2)


def test_what_is_wrong_or_fails_has_no_time_and_is_named(fakes):
    said = []
    one = searched(broken={NAMES[SMALL]: "needs 300000 bytes"}, say=said.append)
    errors = {r.name: r.error for r in one.failures}
    assert errors[NAMES[SMALL]] == "failed: needs 300000 bytes"
    assert errors["wrong 16x16x16 w4 s1 linear"].startswith("wrong: ")
    assert errors["raises 16x16x16 w4 s1 linear"] == "failed: RuntimeError: out of resources"
    assert len(said) == 1 and said[0].startswith("  WRONG: wrong 16x16x16")
    assert [r.name for r in one.timed] == [NAMES[LARGE], NAMES[SWAPPED]]


def test_a_choice_without_a_time_has_no_regret(fakes):
    one = searched(broken={NAMES[SWAPPED]: "no"})
    assert (one.choice, one.rank, one.regret) == (None, None, None)
    assert f"the choice has no time: {NAMES[SWAPPED]}" in found.text(one)


def test_the_hopeless_are_timed_once_more_and_the_near_often(fakes, monkeypatch):
    taken = {}
    real = FakeBench.loop

    def loop(self, competitor):
        made = real(self, competitor)
        name = competitor.name

        def time():
            taken[name] = taken.get(name, 0) + 1
            return made.time()

        return dataclasses.replace(made, time=time)

    monkeypatch.setattr(FakeBench, "loop", loop)
    slow = 1e-3 * (search.HOPELESS + 1)
    one = searched(times=TIMES | {NAMES[SMALL]: slow, NAMES[LARGE]: 1e-3})
    assert taken[NAMES[SMALL]] == 1
    found_slow = next(r for r in one.timed if r.name == NAMES[SMALL]).seconds
    assert found_slow == pytest.approx(slow, rel=0.1)
    assert taken[NAMES[LARGE]] == taken[CUBLAS] == search.PASSES + search.FINALS
    assert taken[NAMES[SWAPPED]] == search.PASSES + search.FINALS  # the choice


def test_what_stalled_as_it_was_made_ready_is_timed_like_others(fakes, monkeypatch):
    real = FakeBench.loop

    def loop(self, competitor):
        made = real(self, competitor)
        stalled = competitor.name == NAMES[LARGE]
        return dataclasses.replace(made, seconds=1.0) if stalled else made

    monkeypatch.setattr(FakeBench, "loop", loop)
    one = searched()
    large = next(r for r in one.timed if r.name == NAMES[LARGE]).seconds
    assert large == pytest.approx(TIMES[NAMES[LARGE]], rel=0.1)


def test_times_before_the_clock_has_settled_are_scaled_and_say_so(fakes, monkeypatch):
    """Of the two that are in the finals, settled times count, here three times as long."""
    monkeypatch.setattr(search, "HUNGRY", 0.0)
    monkeypatch.setattr(search, "FINALISTS", 1)
    monkeypatch.setattr(search, "_settled", lambda loop: 3 * loop.seconds)
    one = searched()
    assert {r.name for r in one.results if r.scaled} == {NAMES[SMALL], NAMES[LARGE]}
    for name, seconds in TIMES.items():
        (result,) = (r for r in one.results if r.name == name)
        assert result.seconds == pytest.approx(3 * seconds, rel=0.2)
        assert json.loads(found.to_json(CASE, result)).get("scaled", False) == result.scaled


def test_lines_are_compact_and_whole(fakes):
    one = searched()
    lines = {r.name: json.loads(found.to_json(CASE, r)) for r in one.results}
    line = lines[NAMES[SWAPPED]]
    assert line["config"] == {
        "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16, "SPLIT_K": 3, "SWAP": True,
    }  # fmt: skip
    assert Config(**line["config"]) == SWAPPED
    shared = {"M": 48, "N": 40, "K": 32, "batch": 1, "layout": "NT", "dtype": "fp32", "out": "fp32"}
    assert shared.items() <= line.items() and line["precision"] == "ieee"
    assert line["predicted_us"] == 3500 and line["us"] == pytest.approx(2100, rel=0.1)
    assert (lines[CUBLAS]["kernel"], lines[CUBLAS]["config"]) == (CUBLAS, {})
    assert lines[CUBLAS]["predicted_us"] is None
    assert lines["raises 16x16x16 w4 s1 linear"]["us"] is None
    assert "error" in lines["raises 16x16x16 w4 s1 linear"] and "error" not in line


def test_the_text_has_the_best_cublas_and_the_choice(fakes):
    lines = found.text(searched(), best=1).splitlines()
    assert lines[0].split()[0] == "1" and NAMES[LARGE] in lines[0] and "predicted" in lines[0]
    assert lines[1].split()[0] == CUBLAS and "predicted" not in lines[1]
    assert lines[2].split()[0] == "2" and NAMES[SWAPPED] in lines[2]
    assert lines[3].strip().startswith("the choice is number 2, 1.0")
    assert lines[4].strip() == "2 without a time, of 5"


# The quick bench


@pytest.mark.parametrize(
    "case",
    [
        Case(40, 24, 56, "TN"),
        Case(40, 24, 56, "NT", "fp16", "fp16"),
        Case(40, 24, 56, "NN", "int8", "int32"),
        Case(40, 24, 56, "NN", "fp16", batch=3, out_dtype="fp32"),
        Case(40, 24, 56, "NN", "fp64", "fp64"),
    ],
)
def test_products_of_small_integers_are_exact(case):
    (a, b, c), want = quick.integers(case, "cpu")
    assert want.dtype == c.dtype and want.shape == c.shape
    c.copy_(torch.matmul(a.double(), b.double()))
    assert quick.exactly(c, want).ok
    c[..., -1, 2] += 1
    verdict = quick.exactly(c, want)
    assert not verdict.ok and f"of {c.numel()} are wrong; at" in verdict.message
    if c.is_floating_point():
        c[..., -1, 2] = torch.nan
        assert not quick.exactly(c, want).ok


def test_a_watched_the_process_and_is_named():
    text = (
        "import time; from perf.quick import watched\n"
        "with watched('quick', 30): pass\n"
        "with watched('pingpong on 1 x 1 x 1', 0.3): time.sleep(60)\n"
    )
    words = [sys.executable, "-c", text]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 3
    assert "pingpong on 1 x 1 x 1 HANGS: nothing came back in 0.3 s" in run.stderr


class FakeGraph:
    """Counts the replays."""

    replays = 0

    def capture_begin(self, pool):
        assert pool == "pool"
        FakeGraph.us["launches"] = 0

    def capture_end(self):
        assert FakeGraph.us["launches"] > 0

    def replay(self):
        FakeGraph.replays += 1


@pytest.fixture
def card(monkeypatch):
    """As much of torch.cuda as a bench needs, on the CPU; a launch takes `us` microseconds."""
    import contextlib

    us = FakeGraph.us = {"eager": 30.0, "graph": 10.0, "launches": 0}

    class Event:
        def record(self):
            self.at = FakeGraph.replays

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            launches = (other.at - self.at) * us["launches"]
            return (launches * us["graph"] if launches else us["eager"]) / 1e3

    fakes = {
        "get_device_properties": lambda index: types.SimpleNamespace(L2_cache_size=50000),
        "current_device": lambda: 0, "current_stream": lambda: None,
        "synchronize": lambda: None, "graph_pool_handle": lambda: "pool", "Event":
        lambda enable_timing: Event(), "CUDAGraph": FakeGraph,
        "Stream": lambda: types.SimpleNamespace(wait_stream=lambda other: None),
        "stream": lambda stream: contextlib.nullcontext(),
    }  # fmt: skip
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for module in (bench, quick):
        made = module.operands
        monkeypatch.setattr(module, "operands", lambda case, device, made=made: made(case, "cpu"))
    integers = quick.integers
    monkeypatch.setattr(quick, "integers", lambda case, device: integers(case, "cpu"))
    return us


def test_the_quick_bench_times_whole_cycles_over_more_than_l2(card):
    there = quick.Quick(CASE)
    size = 4 * (48 * 32 + 32 * 40 + 48 * 40)
    assert len(there.sets) == -(-4 * 50000 // size) == 11

    def run(a, b, c):
        card["launches"] += 1
        torch.matmul(a, b, out=c)

    entrant = engine.admit(engine.Competitor("x", run), there, quick.PLAN)
    assert entrant.outcome == "measured" and entrant.worst == 0.0
    # 30 us, the host's part included, ask for 84 launches, so 88 a graph; 10 us for three replays.
    assert entrant.loop.launches == 3 * 88
    assert entrant.loop.seconds == pytest.approx(10e-6)
    card["launches"] = 88
    assert entrant.loop.time().seconds == pytest.approx(10e-6)


def test_the_quick_bench_finds_a_wrong_product(card):
    there = quick.Quick(CASE)

    def run(a, b, c):
        card["launches"] += 1
        torch.matmul(a, b, out=c)
        c[0, 0] += 1

    competitor = engine.Competitor("x", run, rung="x")
    entrant = engine.admit(competitor, there, quick.PLAN)
    assert entrant.outcome == "wrong" and entrant.reason.startswith("1 of 1920 are wrong")


def test_a_cuda_error_says_whose_it_is(fakes, monkeypatch):
    def recover(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(FakeBench, "recover", recover)
    message = r"^raises 16x16x16 w4 s1 linear on 48 x 40 x 32 NT, .*: CUDA error: an illegal"
    with pytest.raises(RuntimeError, match=message):
        searched()


@pytest.mark.gpu
@pytest.mark.xdist_group("perf")
def test_a_card_is_searched():
    """Compiled ahead, checked and timed; the dispatcher's choice is among what was timed."""
    tasks = [Task.of(Case(512, 768, 1024, "NT")), Task.of(Case(3, 200, 300, "TN", "fp16"))]
    said = []
    with search.Searches(tasks, 4) as searches:
        for index, task in enumerate(tasks):
            one = searches.run(index, random.Random(0), said.append)
            assert len(one.results) == len(task.options) + 1
            assert one.choice and one.cublas and 1 <= one.regret < 10
            assert not [r for r in one.failures if r.error.startswith("wrong")]
    assert said == []


# The command


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize("name", ["search", "regret", "repeat"])
def test_without_a_gpu_the_command_says_so(name, capsys):
    assert __main__.main([name]) == 2
    expected = f"python -m perf {name} needs a CUDA device, and torch sees none\n"
    assert capsys.readouterr() == ("", expected)


def parsed(*words):
    args = __main__.parser().parse_args(words)
    args.argv = list(words)
    return args


def test_problems_are_the_suites_random_ones_or_shapes():
    wanted = lambda *words: search_command.wanted(parsed("search", *words))  # noqa: E731
    assert len(wanted()) == 75
    assert {case.layout for case in wanted("--id", "P1")} == {"NT"}
    assert wanted("--random", "5", "--seed", "3") == [p.case for p in random_problems(5, 3)]
    shapes = wanted("--shape", "64,32,16,tn", "--shape", "4,5,6", "--dtype", "int8")
    assert shapes == [
        Case(64, 32, 16, "TN", "int8", "int32"), Case(4, 5, 6, "NN", "int8", "int32"),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["64,32", "64,32,0,NT", "64,32,16,XX", "1,2,3,4,NN", ""])
def test_what_is_no_shape_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        parsed("search", "--shape", text)
    assert "argument --shape" in capsys.readouterr().err


class FakeSearches:
    """In place of compiling and timing: what was found, or what is raised."""

    def __init__(self, tasks, workers=None):
        self.tasks = tasks

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass

    def run(self, index, rng, say):
        task = self.tasks[index]
        return search.search(task, FakeBench(task.case, TIMES), rng, say=say)


@pytest.fixture
def command(fakes, monkeypatch):
    del fakes[WRONG, SMALL], fakes[RAISES, SMALL]
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    for module in (search_command, regret_command, repeat_command):
        monkeypatch.setattr(module, "unable", lambda command: None)
    for module in (search_command, regret_command):
        monkeypatch.setattr(module, "Searches", FakeSearches)
    return FakeSearches


SHAPES = ("--shape", "48,40,32,NT", "--shape", "40,48,32,NN", "--dtype", "fp32")


def test_the_command_prints_and_records_every_problem(command, tmp_path, capsys):
    path = tmp_path / "found.jsonl"
    assert __main__.main(["search", *SHAPES, "--out", str(path), "--all"]) == 0
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert first["environment"]["gpu"] == "NVIDIA H200"
    assert first["command"].startswith("python -m perf search --shape 48,40,32,NT")
    assert len(lines) == 2 * 4 and sum(line["kernel"] == CUBLAS for line in lines) == 2
    out = capsys.readouterr().out
    assert "[2/2] 40 x 48 x 32 NN, fp32 (ieee): 3 candidates" in out
    assert (
        "2 problems: the choice takes 1.0" in out and "cuBLAS's time over the choice's: 0." in out
    )


def test_a_wrong_result_is_the_status(command, fakes, capsys):
    fakes[WRONG, SMALL] = 0.4
    assert __main__.main(["search", *SHAPES]) == 1
    assert "WRONG: wrong 16x16x16" in capsys.readouterr().err


def test_the_limit_a_cuda_error_and_ctrl_c_keep_what_was_found(
    command, monkeypatch, tmp_path, capsys
):
    path = tmp_path / "found.jsonl"
    words = ["search", *SHAPES, "--out", str(path)]
    assert __main__.main([*words, "--limit", "1e-9"]) == 0
    captured = capsys.readouterr()
    assert "2 problems are left" in captured.err and "nothing was timed" in captured.out
    for error, status in ((RuntimeError("CUDA error: misaligned"), 3), (KeyboardInterrupt(), 130)):
        path.unlink()
        real = FakeSearches.run

        def run(self, index, rng, say, real=real, error=error):
            if index == 1:
                raise error
            return real(self, index, rng, say)

        with monkeypatch.context() as patch:
            patch.setattr(FakeSearches, "run", run)
            assert __main__.main(words) == status
        assert len(path.read_text().splitlines()) == 1 + 3 + 1
        assert "1 problems: the choice takes" in capsys.readouterr().out


def timeless(line):
    return {key: value for key, value in line.items() if key not in ("us", "time")}


def test_a_shared_search_leaves_the_lines_of_one_process(command, monkeypatch, tmp_path, capsys):
    """Three problems on two cards, the third of them the first's."""
    four_gpus(monkeypatch)
    monkeypatch.setattr(search_parts, "find", lambda name: RIGHT)
    alone, shared = tmp_path / "alone.jsonl", tmp_path / "shared.jsonl"
    words = ["search", *SHAPES, "--shape", "16,32,48,TT"]
    assert __main__.main([*words, "--out", str(alone)]) == 0
    before = capsys.readouterr().out
    assert __main__.main([*words, "--gpus", "2", "--out", str(shared)]) == 0
    told = capsys.readouterr()
    (head, *expected), (first, *lines) = (
        [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        for path in (alone, shared)
    )
    assert first == head | {"command": first["command"]}
    assert first["command"].endswith("--gpus 2 --out shared.jsonl")
    assert len(lines) == len(expected) == 3 * 4
    for at in (0, 4, 8):  # within a problem the fastest comes first: that may differ
        assert all(line in expected[at : at + 4] for line in lines[at : at + 4])
    titles = lambda text: [line for line in text.splitlines() if line.startswith("[")]  # noqa: E731
    assert [t.rpartition(",")[0] for t in titles(told.out)] == [
        t.rpartition(",")[0] for t in titles(before)
    ]
    assert "3 problems: the choice takes 1.0" in told.out
    assert "[2/2] 16 x 32 x 48 TT" in told.err and "[1/1] 40 x 48 x 32 NN" in told.err
    assert samples.read([shared], H200) == []  # no rung is called "right", but every line is one
    assert sorted(tmp_path.iterdir()) == [alone, shared]


def test_what_is_wrong_or_fails_in_a_shared_search_is_the_status(
    command, fakes, monkeypatch, capsys
):
    four_gpus(monkeypatch)
    monkeypatch.setattr(search_parts, "find", {"right": RIGHT, "wrong": WRONG}.__getitem__)
    words = ["search", *SHAPES, "--gpus", "2"]
    with monkeypatch.context() as patch:
        patch.setitem(fakes, (WRONG, SMALL), 0.4)
        assert __main__.main(words) == 1
    assert "FAILED" not in capsys.readouterr().err
    real = FakeSearches.run

    def run(self, index, rng, say):
        if self.tasks[index].case.layout == "NN":
            raise RuntimeError("CUDA error: misaligned")
        return real(self, index, rng, say)

    monkeypatch.setattr(FakeSearches, "run", run)
    assert __main__.main(words) == 3
    captured = capsys.readouterr()
    assert "gpu 1 FAILED: its status is 3" in captured.err
    assert "1 problems: the choice takes" in captured.out


def test_a_problem_that_does_not_fit_is_left_out(command, monkeypatch, capsys):
    real = FakeSearches.run

    def run(self, index, rng, say):
        if index == 0:
            raise torch.OutOfMemoryError("tried to allocate 200 GiB")
        return real(self, index, rng, say)

    monkeypatch.setattr(FakeSearches, "run", run)
    assert __main__.main(["search", *SHAPES]) == 0
    captured = capsys.readouterr()
    assert "48 x 40 x 32 NT, fp32 (ieee): left out: tried to allocate" in captured.err
    assert "[2/2]" in captured.out


# Regret


def regret_rows(key, seconds, group="one", choice="auto"):
    """A race of the choice and two others, `seconds` each."""
    shared = vars(heading(Case(64, 64, 64), experiment="regret", run="2026-01-02T00:00:00"))
    shared |= {"problem": {"id": key, "class": group, "name": "random"}, "time": key}
    config = dataclasses.asdict(SMALL)
    made = []
    for name, us in seconds.items():
        others = {n: Quantiles(*[s / us] * 3) for n, s in seconds.items() if n != choice}
        made.append(
            rows.Row(
                **shared, competitor=name, rung="right", number=1, config=config,
                outcome="measured", us=Quantiles(us, us, us), ratio=Quantiles(1, 1, 1),
                versus=others if name == choice else None,
            )
        )  # fmt: skip
    return made


REGRETS = [
    *regret_rows("A", {"auto": 1.2, "x": 1.0, "y": 1.1}),
    *regret_rows("B", {"auto": 1.0, "x": 1.02, "y": 2.0}, "two"),
    *regret_rows("C", {"auto": 1.02, "x": 1.0}),
]


def test_regret_is_the_choices_time_over_the_fastest_ones():
    found = {r.choice.problem["id"]: r for r in regret.regrets(REGRETS)}
    assert found["A"].value == pytest.approx(1.2) and found["A"].best.competitor == "x"
    assert found["B"].value == 1.0 and found["B"].best is found["B"].choice
    assert found["C"].value == pytest.approx(1.02)


def test_the_regret_table_is_the_view(capsys):
    view = views.TABLES["regret"]
    (chosen,) = view.chosen(REGRETS, views.Selection())
    text = view.table(chosen, views.Selection())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "| two | 1 | 1.0000 | 1.000 (B) | 1 | 1 | 1 |" in lines
    geomean = (1.2 * 1.02) ** (1 / 3)
    assert f"| all | 3 | {geomean:.4f} | 1.200 (A) | 2 | 2 | 1 |" in lines
    assert "| A | 64 x 64 x 64 NN, bf16 | 1.200 |" in text
    assert not any(line.startswith("| B") for line in lines)
    assert "1.200 (A)" in regret.text(REGRETS)
    assert view.chosen([], views.Selection()) is None


@pytest.fixture
def racing(command, monkeypatch):
    """The cases of the random problems; the fake dispatcher's choice is 1.1 of the best."""
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0))
    monkeypatch.setattr(roof, "measure", lambda probe: None)
    seconds = TIMES | {"auto": 2.2e-3}
    make = lambda case, plan, probe: FakeBench(case, seconds)  # noqa: E731
    monkeypatch.setattr(bench, "BENCHES", {"sustained": make})
    choice = types.SimpleNamespace(kernel=RIGHT, config=SWAPPED)
    monkeypatch.setattr(tritemm, "explain", lambda *operands, **options: choice)
    monkeypatch.setattr(tritemm, "matmul", lambda a, b, out, **options: torch.matmul(a, b, out=out))
    cases = [dataclasses.replace(CASE, M=M) for M in (48, 32, 16)]
    drawn = zip(random_problems(3, 11), cases, strict=True)
    made = [dataclasses.replace(problem, case=case) for problem, case in drawn]
    monkeypatch.setattr(regret_command, "random_problems", lambda n, seed: made[:n])
    return cases


def test_regret_races_the_choice_the_best_of_the_search_and_cublas(racing, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    assert __main__.main(["regret", "--n", "1", "--out", str(path), "--all"]) == 0
    found = {row.competitor: row for row in rows.read(path)}
    assert list(found) == ["auto", NAMES[LARGE], NAMES[SMALL], "cublas"]
    assert found["auto"].config == dataclasses.asdict(SWAPPED) and found["auto"].rung == "right"
    assert found["auto"].experiment == "regret" and found["auto"].problem["id"] == "11-0"
    assert set(found["auto"].versus) == {NAMES[LARGE], NAMES[SMALL]}
    (one,) = regret.regrets(list(found.values()))
    assert one.best.competitor == NAMES[LARGE] and one.value == pytest.approx(1.1, rel=0.02)
    assert "1.1" in capsys.readouterr().out


def test_a_shared_regret_is_judged_from_all_rows(racing, monkeypatch, tmp_path, capsys):
    """Races of several cards can begin in one second: their rows stay apart."""
    four_gpus(monkeypatch)
    path = tmp_path / "rows.jsonl"
    assert __main__.main(["regret", "--n", "3", "--gpus", "2", "--out", str(path), "--all"]) == 0
    made = rows.read(path)
    assert [row.problem["id"] for row in made[::4]] == ["11-0", "11-1", "11-2"]
    assert [row.case for row in made[::4]] == racing
    assert len({row.time for row in made}) == 3 and len({row.run for row in made}) == 1
    found = regret.regrets(made)
    assert [(r.choice.case, r.best.case) for r in found] == [(case, case) for case in racing]
    assert capsys.readouterr().out == f"{regret.text(made)}\n"


# Repeat


def test_problems_to_repeat_are_of_every_kind_first():
    kinds = lambda case: (case.layout, case.dtype == "fp16", False, "")  # noqa: E731
    cases = repeat.problems(20, 0, kinds)
    assert len(cases) == len(set(cases)) == 20
    assert len({kinds(case) for case in cases[:8]}) == 8
    assert all(case.flops <= repeat.FLOPS for case in cases)


@pytest.fixture
def interpreted():
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")


HALF = Case(24, 40, 32, "NT", "fp16")


def test_a_product_has_one_pattern(interpreted):
    calls = []
    assert repeat.repeated(HALF, 5, lambda: calls.append(1), "cpu") == 0
    assert len(calls) == 4


def test_a_bit_that_differs_is_counted(interpreted, monkeypatch):
    real, count = tritemm.matmul, {"n": 0}

    def matmul(a, b, out, **options):
        real(a, b, out=out, **options)
        count["n"] += 1
        if count["n"] in (3, 5):
            out[1, 2] = torch.nextafter(out[1, 2], torch.tensor(9.0, dtype=out.dtype))
        return out

    monkeypatch.setattr(repeat.tritemm, "matmul", matmul)
    assert repeat.repeated(HALF, 6, lambda: None, "cpu") == 2


def test_rows_are_compared_over_every_m(interpreted, monkeypatch):
    assert repeat.invariant(24, 32, range(1, 6), "cpu", torch.float16) == []

    def matmul(a, b, **options):
        assert options == {"batch_invariant": True}
        return torch.matmul(a, b) + (a.shape[0] == 3)

    monkeypatch.setattr(repeat.tritemm, "matmul", matmul)
    assert repeat.invariant(24, 32, range(1, 6), "cpu", torch.float16) == [3]


def test_repeat_prints_a_line_each_and_its_status(command, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(repeat_command, "Disturbance", lambda seed: lambda: None)
    monkeypatch.setattr(repeat_command, "problems", lambda count, seed: [HALF])
    monkeypatch.setattr(repeat_command, "LAYERS", ((24, 32),))
    differ = {"repeat": 0, "rows": []}
    monkeypatch.setattr(repeat_command, "repeated", lambda *given: differ["repeat"])
    monkeypatch.setattr(repeat_command, "invariant", lambda *given: differ["rows"])
    path = tmp_path / "repeat.jsonl"
    words = ["repeat", "--repetitions", "7", "--rows", "9", "--out", str(path)]
    assert __main__.main(words) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("24 x 40 x 32 NT, fp16") and "7 repetitions: one pattern" in first
    assert "right, K split, swapped" in first
    assert second.startswith("1 ... 9 x 24 x 32 NT") and second.endswith("every row the same")
    heads = [json.loads(line) for line in path.read_text().splitlines()]
    assert "environment" in heads[0] and heads[1]["differ"] == 0 and heads[2]["rows"] == 9
    differ["rows"] = [3, 4]
    assert __main__.main(words) == 1
    assert "DIFFERS at 2 M: [3, 4]" in capsys.readouterr().out
    differ |= {"rows": [], "repeat": 5}
    assert __main__.main(words) == 1
    assert "5 DIFFER from the first" in capsys.readouterr().out


# Names


def test_a_config_is_named_by_all_it_has():
    option = Option(RIGHT, dataclasses.replace(SWAPPED, PACK="ab", ORDER="grouped", CLUSTER=2), 1.0)
    assert option.name == "right 32x32x16 w4 s1 grouped16 split3 cluster2 swap pack-ab"
    assert Option(None, None, None).name == CUBLAS
    empty = Found(CASE, (Result(option, None, "failed: x"),), option.name)
    assert empty.timed == [] and empty.cublas is None and empty.regret is None
