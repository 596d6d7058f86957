"""The measuring tool without a GPU: its statistics, its refusals, its files and its pictures."""

import dataclasses
import json
import random
import subprocess
import sys

import pytest
import torch

from cuda_reference import loader
from cuda_reference.rungs import RUNGS as CUDA_RUNGS
from perf import __main__, compare, engine, ladder, machine, plot, report, rows, stats, sustained
from perf.case import Case, parse_layout, parse_size
from perf.engine import NULL, REFERENCE, Loop, Plan, Sample
from perf.machine import ROOT, Environment, State, slug
from perf.rows import HALF
from perf.stats import Quantiles
from perf.twins import named, rivals, twins
from tritemm.problem import INTERPRETED, Problem
from tritemm.rungs import RUNGS
from tritemm.spec import Config, Kernel

CASE = Case(M=48, N=40, K=32, layout="NT", dtype="fp32")
ENVIRONMENT = Environment(
    "NVIDIA H200", "580.1", "13.0", "2.11.0", "3.6.0", "13.1.0", "a" * 40, True
)
QUIET = Plan(rounds=24, settle=0)


class Clock:
    """A card whose speed drifts by 15 %, jitters by 1 % and is read by every competitor."""

    def __init__(self):
        self.rng, self.ticks = random.Random(1), 0

    def slowness(self):
        self.ticks += 1
        return (1 + 0.15 * min(self.ticks, 200) / 200) * self.rng.gauss(1, 0.01)


class FakeBench:
    """The real operands and the real check, on the CPU; times are made up."""

    mode = "sustained"

    def __init__(self, case, seconds):
        self.case, self.seconds, self.clock = case, seconds, Clock()
        self.sets = [sustained.operands(case, "cpu") for _ in range(3)]
        self.recovered = 0

    def estimate(self, competitor):
        competitor.run(*self.sets[0])
        return self.seconds.get(competitor.name, 1e-3)

    def loop(self, competitor):
        seconds = self.seconds.get(competitor.name, 1e-3)
        launches = 1 if seconds > 0.1 else 30

        def replay():
            for index in range(launches):
                competitor.run(*self.sets[index % 3])

        def timer():
            return Sample(seconds * self.clock.slowness(), State(1400.0, 690.0, 60.0))

        return Loop(launches, seconds, replay, timer)

    def recover(self):
        self.recovered += 1

    def verify(self, loop, accumulate=None):
        return sustained.verify(self.case, self.sets, loop, accumulate)

    def settle(self, loops):
        return State(sm_mhz=1410.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeKernel(Kernel):
    """Multiplies with torch; `spoil(c)` is its bug. `stem` is its number and word, k01_simt."""

    stem: str
    spoil: object = lambda c: None

    @property
    def number(self):
        return int(self.stem[1:3])

    @property
    def name(self):
        return self.stem[4:]

    def launch(self, problem, config, a, b, c):
        torch.matmul(a, b, out=c)
        self.spoil(c)


def fake(stem, spoil=lambda c: None, **fields):
    fields = {"configs": lambda problem: (Config(16, 16, 16), Config(32, 32, 16))} | fields
    return FakeKernel(stem=stem, **{"doc": f"{stem[4:]}: fake.", "spoil": spoil} | fields)


def measure(kernels, seconds=None, plan=QUIET, **selection):
    bench = FakeBench(CASE, seconds or {})
    problem = Problem.of(*bench.sets[0])
    field = ladder.competitors(problem, sustained.reference, kernels=kernels, **selection)
    return rows_after(field, bench, plan)


def rows_after(field, bench, plan=QUIET):
    race = engine.measure(field, bench, plan, random.Random(0))
    return engine.rows_of(
        race,
        case=bench.case,
        mode=bench.mode,
        environment=ENVIRONMENT,
        time="2026-01-02T03:04:05+00:00",
        command="python -m perf ladder",
    )


def by_name(found):
    return {row.competitor: row for row in found}


def spoil_one(c):
    c[-1, -1] += 1


def leave_one(c):
    c[3, 5] = torch.nan


# Statistics


def test_a_difference_of_5_percent_is_found_under_drift():
    found = by_name(measure([fake("k01_slow"), fake("k02_fast")], {"fast": 1e-3 / 1.05}))
    fast = found["fast"]
    assert fast.ratio.p50 == pytest.approx(1.05, abs=0.01)
    assert not fast.ratio.tie
    assert fast.below == "slow"
    assert fast.ratio_below.p50 == pytest.approx(1.05, abs=0.01)


def test_an_equal_pair_is_a_tie():
    found = by_name(measure([fake("k01_equal")]))
    for row in (found["equal"], found[NULL]):
        assert row.ratio.tie
        assert row.ratio.p50 == pytest.approx(1, abs=0.01)
    assert found["equal"].null == found[NULL].ratio
    assert found[REFERENCE].ratio == Quantiles(1, 1, 1)


def test_ratios_pair_times_of_the_same_round_only():
    rounds = [{"a": 2.0, "b": 1.0}, {"a": 100.0}, {"b": 7.0}, {"a": 6.0, "b": 3.0}]
    assert stats.compare(rounds, "a", "b") == Quantiles(2, 2, 2)
    assert stats.compare(rounds, "a", "c") is None


def test_slow_competitors_take_part_in_fewer_rounds():
    found = by_name(measure([fake("k01_simt"), fake("k02_naive")], {"simt": 0.5}))
    assert (found["simt"].rounds, found["naive"].rounds) == (6, 24)
    assert found["simt"].launches == 1
    assert found["naive"].below == "simt"


def test_rounds_can_be_set_by_time():
    loop = Loop(30, 1e-3, None, None)
    plan = Plan(seconds=6.1)
    assert engine.rounds_for(plan, [loop] * 10) == 10
    assert engine.rounds_for(plan, [loop] * 1000) == engine.MIN_ROUNDS


def test_the_order_differs_between_rounds():
    order = []

    def timer(name):
        return lambda: order.append(name) or Sample(1e-3)

    loops = {name: Loop(1, 1e-3, None, timer(name)) for name in "abcd"}
    engine.run_rounds(loops, 8, random.Random(0))
    rounds = [tuple(order[i : i + 4]) for i in range(0, 32, 4)]
    assert all(sorted(names) == list("abcd") for names in rounds)
    assert len(set(rounds)) > 4


# Refusals


@pytest.mark.parametrize("spoil", [spoil_one, leave_one])
def test_a_red_kernel_is_not_timed(spoil):
    found = by_name(measure([fake("k01_good"), fake("k02_red", spoil)]))
    red = found["red"]
    assert red.outcome == "wrong"
    assert red.reason
    assert red.us is red.tflops is red.ratio is None
    assert found["good"].us
    assert "wrong" in report.text_table(list(found.values()))


def test_refused_failed_and_skipped_competitors_have_a_row_and_a_reason():
    def explode(c):
        raise RuntimeError("out of resource: shared memory, Required: 262144")

    kernels = [
        fake("k01_simt"),
        fake("k02_big", explode),
        fake("k03_tma", why_not=lambda problem: "TMA needs a multiple of 16", configs=None),
    ]
    found = by_name(measure(kernels, {"simt": 2.0}))
    assert {name: row.outcome for name, row in found.items()} == {
        "simt": "skipped", "big": "failed", "tma": "refused",
        REFERENCE: "measured", NULL: "measured",
    }  # fmt: skip
    assert "Required: 262144" in found["big"].reason
    assert found["tma"].reason == "TMA needs a multiple of 16"
    assert "2.0 s" in found["simt"].reason


def test_the_interrupt_keeps_what_was_measured():
    calls = []

    def timer():
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return Sample(1e-3)

    taken, interrupted = engine.run_rounds({"a": Loop(1, 1e-3, None, timer)}, 9, random.Random(0))
    assert interrupted
    assert sum(len(samples) for samples in taken) == 4


def test_a_device_that_is_lost_ends_the_run():
    class Lost(FakeBench):
        def recover(self):
            raise RuntimeError("device lost")

    def explode(c):
        raise RuntimeError("illegal address")

    bench = Lost(CASE, {})
    field = ladder.competitors(
        Problem.of(*bench.sets[0]), sustained.reference, kernels=[fake("k01_bad", explode)]
    )
    with pytest.raises(RuntimeError, match="device lost"):
        engine.measure(field, bench, QUIET, random.Random(0))


# Competitors


def test_every_rung_enters_with_its_first_config():
    problem = Problem.of(*sustained.operands(CASE, "cpu"))
    field = ladder.competitors(problem, sustained.reference)
    assert [c.name for c in field] == [*(kernel.name for kernel in RUNGS), REFERENCE, NULL]


def test_all_configs_and_those_of_a_file_enter(tmp_path):
    path = tmp_path / "tiles.json"
    tile = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 8, "num_stages": 3}
    rung = RUNGS[-1].name
    path.write_text(json.dumps([{"rung": rung, **tile, "ORDER": "grouped", "GROUP_M": 4}]))
    [candidate] = ladder.read_candidates(path)
    case = dataclasses.replace(CASE, dtype="bf16", accumulate="fp32")
    problem = Problem.of(*sustained.operands(case, "cpu"))
    field = ladder.competitors(
        problem, sustained.reference, only=[rung], configs="all", candidates=[candidate]
    )
    names = [c.name for c in field]
    assert names[:2] == [rung, f"{rung}[1]"]
    assert names[-3:] == [f"{rung} 128x64x32 w8 s3 grouped4", REFERENCE, NULL]
    assert field[-3].config["GROUP_M"] == 4


@pytest.mark.parametrize(
    ("entry", "message"),
    [({"rung": "nope"}, "no rung is called 'nope'"), ({"rung": RUNGS[0].name, "X": 1}, "X")],
)
def test_a_bad_config_file_is_named(tmp_path, entry, message):
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps([entry]))
    with pytest.raises(ValueError, match=message):
        ladder.read_candidates(path)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_have_the_layout_and_poisoned_outputs(layout):
    case = dataclasses.replace(CASE, layout=layout, dtype="bf16")
    a, b, c = sustained.operands(case, "cpu")
    assert Problem.of(a, b, c).layout == layout
    assert (a.shape, b.shape, c.shape) == ((48, 32), (32, 40), (48, 40))
    assert c.isnan().all()
    assert a.float().std() == pytest.approx(1, abs=0.1)


def test_sizes_and_layouts_are_parsed():
    assert parse_size("4096") == (4096,) * 3
    assert parse_size("8x9x10") == (8, 9, 10)
    for bad in ("8x9", "0", "x"):
        with pytest.raises(ValueError, match="a size is"):
            parse_size(bad)
    with pytest.raises(ValueError, match="a layout is"):
        parse_layout("NX")


# Both ladders


def headed(stem, adds_to, mirrors, **fields):
    doc = f"{stem[4:]}: fake.\n\nAdds to  {adds_to}\nMirrors  {mirrors}\n"
    return fake(stem, doc=doc, **fields)


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
HALF_CASE = Case(M=48, N=40, K=32, layout="NT", dtype="fp16", accumulate="fp16")


@pytest.fixture(scope="module")
def compared():
    seconds = {"tiled": 1e-3, "wmma_base": 2e-3, "mma_base": 1.25e-3, "simt": 0.4, HALF: 0.9e-3}
    bench = FakeBench(HALF_CASE, seconds)
    problem = Problem.of(*bench.sets[0], accumulate=torch.float16)
    field = compare.competitors(problem, sustained.reference, CUDA_TWINS, triton=TWINS)
    return rows_after(field, bench)


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
    problem = Problem.of(*sustained.operands(HALF_CASE, "cpu"))
    field = compare.competitors(problem, sustained.reference, CUDA_TWINS, triton=TWINS)
    assert HALF not in [competitor.name for competitor in field]
    assert all(HALF not in competitor.rivals for competitor in field)
    flags, seen = torch.backends.cuda.matmul, []

    class Out:
        @classmethod
        def __torch_function__(cls, *_):
            seen.append(flags.allow_fp16_accumulation)

    for accumulate in ("fp16", "fp32"):
        sustained.reference(accumulate)(Out(), Out(), Out())
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
        [competitor] = ladder.of_kernels(problem, [kernel])
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
    chosen = rows.latest_compare(
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
    names = [row.competitor for row in rows.latest_ladder(compared, **chosen)]
    assert names == [*(kernel.name for kernel in TWINS), REFERENCE, HALF]
    triton_alone = [row for row in compared if row.ladder != "cuda"]
    assert rows.latest_compare(triton_alone, **chosen) == []
    assert len(rows.latest_compare(compared, **chosen)) == len(names) + len(CUDA_TWINS)


def test_rows_older_than_the_second_ladder_are_read(compared):
    for row in compared:
        if row.ladder != "cuda":
            old = {k: v for k, v in json.loads(row.to_json()).items() if k != "ladder"}
            del old["versus"]
            read = rows.Row.from_json(json.dumps(old))
            assert read == dataclasses.replace(row, versus=None)
            assert read.ladder == ("triton" if read.rung else None)


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
    assert __main__._build([]) == (None, {})
    assert __main__._build(["mma_base"]) == ("nvcc was not found", {})


def test_what_does_not_build_is_a_failed_row_and_is_not_built_again(monkeypatch):
    monkeypatch.setattr(loader, "unavailable", lambda: None)
    monkeypatch.setattr(loader, "build", lambda names: {"mma_base": "mma_base does not compile"})
    unavailable, broken = __main__._build(["wmma_base", "mma_base"])
    assert unavailable is None
    bench = FakeBench(HALF_CASE, {})
    problem = Problem.of(*bench.sets[0], accumulate=torch.float16)
    field = compare.competitors(
        problem, sustained.reference, CUDA_TWINS, triton=TWINS, broken=broken
    )
    found = by_name(rows_after(field, bench))
    assert found["mma_base"].outcome == "failed"
    assert found["mma_base"].reason == "RuntimeError: mma_base does not compile"
    assert found["mma_permuted"].below == "wmma_base"


# Files


@pytest.fixture
def recorded():
    """A ladder of three rungs, one of them red, with an extra config."""
    kernels = [fake("k01_simt"), fake("k02_red", spoil_one), fake("k09_fast")]
    return measure(kernels, {"simt": 0.2, "fast": 0.95e-3}, configs="all")


def test_rows_survive_the_round_trip(recorded, tmp_path):
    path = tmp_path / "results" / "x.jsonl"
    rows.append(path, recorded)
    assert rows.read(path) == recorded
    assert all(json.loads(line)["schema"] == 1 for line in path.read_text().splitlines())
    assert {row.competitor for row in recorded} >= {"fast", "fast[1]", REFERENCE, NULL}


def test_append_keeps_old_rows_and_leaves_nothing_half_written(recorded, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    rows.append(path, recorded[:2])
    before = path.read_text()

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(rows.os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            rows.append(path, recorded[2:])
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]

    rows.append(path, recorded[2:])
    assert path.read_text().startswith(before)
    assert rows.read(path) == recorded


def test_a_torn_last_line_is_warned_of_and_swallows_nothing(recorded, tmp_path):
    path = tmp_path / "x.jsonl"
    rows.append(path, recorded[:2])
    path.write_text(path.read_text()[:-20])
    with pytest.warns(UserWarning, match=r"line 2: .*left out"):
        assert rows.read(path) == recorded[:1]
    rows.append(path, recorded[2:])
    with pytest.warns(UserWarning, match="line 2"):
        assert rows.read(path) == [recorded[0], *recorded[2:]]


def test_rows_of_another_schema_are_warned_of(recorded, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(json.loads(recorded[0].to_json()) | {"schema": 99}) + "\n")
    with pytest.warns(UserWarning, match="schema 99"):
        assert rows.read(path) == []


def test_the_latest_ladder_is_the_newest_row_of_each_rung(recorded):
    def dated(row, time, **fields):
        return dataclasses.replace(row, time=time, **fields)

    names = by_name(recorded)
    newer = dated(names["fast"], "2026-02-01T00:00:00+00:00", tflops=700.0)
    reference = dated(names["cublas"], newer.time)
    alone = dated(names["fast"], "2026-03-01T00:00:00+00:00", tflops=1.0)  # a race of one rung
    skipped = dated(names["simt"], "2026-02-01T00:00:00+00:00", outcome="skipped", us=None)
    elsewhere = dataclasses.replace(
        names["fast"], time="2026-01-01T00:00:00+00:00",
        environment=dataclasses.replace(ENVIRONMENT, gpu="NVIDIA A100"),
    )  # fmt: skip
    every = [newer, reference, alone, *recorded, skipped, elsewhere]
    found = rows.latest_ladder(every, size=(48, 40, 32), layout="NT", dtype="fp32")
    assert [row.competitor for row in found] == ["simt", "red", "fast", "cublas"]
    assert found[2:] == [newer, reference]
    assert found[0] == names["simt"]
    assert found[1].outcome == "wrong"
    other = rows.latest_ladder(every, "NVIDIA A100", size=(48, 40, 32), dtype="fp32")
    assert other == [elsewhere]
    assert rows.latest_ladder(every, size=4096) == []


def test_gpu_names_become_file_names():
    assert slug("NVIDIA H200") == "nvidia-h200"


# Pictures


def synthetic():
    """Rows in the shape of a measured ladder of the real rungs."""
    speeds = [1.2, 28, 310, 334, 583, 612, 655]
    found = []
    for kernel, tflops in zip(RUNGS, [*speeds, *range(656, 700)], strict=False):
        ratio = tflops / 648
        found.append(
            rows.Row(
                time="2026-01-02T03:04:05+00:00", command="", mode="sustained",
                environment=ENVIRONMENT, case=Case(4096, 4096, 4096, "NT"),
                competitor=kernel.name, ladder="triton", rung=kernel.name, number=kernel.number,
                config=dataclasses.asdict(Config(16, 16, 16)), outcome="measured", worst=0.3,
                launches=9, rounds=30, us=Quantiles(*[137438.953472 / tflops] * 3), tflops=tflops,
                ratio=Quantiles(ratio * 0.98, ratio, ratio * 1.02), null=Quantiles(0.999, 1, 1.001),
                below=found[-1].competitor if found else None,
                ratio_below=Quantiles(1, 1.1, 1.2) if found else None, sm_mhz=1410.0, power_w=690.0,
            )
        )  # fmt: skip
    found[4] = dataclasses.replace(found[4], below=found[2].competitor)
    red = {"us": None, "tflops": None, "ratio": None, "outcome": "wrong"}
    found[3] = dataclasses.replace(found[3], **red, reason="7 of 9 elements are wrong; at (0, 1)")
    reference = {
        "competitor": REFERENCE,
        "ladder": None,
        "rung": None,
        "number": None,
        "below": None,
    }
    found.append(
        dataclasses.replace(
            found[-1], **reference, tflops=648.0, ratio=Quantiles(1, 1, 1), ratio_below=None
        )
    )
    return found


def test_the_ladder_is_drawn(tmp_path):
    path = tmp_path / "ladder.png"
    plot.plot_ladder(synthetic(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_nothing_to_draw_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no measured row"):
        plot.plot_ladder([], tmp_path / "ladder.png")


def test_the_markdown_table_has_a_line_per_rung():
    found = synthetic()
    lines = report.markdown_table(found).splitlines()
    assert len(lines) == 2 + len(found)
    assert all(line.count("|") == 6 for line in lines)
    assert f"| {RUNGS[0].number:02d} {RUNGS[0].name} |" in lines[2]
    assert "wrong: 7 of 9" in lines[5]
    assert lines[4].endswith("| 1.10 |")
    assert lines[6].endswith(f"| 1.10 ({RUNGS[2].name}) |")
    assert lines[-1].startswith("| cuBLAS | 210")
    caption = report.caption(found)
    assert "4096 x 4096 x 4096 NT, bf16" in caption
    assert "NVIDIA H200" in caption
    assert "aaaaaaa" in caption


def test_the_text_table_names_ties_refusals_and_noise():
    text = report.text_table(synthetic())
    assert text.splitlines()[0].startswith("4096 x 4096 x 4096 NT, bf16 on NVIDIA H200, sustained")
    assert "wrong: 7 of 9" in text
    assert "a tie with cuBLAS" in text


# The command line


def command(*args):
    words = [sys.executable, "-m", "perf", *args]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
@pytest.mark.parametrize("race", ["ladder", "compare"])
def test_without_a_gpu_the_race_says_so(race):
    run = command(race)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr == f"python -m perf {race} needs a CUDA device, and torch sees none\n"


@pytest.mark.skipif(not INTERPRETED, reason="kernels can't read CPU tensors on a GPU machine")
def test_compare_races_each_accumulator_and_records(tmp_path, monkeypatch, capsys):
    """The command itself, on the CPU: Triton's rungs are interpreted, CUDA's refuse."""
    path, rung, cuda = tmp_path / "x.jsonl", RUNGS[1].name, CUDA_RUNGS[0].name
    monkeypatch.setattr(__main__, "_unable", lambda command: None)
    monkeypatch.setattr(loader, "unavailable", lambda: None)
    monkeypatch.setattr(loader, "build", lambda names: {})
    monkeypatch.setattr(machine, "environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(
        sustained, "Sustained", lambda case, plan, probe: FakeBench(case, {rung: 0.2})
    )
    words = ["compare", "--size", "48x40x32", "--rounds", "3", "--out", str(path)]
    assert __main__.main([*words, "--only", f"{rung},{cuda}"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("on NVIDIA H200, sustained, 3 rounds") == 2
    found = rows.read(path)
    names = [rung, cuda, REFERENCE, NULL]
    assert [row.competitor for row in found] == [*names, *names, HALF]
    assert [row.case.accumulate for row in found] == ["fp32"] * 4 + ["fp16"] * 5
    refused = {row.reason for row in found if row.outcome == "refused"}
    assert refused == {"the tensors are on the CPU; a CUDA kernel needs them on a GPU"}

    monkeypatch.setattr(loader, "unavailable", lambda: "nvcc was not found")
    assert __main__.main([*words, "--only", f"{rung},{cuda}"]) == 0
    told = capsys.readouterr()
    assert told.err.count("nvcc was not found") == 1
    assert cuda not in told.out

    assert __main__.main([*words, "--only", "nope"]) == 2
    assert __main__.main([*words, "--dtype", "bf16", "--accumulate", "fp16"]) == 2


@pytest.mark.gpu
def test_the_ladder_runs_and_records(tmp_path):
    path = tmp_path / "x.jsonl"
    rung = RUNGS[-1].name
    run = command(
        "ladder",
        "--sizes",
        "1024",
        "--layouts",
        "NT",
        "--only",
        rung,
        "--quick",
        "--out",
        str(path),
    )
    assert run.returncode == 0, run.stderr
    found = rows.read(path)
    assert [row.competitor for row in found] == [rung, REFERENCE, NULL]
    assert all(row.outcome == "measured" and row.ratio for row in found)


def test_table_and_plot_read_recorded_rows(tmp_path):
    path, picture = tmp_path / "x.jsonl", tmp_path / "ladder.png"
    rows.append(path, synthetic())
    run = command("table", "--results", str(path))
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(report.markdown_table(synthetic()))
    run = command("plot", "--results", str(path), "--out", str(picture))
    assert run.returncode == 0, run.stderr
    assert picture.stat().st_size > 20_000
    assert command("table", "--results", str(path), "--size", "77").returncode == 2
