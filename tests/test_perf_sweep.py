"""`python -m perf sweep`: what races, which run is shown, what the pictures and tables say."""

import csv
import dataclasses
import functools
import itertools
import math
import random

import pytest
import torch

from perf import bench, machine, roof, rows, sweep
from perf.commands import sweep as command
from perf.engine import Plan
from perf.machine import State
from perf.operands import operands
from perf.plots import figures
from perf.plots import sweep as plot_sweep
from perf.roof import Roof
from perf.rows import NULL, REFERENCE, Row
from perf.stats import Quantiles
from perf.sweep import SWEEPS, Sweep
from tritemm.problem import INTERPRETED, Device
from tritemm.rungs import RUNGS

from .perf_fakes import ENVIRONMENT, FakeBench, parsed_by

pytestmark = pytest.mark.host

ROOFS = roof.Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), mhz=1450.0, gbs=4200.0)
ROOF = Roof(tflops=784.0, gbs=4200.0)
RUN = "2026-01-02T03:04:05+00:00"
SWEPT = [kernel for kernel in RUNGS if kernel.number >= sweep.FIRST]
#: Shares of the roof at large sizes, by rung number, and those of rungs yet to come.
SHARES = {3: 0.28, 4: 0.29, 7: 0.75, 8: 0.85, 9: 0.868}
MORE = {5: ("permuted", 0.4), 6: ("async", 0.43), 10: ("warp_specialized", 0.86),
        11: ("pingpong", 0.89), 12: ("split_k", 0.84), 13: ("stream_k", 0.875)}  # fmt: skip


def field(more=False):
    """(name, number, share of the roof) of each line, cuBLAS last."""
    known = [(k.name, k.number, SHARES.get(k.number, 0.8)) for k in SWEPT]
    known += [(name, number, share) for number, (name, share) in MORE.items()] if more else []
    return [*sorted(known, key=lambda line: line[1]), (REFERENCE, None, 0.86)]


def made_up(
    name, run=RUN, sizes=None, who=None, layout="NT", dtype="bf16", environment=ENVIRONMENT
):
    """Rows of one run of a sweep: latency, then memory, then the share of the roof."""
    rng, found = random.Random(name), []
    for size in sizes or SWEEPS[name].sizes:
        case = SWEEPS[name].case(size, layout, dtype)
        reference = None
        for competitor, number, share in reversed(who or field()):
            share *= 0.8 if competitor == "split_k" and size > 2000 else 1
            us = (ROOF.floor(case) / share + 3) * rng.uniform(1, 1.06)
            reference = reference or us
            ratio = reference / us
            found.append(
                Row(
                    experiment="sweep", run=run, time=run, command="", mode="sustained",
                    environment=environment, case=case, roof=ROOF,
                    problem={"id": f"{name} {size}", "class": name, "name": SWEEPS[name].title},
                    competitor=competitor, ladder=number and "triton", number=number,
                    rung=competitor if number else None, config=None, outcome="measured",
                    us=Quantiles(us * 0.98, us, us * 1.03), tflops=case.flops / us / 1e6,
                    ratio=Quantiles(ratio * 0.99, ratio, ratio * 1.01), null=Quantiles(0.99, 1, 1),
                )
            )  # fmt: skip
    return found


def lost(found, name, size, outcome="refused"):
    """The rows, with one competitor's at one size without a time."""
    nothing = {"us": None, "tflops": None, "ratio": None, "outcome": outcome, "reason": "because"}
    return [
        dataclasses.replace(row, **nothing)
        if row.competitor == name and row.problem["id"].endswith(f" {size}")
        else row
        for row in found
    ]


parsed = functools.partial(parsed_by, command, "sweep")


def test_the_sweeps_are_those_of_the_documentation():
    squares, over_k, over_m = SWEEPS.values()
    assert {256, 1536, 3072, 6144, 16384} <= set(squares.sizes)
    assert squares.case(3072) == sweep.Case(3072, 3072, 3072, "NT", "bf16")
    assert (over_k.sizes[0], over_k.sizes[-1]) == (64, 16384)
    assert over_k.case(64, "TN", "fp16") == sweep.Case(8192, 8192, 64, "TN", "fp16")
    assert (over_m.sizes[0], over_m.sizes[-1]) == (1, 8192)
    assert over_m.case(16) == sweep.Case(16, 4096, 4096, "NT", "bf16")
    for each in SWEEPS.values():
        assert list(each.sizes) == sorted(set(each.sizes))
        assert set(each.quick) < set(each.sizes) and len(each.quick) == 4
        assert [each.size(each.case(size)) for size in each.sizes] == list(each.sizes)


def test_each_size_is_one_race_of_all_rungs_and_cublas():
    races = sweep.tasks(["M", "K"], dtype="fp16")
    assert [race.problem["id"] for race in races] == [
        *(f"M {size}" for size in SWEEPS["M"].sizes),
        *(f"K {size}" for size in SWEEPS["K"].sizes),
    ]
    assert races[4].case == sweep.Case(16, 4096, 4096, "NT", "fp16")
    case = sweep.Case(16, 32, 32, "NT", "fp16")
    names = [c.name for c in races[4].field(operands(case, "cpu"))]
    assert names == [*(kernel.name for kernel in SWEPT), REFERENCE, NULL]
    only = sweep.tasks(["M"], only=["simt"])[0].field(operands(case, "cpu"))
    assert [c.name for c in only] == ["simt", REFERENCE, NULL]


def test_quick_is_small():
    races = sweep.tasks(SWEEPS, quick=True)
    assert len(races) == 12
    case = sweep.Case(16, 32, 32, "NT")
    names = [c.name for c in races[0].field(operands(case, "cpu"))]
    assert names[:-2] == [k.name for k in RUNGS if k.number >= 7]
    quick = command.plan(parsed("--quick"))
    assert (quick.rounds, quick.replay, quick.settle) == (3, 0.01, 0.2)
    assert command.plan(parsed("--quick", "--rounds", "2")).rounds == 2
    assert command.plan(parsed()) == Plan(rounds=7, replay=0.02, settle=1.0)
    # Seconds of timing: the rest is compilation.
    assert len(races) * len(names) * quick.rounds * 2 * quick.replay < 15


def test_the_newest_full_run_is_shown():
    old, new = "2026-01-01T00:00:00+00:00", "2026-01-05T00:00:00+00:00"
    full, again = made_up("K", old), made_up("K", new)
    assert {row.run for row in sweep.latest_sweep(full + again, "K")} == {new}
    assert {row.run for row in sweep.latest_sweep(again + full, "K")} == {new}
    shown = sweep.latest_sweep(full, "K")
    assert [row.case.K for row in shown] == sorted(row.case.K for row in full)

    quick = made_up("K", new, SWEEPS["K"].quick)
    assert {row.run for row in sweep.latest_sweep(full + quick, "K")} == {old}
    alone = made_up("K", new, who=field()[-2:])
    assert {row.run for row in sweep.latest_sweep(full + alone, "K")} == {old}
    # Many rungs at one size don't make the fuller run one of few rungs.
    wide = made_up("K", new, sizes=(64,), who=field(more=True))
    assert {row.run for row in sweep.latest_sweep(full + wide, "K")} == {old}
    for other in (
        made_up("K", new, layout="NN"),
        made_up("K", new, dtype="fp16"),
        made_up("M", new),
    ):
        assert {row.run for row in sweep.latest_sweep(full + other, "K")} == {old}
    elsewhere = dataclasses.replace(ENVIRONMENT, gpu="NVIDIA B200")
    both = full + made_up("K", new, environment=elsewhere)
    assert sweep.latest_sweep(both, "K")[0].environment == elsewhere
    assert sweep.latest_sweep(both, "K", "NVIDIA H200")[0].environment == ENVIRONMENT
    assert sweep.latest_sweep(full, "squares") == []
    suite = [dataclasses.replace(row, experiment="suite") for row in full]
    assert sweep.latest_sweep(suite, "K") == []


def test_speeds_are_medians_between_their_percentiles_and_nan_where_there_are_none():
    found = lost(made_up("K"), "tma", 512)
    there = sweep.by_case(found)[SWEEPS["K"].case(512)]
    row = there["persistent"]
    middle, low, high = plot_sweep.speeds(there, "persistent")
    assert middle == row.tflops
    assert low == pytest.approx(row.tflops / 1.03) and high == pytest.approx(row.tflops / 0.98)
    assert all(map(math.isnan, plot_sweep.speeds(there, "tma")))
    assert all(map(math.isnan, plot_sweep.speeds(there, "nope")))
    case = row.case
    # 8192 x 8192 x 512 moves 151 MB, 36 us; its arithmetic takes 88 us.
    assert plot_sweep.speeds(there, "roof")[0] == pytest.approx(784)
    memory = sweep.roof_tflops(dataclasses.replace(row, case=SWEEPS["K"].case(64)))
    assert memory == pytest.approx(
        2 * 8192**2 * 64 / ((2 * 8192 * 64 + 8192**2) * 2 / 4.2e12) / 1e12
    )
    assert case.K == 512


@pytest.fixture
def libraries():
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")


@pytest.mark.parametrize("name", SWEEPS)
def test_the_picture_and_the_table(name, libraries, tmp_path):
    from matplotlib import pyplot, rcParams
    from PIL import Image

    before, looks = pyplot.get_fignums(), dict(rcParams)
    size = SWEEPS[name].sizes[2]
    found = lost(made_up(name), "tma", size)
    picture, table = plot_sweep.draw(found, tmp_path / "new" / f"sweep-{name}.png")
    assert (picture.name, table.name) == (f"sweep-{name}.png", f"sweep-{name}.csv")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [table.name, picture.name]
    with Image.open(picture) as image:
        assert image.size == (1600, 920)
    shown = sweep.latest_sweep(found, name)
    assert figures.drawn_from(picture) == figures.digest(shown, plot_sweep.DRAWING)
    assert pyplot.get_fignums() == before
    assert {k: v for k, v in rcParams.items() if k != "backend"} == {
        k: v for k, v in looks.items() if k != "backend"
    }

    with open(table, newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line[SWEEPS[name].swept[0]]) for line in lines] == list(SWEEPS[name].sizes)
    speeds = {(row.case.M, row.case.N, row.case.K, row.competitor): row.tflops for row in found}
    columns = {"09 persistent": "persistent", "08 tma": "tma", "cuBLAS": REFERENCE}
    for line in lines:
        for column, competitor in columns.items():
            cell = line[f"{column} (TFLOP/s)"]
            want = speeds[int(line["M"]), int(line["N"]), int(line["K"]), competitor]
            assert (float(cell) if cell else None) == (want and pytest.approx(want, rel=1e-3))
        assert float(line["roof (TFLOP/s)"]) <= 784
    assert [line["08 tma (TFLOP/s)"] == "" for line in lines].index(True) == 2


def test_other_layouts_have_other_names_and_nothing_is_not_drawn(libraries, tmp_path):
    other = made_up("K", layout="NN", dtype="fp16")
    picture, _ = plot_sweep.draw_latest(other, tmp_path, layout="NN", dtype="fp16")
    assert picture.name == "sweep-K-NN-fp16.png"
    with pytest.raises(ValueError, match="no measured row"):
        plot_sweep.draw(
            lost(made_up("K", sizes=[64], who=field()[:1]), "tiled", 64), tmp_path / "x.png"
        )
    both = made_up("K") + made_up("M", who=field(more=True))
    written = plot_sweep.draw_latest(both, tmp_path)
    assert [path.name for path in written[::2]] == ["sweep-K.png", "sweep-M.png"]
    unknown = [dataclasses.replace(row, roof=None) for row in made_up("K")]
    _, table = plot_sweep.draw(unknown, tmp_path / "x.png")
    assert "roof" not in table.read_text()


def test_labels_keep_their_order_and_their_distance():
    assert plot_sweep.spread([0.2, 0.8], 0.1) == [0.2, 0.8]
    assert plot_sweep.spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert plot_sweep.spread([1.0, 0.99, 0.98, 0.1], 0.1) == pytest.approx([1, 0.9, 0.8, 0.1])
    assert plot_sweep.spread([0.0, 0.01], 0.1) == pytest.approx([0, 0.1])
    rng = random.Random(0)
    for _ in range(50):
        heights = [rng.betavariate(4, 1) for _ in range(11)]
        places = plot_sweep.spread(heights, 0.05)
        order = sorted(range(11), key=heights.__getitem__)
        gaps = [places[b] - places[a] for a, b in itertools.pairwise(order)]
        assert min(gaps) >= 0.05 - 1e-9 and min(places) >= 0 and max(places) <= 1 + 1e-9


def test_the_text_has_a_line_per_size_and_the_reasons():
    found = lost(made_up("K", sizes=(64, 8192)), "tma", 64)
    # The best rung's null test is as far from 1: a tie.
    lines = sweep.text([found[: len(found) // 2], found[len(found) // 2 :]]).splitlines()
    assert lines[0] == "M = N = 8192, NT, bf16, sustained, TFLOP/s"
    assert [line.split()[0] for line in lines[2:4]] == ["64", "8192"]
    assert lines[-1] == "08 tma at K 64: refused: because"
    best = max((r for r in found[len(found) // 2 :] if r.rung), key=lambda row: row.tflops)
    tie = "=" if best.tie else ""
    assert lines[3].endswith(f"{best.competitor} {tie}{best.ratio.p50:.3f}")
    assert sweep.text([]) == "nothing was measured"


SMALL = Sweep("K", "M = N = 32", "K", sizes=(16, 32, 48), quick=(16, 32), fixed=32)


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """The command on the CPU: small sizes, interpreted rungs, made-up times."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    make = lambda case, plan, probe: FakeBench(case, {})  # noqa: E731
    monkeypatch.setattr(command, "unable", lambda command: None)
    monkeypatch.setattr(command, "FIGURES", tmp_path / "figures")
    monkeypatch.setitem(SWEEPS, "K", SMALL)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr("perf.session.RESULTS", tmp_path)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0))
    monkeypatch.setattr(roof, "measure", lambda probe: ROOFS)
    monkeypatch.setattr(bench, "BENCHES", {"sustained": make})
    return tmp_path


def test_the_command_measures_records_and_draws(timed, libraries, capsys, monkeypatch):
    words = ["--what", "k", "--only", "tiled,pipelined"]
    assert command.run(parsed(*words)) == 0
    found = rows.read(timed / "nvidia-h200.jsonl")
    names = ["tiled", "pipelined", REFERENCE]
    assert [row.competitor for row in found] == names * 3
    assert [row.case.K for row in found[::3]] == [16, 32, 48]
    assert {(row.experiment, row.problem["class"], row.roof.gbs) for row in found} == {
        ("sweep", "K", 4200.0)
    }
    assert {row.null is not None and row.rounds for row in found} == {7}
    written = sorted(path.name for path in (timed / "figures").iterdir())
    assert written == ["sweep-K.csv", "sweep-K.png"]
    told = capsys.readouterr()
    assert "M = N = 32, NT, bf16, sustained, TFLOP/s" in told.out
    assert "[3/3] K 48 M = N = 32: 32 x 32 x 48 NT, bf16" in told.err

    # A smaller run afterwards leaves the picture as it was.
    drawn = figures.drawn_from(timed / "figures" / "sweep-K.png")
    every = sweep.tasks
    monkeypatch.setattr("perf.session.now", lambda: "2999-01-01T00:00:00+00:00")
    monkeypatch.setattr(sweep, "tasks", lambda *names, **options: every(*names, **options)[:1])
    assert command.run(parsed(*words)) == 0
    assert [row.run[:4] for row in rows.read(timed / "nvidia-h200.jsonl")[9:]] == ["2999"] * 3
    assert figures.drawn_from(timed / "figures" / "sweep-K.png") == drawn


def test_quick_and_out_draw_only_into_a_folder(timed, libraries, capsys):
    words = ["--what", "k", "--only", "pipelined"]
    assert command.run(parsed(*words, "--quick")) == 0
    assert list(timed.iterdir()) == []
    assert "nothing is recorded" in capsys.readouterr().err
    assert command.run(parsed(*words, "--quick", "--out", str(timed / "x.jsonl"), "--json")) == 0
    assert [path.name for path in timed.iterdir()] == ["x.jsonl"]
    printed = capsys.readouterr().out.splitlines()
    assert [Row.from_json(line).competitor for line in printed] == ["pipelined", REFERENCE] * 2
    assert command.run(parsed(*words, "--quick", "--folder", str(timed / "here"))) == 0
    assert {path.name for path in (timed / "here").iterdir()} == {"sweep-K.csv", "sweep-K.png"}


def test_what_is_missing_is_said_before_anything_is_measured(timed, monkeypatch, capsys):
    monkeypatch.setattr(plot_sweep.importlib.util, "find_spec", lambda name: None)
    measured = []
    monkeypatch.setattr(roof, "measure", lambda probe: measured.append(probe))
    assert command.run(parsed()) == 2
    sentence = "triton.testing's plots need matplotlib and pandas: pip install matplotlib pandas\n"
    assert capsys.readouterr().err == sentence
    assert measured == []
    # What draws nothing needs neither.
    assert command.run(parsed("--what", "k", "--only", "pipelined", "--quick")) == 0
    assert measured


@pytest.mark.parametrize(
    "words", [["--what", "n"], ["--layout", "XX"], ["--only", "nope"], ["--dtype", "fp64"]]
)
def test_wrong_words_are_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        parsed(*words)
    assert words[1] in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_the_command_says_so(capsys):
    assert command.run(parsed()) == 2
    assert "needs a CUDA device" in capsys.readouterr().err
