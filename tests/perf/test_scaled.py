"""Products of operands with scales: their data, the check, who races, and what is shown of it."""

import itertools
import types

import pytest
import torch

from perf import competitors, operands, race
from perf.case import ACCUMULATE, FAST, SCALINGS, Case
from perf.engine import Competitor, Plan, admit
from perf.experiments import show
from perf.groups import BALANCED, EMPTY, Groups
from perf.rows import AUTO_FAST, DENSE, NULL, REFERENCE, TORCH_FAST
from perf.searches import tasks_of
from perf.views import Selection
from tests.perf.fakes import FakeBench, on_cpu, ran
from tools.fit import samples
from tritemm.budget import dequantized
from tritemm.compile.asm import DEVICES
from tritemm.plan import kinds
from tritemm.problem import INTERPRETED
from tritemm.rungs import find

pytestmark = [pytest.mark.host, pytest.mark.once]

interpreted = pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors")


def case_of(scaling, layout="NT", dtype="fp8", size=(136, 144, 272)):
    return Case(*size, layout, dtype, ACCUMULATE[dtype], scaling=scaling)


def right(a, b, c, scale_a, scale_b):
    return c.copy_(dequantized(a, scale_a) @ dequantized(b.mT, scale_b).mT)


# Data, and the check


@pytest.mark.parametrize("scaling", SCALINGS)
def test_values_times_scales_are_normal_and_lie_as_torch_wants_them(scaling):
    case = case_of(scaling)
    a, b, c, *scales = operands.operands(case, "cpu")
    assert c.isnan().all() and c.dtype == torch.bfloat16
    given = zip((a, b.mT), scales, SCALINGS[scaling], strict=True)
    for values, scale, recipe in given:
        assert dequantized(values, scale).std() == pytest.approx(1, abs=0.05)
        assert values.float().abs().max() == 448
        strides = {"block": (1, len(values)), "block2d": (4, 1)}
        assert scale.stride() == strides.get(recipe, (1, 1))
    meta = [t.to("meta") for t in (a, b, scales[0], scales[1].mT)]
    assert torch._scaled_mm(*meta, out_dtype=c.dtype).shape == c.shape


FAULTS = {
    "no scales": lambda a, b, c, *scales: c.copy_(a.float() @ b.float()),
    "another row's": lambda a, b, c, scale_a, *more: right(a, b, c, scale_a.roll(1, 0), *more),
    "another column's": lambda *given: right(*given[:4], given[4].roll(1, 0)),
    "terms left out": lambda a, b, c, *scales: right(
        a[:, :256], b[:256], c, *(scale[:, :2] for scale in scales)
    ),
    "an element": lambda *given: one_off(right(*given)),
    "nothing": lambda *given: None,
}


def one_off(c):
    c[-1, -1] += 8


@pytest.mark.parametrize("fault", [None, *FAULTS])
@pytest.mark.parametrize("scaling", ["row", "block", "block2d block"])
def test_a_wrong_scaled_product_is_found_in_every_strip(scaling, fault, monkeypatch):
    monkeypatch.setattr(operands, "STRIP", 144 * 50)
    entrant = Competitor("x", FAULTS.get(fault, right), rung="x")
    outcome = admit(entrant, FakeBench(case_of(scaling), {}), Plan()).outcome
    assert outcome == ("wrong" if fault else "measured")


def test_fast_sums_are_judged_by_their_own_bound():
    there = FakeBench(case_of("row", size=(32, 16, 4096)), {})

    def run(a, b, c, *scales):
        right(a, b, c, *scales)
        c += 0.02 * right(a.float().abs(), b.float().abs(), torch.empty_like(c), *scales)

    for accumulate, outcome in ((FAST, "measured"), ("fp32", "wrong")):
        entrant = Competitor("x", run, rung="x", accumulate=accumulate)
        assert admit(entrant, there, Plan()).outcome == outcome


def test_the_reference_of_int8_is_the_product_without_scales():
    there = FakeBench(case_of("row", dtype="int8"), {})
    first, null = competitors.cublas(there.case)
    assert (first.name, null.name) == (REFERENCE, NULL)
    found = admit(first, there, Plan())
    assert (found.outcome, found.worst, found.reason) == ("measured", 0.0, None)
    wrong = Competitor("x", lambda a, b, c, *scales: torch._int_mm(a, b) + 1, rung="x")
    assert admit(wrong, there, Plan()).outcome == "wrong"


# Who races


@interpreted
@pytest.mark.parametrize(
    ("scaling", "layout", "dtype"),
    [*((word, "NT", "fp8") for word in SCALINGS), ("block", "TN", "fp8"), ("row", "NN", "int8")],
)
def test_tritemms_products_are_right_and_compared_with_torchs_fast_sums(scaling, layout, dtype):
    case = case_of(scaling, layout, dtype, size=(136, 32, 272))
    there = FakeBench(case, {})
    field = competitors.scaled(case, there.sets[0], ["auto"])
    torchs = [REFERENCE, NULL] + [TORCH_FAST] * (case.dtype == "fp8")
    names = ["auto", AUTO_FAST][: len(case.sums)]
    assert [each.name for each in field] == names + torchs
    for ours in field[: len(names)]:
        assert ours.rung == "scaled" and ours.config and TORCH_FAST in ours.rivals
        assert admit(ours, there, Plan()).outcome == "measured"
    refusals = [each.refusal for each in field[len(names) :]]
    assert all("fp8 NT alone" in (said or "") for said in refusals) is (case.layout == "TN")


@interpreted
@pytest.mark.parametrize("scaling", ["tensor", "row", "block"])
def test_what_is_compiled_ahead_is_what_runs(scaling, monkeypatch):
    asked, choose = [], kinds.dispatch.choose_whole
    monkeypatch.setattr(
        kinds.dispatch, "choose_whole", lambda p, word: asked.append(p) or choose(p, word)
    )
    case = case_of(scaling, size=(24, 32, 416))
    given = operands.operands(case, "cpu")
    for ours in competitors.scaled(case, given, ["auto"])[: len(case.sums)]:
        ours.run(*given)
    device = asked[0].device
    assert asked == [competitors.problem_of(case, device, how) for how in case.sums]
    h200 = types.SimpleNamespace(of=lambda device: DEVICES[90])
    monkeypatch.setattr(competitors, "Device", h200)
    items = competitors.chosen(case)
    assert [problem.scales.promoted for _, problem, _ in items] == [True, False][: len(items)]
    assert len(items) == (1 if scaling == "block" else 2)


# What is searched


@interpreted
@pytest.mark.parametrize("scaling", SCALINGS)
def test_candidates_are_exact_on_integers_and_a_wrong_scale_is_found(scaling):
    case = case_of(scaling, size=(24, 32, 272))
    tasks = tasks_of([case], None)
    assert [task.how for task in tasks] == case.sums
    given, want = operands.integers(case, "cpu")
    for task in tasks:
        task.competitor(task.options[0]).run(*given)
        assert operands.exactly(given[2], want).ok
        assert str(task).endswith("fast sums") is (task.how == FAST)
    a, b, c, of_a, of_b = given
    of_b[-1, -1] *= 2
    task.competitor(task.options[0]).run(a, b, c, of_a, of_b)
    assert not operands.exactly(c, want).ok


def test_a_searched_products_line_is_the_problem_that_was_searched():
    device = DEVICES[90]
    line = {"M": 24, "N": 32, "K": 272, "layout": "NT", "dtype": "fp8", "out": "bf16"}
    for how, word in ((None, "block"), (FAST, "row"), (None, "row")):
        row = line | {"scaling": word, "us": 3.0, "kernel": "scaled"}
        row["config"] = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 128}
        row |= {"accumulate": how} if how else {}
        sample = samples._sample(row, {"scaled": find("scaled")}, device, 1)
        case = case_of(word, size=(24, 32, 272))
        assert sample.problem == competitors.problem_of(case, device, how)
        assert sample.problem.scales.promoted is (how != FAST)


def test_fp8_without_scales_and_int8_with_them_are_not_searched(capsys):
    assert tasks_of([Case(64, 64, 64, "NT", "fp8"), case_of("row", dtype="int8")], None) == []
    assert capsys.readouterr().err.count("fp8 is searched with scales") == 2


# Groups


def group_case(scaling, cut, sizes):
    size = (24, 32, 272) if cut == "m" else (24, 32, 640)
    groups = Groups(cut, 4, 1, sizes)
    return Case(*size, "NT", "fp8", scaling=scaling, groups=groups)


GROUPED = [("row", "m"), ("block", "m"), ("row", "k"), ("block", "k")]


@interpreted
@pytest.mark.parametrize("sizes", [BALANCED, EMPTY])
@pytest.mark.parametrize(("scaling", "cut"), GROUPED)
def test_groups_with_scales_are_right_and_dense_products_stand_beside(scaling, cut, sizes):
    case = group_case(scaling, cut, sizes)
    there = FakeBench(case, {})
    found = {each.name: each for each in competitors.grouped(case, there.sets[0])}
    names = ["auto", AUTO_FAST][: len(case.sums)]
    for name in names:
        assert admit(found[name], there, Plan()).outcome == "measured"
    rows = scaling == "row"
    assert (found[REFERENCE].refusal is None) is (found[TORCH_FAST].refusal is None) is rows
    dense = DENSE + "auto"
    assert (dense in found) is (dense in found["auto"].rivals) is (not rows or sizes == BALANCED)
    if dense in found:
        assert admit(found[dense], there, Plan()).outcome == "measured"
    *_, offs, _, of_b = there.sets[0]
    assert len(offs) == 4 and of_b.dim() == 2 + (cut == "m" or rows)


@pytest.mark.parametrize(("scaling", "cut"), GROUPED)
def test_integers_of_groups_and_bytes_are_those_of_the_operands(scaling, cut):
    case = group_case(scaling, cut, EMPTY)
    (a, b, c, offs, *scales), want = operands.integers(case, "cpu")
    assert offs.tolist() == list(case.ends) and {
        x for t in scales for x in t.unique().tolist()
    } <= {1, 2}
    assert want[: case.ends[-1]].isfinite().all()
    used = case.groups.used(case.total) / 4 if cut == "m" else 1
    sizes = [a.numel(), used * b.numel(), c.numel() * 2]
    if scaling == "block":
        sizes += [4 * scales[0].numel(), 4 * used * scales[1].numel()]
        assert case.bytes == pytest.approx(sum(sizes))


@pytest.mark.parametrize(("scaling", "cut"), GROUPED)
def test_each_groups_product_has_its_scales(scaling, cut):
    case = group_case(scaling, cut, EMPTY)
    a, b, c, offs, of_a, of_b = operands.operands(case, "cpu")
    for x, y, z, *scales in operands.products(case, a, b, c, offs, of_a, of_b):
        right(x, y, z, *scales)
    for g, (i, j) in enumerate(itertools.pairwise([0, *offs.tolist()])):
        x, y = (dequantized(*(t[g] if t.dim() == 3 else t for t in each))
                for each in ((a, of_a), (b.mT, of_b)))  # fmt: skip
        assert cut == "m" or scaling == "row" or (i % 128, j % 128) == (0, 0)
        want = x[i:j] @ y.mT if cut == "m" else x[:, i:j] @ y[:, i:j].mT
        found = c[i:j] if cut == "m" else c[g]
        assert torch.allclose(found.double(), want.double(), rtol=0.02, atol=0.05)


# What is shown

FILE = """id,class,M,N,K,dtype,scaling
A,fp8,32,16,144,,
B,fp8,32,16,144,fp8,row
C,fp8,32,16,144,fp8,block
D,int8,32,16,144,int8,row
"""


def test_a_file_races_with_scales_and_the_view_has_both_sums(monkeypatch, tmp_path, capsys):
    seconds = on_cpu(monkeypatch)
    seconds |= {"auto": 1e-3, AUTO_FAST: 0.8e-3, REFERENCE: 1.2e-3, TORCH_FAST: 0.9e-3}
    path = tmp_path / "mine.csv"
    path.write_text(FILE)
    monkeypatch.setattr(race, "OF_FILES", {path: "scaled"})
    status, found = ran(tmp_path / "x.jsonl", "race", "--cases", path, "--rounds", "3")
    assert status == 0 and {row.experiment for row in found} == {"scaled"}
    assert [row.case.scaling for row in found if row.competitor == "auto"] == [
        None, "row", "block", "row",
    ]  # fmt: skip
    told = capsys.readouterr().out
    assert "x cuBLAS" in told and "torch fast" in told
    view = show.VIEWS["scaled"]
    table = view.table(view.chosen(found, Selection()), Selection())
    (line,) = (line for line in table.splitlines() if line.startswith("| B "))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1] == "32 x 16 x 144 NT, fp8, row scales"
    times, ratios = cells[2:6], cells[6:]
    assert [float(us) for us in times] == pytest.approx([1000, 800, 1200, 900], rel=0.1)
    assert [float(r[:5]) for r in ratios] == pytest.approx([0.9, 1.125], abs=0.02)
    assert "| fp8 | 1 | 1.12" in table and "nan" not in table
