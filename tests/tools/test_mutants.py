"""The tool that plants faults: each of them applies, and what was not found is told."""

import ast
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest

from tools import mutants

pytestmark = [pytest.mark.host, pytest.mark.once]

every = pytest.mark.parametrize("fault", mutants.FAULTS, ids=lambda fault: fault.name)


@every
def test_each_fault_applies_once_and_is_python(fault):
    ast.parse(mutants.applied(fault))


def test_names_are_distinct_and_there_are_ten_and_more():
    assert len({fault.name for fault in mutants.FAULTS}) == len(mutants.FAULTS) >= 10


def test_a_fault_that_is_not_where_it_was_is_told():
    fault = dataclasses.replace(mutants.FAULTS[0], old="no such line")
    with pytest.raises(mutants.Misplaced, match=r"stands 0 times in kernels/device/mainloop\.py"):
        mutants.applied(fault)


@pytest.mark.parametrize(
    ("status", "output", "how"),
    [
        (None, "", "found: hangs"),
        (1, "1 failed", "found: fails"),
        (-11, "", "found: dies"),
        (0, "3 passed", "NOT FOUND"),
        (0, "3 skipped", "NOT FOUND"),
        (4, "ERROR: not found", "NOT FOUND"),
        (5, "3 deselected", "NOT FOUND"),
        (1, "triton.compiler.errors.CompilationError: at 3:4", "DOESN'T COMPILE"),
    ],
)
def test_verdicts(status, output, how):
    found, reason = mutants.verdict(status, output)
    assert found == how and (reason is None) == how.startswith("found")


@pytest.mark.parametrize(
    ("plain", "lost", "found"),
    [
        ((0, "2 passed, 1 skipped"), [], 3),
        ((0, "2 passed"), ["strides of C are exchanged"], 2),
        ((0, "2 skipped"), [], 0),
        ((1, "1 failed, 1 passed"), [], 0),
        ((None, ""), [], 0),
    ],
)
def test_what_is_not_found_counts(plain, lost, found, monkeypatch, capsys):
    """And so does what proves nothing, because its tests fail, hang or are skipped without it."""

    class Copy:
        def __init__(self, folder, fault):
            self.fault = fault

        def run(self, words):
            if self.fault is None:
                return plain
            return (0, "2 passed") if self.fault.name in lost else (1, "1 failed")

    monkeypatch.setattr(mutants, "Copy", Copy)
    chosen = [fault for fault in mutants.FAULTS if fault.word == "pingpong"][-3:]
    assert {"strides of C are exchanged", *lost} <= {fault.name for fault in chosen}
    with ThreadPoolExecutor(2) as pool:
        assert mutants.report(chosen, pool) == 3 - found
    assert capsys.readouterr().out.count("found: fails") == found


def test_a_fault_is_compiled_in_a_copy(capsys):
    """One that is Python, and one that is no kernel any more."""
    fault = mutants.FAULTS[0]
    broken = dataclasses.replace(fault, new="at = no_such_name\n")
    with ThreadPoolExecutor(2) as pool:
        assert mutants.report_dry([fault, broken], pool) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"compiles  {fault.name}" and "CompilationError" in said[1]
