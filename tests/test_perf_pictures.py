"""The pictures of the suite, of random problems and of the roofs, and the digest they carry."""

import dataclasses
import itertools
import math
import random

import pytest

from perf import problems, roofline, summary
from perf.case import Case
from perf.plots import figures
from perf.plots import random as plot_random
from perf.plots import roofline as plot_roofline
from perf.plots import suite as plot_suite
from perf.roof import Roof
from perf.rows import REFERENCE, Row
from perf.stats import Quantiles, geomean

from .perf_fakes import heading

pytestmark = pytest.mark.host

pytest.importorskip("matplotlib")

#: Dense TFLOP/s at 1410 MHz, by type; GB/s of a copy.
DENSE = {"bf16": 762, "fp16": 762, "fp8": 1525, "int8": 1525, "tf32": 381, "fp32": 50, "fp64": 50}
GBS = 4280.0
REFUSED, FAILED, TIED, LOST = "R7", "M1", "S1", "R12"


def timed(shared, competitor, us, ratio, **fields):
    """A measured row whose p20 and p80 are 1 % from the medians."""
    return Row(
        **{field.name: getattr(shared, field.name) for field in dataclasses.fields(shared)},
        competitor=competitor, rung=None, number=None, config=None, outcome="measured",
        us=Quantiles(us * 0.99, us, us * 1.01),
        ratio=Quantiles(ratio * 0.99, ratio, ratio * 1.01),
        null=Quantiles(0.998, 1.0, 1.003), **fields,
    )  # fmt: skip


def without(row, outcome, reason):
    """The row of what has no time."""
    nothing = dict.fromkeys(("us", "ratio", "null"))
    return dataclasses.replace(row, outcome=outcome, reason=reason, **nothing)


def raced(experiment, listed, ratio_of):
    """A row of "auto" and one of cuBLAS for each problem; `ratio_of(problem, rng)`."""
    rng, found = random.Random(2), []
    for problem in listed:
        roof = Roof(DENSE[roofline.name(problem.case)], GBS)
        shared = heading(
            problem.case, experiment=experiment, run="r", problem=problem.to_json(), roof=roof
        )
        theirs = roof.floor(problem.case) / rng.uniform(0.3, 0.95) + 2
        ratio = ratio_of(problem, rng)
        found.append(timed(shared, "auto", theirs / ratio, ratio))
        found.append(timed(shared, REFERENCE, theirs, 1.0))
    return found


def suite():
    """The real suite with made-up ratios, among them the planted ones."""
    planted = {TIED: 1.002, LOST: 0.05, "R1": 2.5}

    def ratio(problem, rng):
        return planted.get(problem.id, min(2.5, math.exp(rng.gauss(0.04, 0.12))))

    found = []
    for row in raced("suite", problems.read_suite(), ratio):
        if row.problem["id"] == REFUSED and row.competitor == "auto":
            row = without(row, "refused", "K of 2686391 is no multiple of 8, which TMA wants")
        if row.problem["id"] == FAILED:
            if row.competitor == "auto":
                continue
            row = without(row, "failed", "CUDA out of memory. Tried to allocate 3.95 GiB")
        found.append(row)
    return found


def chance():
    """Random problems; the less aligned, the slower."""

    def ratio(problem, rng):
        return math.exp(rng.gauss(0.02 if "of" in problem.group else -0.3, 0.25))

    return raced("random", problems.random_problems(200, 1), ratio)


def roofs():
    found = []
    for case in roofline.cases():
        tflops = DENSE[roofline.name(case)] * (1.03 if case.dtype == "fp16" else 1)
        shared = heading(case, experiment="roofline", run="r", roof=Roof(tflops, GBS))
        us = case.flops / tflops / 1e6 / 0.86
        found.append(timed(shared, REFERENCE, us, 1.0, sm_mhz=1410.0))
    return found


CUBLAS_ALONE = [row for row in suite() if row.competitor == REFERENCE]
UNTIMED = [without(row, "refused", "no") for row in suite()]


def is_drawn(path):
    return path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 40_000


def test_the_suite_is_drawn_and_bears_the_digest_of_its_rows(tmp_path):
    found, path = suite(), tmp_path / "suite.png"
    plot_suite.plot_suite(found, path)
    assert is_drawn(path)
    assert figures.drawn_from(path) == figures.digest(found, plot_suite.DRAWING)


def test_random_problems_are_drawn_and_bear_the_digest_of_their_rows(tmp_path):
    found, path = chance(), tmp_path / "random.png"
    plot_random.plot_random(found, path)
    assert is_drawn(path)
    assert figures.drawn_from(path) == figures.digest(found, plot_random.DRAWING)


def test_the_roofline_is_drawn_and_bears_the_digest_of_both_runs(tmp_path):
    above, below, path = roofs(), suite(), tmp_path / "roofline.png"
    plot_roofline.plot_roofline(above, below, path)
    assert is_drawn(path)
    assert figures.drawn_from(path) == figures.digest([*above, *below], plot_roofline.DRAWING)


def test_an_svg_bears_the_digest_and_no_date(tmp_path):
    found, path = chance(), tmp_path / "random.svg"
    plot_random.plot_random(found, path)
    assert figures.drawn_from(path) == figures.digest(found, plot_random.DRAWING)
    assert "<dc:date>" not in path.read_text()


def test_random_problems_without_a_roof_are_drawn_over_their_operations(tmp_path):
    found = [dataclasses.replace(row, roof=None) for row in chance()]
    plot_random.plot_random(found, tmp_path / "random.png")
    assert is_drawn(tmp_path / "random.png")


def test_the_digest_is_of_every_field_the_order_and_the_drawing():
    found = suite()
    digest = figures.digest(found, "suite 1")
    assert digest == figures.digest(suite(), "suite 1")
    changed = [*found[:-1], dataclasses.replace(found[-1], sm_mhz=1411.0)]
    others = [changed, found[::-1], found[:-1]]
    digests = {digest, figures.digest(found, "suite 2")}
    assert len(digests | {figures.digest(other, "suite 1") for other in others}) == 5


def test_a_file_that_bears_no_digest_was_drawn_from_nothing(tmp_path):
    from matplotlib.figure import Figure

    assert figures.drawn_from(tmp_path / "none.png") is None
    for name in ("bare.png", "bare.svg"):
        Figure().savefig(tmp_path / name)
        assert figures.drawn_from(tmp_path / name) is None


@pytest.mark.parametrize("found", [[], CUBLAS_ALONE, UNTIMED])
def test_nothing_measured_is_an_error(found, tmp_path):
    path = tmp_path / "x.png"
    for draw in (plot_suite.plot_suite, plot_random.plot_random):
        with pytest.raises(ValueError, match="there is no measured row to plot"):
            draw(found, path)
    with pytest.raises(ValueError, match="there is no measured row to plot"):
        plot_roofline.plot_roofline(roofs(), found, path)
    assert not path.exists()


def test_each_problem_has_one_row_and_what_could_not_run_has_cublas_one():
    own = {row.problem["id"]: row for row in figures.shown(suite())}
    assert list(own) == [problem.id for problem in problems.read_suite()]
    assert {row.competitor for key, row in own.items() if key != FAILED} == {"auto"}
    assert (own[FAILED].competitor, own[FAILED].outcome) == (REFERENCE, "failed")
    # An interrupted race may have cuBLAS's time alone: that is no result of anything else.
    alone = [row for row in suite() if row.problem["id"] != TIED or row.competitor == REFERENCE]
    assert TIED not in {row.problem["id"] for row in figures.shown(alone)}


def test_the_competitor_is_auto_the_named_one_or_the_first():
    auto = suite()
    other = [dataclasses.replace(r, competitor="tma") for r in auto if r.competitor == "auto"]
    assert {row.competitor for row in figures.shown([*other, *auto])} == {"auto", REFERENCE}
    named = figures.shown([*auto, *other], "tma")
    assert {row.competitor for row in named} == {"tma", REFERENCE}
    assert {row.competitor for row in figures.shown(other)} == {"tma"}
    assert figures.called(named) == "tritemm.matmul, kernel='tma'"
    assert figures.called(auto) == "tritemm.matmul"


def test_the_suite_s_lines_are_heads_with_their_problems_below_each_other():
    own = figures.shown(suite())
    lines = plot_suite.layout(own)
    heads = [line.head for line in lines if line.head]
    classes = problems.classes(problems.read_suite())
    assert [head.name for head in heads] == classes
    assert len(lines) == len(own) + len(classes)
    assert all(b.place - a.place >= 1 for a, b in itertools.pairwise(lines))
    group = None
    for line in lines:
        group = line.head.name if line.head else group
        assert line.head or line.row.problem["class"] == group
    # Late problems of a class (S12 and S13 end the file) stand with it.
    square = [line.row.problem["id"] for line in lines if line.row and line.row.problem["class"]
              == "square"]  # fmt: skip
    assert square == [f"S{i}" for i in range(1, 14)]
    ratios = [r.ratio.p50 for r in own if r.ratio and r.problem["class"] == "decode"]
    assert heads[classes.index("decode")].geomean == pytest.approx(geomean(ratios))
    assert heads[classes.index("mixed")].timed == 0


def test_verdicts_agree_with_the_summary():
    own = [row for row in figures.shown(suite()) if row.ratio]
    verdicts = {row.problem["id"]: plot_suite.verdict(row) for row in own}
    assert verdicts[TIED] == plot_suite.TIE
    assert verdicts[LOST] == plot_suite.LOSS
    assert verdicts["R1"] == plot_suite.WIN
    total = summary.summarise(own)[-1]
    counts = [list(verdicts.values()).count(v) for v in (plot_suite.WIN, plot_suite.TIE)]
    assert counts == [total.wins, total.ties]
    assert sum(counts) + total.losses == len(own)


def test_problems_are_written_compactly():
    case = Case(8192, 28672, 4096, "NT")
    assert plot_suite.compact(case) == "8192x28672x4096 NT bf16"
    tf32 = Case(64, 64, 64, "NN", "fp32", "fp32", "tf32", batch=9)
    assert plot_suite.compact(tf32) == "9x64x64x64 NN tf32"
    assert plot_suite.compact(dataclasses.replace(case, out_dtype="fp32")).endswith("bf16→fp32")


@pytest.mark.parametrize("values", [[1.0], [0.97, 1.04], [0.6, 1.8], [0.05, 3.0]])
def test_an_axis_of_ratios_shows_all_of_them_one_and_a_few_ticks(values):
    from matplotlib.figure import Figure

    low, high = figures.ratio_limits(values)
    assert low < min(*values, 0.9) and max(*values, 1.1) < high
    axes = Figure().subplots()
    axes.set_xscale("log", base=2)
    figures.ratio_ticks(axes.xaxis, low, high)
    ticks = dict(zip(axes.get_xticks(), axes.get_xticklabels(), strict=True))
    assert 3 <= len(ticks) <= 14
    assert ticks[1.0].get_text() == "1"
    assert all(low <= tick <= high for tick in ticks)


def test_roofs_are_of_the_suite_s_types_each_at_its_own_clock():
    below = [row for row in suite() if row.competitor == "auto" and row.us]
    found = plot_roofline.roofs_of(roofs(), below)
    assert set(found) == {"bf16", "fp16", "fp8", "int8", "tf32"}
    assert found["fp16"].tflops == pytest.approx(762 * 1.03)
    assert plot_roofline.alike(found) == [["fp8", "int8"], ["fp16", "bf16"], ["tf32"]]
    # A type that `roofline` did not measure has the roof of the suite's own run.
    part = [row for row in roofs() if row.case.dtype != "fp16"]
    assert plot_roofline.roofs_of(part, below)["fp16"].tflops == 762
    assert plot_roofline.roofs_of([], below)["bf16"] == Roof(762, GBS)


def test_the_furthest_below_the_roof_come_first():
    below = [row for row in suite() if row.competitor == "auto" and row.us]
    drawn = plot_roofline.roofs_of(roofs(), below)
    found = plot_roofline.furthest(below, drawn)
    shares = [plot_roofline.share(row, drawn) for row in found]
    assert shares == sorted(shares) and len(shares) == len(below)
    assert LOST in [row.problem["id"] for row in found[:3]]
    slope = next(row for row in found if row.problem["id"] == "D1")  # bound by the copy
    assert plot_roofline.share(slope, drawn) == pytest.approx(slope.gbs / GBS)


def test_without_a_roof_there_is_no_roofline(tmp_path):
    bare = [dataclasses.replace(row, roof=None) for row in suite()]
    with pytest.raises(ValueError, match="no row has a roof"):
        plot_roofline.plot_roofline([], bare, tmp_path / "x.png")
