"""One command on several GPUs: the processes, with stand-ins for them, and what becomes of them."""

import json
import os
import signal
import sys
import threading

import pytest

from perf import machine, shards
from perf.shards import Part
from tests.perf.fakes import OLD
from tritemm.compile import pool

pytestmark = [pytest.mark.host, pytest.mark.once]


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10])
def test_every_problem_is_one_parts(count):
    shares = [Part(index, 4, OLD, "x").share(range(count)) for index in range(4)]
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


@pytest.mark.parametrize(("cores", "each"), [(2, 1), (16, 4), (30, 7), (1000, pool.WORKERS)])
def test_all_workers_together_are_no_more_than_the_cores(monkeypatch, cores, each):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    part = Part(0, 4, OLD, "x")
    assert (shards.workers(None, None), shards.workers(None, part)) == (None, each)
    assert shards.workers(100, part) == 25


#: The head of what runs in place of `python -m perf`: `mine` is its part, `out` is its file.
HEAD = f"""
import json, os, pathlib, signal, sys, time
mine = json.loads(os.environ[{shards.VARIABLE!r}])
out = pathlib.Path(mine["out"])
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """What `shards.run` of a script leaves, its status, and what is said."""
    said = []

    def run(script, count=2, argv=(), out=tmp_path / "x.jsonl"):
        monkeypatch.setattr(shards, "COMMAND", (sys.executable, "-c", HEAD + script))
        with shards.run(argv, count, OLD, out, said.append) as (files, status):
            return {file: file.read_text() for file in files}, status, said

    return run


def test_each_process_has_the_arguments_a_card_and_its_part(run, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,4,2")
    script = "out.write_text(json.dumps([sys.argv[1:], os.environ['CUDA_VISIBLE_DEVICES'], mine]))"
    found, status, said = run(script, argv=["suite", "--gpus", "2"])
    assert status == 0 and str(tmp_path) in said[0]
    for index, ((file, text), card) in enumerate(zip(found.items(), "64", strict=True)):
        mine = {"index": index, "of": 2, "run": OLD, "out": str(file)}
        assert json.loads(text) == [["suite", "--gpus", "2"], card, mine]
    assert list(tmp_path.iterdir()) == []  # what they left is gone
    (file,), *_ = run("out.touch()", count=1, out=None)  # without a file the parts lie elsewhere
    assert tmp_path not in file.parents


DIES = {
    "os.kill(os.getpid(), signal.SIGKILL)": (137, "signal 9 ended it"),
    "sys.exit(3)": (3, "its status is 3"),
    "(out.unlink(), sys.exit(2))": (2, "its status is 2"),
}


@pytest.mark.parametrize("how", DIES)
def test_a_process_that_dies_is_named_and_its_rows_are_kept(run, how):
    expected, text = DIES[how]
    found, status, said = run(f"out.write_text('row')\nif mine['index'] == 1: {how}\n")
    assert status == expected and list(found.values()) == ["row"] * (2 - ("unlink" in how))
    assert said[1:] == [f"gpu 1 FAILED: {text}; what it measured before is kept"]


WAITS = """
try:
    out.write_text("ready")
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.5)  # a second Ctrl-C would end it here
    out.write_text("kept")
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_passed_on_once_and_the_processes_end_themselves(run, number, tmp_path):
    before = signal.getsignal(signal.SIGTERM)

    def interrupt():
        while len(list(tmp_path.glob("*/*.jsonl"))) < 2:
            threading.Event().wait(0.05)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    found, status, said = run(WAITS)
    thread.join()
    assert (list(found.values()), status, len(said)) == (["kept"] * 2, 130, 1)
    assert signal.getsignal(signal.SIGTERM) == before
