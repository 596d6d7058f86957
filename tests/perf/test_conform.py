"""The hunt for wrong results: what it draws, that it finds them, and what it says."""

import functools
import json
from concurrent.futures import Executor, Future

import pytest
import torch

from perf.__main__ import main
from perf.experiments import conform
from perf.experiments.conform import Finding, Found, Hunt, Place, drawn, line, told
from perf.machine import Environment

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PLACE = Place(3, 5, "NT", "fp16", "fp32", 0, 0)


@pytest.fixture
def hunt(monkeypatch):
    """On small matrices, in the interpreter where there is no GPU."""
    monkeypatch.setattr(conform, "LARGEST", 4)
    monkeypatch.setattr(conform, "DEEPEST", 8)
    return Hunt(0, DEVICE)


def test_as_many_problems_as_asked_for_of_every_kind():
    places = drawn(60_000, 0)
    assert sum(len(depths) for _, depths in places) == 60_000
    assert {place.layout for place, _ in places} == {"NN", "NT", "TN", "TT"}
    assert {(place.dtype, place.output) for place, _ in places} == set(conform.TYPES)
    assert {bool(place.shift) for place, _ in places} == {True, False}
    assert drawn(60_000, 0) == places != drawn(60_000, 1)


@pytest.mark.parametrize("data", conform.DATA)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("shift", "pad"), [(0, 0), (1, 8), (8, 1)])
def test_the_exact_result_is_that_of_the_operands(hunt, data, layout, shift, pad):
    place = Place(5, 7, layout, "fp16", "fp32", shift, pad)
    a, b = hunt.operands(place, 11, data)
    assert a.storage_offset() == shift and (a.stride(1) == 1) == (layout[0] == "N")
    assert max(a.stride()) == (11 if layout[0] == "N" else 5) + pad
    want = hunt.exact(place, 11, data)
    assert want.dtype == torch.float32 and torch.equal(want.double(), a.double() @ b.double())
    assert torch.all(want == 11) == (data == "ones")


@pytest.mark.parametrize(
    ("dtype", "output"),
    [("fp16", "fp32"), ("bf16", "bf16"), ("tf32", "fp32"), ("fp32", "fp32"), ("fp64", "fp64")],
)
def test_nothing_is_found_where_nothing_is_wrong(hunt, dtype, output):
    found = hunt.multiply(Place(3, 9, "TN", dtype, output, 1, 1), [1, 7, 40])
    assert found.findings == [] and found.problems == 3
    assert found.products["ours"] == 6


def cublas(fault, a, b, out, place):
    """With a dropped tail, as cuBLAS drops the last 8 of K = 11528; lazy; or refusing."""
    if fault == "refuses":
        raise RuntimeError("not supported")
    kept = a.shape[1] // 8 * 8 if fault == "drops" else a.shape[1]
    torch.mm(a[:, :kept].float(), b[:kept].float(), out=out)
    if fault == "lazy":
        out[-1, -1] = conform.POISON


@pytest.mark.parametrize("fault", ["drops", "lazy", "refuses"])
def test_what_is_wrong_is_found_with_either_data_and_a_refusal_is_counted(hunt, monkeypatch, fault):
    planted = functools.wraps(cublas)(functools.partial(cublas, fault))
    monkeypatch.setattr(conform, "cublas", planted)
    found = hunt.multiply(PLACE, [24, 28])
    ones = Finding("cublas", PLACE, 28, "ones", 15, 24.0, 28.0)
    if fault == "drops":
        assert {(f.K, f.data) for f in found.findings} == {(28, "ones"), (28, "signs")}
        assert ones in found.findings
    elif fault == "lazy":
        assert [f.wrong for f in found.findings] == [1] * 4
    else:
        assert not found.findings and not found.products["cublas"]
        assert found.refused["cublas"] == 4


@pytest.mark.parametrize(
    ("name", "error"), [("ours", RuntimeError), ("cublas", torch.OutOfMemoryError)]
)
def test_a_failure_is_no_refusal(hunt, monkeypatch, name, error):
    def failing(a, b, out, place):
        raise error("a launch failed")

    failing.__name__ = name
    monkeypatch.setattr(conform, name, failing)
    with pytest.raises(error, match="a launch failed"):
        hunt.multiply(PLACE, [16])


def test_the_line_shows_the_finding():
    """It is pasted into Python; here, on a CPU."""
    finding = Finding("cublas", PLACE, 28, "ones", 15, 24.0, 28.0)
    said = line(finding).replace(', device="cuda"', "").replace(", out_dtype=torch.float32", "")
    assert torch.equal(eval(said), torch.full((3, 5), 28, dtype=torch.float16))
    assert "out_dtype=torch.float32" in line(finding)
    assert line(Finding("cublas", PLACE, 28, "signs", 15, 24.0, 28.0)) == ""


def test_what_was_found_is_told_by_place(monkeypatch):
    monkeypatch.setattr(conform, "environment", lambda: Environment("a GPU", *[None] * 7))
    found = Found(2)
    found.products.update(cublas=8, ours=8)
    found.findings += [Finding("cublas", PLACE, K, "ones", 15, 24.0, float(K)) for K in (28, 60)]
    text = told(found, 3.2)
    assert "cublas: 2 of 8 products wrong" in text and "ours: 0 of 8 products wrong" in text
    assert "2, with K from 28 to 60" in text and "one 24 for 28" in text
    assert text.endswith("2 problems in 3 s")
    assert json.loads(json.dumps(conform.as_json(found, 0, 3.2)))["problems"] == 2


class Inline(Executor):
    """A pool whose work is done in this process."""

    def __init__(self, workers, context, begin, arguments):
        begin(arguments[0], DEVICE)

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


def test_the_command_writes_what_it_found(hunt, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(conform, "unable", lambda command: None)
    monkeypatch.setattr(conform, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(conform, "environment", lambda: Environment("a GPU", *[None] * 7))
    file = tmp_path / "found.json"
    assert main(["conform", "--n", "5", "--seed", "3", "--out", str(file)]) == 0
    assert "ours: 0 of 10 products wrong" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert (found["problems"], found["findings"]) == (5, [])
