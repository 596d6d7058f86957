"""`python -m perf errors`: its operands, its exact products, what it counts, and what it shows."""

import dataclasses
import math
import subprocess
import sys
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

import tritemm
from perf import __main__, exact, grading, rows
from perf.experiments import errors, show
from perf.experiments.errors import AGAIN, CHOSEN, Job, Judge
from perf.machine import ROOT
from perf.rows import REFERENCE
from perf.views import Selection
from tests.perf.fakes import ENVIRONMENT, NEW, by_name, on_cpu, ran
from tritemm import plan
from tritemm.problem import INTERPRETED, Problem

TYPES = {"fp32": torch.float32, "fp64": torch.float64}
SIZE = (7, 5, 40)
EVERY = [(name, dtype) for dtype in TYPES.values() for name in grading.of(dtype)]


def fractions(a, b):
    """Exact products and sums of |a||b|, as nested lists."""
    pairs = [
        [[Fraction(x) * Fraction(y) for x, y in zip(row, column, strict=True)]
         for column in b.mT.tolist()] for row in a.tolist()
    ]  # fmt: skip
    sums = [[sum(terms) for terms in row] for row in pairs]
    return sums, [[sum(map(abs, terms)) for terms in row] for row in pairs]


# Operands


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_operands_are_those_of_their_name_and_seed(name, dtype):
    a, b = grading.operands(name, SIZE, dtype, 3, "cpu")
    again, other = (grading.operands(name, SIZE, dtype, seed, "cpu") for seed in (3, 4))
    assert torch.equal(a, again[0]) and torch.equal(b, again[1]) and not torch.equal(a, other[0])
    assert (a.shape, b.shape, a.dtype, b.dtype) == ((7, 40), (40, 5), dtype, dtype)
    assert a.is_contiguous() and b.is_contiguous()
    assert a.isfinite().all() and b.isfinite().all() and (a @ b).isfinite().all()
    assert "{" not in grading.described(name, dtype)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_operands_have_scales_of_their_own(dtype):
    far = 10.0 ** grading.FARTHEST[dtype]
    made = {name: grading.operands(name, SIZE, dtype, 0, "cpu") for name in grading.of(dtype)}
    sizes = {name: (a.abs().amax(1), b.abs().amax(0)) for name, (a, b) in made.items()}
    assert sizes["rows"][0][-1] / sizes["rows"][0][0] > far
    assert sizes["columns"][1][-1] / sizes["columns"][1][0] > far
    a, b = made["along-k"]
    large = a.abs().amax(0) > 1
    assert 0 < large.sum() < 40 and ((b.abs().amax(1) < 1) == large).all()
    assert (made["uniform"][0] >= 0).all() and made["normal"][0].min() < 0
    spans = [made[f"phi{phi}"][0].abs().log().std() for phi in (1, 2, 4)]
    assert spans == sorted(spans)


@pytest.mark.parametrize("K", [40, 41])
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_halves_of_k_cancel(dtype, K):
    a, b = grading.operands("cancelling", (7, 5, K), dtype, 0, "cpu")
    assert (a.shape, b.shape) == ((7, K), (K, 5))
    if K == 41:
        b[20] = 0  # whose opposite is missing
    share = (a.double() @ b.double()).abs() / (a.double().abs() @ b.double().abs())
    assert 0 < share.max() < 4 * torch.finfo(dtype).eps ** 0.5


def test_subnormal_operands_are_subnormal():
    a, b = grading.operands("subnormal", SIZE, torch.float32, 0, "cpu")
    assert ((a.double().abs() < torch.finfo(torch.float32).tiny) & (a.double() != 0)).all()
    assert (a.double() @ b.double()).abs().max() > torch.finfo(torch.float32).tiny
    assert "subnormal" not in grading.of(torch.float64)


# The exact product, and what is counted


@pytest.mark.parametrize("name", grading.of(torch.float64))
def test_the_exact_product_is_exact_far_beyond_fp64(name):
    a, b = grading.operands(name, (4, 3, 77), torch.float64, 0, "cpu")
    sums, sizes = fractions(a, b)
    high, low = exact.product(a, b)
    for i, j in ((i, j) for i in range(4) for j in range(3)):
        error = Fraction(high[i, j].item()) + Fraction(low[i, j].item()) - sums[i][j]
        assert abs(error) < sizes[i][j] / 2**95


@pytest.mark.parametrize("K", [1, 2, 3])
def test_the_exact_product_of_few_terms(K):
    a, b = grading.operands("normal", (2, 3, K), torch.float64, 0, "cpu")
    high, low = exact.product(a, b)
    torch.testing.assert_close(high + low, a @ b)


@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_errors_are_counted_in_units_of_the_sum_of_sizes(dtype):
    a, b = grading.operands("normal", (4, 3, 77), dtype, 0, "cpu")
    sums, sizes = fractions(a, b)
    unit = Fraction(torch.finfo(dtype).eps) / 2
    out = a @ b
    out[2, 1] += 9 * float(unit * sizes[2][1])
    counted = [
        [float(abs(Fraction(out[i, j].item()) - sums[i][j]) / (unit * sizes[i][j]))
         for j in range(3)] for i in range(4)
    ]  # fmt: skip
    flat = [each for row in counted for each in row]
    rms = math.sqrt(sum(each**2 for each in flat) / 12)
    found = Judge(a, b).errors(out)
    assert found == pytest.approx({"largest": max(flat), "rms": rms}, rel=1e-6)
    assert max(flat) == counted[2][1] > 6
    out[0, 0] = math.inf
    assert Judge(a, b).errors(out)["largest"] == found["largest"]
    assert Judge(a, b).errors(out.fill_(math.nan)) == {}


def test_of_fp64_rows_and_columns_are_sampled(monkeypatch):
    monkeypatch.setattr(errors, "SAMPLE", 3)
    a, b = grading.operands("normal", (9, 8, 20), torch.float64, 0, "cpu")
    judge, out = Judge(a, b), a @ b
    assert judge.rows.tolist() == [0, 4, 8] and len(judge.columns) == 3
    before = judge.errors(out)
    out[1, 1] = 1e9
    assert judge.errors(out) == before
    out[8, 7] = 1e9
    assert judge.errors(out)["largest"] > 1e9
    assert len(errors.sample(2, a.device)) == 2


# How it was multiplied


def choice(precision):
    return SimpleNamespace(problem=SimpleNamespace(precision=precision, is_split=bool),
                           config=SimpleNamespace(PACK="ab"))  # fmt: skip


@pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors on a GPU machine")
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_what_was_multiplied_again_has_the_bits_of_that(dtype):
    a, b = grading.operands("normal", (20, 17, 33), dtype, 0, "cpu")
    out, flag = a.new_empty(20, 17), torch.ones(4, dtype=torch.int32)
    plan.launch_guarded(Problem.of(a, b, out, precision="int8x9"), a, b, out, flag)
    assert errors.multiplied(choice("int8x9"), "int8x9", a, b, out) == AGAIN
    assert errors.multiplied(choice("ieee"), "int8x9", a, b, out) == CHOSEN
    unsplit = choice("ieee")
    unsplit.problem.is_split = lambda operands: False
    assert errors.multiplied(unsplit, "ieee", a, b, out) is None
    out[3, 4] = torch.nextafter(out[3, 4], out[3, 4] + 1)
    assert errors.multiplied(choice("int8x9"), "int8x9", a, b, out) is None


# The command


class Inline:
    """In place of the processes."""

    def __init__(self, workers, context):
        assert workers > 0

    def map(self, function, jobs):
        return [function(dataclasses.replace(job, device="cpu")) for job in jobs]

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        pass


@pytest.fixture
def inline(monkeypatch):
    on_cpu(monkeypatch)
    monkeypatch.setattr(errors, "ProcessPoolExecutor", Inline)


WORDS = ("errors", "--size", "24x20x70", "--data", "normal,phi2,subnormal")


def test_the_command_records_every_error_and_shows_them(inline, tmp_path, capsys):
    status, found = ran(tmp_path / "x.jsonl", *WORDS)
    text = capsys.readouterr().out
    assert status == 0 and {row.experiment for row in found} == {"errors"}
    assert [row.id for row in found if row.competitor == REFERENCE] == [
        *(f"fp32-24x20x70-{name}" for name in ("normal", "phi2", "subnormal")),
        *(f"fp64-24x20x70-{name}" for name in ("normal", "phi2")),
    ]
    for row in found:
        assert (row.us, row.mode, row.outcome) == (None, "errors", "measured")
        assert 0 < row.errors["rms"] < row.errors["largest"] < 20
        assert row.multiplied == (CHOSEN if row.competitor.startswith(("int8", "bf16x9")) else None)
        assert (row.rung is None) == (row.code is None) == (row.competitor == REFERENCE)
    assert "24 x 20 x 70" in text and "fp64, x cuBLAS's:" in text and "(ieee)" in text
    assert "A subnormal" in text and "bf16x9" in text


def spoilt(value):
    """`tritemm.matmul`, with an element of fp32's int8x7 that isn't right, or an error."""
    matmul = tritemm.matmul

    def run(a, b, *, out, precision):
        matmul(a, b, out=out, precision=precision)
        if precision == "int8x7":
            if isinstance(value, Exception):
                raise value
            out[3, 4] = value

    return run


@pytest.mark.parametrize(("value", "outcome", "said", "status"), [
    (math.nan, "wrong", "1 of 480 elements are NaN or infinite, and cuBLAS's are not: (3, 4)", 1),
    (math.inf, "wrong", "1 of 480 elements are NaN or infinite", 1),
    (RuntimeError("a launch failed"), "failed", "a launch failed", 1),
    (ValueError("not this one"), "refused", "not this one", 0),
])  # fmt: skip
def test_what_is_not_finite_or_failed_is_said(
    inline, monkeypatch, tmp_path, capsys, value, outcome, said, status
):
    monkeypatch.setattr(errors.tritemm, "matmul", spoilt(value))
    words = (*WORDS[:3], "--data", "normal", "--dtype", "fp32")
    ended, found = ran(tmp_path / "x.jsonl", *words)
    row = by_name(found)["int8x7"]
    assert (ended, row.outcome, row.errors) == (status, outcome, None)
    assert said in row.reason and said in capsys.readouterr().out
    assert all(each.errors for each in found if each is not row)


def test_what_has_no_operands_is_refused(inline, tmp_path, capsys):
    words = ("errors", "--dtype", "fp64", "--data", "subnormal", "--out", str(tmp_path / "x"))
    assert __main__.main(list(words)) == 2
    assert "no operands" in capsys.readouterr().err


# What is shown


def made(dtype, size, name, run=NEW, **found):
    """Rows of a product, with a largest error each, or a row's fields."""
    (problem,) = Job(dtype, size, (name,)).problems
    shared = {"experiment": "errors", "run": run, "time": run, "command": "python -m perf errors"}
    shared |= {"mode": "errors", "environment": ENVIRONMENT, "case": problem.case}
    shared["problem"] = problem.to_json()
    for word, value in found.items():
        fields = value if isinstance(value, dict) else {}
        if not fields.get("reason"):
            largest = fields.pop("largest", value)
            fields["errors"] = {"largest": largest, "rms": largest / 10}
        yield rows.Row(**shared, competitor=word, **fields)


CUBE = (1024,) * 3
MADE = [
    *made("fp32", CUBE, "normal", cublas=8.0, int8x7=2.0,
          bf16x9={"largest": 4.0, "multiplied": AGAIN}),
    *made("fp32", CUBE, "phi4", cublas=4.0, int8x7={"largest": 6.0, "multiplied": CHOSEN},
          bf16x9={"outcome": "failed", "reason": "no room"}),
    *made("fp64", (512, 384, 16384), "rows", cublas=5.0, int8x15=1.0),
]  # fmt: skip


def shown(view, found, **selection):
    view, selection = show.VIEWS[view], Selection(**selection)
    return view.table(view.chosen(found, selection), selection)


def test_the_tables_have_every_product_and_the_most_of_all():
    of_fp32 = shown("errors-fp32", MADE)
    assert "| M x N x K | operands | cuBLAS | int8x7 | bf16x9 |" in of_fp32
    assert "| 1024 x 1024 x 1024 | normal | 8, 0.8 | 2, 0.2 | 4, 0.4 (again) |" in of_fp32
    assert "| 1024 x 1024 x 1024 | normal | 0.25, 0.25 | 0.5, 0.5 |" in of_fp32
    assert "6, 0.6 (ieee) | failed |" in of_fp32 and "no room" in of_fp32
    assert "fp64," not in of_fp32 and "5, 0.5 | 1, 0.1 |" in shown("errors-fp64", MADE)
    every = shown("errors", MADE)
    assert "| fp32 | int8x7 | 2 | 1 | 0 | 6, 0.6 | 1.5, 1.5 |" in every
    assert "| fp32 | bf16x9 | 2 | 0 | 1 | 4, 0.4 | 0.5, 0.5 |" in every
    assert "| fp64 | cuBLAS | 1 |  |  | 5, 0.5 |  |" in every


def test_the_newest_of_each_product_is_shown():
    old = list(made("fp32", CUBE, "normal", run="2026-01-01T00:00:00", cublas=1.0, int8x7=1.0))
    assert show.VIEWS["errors"].chosen([*MADE, *old], Selection()) == MADE
    of_size = show.VIEWS["errors"].chosen(MADE, Selection(size=CUBE))
    assert {row.case.dtype for row in of_size} == {"fp32"}
    assert show.VIEWS["errors"].chosen(MADE, Selection(dtype="fp64")) == MADE[-2:]


def test_rows_come_back_from_a_file(tmp_path):
    rows.append(tmp_path / "x.jsonl", MADE)
    assert rows.read(tmp_path / "x.jsonl") == MADE


@pytest.mark.gpu
@pytest.mark.xdist_group("perf 0")
def test_errors_on_a_gpu(tmp_path):
    path = tmp_path / "x.jsonl"
    words = ["errors", "--size", "1024", "--data", "normal,along-k", "--out", str(path)]
    words = [sys.executable, "-m", "perf", *words]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = rows.read(path)
    assert len(found) == 2 * (6 + 4) and all(row.errors["largest"] < 1000 for row in found)
    split = [r for r in found if r.competitor in ("int8x7", "int8x14") and r.multiplied != CHOSEN]
    assert all((row.multiplied == AGAIN) == (row.problem["class"] == "along-k") for row in split)
