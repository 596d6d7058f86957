"""The committed records of runs on GPUs: they are green, and say of which code."""

import collections
import json
import re
import subprocess
import sys
import types

import pytest
import torch

from tests import conftest
from tools import suite_record

pytestmark = [pytest.mark.host, pytest.mark.once]

RECORD = {
    "gpu": "NVIDIA H200", "gpus": 1, "chosen": suite_record.CHOSEN, "commit": "0123456789ab",
    "dirty": False, "code": "of this", "python": "3.12.3", "torch": "2.11.0+cu130",
    "triton": "3.6.0", "cuda": "13.0", "driver": "580.95", "passed": 5000, "failed": 0,
    "errors": 0, "skipped": 400, "seconds": 201.5, "failures": [],
}  # fmt: skip


def fault(**changes):
    return suite_record.fault(json.dumps(RECORD | changes))


def test_records_are_green():
    paths = sorted(suite_record.RESULTS.glob("*.json"))
    if not paths:
        pytest.skip("the suite has not been recorded on a GPU yet")
    for path in paths:
        found = suite_record.fault(path.read_text())
        assert found is None, f"{path.name}: {found}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"failed": 1, "failures": ["tests/test_x.py::test_y"]}, r"red: 1 failed: .*::test_y"),
        ({"errors": 2}, "red: 2 failed"),
        ({"failures": ["tests/test_x.py::test_y"]}, "red"),
        ({"passed": 0}, "nothing passed"),
        ({"passed": "5000"}, "malformed: passed"),
        ({"seconds": None}, "malformed: seconds"),
        ({"parts": ["1/2"]}, "part of the suite alone: 1/2"),
    ],
)
def test_a_record_that_proves_nothing(changes, message):
    assert fault() is None
    assert re.search(message, fault(**changes))


@pytest.mark.parametrize("text", ["", "[]", "null", '{"gpu": "NVIDIA H200"}'])
def test_something_else_is_malformed(text):
    assert "malformed" in suite_record.fault(text)


def test_a_record_of_other_code_says_so():
    """It is no fault, so that work in progress can land; whoever reads the README sees it."""
    told = suite_record.sentence(RECORD, "of this")
    assert "5000 passed, 0 failed" in told and "changed" not in told
    assert suite_record.sentence(RECORD, "of another").endswith("has changed since then.")


def test_several_gpus_have_a_record_of_their_own():
    several = RECORD | {"gpus": 2, "chosen": suite_record.SEVERAL}
    assert suite_record.name_of(several) == "nvidia-h200-x2.json"
    told = suite_record.sentence(several, "of this")
    assert told.startswith("2 x NVIDIA H200 (the tests of several GPUs), commit 0123456: 5000")
    assert suite_record.name_of(RECORD | {"gpus": 2}) == "nvidia-h200.json"


def test_the_hash_is_of_names_and_contents(tmp_path):
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "x.py"
    file.write_text("1")
    found = [suite_record.code_hash(tmp_path)]
    (tmp_path / "a" / "x.pyc").write_text("whatever")
    assert suite_record.code_hash(tmp_path) == found[0]
    for change in (
        lambda: file.write_text("2"),
        lambda: file.rename(tmp_path / "a" / "z.py"),
        lambda: (tmp_path / "y.json").write_text(""),
    ):
        change()
        found.append(suite_record.code_hash(tmp_path))
    assert len(set(found)) == 4


def test_counts_are_those_of_the_reports(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("TRITEMM_COMMIT", "abc-dirty")
    reports = [types.SimpleNamespace(nodeid=f"tests/t.py::{i}") for i in range(9)]
    stats = {
        "passed": reports[:4], "skipped": reports[4:7], "failed": reports[7:8],
        "error": reports[7:], "": reports,
    }  # fmt: skip
    record = suite_record.Recorder("").record(stats)
    assert [record[n] for n in ("passed", "failed", "errors", "skipped")] == [4, 1, 2, 3]
    assert (record["gpus"], record["chosen"]) == (2, suite_record.CHOSEN)
    assert record["failures"] == ["tests/t.py::7", "tests/t.py::8"]
    assert (record["commit"], record["dirty"]) == ("abc", True)
    assert record["code"] == suite_record.code_hash()
    found = suite_record.fault(json.dumps(record))
    assert found.startswith("the record is red: 3 failed")


def test_parts_are_one_record_when_none_is_missing():
    joined = suite_record.joined
    first = joined(dict(RECORD), "1/2", {})
    assert first["parts"] == ["1/2"] and "part of the suite" in fault(**first)
    second = RECORD | {"passed": 1, "failed": 1, "failures": ["x.py::y"], "seconds": 0.5}
    both = joined(dict(second), "2/2", first)
    assert "parts" not in both and both["failures"] == ["x.py::y"]
    assert [both[name] for name in ("passed", "failed", "skipped")] == [5001, 1, 800]
    # Not of older code, and no part twice.
    other = joined(RECORD | {"code": "of another"}, "2/2", first)
    assert (other["parts"], other["passed"]) == (["2/2"], 5000)
    again = joined(dict(RECORD), "1/2", first)
    assert (again["parts"], again["passed"]) == (["1/2"], 5000)


def test_each_file_is_in_one_part():
    files = collections.Counter({f"{i}.py": 2**i for i in range(9)})
    parts = [suite_record.part_of(files, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(file for part in parts for file in part) == sorted(files)
    assert all(parts) and suite_record.part_of(files, "1/1") == set(files)


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "half"])
def test_a_part_that_is_none_is_refused(text, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    option = types.SimpleNamespace(markexpr="", part=text)
    config = types.SimpleNamespace(option=option, getoption={"--record": ""}.get)
    with pytest.raises(pytest.UsageError, match="--part: a part is"):
        suite_record.pytest_configure(config)


def test_a_failure_is_told_at_once():
    told = []
    terminal = types.SimpleNamespace(write_line=told.append)
    plugins = types.SimpleNamespace(get_plugin={"terminalreporter": terminal}.get)
    there = suite_record.Failures(types.SimpleNamespace(pluginmanager=plugins))
    text = "tests/x.py:3: in test_y\n    assert False\nE   1 of 8 is wrong\nE   assert False"
    for failed in (False, True):
        report = {"failed": failed, "longreprtext": text, "when": "call", "nodeid": "x.py::test_y"}
        there.pytest_runtest_logreport(types.SimpleNamespace(**report))
    assert told == ["\ncall of x.py::test_y failed: 1 of 8 is wrong / assert False"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("keyword", "tiled"), ("markexpr", "gpu"), ("deselect", ["x"]), ("lf", True)],
)
def test_part_of_the_suite_is_not_recorded(option, value):
    options = {"markexpr": suite_record.CHOSEN, "keyword": "", "deselect": None, "lf": False}
    source = pytest.Config.ArgsSource

    def is_part(place, **changes):
        option = types.SimpleNamespace(**options | changes)
        return suite_record.is_part(types.SimpleNamespace(option=option, args_source=place))

    assert not is_part(source.TESTPATHS)
    assert not is_part(source.TESTPATHS, markexpr=suite_record.SEVERAL)
    assert is_part(source.ARGS)
    assert is_part(source.TESTPATHS, **{option: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_it_says_what_it_needs():
    words = ["-m", "pytest", "-p", "tools.suite_record", "--record=", "tests/tools/test_record.py"]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=suite_record.ROOT
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "needs a CUDA device" in done.stderr


@pytest.mark.parametrize(("took", "mark", "said"), [
    (3.9, None, None), (4.1, None, "took 4.1 GB of device memory, unmarked"),
    (8.6, pytest.mark.large(9), None),
    (8.6, pytest.mark.large(90), "takes 90 GB of device memory, and the device has 80"),
])  # fmt: skip
def test_a_test_that_takes_much_device_memory_says_so(took, mark, said, monkeypatch):
    emptied = []
    for name, value in {
        "is_initialized": True, "reset_peak_memory_stats": None, "memory_reserved": 2**31,
        "max_memory_allocated": took * 1e9,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    card = types.SimpleNamespace(total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    around = conftest.memory(mark and mark.mark)
    if said:
        with pytest.raises((AssertionError, pytest.skip.Exception), match=said):
            list(around)
    else:
        assert list(around) == [None] and emptied
