"""tools/versus.py: two checkouts in one process, and what their race comes to."""

import functools
import math
import os
import sys

import pytest
import torch

import tritemm
from perf.engine import Loop, Sample
from perf.machine import ROOT
from tests.harness import DEVICE
from tools import versus

pytestmark = [pytest.mark.host, pytest.mark.once]


def test_the_other_checkout_is_imported_beside_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    other = versus.renamed(ROOT / "tritemm", tmp_path)
    assert other.__name__ == versus.OTHER and other.matmul is not tritemm.matmul
    assert other.matmul.__module__.startswith(versus.OTHER)
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0::2] == [str(tmp_path), "elsewhere"]
    a = torch.ones(16, 16, device=DEVICE, dtype=torch.float16)
    assert torch.equal(other.matmul(a, a), tritemm.matmul(a, a))


def loops(**columns):
    """Loops that take these seconds, round after round."""
    return {
        name: Loop(1, 1e-3, None, functools.partial(next, iter(map(Sample, column))))
        for name, column in columns.items()
    }


def test_a_ratio_is_the_median_of_the_rounds():
    found = versus.measured(loops(this=(2.0, 2.0, 8.0), other=(3.0, 1.0, 8.0)), 3)
    assert found == {"ratio": 1.0, "this": 2.0, "other": 3.0, "rounds": 3}


def row(ratio, name="random", reason=None):
    times = {"this": 1e-6, "other": 1e-6 * (ratio or 1)}
    return {"id": "7-0", "case": "64 x 64", "name": name, "ratio": ratio, "reason": reason} | times


def test_the_report_counts_what_lost():
    rows = [row(1.1), row(0.96), row(1.0, "decode"), row(None, reason="this: 3 of 4 are wrong")]
    text = versus.report(rows)
    assert f"random      2 problems   {math.sqrt(1.1 * 0.96):.4f} x" in text
    assert "1 more than 3 % slower   least 0.960   most 1.100" in text
    assert "suite       1 problems   1.0000 x" in text and "64 x 64: this: 3 of 4" in text
    assert text.index("0.960  7-0") < text.index("1.100  7-0")


def test_it_needs_a_gpu_and_a_checkout(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["versus.py", str(tmp_path)])
    assert versus.main() == 2
    said = "is no checkout" if torch.cuda.is_available() else "needs a CUDA device"
    assert said in capsys.readouterr().err
