"""`tools/stress.py`: what it calls a hang, a race, a wrong result; its trials, on the CPU."""

import contextlib
import dataclasses
import itertools
import queue
import signal
import subprocess
import sys

import pytest
import torch

from tests.harness import DEVICE
from tools import sanitize, stress, stressed
from tritemm.compile.asm import DEVICES
from tritemm.problem import INTERPRETED, INTERPRETER
from tritemm.rungs import RUNGS
from tritemm.spec import Config, find

pytestmark = [pytest.mark.host, pytest.mark.once]

H200 = DEVICES[90]
#: A rung with descriptors that runs in the interpreter too.
RUNG = "persistent"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_it_says_what_it_needs():
    words = [sys.executable, "tools/stress.py", "--tiny"]
    run = subprocess.run(words, cwd=stress.ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr == "stress: needs a CUDA device of sm_90 or newer, and torch sees none\n"


# The parent, with stand-ins for children

CHILD = """
import os, sys, time
start = int(sys.argv[3])
print("ready", flush=True)
for index in range(start, 6):
    print("begin", index, flush=True)
    if index == 1:
        print("bad", index, "3 of 4 elements are wrong", flush=True)
    elif index == 2 and "hang" in sys.argv[2]:
        time.sleep(60)
    elif index == 4 and "die" in sys.argv[2]:
        print("Assertion `Buffer being accessed has outstanding writes.` failed", file=sys.stderr)
        os._exit(7)
    else:
        print("ok", index, flush=True)
"""
TRIALS = [f"trial {index}" for index in range(6)]


@pytest.fixture
def child(tmp_path, monkeypatch):
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    monkeypatch.setattr(stress, "CHILD", path)
    return path


def test_what_is_wrong_hangs_or_dies_is_named_and_the_next_trials_run(child):
    found = stress.stress(stress.Check("tiny", 1.5), "hang-and-die", TRIALS, 0)
    assert len(found) == 3
    assert found[0] == "trial 1\n        3 of 4 elements are wrong"
    assert found[1] == "trial 2\n        HANG: no word for 1.5 s"
    assert found[2].startswith("trial 4\n        ended with status 7")
    assert "Buffer being accessed has outstanding writes" in found[2]


def test_who_interrupts_it_ends_the_child_too(child, monkeypatch):
    """Or a kernel that hangs would keep the GPU from what is measured next."""
    started = []

    class Interrupted(queue.Queue):
        def get(self, *args, **kwargs):
            line = super().get(*args, **kwargs)
            if line.startswith("begin 2"):
                raise KeyboardInterrupt
            return line

    class Popen(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(stress.queue, "Queue", Interrupted)
    monkeypatch.setattr(subprocess, "Popen", Popen)
    with pytest.raises(KeyboardInterrupt):
        stress.stress(stress.Check("tiny", 50), "hang", TRIALS, 0)
    assert started[0].wait(timeout=10) == -signal.SIGKILL


def test_a_child_that_does_not_start_is_a_finding(child):
    child.write_text("raise ValueError('no such rung')")
    (found,) = stress.stress(stress.Check("tiny", 20), "any", TRIALS, 0)
    assert found.startswith("any: before its first trial\n        ended with status 1")
    assert "no such rung" in found


RACES = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Read access at {kernel}+0xf0 in {file}:{line}
=========     and Write access at {kernel}+0xd980 in {file}:{last} [3 hazards]
========= Error: Race reported between {second}
=========     and Write access at {kernel}+0xa0b0 in {file}:{write} [8 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


@pytest.mark.parametrize("kernel", [k.fn.__name__ for k in stressed.by_hand()] + ["control_kernel"])
def test_races_of_the_dispatch_of_roles_are_told_from_others(kernel):
    """Their reads are where the kernel begins, in machine code and in its file."""
    file, own = stressed.lines_of_kernels()[kernel]
    line, last = own[0], own[-1]
    words = {"kernel": kernel, "file": file, "line": line, "last": last}

    def passes(second, status=9, write=last):
        lines = RACES.format(second=second, write=write, **words).splitlines()
        return stress.only_dispatch_races(stress.End("", status, lines))

    assert passes(f"Read access at {kernel}+0x1a0 in {file}:{line}")
    assert not passes(f"Read access at {kernel}+0x1a0 in {file}:{line}", status=1)
    assert not passes(f"Read access at {kernel}+0x1a0 in {file}:{line + 1}")
    assert not passes(f"Read access at {kernel}+0x11a0 in {file}:{line}")
    assert not passes(f"Write access at {kernel}+0x1a0 in {file}:{line}")
    for role in (line - 1, last + 1):
        assert not passes(f"Read access at {kernel}+0x1a0 in {file}:{line}", write=role)
    assert not stress.only_dispatch_races(stress.End("", 9, ["========= Error: Out of memory"]))


def test_the_control_says_what_racecheck_may_report(monkeypatch, capsys):
    file, own = stressed.lines_of_kernels()["control_kernel"]
    race = f"Read access at control_kernel+0xf0 in {file}:{own[0]}"
    places = {"line": own[0], "last": own[-1], "write": own[0]}
    text = RACES.format(kernel="control_kernel", file=file, second=race, **places)
    ends = [None, stress.End("", 9, text.splitlines()), stress.End("HANG", -9, [])]
    monkeypatch.setattr(stress, "watch", lambda check, words: (None, ends.pop(0), []))
    check = stress.Check("racecheck", 20)
    passed = [stress.with_control(check).dispatch_races for _ in range(3)]
    assert passed == [False, True, False]
    assert [out.rpartition(": ")[2] for out in capsys.readouterr().out.splitlines()] == [
        "not reported", "reported, and let pass", "HANG",
    ]  # fmt: skip


# Trials


def test_every_config_and_layout_is_tried_on_several_tiles_and_steps():
    kernel = find(RUNG, RUNGS)
    trials = stressed.tiny(kernel, H200)
    assert {t.layout for t in trials} == set(stressed.LAYOUTS)
    assert {t.config.SWAP for t in trials} == {False, True}
    assert {t.sms for t in trials} == {0, *stressed.FEW_SMS}
    assert {t.gap for t in trials} == {0, 1} and {t.batch for t in trials} == {1, 3}
    for trial in trials:
        problem = trial.of_meta(H200)
        view = trial.config.view(problem)
        assert trial.config.tiles(view) >= 9 * trial.batch
        assert view.K > 5 * trial.config.BLOCK_K and view.K % trial.config.BLOCK_K
        assert problem.layout == trial.layout and problem.device.sms == (trial.sms or H200.sms)
    for layout in stressed.LAYOUTS:
        own = {t.config for t in trials if t.layout == layout}
        assert own >= set(stressed.configs(kernel, layout, stressed.TYPES[0], H200))


def test_some_of_the_trials_are_from_all_over():
    every = stressed.trials_of("tiny", RUNG, H200, 0, 0)
    some = stressed.trials_of("tiny", RUNG, H200, 7, 0)
    places = [every.index(trial) for trial in some]
    assert len(some) == 7 and places[0] == 0 and places[-1] > len(every) * 2 // 3
    for words, count in ((["--tiny"], 0), (["--tiny", "7"], 7)):
        (check,), missing = stress.checks(stress.parse(words))
        assert check.count == count and missing is None


def test_random_trials_are_the_seeds_and_few_kernels():
    kernel = find(RUNG, RUNGS)
    trials = list(stressed.many(kernel, H200, 300, 3))
    assert trials == list(stressed.many(kernel, H200, 300, 3))
    assert trials != list(stressed.many(kernel, H200, 300, 4))
    assert len({(t.config, t.layout, t.dtype, t.out) for t in trials}) <= 12
    sizes = [(t.M, t.N, t.K) for t in trials]
    assert all(len({n % 16 == 0 for n in size}) == 1 for size in sizes)
    assert max(M for M, _, _ in sizes) > 600 > 8 > min(M for M, _, _ in sizes)


# Inside a child, with a rung that is interpreted

ONE = stressed.Trial(
    RUNG, Config(32, 32, 32, ORDER="grouped"), 75, 88, 104, "NT", torch.float16, torch.float16
)


@pytest.fixture
def on_cpu(monkeypatch):
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self.clone())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def plant(monkeypatch, bug):
    """What a launch does to C besides; `bug(problem, c)`."""
    right = stressed.plan.run

    def run(kernel, problem, config, a, b, c):
        right(kernel, problem, config, a, b, c)
        bug(problem, c)

    monkeypatch.setattr(stressed.plan, "run", run)


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (lambda c: c[-1, -1].add_(1), "1 of 6600 elements are wrong"),
        (lambda c: c[3, 5].fill_(torch.nan), "1 of 6600 elements are wrong"),
        (lambda c: c.as_strided(c.shape, c.stride(), 1)[0, -1].fill_(0), "wrote between C's rows"),
    ],
)
def test_what_a_kernel_does_wrong_is_told(on_cpu, monkeypatch, bug, message):
    """And nothing of one that is right."""
    trial = dataclasses.replace(ONE, gap=1)
    assert stressed.run_one(trial, INTERPRETER) is None
    plant(monkeypatch, lambda problem, c: bug(c))
    assert stressed.run_one(trial, INTERPRETER).startswith(message)


def test_launches_are_compared_with_exact_sums(on_cpu, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    for name in ("randint", "full"):
        make = getattr(torch, name)
        here = lambda *args, make=make, **kw: make(*args, **kw | {"device": DEVICE})  # noqa: E731
        monkeypatch.setattr(torch, name, here)
    kinds = itertools.product(stressed.LAYOUTS, (0, 1))
    trials = [dataclasses.replace(ONE, layout=layout, gap=gap) for layout, gap in kinds]
    stressed.run_many(trials, 0, INTERPRETER)
    assert capsys.readouterr().out == "begin 0\nok 7\n"
    plant(monkeypatch, lambda problem, c: c[1, 2].add_(problem.layout == "TN"))
    stressed.run_many(trials, 0, INTERPRETER)
    wrong = "not the exact sums of small integers"
    assert capsys.readouterr().out == f"begin 0\nbad 4 {wrong}\nbad 5 {wrong}\nok 7\n"


# Which checks


def asked(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["stress.py", *words])
    return stress.checks(stress.parse())


def test_without_options_all_checks_are_made_but_those_of_a_sanitizer_that_is_missing(monkeypatch):
    def find_sanitizer(root):
        raise RuntimeError("compute-sanitizer was not found")

    monkeypatch.setattr(sanitize, "find_sanitizer", find_sanitizer)
    found, missing = asked(monkeypatch)
    assert [c.name for c in found] == ["tiny", "launches", "consan"]
    assert missing == "compute-sanitizer was not found"
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda root: "/x/compute-sanitizer")
    found, missing = asked(monkeypatch)
    assert [c.name for c in found] == ["tiny", "launches", "consan", "memcheck", "racecheck"]
    assert missing is None and found[1].count == 10000
    assert found[-1].prefix[:3] == ("/x/compute-sanitizer", "--tool", "racecheck")
    assert ("TRITON_INSTRUMENTATION_MODE", "consan") in found[2].env
    assert [c.name for c in asked(monkeypatch, "--tiny")[0]] == ["tiny"]
    assert [(c.name, c.count) for c in asked(monkeypatch, "--launches", "70")[0]] == [
        ("launches", 70)
    ]


def test_a_tool_runs_around_the_child_and_its_findings_are_shown(child, tmp_path):
    """A stand-in for compute-sanitizer: it runs the child, then reports."""
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\nshift 2\n"$@"\necho "========= Race reported between"\nexit 9\n')
    tool.chmod(0o755)
    check = stress.Check("racecheck", 20, prefix=(str(tool), "--tool", "racecheck"))
    found = stress.stress(check, "quiet", TRIALS, 0)
    assert len(found) == 2 and found[1].startswith("trial 5\n        ended with status 9")
    assert "Race reported between" in found[1]
