"""What tritemm logs, and that a call that was made before logs nothing."""

import logging
from types import SimpleNamespace

import pytest
import torch

import tritemm
from tests.harness import DEVICE
from tritemm import plan
from tritemm.runtime import binding

pytestmark = pytest.mark.once


@pytest.fixture
def logged(caplog):
    """(logger, level, text) of what was logged since the last call."""
    caplog.set_level(logging.DEBUG, "tritemm")

    def since():
        found = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
        caplog.clear()
        return [each for each in found if each[0].partition(".")[0] == "tritemm"]

    return since


def test_a_choice_is_logged_once(logged):
    plan.forget()
    a = torch.randn(12, 40, device=DEVICE)
    tritemm.matmul(a, a.mT, kernel="tiled")
    told = [each for each in logged() if each[0] == "tritemm.dispatch"]
    ((_, level, text),) = told
    assert level == "DEBUG"
    assert text.startswith("12 x 12 x 40 NT, fp32") and ": tiled, " in text
    assert text.endswith('requested: kernel="tiled"')
    for _ in range(2):
        tritemm.matmul(a, a.mT, kernel="tiled")
    assert logged() == []
    tritemm.linear(a.bfloat16(), a.bfloat16(), activation="swiglu")
    apart = any("in parts" in text for *_, text in logged())
    assert apart or DEVICE == "cuda"  # where one kernel may do it all


def test_a_compiled_kernel_is_logged_with_its_seconds(logged, monkeypatch):
    monkeypatch.setattr(binding.triton_private, "settle", lambda fn: None)
    compiled = object()
    fn = SimpleNamespace(__name__="tiled_kernel", arg_names=[], warmup=lambda **given: compiled)
    assert binding.compile_kernel(fn, (1,), {}, {}) is compiled
    told = "tiled_kernel: compiled, or read from Triton's cache, in 0.00 s"
    assert logged() == [("tritemm.compile", "INFO", told)]


def test_the_report_of_convert_is_logged(logged):
    model = torch.nn.ModuleDict({"head": torch.nn.Linear(4, 4, device=DEVICE)})
    report = tritemm.convert(model, skip="head")
    assert "named in skip" in str(report)
    assert logged() == [("tritemm.nn", "INFO", f"convert:\n{report}")]


def test_nothing_is_printed_unless_asked():
    """As the documentation of Python's logging asks of a library."""
    logger = logging.getLogger("tritemm")
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    assert all(isinstance(handler, logging.NullHandler) for handler in logger.handlers)
    assert logger.propagate and logger.level == logging.NOTSET
