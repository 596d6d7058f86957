"""`python -m perf ladder | sweep | table | plot` on the CPU, and the pictures."""

import csv
import dataclasses
import functools

import pytest

from cuda_reference import loader
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from perf import __main__, competitors, figures, problems, rows, rungs, tables
from perf.case import Case
from perf.experiments import roofline, show, sweep
from perf.experiments.sweep import SWEEPS
from perf.rows import CUDA, HALF, NULL, REFERENCE
from perf.views import Selection
from tests.perf.fakes import ROOFS, Clock, on_cpu, ran
from tritemm.rungs import RUNGS

pytestmark = [pytest.mark.host, pytest.mark.once]
pytest.importorskip("matplotlib")

RUNG, CUDA_RUNG = RUNGS[1].name, CUDA_RUNGS[0].name
SMALL = "id,class,name,M,N,K\n" + "".join(f"K {n},K,M = N = 32,32,32,{n}\n" for n in (16, 32, 48))


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Small sizes; CUDA's rungs are built, but take no CPU tensors."""
    monkeypatch.setattr(loader, "unavailable", lambda: None)
    monkeypatch.setattr(loader, "build", lambda names: {})
    (tmp_path / "small.csv").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return on_cpu(monkeypatch)


# The commands

LADDER = ("ladder", "--size", "48x40x32", "--rounds", "3")
SWEEP = ("sweep", "--file", "small.csv", "--rounds", "3")


def test_the_ladder_races_both_and_records(timed, tmp_path, monkeypatch, capsys):
    path, timed[RUNG], only = tmp_path / "x.jsonl", 0.2, ("--only", f"{RUNG},{CUDA_RUNG}")
    ran(path, *LADDER, *only)
    status, found = ran(path, *LADDER, *only, "--accumulate", "fp16")
    assert status == 0
    assert capsys.readouterr().out.count(", sustained. NVIDIA H200") == 2
    names = [RUNG, CUDA_RUNG, REFERENCE, NULL]
    assert [row.competitor for row in found] == [*names, *names, HALF]
    assert {row.reason for row in found if row.outcome == "refused"} == {
        "the tensors are on the CPU; a CUDA kernel needs them on a GPU"
    }
    monkeypatch.setattr(loader, "unavailable", lambda: "nvcc was not found")
    assert ran(path, *LADDER, *only)[0] == 0
    told = capsys.readouterr()
    assert told.err.count("nvcc was not found") == 1 and CUDA_RUNG not in told.out


def test_ctrl_c_keeps_what_was_measured(timed, tmp_path, monkeypatch):
    def interrupted(self):
        if self.ticks > 6:
            raise KeyboardInterrupt
        self.ticks += 1
        return 1.0

    monkeypatch.setattr(Clock, "slowness", interrupted)
    words = ("ladder", "--size", "48x40x32", "--ladders", "triton", "--only", RUNGS[2].name)
    status, found = ran(tmp_path / "x.jsonl", *words, "--rounds", "9")
    assert status == 130 and sum(row.rounds for row in found) == 7


def test_the_sweep_measures_and_records(timed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loader, "unavailable", lambda: "nvcc was not found")
    status, found = ran(tmp_path / "x.jsonl", *SWEEP, "--only", "tiled,mma_base,pipelined")
    names = ["tiled", "pipelined", "auto", REFERENCE]
    assert status == 0 and [row.competitor for row in found] == names * 3
    assert [row.case.K for row in found[::4]] == [16, 32, 48]
    assert {(r.experiment, r.problem["class"], r.roof.gbs, r.rounds) for r in found} == {
        ("sweep", "K", 4200.0, 3)
    }
    told = capsys.readouterr()
    assert "32 x 32 x 48 NT, bf16, sustained. NVIDIA H200" in told.out
    assert "[3/3] K 48 M = N = 32: 32 x 32 x 48 NT, bf16" in told.err
    assert "the CUDA ladder takes no part: refused: nvcc was not found" in told.err


# What a sweep races


def test_few_sizes_come_first_then_the_cheapest_and_rungs_are_derived():
    found = problems.read_suite(sweep.SIZES)
    for each in found:
        assert SWEEPS[each.group].holds(each.case) and each.case.layout == "NT"
    first, second = found[:11], found[11:]
    assert {p.group for p in first} == set(SWEEPS)
    assert [p.case.flops for p in second] == sorted(p.case.flops for p in second)
    # What lies on two sweeps is one race.
    assert len({p.case for p in found}) == len(found) == 33
    names = sweep.swept()
    assert names[:2] == ["tiled", "swizzled"]
    assert {"mma_base", "wgmma_cluster"} <= set(names) and "simt_naive" not in names


def test_what_is_compiled_ahead_is_what_races(monkeypatch):
    problem_of = functools.partial(competitors.problem_of, device=ROOFS.device)
    monkeypatch.setattr(rungs, "problem_of", problem_of)
    monkeypatch.setattr(competitors, "problem_of", problem_of)
    case, options = Case(4096, 4096, 4096, "NT", "fp16"), {"only": ["tiled", "tma"], "auto": True}
    items = rungs.items(case, triton=RUNGS, **options)
    assert [name for name, *_ in items[:2]] == ["tiled", "tma"] and len(items) == 3
    twins = rungs.items(case, triton=RUNGS, others=CUDA_RUNGS, only=["async_stages"])
    assert [config.num_stages for _, _, config in twins] == [4, 3, 2]  # those that a twin names


@pytest.fixture(scope="module")
def shown():
    """The committed rows of a view."""
    recorded = rows.recorded()
    return lambda name: show.VIEWS[name].chosen(recorded, Selection())


def lost(found, *keys, **fields):
    """The rows, without a time of these problems, or of any."""
    untimed = {"us": None, "ratio": None, "outcome": "refused"} | fields
    return [dataclasses.replace(r, **untimed) if not keys or r.id in keys else r for r in found]


def test_the_newest_full_run_of_a_sweep_is_shown(shown):
    full, late = shown("sweep-M"), "2027-01-01T00:00:00+00:00"
    (run,), sizes = {row.run for row in full}, list(dict.fromkeys(row.case.M for row in full))

    def newer(keep=lambda row: True, **of):
        kept = filter(keep, full)
        return [
            dataclasses.replace(r, run=late, case=dataclasses.replace(r.case, **of)) for r in kept
        ]

    def runs(found, name="M"):
        return {row.run for row in sweep.latest_sweep(found, name)}

    assert sizes == sorted(sizes) and len(sizes) == 9
    for more, expected in (
        (newer(), late),
        (newer(lambda row: row.case.M in sizes[:3]), run),
        (newer(lambda row: row.competitor == "tma"), run),
        # A run that ended early has most sizes, and newer kernels.
        (newer(lambda row: row.case.M in sizes[:5]), late),
        (newer(layout="NN"), run),
        (newer(dtype="fp16"), run),
    ):
        assert runs(full + more) == {expected}
    # Where this sweep crosses another is no run of that one.
    mine = [dataclasses.replace(r, problem=r.problem | {"class": "M"}) for r in full]
    assert runs(full, "squares") == {run} and runs(mine, "squares") == set()
    assert runs([dataclasses.replace(row, experiment="suite") for row in full]) == set()


def test_every_rung_has_a_line_and_the_file_a_line_per_size(tmp_path, shown):
    found = [r for r in shown("sweep-M") if r.case.M in (16, 8192)]
    found = [r for r in found if r.competitor != "tma"] + lost(
        [r for r in found if r.competitor == "tma"], "M 16"
    )
    path = show.VIEWS["sweep-M"].draw(found, tmp_path / "new" / "x.png", Selection())
    with open(path.with_suffix(".csv"), newline="") as file:
        first, last = csv.DictReader(file)
    assert (first["M"], first["08 tma (TFLOP/s)"]) == ("16", "") != last["08 tma (TFLOP/s)"]
    assert 600 < float(last["roof (TFLOP/s)"]) < 900
    for name in ("03 tiled", "tritemm.matmul", "cuBLAS"):
        own = next(r for r in found if r.case.M == 8192 and rungs.label(r) == name)
        assert float(last[f"{name} (TFLOP/s)"]) == pytest.approx(own.tflops, rel=1e-3)
    fastest = max(r.tflops for r in found if r.case.M == 8192 and r.ladder == CUDA and r.us)
    assert float(last[f"{sweep.CUDA_BEST} (TFLOP/s)"]) == pytest.approx(fastest, rel=1e-3)


# Pictures


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, "png") for name in show.PICTURES), ("ladder", "svg")]
)
def test_a_picture_is_drawn_small_and_bears_the_digest_of_its_rows(name, suffix, tmp_path, shown):
    found, view, path = shown(name), show.PICTURES[name], tmp_path / f"x.{suffix}"
    if not found:
        pytest.skip("no such row is recorded yet")
    view.draw(found, path, Selection())
    assert figures.drawn_from(path) == view.digest(found)
    data = path.read_bytes()
    if suffix == "png":
        assert data.startswith(b"\x89PNG") and 10_000 < len(data) < 400_000
    else:
        assert b"<dc:date>" not in data
    with pytest.raises(ValueError, match="no measured row"):
        view.draw(lost(found), path, Selection())


def test_the_digest_is_of_every_field_the_order_and_the_drawing(tmp_path, shown):
    found = shown("suite")
    changed = [*found[:-1], dataclasses.replace(found[-1], sm_mhz=1411.0)]
    every = {figures.digest(other, "x 1") for other in (found, changed, found[::-1], found[:-1])}
    assert len(every | {figures.digest(found, "x 2"), figures.digest(list(found), "x 1")}) == 5
    (tmp_path / "bare.png").write_bytes(b"\x89PNG")
    assert figures.drawn_from(tmp_path / "bare.png") is None
    assert figures.drawn_from(tmp_path / "none.png") is None


@pytest.mark.parametrize("values", [[1.0], [0.6, 1.8], [0.05, 3.0]])
def test_an_axis_of_ratios_shows_all_of_them_one_and_a_few_ticks(values):
    _, axes = figures.blank(2)
    low, high = figures.ratio_axis(axes.xaxis, values)
    assert low < min(*values, 0.9) and max(*values, 1.1) < high
    assert 1.0 in axes.get_xticks() and 3 <= len(axes.get_xticks()) <= 14


def test_roofs_are_of_each_type_at_its_own_clock(shown):
    every = shown("roofline")
    below = [r for r in every if r.experiment == "suite" and r.competitor == "auto" and r.us]
    found = roofline.roofs_of([r for r in every if r.experiment == "roofline"], below)
    kinds = list(dict.fromkeys(r.case.kind for r in below))
    assert list(found) == kinds and {"bf16", "fp16", "tf32", "int8"} <= set(kinds)
    # A type that `roofline` did not measure has the roof of the suite's own run.
    (first, *_) = (r for r in below if r.case.kind == "bf16")
    assert roofline.roofs_of([], below)["bf16"] == first.roof != found["bf16"]


def test_table_and_plot_read_recorded_rows(tmp_path, capsys, shown):
    path, picture, found = tmp_path / "x.jsonl", tmp_path / "ladder.png", shown("ladder")
    rows.append(path, found)
    assert __main__.main(["table", "--results", str(path)]) == 0
    assert capsys.readouterr().out.startswith(tables.markdown([rungs.one_ladder(found)]))
    assert __main__.main(["plot", "--results", str(path), "--out", str(picture)]) == 0
    assert figures.drawn_from(picture) == show.VIEWS["ladder"].digest(found)


def test_without_matplotlib_nothing_is_drawn(monkeypatch, capsys):
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    assert __main__.main(["plot"]) == 2
    assert "atplotlib is missing: pip install matplotlib\n" in capsys.readouterr().err
