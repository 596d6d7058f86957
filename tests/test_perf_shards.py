"""One command on several GPUs: the processes, with stand-ins for them, and what becomes of them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from perf import machine, shards
from perf.experiments.search import workers
from perf.machine import ROOT
from perf.shards import Part
from tritemm.compile import pool

from .perf_fakes import OLD, parsed

pytestmark = [pytest.mark.host, pytest.mark.once]


def part(index, of, out="x.jsonl"):
    return Part(index, of, OLD, out)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10])
def test_every_problem_is_one_parts(count):
    shares = [part(index, 4).share(range(count)) for index in range(4)]
    assert sorted(item for share in shares for item in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("named", "devices", "index", "among"),
    [(None, ["0", "1"], 1, 1), ("3, 5,7", ["3", "5"], 0, 3), ("GPU-a,GPU-b", None, 0, 0)],
)
def test_the_cards_are_the_visible_ones_and_nvml_counts_the_others_too(
    monkeypatch, named, devices, index, among
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert shards.visible(2) == (devices or named.split(","))
    assert machine._among_all(index) == among


def test_all_workers_together_are_no_more_than_the_cores(monkeypatch):
    args = parsed("search", "--gpus", "4")
    assert workers(args) is None
    for cores, each in ((2, 1), (16, 4), (30, 7), (1000, pool.WORKERS)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        args.part = part(0, 4)
        assert workers(args) == each
    args.workers = 100
    assert workers(args) == 25


# The processes

#: The head of what runs in place of `python -m perf`: `mine` is its part, `out` is its file.
HEAD = f"""
import json, os, pathlib, signal, sys, time
mine = json.loads(os.environ[{shards.VARIABLE!r}])
out = pathlib.Path(mine["out"])
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """`shards.run` of a script, for rows that go to `tmp_path / "x.jsonl"`; and what is said."""
    said = []

    def run(script, count=2, argv=(), out=tmp_path / "x.jsonl", say=said.append):
        monkeypatch.setattr(shards, "COMMAND", (sys.executable, "-c", HEAD + script))
        return shards.run(argv, count, OLD, out, say), said

    return run


def test_each_process_has_the_arguments_a_card_and_its_part(run, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,4,2")
    ended, said = run(
        "known = [sys.argv[1:], os.environ['CUDA_VISIBLE_DEVICES'], mine]\n"
        "out.write_text(json.dumps(known))\n"
        "print('out', flush=True); print('err', file=sys.stderr)",
        argv=["suite", "--gpus", "2"],
    )
    assert (ended.status, ended.interrupted) == (0, False)
    for index, (file, card) in enumerate(zip(ended.files, "64", strict=True)):
        argv, device, mine = json.loads(file.read_text())
        assert argv == ["suite", "--gpus", "2"] and device == card
        assert Part.from_json(json.dumps(mine)) == Part(index, 2, OLD, file)
        lines = [line for line in said if line.startswith(f"gpu {index}")]
        assert lines == [f"gpu {index}: out", f"gpu {index}: err"]
    assert ended.folder.parent == tmp_path and str(ended.folder) in said[0]
    ended.discard()
    assert list(tmp_path.iterdir()) == []
    ended, _ = run("out.touch()", count=1, out=None)  # without a file the parts lie elsewhere
    assert ended.files[0].exists() and tmp_path not in ended.folder.parents
    ended.discard()


DIES = {
    "os.kill(os.getpid(), signal.SIGKILL)": (137, "signal 9 ended it"),
    "sys.exit(3)": (3, "its status is 3"),
    "raise RuntimeError('lost')": (1, "its status is 1"),
    "(out.unlink(), sys.exit(2))": (2, "its status is 2"),
}


@pytest.mark.parametrize("how", DIES)
def test_a_process_that_dies_is_named_and_its_rows_are_kept(run, how):
    status, text = DIES[how]
    ended, said = run(f"out.write_text('row')\nif mine['index'] == 1: {how}\n")
    assert (ended.status, ended.interrupted) == (status, False)
    assert {file.read_text() for file in ended.files} == {"row"}
    assert len(ended.files) == 2 - ("unlink" in how)
    failed = [line for line in said if "FAILED" in line]
    assert failed == [f"gpu 1 FAILED: {text}; what it measured before is kept"]


WAITS = """
count = 0
while True:
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)  # a second Ctrl-C would end it here
        out.write_text("kept")
        sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_passed_on_once_and_the_processes_end_themselves(run, number):
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    said = []

    def say(line):
        said.append(line)
        if sum("ready" in line for line in said) == 2 and "ready" in line:
            os.kill(os.getpid(), number)

    ended, _ = run(WAITS, say=say)
    assert (ended.status, ended.interrupted) == (0, True)
    assert [file.read_text() for file in ended.files] == ["kept", "kept"]
    assert not [line for line in said if "FAILED" in line]
    assert handlers == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_process_whose_lines_nobody_reads_ends(run):
    def say(line):
        if "row" in line:
            raise BrokenPipeError

    ended, _ = run("while True: print('row', flush=True); time.sleep(0.01)", count=1, say=say)
    assert ended.status not in (0, None)


def test_when_the_parent_is_killed_the_processes_end_and_their_files_stay(tmp_path):
    script = HEAD + "out.write_text('kept')\nwhile True: print(os.getpid()); time.sleep(0.01)"
    parent = (
        "import sys; from pathlib import Path; from perf import shards\n"
        f"shards.COMMAND = (sys.executable, '-u', '-c', {script!r})\n"
        f"shards.run([], 1, 'now', Path({str(tmp_path / 'x')!r}), lambda s: print(s, flush=True))"
    )
    words = [sys.executable, "-c", parent]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout)
        assert str(tmp_path) in next(lines)
        child = int(next(lines).removeprefix("gpu 0: "))
        process.kill()
    (file,) = tmp_path.glob("x.parts-*/0.jsonl")
    assert file.read_text() == "kept"
    end = time.monotonic() + 20
    while alive(child):
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid):
    """A process that nobody waits for has ended, too."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_the_process_is_this_command(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    said = []
    ended = shards.run(["random", "--gpus", "2"], 1, OLD, tmp_path / "x", said.append)
    assert (ended.status, ended.files) == (2, ())
    assert "gpu 0: python -m perf random needs a CUDA device, and torch sees none" in said
