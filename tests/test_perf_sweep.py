"""`python -m perf sweep`: what races, which run is shown, what the pictures and tables say."""

import csv
import dataclasses
import functools
import json
import random

import pytest
import torch

from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from perf import ahead, bench, competitors, machine, report, roof, rows, sources, sweep
from perf.commands import sweep as command
from perf.engine import Plan
from perf.machine import State
from perf.operands import operands
from perf.plots import figures
from perf.plots import sweep as plot_sweep
from perf.roof import Roof
from perf.rows import NULL, REFERENCE, Row
from perf.search import problem_of
from perf.stats import Quantiles
from perf.sweep import SWEEPS, Sweep
from perf.twins import named, rivals
from tritemm.problem import INTERPRETED, Device
from tritemm.rungs import RUNGS

from .perf_fakes import ENVIRONMENT, FakeBench, four_gpus, here, parsed_by

pytestmark = pytest.mark.host

ROOFS = roof.Roofs(Device("NVIDIA H200", (9, 0), 132, 232448), mhz=1450.0, gbs=4200.0)
ROOF = Roof(tflops=784.0, gbs=4200.0)
RUN = "2026-01-02T03:04:05+00:00"
SWEPT = [kernel for kernel in RUNGS if kernel.number >= sweep.FIRST]
#: Shares of the roof at large sizes, by rung number, and those of rungs yet to come.
SHARES = {3: 0.28, 4: 0.29, 7: 0.75, 8: 0.85, 9: 0.868}
TWINS = [k for k in CUDA_RUNGS if k.name in sweep.swept()]
#: The rungs' names with their numbers, and those of the configs that a twin names: `permuted[1]`.
LINES = {
    name: rung.number
    for rung in SWEPT
    for name in (rung.name, *sorted({n for k in TWINS for n in named(k, [rung])} - {rung.name}))
}


def field(both=True):
    """(ladder, name, number, share of the roof) of each line, cuBLAS last."""
    found = [("triton", name, number, SHARES.get(number, 0.8)) for name, number in LINES.items()]
    found += [("cuda", k.name, k.number, 0.03 * k.number) for k in TWINS] if both else []
    return [*found, ("triton", "auto", None, 0.9), (None, REFERENCE, None, 0.86)]


def made_up(
    name, run=RUN, sizes=None, who=None, layout="NT", dtype="bf16", environment=ENVIRONMENT
):
    """Rows of one run of a sweep: latency, then memory, then the share of the roof."""
    rng, found, by_word = random.Random(name), [], {k.name: k for k in CUDA_RUNGS}
    for size in sizes or SWEEPS[name].sizes:
        case = SWEEPS[name].case(size, layout, dtype)
        reference = None
        for ladder, competitor, number, share in reversed(who or field()):
            us = (ROOF.floor(case) / share + 3) * rng.uniform(1, 1.06)
            reference = reference or us
            ratio = reference / us
            twins = rivals(by_word[competitor], CUDA_RUNGS, RUNGS) if ladder == "cuda" else ()
            found.append(
                Row(
                    experiment="sweep", run=run, time=run, command="", mode="sustained",
                    environment=environment, case=case, roof=ROOF,
                    problem={"id": f"{name} {size}", "class": name, "name": SWEEPS[name].title},
                    competitor=competitor, ladder=ladder, number=number,
                    rung=competitor if ladder else None, config=None, outcome="measured",
                    versus={name: Quantiles(1, 1, 1) for name in twins} or None,
                    us=Quantiles(us * 0.98, us, us * 1.03),
                    ratio=Quantiles(ratio * 0.99, ratio, ratio * 1.01), null=Quantiles(0.99, 1, 1),
                )
            )  # fmt: skip
    return found


def lost(found, name, size, outcome="refused"):
    """The rows, with one competitor's at one size without a time."""
    nothing = {"us": None, "ratio": None, "outcome": outcome, "reason": "because"}
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


def test_the_rungs_that_race_are_derived():
    """Triton's from 03 up; of CUDA's those that are the twin of one, or nearest to one."""
    names = sweep.swept()
    assert names[: len(SWEPT)] == [kernel.name for kernel in SWEPT]
    cuda = set(names[len(SWEPT) :])
    assert {"mma_base", "wmma_async_stage3", "mma_async_stage4", "wgmma_cluster"} <= cuda
    assert not cuda & {"simt_naive", "mma_naive", "wmma_naive", "wgmma_m64n8k16"}
    assert set(sweep.swept(quick=True)) < set(names)


def test_few_sizes_come_first_and_then_the_cheapest():
    over_m, over_k = SWEEPS["M"], SWEEPS["K"]
    found = sweep.cases(["M", "K"], dtype="fp16")
    ids = [problem["id"] for problem in found.values()]
    quick = len(over_m.quick) + len(over_k.quick)
    assert ids[:quick] == [f"M {n}" for n in over_m.quick] + [f"K {n}" for n in over_k.quick]
    assert set(ids) == {f"M {n}" for n in over_m.sizes} | {f"K {n}" for n in over_k.sizes}
    assert next(iter(found)) == sweep.Case(16, 4096, 4096, "NT", "fp16")
    flops = [case.flops for case in found][quick:]
    assert flops == sorted(flops)
    # What lies on two sweeps is one race.
    every = sweep.cases(SWEEPS)
    assert len(every) == sum(len(each.sizes) for each in SWEEPS.values()) - 2
    assert len(sweep.cases(SWEEPS, quick=True)) == 11


def test_a_race_has_both_ladders_matmul_and_cublas():
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    case = sweep.Case(16, 32, 32, "NT", "fp16")
    options = {"only": sweep.swept(), "auto": True}
    there = competitors.ladders(case, operands(case, "cpu"), cuda=CUDA_RUNGS, **options)
    assert [c.name for c in there] == [*sweep.swept(), "auto", REFERENCE, NULL]
    auto = there[-3]
    assert auto.rung in {kernel.name for kernel in RUNGS} and auto.number is None
    row = next(row for row in made_up("K") if row.competitor == "auto")
    assert report.label(row) == "tritemm.matmul"


def test_quick_is_small():
    quick = command.plan(parsed("--quick"))
    assert (quick.rounds, quick.replay, quick.settle) == (3, 0.01, 0.2)
    assert command.plan(parsed("--quick", "--rounds", "2")).rounds == 2
    assert command.plan(parsed()) == Plan(rounds=5, replay=0.02, settle=1.0)
    # Seconds of timing: the rest is compilation.
    count = len(sweep.swept(quick=True)) + 3
    assert len(sweep.cases(SWEEPS, quick=True)) * count * quick.rounds * 2 * quick.replay < 30


def test_a_full_race_begins_with_both_ladders_whole():
    races = command.races(parsed("--compare", "--rounds", "3"))
    whole, (first, options, fields) = races[:2], races[2]
    assert [case for case, *_ in whole] == list(sweep.COMPARED)
    assert not any(options["only"] or options.get("auto") for _, options, _ in whole)
    assert [(f["experiment"], f["rounds"]) for *_, f in whole] == [("ladder", 5)] * 2
    assert first == SWEEPS["squares"].case(1024)
    assert options == {"only": sweep.swept(), "auto": True} and fields["problem"]
    ids = [fields["problem"]["id"] for *_, fields in races]
    assert len(set(ids)) == len(ids)


def test_the_newest_full_run_is_shown():
    old, new = "2026-01-01T00:00:00+00:00", "2026-01-05T00:00:00+00:00"
    full, again = made_up("K", old), made_up("K", new)
    assert {row.run for row in sweep.latest_sweep(full + again, "K")} == {new}
    assert {row.run for row in sweep.latest_sweep(again + full, "K")} == {new}
    shown = sweep.latest_sweep(full, "K")
    assert [row.case.K for row in shown] == sorted(row.case.K for row in full)

    quick = made_up("K", new, SWEEPS["K"].quick)
    assert {row.run for row in sweep.latest_sweep(full + quick, "K")} == {old}
    alone = made_up("K", new, who=field()[-3:])
    assert {row.run for row in sweep.latest_sweep(full + alone, "K")} == {old}
    # Many rungs at one size don't make the fuller run one of few rungs.
    wide, few = made_up("K", new, sizes=(64,)), made_up("K", old, who=field(both=False))
    assert {row.run for row in sweep.latest_sweep(few + wide, "K")} == {old}
    # A run that ended early has most sizes, and newer kernels.
    early = made_up("K", new, SWEEPS["K"].sizes[:5])
    assert {row.run for row in sweep.latest_sweep(full + early, "K")} == {new}
    # Where another sweep crosses this one is no run of this one.
    assert sweep.latest_sweep(made_up("K") + made_up("M"), "squares") == []
    crossed = made_up("squares", new) + made_up("M", new, [1, 2048])
    assert {row.case.M for row in sweep.latest_sweep(crossed, "M")} == {1, 2048, 4096}
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


def test_the_roof_is_the_arithmetic_or_the_copy():
    # 8192 x 8192 x 512 moves 151 MB, 36 us; its arithmetic takes 88 us.
    row = next(row for row in made_up("K") if row.case.K == 512)
    assert sweep.roof_tflops(row) == pytest.approx(784)
    memory = sweep.roof_tflops(dataclasses.replace(row, case=SWEEPS["K"].case(64)))
    assert memory == pytest.approx(
        2 * 8192**2 * 64 / ((2 * 8192 * 64 + 8192**2) * 2 / 4.2e12) / 1e12
    )


@pytest.fixture
def libraries():
    pytest.importorskip("matplotlib")


@pytest.mark.parametrize("name", SWEEPS)
def test_the_picture_and_the_table(name, libraries, tmp_path):
    from PIL import Image

    size = SWEEPS[name].sizes[2]
    found = lost(made_up(name), "tma", size)
    shown = sweep.latest_sweep(found, name)
    picture, table = plot_sweep.draw(shown, tmp_path / "new" / f"sweep-{name}.png")
    assert (picture.name, table.name) == (f"sweep-{name}.png", f"sweep-{name}.csv")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [table.name, picture.name]
    with Image.open(picture) as image:
        assert image.width == 1600 and image.height > 1200
    assert figures.drawn_from(picture) == figures.digest(shown, plot_sweep.DRAWING)

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


def test_every_rung_has_a_panel_with_its_twins():
    panels = plot_sweep._panels(made_up("K"))
    assert list(panels) == ["tritemm.matmul", *(f"{n:02d} {name}" for name, n in LINES.items())]
    assert list(panels["05 permuted[1]"]) == ["permuted[1]", "wmma_padding"]
    assert list(panels["15 cluster"]) == ["cluster", "wgmma_cluster"]
    drawn = [name for panel in panels.values() for name in panel]
    assert sorted(drawn) == sorted({"auto", *sweep.swept(), *LINES})
    # A twin that is not timed at the largest size stands with its rung all the same.
    lacking = [
        dataclasses.replace(row, versus=None) if row.case.K == 16384 else row
        for row in made_up("K")
    ]  # fmt: skip
    assert plot_sweep._panels(lacking).keys() == panels.keys()


def test_pictures_are_named_by_layout_and_type_and_nothing_is_not_drawn(libraries, tmp_path):
    other = made_up("K", layout="NN", dtype="fp16")
    picture, _ = plot_sweep.draw_latest(other, tmp_path)
    assert picture.name == "sweep-K-NN-fp16.png"
    with pytest.raises(ValueError, match="no measured row"):
        plot_sweep.draw(
            lost(made_up("K", sizes=[64], who=field()[:1]), "tiled", 64), tmp_path / "x.png"
        )
    written = plot_sweep.draw_latest(made_up("K") + made_up("M"), tmp_path)
    assert [path.name for path in written[::2]] == ["sweep-K-NT-bf16.png", "sweep-M-NT-bf16.png"]
    assert plot_sweep.draw_latest([], tmp_path) == []
    unknown = [dataclasses.replace(row, roof=None) for row in made_up("K")]
    _, table = plot_sweep.draw(unknown, tmp_path / "x.png")
    with open(table, newline="") as file:
        assert {line["roof (TFLOP/s)"] for line in csv.DictReader(file)} == {""}


def test_the_text_has_a_column_per_size_and_the_reasons():
    found = lost(made_up("K", sizes=(64, 8192)), "tma", 64)
    race = len(found) // 2
    # 8192 lies on the squares too, which did not race.
    lines = sweep.text([found[race:], found[:race]]).splitlines()
    assert lines[0] == "NT, bf16, sustained, TFLOP/s"
    assert lines[1].split() == ["M", "=", "N", "=", "8192", "64", "8192"]
    named = {line.split()[-3]: line.split()[-2:] for line in lines[2:-1] if len(line.split()) > 2}
    speeds = {row.competitor: report.digits(row.tflops) for row in found[race:]}
    assert named["tritemm.matmul"][1] == speeds["auto"]
    assert named["cuBLAS"][1] == speeds[REFERENCE] and named["roof"][1] == "784"
    assert lines[-1] == "08 tma refused: because."
    assert sweep.text([]) == "nothing was measured"


SMALL = Sweep("K", "M = N = 32", "K", sizes=(16, 32, 48), quick=(16, 32), fixed=32)


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """The command on the CPU: small sizes, interpreted rungs, made-up times."""
    if not INTERPRETED:
        pytest.skip("kernels can't read CPU tensors on a GPU machine")
    make = lambda case, plan, probe: FakeBench(case, {})  # noqa: E731
    monkeypatch.setattr(command, "unable", lambda command: None)
    monkeypatch.setattr(ahead, "build", lambda names: ("nvcc was not found", {}))
    monkeypatch.setitem(SWEEPS, "K", SMALL)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr("perf.session.RESULTS", tmp_path)
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(machine, "probe", lambda: lambda: State(1410.0, 690.0, 60.0))
    monkeypatch.setattr(roof, "measure", lambda probe: ROOFS)
    monkeypatch.setattr(bench, "BENCHES", {"sustained": make})
    here(monkeypatch)
    return tmp_path


def test_the_command_measures_records_and_draws(timed, libraries, capsys):
    words = ["--what", "k", "--only", "tiled,mma_base,pipelined", "--rounds", "7"]
    assert command.run(parsed(*words, "--folder", str(timed / "here"))) == 0
    found = rows.read(*timed.glob("nvidia-h200-sweep-*.jsonl.gz"))
    names = ["tiled", "pipelined", "auto", REFERENCE]
    assert [row.competitor for row in found] == names * 3
    assert [row.case.K for row in found[:: len(names)]] == [16, 32, 48]
    assert {(row.experiment, row.problem["class"], row.roof.gbs) for row in found} == {
        ("sweep", "K", 4200.0)
    }
    assert {row.null is not None and row.rounds for row in found} == {7}
    assert {row.code for row in found[:2]} == {sources.hash_of(row) for row in found[:2]}
    written = sorted(path.name for path in (timed / "here").iterdir())
    assert written == ["sweep-K-NT-bf16.csv", "sweep-K-NT-bf16.png"]
    told = capsys.readouterr()
    assert "NT, bf16, sustained, TFLOP/s" in told.out
    assert "[3/3] K 48 M = N = 32: 32 x 32 x 48 NT, bf16" in told.err
    assert "the CUDA ladder takes no part: refused: nvcc was not found" in told.err


def test_a_full_race_records_both_experiments(timed, libraries, monkeypatch, capsys):
    monkeypatch.setattr(sweep, "COMPARED", (sweep.Case(32, 40, 48, "NT", "fp16"),))
    words = ["--what", "k", "--only", "tiled", "--rounds", "3", "--compare", "--quick"]
    words += ["--out", str(timed / "x.jsonl"), "--folder", str(timed / "here")]
    assert command.run(parsed(*words)) == 0
    found = rows.read(timed / "x.jsonl")
    assert [row.competitor for row in found] == [
        *("tiled", REFERENCE), *("tiled", "auto", REFERENCE) * 2
    ]  # fmt: skip
    assert [row.experiment for row in found] == ["ladder"] * 2 + ["sweep"] * 6
    assert [row.rounds for row in found] == [5] * 2 + [3] * 6
    assert sorted(path.name for path in (timed / "here").iterdir()) == [
        "ladder-32x40x48-NT-fp16.png", "sweep-K-NT-bf16.csv", "sweep-K-NT-bf16.png"
    ]  # fmt: skip
    assert "32 x 40 x 48 NT, fp16 on NVIDIA H200" in capsys.readouterr().out


def test_a_shared_sweep_leaves_the_rows_of_one_process(timed, libraries, monkeypatch):
    four_gpus(monkeypatch)
    words = ["--what", "k", "--only", "tiled", "--rounds", "3", "--gpus", "2"]
    words += ["--out", str(timed / "x.jsonl"), "--folder", str(timed / "here")]
    assert command.run(parsed(*words)) == 0
    found = rows.read(timed / "x.jsonl")
    assert [row.case.K for row in found[::3]] == [16, 32, 48]
    assert len({row.run for row in found}) == 1 and len({row.time for row in found}) == 3
    assert (timed / "here" / "sweep-K-NT-bf16.png").exists()


def test_without_matplotlib_it_measures_all_the_same(timed, monkeypatch, capsys):
    monkeypatch.setattr(figures.importlib.util, "find_spec", lambda name: None)
    words = ["--what", "k", "--only", "pipelined", "--quick", "--json"]
    assert command.run(parsed(*words, "--folder", str(timed / "here"))) == 0
    told = capsys.readouterr()
    assert "no pictures: matplotlib is missing: pip install matplotlib\n" in told.err
    assert "nothing is recorded" in told.err
    printed = [json.loads(line)["rows"] for line in told.out.splitlines()[1:]]
    assert [len(race) for race in printed] == [3] * 2
    assert list(timed.iterdir()) == []


def test_what_is_compiled_ahead_is_what_races():
    case = sweep.Case(4096, 4096, 4096, "NT", "fp16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "problem_of", lambda case: problem_of(case, ROOFS.device))
        items = ahead._items(case, triton=RUNGS, only=["tiled", "tma", "mma_base"], auto=True)
    assert [name for name, *_ in items[:2]] == ["tiled", "tma"]
    _, problem, config = items[1]
    [tma] = [kernel for kernel in RUNGS if kernel.name == "tma"]
    assert config == next(iter(tma.configs(problem)))
    assert len(items) == 3  # and what the dispatcher chooses


def test_configs_that_a_twin_names_are_compiled_ahead():
    case = sweep.Case(4096, 4096, 4096, "NT", "fp16")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "problem_of", lambda case: problem_of(case, ROOFS.device))
        items = ahead._items(case, triton=RUNGS, others=CUDA_RUNGS, only=["async_stages"])
    assert [config.num_stages for _, _, config in items] == [4, 3, 2]


@pytest.mark.parametrize(
    "words", [["--what", "n"], ["--layout", "XX"], ["--ladders", "nope"], ["--dtype", "fp64"]]
)
def test_wrong_words_are_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        parsed(*words)
    assert words[1] in capsys.readouterr().err


def test_a_rung_that_is_not_there_is_named(capsys):
    assert command.run(parsed("--only", "tma,nope")) == 2
    assert "nope" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_gpu_the_command_says_so(capsys):
    assert command.run(parsed()) == 2
    assert "needs a CUDA device" in capsys.readouterr().err
