"""Both ladders in one race: twins, rivals, rows and tables."""

import dataclasses

import pytest
import torch

from cuda_reference import loader
from perf import ahead, competitors, operands, report, rows, select
from perf.plots import ladder as plot
from perf.reference import reference
from perf.rows import HALF, NULL, REFERENCE
from perf.stats import Quantiles
from perf.twins import named, rivals, twins
from tritemm.problem import Problem

from .perf_fakes import HALF_CASE, FakeBench, by_name, fake, headed, kept, rows_after

pytestmark = pytest.mark.host

TWINS = [
    headed("k01_simt", "nothing", "simt_naive"),
    headed("k03_tiled", "simt: tiles", "wmma_base and mma_base"),
    headed("k09_persistent", "tiled: a loop", "wgmma_persistent"),
]
CUDA_TWINS = [
    headed("k01_simt_naive", "nothing", "simt"),
    headed("k02_wmma_base", "simt_naive: wmma", "tiled"),
    headed("k03_mma_base", "simt_naive: ldmatrix and mma", "tiled, swizzled"),
    headed("k04_mma_permuted", "mma_base: no conflicts", "permuted, tiled"),
    headed("k05_wgmma", "nothing: another instruction", "pipelined", why_not=lambda p: "no fp16"),
]


@pytest.fixture(scope="module")
def compared():
    seconds = {"tiled": 1e-3, "wmma_base": 2e-3, "mma_base": 1.25e-3, "simt": 0.4, HALF: 0.9e-3}
    bench = FakeBench(HALF_CASE, seconds)
    field = competitors.ladders(HALF_CASE, bench.sets[0], cuda=CUDA_TWINS, triton=TWINS)
    return kept(rows_after(field, bench))


def test_twins_are_named_by_either_header():
    _, tiled, persistent = TWINS
    permuted = CUDA_TWINS[3]
    assert named(tiled, CUDA_TWINS) == ("wmma_base", "mma_base")
    assert twins(tiled, CUDA_TWINS) == ("wmma_base", "mma_base", "mma_permuted")
    assert twins(permuted, TWINS) == ("tiled",)
    assert twins(persistent, CUDA_TWINS) == ()
    # Where no twin is built, the twins of the rung below are the nearest.
    assert rivals(persistent, TWINS, CUDA_TWINS) == twins(tiled, CUDA_TWINS)
    alone = headed("k06_mma_async", "mma_permuted: copies", "async")
    assert rivals(alone, [*CUDA_TWINS, alone], TWINS) == ("tiled",)
    assert rivals(CUDA_TWINS[-1], CUDA_TWINS, TWINS) == ()


def test_both_ladders_race_and_ratios_stay_on_their_ladder(compared):
    found = by_name(compared)
    assert list(found) == [
        *(k.name for k in TWINS), *(k.name for k in CUDA_TWINS), REFERENCE, NULL, HALF
    ]  # fmt: skip
    assert {row.ladder for row in compared} == {"triton", "cuda", None}
    assert found["simt_naive"].below is None
    assert found["tiled"].below == "simt"
    # Numbers collide between the ladders, and a CUDA rung is compared with what it adds to.
    assert found["wmma_base"].below == found["mma_base"].below == "simt_naive"
    assert found["mma_permuted"].below == "mma_base"
    assert found["wgmma"].outcome == "refused"


def test_twins_are_compared_within_rounds(compared):
    found = by_name(compared)
    assert set(found["mma_base"].versus) == {"tiled", HALF}
    assert found["mma_base"].versus["tiled"].p50 == pytest.approx(0.8, abs=0.01)
    assert found["tiled"].versus["mma_base"].p50 == pytest.approx(1.25, abs=0.01)
    assert found["tiled"].versus[HALF].p50 == pytest.approx(0.9, abs=0.01)
    assert found[HALF].ratio.p50 == pytest.approx(1 / 0.9, abs=0.01)
    assert found[HALF].versus is None
    assert found["simt_naive"].versus["simt"].p50 == pytest.approx(400, rel=0.1)


def test_cublas_accumulates_in_fp16_only_where_that_is_compared():
    case = dataclasses.replace(HALF_CASE, accumulate="fp32")
    field = competitors.ladders(case, operands.operands(case, "cpu"), cuda=CUDA_TWINS, triton=TWINS)
    assert HALF not in [competitor.name for competitor in field]
    assert all(HALF not in competitor.rivals for competitor in field)
    flags, seen = torch.backends.cuda.matmul, []

    class Out:
        @classmethod
        def __torch_function__(cls, *_):
            seen.append(flags.allow_fp16_accumulation)

    for accumulate in ("fp16", "fp32"):
        reference(HALF_CASE, accumulate)(Out(), Out(), Out())
    assert seen == [True, False]


def test_a_wrong_fp16_sum_is_found_where_the_bound_is_wide():
    """At K = 2048 the bound of an fp16 accumulator is several times as large as the result."""
    case = dataclasses.replace(HALF_CASE, K=2048)

    def spoil(c):
        c[3, 5] += 16

    verdicts = {}
    for name, kernel in (("good", fake("k01_good")), ("bad", fake("k02_bad", spoil))):
        bench = FakeBench(case, {})
        before = [operand.clone() for operand in bench.sets[0]]
        problem = Problem.of(*bench.sets[0], accumulate=torch.float16)
        [competitor] = competitors.of_kernels(problem, [kernel])
        loop = bench.loop(competitor)
        verdicts[name] = bench.verify(loop)
        assert bench.verify(loop, "fp32").ok == (name == "good")
        assert all(map(torch.equal, bench.sets[0][:2], before[:2]))
    assert verdicts["good"].ok
    assert str(verdicts["bad"]) == "1 of 1920 sums of small integers are not exact"


def test_tables_of_a_comparison(compared):
    text = report.text_table(compared)
    line = {words[0]: line for line in text.splitlines() if (words := line.split())}
    assert line["mma_base"].endswith("tiled 1.25")
    assert line["wgmma"].endswith("refused: no fp16")
    chosen = select.latest_compare(
        compared, size=(48, 40, 32), layout="NT", dtype="fp16", accumulate="fp16"
    )
    cuda, refused, triton = report.markdown_compare(chosen).split("\n\n")
    assert refused == "`wgmma` refused: no fp16."
    for table, timed in ((cuda, len(CUDA_TWINS) - 1), (triton, len(TWINS))):
        lines = table.splitlines()
        assert len(lines) == 2 + timed + 2
        assert len({line.count("|") for line in lines}) == 1
        assert "x cuBLAS fp16" in lines[0]
        assert lines[-2].startswith("| cuBLAS |") and lines[-1].startswith("| cuBLAS fp16 |")
    assert cuda.splitlines()[4].endswith("tiled 1.25 |")
    assert "(mma_base)" not in cuda  # it stands in the line before mma_permuted


def test_ties_with_a_twin_are_named(compared):
    row = by_name(compared)["mma_base"]
    tied = dataclasses.replace(row, versus={"tiled": Quantiles(0.99, 1.001, 1.01)})
    assert "tiled 1.00 (tie)" in report.text_table([tied])


def test_each_ladder_is_chosen_from_the_same_file(compared):
    chosen = {"size": (48, 40, 32), "dtype": "fp16", "accumulate": "fp16"}
    names = [row.competitor for row in select.latest_ladder(compared, **chosen)]
    assert names == [*(kernel.name for kernel in TWINS), REFERENCE, HALF]
    triton_alone = [row for row in compared if row.ladder != "cuda"]
    assert select.latest_compare(triton_alone, **chosen) == []
    assert len(select.latest_compare(compared, **chosen)) == len(names) + len(CUDA_TWINS)


def test_rows_of_a_comparison_survive_the_round_trip(compared, tmp_path):
    path = tmp_path / "x.jsonl"
    rows.append(path, compared)
    assert rows.read(path) == compared


def test_a_comparison_is_drawn(compared, tmp_path):
    path = tmp_path / "compare.png"
    plot.plot_compare(compared, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000
    with pytest.raises(ValueError, match="no measured row"):
        plot.plot_compare([], path)


def test_where_cuda_is_unavailable_the_reason_is_given_once(monkeypatch):
    monkeypatch.setattr(loader, "unavailable", lambda: "nvcc was not found")
    monkeypatch.setattr(loader, "build", lambda names: pytest.fail("nothing can be built"))
    assert ahead.build([]) == (None, {})
    assert ahead.build(["mma_base"]) == ("nvcc was not found", {})


def test_what_does_not_build_is_a_failed_row_and_is_not_built_again(monkeypatch):
    monkeypatch.setattr(loader, "unavailable", lambda: None)
    monkeypatch.setattr(loader, "build", lambda names: {"mma_base": "mma_base does not compile"})
    unavailable, broken = ahead.build(["wmma_base", "mma_base"])
    assert unavailable is None
    bench = FakeBench(HALF_CASE, {})
    field = competitors.ladders(
        HALF_CASE, bench.sets[0], cuda=CUDA_TWINS, triton=TWINS, broken=broken
    )
    found = by_name(rows_after(field, bench))
    assert found["mma_base"].outcome == "failed"
    assert found["mma_base"].reason == "RuntimeError: mma_base does not compile"
    assert found["mma_permuted"].below == "wmma_base"
